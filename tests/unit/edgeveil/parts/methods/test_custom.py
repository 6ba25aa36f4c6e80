"""Training functions and losses of the user's own."""

import json
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from edgeveil.config.policy import AllowedPythonModel, Policy
from edgeveil.data.records import Records
from edgeveil.errors import DataError
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.rehearsal import rehearse_device
from edgeveil.parts.models import build_network
from edgeveil.parts.models.python_model import PythonParameters, _weights, loaded
from edgeveil.plugins import code_digest
from edgeveil.privacy.events import GaussianEvent
from edgeveil_edge.consent import refusals
from tests.kits.softmax_regression import CONTEXT, NETWORK, ZERO, answer

FUNCTIONS = """
import torch
from torch import nn

CALLS = []

def in_place(model, loader, lr=0.1, round=None):
    CALLS.append((model.training, lr, round, len(loader.dataset)))
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        with torch.no_grad():
            weights = list(model.parameters())
            for w, slope in zip(weights, torch.autograd.grad(loss, weights)):
                w -= lr * slope

def returned(model, loader):
    in_place(model, loader)
    return model

def other(model, loader):
    return nn.Linear(3, 3)

def text(model, loader):
    return "done"

def dropped(model, loader):
    in_place(model, loader)
    nn.init.normal_(next(model.parameters()))

def net():
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

def squared(outputs, y):
    return ((outputs - nn.functional.one_hot(y, 2)) ** 2).sum(1).mean()
"""
TWO = Records(np.array([[1.0, 2.0], [3.0, 0.0]], np.float32), np.array([0, 1]))


@pytest.fixture(autouse=True)
def code(tmp_path, monkeypatch):
    (tmp_path / "own_training.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_training", raising=False)


def trained(function, records=TWO, **options):
    return answer("custom", records, function=f"own_training:{function}", **options)


def test_a_function_trains_in_place_or_returns_the_module_with_its_settings_and_round():
    plain = answer("sgd", TWO, learning_rate=0.1, batch_size=2).segments
    for function in ("in_place", "returned"):
        found = trained(function, batch_size=2).segments
        for name, value in plain.items():
            np.testing.assert_allclose(found[name], value, atol=1e-7)
    double = trained("in_place", batch_size=2, settings={"lr": 0.2}).segments
    np.testing.assert_allclose(double["output.bias"], 2 * plain["output.bias"], atol=1e-7)
    import own_training

    assert own_training.CALLS[-1] == (True, 0.2, 1, 2)


@pytest.mark.parametrize("adapters", [None, {"rank": 1}])
def test_it_trains_a_module_of_ones_own_with_batch_normalisation_or_adapters(adapters):
    loaded.cache_clear()
    first = {n: a.detach().numpy() for n, a in _weights(loaded("own_training:net"))}
    packed = save(first)
    digest = sha256(packed).hexdigest()
    model = PythonParameters(
        name="python",
        function="own_training:net",
        weights=tuple((name, array.shape) for name, array in first.items()),
        statistics=("1.running_mean", "1.running_var"),
        state_dict=adapters and {"sha256": digest},
        adapters=adapters,
    )
    network = build_network(model, (2,), 2, {digest: packed})
    start = network.initial() if adapters else {f"module.{n}": a for n, a in first.items()}
    found = trained("in_place", weights=start, context=replace(CONTEXT, network=network)).segments
    assert set(found) == set(start)
    moved = {name for name, array in found.items() if np.any(array)}
    assert "module.3.bias" in moved
    assert ("module.1.running_mean" in moved) == (adapters is None)


def test_chance_is_the_answers_own_and_a_device_without_records_calls_nothing():
    before = torch.random.get_rng_state()
    one, same = trained("dropped").segments, trained("dropped").segments
    np.testing.assert_array_equal(one["output.bias"], same["output.bias"])
    assert torch.equal(before, torch.random.get_rng_state())
    import own_training

    own_training.CALLS.clear()
    nobody = Records(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    assert not any(np.any(a) for a in trained("in_place", nobody).segments.values())
    assert not own_training.CALLS


@pytest.mark.parametrize("function", ["other", "text"])
def test_another_architecture_or_no_model_is_named(function):
    with pytest.raises(DataError) as found:
        trained(function)
    assert found.value.where == "train.function"
    train = {"method": "custom", "function": f"own_training:{function}"}
    job = Job.model_validate(JOB | {"train": train, "privacy": {"accept_unproven": True}})
    with pytest.raises(DataError, match=r"train\.function"):  # before anything is priced
        plan = compile_job(job)
        rehearse_device(plan, plan.graph(), trains=True, records=3, processor="cpu")


def test_a_loss_of_ones_own_is_the_one_that_is_followed():
    found = answer("sgd", TWO, loss="own_training:squared", learning_rate=0.1, batch_size=2)
    leaves = {name: torch.tensor(a, requires_grad=True) for name, a in ZERO.items()}
    logits = NETWORK.logits(leaves, torch.tensor(TWO.x))
    target = torch.eye(2)[torch.tensor(TWO.y)]
    ((logits - target) ** 2).sum(1).mean().backward()
    for name, leaf in leaves.items():
        np.testing.assert_allclose(found.segments[name], -0.1 * leaf.grad.numpy(), atol=1e-7)


JOB = {
    "job": "a",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "model": {"name": "mlp"},
}


@pytest.mark.parametrize(
    "train",
    [
        {"method": "custom", "function": "own_training:returned", "settings": {"lr": 0.1}},
        {"method": "sgd", "loss": "own_training:squared"},
    ],
)
def test_an_owner_allows_the_code_and_one_noise_protects_the_whole_device(train):
    noise = {"update": [{"name": "gradient_gaussian"}], "privacy": {"epsilon": 8}}
    job = Job.model_validate_json(json.dumps(JOB | noise | {"train": train | {"rounds": 2}}))
    plan = compile_job(Job.from_canonical(job.canonical()))
    (event,) = plan.price(plan.planned[0], trains=True)
    assert isinstance(event, GaussianEvent) and event.unit == "device"
    function, methods = job.functions[0], (train["method"],)
    strict = Policy(allowed_methods=methods)
    assert [one.where for one in refusals(strict, plan, trains=True)] == [
        "policy.allowed_python_models"
    ]
    assert not list(refusals(strict, plan, trains=False))
    allowed = AllowedPythonModel(function=function, sha256=code_digest(function))
    open_ = Policy(allowed_methods=methods, allowed_python_models=(allowed,))
    assert not list(refusals(open_, plan, trains=True))
