"""The global model on a device: nothing but its noised answer depends on a record."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto

from edgeveil.data.split import EMPTY, sample_slots
from edgeveil.errors import DataError, ProtocolError
from edgeveil.evaluation import inference
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.jobs import parse_plan
from edgeveil.jobs.rehearsal import rehearse_device
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models.heads import build_graph, head_probabilities
from edgeveil.privacy.laplace_mechanism import RECORD_BITS
from tests.kits.backbone_files import model, node

FEATURES = Identity(IdentityParameters(input_scale=16, shift=-0.3))
GRAPH = build_graph(FEATURES, (4,), 3)
WEIGHTS = {
    "centre": np.array([0.1, -0.2, 0.0, 0.3], np.float32),
    "radius": np.array([0.6], np.float32),
    "weight": np.array([[2, -1, 0], [0, 3, -2], [-1, 0, 1], [1, 1, -3]], np.float32),
}
UNIFORM = [1 / 3] * 3


def session(graph=GRAPH, classes=3):
    return InferenceSession(graph, sha256(graph).digest(), classes=classes)


def raw(nodes, inputs):
    return model(nodes, inputs, {"probabilities": ("N", 3)})


def test_the_sum_equals_numpys():
    x = np.random.default_rng(1).uniform(0, 16, (600, 4)).astype(np.float32)
    got = session().summed_softmax(x, WEIGHTS)
    assert got.dtype == np.int64
    by_hand = head_probabilities(FEATURES(x), WEIGHTS).sum(axis=0)
    assert np.allclose(got / 2.0**RECORD_BITS, by_hand, atol=600e-6)
    assert 600 * (2**RECORD_BITS - 3) <= got.sum() <= 600 * 2**RECORD_BITS


def test_invalid_records_count_zero_and_no_records_are_the_zero_vector():
    good = np.array([[1, 2, 3, 4], [9, 0, 0, 1]], np.float32)
    bad = np.array([[np.nan, 0, 0, 0], [0, np.inf, 0, 0]], np.float32)
    one = session()
    mixed = np.concatenate([bad, good, bad])
    assert np.array_equal(one.summed_softmax(mixed, WEIGHTS), one.summed_softmax(good, WEIGHTS))
    for none in (bad, good[:0], np.ones((3, 5), np.float32), np.ones((3, 2, 2), np.float32)):
        assert one.summed_softmax(none, WEIGHTS).tolist() == [0, 0, 0]


@pytest.mark.parametrize("rows", [0, 3])
def test_a_bad_package_fails_the_same_with_and_without_records(rows):
    x = np.ones((rows, 4), np.float32)
    without = {name: value for name, value in WEIGHTS.items() if name != "radius"}
    for package in (without, {**WEIGHTS, "weight": np.ones((5, 3), np.float32)}):
        with pytest.raises(DataError):
            session().summed_softmax(x, package)


def test_outputs_that_are_no_distribution_count_zero():
    identity = raw([node("Identity", ["x"], ["probabilities"])], {"x": ["N", 3]})
    x = np.array([[0.2, 0.3, 0.5], [1, 1, 1], [-1, 1, 1], [0, 0, 1]], np.float32)
    found = session(identity).summed_softmax(x, {}) / 2.0**RECORD_BITS
    assert np.allclose(found, [0.2, 0.3, 1.5])
    assert session(identity, classes=4).summed_softmax(x, {}).tolist() == [0] * 4


def test_each_slot_holds_its_own_records_softmax_and_an_empty_one_the_uniform():
    x = np.random.default_rng(3).uniform(0, 16, (5, 4)).astype(np.float32)
    got = session().slot_softmax(x, WEIGHTS, np.array([4, EMPTY, 0]))
    assert np.allclose(got[[0, 2]], head_probabilities(FEATURES(x[[4, 0]]), WEIGHTS), atol=1e-6)
    assert got[1].tolist() == UNIFORM


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(np.float32, (6, 4), elements=st.floats(width=32)),
    arrays.arrays(np.float32, (4,), elements=st.floats(width=32)),
    st.integers(0, 5),
)
def test_a_slots_row_follows_from_its_own_record_bit_for_bit(x, other, changed):
    one, held = session(), np.arange(6)
    before = one.slot_softmax(x, WEIGHTS, held)
    x[changed] = other
    after = one.slot_softmax(x, WEIGHTS, held)
    rest = held != changed
    assert before[rest].tobytes() == after[rest].tobytes()
    assert ((after >= 0) & np.isfinite(after)).all()


def test_the_graph_must_be_the_one_the_job_names():
    for digest, most, reason in (
        (bytes(32), len(GRAPH), "graph_digest"),
        (sha256(GRAPH).digest(), 10, "graph_size"),
    ):
        with pytest.raises(ProtocolError) as caught:
            InferenceSession(GRAPH, digest, classes=3, max_bytes=most)
        assert caught.value.reason == reason


def test_a_graph_without_the_data_input_is_refused():
    nameless = raw([node("Identity", ["z"], ["probabilities"])], {"z": ["N", 3]})
    with pytest.raises(DataError, match="data input 'x'"):
        session(nameless)


CODE = """
import sys
from hashlib import sha256
import numpy as np
missing = "torch scipy onnx sklearn sqlalchemy aiohttp dp_accounting".split()
sys.modules |= dict.fromkeys(missing)
import edgeveil.privacy.ledger, edgeveil.privacy.gaussian_mechanism, edgeveil.parts.methods
from edgeveil.privacy.laplace_mechanism import softmax_laplace
print(softmax_laplace(np.ones(3) / 3, 1e9)[0].round(5).tolist())
from edgeveil.evaluation.inference import InferenceSession
import edgeveil_edge.predict
graph = open(sys.argv[1], "rb").read()
one = InferenceSession(graph, sha256(graph).digest(), classes=3)
weights = {"centre": np.zeros(4), "radius": np.ones(1), "weight": np.zeros((4, 3))}
found = one.summed_softmax(np.ones((2, 4), np.float32), weights) / 2.0**31
print(found.round(5).tolist())
"""


def test_a_box_that_only_infers_needs_neither_torch_nor_scipy(tmp_path):
    (tmp_path / "g.onnx").write_bytes(GRAPH)
    run = [sys.executable, "-c", CODE, tmp_path / "g.onnx"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.stdout == "[0.33333, 0.33333, 0.33333]\n" * 2, done.stderr


KEY = b"k" * 32


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


def test_a_record_on_which_the_run_fails_counts_zero_by_itself(monkeypatch):
    monkeypatch.setattr(inference, "check_graph", lambda graph: None)  # as if one slipped through
    one = session(steered(), 2)
    x = np.zeros((5, 1), np.float32)
    before = one.summed_softmax(x, {})
    assert np.allclose(before / 2.0**RECORD_BITS, [4.5, 0.5])
    x[3] = 7
    assert np.array_equal(one.summed_softmax(x, {}) * 5, before * 4)


@pytest.mark.parametrize("values", [29, 30, 31, 32])
def test_removing_a_record_changes_its_own_slot_and_part_of_the_sum_alone(values):
    one, slots = session(order_of_sums(values), 2), 32
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
    one = session()
    x = np.random.default_rng(4).normal(size=(5, 4)).astype(np.float32)
    assert one.summed_softmax(x, WEIGHTS).any()
    assert not one.summed_softmax(x, WEIGHTS, row_s).any()
    held = np.arange(5)
    assert (one.slot_softmax(x, WEIGHTS, held, row_s) == 1 / 3).all()
    assert not (one.slot_softmax(x, WEIGHTS, held) == 1 / 3).all()


def at(values, offset):
    """`values` as float32, `offset` floats past an aligned address."""
    memory = np.zeros(values.size + 64, np.float32)
    start = -(memory.ctypes.data // 4) % 16 + offset
    found = memory[start : start + values.size].reshape(values.shape)
    found[...] = values
    return found


def summing(values):
    """Column 0: the sum of the record; column 1: that of the weight."""
    nodes = [
        node("ReduceSum", ["x", "axes"], ["left"], keepdims=1),
        node("ReduceSum", ["weight", "axes"], ["right"], keepdims=1),
        node("Concat", ["left", "right"], ["probabilities"], axis=1),
    ]
    inputs, output = {"x": ("N", values), "weight": (1, values)}, {"probabilities": ("N", 2)}
    return OnnxModel(model(nodes, inputs, output, {"axes": np.array([1])}))


@pytest.mark.parametrize("values", [30, 31, 65])
def test_neither_a_records_nor_a_weights_place_in_memory_changes_a_bit(values):
    model, rng = summing(values), np.random.default_rng(1)
    record, weight = (rng.normal(size=(2, 1, values)) * 100).astype(np.float32)
    found = {
        model.probabilities(at(record, i), {"weight": at(weight, j)}).tobytes()
        for i in range(16)
        for j in range(16)
    }
    assert len(found) == 1


def test_a_graph_that_reshapes_runs_on_no_records_too():
    text = Path("tests/kits/quickstart.yaml").read_text("utf-8")
    entry = "{name: pictures, input_scale: 16, image: [8, 8]}"
    plan = parse_plan(text.replace("{name: identity, input_scale: 16, shift: -0.3}", entry))
    weights = plan.graph_weights(plan.cloud.model(plan.cloud.initial_state()))
    model = OnnxModel(plan.graph())
    assert model.probabilities(np.zeros((0, 64), np.float32), weights).shape == (0, 10)
    rehearse_device(plan, plan.graph(), trains=True, records=0, processor="cpu")
