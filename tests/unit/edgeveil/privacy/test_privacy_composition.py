"""Composition over a life: what a filter admits, by formulas and adversaries of the tests' own."""

import math
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import mu_for
from edgeveil.privacy.composition import FILTER_ORDERS, GRID_EPSILON, least_limit, pure_mu
from edgeveil.privacy.events import ClaimedEvent, TwoValueEvent
from edgeveil.privacy.gaussian_mechanism import gaussian_event, sampled_gaussian_event
from edgeveil.privacy.ledger import Ledger
from edgeveil.privacy.moments import ORDERS, log_moments
from edgeveil.privacy.policy import (
    ASK,
    INFER,
    TRAIN,
    JobRequest,
    Limits,
    check_job,
    price,
    told,
    total,
)

DELTA = 1e-5
ONE = gaussian_event("sums", 1 << 30, mu_for(1.0, DELTA) * (1 - 1e-9), 30, grid_bits=30)
WIDE = Limits(1e3, 1e3, 1e-3, 1e3, accept_unproven=True)


def pure(epsilon):
    e = Fraction(epsilon)
    kind = {"epsilon_numerator": e.numerator, "epsilon_denominator": e.denominator}
    return TwoValueEvent(what="coin", unit="record", coordinates=1, **kind)


def gaussian(mu, unit="record"):
    return gaussian_event("sums", 1 << 30, mu, 30, grid_bits=30, unit=unit)


def sampled(multiplier, steps=20):
    return sampled_gaussian_event(
        "steps", 0.05, steps, 1 << 24, 30, grid_bits=24, noise_multiplier=multiplier
    )


def delta_of(epsilon, mu):
    """δ(ε) of μ-GDP, by scipy."""
    second = math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))
    return float(norm.cdf(-epsilon / mu + mu / 2) - second)


def jobs_of(*lives):
    return [JobRequest(str(at), DELTA, tuple(events)) for at, events in enumerate(lives)]


def test_a_question_is_in_the_accounts_of_training_and_of_evaluation_records():
    asked, trained, inferred = (replace(ONE, purpose=one) for one in (ASK, TRAIN, INFER))
    both, alone = price([ONE, ONE], DELTA).training.epsilon, price([ONE], DELTA).training.epsilon
    for other, training, inference in ((trained, both, alone), (inferred, alone, both)):
        found = price([asked, other], DELTA)
        assert found.training.epsilon == pytest.approx(training, rel=1e-9)
        assert found.inference.epsilon == pytest.approx(inference, rel=1e-9)
        whole = total(jobs_of([asked], [other]))  # of two jobs at the sum of their δ
        dearer = max(whole.training.epsilon, whole.inference.epsilon)
        assert dearer == pytest.approx(total(jobs_of([ONE], [ONE])).training.epsilon, rel=1e-9)
    for name in ("max_inference_epsilon", "lifetime_epsilon", "max_epsilon_per_job"):
        with pytest.raises(PrivacyError, match=name):
            check_job(jobs_of([asked])[0], replace(WIDE, **{name: 0.5}), [])
    assert (
        told([asked], DELTA).inference.epsilon
        == 0
        < told([asked, inferred], DELTA).inference.epsilon
    )


@pytest.mark.parametrize(
    ("released", "counted"),
    [(TRAIN, {TRAIN, ASK}), (INFER, {INFER, ASK}), (ASK, {TRAIN, ASK, INFER}), (None, set())],
)
def test_an_early_end_counts_questions_with_all_else_that_reads_the_same_records(released, counted):
    """Whether a device is asked may follow from what it released, and the other way round."""
    planned = [replace(ONE, purpose=one) for one in (TRAIN, TRAIN, ASK, ASK, INFER, INFER)]
    found = [event for event in planned if event.purpose == released][:1]
    whole = tuple(event for event in planned if event.purpose in counted)
    assert JobRequest("", DELTA, tuple(planned)).counted(found) == whole


@pytest.mark.parametrize(("delta", "figure"), [(2e-4, 4.50), (1e-5, 5.41)])
def test_twenty_jobs_cost_what_their_noise_composes_to(ledger, delta, figure):
    true = brentq(lambda e: delta_of(e, math.sqrt(20) * ONE.mu) - delta, 0.1, 20)
    owner = replace(WIDE, lifetime_epsilon=1.01 * true, lifetime_delta=delta)
    for job in jobs_of(*[[ONE]] * 20):
        ledger.open_job(job, owner)
        ledger.commit(job.job_id, 1, [ONE], b"noised")
        ledger.close_job(job.job_id)
    found = ledger.spent(delta=delta)
    assert true < found.epsilon <= 1.01 * true
    assert found.epsilon == pytest.approx(figure, rel=0.01)
    assert (found.delta, found.unit, found.proven) == (delta, "record", True)
    with pytest.raises(PrivacyError, match="lifetime_epsilon"):
        ledger.open_job(JobRequest("next", DELTA, (ONE,)), owner)
    with pytest.raises(PrivacyError, match="lifetime_delta"):  # of one job
        ledger.open_job(JobRequest("next", 2 * delta, (ONE,)), replace(owner, lifetime_epsilon=9))


def test_without_an_owner_jobs_count_at_the_sum_of_their_deltas():
    jobs = jobs_of(*[[ONE]] * 20)
    assert total(jobs) == total(jobs, math.fsum(job.delta for job in jobs))
    assert total(jobs[:1]).training == price([ONE], DELTA).training  # alone at its own price


def test_the_regions_share_delta():
    """Whoever chooses the region by what was released has the sum of their δ."""
    delta = 1e-4
    limit = least_limit([gaussian(0.3)] * 40, delta)[0]
    of_gaussians = delta_of(limit - GRID_EPSILON, 0.3 * math.sqrt(40))
    limit = least_limit([sampled(0.7)] * 5, delta)[0]
    moments = dict(zip(ORDERS, log_moments(sampled(0.7)), strict=True))
    by_order = min(
        5 * moments[o] - o * limit + o * math.log(o / (o + 1)) - math.log1p(o)
        for o in FILTER_ORDERS
    )
    of_orders = len(FILTER_ORDERS) * math.exp(by_order)
    assert of_gaussians > 0.94 * delta and of_orders > 0.04 * delta
    assert of_gaussians * math.exp(GRID_EPSILON / 2) + of_orders <= delta


events = st.one_of(
    st.sampled_from([0.05, 0.2, 1.0, 3.0]).map(gaussian),
    st.sampled_from(["1/50", "1/3", "2"]).map(pure),
    st.sampled_from([0.6, 1.0, 4.0]).map(sampled),
)


@given(st.lists(events, min_size=1, max_size=8), st.data())
@settings(deadline=None, max_examples=60)
def test_what_stays_within_a_limit_did_so_before_each_release(life, data):
    part = data.draw(st.lists(st.sampled_from(life), unique_by=id, max_size=len(life)))
    for delta in (0.0, 1e-6, 1e-4):
        whole = least_limit(life, delta)[0]
        assert least_limit(part, delta)[0] <= whole
        assert least_limit(life, 2 * delta)[0] <= whole


@given(st.lists(events, min_size=1, max_size=5), st.floats(0.05, 40), st.floats(1, 3))
@example([gaussian(1.0), pure("1/50")], 4.5, 1.0)  # at the owner's δ less than the first alone
@settings(deadline=None, max_examples=30)
def test_a_wider_limit_refuses_no_job_and_no_total_is_below_one_job(life, limit, times):
    job, *others = jobs_of(*[[event] for event in life])

    def admits(lifetime, jobs):
        with suppress(PrivacyError):
            return bool(check_job(job, replace(WIDE, lifetime_epsilon=lifetime), jobs))
        return False

    assert admits(limit * times, others) >= admits(limit, others)
    assert admits(limit, others[:-1]) >= admits(limit, others)
    found = total([job, *others], 1e-4).training.epsilon
    assert all(price([event], DELTA).training.epsilon <= found for event in life)
    assert admits(found, others) or found > 1e3


@pytest.mark.parametrize("limit", [0.9, 1.4])
def test_an_adversary_who_chooses_each_job_by_the_last_gains_nothing(limit):
    """The best choice of two coins, after each result, by all results so far, at each length."""
    sizes, delta = (Fraction(1, 16), Fraction(1, 4)), 1e-2

    @cache
    def admitted(counts):
        life = [pure(e) for e, n in zip(sizes, counts, strict=True) for _ in range(n)]
        return least_limit(life, delta)[0] <= limit

    @cache
    def gain(counts, loss):  # E[(likelihood ratio − e^limit)+] at best from here on, over Q
        best = max(0.0, math.exp(loss) - math.exp(limit))
        for at, size in enumerate(sizes):
            further = tuple(n + (at == k) for k, n in enumerate(counts))
            if admitted(further):
                up = 1 / (1 + math.exp(size))
                parts = up * gain(further, loss + size), (1 - up) * gain(further, loss - size)
                best = max(best, sum(parts))
        return best

    assert admitted((1, 1)) and not admitted((0, 30))
    assert delta / 100 < gain((0, 0), Fraction(0)) <= delta


def test_a_pair_of_gaussians_dominates_each_coin():
    for epsilon in ("1/1000000", "1/7", "1", "8", "40"):
        mu, e = pure_mu(Fraction(epsilon)), float(Fraction(epsilon))
        for at in np.linspace(0, 0.999, 50) * e:
            of_coin = (math.exp(e) - math.exp(at)) / (1 + math.exp(e))
            assert of_coin <= delta_of(at, mu) * (1 + 1e-6)
        touched = (math.exp(e) - 1) / (1 + math.exp(e))
        assert delta_of(0, mu) == pytest.approx(touched, rel=1e-6)
    assert pure_mu(Fraction(10**4)) == math.inf


@pytest.mark.parametrize("sigma", [3.0, 17.0])
def test_discrete_noise_is_as_near_to_rounded_noise_as_the_lemma_says(sigma):
    k = np.arange(-int(9 * sigma), 1)
    discrete = np.exp(-(k**2) / (2 * sigma**2))
    discrete /= 2 * discrete.sum() - 1
    rounded = norm.cdf((k + 0.5) / sigma) - norm.cdf((k - 0.5) / sigma)
    apart = np.log(discrete / rounded)
    assert (apart <= 1 / (8 * sigma**2) + 1e-9).all()
    assert (apart >= -(k**2) / (8 * sigma**4) - 1e-9).all()


def test_noise_on_a_coarse_grid_is_admitted_by_its_moments():
    fine, coarse = gaussian(1.0), gaussian_event("sums", 1 << 11, 1.0, 30, grid_bits=11)
    delta = 1e-5
    by_gaussians, by_moments = (
        least_limit([fine] * 2, delta)[0],
        least_limit([coarse] * 2, delta)[0],
    )
    assert by_gaussians < 1.01 * by_gaussians < by_moments < 1.5 * by_gaussians


def test_jobs_with_a_claim_add_up_and_prove_nothing():
    claim = ClaimedEvent(what="as published", unit="record", claimed_epsilon=1.0)
    jobs = jobs_of([ONE], [ONE], [ONE, claim])
    found = total(jobs, 1e-4).training
    assert not found.proven
    assert found.epsilon == pytest.approx(4 * price([ONE], DELTA).training.epsilon)
    assert found.delta == pytest.approx(3 * DELTA)


def test_each_unit_has_a_total_of_its_own():
    jobs = jobs_of([gaussian(0.2, "device")], [gaussian(0.2, "device")], [gaussian(0.1)])
    found, delta = total(jobs, 1e-4).training, 1e-4
    assert found.unit == "record"
    for epsilon, squares in ((found.epsilon, 0.33), (found.device_epsilon, 0.08)):
        true = brentq(lambda e, s=squares: delta_of(e, math.sqrt(s)) - delta, 0.01, 20)
        assert true < epsilon < 1.02 * true
    updates = total(jobs[:2], 1e-4).training
    assert (updates.unit, updates.epsilon) == ("device", found.device_epsilon)


def test_a_ledger_of_several_jobs_is_read_again_with_the_same_total(path, ledger):
    for job in jobs_of([ONE, pure("1/3")], [ONE], [sampled(1.0)]):
        ledger.open_job(job, WIDE)
        ledger.commit(job.job_id, 1, job.events, b"noised")
    found = ledger.spent(delta=1e-4)
    ledger.close()
    again = Ledger(path, "digits")
    assert again.spent(delta=1e-4) == found
    again.close()
