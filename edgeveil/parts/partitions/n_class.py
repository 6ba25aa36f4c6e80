"""Each device holds records of about so many classes (`n_class`; McMahan et al. 2017)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.public_order import public_order
from edgeveil.parts.partitions.iid import place as anywhere
from edgeveil.parts.partitions.partition import (
    Indices,
    PartitionPart,
    PartitionRule,
    Shares,
    Words,
)
from edgeveil.parts.partitions.partition import pieces as pieces_of


def deal(y: Indices, devices: int, rule: PartitionRule, seed: int) -> Shares:
    """Each device gets `classes_per_device` pieces of the records sorted by label, so about that
    many classes (McMahan et al. 2017, the non-IID split); sizes differ by at most that number.
    """
    each = rule.classes_per_device
    classes = np.unique(y)
    rank = np.argsort(public_order(len(classes), seed, "classes"))  # classes in a seeded order
    order = public_order(len(y), seed, "records")
    by_class = order[np.argsort(rank[np.searchsorted(classes, y[order])], kind="stable")]
    parts = pieces_of(by_class, devices * each)
    held = class_pieces(devices, each, seed)
    return [np.concatenate([parts[piece] for piece in own]) for own in held]


def place(
    words: Words, y: Indices, devices: int, rule: PartitionRule, seed: int, classes: int
) -> Indices:
    """Each class is cut into equal pieces, of which each device has `classes_per_device`.

    As `deal` cuts records where each class has equally many, which is public.
    """
    pieces, known = devices * rule.classes_per_device, (y >= 0) & (y < classes)
    rank = np.argsort(public_order(classes, seed, "classes"))
    at = (rank[y[known]] + words[known].astype(np.float64) * 2.0**-64) * (pieces / classes)
    holder = np.empty(pieces, np.int64)
    for device, own in enumerate(class_pieces(devices, rule.classes_per_device, seed)):
        holder[own] = device
    placed = anywhere(words, y, devices, rule, seed, classes)
    placed[known] = holder[np.minimum(at.astype(np.int64), pieces - 1)]
    return placed


def class_pieces(devices: int, pieces: int, seed: int) -> NDArray[np.int64]:
    """Numbers (devices, pieces) of the pieces of the class order that each device has.

    One from each of `pieces` stretches of that order, so that they come from different classes.
    """
    stretches = [public_order(devices, seed, f"stretch-{k}") + k * devices for k in range(pieces)]
    return np.stack(stretches, axis=1)


PART = PartitionPart(
    name="n_class",
    deal=deal,
    place=place,
    reads=("classes_per_device",),
    by_class=True,
    source="McMahan et al. 2017",
    needs="classes_per_device",
    summary="Each device gets `classes_per_device` pieces of the records sorted by label, so about"
    " that many classes (McMahan et al. 2017, the non-IID split); sizes differ by at most that"
    " number.",
    example="local_run: {partition: {kind: n_class, classes_per_device: 2}}",
)
