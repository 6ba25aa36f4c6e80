"""Public seeded orders, equal on every machine and version; never for noise or selection."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.errors import DataError

SPLIT_SEED = 0


def public_order(count: int, seed: int, label: str) -> NDArray[np.int64]:
    """Return a permutation of `range(count)`, sorted by SHA-256(label, seed, index)."""
    prefix = f"edgeveil/v1/{label}/{seed}/".encode()
    digests = [sha256(prefix + str(index).encode()).digest() for index in range(count)]
    return np.array(sorted(range(count), key=digests.__getitem__), dtype=np.int64)


def public_chance(seed: int, label: str) -> np.random.RandomState:
    """Return seeded randomness for a label, from numpy's only generator with frozen streams."""
    digest = sha256(f"edgeveil/v1/{label}/{seed}".encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, dtype="<u4"))


def hold_back(
    records: Records, count: int, seed: int = SPLIT_SEED, label: str = "held"
) -> tuple[Records, Records]:
    """Return (remaining, held), stratified by all labels: for published records only."""
    if not 0 <= count <= len(records):
        what = f"cannot hold back {count} of {len(records)} records"
        raise DataError(what, where="test_records", fix=f"choose 0 to {len(records)}")
    held = _stratified(records.y, count, public_order(len(records), seed, label))
    return Records(records.x[~held], records.y[~held]), Records(records.x[held], records.y[held])


def _stratified(y: NDArray[np.int64], count: int, order: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(len(y), dtype=np.bool_)
    if not count:
        return mask
    _, classes, sizes = np.unique(y, return_inverse=True, return_counts=True)
    exact = sizes * (count / len(y))
    quotas = np.floor(exact).astype(np.int64)
    short = count - int(quotas.sum())
    quotas[np.argsort(quotas - exact, kind="stable")[:short]] += 1
    by_class = order[np.argsort(classes[order], kind="stable")]
    rank = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    mask[by_class] = rank < np.repeat(quotas, sizes)
    return mask
