import numpy as np
import onnxruntime as ort
import pytest

from edgeveil.errors import DataError
from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.models.heads import WEIGHTS, bake, build_graph, probabilities

FEATURES = build_features([IdentityParameters(input_scale=16.0, shift=-0.3)])
RNG = np.random.default_rng(0)
MODEL = {
    "centre": RNG.normal(size=64).astype(np.float32) * np.float32(0.1),
    "radius": np.array([0.7], np.float32),
    "weight": RNG.normal(size=(64, 10)).astype(np.float32) * 3,
}
X = RNG.integers(0, 17, (33, 8, 8)).astype(np.float32)


def session(model):
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def test_the_graph_takes_its_weights_as_inputs_and_equals_numpy():
    run = session(build_graph(FEATURES, (8, 8), 10))
    assert [i.name for i in run.get_inputs()] == ["x", *WEIGHTS]
    (found,) = run.run(["probabilities"], {"x": X, **MODEL})
    expected = probabilities(FEATURES, X, MODEL)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert expected.max() > 0.3


def test_a_baked_model_needs_only_records_and_gives_labels():
    run = session(bake(build_graph(FEATURES, (8, 8), 10), MODEL))
    assert [i.name for i in run.get_inputs()] == ["x"]
    found, label = run.run(["probabilities", "label"], {"x": X})
    np.testing.assert_allclose(found, probabilities(FEATURES, X, MODEL), atol=2e-6)
    np.testing.assert_array_equal(label, found.argmax(axis=1))
    assert label.dtype == np.int64


def test_a_record_at_the_shift_gives_a_defined_answer():
    features = build_features([IdentityParameters()])
    model = {**MODEL, "centre": np.zeros(64, np.float32)}
    run = session(bake(build_graph(features, (8, 8), 10), model))
    (found,) = run.run(["probabilities"], {"x": np.zeros((1, 8, 8), np.float32)})
    np.testing.assert_allclose(found, 0.1, atol=1e-6)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_missing_or_misshapen_weight_is_named(name):
    graph = build_graph(FEATURES, (8, 8), 10)
    with pytest.raises(DataError, match=name):
        bake(graph, {k: v for k, v in MODEL.items() if k != name})
    with pytest.raises(DataError, match=name):
        bake(graph, {**MODEL, name: np.zeros((3, 3), np.float32)})
