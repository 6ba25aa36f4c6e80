"""`autoencoder`: layers that give back what they are given, and the graph that scores by it."""

import numpy as np
import pytest
import torch

from edgeveil.data.records import Records
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import SCORE, OnnxModel
from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.dp_sgd import record_gradients
from edgeveil.parts.models import build_network
from edgeveil.parts.models.heads import bake, no_threshold
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context as method_context


def network(shape=(4,), **changes):
    return build_network(
        NetworkParameters(name="autoencoder", **{"hidden": (5,), "code": 2, **changes}), shape, 2
    )


def tensors(weights):
    return {name: torch.tensor(value) for name, value in weights.items()}


def records():
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    return Records(x, np.zeros(40, np.int64))


def test_it_narrows_and_widens_in_turn():
    shapes = [one.shape for one in network(hidden=(7, 5)).weights if len(one.shape) == 2]
    assert shapes == [(4, 7), (7, 5), (5, 2), (2, 5), (5, 7), (7, 4)]


def test_one_record_by_hand():
    """Without hidden layers, code and output by hand: (3, 1) comes back as (4, 0)."""
    net = network((2,), hidden=(), code=1, input_scale=2.0)
    weights = {
        "code.weight": np.array([[1], [1]], np.float32),  # (3 + 1)/2 = 2
        "code.bias": np.zeros(1, np.float32),
        "output.weight": np.array([[1, 0]], np.float32),
        "output.bias": np.zeros(2, np.float32),
    }
    given = torch.tensor([[3.0, 1.0]])  # (1.5, 0.5) as the network takes it, given back as (2, 0)
    loss = net.loss(tensors(weights), given, torch.tensor([0]))
    assert float(loss) == pytest.approx((0.5**2 + 0.5**2) / 2)
    onnx = OnnxModel(bake(net.graph(), {**weights, "threshold": np.array([0.5], np.float32)}))
    assert onnx.answers(given.numpy(), {})[0, 0] == pytest.approx(0.5)  # 0.25 / 0.5


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_its_graph_scores_as_its_loss(mapped, shape):
    features = build_features([IdentityParameters(norm="bounded")])
    net = network((4,) if mapped else shape)
    graph = net.graph((features, shape) if mapped else None)
    check_graph(graph)
    x = records().x.reshape(-1, *shape)
    weights = net.initial()
    model = OnnxModel(bake(graph, {**weights, **no_threshold()}))
    found = model.answers(x, {})
    assert model.output == SCORE
    assert found.shape == (40, 1)
    given = torch.tensor(features(x).astype(np.float32) if mapped else x)
    for k in range(40):
        loss = net.loss(tensors(weights), given[k : k + 1], torch.tensor([0]))
        assert found[k, 0] == pytest.approx(float(loss), rel=1e-4)
    unusable = np.full((1, *shape), np.nan, np.float32)
    assert not np.isfinite(model.answers(unusable, {})).any()


def test_labels_take_no_part_in_a_gradient():
    net = network()
    x, weights, of = torch.tensor(records().x), tensors(net.initial()), record_gradients(net)
    zeros, ones = (of(weights, x, torch.full((40,), k)) for k in (0, 1))
    live = {name: value.clone().requires_grad_() for name, value in weights.items()}
    net.loss(live, x, torch.zeros(40)).backward()
    for name in weights:
        assert torch.equal(zeros[name], ones[name])
        assert torch.allclose(zeros[name].mean(0), live[name].grad, atol=1e-5)


def trained(given):
    net, part = network(), METHODS["sgd"]
    context = method_context(classes=2, nominal_records=40, devices=1, network=net, anomaly=True)
    device = part.device(part.made(rounds=3, local_epochs=3), context)
    round = PlannedRound(1, TRAIN, 1)
    return device.answer(round, net.initial(), given, SeededRandom(3), "cpu").segments


def test_it_learns_of_what_is_not_said_to_be_anomalous():
    x = records().x
    whole = Records(x, np.array([0] * 20 + [1] * 10 + [-2] * 10))
    part = Records(x[:20], np.full(20, -1))  # the same without any label
    first, second = trained(whole), trained(part)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
        assert np.abs(value).max() > 0
