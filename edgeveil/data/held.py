"""Records that no device gets, for the cloud to test on: a public share, of all classes alike.

By index and by all labels, so only of the digits, which are nobody's records.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.order import public_order
from edgeveil.data.records import Records
from edgeveil.errors import DataError

SPLIT_SEED = 0


def hold_back(
    records: Records, count: int, seed: int = SPLIT_SEED, label: str = "held"
) -> tuple[Records, Records]:
    """(rest, held): `count` records are held, of each class in proportion (largest remainder).

    The same everywhere for one `seed` and `label`. Raises DataError if there are fewer records.
    """
    if not 0 <= count <= len(records):
        raise DataError(
            f"cannot hold back {count} of {len(records)} records",
            where="test_records",
            fix=f"choose 0 to {len(records)}",
        )
    held = _stratified(records.y, count, public_order(len(records), seed, label))
    return Records(records.x[~held], records.y[~held]), Records(records.x[held], records.y[held])


def _stratified(y: NDArray[np.int64], count: int, order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask (n,) with exactly `count` true: the first of each class in `order`."""
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
