"""`fm_paper`: the polynomial as its text writes it, its noise, and a price that is only claimed."""

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.parts.features.feature_map import PcaParameters
from edgeveil.parts.methods import fm_paper
from edgeveil.parts.methods.fm_paper import (
    HIDDEN,
    OUTPUT,
    FmPaperCloud,
    FmPaperDevice,
    FmPaperParameters,
    noise_scale,
)
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.privacy.policy import price
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context as made_context

ROUND = PlannedRound(1, TRAIN, 1)
QUIET = 1e12  # an ε at which the noise is below 1e-9


@pytest.fixture(autouse=True)
def constants(monkeypatch):
    for name, value in (("WIDTH", 5), ("LEARNING_RATE", 0.1), ("MAX_WEIGHT", 7.0)):
        monkeypatch.setattr(fm_paper, name, value)


def context(**changes):
    plain = {"epsilon": QUIET, "max_participations": 15, "devices": 1}
    return made_context(**{**plain, **changes})


def some_records(n=23):
    rng = np.random.default_rng(n)
    return Records(rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 3, n))


def weights(hidden=5, seed=0):
    rng = np.random.default_rng(seed)
    return {
        HIDDEN: rng.normal(size=(4, hidden)).astype(np.float32),
        OUTPUT: rng.normal(size=(hidden, 3)).astype(np.float32),
    }


def polynomial(records, hidden, output):
    """Σ over classes and records of log 2 - ½·y·h + ⅛·h², as the text writes it; ‖x‖₂ <= 1."""
    x = records.x.astype(np.float64)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    h = x @ hidden @ output
    y = np.where(records.y[:, None] == np.arange(output.shape[1]), 1.0, -1.0)
    return (np.log(2) - y * h / 2 + h * h / 8).sum()


def test_a_step_follows_the_gradient_of_the_text_s_polynomial():
    parameters = FmPaperParameters(local_steps=1)
    before, records = weights(), some_records()
    answer = FmPaperDevice(parameters, context()).answer(ROUND, before, records, SeededRandom(0))
    double = {name: value.astype(np.float64) for name, value in before.items()}
    for name, value in double.items():

        def at(step, name=name, value=value):
            moved = {**double, name: value + step}
            return polynomial(records, moved[HIDDEN], moved[OUTPUT])

        slope = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            end = np.zeros_like(value)
            end[place] = 1e-5
            slope[place] = (at(end) - at(-end)) / 2e-5
        step = -0.1 * slope / 20  # the public divisor
        # features stand on the grid 2^-12: 23 records move a coefficient by less than 0.02
        np.testing.assert_allclose(answer.segments[name] - value, step, atol=2e-3)
        assert np.abs(step).max() > 0.01


def noised(steps, seed, **weights):
    empty = Records(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    device = FmPaperDevice(FmPaperParameters(local_steps=steps), context(epsilon=2.0))
    return device.answer(ROUND, weights, empty, SeededRandom(seed)).segments


def test_the_noise_is_laplace_at_the_text_s_scale():
    start = {HIDDEN: np.eye(4, 5, dtype=np.float32), OUTPUT: np.zeros((5, 3), np.float32)}
    found = [noised(1, seed, **start)[OUTPUT][:4] * (-20 / 0.1) for seed in range(500)]
    draws = np.abs(np.ravel(found))  # the linear noise, read off one step
    scale = (4 + 4 * 4 / 4) / 2.0  # Δ/ε, eq. 9
    assert noise_scale(FmPaperParameters(), context(epsilon=2.0)) == pytest.approx(scale)
    # 6000 draws of |Lap(b)|, whose mean and deviation are b: six deviations of the mean
    assert draws.mean() == pytest.approx(scale, rel=6 / np.sqrt(draws.size))
    assert np.median(draws) == pytest.approx(scale * np.log(2), rel=0.1)


def test_the_noise_is_drawn_anew_at_each_step():
    """Steps from W₁ = 0 beside a tiny W₂ add up their noise."""
    output = np.zeros((5, 3), np.float32)
    output[0, 0] = 2.0**-10
    start = {HIDDEN: np.zeros((4, 5), np.float32), OUTPUT: output}
    once, twice = (noised(steps, 3, **start)[HIDDEN][:, 0] for steps in (1, 2))
    assert not np.allclose(twice, 2 * once, rtol=0.05, atol=0)


@pytest.mark.parametrize("name", [None, "ldp_fpca", "ldp_pca", "local_pca"])
def test_the_claim_of_all_rounds_together_is_the_job_s_epsilon_and_no_guarantee(name):
    projection = None if name is None else PcaParameters(name=name, keep=0.5, share=0.25)
    place, parameters = context(epsilon=8.0, projection=projection), FmPaperParameters(rounds=15)
    plan = FmPaperCloud(parameters, place).plan()
    device = FmPaperDevice(parameters, place)
    wanted = ["covariance"] if name in ("ldp_fpca", "ldp_pca") else []
    assert [e.phase for e in plan[:-15]] == wanted
    quote = price([event for e in plan for event in device.price(e)], 1e-5).training
    assert 7.9 < quote.epsilon <= 8.0
    assert str(quote) == "no proven guarantee"


def test_bad_records_count_for_nothing():
    good = some_records()
    x = np.concatenate([good.x, np.full((2, 4), np.nan, np.float32), good.x[:1]])
    bad = Records(x, np.concatenate([good.y, [0, 1], [17]]))
    device = FmPaperDevice(FmPaperParameters(), context(epsilon=1.0))
    one, two = (device.answer(ROUND, weights(), r, SeededRandom(4)).segments for r in (good, bad))
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name])


def test_a_small_epsilon_for_many_rounds_is_no_matter_of_a_release_that_never_comes():
    wishart = PcaParameters(name="ldp_fpca", noise="wishart")
    place = context(epsilon=1e-4, max_participations=10_000, projection=wishart)
    parameters = FmPaperParameters(rounds=10_000)
    assert len(FmPaperCloud(parameters, place).plan()) == 10_001
    assert FmPaperDevice(parameters, place).price(ROUND)[0].claimed_epsilon < 1e-8
