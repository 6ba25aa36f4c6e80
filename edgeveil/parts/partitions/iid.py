"""Any device gets any record, each equally likely (`iid`)."""

from __future__ import annotations

import numpy as np

from edgeveil.data.public_order import public_order
from edgeveil.parts.partitions.partition import (
    Indices,
    PartitionPart,
    PartitionRule,
    Shares,
    Words,
)
from edgeveil.parts.partitions.partition import pieces as pieces_of


def deal(y: Indices, devices: int, _rule: PartitionRule, seed: int) -> Shares:
    """At random; sizes differ by at most one."""
    return pieces_of(public_order(len(y), seed, "iid"), devices)


def place(
    words: Words, _y: Indices, devices: int, _rule: PartitionRule, _seed: int, _classes: int
) -> Indices:
    """Any device, each equally likely."""
    return np.asarray(words % np.uint64(devices), dtype=np.int64)


PART = PartitionPart(
    name="iid",
    deal=deal,
    place=place,
    source="usual practice",
    summary="At random; sizes differ by at most one.",
    example="local_run: {partition: {kind: iid}}",
)
