"""Partitions of a data set over devices; see `partition.py`."""

from __future__ import annotations

from edgeveil.parts.part import PartTable
from edgeveil.parts.partitions.partition import (
    Indices,
    PartitionPart,
    Shares,
    Words,
)

__all__ = ["PARTITIONS", "Indices", "PartitionPart", "Shares", "Words"]

PARTITIONS = TABLE = PartTable(__name__, PartitionPart)
