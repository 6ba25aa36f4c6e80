"""What a record adds to a noised sum is its own, whatever lies beside it and whatever the model."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from edgeveil.data.records import Records
from edgeveil.parts.methods.dp_sgd import record_gradients
from edgeveil.parts.methods.pso import losses_under
from edgeveil.parts.models import Network, build_network
from edgeveil.parts.models.layers import Dense
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.stage import Task, flat
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.softmax_regression import ROUND

PLACES = 16


@dataclass(frozen=True)
class Mixing(Dense):
    """A dense layer that takes the batch's mean away first, as a user's own model could."""

    def apply(self, weights, name, x):
        return super().apply(weights, name, x - x.mean(0))


@pytest.mark.parametrize(
    ("parameters", "shape"),
    [
        (NetworkParameters(name="cnn"), (28, 28)),
        (NetworkParameters(name="lenet"), (28, 28)),
        (NetworkParameters(name="resnet20"), (3, 8, 8)),
    ],
)
def test_a_gradient_follows_from_its_own_place_bit_by_bit(parameters, shape):
    network = build_network(parameters, shape, 10)
    weights = {name: torch.as_tensor(value) for name, value in network.initial().items()}
    chance = np.random.default_rng(1)
    x = torch.as_tensor(chance.normal(size=(PLACES, *shape)).astype(np.float32))
    y = torch.as_tensor(chance.integers(0, 10, PLACES))
    gradients = record_gradients(network)
    first = gradients(weights, x, y)
    others = torch.arange(PLACES) != 5
    for beside in (3e38, math.nan):
        x[others] = beside
        again = gradients(weights, x, y)
        for name in weights:
            assert torch.equal(first[name][5], again[name][5])


def test_a_loss_follows_from_its_own_record_though_the_model_mixes_batches():
    network = Network((("output", Mixing(2)),), (2,), 2)
    records = Records(np.ones((1, 2), np.float32), np.zeros(1, np.int64))
    weights = {name: np.ones_like(value) for name, value in network.initial().items()}
    task = Task(ROUND, network, weights, records, {}, SeededRandom(1), "cpu")
    places = np.array([flat(network.initial()), 2 * flat(network.initial())])
    rows = losses_under(task, places, "cpu")
    x, y = torch.ones(PLACES, 2), torch.zeros(PLACES, dtype=torch.int64)
    first = rows(x, y)[0][5]
    x[torch.arange(PLACES) != 5] = 100.0
    assert torch.equal(rows(x, y)[0][5], first)
