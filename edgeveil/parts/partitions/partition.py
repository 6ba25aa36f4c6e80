"""Partitions: ways to deal a data set to devices, for demonstrations.

Published sets are dealt by index and all labels (`deal`), owners' records by each record's own hash
(`place`; see `dealing.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.public_order import public_chance, public_order
from edgeveil.parts.part import Part

if TYPE_CHECKING:
    from edgeveil.config.data import Partition

Indices = NDArray[np.int64]
Shares = list[Indices]
Words = NDArray[np.uint64]


Deal = Callable[[Indices, int, "Partition", int], Shares]
"""(labels (n,), devices, rule, seed) -> indices for each device; each index once."""
Place = Callable[[Words, Indices, int, "Partition", int, int], Indices]
"""(words (n,), labels (n,), devices, rule, seed, classes) -> the device of each record. The device
may depend only on the record's own hash word and label; `classes` is the number of labels."""


@dataclass(frozen=True, kw_only=True)
class PartitionPart(Part):
    family: ClassVar[str] = "partitions"
    key: ClassVar[str] = "local_run.partition"
    what: ClassVar[str] = "partition"

    deal: Deal
    place: Place
    reads: tuple[str, ...] = ()
    by_class: bool = False


def pieces(order: Indices, count: int) -> Shares:
    edges = [len(order) * k // count for k in range(count + 1)]
    return [order[a:b] for a, b in pairwise(edges)]


def cut(order: Indices, shares: NDArray[np.float64]) -> Shares:
    inner = np.floor(np.cumsum(shares)[:-1] * len(order) + 0.5).astype(np.int64)
    return np.split(order, np.minimum(inner, len(order)))


def proportions(count: int, alpha: float, chance: np.random.RandomState) -> NDArray[np.float64]:
    """Draw (count,) from a symmetric Dirichlet; by logarithms, since Gamma(alpha) underflows."""
    uniform = 1.0 - chance.random_sample(count)  # in (0, 1]
    logs = np.log(chance.standard_gamma(alpha + 1.0, count)) + np.log(uniform) / alpha
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def drawn(words: Words, shares: NDArray[np.float64]) -> Indices:
    """Return the device of each word (n,), such that device k gets the fraction `shares[k]`."""
    cuts = np.array([threshold(edge) for edge in np.cumsum(shares)[:-1]], np.uint64)
    return np.asarray(np.searchsorted(cuts, words, side="right"), dtype=np.int64)


def threshold(share: float) -> np.uint64:
    """Return the number below 2**64 that a uniform word is under with probability `share`."""
    return np.uint64(min(math.floor(share * 2.0**64), 2**64 - 1))


def deal_iid(y: Indices, devices: int, _rule: Partition, seed: int) -> Shares:
    return pieces(public_order(len(y), seed, "iid"), devices)


def place_iid(
    words: Words, _y: Indices, devices: int, _rule: Partition, _seed: int, _classes: int
) -> Indices:
    return np.asarray(words % np.uint64(devices), dtype=np.int64)


def deal_n_class(y: Indices, devices: int, rule: Partition, seed: int) -> Shares:
    each = rule.classes_per_device
    classes = np.unique(y)
    rank = np.argsort(public_order(len(classes), seed, "classes"))  # classes in a seeded order
    order = public_order(len(y), seed, "records")
    by_class = order[np.argsort(rank[np.searchsorted(classes, y[order])], kind="stable")]
    parts = pieces(by_class, devices * each)
    held = class_pieces(devices, each, seed)
    return [np.concatenate([parts[piece] for piece in own]) for own in held]


def place_n_class(
    words: Words, y: Indices, devices: int, rule: Partition, seed: int, classes: int
) -> Indices:
    pieces, known = devices * rule.classes_per_device, (y >= 0) & (y < classes)
    rank = np.argsort(public_order(classes, seed, "classes"))
    at = (rank[y[known]] + words[known].astype(np.float64) * 2.0**-64) * (pieces / classes)
    holder = np.empty(pieces, np.int64)
    for device, own in enumerate(class_pieces(devices, rule.classes_per_device, seed)):
        holder[own] = device
    placed = place_iid(words, y, devices, rule, seed, classes)
    placed[known] = holder[np.minimum(at.astype(np.int64), pieces - 1)]
    return placed


def class_pieces(devices: int, pieces: int, seed: int) -> NDArray[np.int64]:
    """Return the pieces (devices, pieces) of the class order that each device gets, far apart."""
    stretches = [public_order(devices, seed, f"stretch-{k}") + k * devices for k in range(pieces)]
    return np.stack(stretches, axis=1)


def deal_dirichlet(y: Indices, devices: int, rule: Partition, seed: int) -> Shares:
    order = public_order(len(y), seed, "records")
    chance = public_chance(seed, "dirichlet")
    shares: list[Shares] = [[] for _ in range(devices)]
    for label in np.unique(y):
        parts = cut(order[y[order] == label], proportions(devices, rule.alpha, chance))
        for share, part in zip(shares, parts, strict=True):
            share.append(part)
    return [np.concatenate([*share, np.empty(0, np.int64)]) for share in shares]


def place_dirichlet(
    words: Words, y: Indices, devices: int, rule: Partition, seed: int, classes: int
) -> Indices:
    placed = place_iid(words, y, devices, rule, seed, classes)
    for label in range(classes):
        chance = public_chance(seed, f"dirichlet {label}")
        chosen = y == label
        placed[chosen] = drawn(words[chosen], proportions(devices, rule.alpha, chance))
    return placed


def deal_quantity_skew(y: Indices, devices: int, rule: Partition, seed: int) -> Shares:
    sizes = proportions(devices, rule.alpha, public_chance(seed, "quantity"))
    return cut(public_order(len(y), seed, "iid"), sizes)


def place_quantity_skew(
    words: Words, _y: Indices, devices: int, rule: Partition, seed: int, _classes: int
) -> Indices:
    return drawn(words, proportions(devices, rule.alpha, public_chance(seed, "quantity")))


PARTS = (
    PartitionPart(
        name="iid",
        deal=deal_iid,
        place=place_iid,
        source="usual practice",
        summary="At random; sizes differ by at most one.",
        example="local_run: {partition: {kind: iid}}",
    ),
    PartitionPart(
        name="n_class",
        deal=deal_n_class,
        place=place_n_class,
        reads=("classes_per_device",),
        by_class=True,
        source="McMahan et al. 2017",
        needs="classes_per_device",
        summary="Each device gets `classes_per_device` pieces of the records sorted by label, so"
        " about that many classes (McMahan et al. 2017, the non-IID split); sizes differ by at most"
        " that number.",
        example="local_run: {partition: {kind: n_class, classes_per_device: 2}}",
    ),
    PartitionPart(
        name="dirichlet",
        deal=deal_dirichlet,
        place=place_dirichlet,
        reads=("alpha",),
        by_class=True,
        source="Yurochkin et al. 2019",
        needs="alpha",
        summary="Each class is cut over the devices in proportions drawn from Dirichlet(alpha)"
        " (Yurochkin et al. 2019): the smaller alpha, the fewer devices share a class. A device"
        " may get nothing.",
        example="local_run: {partition: {kind: dirichlet, alpha: 0.5}}",
    ),
    PartitionPart(
        name="quantity_skew",
        deal=deal_quantity_skew,
        place=place_quantity_skew,
        reads=("alpha",),
        source="Li et al. 2022",
        needs="alpha",
        summary="At random, in sizes proportional to a draw from Dirichlet(alpha) (Li et al."
        " 2022): the smaller alpha, the more unequal. A device may get nothing.",
        example="local_run: {partition: {kind: quantity_skew, alpha: 0.5}}",
    ),
)
