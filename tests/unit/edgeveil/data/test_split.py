"""Slots: adding or removing one record changes what stands in one slot at most."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgeveil.data.split import EMPTY, sample_slots

KEY = bytes(range(32))
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
