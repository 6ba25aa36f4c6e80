"""Updates as integers of which only sums are seen: their grid, their room, their noise."""

from dataclasses import replace

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.parts.methods import METHODS
from edgeveil.parts.stage import USUAL_GRID, FixedPoint
from edgeveil.parts.stages.noise import GradientGaussian, GradientGaussianParameters
from edgeveil.parts.update import Pipeline, UpdateCloud
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import SharedGaussian, as_single, as_summed
from edgeveil.privacy.gaussian_mechanism import LEAST_SHARE_BITS, clipped_steps
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.softmax_regression import CONTEXT, ROUND, ZERO, answer

DEVICES = 20
SUMMED = replace(CONTEXT, summed=DEVICES, devices=DEVICES)
STEP = 2.0**-20


def noised(context=SUMMED, clip_norm=1.0):
    """The context with Gaussian noise on the whole update."""
    stage = GradientGaussian(GradientGaussianParameters(clip_norm=clip_norm), context)
    return replace(context, stages=(stage,)), stage


def cloud(context):
    return UpdateCloud(METHODS["sgd"].made(rounds=2), context)


def row(segments):
    """All values in a row."""
    return np.concatenate([array.ravel() for array in segments.values()])


def test_an_update_is_the_nearest_whole_steps_of_the_one_that_is_not_summed():
    plain, steps = answer("sgd").segments, answer("sgd", context=SUMMED).segments
    assert plain.keys() == steps.keys()
    for name, values in plain.items():
        assert steps[name].dtype == np.int64
        np.testing.assert_array_equal(steps[name], np.rint(values.astype(np.float64) / STEP))


def test_no_sum_of_the_largest_leaves_the_ring():
    for context in (SUMMED, noised()[0], noised(replace(SUMMED, honest=16))[0]):
        grid = Pipeline(context).grid
        for spec in cloud(context).segments(ROUND):
            assert DEVICES * grid.largest < 2 ** (spec.bits - 1) <= 4 * DEVICES * grid.largest


def test_what_is_too_large_is_cut_off():
    far = {name: np.full_like(value, 3e38) for name, value in ZERO.items()}
    steps = answer("sgd", context=SUMMED, weights=far, learning_rate=100.0, local_epochs=3)
    assert all(np.abs(one).max() <= USUAL_GRID.largest for one in steps.segments.values())
    grid = FixedPoint(2, 5)
    assert grid.steps(np.array([-9.0, -0.6, 0.3, 9.0])).tolist() == [-5, -2, 1, 5]


def test_noised_integers_travel_as_they_are_and_cost_what_is_priced():
    context, stage = noised()
    made, event = answer("sgd", context=context), stage.event
    assert made.events == stage.price(ROUND) == (event,)
    values = row(answer("sgd").segments).astype(np.float64)  # without noise
    noise = row(made.segments) - clipped_steps(values, event.sensitivity_steps, event.grid_bits)
    assert 0 < np.abs(noise).max() < 12 * event.sigma_steps
    assert np.any(noise & 1) and np.any(~noise & 1)  # no grid but the steps' own


@pytest.mark.parametrize("honest", [1, 7, 20])
def test_shared_noise_adds_up_to_the_budget_and_each_part_is_priced_alone(honest):
    alone, _ = noised()
    context, stage = noised(replace(SUMMED, honest=honest))
    (event,) = answer("sgd", context=context).events
    assert isinstance(event, SharedGaussian) and event.honest == honest
    together, own = as_summed(event), as_single(event)
    assert together.sigma_squared >= alone.stages[0].event.sigma_squared
    assert together.sigma_squared == honest * own.sigma_squared
    assert own.sigma_squared >= 4**LEAST_SHARE_BITS
    assert epsilon([together] * 2, CONTEXT.delta).epsilon <= CONTEXT.epsilon
    if honest > 1:
        assert epsilon([own] * 2, CONTEXT.delta).epsilon > CONTEXT.epsilon
    assert stage.grid.largest == event.own.sensitivity_steps + np.ceil(12 * own.sigma_squared**0.5)


def test_the_noise_of_parts_has_the_variance_that_was_promised():
    context, stage = noised(replace(SUMMED, honest=4))
    entry = METHODS["sgd"]
    device = entry.device(entry.made(rounds=2), context)
    nobody = Records(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    drawn = [row(device.answer(ROUND, ZERO, nobody, SeededRandom(k)).segments) for k in range(600)]
    found = np.mean(np.array(drawn, np.float64) ** 2)
    # 3,600 squares of a normal variable: one standard deviation of their mean is 2.4 %.
    assert found == pytest.approx(stage.event.sigma_squared, rel=0.12)
