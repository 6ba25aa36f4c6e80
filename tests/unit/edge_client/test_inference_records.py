"""Nothing but the noised answer may tell about a record: not a refusal, not memory."""

from hashlib import sha256

import numpy as np
import pytest
from onnx import TensorProto, helper

from edge_client import inference
from edge_client.inference import InferenceSession
from fl_core.errors import DataError
from fl_core.evaluation.onnx_session import BATCH_RECORDS, OnnxModel
from fl_core.features.identity import Identity, IdentityParameters
from fl_core.models.softmax_head import build_graph, probabilities

FEATURES = Identity(IdentityParameters())
WEIGHTS = {
    "centre": np.zeros(3, np.float32),
    "radius": np.ones(1, np.float32),
    "weight": np.array([[2, -1], [0, 3], [-1, 0]], np.float32),
}


def steered() -> bytes:
    """Answers [0.9, 0.1] by indexing a table with the record's own value; fails for all but 0."""
    node = helper.make_node
    table = helper.make_tensor("table", TensorProto.FLOAT, [1, 2], [0.9, 0.1])
    zero = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    nodes = [
        node("Squeeze", ["x", "axes"], ["value"]),
        node("Cast", ["value"], ["index"], to=TensorProto.INT64),
        node("Gather", ["table", "index"], ["probabilities"], axis=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1])
    out = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 2])
    graph = helper.make_graph(nodes, "g", [x], [out], [table, zero])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def session(graph: bytes) -> InferenceSession:
    return InferenceSession(graph, sha256(graph).digest(), classes=2)


def test_a_graph_that_values_steer_is_refused_before_a_record_is_read():
    with pytest.raises(DataError, match="whole numbers"):
        session(steered())


def test_a_run_that_fails_on_a_record_gives_the_uniform_answer(monkeypatch):
    monkeypatch.setattr(inference, "check_graph", lambda graph: None)  # as if one slipped through
    one = session(steered())
    x = np.zeros((5, 1), np.float32)
    assert np.allclose(one.mean_softmax(x, {}), [0.9, 0.1])
    x[3] = 7
    assert one.mean_softmax(x, {}).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("count", [0, 3])
def test_a_graph_without_its_weights_is_an_error_whatever_the_records_are(count):
    with pytest.raises(DataError, match="needs the weights"):
        session(build_graph(FEATURES, (3,), 2)).mean_softmax(np.ones((count, 3), np.float32), {})


@pytest.mark.parametrize("count", [0, 1, BATCH_RECORDS - 1, BATCH_RECORDS, BATCH_RECORDS + 1, 200])
def test_all_runs_are_whole_batches(monkeypatch, count):
    sizes = []
    run = OnnxModel._run

    def seen(self, feed):
        sizes.append(len(feed["x"]))
        return run(self, feed)

    monkeypatch.setattr(OnnxModel, "_run", seen)
    x = np.random.default_rng(3).normal(size=(count, 3)).astype(np.float32)
    got = session(build_graph(FEATURES, (3,), 2)).mean_softmax(x, WEIGHTS)
    assert set(sizes) == {BATCH_RECORDS}
    expected = probabilities(FEATURES, x, WEIGHTS).mean(axis=0) if count else [0.5, 0.5]
    assert np.allclose(got, expected, atol=1e-6)
