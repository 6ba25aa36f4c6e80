"""Laws that every model and every layer keeps."""

import math

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.parts.models import MODELS, build_network
from edgeveil.parts.models.layers import Dense, Flatten, MaxPool, Picture, Thin, Window
from edgeveil.parts.models.network import Network

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


def test_a_thin_shortcut_by_hand():
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    found = Thin(2, 2).apply({}, "t", x)
    assert found.tolist() == [[[[0, 2], [6, 8]], [[0, 0], [0, 0]]]]
    assert Thin(2, 2).output_shape((1, 3, 3)) == (2, 2, 2)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if not name.startswith(("mlp", "low_rank"))]
)
@pytest.mark.parametrize("shape", [(64,), (2, 3, 8, 8)])
def test_records_that_are_no_pictures_are_refused(name, shape):
    with pytest.raises(DataError, match="are no pictures"):
        network(name, shape)
