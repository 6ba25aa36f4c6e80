"""`gradient_gaussian` and `ldp_fl`: the bound on an update, the noise, the price."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from stage_kit import CONTEXT, ROUND, SIZE, flat, stage, task, values

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import epsilon, pure_epsilon
from edgeveil.privacy.events import ClaimedEvent
from edgeveil.privacy.gaussian_mechanism import clipped_steps

LARGE = values(3, 4, 0, 0, 0, 0)  # norm 5
SMALL = values(0.3, -0.4, 0, 0, 0, 0)
TIMES = CONTEXT.max_participations


def test_an_update_is_clipped_as_a_whole_and_never_past_the_norm(monkeypatch):
    silent = lambda _variance, shape, _random: np.zeros(shape, np.int64)  # noqa: E731
    monkeypatch.setattr("edgeveil.privacy.gaussian_mechanism.discrete_gaussian", silent)
    for given, sent in ((LARGE, [1.5, 2, 0, 0, 0, 0]), (SMALL, flat(SMALL))):
        found = flat(stage("gradient_gaussian", clip_norm=2.5).apply(task(), given))
        np.testing.assert_allclose(found, sent, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 7.7, 1e30, 1e300])
def test_the_integer_norm_is_within_the_priced_sensitivity(scale):
    event = stage("gradient_gaussian", clip_norm=0.37).event
    rng = np.random.default_rng(1)
    for _ in range(50):
        steps = clipped_steps(
            rng.standard_normal(SIZE) * scale, event.sensitivity_steps, event.grid_bits
        )
        assert int((steps.astype(object) ** 2).sum()) <= event.sensitivity_steps**2
    assert event.sensitivity == pytest.approx(0.37, rel=1e-6)


@pytest.mark.parametrize("asked", [0.1, 1.0, 6.0, 15.0])
def test_all_rounds_together_cost_the_job_s_epsilon_and_hardly_less(asked):
    context = replace(CONTEXT, epsilon=asked)
    (event,) = stage("gradient_gaussian", context).price(ROUND)
    total = epsilon([event] * TIMES, context.delta)
    assert (total.unit, total.proven) == ("device", True)
    assert 0.999 * asked <= total.epsilon <= asked


def test_the_noise_is_as_large_as_its_price_says():
    entry = stage("gradient_gaussian", clip_norm=2.0)
    sigma = 2.0 / entry.event.mu
    found = np.concatenate(
        [flat(entry.apply(task(seed=seed, count=0), LARGE)) for seed in range(2000)]
    )
    assert abs(found.std() / sigma - 1) < 6 / math.sqrt(2 * found.size)
    assert abs(found.mean()) < 6 * sigma / math.sqrt(found.size)


def test_every_weight_is_one_of_two_values_whose_mean_is_right():
    """Sun et al. 2021, alg. 2, with c = 0, r = ½: ±r·(e^ε + 1)/(e^ε - 1)."""
    context = replace(CONTEXT, epsilon=2.0 * SIZE * TIMES)  # ε = 2 of one weight
    entry = stage("ldp_fl", context, radius=0.5)
    given = values(0.5, -0.5, 0.25, 0.0, 9.0, -9.0)
    size = 0.5 * (math.e**2 + 1) / (math.e**2 - 1)
    drawn = np.stack([flat(entry.apply(task(seed=seed), given)) for seed in range(8000)])
    np.testing.assert_allclose(np.abs(drawn), size, rtol=1e-6)
    np.testing.assert_allclose(
        drawn.mean(axis=0), [0.5, -0.5, 0.25, 0, 0.5, -0.5], atol=6 * size / math.sqrt(8000)
    )


def test_all_weights_and_rounds_share_the_budget():
    (event,) = stage("ldp_fl").price(ROUND)
    total = pure_epsilon([event] * TIMES)
    assert total <= Fraction(CONTEXT.epsilon)
    assert float(total) == pytest.approx(CONTEXT.epsilon)
    assert (event.unit, event.status, event.coordinates) == ("device", "proven", SIZE)


def test_the_text_s_composition_gives_each_weight_all_of_it_and_is_claimed():
    parallel = stage("ldp_fl", composition="parallel")
    (event,) = parallel.price(ROUND)
    assert isinstance(event, ClaimedEvent)
    assert event.claimed_epsilon == pytest.approx(CONTEXT.epsilon / TIMES)
    assert float(parallel.event.epsilon) == pytest.approx(SIZE * CONTEXT.epsilon / TIMES)


def test_an_epsilon_that_drowns_is_refused():
    with pytest.raises(PrivacyError) as caught:
        stage("ldp_fl", replace(CONTEXT, epsilon=1e-14)).price(ROUND)
    assert caught.value.where == "privacy.epsilon"
