"""Whole jobs on weights of their user's, over the memory transport."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from edgeveil.config.policy import Policy
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.jobs import compile_job, load_job
from edgeveil.jobs.artifacts import carried_digests, read_artifacts
from tests.kits.fleet import Fleet

pytestmark = pytest.mark.slow

YAML = """
job: adapted
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 150}
MODEL
train: {method: METHOD, rounds: 2, learning_rate: 0.5}
privacy: {PRIVACY}
round: {deadline_s: 20, min_batch: 3, grace_s: 1}
encrypt: {laplace_eval: {laplace_eval_eps: 20}}
unsupervised: {every_rounds: 1}
"""
MLP = "name: mlp, hidden: [32], input_scale: 16, state_dict: net.safetensors"
DP, PLAIN = "epsilon: 8", "accept_unproven: true"


def weights():
    torch.manual_seed(5)
    net = nn.Sequential()
    net.add_module("hidden1", nn.Linear(64, 32))
    net.add_module("output", nn.Linear(32, 10))
    return net.state_dict()


def job(folder, model, method="dp_sgd", privacy=DP):
    save_file(weights(), folder / "net.safetensors")
    text = YAML.replace("MODEL", model).replace("METHOD", method).replace("PRIVACY", privacy)
    (folder / "job.yaml").write_text(text)
    return load_job(folder / "job.yaml")


def played(folder, wanted, *allowed, size=5):
    policy = Policy(
        allowed_methods=(wanted.train.method,),
        allowed_backbones=allowed,
        accept_unprotected=True,
        accept_unproven=True,
    )
    fleet = Fleet(folder / "site", size, policy=policy)
    name = fleet.submit(wanted)
    return fleet, name, fleet.finish(name)


def test_adapters_are_learned_and_merged_and_frozen_weights_stay(tmp_path):
    wanted = job(tmp_path, f"model: {{{MLP}, adapters: {{rank: 2}}}}")
    fleet, name, ended = played(tmp_path, wanted, *carried_digests(wanted))
    assert ended == "completed"
    assert not any(node.refused for node in fleet.net.nodes.values())
    state = fleet.cloud.host.jobs.state(fleet.store.job(name))
    assert set(state) == {
        "hidden1.weight.lora_a",
        "hidden1.weight.lora_b",
        "output.weight",
        "output.bias",
    }
    release = fleet.store.release(name)
    assert release is not None
    x = np.random.default_rng(0).uniform(0, 16, (4, 64)).astype(np.float32)
    a, b = (torch.tensor(np.asarray(state[f"hidden1.weight.lora_{m}"])) for m in "ab")
    first = weights()
    hidden = torch.tensor(x / 16) @ (first["hidden1.weight"] + 4 * b @ a).T + first["hidden1.bias"]
    output, bias = (torch.tensor(np.asarray(state[f"output.{n}"])) for n in ("weight", "bias"))
    torch_says = (hidden.relu() @ output + bias).softmax(1)
    assert np.allclose(OnnxModel(release.onnx).probabilities(x, {}), torch_says, atol=1e-5)
    (tmp_path / "merged.safetensors").write_bytes(release.safetensors)
    merged = load_file(tmp_path / "merged.safetensors")
    assert merged.keys() == first.keys()
    assert torch.allclose(merged["hidden1.weight"], first["hidden1.weight"] + 4 * b @ a, atol=1e-6)
    assert torch.equal(merged["output.weight"], output.T)


def test_a_released_models_weights_are_what_torch_loads_and_the_next_job_begins_with(tmp_path):
    square = MLP.replace("[32]", "[32, 32]").replace(", state_dict: net.safetensors", "")
    fleet, name, ended = played(tmp_path, job(tmp_path, f"model: {{{square}}}", "sgd", PLAIN))
    assert ended == "completed"
    release = fleet.store.release(name)
    assert release is not None
    (tmp_path / "learned.safetensors").write_bytes(release.safetensors)
    with safe_open(tmp_path / "learned.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    net = nn.Sequential()
    for layer, size in {"hidden1": (64, 32), "hidden2": (32, 32), "output": (32, 10)}.items():
        net.add_module(layer, nn.Linear(*size))
        if layer != "output":
            net.add_module(f"{layer}_relu", nn.ReLU())
    net.load_state_dict(load_file(tmp_path / "learned.safetensors"))
    x = np.random.default_rng(0).uniform(0, 16, (4, 64)).astype(np.float32)
    told = OnnxModel(release.onnx).probabilities(x, {})
    assert np.allclose(net(torch.tensor(x / 16)).softmax(1).detach(), told, atol=1e-5)
    onward = square + ", state_dict: learned.safetensors"
    wanted = job(tmp_path, f"model: {{{onward}}}", "sgd", PLAIN)
    plan = compile_job(wanted).with_artifacts(read_artifacts(wanted))
    first = plan.graph_weights(plan.cloud.initial_state())
    assert np.array_equal(OnnxModel(plan.graph()).probabilities(x, first), told)
