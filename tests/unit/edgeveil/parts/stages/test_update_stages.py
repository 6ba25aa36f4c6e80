"""Update stages by hand; the bound, the noise and the price of `gradient_gaussian` and `ldp_fl`."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil.parts.methods import METHODS
from edgeveil.parts.stage import Task
from edgeveil.parts.stages import STAGES
from edgeveil.parts.update import WHOLE, Pipeline, UpdateCloud
from edgeveil.privacy.accountant import epsilon, pure_epsilon
from edgeveil.privacy.events import ClaimedEvent, GaussianEvent, UnprotectedEvent
from edgeveil.privacy.gaussian_mechanism import clipped_steps
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context as made_context
from tests.kits.softmax_regression import NETWORK, ROUND, answer

CONTEXT = made_context(epsilon=6.0, classes=2, input_shape=(2,), network=NETWORK)
SIZE = 6  # weight (2, 2), bias (2,)
NAMES = [weight.name for weight in NETWORK.weights]
TIMES = CONTEXT.max_participations


def stage(name, context=CONTEXT, **parameters):
    entry = STAGES[name]
    return entry.build(entry.made(**parameters), context)


def staged(*stages):
    return replace(CONTEXT, stages=stages)


def values(*six):
    """An update, or weights, of these six values."""
    flat = np.array(six, np.float32)
    return dict(zip(NAMES, (flat[:4].reshape(2, 2), flat[4:]), strict=True))


def flat(update):
    return np.concatenate([update[name].ravel() for name in NAMES]).astype(float)


def task(memory=None, weights=None, count=3, seed=0):
    start = weights or values(*[0.0] * SIZE)
    kept = {} if memory is None else memory
    records = Records(np.ones((count, 2), np.float32), np.zeros(count, np.int64))
    return Task(ROUND, NETWORK, start, records, kept, SeededRandom(seed), "cpu")


UPDATE = values(0.5, -3.0, 1.0, 0.0, 2.0, -0.25)
LARGE = values(3, 4, 0, 0, 0, 0)  # norm 5
SMALL = values(0.3, -0.4, 0, 0, 0, 0)
NOISE, TOP, STC = stage("gradient_gaussian"), stage("upload_top_k", share=0.5), stage("stc")


def test_top_k_keeps_the_largest_magnitudes_over_all_weights_together():
    assert flat(TOP.apply(task(), UPDATE)).tolist() == [0, -3, 1, 0, 2, 0]


def test_stc_sends_signs_times_the_mean_magnitude_and_adds_the_rest_to_the_next_update():
    """Sattler et al. 2020, algs. 1 and 2: of −3, 2 and 1 the mean magnitude is 2; the same update
    beside what is left is 1, −4, 0, 0, 2, −0.5, whose mean is 7/3."""
    memory, compress = {}, stage("stc", share=0.5)
    assert flat(compress.apply(task(memory), UPDATE)).tolist() == [0, -2, 2, 0, 2, 0]
    assert memory["stc"].tolist() == [0.5, -1, -1, 0, 0, -0.25]
    sent, mu = flat(compress.apply(task(memory), UPDATE)), 7 / 3
    np.testing.assert_allclose(sent, [mu, -mu, 0, 0, mu, 0], rtol=1e-6)
    np.testing.assert_allclose(memory["stc"], [1 - mu, -4 + mu, 0, 0, 2 - mu, -0.5], rtol=1e-6)


GLOBAL = values(1, 2, 3, 4, 5, 6)
MEMORY = {f"own/{name}": -array for name, array in GLOBAL.items()}


@pytest.mark.parametrize(("share", "taken"), [(0.01, 1), (0.5, 3), (1.0, 6)])
def test_a_share_is_the_global_weights_and_the_rest_the_device_s_own(share, taken):
    part, chosen = stage("download_random", share=share), np.zeros(SIZE)
    for seed in range(600):
        found = flat(Pipeline(staged(part)).start(task(MEMORY, GLOBAL, seed=seed)))
        assert np.abs(found).tolist() == [1, 2, 3, 4, 5, 6]
        assert np.count_nonzero(found > 0) == taken
        chosen += found > 0
    # Drawn anew in each round, all alike; six standard deviations.
    assert (np.abs(chosen - 100 * taken) <= 75).all()
    assert flat(Pipeline(staged(TOP)).start(task(MEMORY, GLOBAL))).tolist() == [1, 2, 3, 4, 5, 6]


def test_the_trained_weights_are_kept_and_the_update_stays_as_it_is():
    given, update = task(weights=GLOBAL), values(0.5, 0, 0, 0, 0, -1)
    assert stage("download_random").apply(given, update) is update
    kept = flat({name.removeprefix("own/"): array for name, array in given.memory.items()})
    assert kept.tolist() == [1.5, 2, 3, 4, 5, 5]


@pytest.mark.parametrize(
    ("stages", "kind"),
    [
        ((), UnprotectedEvent),
        ((STC, stage("download_random")), UnprotectedEvent),
        ((NOISE,), GaussianEvent),
        ((NOISE, TOP, STC), GaussianEvent),
        ((TOP, NOISE), ClaimedEvent),  # values that are chosen before the noise
        ((TOP, stage("ldp_fl")), ClaimedEvent),
    ],
)
def test_noise_prices_the_whole_update_and_is_claimed_after_a_choice(stages, kind):
    bare = UnprotectedEvent(what="update without noise", unit="record")
    (event,) = Pipeline(staged(*stages)).price(ROUND, (bare,))
    assert type(event) is kind
    if kind is ClaimedEvent:
        assert event.claimed_epsilon == pytest.approx(CONTEXT.epsilon / TIMES)


def test_what_was_not_chosen_gets_no_noise():
    update = values(3, 0.1, -2, 0.1, 1, 0.1)
    sent = flat(Pipeline(staged(TOP, NOISE)).apply(task(), update))
    assert (sent != 0).tolist() == [True, False, True, False, True, False]
    after = flat(Pipeline(staged(NOISE, TOP)).apply(task(), update))
    assert np.count_nonzero(after) == 3


def test_a_cast_update_travels_in_half_the_bytes():
    whole = replace(staged(), whole=True)
    half = replace(staged(stage("cast")), whole=True)
    sent, rounded = (answer("sgd", context=one).segments[WHOLE] for one in (whole, half))
    assert rounded.dtype == np.float16 and np.any(rounded)
    np.testing.assert_array_equal(rounded, sent.astype(np.float16))
    for context, size in ((whole, 4), (half, 2)):
        (spec,) = UpdateCloud(METHODS["sgd"].made(rounds=2), context).segments(ROUND)
        assert spec.byte_count == size * sent.size


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
        drawn = rng.standard_normal(SIZE) * scale
        steps = clipped_steps(drawn, event.sensitivity_steps, event.grid_bits)
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
    drawn = [flat(entry.apply(task(seed=seed, count=0), LARGE)) for seed in range(2000)]
    found = np.concatenate(drawn)
    assert abs(found.std() / sigma - 1) < 6 / math.sqrt(2 * found.size)
    assert abs(found.mean()) < 6 * sigma / math.sqrt(found.size)


def test_every_weight_is_one_of_two_values_whose_mean_is_right():
    """Sun et al. 2021, alg. 2, with c = 0, r = ½: ±r·(e^ε + 1)/(e^ε - 1)."""
    context = replace(CONTEXT, epsilon=2.0 * SIZE * TIMES)  # ε = 2 of one weight
    entry = stage("ldp_fl", context, radius=0.5)
    given = values(0.5, -0.5, 0.25, 0.0, 9.0, -9.0)
    size = 0.5 * (math.e**2 + 1) / (math.e**2 - 1)
    drawn = np.stack([flat(entry.apply(task(seed=seed), given)) for seed in range(2000)])
    np.testing.assert_allclose(np.abs(drawn), size, rtol=1e-6)
    wanted, off = [0.5, -0.5, 0.25, 0, 0.5, -0.5], 6 * size / math.sqrt(2000)
    np.testing.assert_allclose(drawn.mean(axis=0), wanted, atol=off)


def test_all_weights_and_rounds_share_the_budget():
    (event,) = stage("ldp_fl").price(ROUND)
    total = pure_epsilon([event] * TIMES)
    assert total <= Fraction(CONTEXT.epsilon)
    assert float(total) == pytest.approx(CONTEXT.epsilon)
    assert (event.unit, event.status, event.coordinates) == ("device", "proven", SIZE)
    parallel = stage("ldp_fl", composition="parallel")  # each weight gets all of it
    (event,) = parallel.price(ROUND)
    assert isinstance(event, ClaimedEvent)
    assert event.claimed_epsilon == pytest.approx(CONTEXT.epsilon / TIMES)
    assert float(parallel.event.epsilon) == pytest.approx(SIZE * CONTEXT.epsilon / TIMES)
    with pytest.raises(PrivacyError):
        stage("ldp_fl", replace(CONTEXT, epsilon=1e-14)).price(ROUND)
