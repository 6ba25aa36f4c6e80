"""pso_dp_sgd, gep and rgp: what a record adds to their noised sums, and the way back, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.dp_sgd import (
    Carriers,
    Embedding,
    NoisedSums,
    RecordSums,
    anchors,
    carriers,
    record_gradients,
    seen_size,
)
from edgeveil.parts.methods.pso import PARTICLES, PsoDpSgd, losses_under
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.update import Task, flat
from edgeveil.privacy.events import ClaimedEvent
from edgeveil.privacy.gaussian_mechanism import sampled_gaussian_event
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.softmax_regression import NETWORK, ONE, ROUND, SETTING, ZERO

CHANCE = np.random.default_rng(3)


def task(records=ONE, network=NETWORK, weights=ZERO):
    return Task(ROUND, network, weights, records, {}, SeededRandom(1), "cpu")


def test_carriers_see_a_gradient_as_by_hand():
    view = Carriers([np.zeros((3, 3)), np.zeros(1)], rank=1, norm=1.0)
    view._pairs[0] = (np.array([[1.0], [0], [0]]), np.array([[1.0, 0, 0]]))
    gradient = torch.arange(1.0, 10.0)[None]
    left, right, other = view.seen([gradient, torch.tensor([[7.0]])])
    assert left.tolist() == [[1, 4, 7]] and right.tolist() == [[1, 2, 3]]
    assert other.tolist() == [[7]]
    # The first row and the first column are seen, nothing else.
    back = view.back(np.array([1.0, 4, 7, 1, 2, 3, 7]))
    assert back.tolist() == [1, 2, 3, 4, 0, 0, 7, 0, 0, 7]


def test_carriers_are_the_directions_of_what_has_changed():
    change = np.outer([3.0, 0, 4, 0], [0, 1.0, 0, 0, 0])
    left, right = carriers(change, 1)
    np.testing.assert_allclose(np.abs(left.ravel()), [0.6, 0, 0.8, 0], atol=1e-12)
    np.testing.assert_allclose(np.abs(right), [[0, 1, 0, 0, 0]], atol=1e-12)
    left, right = carriers(np.zeros((8, 9)), 2)
    np.testing.assert_allclose(left.T @ left, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(right @ right.T, np.eye(2), atol=1e-12)


def test_a_gradient_within_the_carriers_comes_back_whole():
    change = CHANCE.normal(size=(6, 2)) @ CHANCE.normal(size=(2, 7))
    view = Carriers([change], rank=2, norm=1.0)
    seen = view.seen([torch.tensor(change.reshape(1, -1))])
    total = np.concatenate([part[0].numpy() for part in seen])
    assert total.size == seen_size([(6, 7)], 2) == 26
    np.testing.assert_allclose(view.back(total), change.ravel(), atol=1e-10)


def test_a_weight_that_carriers_would_not_make_smaller_is_seen_as_it_is():
    assert carriers(np.ones((2, 2)), 1) is None
    assert seen_size([(2, 2), (5,)], 1) == 9


def test_embedding_and_rest_are_clipped_apart_as_by_hand():
    view = Embedding(torch.tensor([[2.0, 0, 0]]), subspace=1, clip_norm=2.0, residual_clip=1.0)
    gradients = [torch.tensor([[6.0], [1.0]]), torch.tensor([[0.0, 0.5], [3.0, 4.0]])]
    inside, rest = view.seen(gradients)
    sign = float(view.basis[0, 0])
    half = 1 / math.sqrt(2)
    np.testing.assert_allclose(inside * sign, [[half], [half / 2]], rtol=1e-6)
    np.testing.assert_allclose(rest, [[0, 0, half / 2], [0, half * 0.6, half * 0.8]], rtol=1e-6)
    back = view.back(np.concatenate([inside[1].numpy(), rest[1].numpy()]).astype(float))
    np.testing.assert_allclose(back, [1.0, 0.6, 0.8], rtol=1e-6)


def test_the_subspace_is_the_same_for_everyone():
    weights = {name: torch.tensor(value) for name, value in ZERO.items()}
    first, again = anchors(NETWORK, weights, 8), anchors(NETWORK, weights, 8)
    assert first.shape == (8, 6) and torch.equal(first, again) and bool(first.any())


def test_losses_are_cut_and_centred_as_by_hand():
    sure = flat({**ZERO, "output.bias": np.array([0.0, 9.0], np.float32)})
    broken = np.full(6, np.nan)
    losses = losses_under(task(), np.array([flat(ZERO), sure, broken]), "cpu")
    (rows,) = losses(torch.tensor(ONE.x), torch.tensor(ONE.y))
    np.testing.assert_allclose(rows, [[math.log(2) - 2, 2, 2]], atol=1e-6)


class Quiet(NoisedSums):
    """Sums without sampling and noise."""

    def draw(self, rows, norm):
        everyone = np.arange(self._count)
        return self._sums.total(rows, everyone, norm) * (norm * 2.0**-16)


def test_the_swarm_takes_the_steps_of_its_best_particle():
    parameters = METHODS["pso_dp_sgd"].made(
        local_steps=1, search="adaptive", sampling_rate=1.0, clip_norm=2.0
    )
    trainer = PsoDpSgd(parameters, replace(SETTING, nominal_records=1))
    event = sampled_gaussian_event("x", 1.0, 1, 1 << 30, 6, grid_bits=30)
    best = trainer.search(task(), ZERO, Quiet(task(), event))
    by_hand = 0.0  # the bias of the first class, two steps of rate ½; z is the logit difference
    for _ in range(2):
        z = 12 * by_hand  # weights are (1, 2) times the bias, the other class the negative
        by_hand += 0.5 / (1 + math.exp(z))
    np.testing.assert_allclose(best, by_hand * np.array([1, -1, 2, -2, 1, -1]), rtol=2e-3)


def test_a_choice_by_exact_losses_is_claimed():
    (event,) = PsoDpSgd(METHODS["pso_dp_sgd"].made(selection="unpriced"), SETTING).price(ROUND)
    assert isinstance(event, ClaimedEvent) and event.claimed_epsilon * 2 <= SETTING.epsilon


def test_the_price_counts_every_particles_steps_and_the_losses():
    parameters = METHODS["pso_dp_sgd"].made(local_steps=4)
    (event,) = PsoDpSgd(parameters, SETTING).price(ROUND)
    assert event.steps == 2 * (PARTICLES * 4 + 1) and event.sampling_probability == 0.1


def test_more_values_than_were_priced_are_not_drawn():
    sums = NoisedSums(task(), sampled_gaussian_event("x", 1.0, 1, 1 << 30, 1, grid_bits=30))
    with pytest.raises(PrivacyError, match="more than was priced"):
        sums.draw(lambda x, y: [torch.zeros(len(x), 2)], 1.0)


WIDE = build_network(NetworkParameters(hidden=(8,)), (6,), 3)
FIRST = WIDE.initial()
FORTY = Records(
    (CHANCE.normal(size=(40, 6)) * 10.0 ** CHANCE.integers(-3, 4, (40, 1))).astype(np.float32),
    CHANCE.integers(0, 3, 40),
)


def rows_of(name):
    weights = {key: torch.tensor(value) for key, value in FIRST.items()}
    if name == "losses":
        places = np.stack([flat(FIRST), 2 * flat(FIRST)])
        return losses_under(task(FORTY, WIDE, FIRST), places, "cpu"), 2 * math.sqrt(2)
    views = {
        "gep": Embedding(anchors(WIDE, weights, 8), 4, 0.7, 0.1),
        "rgp": Carriers(list(FIRST.values()), 1, 0.7),
    }
    view, gradients = views[name], record_gradients(WIDE)

    def rows(x, y):
        found = gradients(weights, x, y)
        return view.seen([found[key].flatten(1) for key in weights])

    return rows, view.norm


@pytest.mark.parametrize("name", ["losses", "gep", "rgp"])
def test_a_record_moves_the_sum_by_its_own_part_alone_and_no_further_than_the_clip(name):
    rows, norm = rows_of(name)
    places = CHANCE.integers(0, 16, 40).astype(np.uint8)

    def total(chosen):
        sums = RecordSums(FORTY, "cpu", lambda count: places[chosen].tobytes())
        return sums.total(rows, np.array(chosen), norm)

    everyone = total(list(range(40)))
    for left_out in range(0, 40, 7):
        moved = everyone - total([k for k in range(40) if k != left_out])
        np.testing.assert_array_equal(moved, total([left_out]))
        assert 0 < int((moved**2).sum()) <= 1 << 32
