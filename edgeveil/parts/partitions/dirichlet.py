"""Each class is cut over the devices in uneven proportions (`dirichlet`; Yurochkin et al. 2019)."""

from __future__ import annotations

import numpy as np

from edgeveil.data.public_order import public_chance, public_order
from edgeveil.parts.partitions.iid import place as anywhere
from edgeveil.parts.partitions.partition import (
    Indices,
    PartitionPart,
    PartitionRule,
    Shares,
    Words,
    cut,
    drawn,
    proportions,
)


def deal(y: Indices, devices: int, rule: PartitionRule, seed: int) -> Shares:
    """Each class is cut over the devices in proportions drawn from Dirichlet(alpha) (Yurochkin et
    al. 2019): the smaller alpha, the fewer devices share a class. A device may get nothing.
    """
    order = public_order(len(y), seed, "records")
    chance = public_chance(seed, "dirichlet")
    shares: list[Shares] = [[] for _ in range(devices)]
    for label in np.unique(y):
        parts = cut(order[y[order] == label], proportions(devices, rule.alpha, chance))
        for share, part in zip(shares, parts, strict=True):
            share.append(part)
    return [np.concatenate([*share, np.empty(0, np.int64)]) for share in shares]


def place(
    words: Words, y: Indices, devices: int, rule: PartitionRule, seed: int, classes: int
) -> Indices:
    """Each class in proportions of its own, drawn from Dirichlet(alpha) for its number."""
    placed = anywhere(words, y, devices, rule, seed, classes)
    for label in range(classes):
        chance = public_chance(seed, f"dirichlet {label}")
        chosen = y == label
        placed[chosen] = drawn(words[chosen], proportions(devices, rule.alpha, chance))
    return placed


PART = PartitionPart(
    name="dirichlet",
    deal=deal,
    place=place,
    reads=("alpha",),
    by_class=True,
    source="Yurochkin et al. 2019",
    needs="alpha",
    summary="Each class is cut over the devices in proportions drawn from Dirichlet(alpha)"
    " (Yurochkin et al. 2019): the smaller alpha, the fewer devices share a class. A device"
    " may get nothing.",
    example="local_run: {partition: {kind: dirichlet, alpha: 0.5}}",
)
