"""Owners' own records: who holds which follows from each record alone, and from public numbers.

A record's place is drawn from HMAC-SHA256 of its own bytes, under a key that follows from the
public seed. So one record added or removed moves no other, and changes what one device holds, by
one record: the record-level guarantee of a fleet that shares a file needs that. The key is no
secret, and need not be: what has to hold is that a place is a function of the record. Equal records
share a place.

The label takes no part in the hash, so that one image that was labelled twice cannot be tested on
and learned from. Where a rule deals by class, the record's own class chooses among public cuts.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.labels import PUBLIC_SEED, RECORD_DEALT, RECORD_DISTURBED, RECORD_HELD, context
from edgeveil.data.held import SPLIT_SEED
from edgeveil.data.limits import canonical_rows
from edgeveil.data.low_quality import LowQuality, low_quality_devices
from edgeveil.data.order import public_chance, public_order
from edgeveil.data.partition import (
    Indices,
    PartitionRule,
    Shares,
    check_dealing,
    class_pieces,
    proportions,
)
from edgeveil.data.records import Records
from edgeveil.errors import DataError
from edgeveil.registry import Table

Words = NDArray[np.uint64]


class OwnRule(PartitionRule, LowQuality, Protocol):
    """How own records are dealt; `lq_range`: the least and greatest value, as is public."""

    @property
    def lq_range(self) -> tuple[float, float] | None: ...


def hold_back_share(records: Records, share: float) -> tuple[Records, Records]:
    """(rest, held): each record is held by its own hash, with probability `share` in [0, 1).

    The same at all parties; sizes are only about the share. Raises DataError for another share.
    """
    if not 0.0 <= share < 1.0:
        raise DataError(
            f"must be at least 0 and below 1, got {share}", where="test_share", fix="write 0.2"
        )
    held = record_words(records.x, SPLIT_SEED, RECORD_HELD)[:, 0] < _threshold(share)
    return Records(records.x[~held], records.y[~held]), Records(records.x[held], records.y[held])


def needs_classes(rule: OwnRule) -> bool:
    """Whether own records are dealt or disturbed by class, so that the classes must be public."""
    return bool(rule.lq_data) or rule.kind in BY_CLASS


def deal_own(
    records: Records, devices: int, rule: OwnRule, seed: int, classes: int | None
) -> tuple[Records, Shares]:
    """Own records as the devices hold them, and an ascending array of indices for each device.

    `classes`: how many there are, by the configuration and never by the records. Raises DataError
    where a rule needs them, or the range of the noise, and they are not said.
    """
    check_dealing(devices, rule)
    if classes is None and needs_classes(rule):
        raise DataError(
            "is not set, and which classes there are may not follow from the records",
            where="data.shard.classes",
            fix="write classes: 10, as the job has it",
        )
    words = record_words(records.x, seed, RECORD_DEALT)[:, 0]
    place = OWN_DEALING[rule.kind](words, records.y, devices, rule, seed, classes or 0)
    shares = [np.flatnonzero(place == device) for device in range(devices)]
    return _disturbed(records, place, devices, rule, seed, classes or 0), shares


def record_words(x: NDArray[np.float32], seed: int, label: bytes) -> Words:
    """Four uniform numbers below 2**64 (n, 4) for each record of x (n, ...), by its bytes alone."""
    key = sha256(context(PUBLIC_SEED, str(seed).encode())).digest()
    digests = [
        hmac.digest(key, context(label, row.tobytes()), "sha256") for row in canonical_rows(x)
    ]
    return np.frombuffer(b"".join(digests), dtype=">u8").reshape(-1, 4).astype(np.uint64)


Place = Callable[[Words, Indices, int, PartitionRule, int, int], Indices]


def own_iid(
    words: Words, _y: Indices, devices: int, _rule: PartitionRule, _seed: int, _classes: int
) -> Indices:
    """Any device, each equally likely."""
    return np.asarray(words % np.uint64(devices), dtype=np.int64)


def own_n_class(
    words: Words, y: Indices, devices: int, rule: PartitionRule, seed: int, classes: int
) -> Indices:
    """Each class is cut into equal pieces, of which each device has `classes_per_device`.

    As `partition.n_class` cuts records where each class has equally many, which is public.
    """
    pieces, known = devices * rule.classes_per_device, (y >= 0) & (y < classes)
    rank = np.argsort(public_order(classes, seed, "classes"))
    at = (rank[y[known]] + words[known].astype(np.float64) * 2.0**-64) * (pieces / classes)
    holder = np.empty(pieces, np.int64)
    for device, own in enumerate(class_pieces(devices, rule.classes_per_device, seed)):
        holder[own] = device
    place = own_iid(words, y, devices, rule, seed, classes)
    place[known] = holder[np.minimum(at.astype(np.int64), pieces - 1)]
    return place


def own_dirichlet(
    words: Words, y: Indices, devices: int, rule: PartitionRule, seed: int, classes: int
) -> Indices:
    """Each class in proportions of its own, drawn from Dirichlet(alpha) for its number."""
    place = own_iid(words, y, devices, rule, seed, classes)
    for label in range(classes):
        chance = public_chance(seed, f"dirichlet {label}")
        chosen = y == label
        place[chosen] = _cut(words[chosen], proportions(devices, rule.alpha, chance))
    return place


def own_quantity_skew(
    words: Words, _y: Indices, devices: int, rule: PartitionRule, seed: int, _classes: int
) -> Indices:
    """Any device, with probabilities drawn from Dirichlet(alpha)."""
    return _cut(words, proportions(devices, rule.alpha, public_chance(seed, "quantity")))


OWN_DEALING: Table[Place] = Table(
    "partition",
    {
        "iid": own_iid,
        "n_class": own_n_class,
        "dirichlet": own_dirichlet,
        "quantity_skew": own_quantity_skew,
    },
)
BY_CLASS = ("n_class", "dirichlet")


def _disturbed(
    records: Records, place: Indices, devices: int, rule: OwnRule, seed: int, classes: int
) -> Records:
    """As `low_quality.disturbed`, but by each record's own hash, public classes and range."""
    poor = low_quality_devices(devices, rule, seed)
    if not len(poor) or classes < 2:
        return records
    if rule.lq_range is None:
        raise DataError(
            "is not set, and the range of the values may not follow from the records",
            where="partition.lq_range",
            fix="write lq_range: [0, 255]",
        )
    low, high = rule.lq_range
    x, y, words = (
        records.x.copy(),
        records.y.copy(),
        record_words(records.x, seed, RECORD_DISTURBED),
    )
    chosen = np.isin(place, poor) & (words[:, 0] < _threshold(rule.lq_data))
    known = chosen & (y >= 0) & (y < classes)
    others = 1 + (words[known, 1] % np.uint64(classes - 1)).astype(np.int64)
    y[known] = (y[known] + others) % classes
    finite = np.isfinite(canonical_rows(records.x)).all(axis=1)
    for index in np.flatnonzero(chosen & finite):
        chance = np.random.RandomState(words[index].view(np.uint32))
        noise = chance.standard_normal(x[index].shape) * (rule.lq_noise * (high - low))
        x[index] = np.clip(x[index] + noise, low, high)
    return Records(x, y)


def _threshold(share: float) -> np.uint64:
    return np.uint64(min(math.floor(share * 2.0**64), 2**64 - 1))


def _cut(words: Words, shares: NDArray[np.float64]) -> Indices:
    cuts = np.array([_threshold(edge) for edge in np.cumsum(shares)[:-1]], np.uint64)
    return np.asarray(np.searchsorted(cuts, words, side="right"), dtype=np.int64)
