"""Every built-in model: its size, its gradients, and a graph that gives what torch gives."""

import math

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

from edgeveil.data.records import Records
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import SCORE, OnnxModel
from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.dp_sgd import record_gradients
from edgeveil.parts.models import MODELS, build_network
from edgeveil.parts.models.heads import bake, no_threshold
from edgeveil.parts.models.layers import Dense, Flatten, MaxPool, Picture, Window
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.models.network import Network
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context as method_context

# Weights on 28×28 records of 10 classes, by hand: (outputs of a layer) × (its inputs + 1), summed.
# LeNet-5: 61,706, as in its usual form; ResNet-20 on 3×32×32: 0.27 M (He et al. 2016, table 6).
SIZES = {
    "mlp": 784 * 128 + 128 + 128 * 10 + 10,
    "mlp_300_100": 266_610,
    "cnn": 32 * 10 + 64 * (32 * 9 + 1) + 64 * 49 * 10 + 10,
    "lenet": 61_706,
    "alexnet": 2_250_432 + 257 * 1024 + 1025 * 1024 + 1025 * 10,  # convolutions, dense
    "resnet20": 269_434,
}
NAMES = tuple(  # of classes; of `python` users bring the modules
    name for name in MODELS if name != "python" and not MODELS[name].anomaly
)
PICTURES = {"alexnet": (3, 32, 32), "resnet20": (3, 16, 16)}


def network(name, shape=None, **options):
    return build_network(
        MODELS[name].made(input_scale=4, **options), shape or PICTURES.get(name, (28, 28)), 10
    )


def drawn(net, count):
    """Weights near the first ones, none of them 0; and records."""
    chance = np.random.default_rng(0)
    weights = {
        name: array + 0.05 * chance.standard_normal(array.shape).astype(np.float32)
        for name, array in net.initial().items()
    }
    return weights, chance.uniform(-4, 4, (count, *net.input_shape)).astype(np.float32)


def agree(net, count=5):
    weights, x = drawn(net, count)
    graph = net.graph()
    check_graph(graph)
    model = OnnxModel(graph)
    assert model.weight_names == set(weights)
    tensors = {name: torch.as_tensor(array) for name, array in weights.items()}
    wanted = net.logits(tensors, torch.as_tensor(x)).softmax(1).numpy()
    np.testing.assert_allclose(model.probabilities(x, weights), wanted, atol=1e-5)
    assert model.probabilities(x[:0], weights).shape == (0, net.classes)


def test_every_models_weights_are_as_many_as_the_text_says():
    nets = {name: network(name, (28, 28)) for name in NAMES}
    found = {name: sum(math.prod(w.shape) for w in net.weights) for name, net in nets.items()}
    assert found == SIZES


@pytest.mark.parametrize("name", NAMES)
def test_onnx_runtime_and_torch_agree_and_devices_accept_the_graph(name):
    agree(network(name))


def test_so_they_do_with_odd_sides_and_a_padded_pool():
    agree(network("resnet20", (1, 13, 9)))
    pool = MaxPool(Window(3, stride=2, padding=1))
    layers = {"picture": Picture(), "pool": pool, "flat": Flatten(), "output": Dense(3)}
    agree(Network(tuple(layers.items()), (7, 5), 3))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "alexnet"])
def test_gradients_by_vmap_are_those_of_single_records(name):
    net = network(name)
    weights, x = drawn(net, 3)
    weights = {name: torch.as_tensor(array) for name, array in weights.items()}
    x, y = torch.as_tensor(x), torch.tensor([1, 0, 7])

    def loss(given, one, label):
        logits = net.logits(given, one[None])
        return torch.nn.functional.cross_entropy(logits, label[None])

    together = vmap(grad(loss), (None, 0, 0))(weights, x, y)
    for index in range(3):
        alone = {k: v.clone().requires_grad_() for k, v in weights.items()}
        loss(alone, x[index], y[index]).backward()
        for key, weight in alone.items():
            scale = float(weight.grad.abs().max()) + 1e-6
            torch.testing.assert_close(
                together[key][index], weight.grad, rtol=0, atol=1e-4 * scale, msg=key
            )


def autoencoder(shape=(4,), **changes):
    return build_network(
        NetworkParameters(name="autoencoder", **{"hidden": (5,), "code": 2, **changes}), shape, 2
    )


def tensors(weights):
    return {name: torch.tensor(value) for name, value in weights.items()}


def records():
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    return Records(x, np.zeros(40, np.int64))


def test_one_record_by_hand():
    """Without hidden layers, code and output by hand: (3, 1) comes back as (4, 0)."""
    net = autoencoder((2,), hidden=(), code=1, input_scale=2.0)
    weights = {
        "code.weight": np.array([[1], [1]], np.float32),  # (3 + 1)/2 = 2
        "code.bias": np.zeros(1, np.float32),
        "output.weight": np.array([[1, 0]], np.float32),
        "output.bias": np.zeros(2, np.float32),
    }
    given = torch.tensor([[3.0, 1.0]])  # taken as (1.5, 0.5), given back as (2, 0)
    loss = net.loss(tensors(weights), given, torch.tensor([0]))
    assert float(loss) == pytest.approx((0.5**2 + 0.5**2) / 2)
    onnx = OnnxModel(bake(net.graph(), {**weights, "threshold": np.array([0.5], np.float32)}))
    assert onnx.answers(given.numpy(), {})[0, 0] == pytest.approx(0.5)  # 0.25 / 0.5


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_its_graph_scores_as_its_loss(mapped, shape):
    features = build_features([IdentityParameters(norm="bounded")])
    net = autoencoder((4,) if mapped else shape)
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
    net = autoencoder()
    x, weights, of = torch.tensor(records().x), tensors(net.initial()), record_gradients(net)
    zeros, ones = (of(weights, x, torch.full((40,), k)) for k in (0, 1))
    live = {name: value.clone().requires_grad_() for name, value in weights.items()}
    net.loss(live, x, torch.zeros(40)).backward()
    for name in weights:
        assert torch.equal(zeros[name], ones[name])
        assert torch.allclose(zeros[name].mean(0), live[name].grad, atol=1e-5)


def trained(given):
    net, part = autoencoder(), METHODS["sgd"]
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
