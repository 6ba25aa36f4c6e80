"""A device's own records: its source, its shard of it, and its two halves."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fl_core.algorithms.base import Records
from fl_core.data.digits import load_digits_split
from fl_core.data.held import hold_back
from fl_core.data.images import ImageForm
from fl_core.data.low_quality import LowQuality, disturbed
from fl_core.data.partition import PartitionRule, Shares, partition
from fl_core.data.published import PUBLISHED, published_test
from fl_core.data.sources import Origin, brings_its_test, load_records
from fl_core.data.split import split_once
from fl_core.errors import DataError


class DealingRule(PartitionRule, LowQuality, Hashable, Protocol):
    """How a public data set is shared out, and how much of it is of low quality."""


class ShardSettings(Protocol):
    """Which share of a public data set this device plays."""

    @property
    def devices(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def partition(self) -> DealingRule: ...
    @property
    def seed(self) -> int: ...


class SourceSettings(Protocol):
    """Where records come from, as a site file says it."""

    @property
    def source(self) -> str: ...
    @property
    def path(self) -> Path | None: ...
    @property
    def labels_path(self) -> Path | None: ...
    @property
    def label_column(self) -> str | None: ...
    @property
    def images(self) -> ImageForm | None: ...
    @property
    def test_records(self) -> int | None: ...


class DataSettings(SourceSettings, Protocol):
    """The `data` block of a device's site file."""

    @property
    def shard(self) -> ShardSettings | None: ...


def held_records(data: SourceSettings) -> Records:
    """What a cloud tests models on: records that no device gets, or a file of the cloud's own."""
    if data.source == "digits":
        return load_digits_split(data.test_records)[1]
    if data.source in PUBLISHED:
        return published_test(data.source, data.path, data.test_records)
    if data.test_records is None:
        return load_records(data.source, origin_of(data))
    return _halves(data.source, origin_of(data))[1]


def own_records(data: DataSettings) -> Records:
    """All records of this device, its shard where one is set. Raises DataError, UsageError."""
    shard = data.shard
    if shard is None:
        return devices_records(data.source, origin_of(data))
    if not 0 <= shard.index < shard.devices:
        raise DataError(
            f"must be in 0..{shard.devices - 1}, got {shard.index}",
            where="data.shard.index",
            fix="number the devices from 0",
        )
    records, shares = dealt_records(
        data.source, origin_of(data), shard.devices, shard.partition, shard.seed
    )
    return take(records, shares[shard.index])


@lru_cache(maxsize=1)
def dealt_records(
    source: str, origin: Origin, devices: int, rule: DealingRule, seed: int
) -> tuple[Records, Shares]:
    """A whole data set as its devices hold it, and each device's indices into it.

    Kept, so that the many devices of one process read and deal their data set once.
    """
    records = devices_records(source, origin)
    shares = partition(records.y, devices, rule, seed)
    return disturbed(records, shares, rule, seed), shares


def devices_records(source: str, origin: Origin) -> Records:
    """All records but those that are held back for the cloud. Raises DataError, UsageError."""
    if origin.test_records is None or brings_its_test(source):
        return load_records(source, origin)
    return _halves(source, origin)[0]


@lru_cache(maxsize=1)
def _halves(source: str, origin: Origin) -> tuple[Records, Records]:
    """The devices' part and the cloud's of a file that they share, read once for both."""
    return hold_back(load_records(source, origin), origin.test_records or 0)


def device_records(
    data: DataSettings, split_key: bytes, *, evaluation_share: float
) -> tuple[Records, Records]:
    """(training, evaluation) records of this device; disjoint and the same at every start."""
    records = own_records(data)
    training, evaluation = split_once(records.x, evaluation_share, split_key)
    return take(records, training), take(records, evaluation)


def take(records: Records, indices: NDArray[np.int64]) -> Records:
    """The records at `indices`, copied."""
    return Records(records.x[indices], records.y[indices])


def origin_of(data: SourceSettings) -> Origin:
    """Where the records of a `data` block are."""
    return Origin(
        path=data.path,
        labels_path=data.labels_path,
        label_column=data.label_column,
        images=data.images,
        test_records=data.test_records,
    )
