"""Shared noise: what a part of it is, what sums of parts are, and the two prices."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import SharedGaussian, for_one_record
from edgeveil.privacy.gaussian_mechanism import gaussian, gaussian_event, shared_gaussian
from edgeveil.privacy.policy import JobRequest, Limits, check_job, price

DELTA = 1e-5


def event(mu=0.1, layout="vector", coordinates=6):
    return gaussian_event("sum", 1 << 28, mu, coordinates, grid_bits=28, layout=layout)


def limits(**changed):
    return Limits(**{**vars(Limits(10.0, 50.0, 1e-4, 100.0)), **changed})


@pytest.mark.parametrize("honest", [1, 2, 7, 80, 999])
@pytest.mark.parametrize("layout", ["vector", "symmetric"])
def test_parts_are_the_least_even_ones_that_add_up_to_the_noise(honest, layout):
    whole = event(layout=layout)
    part = shared_gaussian(whole, honest).own
    assert part.sigma_squared % 2 == 0
    assert honest * part.sigma_squared >= whole.sigma_squared > honest * (part.sigma_squared - 2)
    halves = 2 if layout == "symmetric" else 1
    assert part.finest_sigma_squared * halves == part.sigma_squared


def test_a_part_that_is_finer_than_sums_of_parts_are_proven_for_is_refused():
    coarse = gaussian_event("sum", 1 << 10, 1.0, 4, grid_bits=10)
    assert shared_gaussian(coarse, 1)
    with pytest.raises(PrivacyError, match="too coarse to add up"):
        shared_gaussian(coarse, 2)


@pytest.mark.parametrize("shares", [2, 3, 9])
@pytest.mark.parametrize("sigma", [0.6, 0.8, 1.1])
def test_a_sum_of_discrete_gaussians_is_as_near_to_one_as_the_lemma_says(sigma, shares):
    k = np.arange(-400, 401)

    def law(variance):
        weights = np.exp(-(k**2) / (2 * variance))
        return weights / weights.sum()

    found = one = law(sigma**2)
    for _ in range(shares - 1):
        found = np.convolve(found, one)[400:-400]
    apart = float(np.abs(found - law(shares * sigma**2)).sum() / 2)
    bound = 6 * shares * math.exp(-(math.pi**2) * sigma**2)
    assert 1e-12 < apart <= bound


def test_what_sums_show_has_the_price_of_the_whole_noise():
    whole = event()
    shared = shared_gaussian(whole, 80)
    found = epsilon([shared] * 3, DELTA)
    assert found.epsilon <= epsilon([whole] * 3, DELTA).epsilon
    assert found.epsilon == epsilon([shared.together] * 3, DELTA).epsilon
    assert found.if_colluding == epsilon([shared.own] * 3, DELTA).epsilon > 5 * found.epsilon
    assert found.honest == 80
    assert "assumes 80 honest devices" in str(found)


def test_too_coarse_parts_are_priced_by_moments():
    coarse = gaussian_event("sum", 1 << 20, 1.0, 4, grid_bits=20)
    shared = shared_gaussian(coarse, 4)
    with pytest.raises(PrivacyError, match="too coarse"):
        epsilon([shared.own], DELTA)
    found = epsilon([shared], DELTA)
    finer = gaussian_event("sum", 1 << 30, 2.0, 4, grid_bits=30)
    assert epsilon([finer], DELTA).epsilon < (found.if_colluding or 0) < math.inf


def test_of_a_devices_update_one_record_costs_twice_in_both():
    update = shared_gaussian(replace(event(), unit="device"), 9)
    record = for_one_record(update)
    assert isinstance(record, SharedGaussian)
    assert record.own.sensitivity_steps == 2 * update.own.sensitivity_steps
    assert record.unit == "record"
    alone = epsilon([update], DELTA).colluding
    assert alone is not None and alone.record_epsilon == epsilon([record.own], DELTA).epsilon


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("max_epsilon_per_job", {"max_epsilon_per_job": 0.1}),
        ("max_collusion_epsilon_per_job", {"max_collusion_epsilon_per_job": 3.0}),
        ("lifetime_collusion_epsilon", {"lifetime_collusion_epsilon": 4.5}),
        ("max_collusion_epsilon_per_job", {"max_epsilon_per_job": 3.0}),
        ("lifetime_collusion_epsilon", {"lifetime_epsilon": 4.5}),
    ],
)
def test_the_owner_bounds_both_prices(key, changed):
    shared = shared_gaussian(event(), 80)
    request = JobRequest("job", DELTA, (shared,))
    quote = price(request.events, DELTA)
    assert 0.1 < quote.training.epsilon < 1 < 3 < (quote.training.if_colluding or 0) < 6
    assert check_job(request, limits(), [request]) == quote
    with pytest.raises(PrivacyError) as refused:
        check_job(request, limits(**changed), [request])
    assert refused.value.where == f"policy.{key}"


def test_a_device_draws_its_part_and_sums_of_parts_have_the_whole_noise():
    honest, size = 5, 4000
    shared = shared_gaussian(event(coordinates=size), honest)
    zeros = np.zeros(size, np.int64)
    parts = [gaussian(zeros, shared.own)[0] for _ in range(honest)]
    for noise, law in ((parts[0], shared.own), (sum(parts), shared.together)):
        spread = float(sum(Fraction(int(x)) ** 2 for x in noise) / law.sigma_squared)
        low, high = chi2.ppf([1e-9, 1 - 1e-9], size)
        assert low < spread < high
