"""Assign each record of a device to training or evaluation, and to a slot.

A keyed hash of the record's own bytes under the device's split key decides, permanently: a restart
changes nothing, one more record moves no other, and the halves never overlap. In a slot of a
`per_sample` upload at most one evaluation record counts: the first by rank.
"""

from __future__ import annotations

import hmac
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.labels import EVALUATION_SLOT, RECORD_RANK, context
from edgeveil.data.records import canonical_rows
from edgeveil.errors import DataError

SPLIT_KEY_FILE = "split.key"
_KEY_BYTES = 32
EMPTY = -1  # the index in an empty slot


def split_once(
    x: NDArray[np.float32], evaluation_share: float, split_key: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (training, evaluation) ascending indices of records x (n, ...).

    Evaluation: HMAC-SHA256(split_key, float32 bytes) below `evaluation_share`. Raises DataError."""
    if not 0.0 <= evaluation_share <= 1.0:
        what = f"must be in [0, 1], got {evaluation_share}"
        raise DataError(what, where="evaluation_share", fix="use 0.1")
    _check_key(split_key, "split key")
    below = math.floor(evaluation_share * 2.0**64)
    hashes = (hmac.digest(split_key, row.tobytes(), "sha256")[:8] for row in canonical_rows(x))
    chosen = np.array([int.from_bytes(one, "big") < below for one in hashes], dtype=np.bool_)
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def kept_places(
    halves: Sequence[NDArray[np.float32]], most: int, key: bytes
) -> list[NDArray[np.int64]]:
    """Return per half the ascending indices of the `most` records of least keyed rank overall."""
    ranked = sorted(
        (hmac.digest(key, context(RECORD_RANK, row.tobytes()), "sha256"), half, index)
        for half, x in enumerate(halves)
        for index, row in enumerate(canonical_rows(x))
    )[:most]
    return [
        np.array(sorted(index for _, at, index in ranked if at == half), dtype=np.int64)
        for half in range(len(halves))
    ]


@dataclass(frozen=True)
class RecordLimit:
    """The most records that a device uses, ranked by its split `key`."""

    count: int
    key: bytes = field(repr=False)

    def kept(self, places: NDArray[np.float32]) -> NDArray[np.int64]:
        return kept_places((places,), self.count, self.key)[0]


def sample_slots(
    x: NDArray[np.float32], slots: int, key: bytes, persons: NDArray[np.float32] | None = None
) -> NDArray[np.int64]:
    """Return the index in x (n, ...) of each slot's record (slots,), or `EMPTY`.

    Of HMAC-SHA256 under `key` 16 bytes choose the slot and all 32 rank; only finite records count.
    With `persons` (n, k) these choose the slot: all records of one are in the same."""
    rows = canonical_rows(x)
    choosing = None if persons is None else canonical_rows(persons)
    held = np.full(slots, EMPTY, dtype=np.int64)
    ranks = [b""] * slots
    for index in np.flatnonzero(np.isfinite(rows).all(axis=1)):
        rank = hmac.digest(key, context(EVALUATION_SLOT, rows[index].tobytes()), "sha256")
        chosen = rank
        if choosing is not None:
            of_person = context(EVALUATION_SLOT, choosing[index].tobytes())
            chosen = hmac.digest(key, of_person, "sha256")
        slot = int.from_bytes(chosen[:16], "big") % slots
        if held[slot] == EMPTY or rank < ranks[slot]:
            held[slot], ranks[slot] = index, rank
    return held


def load_split_key(path: Path) -> bytes:
    """Return the device's split key, created (mode 0600) at the first call.

    Back it up with the ledger: a new key moves records between halves, so both would use them."""
    if path.exists():
        key = path.read_bytes()
        _check_key(key, str(path))
        return key
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(secrets.token_bytes(_KEY_BYTES))
        stream.flush()
        os.fsync(stream.fileno())
    try:
        os.link(made, path)  # never replaces a key just made by another process
    except FileExistsError:
        pass
    finally:
        made.unlink()
    return load_split_key(path)


def _check_key(key: bytes, where: str) -> None:
    if len(key) != _KEY_BYTES:
        what = f"has {len(key)} bytes, wanted {_KEY_BYTES}"
        raise DataError(what, where=where, fix="restore the file from a backup")
