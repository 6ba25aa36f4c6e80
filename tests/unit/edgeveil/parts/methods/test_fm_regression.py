"""`fm` on a label that is a number: its sums by hand, and least squares where there is no noise."""

import math

import numpy as np
import onnxruntime as ort
import pytest
from fm_kit import context

from edgeveil.data.records import Records
from edgeveil.data.target import LABELS, TargetRange
from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.model_head import find_head
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.methods.fm import PART, FmCloud, FmDevice
from edgeveil.parts.methods.fm_sums import FmParameters
from edgeveil.parts.models.heads import bake, head_values, regression_graph
from edgeveil_tools.local.reference import noise_free_reference

FINE = 2.0**-28
TARGET = TargetRange(10.0, 30.0)


def of_numbers(**changes):
    return context(**{"classes": LABELS, "regression": True, **changes})


def test_one_record_by_hand():
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
    """Numbers that are a linear function of z, and no noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4))
    phi = x / np.linalg.norm(x, axis=1)[:, None]
    t = phi @ np.array([0.4, -0.3, 0.2, 0.0]) + 0.25
    return Records(x.astype(np.float32), np.rint((t + 1) * (LABELS // 2)).astype(np.int64)), phi, t


def test_without_noise_it_is_least_squares():
    train, _, _ = linear_records(600, 0)
    test, _, t = linear_records(200, 1)
    features = build_features([IdentityParameters()])
    chosen = of_numbers(
        features=features,
        input_shape=(4,),
        epsilon=8.0,
        nominal_records=600,
        max_participations=2,
    )
    parameters = FmParameters(
        rounds=2, centre=False, clip=2.0, local_steps=1000, ridge=1e-6, average_from=0.5
    )
    first, second = noise_free_reference(parameters, chosen, train, test, target=TARGET)
    spread = TARGET.half * float(np.std(t))
    assert spread > 2
    assert first < 0.01 * spread  # one expansion is the whole loss: the second finds nothing new
    assert second == pytest.approx(first, abs=0.005 * spread)


def model(kept=None):
    rng = np.random.default_rng(2)
    d = 4 if kept is None else kept
    weights = {
        "centre": rng.normal(size=d).astype(np.float32) / 8,
        "radius": np.array([0.7], np.float32),
        "weight": rng.normal(size=(d, 1)).astype(np.float32) / 4,
        "bias": np.array([0.2], np.float32),
    }
    return weights if kept is None else {**weights, "basis": np.eye(4, kept, dtype=np.float32)}


@pytest.mark.parametrize("kept", [None, 2])
def test_the_released_graph_computes_the_same_and_stays_in_the_range(kept):
    features, weights = build_features([IdentityParameters()]), model(kept)
    graph = regression_graph(features, (4,), TARGET, kept)
    check_graph(graph)
    onnx = bake(graph, weights, {"edgeveil.job": "numbers"})
    check_graph(onnx, released=True)
    x = np.random.default_rng(3).normal(size=(70, 4)).astype(np.float32) * 3
    found = OnnxModel(onnx).answers(x, {})
    expected = head_values(features(x), weights, TARGET)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5)
    assert 10 < found.min() < found.max() < 30
    assert [one.name for one in ort.InferenceSession(onnx).get_outputs()] == ["value"]
    far = bake(graph, {**weights, "bias": np.array([9e9], np.float32)})
    assert (OnnxModel(far).answers(x, {}) == 30).all()
    with pytest.raises(DataError, match="gives a value, and classes"):
        OnnxModel(onnx).probabilities(x, {})
    with pytest.raises(DataError, match="tells a number"):
        find_head(onnx)


def test_a_curvature_of_its_own_is_refused():
    assert list(PART.refuses(FmParameters(), of_numbers())) == []
    assert list(PART.refuses(FmParameters(curvature=0.2), context())) == []
    ((keys, why),) = PART.refuses(FmParameters(curvature=0.2), of_numbers())
    assert keys[0] == "train.curvature"
    assert "leave it out" in why
