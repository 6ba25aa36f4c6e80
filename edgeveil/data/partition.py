"""Sharing a published data set out over devices, for demonstrations: seeded, disjoint, complete.

By index and by all labels, so one record more moves others: never for records of an owner's own,
which `edgeveil/data/own_dealing.py` deals.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.order import public_chance, public_order
from edgeveil.errors import DataError
from edgeveil.registry import Table

Indices = NDArray[np.int64]
Shares = list[Indices]


class PartitionRule(Protocol):
    """How a data set is shared out; a partition reads what concerns it."""

    @property
    def kind(self) -> str: ...
    @property
    def classes_per_device(self) -> int: ...
    @property
    def alpha(self) -> float: ...


Partition = Callable[[Indices, int, PartitionRule, int], Shares]


def partition(y: Indices, devices: int, rule: PartitionRule, seed: int = 0) -> Shares:
    """One ascending array of indices into labels y (n,) for each device; each index once.

    Raises DataError on impossible numbers, UsageError on an unknown kind.
    """
    check_dealing(devices, rule)
    shares = PARTITIONS[rule.kind](y, devices, rule, seed)
    return [np.sort(share) for share in shares]


def check_dealing(devices: int, rule: PartitionRule) -> None:
    """Raise DataError for numbers that no records can be dealt by."""
    if devices < 1 or rule.classes_per_device < 1 or not rule.alpha > 0:
        raise DataError(
            f"cannot share records over {devices} devices with {rule.classes_per_device} classes "
            f"each and alpha = {rule.alpha}",
            where="partition",
            fix="use at least one device and one class, and an alpha above 0",
        )


def iid(y: Indices, devices: int, _rule: PartitionRule, seed: int) -> Shares:
    """At random; sizes differ by at most one."""
    return _pieces(public_order(len(y), seed, "iid"), devices)


def n_class(y: Indices, devices: int, rule: PartitionRule, seed: int) -> Shares:
    """Each device gets `classes_per_device` pieces of the records sorted by label, so about that
    many classes (McMahan et al. 2017, the non-IID split); sizes differ by at most that number.
    """
    pieces = rule.classes_per_device
    classes = np.unique(y)
    rank = np.argsort(public_order(len(classes), seed, "classes"))  # classes in a seeded order
    order = public_order(len(y), seed, "records")
    by_class = order[np.argsort(rank[np.searchsorted(classes, y[order])], kind="stable")]
    parts = _pieces(by_class, devices * pieces)
    held = class_pieces(devices, pieces, seed)
    return [np.concatenate([parts[piece] for piece in own]) for own in held]


def class_pieces(devices: int, pieces: int, seed: int) -> NDArray[np.int64]:
    """Numbers (devices, pieces) of the pieces of the class order that each device has.

    One from each of `pieces` stretches of that order, so that they come from different classes.
    """
    stretches = [public_order(devices, seed, f"stretch-{k}") + k * devices for k in range(pieces)]
    return np.stack(stretches, axis=1)


def dirichlet(y: Indices, devices: int, rule: PartitionRule, seed: int) -> Shares:
    """Each class is cut over the devices in proportions drawn from Dirichlet(alpha) (Yurochkin et
    al. 2019): the smaller alpha, the fewer devices share a class. A device may get nothing.
    """
    order = public_order(len(y), seed, "records")
    chance = public_chance(seed, "dirichlet")
    shares: list[Shares] = [[] for _ in range(devices)]
    for label in np.unique(y):
        cut = _cut(order[y[order] == label], proportions(devices, rule.alpha, chance))
        for share, part in zip(shares, cut, strict=True):
            share.append(part)
    return [np.concatenate([*share, np.empty(0, np.int64)]) for share in shares]


def quantity_skew(y: Indices, devices: int, rule: PartitionRule, seed: int) -> Shares:
    """At random, in sizes proportional to a draw from Dirichlet(alpha) (Li et al. 2022): the
    smaller alpha, the more unequal. A device may get nothing.
    """
    sizes = proportions(devices, rule.alpha, public_chance(seed, "quantity"))
    return _cut(public_order(len(y), seed, "iid"), sizes)


PARTITIONS: Table[Partition] = Table(
    "partition",
    {"iid": iid, "n_class": n_class, "dirichlet": dirichlet, "quantity_skew": quantity_skew},
)


def _pieces(order: Indices, count: int) -> Shares:
    edges = [len(order) * k // count for k in range(count + 1)]
    return [order[a:b] for a, b in pairwise(edges)]


def _cut(order: Indices, proportions: NDArray[np.float64]) -> Shares:
    inner = np.floor(np.cumsum(proportions)[:-1] * len(order) + 0.5).astype(np.int64)
    return np.split(order, np.minimum(inner, len(order)))


def proportions(count: int, alpha: float, chance: np.random.RandomState) -> NDArray[np.float64]:
    """A draw from the symmetric Dirichlet distribution, shape (count,).

    Through logarithms of Gamma(alpha + 1): for a small alpha, Gamma(alpha) itself is zero in
    floating point, and zeros have no proportions.
    """
    uniform = 1.0 - chance.random_sample(count)  # in (0, 1]
    logs = np.log(chance.standard_gamma(alpha + 1.0, count)) + np.log(uniform) / alpha
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)
