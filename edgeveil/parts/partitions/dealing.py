"""Dealing of shared data sets to devices, with an optional share of low-quality records.

Published data sets are dealt by index. An owner's record is placed by HMAC-SHA256 of its own bytes
under a public key, so that one more record moves no other: the record-level guarantee of devices
that share a file depends on that. The label is not hashed, so that an image stored under two labels
cannot be both tested on and learned from. Rules by class cut each class by public shares.

Low quality (Cao et al. 2023, section 5): a share `lq_user` of users hold a share `lq_data` of
records with noise and another class."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.labels import PUBLIC_SEED, RECORD_DEALT, RECORD_DISTURBED, RECORD_HELD, context
from edgeveil.data.public_order import SPLIT_SEED, public_chance, public_order
from edgeveil.data.records import Records, canonical_rows
from edgeveil.errors import DataError
from edgeveil.parts.partitions import PARTITIONS
from edgeveil.parts.partitions.partition import Indices, Shares, Words, threshold

if TYPE_CHECKING:
    from edgeveil.config.data import Partition


LQ_NOISE = 0.5  # standard deviation, as a share of the range of the data set's values


def partition(y: Indices, devices: int, rule: Partition, seed: int = 0) -> Shares:
    """Return ascending indices into labels y (n,) per device. Raises DataError, UsageError."""
    check_dealing(devices, rule)
    shares = PARTITIONS[rule.kind].deal(y, devices, rule, seed)
    return [np.sort(share) for share in shares]


def check_dealing(devices: int, rule: Partition) -> None:
    if devices < 1 or rule.classes_per_device < 1 or not rule.alpha > 0:
        raise DataError(
            f"cannot share records over {devices} devices with {rule.classes_per_device} classes "
            f"each and alpha = {rule.alpha}",
            where="partition",
            fix="use at least one device and one class, and an alpha above 0",
        )


def hold_back_share(records: Records, share: float, fold: int = 0) -> tuple[Records, Records]:
    """Return (rest, held): each record is held by its own hash with probability `share` in [0, 1).

    Other values of `fold` hold other records: five folds of 0.2 hold each record once."""
    if not 0.0 <= share < 1.0:
        what = f"must be at least 0 and below 1, got {share}"
        raise DataError(what, where="test_share", fix="write 0.2")
    words = record_words(records.places, SPLIT_SEED, RECORD_HELD)[:, 0]
    held = (words >= threshold(fold * share)) & (words < threshold((fold + 1) * share))
    return records.at(~held), records.at(held)


def needs_classes(rule: Partition) -> bool:
    """Return whether own records are dealt or disturbed by class, which needs public classes."""
    return bool(rule.lq_data) or PARTITIONS[rule.kind].by_class


def deal_own(
    records: Records, devices: int, rule: Partition, seed: int, classes: int | None
) -> tuple[Records, Shares]:
    """Return own records as devices hold them, and each device's ascending indices.

    Raises DataError if a rule needs public `classes`, or the noise a range, that is not set."""
    check_dealing(devices, rule)
    if classes is None and needs_classes(rule):
        what = "is not set, and the records must not define the classes"
        fix = "write classes: 10, as the job has it"
        raise DataError(what, where="data.shard.classes", fix=fix)
    place = records.holders
    if place is None:
        words = record_words(records.places, seed, RECORD_DEALT)[:, 0]
        place = PARTITIONS[rule.kind].place(words, records.y, devices, rule, seed, classes or 0)
    shares = [np.flatnonzero(place == device) for device in range(devices)]
    return _disturbed(records, place, devices, rule, seed, classes or 0), shares


def record_words(x: NDArray[np.float32], seed: int, label: bytes) -> Words:
    """Return four uniform 64-bit words (n, 4) per record of x (n, ...), from its bytes alone."""
    key = sha256(context(PUBLIC_SEED, str(seed).encode())).digest()
    digests = [
        hmac.digest(key, context(label, row.tobytes()), "sha256") for row in canonical_rows(x)
    ]
    return np.frombuffer(b"".join(digests), dtype=">u8").reshape(-1, 4).astype(np.uint64)


def _disturbed(
    records: Records, place: Indices, devices: int, rule: Partition, seed: int, classes: int
) -> Records:
    poor = low_quality_devices(devices, rule, seed)
    if not len(poor) or classes < 2:
        return records
    if rule.lq_range is None:
        what = "is not set, and the range of the values may not follow from the records"
        raise DataError(what, where="partition.lq_range", fix="write lq_range: [0, 255]")
    low, high = rule.lq_range
    x, y, words = (
        records.x.copy(),
        records.y.copy(),
        record_words(records.places, seed, RECORD_DISTURBED),
    )
    chosen = np.isin(place, poor) & (words[:, 0] < threshold(rule.lq_data))
    known = chosen & (y >= 0) & (y < classes)
    others = 1 + (words[known, 1] % np.uint64(classes - 1)).astype(np.int64)
    y[known] = (y[known] + others) % classes
    finite = np.isfinite(canonical_rows(records.x)).all(axis=1)
    for index in np.flatnonzero(chosen & finite):
        chance = np.random.RandomState(words[index].view(np.uint32))
        noise = chance.standard_normal(x[index].shape) * (LQ_NOISE * (high - low))
        x[index] = np.clip(x[index] + noise, low, high)
    return Records(x, y, records.stored)


def low_quality_devices(devices: int, rule: Partition, seed: int) -> NDArray[np.int64]:
    if not rule.lq_data:
        return np.empty(0, np.int64)
    count = _share(devices, rule.lq_user)
    return np.sort(public_order(devices, seed, "low-quality devices")[:count])


def disturbed(records: Records, shares: Shares, rule: Partition, seed: int) -> Records:
    """Return a copy whose low-quality records have another class, and noise by LQ_NOISE."""
    chosen = low_quality_devices(len(shares), rule, seed)
    classes = np.unique(records.y)
    if not len(chosen) or len(classes) < 2:
        return records
    x, y = records.x.copy(), records.y.copy()
    finite = records.x[np.isfinite(records.x)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    for device in chosen:
        share = shares[device]
        order = public_order(len(share), seed, f"low-quality records {device}")
        spoilt = np.sort(share[order[: _share(len(share), rule.lq_data)]])
        chance = public_chance(seed, f"low quality {device}")
        others = chance.randint(1, len(classes), len(spoilt), dtype=np.int64)
        y[spoilt] = classes[(np.searchsorted(classes, y[spoilt]) + others) % len(classes)]
        noise = chance.standard_normal(x[spoilt].shape) * (LQ_NOISE * (high - low))
        x[spoilt] = np.clip(x[spoilt] + noise, low, high)
    return Records(x, y)


def _share(count: int, share: float) -> int:
    return int(np.floor(count * share + 0.5))
