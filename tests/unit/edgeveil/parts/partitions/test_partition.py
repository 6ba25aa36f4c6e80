"""Laws of sharing out and of splitting: disjoint, complete, and no record moves another."""

from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.data.public_order import public_chance, public_order
from edgeveil.data.split import load_split_key, split_once
from edgeveil.errors import DataError
from edgeveil.parts.partitions import partition as rules
from edgeveil.parts.partitions.dealing import partition
from edgeveil.parts.partitions.partition import proportions

KEY = bytes(range(32))


def rule(kind, classes=2, alpha=0.5):
    return SimpleNamespace(kind=kind, classes_per_device=classes, alpha=alpha)


@pytest.mark.parametrize(("classes", "records"), [(1, 6), (2, 3)])
def test_n_class_deals_whole_classes_where_they_fit(classes, records):
    """Four devices of `classes` pieces each, of as many classes as there are pieces."""
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
