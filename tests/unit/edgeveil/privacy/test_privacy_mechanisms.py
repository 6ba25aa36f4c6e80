"""Gaussian, Laplace and two-value noise: what it is, what it hides, and what it costs."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.duchi_mechanism import duchi_event, duchi_mechanism
from edgeveil.privacy.events import (
    ClaimedEvent,
    GaussianEvent,
    UnprotectedEvent,
    event_from_dict,
    to_dict,
)
from edgeveil.privacy.gaussian_mechanism import gaussian, gaussian_event, sampled_gaussian_event
from edgeveil.privacy.laplace_mechanism import (
    SOFTMAX_BITS,
    _probability_steps,
    laplace,
    laplace_event,
    largest_softmax,
    noise_room,
    softmax_event,
    softmax_laplace,
)
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.privacy.selection_mechanism import selection_event

GAUSSIAN = gaussian_event("a", 2**24, 0.3, 7, grid_bits=24)
SAMPLED = sampled_gaussian_event("s", 0.1, 1, 2**30, 1, grid_bits=30, noise_multiplier=1)
SELECTION = selection_event("c", 9, 5, 1)


@pytest.mark.parametrize(
    ("event", "key", "values"),
    [
        (GAUSSIAN, "kind", ["magic", None]),
        (GAUSSIAN, "extra", [1]),
        (GAUSSIAN, "coordinates", ["7", True]),
        (GAUSSIAN, "unit", ["town"]),
        (GAUSSIAN, "neighbours", ["replace"]),
        (GAUSSIAN, "sigma_squared", ["x", "0"]),
        (GAUSSIAN, "status", ["sure"]),
        (SAMPLED, "sampling_probability", [0.0, 1.5, math.nan]),
        (SAMPLED, "steps", [0, 1.5]),
        (SAMPLED, "sigma_squared", [0]),
        (SAMPLED, "coordinates", [-1]),
        (SAMPLED, "finest_sigma_squared", ["1"]),
        (SAMPLED, "event", [{}]),
        (SELECTION, "monotonic", [1, "true"]),
        (SELECTION, "mechanism", ["best"]),
        (SELECTION, "candidates", [True]),
    ],
)
def test_an_event_of_another_form_is_refused(event, key, values):
    assert event_from_dict(to_dict(event)) == event
    for value in values:
        with pytest.raises(PrivacyError):
            event_from_dict({**to_dict(event), key: value})


def test_a_release_without_noise_cannot_call_itself_proven():
    with pytest.raises(PrivacyError):
        UnprotectedEvent(what="raw", unit="device", status="proven")
    with pytest.raises(PrivacyError):
        ClaimedEvent(what="c", unit="record", claimed_epsilon=1.0, status="proven")


@given(st.floats(1e-3, 10), st.integers(1, 2**30))
def test_sigma_never_undershoots_the_mu_asked_for(mu, sensitivity):
    event = gaussian_event("x", sensitivity, mu, 1, grid_bits=0)
    assert Fraction(sensitivity**2, event.sigma_squared) <= Fraction(mu) ** 2
    assert event.mu >= sensitivity / math.sqrt(event.sigma_squared)


def test_gaussian_noise_has_the_events_spread():
    event = gaussian_event("x", 2**24, 1.0, 20_000, grid_bits=24)
    noised, returned = gaussian(np.full(20_000, 10**9), event, SeededRandom(0))
    assert returned is event
    spread = noised - 10**9
    assert spread.std() / 2**24 == pytest.approx(1.0, rel=0.02)
    assert abs(spread.mean()) / 2**24 < 0.03


def test_a_symmetric_matrix_gets_less_noise_off_the_diagonal():
    d = 150
    size = d * (d + 1) // 2
    event = gaussian_event("q", 2**24, 1.0, size, grid_bits=24, layout="symmetric")
    noised, _ = gaussian(np.zeros(size, np.int64), event, SeededRandom(0))
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = noised / 2**24
    assert np.diag(matrix).std() == pytest.approx(1.0, rel=0.2)
    off = matrix[np.triu_indices(d, 1)]
    assert off.std() == pytest.approx(math.sqrt(0.5), rel=0.03)
    assert event.finest_sigma_squared * 2 == event.sigma_squared


def test_laplace_states_its_exact_epsilon():
    event = laplace_event("v", 50, 50, Fraction(1, 2), 30_000, 0)
    noised, _ = laplace(np.zeros(30_000, np.int64), event, SeededRandom(1))
    assert event.epsilon == Fraction(1, 2)
    assert np.abs(noised).mean() == pytest.approx(100, rel=0.03)


def test_noise_that_cannot_be_drawn_is_refused_with_its_price():
    least = 2.0**-13  # of a sensitivity of 2**28 steps: sigma is close to 2**41
    with pytest.raises(PrivacyError, match=r"sum: would need noise of more than 2\^40 grid steps"):
        gaussian_event("sum", 2**28, least, 1, grid_bits=28)
    drawn = gaussian_event("sum", 2**28, 2.0**-12, 1, grid_bits=28)
    assert gaussian(np.zeros(1, np.int64), drawn)[0].shape == (1,)
    with pytest.raises(PrivacyError, match="raise epsilon"):
        softmax_event(3, 2.0**-20)
    softmax_laplace(np.ones(3) / 3, 2.0**-19)


@given(
    hnp.arrays(np.float64, 6, elements=st.floats(allow_nan=True, allow_infinity=True)),
    hnp.arrays(np.float32, 6, elements=st.floats(width=32)),
)
@settings(deadline=None)
def test_any_two_vectors_stand_within_the_stated_sensitivity(a, b):
    event = softmax_event(6, 1.0)
    gap = np.abs(_probability_steps(a) - _probability_steps(b)).sum()
    assert 0 <= gap <= event.sensitivity_steps


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
    event = softmax_event(10, 3.0, samples=16)
    assert (event.unit, event.epsilon, event.coordinates) == ("record", 3, 160)
    assert softmax_event(10, 3.0, samples=16, sensitivity=1).epsilon == 6
    assert softmax_event(10, None, samples=16).unit == "record"
    assert softmax_laplace(np.full((16, 10), 0.1), 3.0)[1] == event
    for asked, sensitivity in ((3.0, 0), (math.inf, 2)):
        with pytest.raises(PrivacyError):
            softmax_event(10, asked, sensitivity=sensitivity)


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


WORDS = 1 << 64


def event(asked, size=1):
    return duchi_event("audit", Fraction(asked), size)


def chance_of_high(value, asked):
    """Exactly: the least 64-bit word that gives the lower value."""
    low, high = 0, WORDS
    while low < high:
        middle = (low + high) // 2
        word = middle.to_bytes(8, "little")
        (sent,), _ = duchi_mechanism(np.array([value]), event(asked), lambda _n, word=word: word)
        low, high = (middle + 1, high) if sent > 0 else (low, middle)
    return Fraction(low, WORDS)


@pytest.mark.parametrize("asked", [1e-6, 0.1, 1.0, 5.0, 20.0, 100.0])
def test_no_two_values_are_told_apart_by_more_than_epsilon(asked):
    least, most = chance_of_high(-1.0, asked), chance_of_high(1.0, asked)
    assert least + most == 1
    assert least > 0
    found = math.log(most / least)
    assert found <= asked
    if asked <= 20:
        assert found == pytest.approx(asked, rel=1e-3)


@pytest.mark.parametrize("value", [-1.0, -0.3, 0.0, 0.5, 1.0])
def test_the_mean_is_the_value(value):
    high = chance_of_high(value, 1.0)
    size = duchi_mechanism(np.array([0.0]), event(1.0), lambda n: bytes(n))[0][0]
    assert float(2 * high - 1) * size == pytest.approx(value, abs=2e-6)
    assert size == pytest.approx((math.e + 1) / (math.e - 1), rel=1e-9)


def test_what_is_out_of_range_or_no_number_stays_within():
    values = np.array([5.0, -5.0, np.nan, np.inf, -np.inf])
    chances = [chance_of_high(float(v), 1.0) for v in values]
    most, least, half = chance_of_high(1.0, 1.0), chance_of_high(-1.0, 1.0), Fraction(1, 2)
    assert chances == [most, least, half, most, least]


def test_every_value_of_the_unit_counts():
    priced = event(0.25, 8)
    assert priced.epsilon == 2
    assert epsilon([priced] * 3, 1e-5).epsilon == pytest.approx(6)
    assert epsilon([priced], 1e-5).unit == "device"
