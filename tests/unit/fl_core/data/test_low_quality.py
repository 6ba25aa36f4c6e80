"""Low-quality devices: as many as asked for, each record once, everything else untouched."""

from types import SimpleNamespace

import numpy as np
import pytest

from fl_core.algorithms.base import Records
from fl_core.config import DeviceData
from fl_core.data.device import own_records
from fl_core.data.digits import load_digits_split
from fl_core.data.low_quality import disturbed, low_quality_devices
from fl_core.data.partition import partition

SEED = 7


def rule(lq_user=0.3, lq_data=0.5, lq_noise=0.5, kind="iid"):
    return SimpleNamespace(
        kind=kind, classes_per_device=2, alpha=0.5,
        lq_user=lq_user, lq_data=lq_data, lq_noise=lq_noise,
    )  # fmt: skip


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


def test_disturbed_records_have_classes_and_values_of_the_data_set(dealt):
    records, shares = dealt
    spoilt = disturbed(records, shares, rule(1.0, 1.0, 2.0), SEED)
    assert set(np.unique(spoilt.y)) == set(range(10))
    assert (spoilt.x.min(), spoilt.x.max()) == (0.0, 16.0)
    assert not np.any(spoilt.y == records.y)
    shifts = np.bincount((spoilt.y - records.y) % 10, minlength=10)[1:] / len(records.y)
    assert np.all(np.abs(shifts - 1 / 9) < 0.03)  # any other class, each equally likely


def test_noise_has_the_strength_that_is_named():
    x = np.full((4000, 2), 0.5, np.float32)
    x[0], x[1] = 0.0, 1.0  # the range is 1
    records = Records(x, np.arange(4000) % 2)
    spoilt = disturbed(records, [np.arange(4000)], rule(1.0, 1.0, 0.1), SEED)
    assert abs(float((spoilt.x - x)[2:].std()) - 0.1) < 0.003
    assert np.array_equal(disturbed(records, [np.arange(4000)], rule(1, 1, 0), SEED).x, x)


def test_it_follows_its_seed(dealt):
    records, shares = dealt
    one, again, other = (disturbed(records, shares, rule(), seed) for seed in (1, 1, 2))
    assert np.array_equal(one.x, again.x)
    assert np.array_equal(one.y, again.y)
    assert not np.array_equal(one.y, other.y)


def test_nothing_to_disturb_leaves_the_records_alone(dealt):
    records, shares = dealt
    for nothing in (rule(0.0, 0.0), rule(0.01, 0.5), rule(0.5, 0.0)):
        assert disturbed(records, shares, nothing, SEED) is records
        assert not len(low_quality_devices(20, nothing, SEED))
    one_class = Records(records.x, np.zeros_like(records.y))
    assert disturbed(one_class, shares, rule(), SEED) is one_class


def test_values_that_are_not_finite_set_no_range():
    x = np.array([[np.nan, 1.0], [np.inf, 3.0], [2.0, 2.0]], np.float32)
    spoilt = disturbed(Records(x, np.arange(3)), [np.arange(3)], rule(1.0, 1.0, 5.0), SEED)
    assert np.isnan(spoilt.x[0, 0])
    rest = spoilt.x[np.isfinite(spoilt.x)]
    assert rest.min() >= 1.0
    assert rest.max() <= 3.0


def test_a_device_reads_its_share_as_disturbed():
    plain = [own_records(site(index)).y for index in range(4)]
    poor = [own_records(site(index, lq_user=0.5, lq_data=1.0)).y for index in range(4)]
    changed = [bool(np.any(a != b)) for a, b in zip(plain, poor, strict=True)]
    chosen = low_quality_devices(4, rule(0.5, 1.0), SEED)
    assert np.flatnonzero(changed).tolist() == chosen.tolist()


def site(index, **quality):
    shard = {"devices": 4, "index": index, "seed": SEED, "partition": quality}
    return DeviceData(name="digits", source="digits", shard=shard)
