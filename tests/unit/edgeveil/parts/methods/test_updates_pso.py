"""Swarms by hand, with noise on the update or on each step, and their records' own parts."""

import math
import struct
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil.parts.methods import METHODS, pso
from edgeveil.parts.methods.dp_sgd import NoisedSums, gradient_rows
from edgeveil.parts.methods.pso import PARTICLES, PsoDpFl, PsoDpSgd, Swarm, losses_under, mean_loss
from edgeveil.parts.methods.sgd import SgdParameters
from edgeveil.parts.models import Network, build_network
from edgeveil.parts.models.layers import Dense
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.stage import Task, flat
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import ClaimedEvent, GaussianEvent
from edgeveil.privacy.gaussian_mechanism import sampled_gaussian_event
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.softmax_regression import CONTEXT, NETWORK, ONE, ROUND, ZERO, answer

CHANCE = np.random.default_rng(3)


def task(records=ONE, network=NETWORK, weights=ZERO):
    return Task(ROUND, network, weights, records, {}, SeededRandom(1), "cpu")


def test_losses_are_cut_and_centred_as_by_hand():
    sure = flat({**ZERO, "output.bias": np.array([0.0, 9.0], np.float32)})
    broken = np.full(6, np.nan)
    block = METHODS["pso_dp_sgd"].made()
    losses = losses_under(task(), np.array([flat(ZERO), sure, broken]), "cpu", block)
    (rows,) = losses(torch.tensor(ONE.x), torch.tensor(ONE.y))
    np.testing.assert_allclose(rows, [[math.log(2) - 2, 2, 2]], atol=1e-6)


class Quiet(NoisedSums):
    """Sums without sampling and noise."""

    def draw(self, rows, norm):
        return self.total(rows, np.arange(self.count), norm) * (norm * 2.0**-30)


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
    ("name", "shape"),
    [("mlp", (784,)), ("cnn", (28, 28)), ("lenet", (28, 28)), ("resnet20", (3, 8, 8))],
)
def test_a_gradient_follows_from_its_own_place_bit_by_bit(name, shape):
    network = build_network(NetworkParameters(name=name), shape, 10)
    weights = {name: torch.as_tensor(value) for name, value in network.initial().items()}

    def own(parts):
        flat = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
        return [one[5].clone() for one in flat]

    x = torch.as_tensor(CHANCE.normal(size=(16, *shape)).astype(np.float32))
    y, rows = torch.as_tensor(CHANCE.integers(0, 10, 16)), gradient_rows(network, None, weights)
    first = own(rows(x, y))
    for others in (3e38, math.nan):
        x[torch.arange(16) != 5] = others
        assert all(map(torch.equal, first, own(rows(x, y))))


def test_a_loss_follows_from_its_own_record_though_the_model_mixes_batches():
    network = Network((("output", Mixing(2)),), (2,), 2)
    first = flat(network.initial())
    start = {name: np.ones_like(value) for name, value in network.initial().items()}
    positions, block = np.stack([first, 2 * first]), METHODS["pso_dp_sgd"].made()
    rows = losses_under(task(network=network, weights=start), positions, "cpu", block)
    x, y = torch.ones(16, 2), torch.zeros(16, dtype=torch.int64)
    found = rows(x, y)[0][5]
    x[torch.arange(16) != 5] = 100.0
    assert torch.equal(rows(x, y)[0][5], found)


START = np.array([4.0, -2.0])
LOUD = replace(CONTEXT, epsilon=30.0, delta=0.1, max_participations=1)  # hardly any noise


def drawn(*uniforms):
    """Random bytes whose uniforms in [0, 1) are these, in this order."""
    words = iter([int(u * 2**64) for u in uniforms])
    return lambda count: struct.pack(f"<{count // 8}Q", *(next(words) for _ in range(count // 8)))


def quadratic(positions):
    return (positions**2).sum(axis=1) / 2


def trained(positions):
    return positions - positions / 4


def test_two_particles_on_a_quadratic_move_as_by_hand(monkeypatch):
    monkeypatch.setattr(pso, "INERTIA", 0.5)
    monkeypatch.setattr(pso, "SPREAD", 0.8)
    monkeypatch.setattr(pso, "PARTICLES", 2)
    # First velocities (0.4, 0) and (-0.4, 0.4); pulls ½ and ¼ to the own bests, ¼ to the best.
    chance = drawn(0.75, 0.5, 0.25, 0.75, *[0.9] * 4, 0.5, 0.25, 0.25, 0.25)
    swarm = Swarm(START, chance)
    swarm.move()  # half the velocity: the bests are still the start
    np.testing.assert_allclose(swarm.positions, [[4.2, -2.0], [3.8, -1.8]])
    swarm.positions = trained(swarm.positions)
    swarm.judge(quadratic(swarm.positions))
    np.testing.assert_allclose(swarm.best, [2.85, -1.35])
    swarm.move()
    # v₁ = ½·(0.2, 0) + 0.5·0.5·((2.85, −1.35) − (3.15, −1.5)); p₂ is both bests: ½·(−0.2, 0.2).
    np.testing.assert_allclose(
        swarm.positions, [[3.15 + 0.1 - 0.075, -1.5 + 0.0375], [2.85 - 0.1, -1.35 + 0.1]]
    )


def test_the_fitness_is_the_mean_loss_of_all_records():
    weights = {**ZERO, "output.bias": np.array([1.0, 0.0], np.float32)}
    both = Records(np.zeros((2, 2), np.float32), np.array([0, 1]))
    p = np.e / (1 + np.e)
    for heavy in (1, 3):  # the loss that training follows chooses the best too
        block = METHODS["pso_dp_fl"].made(class_weights=(1, heavy))
        wanted = -(np.log(p) + heavy * np.log(1 - p)) / 2
        assert mean_loss(task(both), flat(weights), block) == pytest.approx(wanted, abs=1e-6)
        rows = losses_under(task(both), flat(weights)[None], "cpu", block)
        found = rows(torch.tensor(both.x), torch.tensor(both.y))[0].numpy() + 2
        assert found.mean() == pytest.approx(wanted, abs=1e-6)


def test_one_particle_that_does_not_move_is_plain_sgd(monkeypatch):
    monkeypatch.setattr(pso, "PARTICLES", 1)
    monkeypatch.setattr(pso, "SPREAD", 0.0)
    monkeypatch.setattr(pso, "INERTIA", 0.0)
    parameters = SgdParameters(method="pso_dp_fl", local_epochs=3)
    best = PsoDpFl(parameters, CONTEXT).search(task(), ZERO)
    plain = answer("sgd", local_epochs=3).segments
    np.testing.assert_allclose(best, flat(plain), atol=1e-6)


def test_the_whole_update_is_clipped_and_priced_once_for_the_device():
    sent = answer("pso_dp_fl", context=LOUD, clip_norm=0.5, learning_rate=50.0)
    assert np.linalg.norm(flat(sent.segments)) == pytest.approx(0.5, abs=0.3)  # not 50
    (event,) = sent.events
    assert isinstance(event, GaussianEvent) and event.unit == "device"
    assert event.sensitivity <= 0.5
    method = METHODS["pso_dp_fl"]
    (event,) = method.device(method.made(), CONTEXT).price(ROUND)
    total = epsilon([event] * CONTEXT.max_participations, CONTEXT.delta)
    assert total.proven and CONTEXT.epsilon * 0.99 < total.epsilon <= CONTEXT.epsilon
