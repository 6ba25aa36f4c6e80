"""Records of one device: reading the source, taking its shard, splitting into two halves."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema
from edgeveil.data.split import RecordLimit, kept_places, split_once
from edgeveil.errors import DataError
from edgeveil.parts.partitions import PARTITIONS, Shares
from edgeveil.parts.partitions.dealing import deal_own, disturbed, hold_back_share, partition
from edgeveil.parts.sources import (
    Origin,
    guessed_header,
    has_own_test,
    load_records,
    require_schema,
    source_part,
)

if TYPE_CHECKING:
    from edgeveil.config.data import DataSource, Partition


def local_records(data: DataSource, schema: DataSchema | None = None) -> Records:
    """Return the cloud's test records: a share that no device gets, or a separate file."""
    if schema is not None and schema.raw:  # statistics have no model to test
        return Records(np.zeros((0, *schema.input_shape), np.float32), np.zeros(0, np.int64))
    test = source_part(data.source).test
    origin = origin_of(data, schema)
    if test is not None:
        if schema is not None:
            require_schema(source_part(data.source), schema)
        return test(origin)
    if origin.given is not None and origin.given.test is not None:
        return origin.given.test
    path = data.path if data.test_share is not None else data.test_path or data.path
    header = guessed_header(data.source, data.header, path, schema, data.form)
    origin = replace(origin, path=path, header=header)
    if data.test_share is None:  # a file of its own needs no column of persons
        named = None if schema is None else schema.model_copy(update={"person": None})
        return load_records(data.source, replace(origin, schema=named))
    return _halves(data.source, origin)[1]


def own_records(
    data: DataSource, schema: DataSchema | None = None, limit: RecordLimit | None = None
) -> Records:
    """Return all records of this device, its shard if set. Raises DataError, UsageError.

    `limit` cuts records of a schema while they are read, unless dealt or held back; by default too
    many raise RecordsError."""
    shard, origin = data.shard, origin_of(data, schema)
    if shard is None:
        whole = data.test_share is None
        return all_device_records(data.source, replace(origin, limit=limit if whole else None))
    if not 0 <= shard.index < shard.devices:
        what = f"must be in 0..{shard.devices - 1}, got {shard.index}"
        raise DataError(what, where="data.shard.index", fix="number the devices from 0")
    records, shares = dealt_records(
        data.source, origin, shard.devices, shard.partition, shard.seed, shard.classes
    )
    return records.at(shares[shard.index])


@lru_cache(maxsize=1)
def dealt_records(
    source: str,
    origin: Origin,
    devices: int,
    rule: Partition,
    seed: int,
    classes: int | None = None,
) -> tuple[Records, Shares]:
    """Return a whole data set as its devices hold it, and each device's indices; cached."""
    if origin.schema is not None and origin.schema.person and PARTITIONS[rule.kind].by_class:
        what = f"'{rule.kind}' deals by class, and one person may have records of several"
        raise DataError(what, where="partition.kind", fix="use iid or quantity_skew")
    records = all_device_records(source, origin)
    if not has_own_test(source):
        return deal_own(records, devices, rule, seed, classes)
    shares = partition(records.y, devices, rule, seed)
    return disturbed(records, shares, rule, seed), shares


def all_device_records(source: str, origin: Origin) -> Records:
    if origin.test_share is None or has_own_test(source):
        return load_records(source, origin)
    return _halves(source, origin)[0]


@lru_cache(maxsize=1)
def _halves(source: str, origin: Origin) -> tuple[Records, Records]:
    share = origin.test_share or 0.0
    return hold_back_share(load_records(source, origin), share, origin.test_fold)


def device_records(
    data: DataSource,
    split_key: bytes,
    *,
    evaluation_share: float,
    schema: DataSchema | None = None,
    most: int | None = None,
) -> tuple[Records, Records]:
    """Return disjoint (training, evaluation) records, equal at every start and for any schema."""
    limit = None if most is None else RecordLimit(most, split_key)
    return halves(own_records(data, schema, limit), split_key, evaluation_share)


def halves(records: Records, split_key: bytes, share: float) -> tuple[Records, Records]:
    training, evaluation = split_once(records.places, share, split_key)
    return records.at(training) if len(evaluation) else records, records.at(evaluation)


def at_most(
    training: Records, evaluation: Records, most: int, split_key: bytes
) -> tuple[Records, Records]:
    """Return the halves cut to `most` records by HMAC rank: a new record displaces at most one."""
    if len(training) + len(evaluation) <= most:
        return training, evaluation
    chosen = kept_places((training.places, evaluation.places), most, split_key)
    return training.at(chosen[0]), evaluation.at(chosen[1])


def of_shape(records: Records, input_shape: tuple[int, ...]) -> Records:
    """Return records of as many values as `input_shape`, or an empty list. Raises DataError."""
    shape = records.x.shape[1:]
    if math.prod(shape) == math.prod(input_shape):
        return records
    if not len(records) and shape == (0,):
        return Records(np.zeros((0, *input_shape), np.float32), records.y)
    what = f"holds records of shape {list(shape)}, the job learns from {list(input_shape)}"
    raise DataError(what, where="data", fix="see `edgeveil check EDGE.yaml JOB.yaml`")


def origin_of(data: DataSource, schema: DataSchema | None = None) -> Origin:
    named = {one.name for one in fields(Origin)} & set(type(data).model_fields) - {"schema"}
    return Origin(**{name: getattr(data, name) for name in named}, schema=schema, given=data.given)
