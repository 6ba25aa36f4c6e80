import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeveil.errors import PrivacyError
from edgeveil.privacy.grid import (
    clip_rows,
    clip_sum,
    clipped_slack,
    exact_gram,
    exact_matmul,
    quantise,
    row_norms,
)

ANY = st.floats(allow_nan=True, allow_infinity=True, width=64)
ROWS = hnp.arrays(np.float64, st.tuples(st.integers(0, 5), st.integers(1, 9)), elements=ANY)


@given(ROWS, st.sampled_from([0.1, 0.6, 1.0, 2.0]), st.sampled_from([12, 24]))
@settings(deadline=None)
def test_no_row_ever_exceeds_its_bound(rows, bound, bits):
    steps = quantise(rows, bound, bits=bits)
    exact = [sum(int(v) ** 2 for v in row) for row in steps]
    assert all(square <= (bound * 2**bits) ** 2 for square in exact)


@given(hnp.arrays(np.float64, (4, 6), elements=st.floats(-1e3, 1e3)), st.sampled_from([0.5, 1.0]))
@settings(deadline=None)
def test_quantising_rounds_toward_zero(rows, bound):
    clipped, steps = clip_rows(rows, bound), quantise(rows, bound)
    assert (np.abs(steps) <= np.abs(clipped) * 2**12).all()
    assert (np.abs(clipped * 2**12 - steps) < 1).all()


WHOLE = st.integers(-(2**60), 2**60) | st.integers(-300, 300)
SUMS = hnp.arrays(np.int64, st.integers(0, 40), elements=WHOLE)
LIMITS = st.sampled_from([1, 100, 2**24, 2**30 - 1, 2**39])


def squared(array):
    return sum(int(value) ** 2 for value in array)


@given(SUMS, LIMITS)
@settings(deadline=None)
def test_no_sum_exceeds_its_limit_and_one_within_it_stays_as_it_is(total, limit):
    clipped = clip_sum(total, limit)
    assert squared(clipped) <= limit**2
    assert (clipped * np.sign(total) >= 0).all()
    if squared(total) <= limit**2:
        assert np.array_equal(clipped, total)
    else:  # the nearest point of the ball, but for the steps that are allowed for
        nearest = [int(value) * limit / np.sqrt(float(squared(total))) for value in total]
        assert np.linalg.norm(clipped - np.array(nearest)) <= clipped_slack(len(total), limit) / 2


def test_one_value_can_decide_whether_a_sum_is_within_its_limit():
    total = np.array([3 << 37, 4 << 37, 0])
    assert np.array_equal(clip_sum(total, 5 << 37), total)
    more = np.array([3 << 37, 4 << 37, 1])
    assert not np.array_equal(clip_sum(more, 5 << 37), more)
    with pytest.raises(PrivacyError, match="too large to clip"):
        clipped_slack(1 << 27, 1 << 30)


@given(st.integers(1, 200), st.integers(1, 70), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_norm_does_not_depend_on_the_batch(n, d, seed):
    rows = np.random.default_rng(seed).normal(size=(n, d)) * 10.0 ** (seed % 7)
    together = row_norms(rows)
    i = seed % n
    assert row_norms(rows[i : i + 1])[0] == together[i]
    assert row_norms(rows[i:])[0] == together[i]


def test_norms_survive_huge_and_tiny_values():
    rows = np.array([[3e300, 4e300], [3e-300, 4e-300], [0.0, 0.0]])
    np.testing.assert_allclose(row_norms(rows), [5e300, 5e-300, 0.0])


def test_a_sum_past_two_to_the_53_is_cut_into_exact_pieces():
    a = 2**25 - 1 - 2 * np.arange(65, dtype=np.int64)[None]
    b = 2**26 - 1 - 6 * np.arange(65, dtype=np.int64)[:, None]
    total = sum(int(x) * int(y) for x, y in zip(a.ravel(), b.ravel(), strict=True))
    assert int(float(total)) != total  # no float64 holds it
    assert int(exact_matmul(a, b)[0, 0]) == total


def test_a_product_that_cannot_be_exact_and_a_bound_too_large_for_int64_are_refused():
    with pytest.raises(PrivacyError, match="overflows"):
        exact_matmul(np.array([[2**27]]), np.array([[2**27]]))
    with pytest.raises(PrivacyError, match="do not fit"):
        quantise(np.zeros((1, 2)), 2.0**31)


@pytest.mark.parametrize("reach", [1, 2**26])
@pytest.mark.parametrize("count", [0, 5, 300])
def test_a_gram_matrix_is_the_exact_product_with_itself(count, reach):
    rows = np.random.default_rng(count).integers(-reach, reach + 1, (count, 6))
    expected = (rows.T.astype(object) @ rows.astype(object)).astype(np.int64)
    np.testing.assert_array_equal(exact_gram(rows), expected)
    np.testing.assert_array_equal(exact_gram(rows), exact_matmul(rows.T, rows))
