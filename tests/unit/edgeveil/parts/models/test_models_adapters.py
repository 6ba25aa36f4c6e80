"""Low-rank adapters: what is trained, what travels, what stays as it is, and what is released."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from edgeveil.data.records import Records
from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.parts.methods import METHODS
from edgeveil.parts.models import MODELS, build_network
from edgeveil.parts.models.heads import bake
from edgeveil.parts.models.network import AdapterParameters
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.method_context import context as made_context

SHA = "0" * 64
FIRST = PlannedRound(1, TRAIN, 1)


def saved(base, seed=3):
    chance = np.random.default_rng(seed)
    drawn = {
        one.name: (0.1 * chance.standard_normal(one.shape[:: -1 if one.turned else 1]))
        for one in base.weights
    }
    return save({name: array.astype(np.float32) for name, array in drawn.items()})


def adapted(name="mlp", shape=(6,), classes=3, adapters=None, packed=True, **options):
    block = {"rank": 2, "alpha": 4.0, **(adapters or {})}
    base = build_network(MODELS[name].made(**options), shape, classes)
    parameters = MODELS[name].made(
        state_dict={"sha256": SHA}, adapters=AdapterParameters(**block), **options
    )
    return build_network(parameters, shape, classes, {SHA: saved(base)} if packed else {})


def in_torch(net, weights, x):
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    with torch.no_grad():
        return net.logits(tensors, torch.tensor(x)).softmax(1).numpy()


def halves(method, net):
    context = made_context(epsilon=8.0, input_shape=net.input_shape, network=net)
    part = METHODS[method]
    return part.device(part.made(), context), part.cloud(part.made(), context)


def test_an_adapted_weight_by_hand():
    net = adapted(shape=(2,), classes=2, hidden=(3,), adapters={"rank": 1, "alpha": 2})
    weights = {
        "hidden1.weight.lora_a": np.array([[1, 2]], np.float32),
        "hidden1.weight.lora_b": np.array([[1], [0], [-1]], np.float32),
        "output.weight": np.eye(3, 2, dtype=np.float32),
        "output.bias": np.ones(2, np.float32),
    }
    merged = net.merged(weights)
    # (in, out), as the layer holds it: (α/r)·(B·A)ᵀ beside the frozen weight.
    moved = merged["hidden1.weight"] - net.frozen["hidden1.weight"]
    assert np.allclose(moved, [[2, 0, -2], [4, 0, -4]])
    assert np.array_equal(merged["output.weight"], weights["output.weight"])


@pytest.mark.parametrize(
    ("name", "shape", "rank", "trained"),
    [
        ("mlp", (20,), 2, 2 * (20 + 128) + 128 * 3 + 3),
        ("cnn", (8, 8), 2, 2 * (9 + 32) + 2 * (288 + 64) + 64 * 4 * 3 + 3),
        ("resnet20", (1, 8, 8), 2, None),
        ("mlp", (6,), 0, 128 * 3 + 3),  # the head alone
    ],
)
def test_it_sends_adapters_and_head_alone_and_begins_and_ends_as_the_whole_model(
    name, shape, rank, trained
):
    net = adapted(name, shape, adapters={"rank": rank})
    _, cloud = halves("sgd", net)
    specs = cloud.segments(FIRST)
    names = {spec.name for spec in specs}
    assert trained in (None, sum(spec.count for spec in specs))
    assert all(n.endswith((".lora_a", ".lora_b")) or n.startswith("output.") for n in names)
    state = cloud.initial_state()
    assert set(state) == set(cloud.package(state, FIRST)) == set(cloud.model(state)) == names
    chance = np.random.default_rng(0)
    x = chance.random((5, *shape), np.float32)
    plain = in_torch(net, state, x)
    assert np.array_equal(plain, in_torch(net.base, net.whole, x))
    moved = {name: array + chance.normal(0, 0.1, array.shape) for name, array in state.items()}
    moved = {name: array.astype(np.float32) for name, array in moved.items()}
    check_graph(net.graph())
    released = bake(net.graph(), net.merged(moved))
    assert b"lora" not in released
    wanted = in_torch(net, moved, x)
    assert np.allclose(OnnxModel(released).probabilities(x, {}), wanted, atol=1e-5)
    assert not np.allclose(plain, wanted, atol=1e-3)


def test_a_new_head_begins_at_zero_and_needs_none_in_the_file():
    base = build_network(MODELS["mlp"].made(hidden=(8,)), (6,), 5)

    def net(**changes):
        adapters = AdapterParameters(rank=2, **changes)
        block = MODELS["mlp"].made(hidden=(8,), state_dict={"sha256": SHA}, adapters=adapters)
        return build_network(block, (6,), 3, {SHA: saved(base)})

    assert not net(head_start="new").initial()["output.weight"].any()
    with pytest.raises(DataError, match=r"weight is \[5, 8\], the model has \[3, 8\]"):
        net().initial()


@pytest.mark.parametrize("block", [{"targets": ("fc.*",)}, {"head": ("fc.*",)}, {"rank": 64}])
def test_patterns_that_name_nothing_are_refused(block):
    with pytest.raises(DataError) as error:
        adapted(adapters=block, hidden=(8,))
    assert error.value.where == f"model.adapters.{next(iter(block))}"


def test_targets_and_head_are_those_that_the_patterns_name():
    chosen = {"targets": ("hidden2.*",), "head": ("output.bias", "hidden1.bias")}
    names = [one.name for one in adapted(hidden=(8, 8), adapters=chosen).weights]
    lora = ["hidden2.weight.lora_a", "hidden2.weight.lora_b"]
    assert names == ["hidden1.bias", *lora, "output.bias"]


@pytest.mark.parametrize("method", ["sgd", "dp_sgd", "pso_dp_sgd"])
def test_training_moves_adapters_and_never_a_frozen_weight(method):
    net, chance = adapted(hidden=(8,)), np.random.default_rng(1)
    before = {name: array.copy() for name, array in net.frozen.items()}
    device, cloud = halves(method, net)
    state = cloud.initial_state()
    records = Records(chance.normal(size=(20, 6)).astype(np.float32), chance.integers(0, 3, 20))
    answer = device.answer(FIRST, cloud.package(state, FIRST), records, SeededRandom(1), "cpu")
    assert set(answer.segments) == {one.name for one in net.weights}
    after = cloud.absorb(state, FIRST, answer.segments, 1)
    assert any(np.any(after[n] != state[n]) for n in state if n.endswith("lora_b"))
    assert all(np.array_equal(array, before[name]) for name, array in net.frozen.items())


def test_without_its_frozen_weights_it_has_a_form_and_computes_nothing():
    net = adapted(packed=False, hidden=(8,))
    assert net.weights == adapted(hidden=(8,)).weights
    assert {n: a.shape for n, a in net.initial().items()} == {w.name: w.shape for w in net.weights}
    for use in (net.prepare, lambda: net.merged(net.initial())):
        with pytest.raises(DataError):
            use()
