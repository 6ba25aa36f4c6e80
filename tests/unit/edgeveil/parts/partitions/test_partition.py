"""Partitions, splits, slots, held-out shares: complete, no record moves another; poor devices."""

from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgeveil.data.public_order import hold_back, public_chance, public_order
from edgeveil.data.records import Records
from edgeveil.data.split import EMPTY, load_split_key, sample_slots, split_once
from edgeveil.errors import DataError
from edgeveil.parts.partitions import dealing
from edgeveil.parts.partitions import partition as rules
from edgeveil.parts.partitions.dealing import (
    deal_own,
    disturbed,
    hold_back_share,
    low_quality_devices,
    partition,
)
from edgeveil.parts.partitions.partition import proportions
from edgeveil.parts.sources.digits import load_digits_split

KEY = bytes(range(32))


def rule(kind, classes=2, alpha=0.5):
    return SimpleNamespace(kind=kind, classes_per_device=classes, alpha=alpha)


@pytest.mark.parametrize(("classes", "records"), [(1, 6), (2, 3)])
def test_n_class_deals_whole_classes_where_they_fit(classes, records):
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(4 * classes), records))
    held = [y[share] for share in partition(y, 4, rule("n_class", classes), 3)]
    assert [len(one) for one in held] == [classes * records] * 4
    assert [len(np.unique(one)) for one in held] == [classes] * 4
    assert sorted(np.concatenate([np.unique(one) for one in held])) == list(range(4 * classes))


def test_dirichlet_and_quantity_skew_cut_where_hand_counted_proportions_say(monkeypatch):
    wanted = iter([[0.5, 0.25, 0.25], [0.0, 0.1, 0.9], [0.2, 0.0, 0.8]])
    monkeypatch.setattr(rules, "proportions", lambda *_: np.array(next(wanted)))
    y = np.repeat([0, 1], [8, 10])  # each class in proportions of its own
    held = [np.bincount(y[share], minlength=2) for share in partition(y, 3, rule("dirichlet"), 1)]
    assert np.array_equal(held, [[4, 0], [2, 1], [2, 9]])
    skew = partition(np.zeros(10, np.int64), 3, rule("quantity_skew"), 1)
    assert [len(share) for share in skew] == [2, 0, 8]


def test_proportions_are_those_of_dirichlet():
    # Mean 1/k and variance (1 - 1/k) / (k (k alpha + 1)), k = 4, alpha = 0.5, so 1/16.
    chance = public_chance(3, "test")
    drawn = np.array([proportions(4, 0.5, chance) for _ in range(4000)])
    assert np.allclose(drawn.sum(axis=1), 1.0)
    assert np.all(np.abs(drawn.mean(axis=0) - 0.25) < 0.02)
    assert np.all(np.abs(drawn.var(axis=0) - 1 / 16) < 0.006)


def test_public_chance_and_order_are_the_same_with_every_version():
    assert public_chance(7, "demo").randint(0, 1000, 5).tolist() == [470, 404, 463, 357, 451]
    # sorted() over SHA-256("edgeveil/v1/demo/7/<i>"), worked out apart from this code
    expected = sorted(range(6), key=lambda i: sha256(b"edgeveil/v1/demo/7/%d" % i).hexdigest())
    assert public_order(6, 7, "demo").tolist() == expected


records = st.lists(st.integers(0, 50), max_size=40).map(
    lambda v: np.array([[a, a * 2 + 1] for a in v], np.float32).reshape(-1, 2)
)


@settings(max_examples=60, deadline=None)
@given(records, st.floats(0, 1), st.integers(0, 50))
def test_split_is_disjoint_stable_and_one_record_moves_no_other(x, share, extra):
    train, held = split_once(x, share, KEY)
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(len(x)))
    longer = np.concatenate([np.array([[extra, extra * 2 + 1]], np.float32), x])
    train2, held2 = split_once(longer, share, KEY)
    assert [i - 1 for i in train2 if i] == train.tolist()
    assert [i - 1 for i in held2 if i] == held.tolist()


def test_the_share_is_about_kept_and_depends_on_the_key():
    x = np.arange(4000, dtype=np.float32).reshape(-1, 1)
    held = split_once(x, 0.1, KEY)[1]
    assert 320 < len(held) < 480
    assert len(np.intersect1d(held, split_once(x, 0.1, bytes(32))[1])) < 100
    assert [len(split_once(x, share, KEY)[1]) for share in (0.0, 1.0)] == [0, 4000]


def test_the_split_key_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "state" / "split.key"
    key = load_split_key(path)
    assert len(key) == 32 and load_split_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert load_split_key(tmp_path / "other.key") != key
    path.write_bytes(b"cut")
    with pytest.raises(DataError):
        load_split_key(path)


RECORDS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 30), st.just(3)),
    elements=st.one_of(
        st.sampled_from([np.float32(v) for v in (-0.0, 0.0, 1.0, np.nan, np.inf)]),
        st.floats(width=32, allow_nan=True),
    ),
)


def contents(x, slots, key=KEY):
    """What stands in each slot, as bytes; equal numbers as equal bytes."""
    held = sample_slots(x, slots, key)
    return [None if i == EMPTY else (x[i] + np.float32(0)).tobytes() for i in held]


@given(RECORDS, st.integers(1, 12), st.integers(0, 29))
@settings(deadline=None)
def test_one_record_more_or_less_changes_one_slot_at_most(x, slots, gone):
    fewer = np.delete(x, gone % len(x), axis=0)
    changed = [a != b for a, b in zip(contents(x, slots), contents(fewer, slots), strict=True)]
    assert sum(changed) <= 1


@given(RECORDS, st.integers(1, 12), st.randoms())
@settings(deadline=None)
def test_the_order_of_the_records_does_not_matter(x, slots, random):
    order = list(range(len(x)))
    random.shuffle(order)
    assert contents(x[order], slots) == contents(x, slots)


def test_a_full_set_fills_all_slots_and_an_empty_one_none():
    x = np.random.default_rng(1).random((400, 2), np.float32)
    held = sample_slots(x, 16, KEY)
    assert len(set(held.tolist())) == 16
    assert (held != EMPTY).all()
    assert sample_slots(x[:0], 4, KEY).tolist() == [EMPTY] * 4


def some(sizes, seed=0):
    """So many records of each class 0, 1, ..., in random order; x is the record's number."""
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Records(np.arange(len(y), dtype=np.float32)[:, None], y.astype(np.int64))


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([60, 30, 10], 20),
        ([3, 3, 3], 4),  # the largest remainders take what is left
        ([1, 1, 97], 10),
    ],
)
def test_each_class_gives_its_share_and_each_record_occurs_once(sizes, count):
    records = some(sizes)
    rest, held = hold_back(records, count)
    found = np.bincount(held.y, minlength=len(sizes))
    assert found.sum() == count
    assert (np.abs(found - count * np.array(sizes) / sum(sizes)) < 0.7).all()
    assert sorted([*rest.x[:, 0], *held.x[:, 0]]) == list(range(sum(sizes)))
    for part in (rest, held):
        assert (part.y == records.y[part.x[:, 0].astype(int)]).all()


@pytest.mark.parametrize("folds", [2, 3, 5, 49])
def test_folds_hold_every_record_once(folds):
    records = some([200, 100])
    halves = [hold_back_share(records, 1 / folds, fold) for fold in range(folds)]
    held = [half.x[:, 0] for _, half in halves]
    assert sorted(np.concatenate(held)) == list(range(300))
    for rest, half in halves:
        assert sorted(np.concatenate([rest.x, half.x])[:, 0]) == list(range(300))
    assert np.array_equal(held[0], hold_back_share(records, 1 / folds)[1].x[:, 0])


SEED = 7


def low_quality(lq_user=0.3, lq_data=0.5, lq_range=None):
    shares = {"lq_user": lq_user, "lq_data": lq_data, "lq_range": lq_range}
    return SimpleNamespace(kind="iid", classes_per_device=2, alpha=0.5, **shares)


@pytest.fixture
def dealt():
    records = load_digits_split()[0]
    return records, partition(records.y, 20, low_quality(), SEED)


def test_the_shares_asked_for_are_disturbed_and_nothing_else(dealt):
    records, shares = dealt
    spoilt = disturbed(records, shares, low_quality(), SEED)
    chosen = low_quality_devices(20, low_quality(), SEED)
    assert len(chosen) == 6
    for device, share in enumerate(shares):
        relabelled = spoilt.y[share] != records.y[share]
        noisy = np.any(spoilt.x[share] != records.x[share], axis=1)
        assert np.array_equal(relabelled, noisy)
        wanted = int(0.5 * len(share) + 0.5) if device in chosen else 0
        assert relabelled.sum() == wanted
    assert not np.shares_memory(spoilt.x, records.x)


def test_own_records_are_disturbed_each_by_itself_in_a_public_range(monkeypatch):
    monkeypatch.setattr(dealing, "LQ_NOISE", 0.2)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (3000, 8)).astype(np.float32), rng.integers(0, 4, 3000)
    x[0], y[1] = np.nan, -1
    poor = low_quality(0.5, 0.4, (-10.0, 300.0))
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
            deal_own(given, 2, low_quality(0.5, 0.4), SEED, classes)
