import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from edgeveil.privacy.accountant import gaussian_delta
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.laplace_mechanism import laplace_event
from edgeveil.privacy.moments import ORDERS, added, delta_at, log_moments


def gauss(mu):
    return gaussian_event("g", 2**30, mu, 1, grid_bits=30)


def pure(epsilon):
    return laplace_event("l", 1, 1, epsilon, 1, 0)


def delta(events, epsilon):
    return delta_at(epsilon, added(map(log_moments, events)))


@pytest.mark.parametrize("order", [0.25, 1.0, 8.0])
def test_the_gaussian_moment_is_the_integral(order):
    """Of P·(P/Q)^λ for P = N(μ, 1), Q = N(0, 1), whose log ratio at x is μx - μ²/2."""
    mu, at = 0.7, ORDERS.index(order)
    mean = mu * (1 + order)

    def weight(x):
        return norm.pdf(x, mu) * math.exp(order * (mu * x - mu**2 / 2))

    whole = quad(weight, mean - 20, mean + 20, epsabs=1e-14, limit=200)[0]
    assert log_moments(gauss(mu))[at] == pytest.approx(math.log(whole), rel=1e-6)


@pytest.mark.parametrize("epsilon", [Fraction(1, 20), Fraction(1), Fraction(5)])
def test_the_pure_moment_bounds_that_of_randomised_response(epsilon):
    """Which is the worst of all mechanisms of that ε."""
    e = float(epsilon)
    p = 1 / (1 + math.exp(-e))
    for order, bound in zip(ORDERS, log_moments(pure(epsilon)), strict=True):
        if order * e < 600:
            worst = math.log(p * math.exp(order * e) + (1 - p) * math.exp(-order * e))
            assert worst <= bound


@given(st.lists(st.floats(0.01, 0.5), min_size=1, max_size=20), st.floats(0.5, 8))
@settings(deadline=None)
def test_delta_is_within_the_closed_form_and_never_below_the_true_one(mus, epsilon):
    found = delta([gauss(mu) for mu in mus], epsilon)
    rho = math.fsum(mu**2 for mu in mus) / 2
    assert found >= gaussian_delta(epsilon, math.sqrt(2 * rho)) * (1 - 1e-6)
    if 0.5 < (epsilon - rho) / (2 * rho) < 900 and rho < epsilon:
        # exp(-(ε-ρ)²/4ρ), the looser bound's minimum over real orders, which ours miss by a 16th.
        closed = math.exp(-((epsilon - rho) ** 2) / (4 * rho))
        assert found <= closed ** (1 - 1 / 256) * (1 + 1e-6)
