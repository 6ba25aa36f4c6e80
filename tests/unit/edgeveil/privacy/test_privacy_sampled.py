"""Sampled Gaussian steps: never below the truth, close to it, and the same without the library."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

from edgeveil.errors import PrivacyError
from edgeveil.privacy import accountant
from edgeveil.privacy.accountant import (
    SampledSteps,
    discreteness_tv,
    epsilon,
    gaussian_delta,
    mixture_curve,
)
from edgeveil.privacy.events import PoissonSampled, as_single, event_from_dict, to_dict
from edgeveil.privacy.gaussian_mechanism import (
    calibrated,
    gaussian_event,
    noised_step,
    poisson_sample,
    sampled_gaussian_event,
    shared_gaussian,
)
from edgeveil.privacy.moments import ORDERS, delta_at, most_taken, sampled_moments, times
from edgeveil.privacy.sampler import SeededRandom

DELTA = 1e-5


def steps(q, sigma, count, coordinates=1, sensitivity=2**30):
    return sampled_gaussian_event(
        "s", q, count, sensitivity, coordinates, grid_bits=30, noise_multiplier=sigma
    )


def one_step_delta(eps, q, mu, added):
    """The hockey-stick divergence of one step at any real ε, the record added or removed.

    With M = (1 − q)N(0, 1) + qN(μ, 1): of M from N(0, 1), or of N(0, 1) from M.
    """

    def mixed(x):
        return (1 - q) * norm.pdf(x) + q * norm.pdf(x, mu)

    def gap(x):
        one, other = (mixed(x), norm.pdf(x)) if added else (norm.pdf(x), mixed(x))
        return max(0.0, one - math.exp(eps) * other)

    ratio = (math.exp(eps if added else -eps) - 1 + q) / q
    edge = math.log(ratio) / mu + mu / 2 if ratio > 0 else -12.0
    low, high = (edge, 12 + mu) if added else (-12.0, edge)
    return quad(gap, max(low, -12.0), max(min(high, 12 + mu), -12.0), epsabs=1e-13, limit=200)[0]


@pytest.mark.parametrize(("q", "mu"), [(0.01, 1.0), (0.3, 0.5), (0.9, 2.0)])
@pytest.mark.parametrize("eps", [0.01, 0.4, 1.5])
def test_one_step_lies_above_both_divergences_and_close_to_the_larger(q, mu, eps):
    truth = max(one_step_delta(eps, q, mu, added) for added in (True, False))
    found = mixture_curve(0.0, {}, frozenset([SampledSteps(q, mu, 1)]))(eps)
    assert truth <= found + 1e-12
    assert found <= truth * 1.001 + 1e-8
    assert truth <= delta_at(eps, sampled_moments(q, mu)) + 1e-12


@pytest.mark.parametrize("order", [0.25, 0.5, 1.0, 2.25, 8.0])
@pytest.mark.parametrize(("q", "mu"), [(0.05, 0.8), (0.6, 0.4), (1.0, 0.7)])
def test_the_moment_is_the_integral_and_bounds_the_other_direction(order, q, mu):
    """Between whole orders of sampled steps the chord lies above."""

    def mixed(x):
        return (1 - q) * norm.pdf(x) + q * norm.pdf(x, mu)

    top = 15 + mu * (order + 1)
    one = quad(lambda x: mixed(x) * (mixed(x) / norm.pdf(x)) ** order, -15, top, limit=200)[0]
    other = quad(lambda x: norm.pdf(x) * (norm.pdf(x) / mixed(x)) ** order, -15, 15, limit=200)[0]
    bound = sampled_moments(q, mu)[ORDERS.index(order)]
    assert max(math.log(one), math.log(other)) <= bound * (1 + 1e-6)
    if order.is_integer() or q == 1:
        assert bound == pytest.approx(math.log(one), rel=1e-6)


def test_published_figures():
    """Abadi et al. 2016: q = 0.01, σ = 4, 10⁴ steps, 1.26 at 10⁻⁵ by moments of whole order.

    And the usual MNIST example, 256 of 60,000 records, σ = 1.1, 60 epochs: 3.01 by Rényi DP.
    """
    assert 0.9 < epsilon([steps(0.01, 4, 10_000)], DELTA).epsilon < 1.26
    assert 2.2 < epsilon([steps(256 / 60_000, 1.1, 14_062)], DELTA).epsilon < 3.01


def test_without_sampling_it_is_the_gaussian_mechanism():
    closed = epsilon([gaussian_event("g", 2**30, 1 / 30, 1, grid_bits=30)] * 100, DELTA).epsilon
    assert epsilon([steps(1.0, 30, 100)], DELTA).epsilon == pytest.approx(closed, rel=1e-9)
    nearly = epsilon([steps(1 - 1e-9, 30, 100)], DELTA).epsilon
    assert closed <= nearly * (1 + 1e-6) <= 1.001 * closed


def test_without_the_library_and_of_very_many_steps_the_price_is_that_by_moments(monkeypatch):
    event, many = steps(0.1, 2, 100), replace(steps(0.001, 500, 10_000), steps=10**8)
    tight = epsilon([event], DELTA).epsilon
    by_moments = {many: epsilon([many], DELTA).epsilon}
    assert mixture_curve(0.0, {}, frozenset([SampledSteps(0.001, many.event.mu, 10**8)])) is None
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    accountant._with_sampled.cache_clear()
    by_moments[event] = epsilon([event], DELTA).epsilon
    accountant._with_sampled.cache_clear()
    assert tight < by_moments[event] < 1.3 * tight
    for one, found in by_moments.items():
        moments = times(sampled_moments(one.sampling_probability, one.event.mu), one.steps)
        assert delta_at(found, moments) <= DELTA * (1 + 1e-6)


def test_the_discreteness_of_every_step_is_charged():
    event = steps(0.1, 2, 100, coordinates=10)
    assert discreteness_tv(event) == 1000 / (16 * event.event.sigma_squared)
    with pytest.raises(PrivacyError, match="too coarse"):
        epsilon([steps(0.1, 2, 100, sensitivity=4)], DELTA)


# --- what is drawn ----------------------------------------------------------------------------


def test_a_record_is_in_where_its_bits_are_below_the_rate():
    quarter = 1 << 62
    words = np.array([0, quarter - 1, quarter, 2**64 - 1], "<u8").tobytes()
    assert poisson_sample(4, 0.25, lambda count: words[:count]).tolist() == [0, 1]
    assert poisson_sample(3, 1.0, lambda count: b"").tolist() == [0, 1, 2]
    assert poisson_sample(0, 0.5, lambda count: b"").size == 0


def test_noise_has_the_deviation_that_is_priced():
    event = steps(0.1, 1.5, 1, coordinates=20_000)
    out = noised_step(np.zeros(20_000, np.int64), event, SeededRandom(1))
    assert np.std(out * 2.0**-30) == pytest.approx(1.5, rel=0.03)
    with pytest.raises(PrivacyError):
        noised_step(np.zeros(3, np.int64), event)


def test_calibrated_noise_meets_the_budget_and_hardly_more():
    asked = sampled_gaussian_event("s", 0.1, 10, 2**30, 1000, grid_bits=30)
    event = calibrated(asked, 5, 4.0, DELTA)
    assert isinstance(event, PoissonSampled)
    assert 3.95 < epsilon([event] * 5, DELTA).epsilon <= 4.0
    most = sampled_gaussian_event("s", 1.0, 10_000, 2**30, 1, grid_bits=30)
    with pytest.raises(PrivacyError, match="meets ε"):  # no noise does
        calibrated(most, 10_000, 0.001, DELTA)


def test_a_part_with_hardly_any_noise_costs_no_more_than_the_samples_that_a_record_is_in():
    """Given its coins, a record is in K samples, K binomial, of which each is μ-GDP."""
    q, count, coordinates = 0.01, 300, 50_000
    whole = steps(q, 0.7, count, coordinates)
    shared = shared_gaussian(whole, 10)
    found = epsilon([shared], DELTA).if_colluding or math.inf
    mu = as_single(shared).event.mu

    def published(eps):
        return sum(binom.pmf(k, count, q) * gaussian_delta(eps, mu * k**0.5) for k in range(99))

    assert published(found) <= DELTA < published(0.6 * found)
    singly = [shared_gaussian(steps(q, 0.7, 1, coordinates), 10)] * count
    assert found == epsilon(singly, DELTA).if_colluding
    assert [most_taken(q, count, chance) for chance in (5e-6, 0.5, 1.0)] == [13, 3, 0]


def test_a_shared_step_has_a_form_of_its_own_beside_those_of_old():
    shared = shared_gaussian(steps(0.1, 2.0, 3), 5)
    plain = to_dict(shared)
    one = to_dict(shared.own)
    assert plain == {**one, "kind": "shared_sampled_gaussian", "honest": 5}
    assert event_from_dict(plain) == shared
    old = to_dict(shared_gaussian(gaussian_event("g", 1 << 30, 1.0, 1, grid_bits=30), 5))
    assert list(old)[:2] == ["kind", "what"] and old["kind"] == "shared_gaussian"
    assert list(old)[-1] == "honest"
    for wrong in ({"kind": "shared_laplace"}, {"honest": "5"}, {"honest": 0}, {"own": 1}):
        with pytest.raises(PrivacyError):
            event_from_dict(plain | wrong)
