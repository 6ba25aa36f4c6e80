import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import GaussianEvent, UnprotectedEvent
from edgeveil.privacy.laplace_mechanism import (
    SOFTMAX_BITS,
    _probability_steps,
    laplace_event,
    largest_softmax,
    noise_room,
    softmax_event,
    softmax_laplace,
)
from edgeveil.privacy.sampler import SeededRandom


@given(
    hnp.arrays(np.float64, 6, elements=st.floats(allow_nan=True, allow_infinity=True)),
    hnp.arrays(np.float32, 6, elements=st.floats(width=32)),
)
@settings(deadline=None)
def test_any_two_vectors_stand_within_the_stated_sensitivity(a, b):
    event = softmax_event(6, 1.0)
    gap = np.abs(_probability_steps(a) - _probability_steps(b)).sum()
    assert 0 <= gap <= event.sensitivity_steps


def test_two_one_hot_vectors_reach_the_sensitivity():
    a, b = np.eye(3)[:2]
    gap = np.abs(_probability_steps(a) - _probability_steps(b)).sum()
    assert gap == softmax_event(3, 1.0).sensitivity_steps


def test_a_vector_that_is_no_distribution_is_made_one():
    half = 1 << (SOFTMAX_BITS - 1)
    assert _probability_steps(np.array([1.0, 1.0])).tolist() == [half, half]
    assert _probability_steps(np.array([np.nan, -1.0, 0.5])).tolist() == [0, 0, half]
    assert _probability_steps(np.array([np.inf, 0.0])).tolist() == [2 * half, 0]


def test_softmax_noise_prices_what_is_proven_not_what_was_assumed():
    assert softmax_event(10, 3.0).epsilon == 3
    assert softmax_event(10, 3.0, sensitivity=1).epsilon == 6
    assert softmax_event(10, None).status == "none"
    assert {e.unit for e in (softmax_event(10, 3.0), softmax_event(10, None))} == {"device"}
    with pytest.raises(PrivacyError):
        softmax_event(10, 3.0, sensitivity=0)
    with pytest.raises(PrivacyError):
        softmax_event(10, math.inf)


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 1.0, 20.0, 2.0**24])
def test_of_all_noise_that_a_job_can_have_none_is_beyond_its_room(epsilon):
    """Exact tail of the discrete law, P(|X| >= m) = 2q^m/(1 + q), for 2^60 values."""
    event = laplace_event("numbers", 3 << 20, 3 << 20, epsilon, 5, 20)
    scale = event.scale_numerator / event.scale_denominator
    beyond = (noise_room(event) + 1) / scale
    tail_bits = 1 - beyond / math.log(2) - math.log2(1 + math.exp(-1 / scale))
    assert tail_bits + 60 < -40
    assert tail_bits + 60 + 6 / math.log(2) > -40 or scale < 6  # and it is no more than it needs
    one = softmax_event(10, epsilon)
    assert largest_softmax(one) - (1 << SOFTMAX_BITS) == noise_room(one)


def test_softmax_upload_stands_on_the_grid_and_is_centred_on_the_truth():
    p = np.array([0.7, 0.2, 0.1], dtype=np.float32)
    draws = np.stack(
        [softmax_laplace(p, 4.0, random_bytes=SeededRandom(k))[0] for k in range(4000)]
    )
    np.testing.assert_array_equal(draws * 2**SOFTMAX_BITS, np.rint(draws * 2**SOFTMAX_BITS))
    np.testing.assert_allclose(draws.mean(axis=0), p, atol=0.04)
    assert np.abs(draws - p).mean() == pytest.approx(2 / 4, rel=0.05)
    plain, event = softmax_laplace(p, None)
    np.testing.assert_allclose(plain, p, atol=2**-19)
    assert isinstance(event, UnprotectedEvent)
    assert not isinstance(event, GaussianEvent)


@given(
    hnp.arrays(np.float64, (4, 3), elements=st.floats(0, 1)),
    hnp.arrays(np.float64, 3, elements=st.floats(allow_nan=True)),
    st.integers(0, 3),
)
@settings(deadline=None)
def test_one_changed_row_moves_a_per_sample_upload_by_the_sensitivity_at_most(rows, other, at):
    changed = rows.copy()
    changed[at] = other
    a, event = softmax_laplace(rows, 1e6, random_bytes=SeededRandom(1))
    b, _ = softmax_laplace(changed, 1e6, random_bytes=SeededRandom(1))
    gap = np.abs(a - b) * 2**SOFTMAX_BITS
    assert gap.sum() <= event.sensitivity_steps
    assert gap[np.arange(4) != at].sum() == 0


def test_a_per_sample_upload_is_priced_per_record():
    event = softmax_event(10, 3.0, samples=16)
    assert (event.unit, event.epsilon, event.coordinates) == ("record", 3, 160)
    assert softmax_event(10, 3.0, samples=16, sensitivity=1).epsilon == 6
    assert softmax_event(10, None, samples=16).unit == "record"
    rows = np.full((16, 10), 0.1)
    assert softmax_laplace(rows, 3.0)[1] == event
