import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import ClaimedEvent, UnprotectedEvent, event_from_dict, to_dict
from edgeveil.privacy.gaussian_mechanism import diagonal_of_triangle, gaussian, gaussian_event
from edgeveil.privacy.laplace_mechanism import (
    laplace,
    laplace_event,
    softmax_event,
    softmax_laplace,
)
from edgeveil.privacy.sampler import SeededRandom

EVENTS = [
    gaussian_event("a", 2**24, 0.3, 7, grid_bits=24),
    gaussian_event("b", 2**24, 0.3, 6, grid_bits=24, layout="symmetric"),
    softmax_event(10, 230260.0),
    softmax_event(10, None),
    ClaimedEvent(what="c", unit="record", claimed_epsilon=1.5),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_survives_json(event):
    assert event_from_dict(json.loads(json.dumps(to_dict(event)))) == event


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "magic"},
        {"kind": None},
        {"extra": 1},
        {"coordinates": "7"},
        {"coordinates": True},
        {"unit": "town"},
        {"neighbours": "replace"},
        {"sigma_squared": "x"},
        {"sigma_squared": "0"},
        {"status": "sure"},
    ],
)
def test_what_is_not_an_event_is_refused(change):
    with pytest.raises(PrivacyError):
        event_from_dict({**to_dict(EVENTS[0]), **change})


def test_a_missing_field_is_refused():
    plain = to_dict(EVENTS[0])
    del plain["coordinates"]
    with pytest.raises(PrivacyError, match="coordinates"):
        event_from_dict(plain)


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


@given(st.integers(1, 40))
def test_the_diagonal_is_found_in_the_triangle(d):
    rows, columns = np.triu_indices(d)
    expected = np.flatnonzero(rows == columns)
    np.testing.assert_array_equal(diagonal_of_triangle(len(rows)), expected)


def test_a_size_other_than_the_priced_one_is_refused():
    with pytest.raises(PrivacyError, match="priced as 7"):
        gaussian(np.zeros(8, np.int64), EVENTS[0])
    with pytest.raises(PrivacyError, match="priced as 9"):
        laplace(np.zeros(8, np.int64), laplace_event("v", 1, 1, 1.0, 9, 0))
    with pytest.raises(PrivacyError, match="triangle"):
        diagonal_of_triangle(7)


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
