"""What is held back from the devices of a shared file: a public share of every class."""

import numpy as np
import pytest

from edgeveil.data.public_order import hold_back
from edgeveil.data.records import Records
from edgeveil.parts.partitions.dealing import hold_back_share


def some(sizes, seed=0):
    """So many records of each class 0, 1, ..., in random order; x is the record's number."""
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Records(np.arange(len(y), dtype=np.float32)[:, None], y.astype(np.int64))


def test_each_class_gives_its_share_and_each_record_stands_once():
    records = some([60, 30, 10])
    rest, held = hold_back(records, 20)
    assert np.bincount(held.y).tolist() == [12, 6, 2]
    assert sorted([*rest.x[:, 0], *held.x[:, 0]]) == list(range(100))
    for part in (rest, held):
        assert (part.y == records.y[part.x[:, 0].astype(int)]).all()


@pytest.mark.parametrize(
    ("sizes", "count", "shares"),
    [
        ([3, 3, 3], 4, [4 / 3] * 3),  # the largest remainders take what is left
        ([1, 1, 97], 10, [10 / 99, 10 / 99, 970 / 99]),
    ],
)
def test_odd_shares_are_off_by_less_than_one(sizes, count, shares):
    _, held = hold_back(some(sizes), count)
    found = np.bincount(held.y, minlength=len(sizes))
    assert found.sum() == count
    assert (np.abs(found - shares) < 1).all()


@pytest.mark.parametrize("folds", [2, 3, 5, 49])
def test_folds_hold_every_record_once(folds):
    records = some([200, 100])
    halves = [hold_back_share(records, 1 / folds, fold) for fold in range(folds)]
    held = [half.x[:, 0] for _, half in halves]
    assert sorted(np.concatenate(held)) == list(range(300))
    for rest, half in halves:
        assert sorted(np.concatenate([rest.x, half.x])[:, 0]) == list(range(300))
    assert np.array_equal(held[0], hold_back_share(records, 1 / folds)[1].x[:, 0])
