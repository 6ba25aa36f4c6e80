"""DP-SGD of sums: a round is one central step, over samples that only the devices know."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from edgeveil.crypto.keys import NoiseKey
from edgeveil.data.records import Records
from edgeveil.parts.methods import METHODS, dp_sgd
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.derived import NoiseContext, noise_by_context
from edgeveil.privacy.events import as_single, as_summed, event_from_dict, to_dict
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context

NETWORK = build_network(NetworkParameters(hidden=()), (1,), 2)
CONTEXT = context(
    classes=2, input_shape=(1,), nominal_records=8, network=NETWORK, summed=4, honest=3
)
ROUND = PlannedRound(1, TRAIN, 1)
ZERO = {"output.weight": np.zeros((1, 2), np.float32), "output.bias": np.zeros(2, np.float32)}
METHOD = METHODS["dp_sgd_sums"]
CERTAIN = METHOD.made(rounds=2, sampling_rate=1.0, clip_norm=0.5, learning_rate=0.4)


def records(*labels):
    return Records(np.ones((len(labels), 1), np.float32), np.array(labels, np.int64))


def same_noise(seed):
    """Noise that follows from `seed` alone; the few bytes of places are zeros."""
    noise = SeededRandom(seed)
    return lambda count: bytes(count) if count < 8 else noise(count)


def flat(segments):
    return np.concatenate([value.ravel() for value in segments.values()])


def uploads(held, parameters=CERTAIN, given=CONTEXT):
    device = METHOD.device(parameters, given)
    return [
        device.answer(ROUND, ZERO, one, same_noise(seed), "cpu").segments
        for seed, one in enumerate(held)
    ]


def after(sent, parameters=CERTAIN, given=CONTEXT):
    cloud = METHOD.cloud(parameters, given)
    mean = {name: np.mean([one[name] for one in sent], axis=0) for name in sent[0]}
    return cloud.absorb(ZERO, ROUND, mean, len(sent))


def test_a_round_is_one_step_along_the_sum_over_all_devices_and_the_public_batch():
    """The same noise with three records on two of three devices, and with none."""
    with_records = uploads([records(0, 0), records(), records(0)])
    without = uploads([records()] * 3)
    moved = flat(after(with_records)).astype(float) - flat(after(without)).astype(float)
    # p = (½, ½): a gradient is ±½ in each of 4 values, clipped to ½, less the margin of 2^-12.
    step = 0.4 * 3 * 0.5 * 0.5 * dp_sgd.AIM / (1.0 * 8 * 3)
    np.testing.assert_allclose(moved, [step, -step, step, -step], atol=1e-6)


def test_one_record_moves_an_upload_by_no_more_than_is_priced():
    rng, device = np.random.default_rng(3), METHOD.device(CERTAIN, CONTEXT)
    (event,) = device.price(ROUND)
    for size in range(5):
        x = rng.normal(size=(size + 1, 1)) * 10.0 ** rng.integers(-3, 6, (size + 1, 1))
        more = Records(x.astype(np.float32), rng.integers(0, 2, size + 1))
        fewer = more.at(np.arange(size))
        weights = {name: rng.normal(size=a.shape).astype(np.float32) for name, a in ZERO.items()}
        found = [
            flat(device.answer(ROUND, weights, one, same_noise(1), "cpu").segments)
            for one in (fewer, more)
        ]
        moved = [int(step) for step in found[1] - found[0]]
        assert sum(step**2 for step in moved) <= as_single(event).event.sensitivity_steps ** 2


def test_values_stay_within_the_public_bound_however_many_records_a_device_has():
    narrow = replace(CONTEXT, nominal_records=1)
    full, empty = uploads([records(*[0] * 5)], CERTAIN, narrow) + uploads(
        [records()], CERTAIN, narrow
    )
    assert np.abs(flat(full) - flat(empty)).max() == 1 << dp_sgd.NOISE_BITS
    (spec, *_) = METHOD.cloud(CERTAIN, narrow).segments(ROUND)
    assert np.abs(flat(full)).max() < spec.largest


def test_each_round_has_a_sample_of_its_own_and_a_repeated_question_the_same(monkeypatch):
    held, rate, rounds = records(*[0] * 64), 0.3, 40
    device = METHOD.device(METHOD.made(rounds=rounds, sampling_rate=rate), CONTEXT)
    total, taken = dp_sgd.NoisedSums.total, []

    def noted(self, rows, chosen, clip_norm):
        taken.append(np.isin(np.arange(self.count), chosen))
        return total(self, rows, chosen, clip_norm)

    monkeypatch.setattr(dp_sgd.NoisedSums, "total", noted)
    noise = noise_by_context(NoiseKey.from_bytes(bytes(32)))
    asked = [*range(rounds), 0]
    sent = [
        device.answer(ROUND, ZERO, held, noise(NoiseContext("", "", at, bytes(32))), "cpu").segments
        for at in asked
    ]
    np.testing.assert_array_equal(taken[0], taken[-1])
    np.testing.assert_array_equal(flat(sent[0]), flat(sent[-1]))
    often = np.sum(taken[:-1], axis=0)
    spread = float(((often - rounds * rate) ** 2).sum() / (rounds * rate * (1 - rate)))
    low, high = chi2.ppf([1e-9, 1 - 1e-9], len(held))
    assert low < spread < high


def test_all_rounds_cost_what_the_job_asks_and_a_device_alone_its_own_part():
    device = METHOD.device(METHOD.made(rounds=9, sampling_rate=0.1), CONTEXT)
    (event,) = device.price(ROUND)
    whole, own = as_summed(event), as_single(event)
    found = epsilon([event] * 2, 1e-5)  # of 2 participations
    assert 3.9 < found.epsilon == epsilon([whole] * 2, 1e-5).epsilon <= 4.0
    assert (whole.sampling_probability, whole.steps, whole.unit) == (0.1, 1, "record")
    assert found.if_colluding == epsilon([own] * 2, 1e-5).epsilon > found.epsilon
    assert found.honest == 3
    assert 0 <= 3 * own.event.sigma_squared - whole.event.sigma_squared < 6
    sampled = replace(own, sampling_probability=1.0)
    assert found.if_colluding < epsilon([sampled] * 2, 1e-5).epsilon  # sampled there too
    alone = METHOD.device(METHOD.made(rounds=9, sampling_rate=0.1), replace(CONTEXT, honest=0))
    assert alone.price(ROUND)[0].event.sigma_squared <= whole.event.sigma_squared
    assert event_from_dict(to_dict(event)) == event


@pytest.mark.parametrize("honest", [0, 3])
def test_a_device_without_records_sends_its_noise(honest):
    given = replace(CONTEXT, honest=honest)
    device = METHOD.device(CERTAIN, given)
    (event,) = device.price(ROUND)
    variance = (as_single(event).event if honest else event.event).sigma_squared
    sent = [
        device.answer(ROUND, ZERO, records(), SeededRandom(seed), "cpu").segments
        for seed in range(50)
    ]
    squares = float((np.concatenate([flat(one) for one in sent]).astype(float) ** 2).sum())
    low, high = chi2.ppf([1e-9, 1 - 1e-9], 200)
    assert low < squares / variance < high
