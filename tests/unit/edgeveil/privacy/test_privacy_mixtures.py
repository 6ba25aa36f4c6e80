import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from edgeveil.privacy import accountant
from edgeveil.privacy.accountant import (
    FFT_SLACK,
    SampledSteps,
    epsilon,
    gaussian_delta,
    mixture_curve,
    total_mu,
)
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.laplace_mechanism import laplace_event

DELTA = 1e-5


def gauss(mu):
    return gaussian_event("g", 2**33, mu, 1, grid_bits=33)


def pure(value):
    return laplace_event("l", 1, 1, Fraction(value), 1, 0)


def true_delta(eps, mu, groups):
    """δ(ε) of the worst case itself: a Gaussian pair beside randomised responses.

    The privacy loss of n responses is e·(2·Binomial(n, e^e / (1 + e^e)) - n), independent of the
    Gaussian's, whose hockey-stick divergence has a closed form at any threshold.
    """
    loss, chance = np.zeros(1), np.ones(1)
    for e, n in groups:
        k = np.arange(n + 1)
        loss = (loss[:, None] + float(e) * (2 * k - n)).ravel()
        chance = np.outer(chance, binom.pmf(k, n, 1 / (1 + math.exp(-e)))).ravel()
    x = eps - loss
    ahead, behind = norm.cdf(-x / mu + mu / 2), norm.logcdf(-x / mu - mu / 2)
    return float(chance @ np.maximum(0.0, ahead - np.exp(x + behind)))


def true_epsilon(mu, groups, delta):
    low, high = 0.0, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if true_delta(middle, mu, groups) <= delta else (middle, high)
    return high


GROUPS = st.lists(
    st.tuples(st.fractions("1/1000", "1/2", max_denominator=1000), st.integers(1, 30)),
    min_size=1,
    max_size=2,
    unique_by=lambda group: group[0],
)


@given(st.floats(0.02, 3), GROUPS, st.floats(0, 8))
@settings(deadline=None, max_examples=8, phases=[Phase.generate])
def test_curve_and_price_are_never_below_the_truth_and_close_to_it(mu, groups, eps):
    assert mixture_curve(mu, dict(groups))(eps) >= true_delta(eps, mu, groups)
    events = [gauss(mu), *[pure(e) for e, n in groups for _ in range(n)]]
    priced = epsilon(events, DELTA).epsilon
    truth = true_epsilon(total_mu(events[:1]), groups, DELTA)
    assert truth <= priced <= truth * 1.01 + 1e-3


@pytest.mark.parametrize(
    ("mu", "groups"),
    [
        (1.0, [("1/2", 20), ("1/100", 900)]),
        pytest.param(0.5, [("1/100", 10_000)], marks=pytest.mark.slow),
        pytest.param(1.0, [("1/100000", 10_000)], marks=pytest.mark.slow),
    ],
)
def test_thousands_of_events_stay_tight_and_keep_to_the_slack(mu, groups):
    groups = [(Fraction(e), n) for e, n in groups]
    curve = mixture_curve(mu, dict(groups))
    for eps in np.linspace(0.0, 14.0, 30):
        gap = curve(eps) - FFT_SLACK - true_delta(eps, mu, groups)
        assert gap > -FFT_SLACK / 10  # measured: -3e-14
    events = [gauss(mu), *[pure(e) for e, n in groups for _ in range(n)]]
    truth = true_epsilon(mu, groups, DELTA)
    assert truth <= epsilon(events, DELTA).epsilon <= 1.01 * truth


@pytest.mark.slow
def test_the_error_of_millions_of_compositions_is_charged():
    """Steps that take every record are a Gaussian of μ·√n; an FFT's error grows with n."""
    steps, mu = 3_000_000, 5e-4
    curve = mixture_curve(0.0, {}, frozenset([SampledSteps(1.0, mu, steps)]))
    assert curve(6.0) >= gaussian_delta(6.0, mu * math.sqrt(steps)) > 4e-12


def test_many_different_releases_are_composed_too():
    """Merged upward to few groups; what is past these adds its ε."""
    values = [Fraction(k, 2000) for k in range(1, 200)]
    priced = epsilon([gauss(0.5), *[pure(e) for e in values for _ in range(20)]], DELTA).epsilon
    # Not below the largest tenth alone, raised from below; not above the same at its largest.
    fewer = [(values[180], 20 * 19)]
    more = [(values[-1], 20 * 199)]
    assert true_epsilon(0.5, fewer, DELTA) < priced < true_epsilon(0.5, more, DELTA)


def test_the_discreteness_of_the_noise_is_charged_in_a_mixture_too():
    def costs(bits):
        event = gaussian_event("g", 2**bits, 1.0, 10**8, grid_bits=bits)
        return epsilon([event, *[pure("1/10")] * 20], 1e-3).epsilon

    assert costs(20) > 1.01 * costs(30)


@pytest.mark.parametrize("delta", [1e-5, 1e-11])
def test_without_the_library_the_price_is_valid_and_looser(monkeypatch, delta):
    events = [gauss(0.3), *[pure("1/20")] * 40]
    with_library = epsilon(events, delta).epsilon
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    accountant._with_gaussians.cache_clear()
    basic = epsilon(events, delta).epsilon
    accountant._with_gaussians.cache_clear()
    parts = epsilon(events[:1], delta).epsilon, epsilon(events[1:], delta).epsilon
    assert basic == pytest.approx(sum(parts), rel=1e-12)
    # At a δ below the slack of the numbers there is nothing to gain.
    assert with_library < 0.8 * basic if delta == 1e-5 else with_library == basic
