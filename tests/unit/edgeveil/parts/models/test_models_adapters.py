"""Low-rank adapters: what is trained, what travels, what stays as it is, and what is released."""

from dataclasses import replace

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
    """A state_dict of a network, in torch's form, as a job's artifact."""
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


NET = adapted(hidden=(8,))


def drawn(net, seed=0):
    """Weights near the first ones, none of them 0."""
    chance = np.random.default_rng(seed)
    return {
        name: array + chance.normal(scale=0.1, size=array.shape).astype(np.float32)
        for name, array in net.initial().items()
    }


def tensors(weights):
    return {name: torch.tensor(array) for name, array in weights.items()}


def context(net, **changes):
    return replace(
        made_context(epsilon=8.0, classes=net.classes, input_shape=net.input_shape, network=net),
        **changes,
    )


def some_records(net, count=20, seed=1):
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(count, *net.input_shape)).astype(np.float32)
    return Records(x, chance.integers(0, net.classes, count))


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
    assert np.allclose(
        merged["hidden1.weight"] - net.frozen["hidden1.weight"], [[2, 0, -2], [4, 0, -4]]
    )
    assert np.array_equal(merged["output.weight"], weights["output.weight"])


@pytest.mark.parametrize(
    ("name", "shape", "trained"),
    [
        ("mlp", (20,), 2 * (20 + 128) + 128 * 3 + 3),
        ("cnn", (8, 8), 2 * (9 + 32) + 2 * (288 + 64) + 64 * 4 * 3 + 3),
    ],
)
def test_an_update_has_the_adapters_and_the_head_and_nothing_else(name, shape, trained):
    net = adapted(name, shape)
    cloud = METHODS["sgd"].cloud(METHODS["sgd"].made(), context(net))
    names = {spec.name for spec in cloud.segments(FIRST)}
    assert sum(spec.count for spec in cloud.segments(FIRST)) == trained
    assert all(n.endswith((".lora_a", ".lora_b")) or n.startswith("output.") for n in names)
    state = cloud.initial_state()
    assert set(state) == set(cloud.package(state, FIRST)) == set(cloud.model(state)) == names


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20"])
def test_it_begins_as_the_pretrained_model_whatever_its_records(name):
    net = adapted(name, (1, 8, 8))
    x = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        found = net.logits(tensors(net.initial()), x)
        wanted = net.base.logits(tensors(net.whole), x)
    assert torch.equal(found, wanted)


def test_a_new_head_begins_at_zero_and_needs_none_in_the_file():
    base = build_network(MODELS["mlp"].made(hidden=(8,)), (6,), 5)
    parameters = MODELS["mlp"].made(
        hidden=(8,),
        state_dict={"sha256": SHA},
        adapters=AdapterParameters(rank=2, head_start="new"),
    )
    net = build_network(parameters, (6,), 3, {SHA: saved(base)})
    assert not net.initial()["output.weight"].any()
    parameters = parameters.model_copy(update={"adapters": AdapterParameters(rank=2)})
    with pytest.raises(DataError, match=r"weight is \[5, 8\], the model has \[3, 8\]") as told:
        build_network(parameters, (6,), 3, {SHA: saved(base)}).initial()
    assert "head_start: new" in told.value.fix


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"targets": ("fc.*",)}, "model.adapters.targets: fc.* names no weight"),
        ({"head": ("fc.*",)}, "model.adapters.head: fc.* names no weight"),
        ({"rank": 64}, "model.adapters.rank: no weight has more values than its adapter"),
    ],
)
def test_patterns_that_name_nothing_are_told_with_the_models_names(block, said):
    with pytest.raises(DataError) as error:
        adapted(adapters=block, hidden=(8,))
    assert str(error.value).startswith(said)
    if "rank" not in block:
        assert "hidden1.weight, hidden1.bias, output.weight" in str(error.value)


def test_targets_and_head_are_those_that_the_patterns_name():
    net = adapted(
        hidden=(8, 8), adapters={"targets": ("hidden2.*",), "head": ("output.bias", "hidden1.bias")}
    )
    assert [one.name for one in net.weights] == [
        "hidden1.bias",
        "hidden2.weight.lora_a",
        "hidden2.weight.lora_b",
        "output.bias",
    ]


def test_of_rank_0_the_head_alone_is_trained():
    net = adapted(hidden=(8,), adapters={"rank": 0})
    assert [one.name for one in net.weights] == ["output.weight", "output.bias"]
    x = torch.rand(3, 6)
    found = net.logits(tensors(net.initial()), x)
    assert torch.equal(found, net.base.logits(tensors(net.whole), x))


@pytest.mark.parametrize("method", ["sgd", "dp_sgd", "pso_dp_sgd"])
def test_training_moves_adapters_and_never_a_frozen_weight(method):
    net = adapted(hidden=(8,))
    before = {name: array.copy() for name, array in net.frozen.items()}
    whole, part = context(net), METHODS[method]
    cloud = part.cloud(part.made(), whole)
    device = part.device(part.made(), whole)
    state = cloud.initial_state()
    answer = device.answer(
        FIRST, cloud.package(state, FIRST), some_records(net), SeededRandom(1), "cpu"
    )
    assert set(answer.segments) == {one.name for one in net.weights}
    after = cloud.absorb(state, FIRST, answer.segments, 1)
    assert any(np.any(after[n] != state[n]) for n in state if n.endswith("lora_b"))
    assert {n: a.tolist() for n, a in net.frozen.items()} == {
        n: a.tolist() for n, a in before.items()
    }
    merged = net.merged(after)
    assert np.array_equal(merged["hidden1.bias"], before["hidden1.bias"])
    assert np.any(merged["hidden1.weight"] != before["hidden1.weight"])


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20"])
def test_the_released_graph_is_plain_and_gives_what_the_adapted_model_gives(name):
    net = adapted(name, (1, 8, 8))
    weights, x = drawn(net), np.random.default_rng(2).random((4, 1, 8, 8), np.float32)
    check_graph(net.graph())
    released = bake(net.graph(), net.merged(weights))
    assert b"lora" not in released
    with torch.no_grad():
        wanted = net.logits(tensors(weights), torch.tensor(x)).softmax(1).numpy()
    assert np.allclose(OnnxModel(released).probabilities(x, {}), wanted, atol=1e-5)
    plain = net.logits(tensors(net.initial()), torch.tensor(x)).softmax(1).numpy()
    assert not np.allclose(plain, wanted, atol=1e-3)


def test_without_its_frozen_weights_it_has_a_form_and_computes_nothing():
    net = adapted(packed=False, hidden=(8,))
    assert net.weights == NET.weights
    assert {n: a.shape for n, a in net.initial().items()} == {w.name: w.shape for w in net.weights}
    for use in (net.prepare, lambda: net.merged(net.initial())):
        with pytest.raises(DataError, match="not here"):
            use()
