"""The clone bound against published values, and against a sum over all outcomes."""

import math
from math import comb

import numpy as np
import pytest
from scipy.stats import binom

from edgeveil.errors import PrivacyError
from edgeveil.privacy.amplification import (
    _clones,
    clone_delta,
    clone_epsilon,
    composed,
    shuffled_epsilon,
)


@pytest.mark.parametrize(
    ("devices", "local", "expected"),
    [
        (100, 1.0, 0.644),
        (100, 2.0, 1.999),
        (1000, 1.0, 0.182),
        (1000, 2.0, 0.546),
        (1000, 4.0, 3.990),
        (10_000, 1.0, 0.053),
        (10_000, 2.0, 0.155),
        (10_000, 4.0, 0.601),
    ],
)
def test_values_of_the_numerical_bound_at_delta_1e_6(devices, local, expected):
    assert clone_epsilon(local, devices, 1e-6) == pytest.approx(expected, abs=6e-4)


def direct_delta(epsilon, local, devices):
    """Σ over all outcomes of (A + Δ, C − A + 1 − Δ) of max(0, P − e^ε·Q)."""
    p, high = math.exp(-local), math.exp(local) / (1 + math.exp(local))
    one, other = {}, {}
    for c in range(devices):
        clones = comb(devices - 1, c) * p**c * (1 - p) ** (devices - 1 - c)
        for a in range(c + 1):
            chance = clones * comb(c, a) / 2**c
            for d, weight in ((1, high), (0, 1 - high)):
                for seen, key in ((one, (a + d, c - a + 1 - d)), (other, (a + 1 - d, c - a + d))):
                    seen[key] = seen.get(key, 0.0) + chance * weight
    factor = math.exp(epsilon)
    forward = sum(max(0.0, one[k] - factor * other.get(k, 0.0)) for k in one)
    back = sum(max(0.0, other[k] - factor * one.get(k, 0.0)) for k in other)
    assert forward == pytest.approx(back, abs=1e-12)
    return forward


@pytest.mark.parametrize("devices", [1, 2, 3, 7, 15])
@pytest.mark.parametrize("local", [0.2, 1.0, 3.0])
def test_delta_is_the_sum_over_all_outcomes(devices, local):
    counts = np.arange(devices)
    chances = binom.pmf(counts, devices - 1, math.exp(-local))
    for share in (0.0, 0.25, 0.5, 0.9, 0.999):
        found = clone_delta(share * local, local, counts, chances)
        assert found == pytest.approx(direct_delta(share * local, local, devices), abs=1e-11)


@pytest.mark.parametrize("devices", [2, 9, 400, 100_000])
@pytest.mark.parametrize("local", [0.01, 1.0, 4.0, 30.0])
def test_no_number_of_clones_has_less_than_its_chance(devices, local):
    counts, chances, left_out = _clones(local, devices, 1e-6)
    n, p = devices - 1, math.exp(-local)
    own = binom.pmf(counts, n, p)
    assert left_out == pytest.approx(2e-10)
    assert 1 - own.sum() <= left_out + 1e-12
    assert (chances >= own * (1 - 1e-9)).all()
    assert chances == pytest.approx(own, rel=1e-8, abs=1e-300)


def test_a_device_alone_gains_nothing_and_nobody_ever_loses():
    assert clone_epsilon(1.0, 1, 1e-6) == 1.0
    assert clone_epsilon(0.0, 50, 1e-6) == 0.0
    assert clone_epsilon(500.0, 10**6, 1e-6) == 500.0
    for local in (0.01, 1.0, 5.0, 20.0):
        for devices in (2, 5, 50):
            assert clone_epsilon(local, devices, 1e-6) <= local


def test_rounds_add_up_and_never_cost_more_than_without_a_shuffle():
    assert composed(0.5, 1e-7, 4, 1e-6) == (2.0, 4e-7)
    epsilon, delta = composed(0.01, 1e-9, 10_000, 1e-6)
    assert epsilon == pytest.approx(0.01 * math.sqrt(2e4 * math.log(1e6)) + 100 * math.expm1(0.01))
    assert delta == pytest.approx(1e-5 + 1e-6)
    one = shuffled_epsilon(1.0, 1000, 1, 1e-6)
    assert one == clone_epsilon(1.0, 1000, 5e-7)
    assert one < shuffled_epsilon(1.0, 1000, 10, 1e-6) < 10
    assert 11.99 < shuffled_epsilon(3.0, 5, 4, 1e-6) <= 12


@pytest.mark.parametrize(("local", "devices", "delta"), [(1, 0, 0.1), (1, 5, 0), (-1, 5, 0.1)])
def test_what_has_no_meaning_is_refused(local, devices, delta):
    with pytest.raises(PrivacyError):
        clone_epsilon(local, devices, delta)
