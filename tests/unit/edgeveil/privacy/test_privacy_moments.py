import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import gaussian_delta
from edgeveil.privacy.events import ClaimedEvent, UnprotectedEvent
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.laplace_mechanism import laplace_event
from edgeveil.privacy.moments import ORDERS, MomentsAccountant, exchanges_within, log_moments
from edgeveil.privacy.selection_mechanism import selection_event


def gauss(mu):
    return gaussian_event("g", 2**30, mu, 1, grid_bits=30)


def pure(epsilon):
    return laplace_event("l", 1, 1, epsilon, 1, 0)


def delta(events, epsilon):
    accountant = MomentsAccountant()
    accountant.add(events)
    return accountant.delta(epsilon)


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
def test_delta_is_that_of_the_closed_form_and_never_below_the_true_one(mus, epsilon):
    found = delta([gauss(mu) for mu in mus], epsilon)
    rho = math.fsum(mu**2 for mu in mus) / 2
    assert found >= gaussian_delta(epsilon, math.sqrt(2 * rho)) * (1 - 1e-6)
    if 0.5 < (epsilon - rho) / (2 * rho) < 900 and rho < epsilon:
        # exp(-(ε-ρ)²/4ρ), the minimum over real orders; ours miss its place by a 16th.
        closed = math.exp(-((epsilon - rho) ** 2) / (4 * rho))
        assert closed * (1 - 1e-6) <= found <= closed ** (1 - 1 / 256) * (1 + 1e-6)


def test_pure_releases_within_epsilon_have_no_delta_left_worth_naming():
    assert delta([pure(1)] * 3, 3.5) < 1e-100
    assert delta([pure(1)] * 3, 2.5) > 1e-3
    assert delta([pure(2)], 1.9) <= 1.0


def test_all_pure_events_count_alike():
    chosen = selection_event("s", 3, 1, Fraction(1, 2))
    assert delta([chosen, gauss(0.3)], 2.0) == delta([pure(Fraction(1, 2)), gauss(0.3)], 2.0)


def test_no_more_than_by_hand_over_whole_orders():
    """As Abadi et al. 2016 compute it, orders 1 to 32, without sampling: α(λ) = Tλ(λ+1)/2σ²."""
    steps, sigma, epsilon = 100, 40.0, 1.5
    by_hand = min(
        math.exp(steps * order * (order + 1) / (2 * sigma**2) - order * epsilon)
        for order in range(1, 33)
    )
    assert delta([gauss(1 / sigma)] * steps, epsilon) <= by_hand * (1 + 1e-6)
    assert delta([gauss(1 / sigma)] * steps, epsilon) == pytest.approx(by_hand, rel=0.02)


@given(st.integers(0, 30), st.floats(1e-9, 0.5))
@settings(deadline=None)
def test_the_exchange_after_the_last_would_pass_and_the_last_does_not(rounds, threshold):
    events = [(gauss(0.3),)] * rounds
    count = exchanges_within(events, 2.0, threshold)
    assert count == 0 or delta([gauss(0.3)] * count, 2.0) <= threshold
    assert count == rounds or delta([gauss(0.3)] * (count + 1), 2.0) > threshold


def test_exchanges_that_cost_nothing_go_on():
    assert exchanges_within([(gauss(0.3),), (), ()], 2.0, 1e-5) == 3
    assert exchanges_within([(gauss(3.0),), (), ()], 2.0, 1e-5) == 0


@pytest.mark.parametrize(
    "event",
    [
        ClaimedEvent(what="c", unit="record", claimed_epsilon=1.0),
        UnprotectedEvent(what="u", unit="record"),
    ],
)
def test_what_is_not_proven_cannot_be_tracked(event):
    with pytest.raises(PrivacyError, match="no proven bound") as caught:
        MomentsAccountant().add([gauss(1.0), event])
    assert (caught.value.where, bool(caught.value.fix)) == ("privacy.stop", True)
