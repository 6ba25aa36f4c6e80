"""pso_dp_sgd by hand; and what a record adds to a noised sum is its own, whatever the model."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.dp_sgd import NoisedSums, record_gradients
from edgeveil.parts.methods.pso import PARTICLES, PsoDpSgd, losses_under
from edgeveil.parts.models import Network, build_network
from edgeveil.parts.models.layers import Dense
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.stage import Task, flat
from edgeveil.privacy.events import ClaimedEvent
from edgeveil.privacy.gaussian_mechanism import sampled_gaussian_event
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.softmax_regression import CONTEXT, NETWORK, ONE, ROUND, ZERO

CHANCE = np.random.default_rng(3)


def task(records=ONE, network=NETWORK, weights=ZERO):
    return Task(ROUND, network, weights, records, {}, SeededRandom(1), "cpu")


def test_losses_are_cut_and_centred_as_by_hand():
    sure = flat({**ZERO, "output.bias": np.array([0.0, 9.0], np.float32)})
    broken = np.full(6, np.nan)
    losses = losses_under(task(), np.array([flat(ZERO), sure, broken]), "cpu")
    (rows,) = losses(torch.tensor(ONE.x), torch.tensor(ONE.y))
    np.testing.assert_allclose(rows, [[math.log(2) - 2, 2, 2]], atol=1e-6)


class Quiet(NoisedSums):
    """Sums without sampling and noise."""

    def draw(self, rows, norm):
        return self.total(rows, np.arange(self.count), norm) * (norm * 2.0**-16)


def test_the_swarm_takes_the_steps_of_its_best_particle():
    parameters = METHODS["pso_dp_sgd"].made(
        local_steps=1, search="adaptive", sampling_rate=1.0, clip_norm=2.0
    )
    trainer = PsoDpSgd(parameters, replace(CONTEXT, nominal_records=1))
    event = sampled_gaussian_event("x", 1.0, 1, 1 << 30, 6, grid_bits=30)
    best = trainer.search(task(), ZERO, Quiet(task(), event))
    by_hand = 0.0  # the bias of the first class, two steps of rate ½; z is the logit difference
    for _ in range(2):
        z = 12 * by_hand  # weights are (1, 2) times the bias, the other class the negative
        by_hand += 0.5 / (1 + math.exp(z))
    np.testing.assert_allclose(best, by_hand * np.array([1, -1, 2, -2, 1, -1]), rtol=2e-3)


def test_a_choice_by_exact_losses_is_claimed():
    (event,) = PsoDpSgd(METHODS["pso_dp_sgd"].made(selection="unpriced"), CONTEXT).price(ROUND)
    assert isinstance(event, ClaimedEvent) and event.claimed_epsilon * 2 <= CONTEXT.epsilon


def test_the_price_counts_every_particles_steps_and_the_losses():
    parameters = METHODS["pso_dp_sgd"].made(local_steps=4)
    (event,) = PsoDpSgd(parameters, CONTEXT).price(ROUND)
    assert event.steps == 2 * (PARTICLES * 4 + 1) and event.sampling_probability == 0.1


def test_more_values_than_were_priced_are_not_drawn():
    sums = NoisedSums(task(), sampled_gaussian_event("x", 1.0, 1, 1 << 30, 1, grid_bits=30))
    with pytest.raises(PrivacyError):
        sums.draw(lambda x, y: [torch.zeros(len(x), 2)], 1.0)


@dataclass(frozen=True)
class Mixing(Dense):
    """A dense layer that takes the batch's mean away first, as a user's own model could."""

    def apply(self, weights, name, x):
        return super().apply(weights, name, x - x.mean(0))


@pytest.mark.parametrize(
    ("name", "shape"), [("cnn", (28, 28)), ("lenet", (28, 28)), ("resnet20", (3, 8, 8))]
)
def test_a_gradient_follows_from_its_own_place_bit_by_bit(name, shape):
    network = build_network(NetworkParameters(name=name), shape, 10)
    weights = {name: torch.as_tensor(value) for name, value in network.initial().items()}
    x = torch.as_tensor(CHANCE.normal(size=(16, *shape)).astype(np.float32))
    y, gradients = torch.as_tensor(CHANCE.integers(0, 10, 16)), record_gradients(network)
    first = gradients(weights, x, y)
    for others in (3e38, math.nan):
        x[torch.arange(16) != 5] = others
        again = gradients(weights, x, y)
        assert all(torch.equal(first[name][5], again[name][5]) for name in weights)


def test_a_loss_follows_from_its_own_record_though_the_model_mixes_batches():
    network = Network((("output", Mixing(2)),), (2,), 2)
    first = flat(network.initial())
    start = {name: np.ones_like(value) for name, value in network.initial().items()}
    rows = losses_under(task(network=network, weights=start), np.stack([first, 2 * first]), "cpu")
    x, y = torch.ones(16, 2), torch.zeros(16, dtype=torch.int64)
    found = rows(x, y)[0][5]
    x[torch.arange(16) != 5] = 100.0
    assert torch.equal(rows(x, y)[0][5], found)


WIDE = build_network(NetworkParameters(hidden=(8,)), (6,), 3)
FIRST = WIDE.initial()
FORTY = Records(
    (CHANCE.normal(size=(40, 6)) * 10.0 ** CHANCE.integers(-3, 4, (40, 1))).astype(np.float32),
    CHANCE.integers(0, 3, 40),
)


def test_a_record_moves_the_sum_by_its_own_part_alone_and_no_further_than_the_clip():
    places = np.stack([flat(FIRST), 2 * flat(FIRST)])
    rows, norm = losses_under(task(FORTY, WIDE, FIRST), places, "cpu"), 2 * math.sqrt(2)
    drawn = CHANCE.integers(0, 16, 40).astype(np.uint8)

    def total(chosen):
        random = lambda count: drawn[chosen].tobytes()  # noqa: E731
        return NoisedSums(replace(task(FORTY), random_bytes=random), None).total(
            rows, np.array(chosen), norm
        )

    everyone = total(list(range(40)))
    for left_out in range(0, 40, 7):
        moved = everyone - total([k for k in range(40) if k != left_out])
        np.testing.assert_array_equal(moved, total([left_out]))
        assert 0 < int((moved**2).sum()) <= 1 << 32
