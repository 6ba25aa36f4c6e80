"""Every built-in model: its size, its gradients, and a graph that gives what torch gives."""

import math

import numpy as np
import pytest
import torch

from edgeveil.data.records import Records
from edgeveil.errors import DataError
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
    "cnn_tanh": 16 * 65 + 32 * (16 * 16 + 1) + 513 * 32 + 330,
    "lenet": 61_706,
    "alexnet": 2_250_432 + 257 * 1024 + 1025 * 1024 + 1025 * 10,  # convolutions, dense
    "resnet20": 269_434,
    "resnet18": 701_178,
    "mobilenet_v3_small": 409_250,
    "ds_cnn": 64 * 40 + 4 * 64 * (9 + 64) + 9 * 128 + 65 * 10,
    # Over 28 steps of 28 columns: those to 32 values a step, the layers, and the output.
    "gru": 29 * 32 + 2 * 96 * 33 + 330,
    "tcn": 29 * 32 + 3 * (2 * 3 * 32**2 + 4 * 32) + 330,
    "transformer": 29 * 32
    + 28 * 32  # positions
    + 2 * (4 * 32 + 33 * 96 + 33 * 32 + 33 * 64 + 65 * 32)
    + 2 * 32
    + 330,
}
PUBLISHED = {"resnet18": 11_173_962, "mobilenet_v3_small": 1_528_106}  # 3×32×32, ten classes
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
    for name, size in PUBLISHED.items():
        net = build_network(MODELS[name].made(channel_multiplier=1), (3, 32, 32), 10)
        assert sum(math.prod(w.shape) for w in net.weights) == size


@pytest.mark.parametrize("name", NAMES)
def test_onnx_runtime_and_torch_agree_and_devices_accept_the_graph(name):
    agree(network(name))


@pytest.mark.parametrize(("name", "gain"), [("cnn", 2), ("cnn_tanh", 1)])
def test_the_first_weights_vary_as_their_activation_needs(name, gain):
    weights = network(name).initial()
    varies = {"conv2": weights["conv2.weight"][0].size, "output": len(weights["output.weight"])}
    for layer, fan_in in varies.items():
        found = weights[f"{layer}.weight"].var() * fan_in / gain
        assert 0.8 < found < 1.25, layer


def test_so_they_do_with_odd_sides_and_a_padded_pool():
    for name in ("resnet20", "ds_cnn", "mobilenet_v3_small"):
        agree(network(name, (1, 13, 9)))
    for name in ("resnet18", "mobilenet_v3_small"):  # of a published size, made smaller first
        agree(network(name, (3, 70, 64), channel_multiplier=0.1), 2)
    pool = MaxPool(Window(3, stride=2, padding=1))
    layers = {"picture": Picture(), "pool": pool, "flat": Flatten(), "output": Dense(3)}
    agree(Network(tuple(layers.items()), (7, 5), 3))


NUMBERS = [[np.nan, 3, 1], [np.inf, -np.inf, 1e30], [-1, 9, 8], [0.4, 2.6, 1e-40], [0, 0, 0]]


@pytest.mark.parametrize("name", ["gru", "tcn", "transformer"])
def test_tokens_beyond_the_vocabulary_and_records_of_padding_have_an_answer(name):
    net = build_network(MODELS[name].made(tokens=9, width=8), (3,), 4)
    weights, _ = drawn(net, 1)
    x, known = np.array(NUMBERS, np.float32), np.array(NUMBERS, np.float32)
    known[:2], known[2] = [[0, 3, 1], [8, 0, 8]], [0, 8, 8]
    known[3] = [0, 3, 0]
    live = {one: torch.tensor(value, requires_grad=True) for one, value in weights.items()}
    model = OnnxModel(net.graph())
    found = model.probabilities(x, weights)
    np.testing.assert_allclose(
        found, net.logits(live, torch.tensor(x)).softmax(1).detach(), atol=1e-6
    )
    assert np.array_equal(found, model.probabilities(known, weights))
    loss = net.loss(live, torch.tensor(x), torch.arange(5) % 4)
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(loss, list(live.values())))
    alone = np.concatenate([model.probabilities(x[k : k + 1], weights) for k in range(5)])
    np.testing.assert_allclose(alone, found, atol=1e-6)
    longer = build_network(MODELS[name].made(tokens=9, width=8), (7,), 4)
    if name == "gru":  # padding after a text changes nothing
        padded = np.pad(known, ((0, 0), (0, 4)))
        more = OnnxModel(longer.graph()).probabilities(padded, weights)
        np.testing.assert_allclose(more, found, atol=1e-6)


@pytest.mark.parametrize(
    ("block", "shape", "where"),
    [
        ({"name": "gru", "tokens": 9, "input_scale": 2}, (3,), "model.input_scale"),
        ({"name": "gru", "depth": 2}, (129, 1), "model.depth"),
        ({"name": "tcn", "tokens": 9}, (3, 2), ""),
        ({"name": "transformer"}, (3, 2, 2), ""),
        ({"name": "tcn"}, (1025,), ""),
    ],
)
def test_records_that_do_not_fit_a_network_over_time_are_refused(block, shape, where):
    with pytest.raises(DataError) as error:
        build_network(MODELS[block["name"]].parameters(**block), shape, 3)
    assert error.value.where == where


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
