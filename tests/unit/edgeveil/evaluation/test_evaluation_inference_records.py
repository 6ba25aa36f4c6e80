"""Nothing but the noised answer may tell about a record: not a refusal, not memory."""

from hashlib import sha256

import numpy as np
import pytest
from onnx import TensorProto

from edgeveil.data.split import sample_slots
from edgeveil.evaluation import inference
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models.heads import build_graph
from edgeveil.privacy.laplace_mechanism import RECORD_BITS
from tests.kits.backbone_files import model, node

FEATURES, KEY = Identity(IdentityParameters()), b"k" * 32
WEIGHTS = {
    "centre": np.zeros(3, np.float32),
    "radius": np.ones(1, np.float32),
    "weight": np.array([[2, -1], [0, 3], [-1, 0]], np.float32),
}


def steered():
    """Answers [0.9, 0.1] by indexing a table with the record's own value; fails for all but 0."""
    nodes = [
        node("Squeeze", ["x", "axes"], ["value"]),
        node("Cast", ["value"], ["index"], to=TensorProto.INT64),
        node("Gather", ["table", "index"], ["probabilities"], axis=0),
    ]
    constants = {"table": np.array([[0.9, 0.1]], np.float32), "axes": np.array([1])}
    return model(nodes, {"x": ("N", 1)}, {"probabilities": ("N", 2)}, constants)


def order_of_sums(values):
    """Answers [1, 0] where a record's sum is the same as that of its copy, else [0, 1]. The copy
    lies where ONNX Runtime puts it, the record where it is handed over; both have the same bits, so
    nothing but the order in which they are summed can tell them apart."""
    nodes = [
        node("ReduceSum", ["x", "axes"], ["sum"], keepdims=1),
        node("Add", ["x", "zero"], ["copy"]),
        node("ReduceSum", ["copy", "axes"], ["again"], keepdims=1),
        node("Sub", ["sum", "again"], ["difference"]),
        node("Abs", ["difference"], ["size"]),
        node("Mul", ["size", "huge"], ["large"]),
        node("Sub", ["large", "half"], ["up"]),
        node("Neg", ["up"], ["down"]),
        node("Concat", ["down", "up"], ["logits"], axis=1),
        node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    scalars = {"zero": 0.0, "huge": 1e12, "half": 50.0}
    constants = {name: np.float32(value) for name, value in scalars.items()}
    constants["axes"] = np.array([1])
    return model(nodes, {"x": ("N", values)}, {"probabilities": ("N", 2)}, constants)


def session(graph):
    return InferenceSession(graph, sha256(graph).digest(), classes=2)


def test_a_record_on_which_the_run_fails_counts_zero_by_itself(monkeypatch):
    monkeypatch.setattr(inference, "check_graph", lambda graph: None)  # as if one slipped through
    one = session(steered())
    x = np.zeros((5, 1), np.float32)
    before = one.summed_softmax(x, {})
    assert np.allclose(before / 2.0**RECORD_BITS, [4.5, 0.5])
    x[3] = 7
    assert np.array_equal(one.summed_softmax(x, {}) * 5, before * 4)


@pytest.mark.parametrize("values", [29, 30, 31, 32])
def test_removing_a_record_changes_its_own_slot_and_part_of_the_sum_alone(values):
    one, slots = session(order_of_sums(values)), 32
    x = (np.random.default_rng(1).normal(size=(60, values)) * 10).astype(np.float32)
    whole, total = one.slot_softmax(x, {}, sample_slots(x, slots, KEY)), one.summed_softmax(x, {})
    for removed in range(0, 60, 9):
        rest = np.delete(x, removed, axis=0)
        rows = one.slot_softmax(rest, {}, sample_slots(rest, slots, KEY))
        assert (rows != whole).any(axis=1).sum() <= 1
        own = one.summed_softmax(x[removed : removed + 1], {})
        assert np.array_equal(total - one.summed_softmax(rest, {}), own)


@pytest.mark.parametrize("row_s", [1e-9, 1e-12])
def test_a_record_whose_run_takes_longer_than_its_time_adds_nothing_and_slots_are_uniform(row_s):
    one = session(build_graph(FEATURES, (3,), 2))
    x = np.random.default_rng(4).normal(size=(5, 3)).astype(np.float32)
    assert one.summed_softmax(x, WEIGHTS).any()
    assert not one.summed_softmax(x, WEIGHTS, row_s).any()
    held = np.arange(5)
    assert (one.slot_softmax(x, WEIGHTS, held, row_s) == 0.5).all()
    assert not (one.slot_softmax(x, WEIGHTS, held) == 0.5).all()
