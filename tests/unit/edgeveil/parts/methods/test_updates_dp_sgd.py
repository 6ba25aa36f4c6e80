"""DP-SGD's clipped sums and steps by hand; every record's part stays as it is beside others."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from edgeveil.data.records import Records
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.dp_sgd import (
    AIM,
    NOISE_BITS,
    DpSgd,
    DpSgdParameters,
    NoisedSgd,
    NoisedSums,
    _exact_sum,
    to_steps,
)
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.parts.stage import Task
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import ClaimedEvent
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context


def dense(hidden, inputs=6, classes=3):
    return build_network(NetworkParameters(hidden=hidden), (inputs,), classes)


NETWORK = dense((), 1, 2)
CONTEXT = context(
    max_participations=3, classes=2, input_shape=(1,), nominal_records=8, devices=2, network=NETWORK
)
ROUND = PlannedRound(1, TRAIN, 1)
ZERO = {"output.weight": np.zeros((1, 2), np.float32), "output.bias": np.zeros(2, np.float32)}
ONE = Records(np.ones((1, 1), np.float32), np.array([0]))
NONE = Records(np.zeros((0, 1), np.float32), np.zeros(0, np.int64))
DP_SGD = {"local_steps": 1, "sampling_rate": 1.0, "clip_norm": 0.5, "learning_rate": 0.4}


class QuietSums(NoisedSums):
    """The sum over these records instead of a sample of them, as it is before noise is added."""

    def __init__(self, task, chosen):
        super().__init__(task, None)
        self.chosen = np.asarray(chosen, np.int64)

    def draw(self, rows, norm):
        self.found = self.total(rows, self.chosen, norm)
        return self.found * (norm * 2.0**-NOISE_BITS)


def summed(network, records, weights, chosen, clip_norm, places=None):
    """The clipped sum of one step; `places` says where each of all records lies in its block."""
    places = places or [0] * len(records)
    random = lambda count: bytes(places[i] for i in chosen)  # noqa: E731
    task = Task(ROUND, network, weights, records, {}, random, "cpu")
    sums = QuietSums(task, chosen)
    steps = NoisedSgd(task, sums, DpSgdParameters(clip_norm=clip_norm), CONTEXT)
    steps.take(steps.weights(weights))
    return sums.found


def test_a_clipped_gradient_by_hand():
    # p = (½, ½): the gradient of the logits is (-½, ½), that of weights and bias its products with
    # (x, 1): of norm 1, so clipped to ½, less the margin of 2^-12. Each factor is rounded.
    left, right = int(2**14 / 2**0.5), int(2**16 * AIM * 0.5 * 2**0.5)
    value = left * right
    assert value == pytest.approx(2**29, rel=2**-11)
    assert summed(NETWORK, ONE, ZERO, [0], 0.5).tolist() == [-value, value, -value, value]
    # What is shorter than the clip stays as it is: ½ is an eighth of 4, and x is 3 for the weights.
    three = Records(np.full((1, 1), 3, np.float32), ONE.y)
    right = int(2**16 * AIM * 0.5 * 10**0.5 / 4)
    weight, bias = int(2**14 * 3 / 10**0.5) * right, int(2**14 / 10**0.5) * right
    assert bias == pytest.approx(2**27, rel=2**-11)
    assert summed(NETWORK, three, ZERO, [0], 4.0).tolist() == [-weight, weight, -bias, bias]


def test_a_step_is_the_sum_over_the_public_batch_and_only_that():
    """The same noise with the record and without: the difference is its clipped gradient."""
    entry = METHODS["dp_sgd"]
    device = entry.device(entry.made(rounds=3, **DP_SGD), CONTEXT)
    found = []
    for records in (ONE, NONE):
        noise = SeededRandom(5)
        # one byte alone is the record's place, or the signs of few values
        random = lambda n, noise=noise: bytes(n) if n <= 1 else noise(n)  # noqa: E731
        answer = device.answer(ROUND, ZERO, records, random, "cpu")
        found.append(answer.segments["output.bias"].astype(float))
    by_hand = 0.4 * 0.5 * 0.5 * AIM / 8  # -η·C·(∓½)/(1.0·8)
    np.testing.assert_allclose(found[0] - found[1], [by_hand, -by_hand], atol=1e-6)


def some(n):
    rng = np.random.default_rng(n)
    x = (rng.normal(size=(n, 6)) * 10.0 ** rng.integers(-3, 4, (n, 1))).astype(np.float32)
    return Records(x, rng.integers(0, 3, n))


def test_the_sum_is_that_of_its_records_bit_by_bit_and_none_is_longer_than_the_clip():
    network = dense((40,))
    weights, records = network.initial(), some(50)
    places = np.random.default_rng(0).integers(0, 16, 50).tolist()
    alone = [summed(network, records, weights, [i], 0.7, places) for i in range(50)]
    lengths = [int((part**2).sum()) for part in alone]
    assert max(lengths) <= 1 << 60
    assert sum(length > 0 for length in lengths) > 25  # the others are right without a doubt
    everyone = summed(network, records, weights, range(50), 0.7, places)
    np.testing.assert_array_equal(everyone, np.sum(alone, axis=0))
    without = [i for i in range(50) if i != 17]
    np.testing.assert_array_equal(
        everyone - summed(network, records, weights, without, 0.7, places), alone[17]
    )


def test_a_gradient_that_is_no_number_counts_nothing_and_harms_nobody():
    network, records = dense((4,)), some(3)
    records.x[1] = 3e38
    both = summed(network, records, network.initial(), [0, 1, 2], 1.0, [0, 1, 2])
    sound = summed(network, records, network.initial(), [0, 2], 1.0, [0, 1, 2])
    assert int(((both - sound) ** 2).sum()) <= 1 << 60
    rows = [torch.tensor([[np.nan, 1.0], [np.inf, 0.0], [0.0, 2.0]])]
    there = torch.tensor([True, True, True])
    assert to_steps(rows, there, 1.0)[0].tolist() == [[0, 0], [0, 0], [0, 65520]]


@pytest.mark.parametrize("size", [1, 1023, 1024, 5000])
def test_no_product_of_factors_is_longer_than_the_clip_whatever_their_size_and_scale(size):
    rng = np.random.default_rng(size)
    left, right = (
        torch.as_tensor(
            (rng.standard_t(2, (64, n)) * 10.0 ** rng.integers(-8, 8, (64, 1))).astype(np.float32)
        )
        for n in (size, 7)
    )
    beside = right * left.norm(dim=1, keepdim=True)
    parts = to_steps([(left, right), beside], torch.ones(64) > 0, 3.0)
    whole = [part.to(torch.int64) for part in (*parts[0], parts[1] * 2.0**14)]
    squares = [[sum(int(v) ** 2 for v in row) for row in one] for one in whole]
    lengths = [a * b + c for a, b, c in zip(*squares, strict=True)]
    assert max(lengths) <= 1 << 60
    assert max(lengths) > 0.99 * 2**60
    sums = _exact_sum(parts, slice(None))
    exact = whole[0].T.numpy().astype(object) @ whole[1].numpy().astype(object)
    assert sums.tolist() == [*exact.ravel().tolist(), *whole[2].sum(0).tolist()]


@pytest.mark.parametrize("size", [1, 1023, 1024, 5000])
def test_no_row_is_longer_than_the_clip_whatever_its_size_and_scale(size):
    rng = np.random.default_rng(size)
    rows = torch.as_tensor(
        (rng.standard_t(2, (64, size)) * 10.0 ** rng.integers(-8, 8, (64, 1))).astype(np.float32)
    )
    whole = torch.cat(to_steps([rows, rows[:, : size // 2]], torch.ones(64) > 0, 3.0), 1)
    squares = (whole.double() ** 2).sum(1)
    assert float(squares.max()) <= 2.0**32
    assert float(squares.max()) > 0.99 * 2.0**32


def test_all_steps_of_all_rounds_cost_what_the_job_asks():
    event = DpSgd(DpSgdParameters(rounds=9, local_steps=7), CONTEXT).event
    assert (event.steps, event.event.coordinates, event.unit) == (7, 4, "record")
    assert 3.9 < epsilon([event] * 3, 1e-5).epsilon <= 4.0  # of 3 participations


def test_output_perturbation_noises_the_trained_weights_and_claims_the_budget():
    entry = METHODS["output_perturbation"]
    parameters = entry.made(rounds=3, learning_rate=1e-9, sensitivity=0.5)
    wide = dense((100,), 1, 2)
    device = entry.device(parameters, replace(CONTEXT, network=wide))
    (event,) = device.price(ROUND)
    assert isinstance(event, ClaimedEvent)
    assert event.unit == "record"
    assert event.claimed_epsilon == pytest.approx(4.0 / 3)
    found = device.answer(ROUND, wide.initial(), ONE, SeededRandom(1), "cpu").segments
    noise = np.concatenate([array.ravel() for array in found.values()]).astype(float)
    # Gaussian DP: (4, 10⁻⁵) is μ = 0.9249 (δ(ε) of Balle and Wang), of three rounds μ/√3 each.
    assert np.std(noise) == pytest.approx(0.5 * 3**0.5 / 0.9249, rel=0.2)
