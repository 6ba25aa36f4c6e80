"""A model's accuracy and loss from features that are computed once, as from the whole graph."""

import numpy as np
import pytest
from sklearn.metrics import log_loss

from edgeveil.evaluation.accuracy import HeldOutTest, cut
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.features.pictures import PicturesParameters
from edgeveil.parts.models.heads import build_graph
from tests.kits.backbone_files import model, node

RNG = np.random.default_rng(0)
X = RNG.integers(0, 17, (150, 64)).astype(np.float32)
Y = RNG.integers(0, 10, 150)
IDENTITY = IdentityParameters(name="identity", input_scale=16.0, shift=-0.3)
GABOR = PicturesParameters(name="gabor", input_scale=16.0, image=(8, 8), pool=4)
MAPS = {"identity": [IDENTITY], "both": [IDENTITY, GABOR]}


def graph(entries, kept=None):
    features = build_features(entries)
    return build_graph(features, (64,), 10, kept), features.output_dim((64,))


def weights(given, kept=None):
    d = kept or given
    found = {
        "centre": RNG.normal(size=d).astype(np.float32) * np.float32(0.1),
        "radius": np.array([0.7], np.float32),
        "weight": RNG.normal(size=(d, 10)).astype(np.float32) * 3,
    }
    return found if kept is None else {**found, "basis": RNG.normal(size=(given, kept))}


@pytest.mark.parametrize("kept", [None, 12])
@pytest.mark.parametrize("name", MAPS)
def test_accuracy_and_loss_are_those_of_the_whole_graph(name, kept):
    made, given = graph(MAPS[name], kept)
    held = HeldOutTest(made, X, Y)
    for _ in range(3):
        model = weights(given, kept)
        found = OnnxModel(made).probabilities(X, model)
        tested = held.tested(model)
        assert tested.accuracy == (found.argmax(axis=1) == Y).mean()
        whole = found / found.sum(axis=1, keepdims=True, dtype=np.float64)  # it wants exact rows
        assert tested.loss == pytest.approx(log_loss(Y, whole), rel=1e-5)


def test_weights_that_are_not_finite_make_every_record_wrong():
    made, given = graph(MAPS["identity"])
    spoilt = {**weights(given), "weight": np.full((given, 10), np.nan, np.float32)}
    tested = HeldOutTest(made, X, Y).tested(spoilt)
    assert tested.accuracy == 0
    assert tested.loss == pytest.approx(126 * np.log(2))


@pytest.mark.parametrize(("twice", "joint"), [(False, "phi"), (True, "x")])
def test_constants_join_nothing_and_a_graph_that_meets_twice_is_not_cut(twice, joint):
    """phi = x + 1 and, `twice`, x itself meet the weight; 1 comes from a node without inputs."""
    nodes = [
        node("Constant", [], ["one"], value_float=1.0),
        node("Add", ["x", "one"], ["phi"]),
        node("MatMul", ["phi", "weight"], ["first"]),
        node("MatMul", ["x" if twice else "phi", "weight"], ["second"]),
        node("Add", ["first", "second"], ["sum"]),
        node("Mul", ["sum", "one"], ["logits"]),
        node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    made = model(nodes, {"x": ("N", 4), "weight": (4, 3)}, {"probabilities": ("N", 3)})
    assert cut(made)[2] == joint
    x, weight = RNG.normal(size=(20, 4)).astype(np.float32), RNG.normal(size=(4, 3))
    y = OnnxModel(made).probabilities(x, {"weight": weight}).argmax(axis=1)
    assert HeldOutTest(made, x, y).tested({"weight": weight}).accuracy == 1.0
    assert HeldOutTest(made, x, (y + 1) % 3).tested({"weight": weight}).accuracy == 0.0
