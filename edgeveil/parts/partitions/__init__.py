"""Partitions of a data set over devices; see `partition.py`."""

from __future__ import annotations

from edgeveil.parts.part import PartTable
from edgeveil.parts.partitions.partition import Indices as Indices
from edgeveil.parts.partitions.partition import PartitionPart as PartitionPart
from edgeveil.parts.partitions.partition import Shares as Shares
from edgeveil.parts.partitions.partition import Words as Words

PARTITIONS = TABLE = PartTable(__name__, PartitionPart)
