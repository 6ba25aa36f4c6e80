"""Partitions: one file is one name. What a file needs to be one stands in `partition.py`."""

from __future__ import annotations

from edgeveil.parts.part import PartTable
from edgeveil.parts.partitions.partition import (
    Indices,
    PartitionPart,
    PartitionRule,
    Shares,
    Words,
)

__all__ = ["PARTITIONS", "Indices", "PartitionPart", "PartitionRule", "Shares", "Words"]

PARTITIONS = TABLE = PartTable(__name__, PartitionPart)
