"""Low-quality devices: as many as asked for, each record once, everything else untouched."""

from types import SimpleNamespace

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import DataError
from edgeveil.parts.partitions import dealing
from edgeveil.parts.partitions.dealing import deal_own, disturbed, low_quality_devices, partition
from edgeveil.parts.sources.digits import load_digits_split

SEED = 7


def rule(lq_user=0.3, lq_data=0.5, lq_range=None):
    shares = {"lq_user": lq_user, "lq_data": lq_data, "lq_range": lq_range}
    return SimpleNamespace(kind="iid", classes_per_device=2, alpha=0.5, **shares)


@pytest.fixture
def dealt():
    records = load_digits_split()[0]
    return records, partition(records.y, 20, rule(), SEED)


def test_the_shares_asked_for_are_disturbed_and_nothing_else(dealt):
    records, shares = dealt
    spoilt = disturbed(records, shares, rule(), SEED)
    chosen = low_quality_devices(20, rule(), SEED)
    assert len(chosen) == 6
    for device, share in enumerate(shares):
        relabelled = spoilt.y[share] != records.y[share]
        noisy = np.any(spoilt.x[share] != records.x[share], axis=1)
        assert np.array_equal(relabelled, noisy)
        wanted = int(0.5 * len(share) + 0.5) if device in chosen else 0
        assert relabelled.sum() == wanted
    assert not np.shares_memory(spoilt.x, records.x)


def test_disturbed_records_have_classes_and_values_of_the_data_set(dealt, monkeypatch):
    monkeypatch.setattr(dealing, "LQ_NOISE", 2.0)
    records, shares = dealt
    spoilt = disturbed(records, shares, rule(1.0, 1.0), SEED)
    assert set(np.unique(spoilt.y)) == set(range(10))
    assert (spoilt.x.min(), spoilt.x.max()) == (0.0, 16.0)
    shifts = np.bincount((spoilt.y - records.y) % 10, minlength=10) / len(records.y)
    assert shifts[0] == 0
    assert np.all(np.abs(shifts[1:] - 1 / 9) < 0.03)  # any other class, each equally likely


def test_nothing_to_disturb_leaves_the_records_alone(dealt):
    records, shares = dealt
    one_class = Records(records.x, np.zeros_like(records.y))
    for given, nothing in (
        *((records, rule(0.0, 0.0)), (records, rule(0.01, 0.5)), (records, rule(0.5, 0.0))),
        (one_class, rule()),
    ):
        assert disturbed(given, shares, nothing, SEED) is given


def test_values_that_are_not_finite_set_no_range():
    x = np.array([[np.nan, 1.0], [np.inf, 3.0], [2.0, 2.0]], np.float32)
    spoilt = disturbed(Records(x, np.arange(3)), [np.arange(3)], rule(1.0, 1.0), SEED)
    assert np.isnan(spoilt.x[0, 0])
    finite = spoilt.x[np.isfinite(spoilt.x)]
    assert finite.min() >= 1.0 and finite.max() <= 3.0


def test_own_records_are_disturbed_each_by_itself_in_a_public_range(monkeypatch):
    monkeypatch.setattr(dealing, "LQ_NOISE", 0.2)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (3000, 8)).astype(np.float32), rng.integers(0, 4, 3000)
    x[0], y[1] = np.nan, -1
    poor = rule(0.5, 0.4, (-10.0, 300.0))
    spoilt, shares = deal_own(Records(x, y), 4, poor, SEED, 4)
    changed = (spoilt.x != x).any(axis=1) & np.isfinite(x).all(axis=1)
    chosen = low_quality_devices(4, poor, SEED)
    for device, share in enumerate(shares):
        part = changed[share].mean()
        assert abs(part - 0.4) < 0.1 if device in chosen else part == 0
    assert (spoilt.y[changed & (y >= 0)] != y[changed & (y >= 0)]).all()
    assert (np.bincount(spoilt.y[changed & (y >= 0)]) > 80).all()
    assert (spoilt.y[1], np.isnan(spoilt.x[0]).all()) == (-1, True)
    assert -10 <= np.nanmin(spoilt.x) < 0
    assert 255 < np.nanmax(spoilt.x) <= 300
    assert abs((spoilt.x - x)[changed].std() - 0.2 * 310) < 15
    alone, _ = deal_own(Records(x[::2], y[::2]), 4, poor, SEED, 4)
    assert np.array_equal(alone.x, spoilt.x[::2], equal_nan=True)
    assert np.array_equal(alone.y, spoilt.y[::2])


def test_what_is_not_said_of_own_records_is_not_taken_from_them():
    given = Records(np.ones((3, 2), np.float32), np.arange(3))
    for classes, key in ((None, r"data\.shard\.classes"), (3, "lq_range")):
        with pytest.raises(DataError, match=key):
            deal_own(given, 2, rule(0.5, 0.4), SEED, classes)
