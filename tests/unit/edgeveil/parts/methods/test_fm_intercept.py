"""The intercept of classes in `fm`: by hand, in the graph, in a job's bytes, and what it is for."""

import json
import math

import numpy as np
import pytest
from fm_kit import context

from edgeveil.data.records import Records
from edgeveil.errors import ProtocolError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.model_head import find_head
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.jobs import Job, compile_canonical, parse_job
from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_sums import FmParameters, Rows, shrunk, with_intercept
from edgeveil.parts.models.heads import bake, build_graph, head_probabilities

FINE = 2.0**-28


def test_one_record_by_hand():
    parameters = FmParameters(centre=False, radius=1.0, clip=2.0)
    device, cloud = FmDevice(parameters, context()), FmCloud(parameters, context())
    i = device.intercept / 4096
    assert 0 < i == cloud.intercept / 4096
    state = cloud.initial_state()
    state["iterate"] = np.array([[4096, 0], [0, 0], [0, 8192]], np.int32)
    record = Records(np.array([[3, 4]], np.float32), np.array([1]))  # φ = (0.6, 0.8)
    a = math.sqrt(1 - i * i)
    z = np.array([a * 0.6, a * 0.8, i])
    quadratic, first = cloud.plan()[:2]
    found = device.sums(quadratic, cloud.package(state, quadratic), record) * FINE
    np.testing.assert_allclose(found, np.outer(z, z)[np.triu_indices(3)], atol=2e-3)
    logits = np.array([a * 0.6, 2 * i])
    p = np.exp(logits) / np.exp(logits).sum()
    found = device.sums(first, cloud.package(state, first), record) * FINE
    np.testing.assert_allclose(found, np.outer(z, p - [0, 1]), atol=2e-3)


@pytest.mark.parametrize("intercept", [1, 77, 1228, 2048, 4095, 4096])
def test_no_record_is_beyond_norm_one_with_any_intercept(intercept):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 7))
    steps = np.trunc(z / np.linalg.norm(z, axis=1)[:, None] * 4096).astype(np.int16)
    steps[0], steps[1] = [4096, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, -4096]
    found = with_intercept(Rows(steps, np.zeros(500, np.int64)), intercept)
    assert (found.steps[:, -1] == intercept).all()
    exact = (found.steps.astype(np.int64) ** 2).sum(axis=1)
    assert (exact <= 1 << 24).all()
    assert shrunk(intercept) ** 2 + intercept**2 <= 1 << 24


@pytest.mark.parametrize("kept", [None, 3])
def test_the_released_graph_computes_what_the_head_does(kept):
    rng = np.random.default_rng(2)
    d, features = kept or 5, build_features([IdentityParameters()])
    weights = {
        "centre": rng.normal(size=d).astype(np.float32) / 8,
        "radius": np.array([0.7], np.float32),
        "weight": rng.normal(size=(d, 3)).astype(np.float32),
        "bias": np.array([0.5, -0.25, 0.0], np.float32),
    }
    weights |= {} if kept is None else {"basis": np.eye(5, kept, dtype=np.float32)}
    graph = build_graph(features, (5,), 3, kept, bias=True)
    check_graph(graph)
    onnx = bake(graph, weights)
    check_graph(onnx, released=True)
    x = rng.normal(size=(40, 5)).astype(np.float32)
    found = OnnxModel(onnx).answers(x, {})
    np.testing.assert_allclose(found, head_probabilities(features(x), weights), atol=1e-5)
    head = find_head(onnx)  # what a device learns further on
    np.testing.assert_allclose(head.bias, weights["bias"])
    moved = find_head(head.replaced(onnx, head.weight, head.bias + 1))
    np.testing.assert_allclose(moved.bias, weights["bias"] + 1)


JOB = """\
job: small
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}
features: [{name: identity}]
train: {method: fm, rounds: 2%s}
privacy: {epsilon: 8}
"""


def test_a_job_of_before_keeps_its_bytes_and_its_head():
    now, before = parse_job(JOB % ""), parse_job(JOB % ", intercept: false")
    assert now.train.intercept
    assert json.loads(now.canonical())["train"]["intercept"] is True
    raw = before.canonical()
    assert "intercept" not in json.loads(raw)["train"]  # as a version of before wrote it
    plan = compile_canonical(raw)
    assert plan.job.canonical() == raw
    assert plan.cloud.initial_state()["iterate"].shape == (64, 10)
    assert "bias" not in plan.cloud.model(plan.cloud.initial_state())
    plan = compile_canonical(now.canonical())
    assert plan.cloud.initial_state()["iterate"].shape == (65, 10)
    assert plan.cloud.model(plan.cloud.initial_state())["bias"].shape == (10,)
    with pytest.raises(ProtocolError):  # one job, one spelling
        Job.from_canonical(now.canonical().replace(b'"intercept":true', b'"intercept":false'))
