"""The head of `fm`, for classes and for a number: by hand, in a job's bytes, and its graph."""

import json
import math

import numpy as np
import onnxruntime as ort
import pytest
from fm_kit import context

from edgeveil.data.records import Records
from edgeveil.data.target import LABELS, TargetRange
from edgeveil.errors import DataError, ProtocolError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.model_head import find_head
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.jobs import Job, compile_canonical, parse_job
from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_sums import FmParameters, Rows, shrunk, with_intercept
from edgeveil.parts.models.heads import (
    bake,
    build_graph,
    head_probabilities,
    head_values,
    regression_graph,
)
from edgeveil_tools.local.reference import noise_free_reference

FINE, TARGET = 2.0**-28, TargetRange(10.0, 30.0)


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
@pytest.mark.parametrize("columns", [1, 3])  # a number; classes
def test_the_released_graph_computes_what_the_head_does(kept, columns):
    rng, d, features = np.random.default_rng(2), kept or 5, build_features([IdentityParameters()])
    weights = {
        "centre": rng.normal(size=d).astype(np.float32) / 8,
        "radius": np.array([0.7], np.float32),
        "weight": rng.normal(size=(d, columns)).astype(np.float32) / 4,
        "bias": np.array([0.25, -0.25, 0.0], np.float32)[:columns],
    }
    weights |= {} if kept is None else {"basis": np.eye(5, kept, dtype=np.float32)}
    x = rng.normal(size=(40, 5)).astype(np.float32) * 3
    if columns == 1:
        graph = regression_graph(features, (5,), TARGET, kept)
        wanted = head_values(features(x), weights, TARGET)[:, None]
    else:
        graph = build_graph(features, (5,), 3, kept, bias=True)
        wanted = head_probabilities(features(x), weights)
    check_graph(graph)
    onnx = bake(graph, weights)
    check_graph(onnx, released=True)
    found = OnnxModel(onnx).answers(x, {})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    if columns == 3:
        head = find_head(onnx)  # what a device learns further on
        np.testing.assert_allclose(head.bias, weights["bias"])
        moved = find_head(head.replaced(onnx, head.weight, head.bias + 1))
        np.testing.assert_allclose(moved.bias, weights["bias"] + 1)
        return
    assert 10 < found.min() < found.max() < 30
    assert [one.name for one in ort.InferenceSession(onnx).get_outputs()] == ["value"]
    far = bake(graph, {**weights, "bias": np.array([9e9], np.float32)})
    assert (OnnxModel(far).answers(x, {}) == 30).all()
    for use in (lambda: OnnxModel(onnx).probabilities(x, {}), lambda: find_head(onnx)):
        with pytest.raises(DataError):
            use()


JOB = """\
job: small
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}
features: [{name: identity}]
train: {method: fm, rounds: 2%s}
privacy: {epsilon: 8}
"""


def test_a_job_of_before_keeps_its_bytes_and_its_head():
    now, before = parse_job(JOB % ""), parse_job(JOB % ", intercept: false")
    assert json.loads(now.canonical())["train"]["intercept"] is True
    raw = before.canonical()
    assert "intercept" not in json.loads(raw)["train"]  # as a version of before wrote it
    for job, rows, names in ((raw, 64, set()), (now.canonical(), 65, {"bias"})):
        plan = compile_canonical(job)
        assert plan.job.canonical() == job
        state = plan.cloud.initial_state()
        assert state["iterate"].shape == (rows, 10)
        assert plan.cloud.model(state).keys() & {"bias"} == names
    with pytest.raises(ProtocolError):  # one job, one spelling
        Job.from_canonical(now.canonical().replace(b'"intercept":true', b'"intercept":false'))


def of_numbers(**changes):
    return context(**{"classes": LABELS, "regression": True, **changes})


def test_one_record_with_a_number_by_hand():
    parameters = FmParameters(centre=False, radius=1.0, clip=2.0)
    device, cloud = FmDevice(parameters, of_numbers()), FmCloud(parameters, of_numbers())
    record = Records(np.array([[3, 4]], np.float32), np.array([3 * (LABELS // 4)]))  # t = 0.5
    state = cloud.initial_state()
    state["iterate"] = np.array([[4096], [0], [-8192]], np.int32)  # W = (1, 0, -2)
    quadratic, first = cloud.plan()[:2]
    # φ = (0.6, 0.8), so z = (√3/2·0.6, √3/2·0.8, 1/2) and Wᵀz = √3/2·0.6 - 1
    z = np.array([math.sqrt(0.75) * 0.6, math.sqrt(0.75) * 0.8, 0.5])
    found = device.sums(quadratic, cloud.package(state, quadratic), record) * FINE
    np.testing.assert_allclose(found, np.outer(z, z)[np.triu_indices(3)], atol=2e-3)
    found = device.sums(first, cloud.package(state, first), record) * FINE
    difference = math.sqrt(0.75) * 0.6 - 1 - 0.5
    assert found.shape == (3, 1)
    np.testing.assert_allclose(found[:, 0], z * difference, atol=2e-3)


def linear_records(count, seed):
    x = np.random.default_rng(seed).normal(size=(count, 4))
    t = x / np.linalg.norm(x, axis=1)[:, None] @ np.array([0.4, -0.3, 0.2, 0.0]) + 0.25
    return Records(x.astype(np.float32), np.rint((t + 1) * (LABELS // 2)).astype(np.int64)), t


def test_without_noise_it_is_least_squares():
    (train, _), (test, t) = linear_records(600, 0), linear_records(200, 1)
    chosen = of_numbers(input_shape=(4,), nominal_records=600, max_participations=2)
    parameters = FmParameters(
        rounds=2, centre=False, clip=2.0, local_steps=1000, ridge=1e-6, average_from=0.5
    )
    first, second = noise_free_reference(parameters, chosen, train, test, target=TARGET)
    spread = TARGET.half * float(np.std(t))
    assert spread > 2
    assert first < 0.01 * spread  # one expansion is the whole loss: the second finds nothing new
    assert second == pytest.approx(first, abs=0.005 * spread)
