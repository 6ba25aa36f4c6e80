"""Swarms by hand: on a quadratic, and as a device's training with noise on the whole update."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.parts.methods import METHODS, pso
from edgeveil.parts.methods.pso import PsoDpFl, Swarm, mean_loss
from edgeveil.parts.methods.sgd import SgdParameters
from edgeveil.parts.stage import Task, flat
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import GaussianEvent
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.softmax_regression import CONTEXT, NETWORK, ONE, ROUND, ZERO, answer

START = np.array([4.0, -2.0])
LOUD = replace(CONTEXT, epsilon=30.0, delta=0.1, max_participations=1)  # hardly any noise


def drawn(*uniforms):
    """Random bytes whose uniforms in [0, 1) are these, in this order."""
    words = iter([int(u * 2**64) for u in uniforms])
    return lambda count: struct.pack(f"<{count // 8}Q", *(next(words) for _ in range(count // 8)))


def quadratic(positions):
    return (positions**2).sum(axis=1) / 2


def trained(positions):
    """A gradient step of ½‖p‖² with rate ¼."""
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


def test_an_adaptive_particle_goes_on_from_its_own_best(monkeypatch):
    monkeypatch.setattr(pso, "PARTICLES", 2)
    swarm = Swarm(START, drawn(), adaptive=True)
    swarm.move()
    np.testing.assert_array_equal(swarm.positions, [START, START])
    swarm.positions = np.array([[3.0, 0.0], [2.0, 0.0]])
    swarm.judge(quadratic(swarm.positions))
    swarm.positions = np.array([[1.0, 0.0], [5.0, 0.0]])
    swarm.judge(quadratic(swarm.positions))
    swarm.move()
    np.testing.assert_array_equal(swarm.positions, [[1.0, 0.0], [2.0, 0.0]])
    np.testing.assert_array_equal(swarm.best, [1.0, 0.0])


def task(records=ONE):
    return Task(ROUND, NETWORK, ZERO, records, {}, SeededRandom(1), "cpu")


def test_the_fitness_is_the_mean_loss_of_all_records():
    weights = {**ZERO, "output.bias": np.array([1.0, 0.0], np.float32)}
    both = Records(np.zeros((2, 2), np.float32), np.array([0, 1]))
    p = np.e / (1 + np.e)
    assert mean_loss(task(both), flat(weights)) == pytest.approx(
        -(np.log(p) + np.log(1 - p)) / 2, abs=1e-6
    )


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
