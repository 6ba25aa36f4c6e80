"""Devices hold uneven numbers of records (`quantity_skew`; Li et al. 2022)."""

from __future__ import annotations

from edgeveil.data.public_order import public_chance, public_order
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
    """At random, in sizes proportional to a draw from Dirichlet(alpha) (Li et al. 2022): the
    smaller alpha, the more unequal. A device may get nothing.
    """
    sizes = proportions(devices, rule.alpha, public_chance(seed, "quantity"))
    return cut(public_order(len(y), seed, "iid"), sizes)


def place(
    words: Words, _y: Indices, devices: int, rule: PartitionRule, seed: int, _classes: int
) -> Indices:
    """Any device, with probabilities drawn from Dirichlet(alpha)."""
    return drawn(words, proportions(devices, rule.alpha, public_chance(seed, "quantity")))


PART = PartitionPart(
    name="quantity_skew",
    deal=deal,
    place=place,
    reads=("alpha",),
    source="Li et al. 2022",
    needs="alpha",
    summary="At random, in sizes proportional to a draw from Dirichlet(alpha) (Li et al."
    " 2022): the smaller alpha, the more unequal. A device may get nothing.",
    example="local_run: {partition: {kind: quantity_skew, alpha: 0.5}}",
)
