"""The global model on a device: total in its records, without torch, one session a job."""

import subprocess
import sys
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgeveil.data.split import EMPTY
from edgeveil.errors import DataError, ProtocolError
from edgeveil.evaluation.inference import InferenceSession
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
    """A small graph of our own with output `probabilities`."""
    return model(nodes, inputs, {"probabilities": ("N", 3)})


def summed(one, x, weights):
    """In probabilities."""
    return one.summed_softmax(x, weights) / 2.0**RECORD_BITS


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
    with pytest.raises(DataError, match=r"needs the weights \['radius'\]"):
        session().summed_softmax(x, {k: v for k, v in WEIGHTS.items() if k != "radius"})
    with pytest.raises(DataError, match="cannot be run"):
        session().summed_softmax(x, {**WEIGHTS, "weight": np.ones((5, 3), np.float32)})


def test_outputs_that_are_no_distribution_count_zero():
    identity = raw([node("Identity", ["x"], ["probabilities"])], {"x": ["N", 3]})
    x = np.array([[0.2, 0.3, 0.5], [1, 1, 1], [-1, 1, 1], [0, 0, 1]], np.float32)
    assert np.allclose(summed(session(identity), x, {}), [0.2, 0.3, 1.5])
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
    with pytest.raises(ProtocolError) as caught:
        InferenceSession(GRAPH, bytes(32), classes=3)
    assert caught.value.reason == "graph_digest"
    with pytest.raises(ProtocolError) as caught:
        InferenceSession(GRAPH, sha256(GRAPH).digest(), classes=3, max_bytes=10)
    assert caught.value.reason == "graph_size"


def test_bytes_that_are_no_graph_are_refused():
    for content in (b"", b"\x00" * 50, GRAPH[:-20]):
        with pytest.raises(DataError, match="ONNX graph"):
            session(content)
    nameless = raw([node("Identity", ["z"], ["probabilities"])], {"z": ["N", 3]})
    with pytest.raises(DataError, match="data input 'x'"):
        session(nameless)


SESSION = """
from hashlib import sha256
from edgeveil.evaluation.inference import InferenceSession
import edgeveil_edge.predict
graph = open(sys.argv[1], "rb").read()
one = InferenceSession(graph, sha256(graph).digest(), classes=3)
weights = {"centre": np.zeros(4), "radius": np.ones(1), "weight": np.zeros((4, 3))}
found = one.summed_softmax(np.ones((2, 4), np.float32), weights) / 2.0**31
"""
NOISE = """
import edgeveil.privacy.ledger, edgeveil.privacy.gaussian_mechanism, edgeveil.parts.methods
from edgeveil.privacy.laplace_mechanism import softmax_laplace
found = softmax_laplace(np.ones(3) / 3, 1e9)[0]
"""


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        (SESSION, ("torch", "onnx", "sklearn", "sqlalchemy", "aiohttp")),
        (NOISE, ("torch", "scipy", "onnx", "onnxruntime", "sklearn", "dp_accounting")),
    ],
)
def test_a_box_that_only_infers_needs_neither_torch_nor_scipy(code, missing, tmp_path):
    (tmp_path / "g.onnx").write_bytes(GRAPH)
    head = f"import sys\nimport numpy as np\nsys.modules |= dict.fromkeys({missing})\n"
    run = [sys.executable, "-c", f"{head}{code}\nprint(found.round(5).tolist())"]
    done = subprocess.run([*run, tmp_path / "g.onnx"], capture_output=True, text=True)
    assert done.stdout.strip() == "[0.33333, 0.33333, 0.33333]", done.stderr
