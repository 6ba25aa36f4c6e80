"""One of two values: exact chances, their ratio, the mean, the price."""

import math
from fractions import Fraction

import numpy as np
import pytest

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.duchi_mechanism import duchi_event, duchi_mechanism
from edgeveil.privacy.events import event_from_dict, to_dict

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


def test_the_event_comes_back_from_its_text():
    priced = event(Fraction(10**30 + 1, 10**31), 7)
    assert event_from_dict(to_dict(priced)) == priced


def test_other_sizes_and_hopeless_noise_are_refused():
    with pytest.raises(PrivacyError, match="priced as 2"):
        duchi_mechanism(np.zeros(3), event(1.0, 2))
    with pytest.raises(PrivacyError, match="too small"):
        event(1e-14)
