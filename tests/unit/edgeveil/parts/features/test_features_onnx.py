import numpy as np
import pytest
from onnx import TensorProto, helper

from edgeveil.errors import ConfigError, DataError, ProtocolError
from edgeveil.jobs import Job, load_job, parse_job
from edgeveil.parts.features import (
    OnnxParameters,
    backbone_digests,
    build_features,
    check_backbones,
    match_artifacts,
    read_backbones,
)
from edgeveil.parts.features.onnx import Backbone, Form, check_batches, sha256_hex
from tests.kits.backbone_files import model, node, small_backbone

BACKBONE = small_backbone()
JOB = """
job: frozen
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}
features: [{name: onnx, file: FILE, input_scale: 16}]
train: {method: fm}
privacy: {epsilon: 8}
"""


def entry(graph=BACKBONE, form=(1, 8, 8), features=6, **more):
    return OnnxParameters(
        name="onnx", sha256=sha256_hex(graph), input_form=form, output_dim=features, **more
    )


def written(folder, graph=BACKBONE, file="backbone.onnx"):
    if graph:
        (folder / file).write_bytes(graph)
    (folder / "job.yaml").write_text(JOB.replace("FILE", file))
    return folder / "job.yaml"


@pytest.mark.parametrize("form", [(64,), (8, 8), (1, 8, 8)])
def test_a_record_takes_the_form_that_the_model_wants(form):
    nodes = [node("Reshape", ["x", "flat"], ["a"]), node("MatMul", ["a", "weights"], ["y"])]
    weights = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    constants = {"flat": np.array([-1, 64]), "weights": weights}
    graph = model(nodes, {"x": ("N", *form)}, {"y": ("N", 3)}, constants)
    assert Backbone(graph).form == Form(form, 3)
    phi = build_features([entry(graph, form, 3, input_scale=1.0)], {sha256_hex(graph): graph})
    x = np.random.default_rng(1).normal(size=(5, 4, 16)).astype(np.float32)
    raw = x.reshape(5, 64) @ weights
    wanted = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(phi(x), wanted, atol=1e-5)


def test_output_that_is_not_finite_gives_zeros():
    graph = model([node("Log", ["x"], ["y"])], {"x": ("N", 2)}, {"y": ("N", 2)})
    phi = build_features([entry(graph, (2,), 2, input_scale=1.0)], {sha256_hex(graph): graph})
    found = phi(np.array([[2.0, 3.0], [-1.0, 3.0], [0.0, 3.0]], np.float32))
    assert found[0].all()
    assert not found[1:].any()


def test_without_the_backbone_only_the_dimension_is_known():
    phi = build_features([entry()])
    assert phi.output_dim((64,)) == 6
    with pytest.raises(DataError, match="not here"):
        phi(np.zeros((1, 64), np.float32))
    digest, other = sha256_hex(BACKBONE), small_backbone(seed=1)
    for named, graph in ((entry(), other), (entry(features=7), BACKBONE)):
        with pytest.raises(DataError, match="another"):
            check_backbones([named], {digest: graph})
    check_backbones([entry()], {digest: BACKBONE})
    entries = [entry(), entry(other), entry()]
    matched = match_artifacts(backbone_digests(entries), [other, BACKBONE])
    assert matched == {digest: BACKBONE, sha256_hex(other): other}


def whole_numbers():
    ends = [helper.make_tensor_value_info(n, TensorProto.INT64, ["N", 4]) for n in "xy"]
    graph = helper.make_graph([node("Abs", ["x"], ["y"])], "g", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


X, Y, RELU = {"x": ("N", 4)}, {"y": ("N", 4)}, [node("Relu", ["x"], ["y"])]
ODD = [
    (model([node("Add", ["x", "z"], ["y"])], {**X, "z": ("N", 4)}, Y), "has 2 inputs"),
    (model([*RELU, node("Abs", ["x"], ["z"])], X, {**Y, "z": ("N", 4)}), "has 2 outputs"),
    (model(RELU, {"x": ()}, {"y": ()}), "input of shape"),
    (model(RELU, {"x": ("N", "M")}, {"y": ("N", "M")}), "input of shape"),
    (model(RELU, {"x": (3, 4)}, {"y": (3, 4)}), "batches of exactly 3"),
    (model([node("NonZero", ["x"], ["y"])], X, Y), "'NonZero', which a device does not run"),
    (b"not a model", "no ONNX model"),
    (whole_numbers(), "tensor\\(int64\\)"),
]


@pytest.mark.parametrize(("graph", "message"), ODD, ids=range(len(ODD)))
def test_what_is_no_backbone_is_refused_with_a_fix(graph, message):
    with pytest.raises(DataError, match=message) as caught:
        Backbone(graph)
    assert caught.value.where and caught.value.fix


FORM_OF_ONE = {"flat": np.array([1, 64])}
MEAN = node("ReduceSum", ["x", "axes"], ["m"], keepdims=1), node("Add", ["x", "m"], ["y"])
UNFREE = [  # shapes that are made for one record, and a mixture of records
    model([node("Reshape", ["x", "flat"], ["y"])], {"x": (1, 8, 8)}, {"y": (1, 64)}, FORM_OF_ONE),
    model(list(MEAN), X, Y, {"axes": np.array([0])}),
]


@pytest.mark.parametrize("graph", UNFREE, ids=range(2))
def test_a_model_that_does_not_take_several_records_is_refused(graph):
    Backbone(graph)
    with pytest.raises(DataError, match="a batch other features"):
        check_batches(graph)


@pytest.mark.parametrize("given", [*({"opset": k} for k in (13, 15, 18, 20)), {"batch": 1}])
def test_opsets_around_and_one_record_are_brought_to_the_jobs(given):
    check_batches(small_backbone(**given))


def test_a_job_file_names_a_file_and_the_job_its_digest(tmp_path):
    job, digest = load_job(written(tmp_path)), sha256_hex(BACKBONE)
    (found,) = job.features
    assert (found.sha256, found.input_form, found.output_dim) == (digest, (1, 8, 8), 6)
    raw = job.canonical()
    assert str(tmp_path).encode() not in raw and b'"file"' not in raw
    again = Job.from_canonical(raw)
    assert again.digest() == job.digest()
    assert backbone_digests(again.features) == (digest,)
    assert read_backbones(job.features) == {digest: BACKBONE}
    assert read_backbones(again.features) == {}
    x = np.ones((1, 64), np.float32)
    there = build_features(again.features, {digest: BACKBONE})
    np.testing.assert_array_equal(build_features(job.features)(x), there(x))


def test_a_job_that_was_sent_opens_no_file(tmp_path):
    path = written(tmp_path)
    with pytest.raises(ConfigError, match="names no file"):
        parse_job(path.read_text())
    spelled = load_job(path).canonical()
    spelled = spelled.replace(b'"input_form"', b'"file":"/dev/zero","input_form"')
    with pytest.raises(ProtocolError) as caught:
        Job.from_canonical(spelled)
    assert caught.value.reason == "bad_job"


@pytest.mark.parametrize(
    ("file", "graph", "message"),
    [
        ("absent.onnx", None, "cannot be read"),
        ("odd.onnx", b"no model", "no ONNX model"),
        ("other.onnx", small_backbone(side=10), "takes [1, 10, 10]"),
        ("digits", None, "edgeveil backbone digits"),  # the name of a trained encoder
    ],
)
def test_problems_of_a_backbone_are_problems_of_the_job_file(
    tmp_path, monkeypatch, file, graph, message
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        load_job(written(tmp_path, graph, file))
    (problem,) = caught.value.problems
    assert message in problem
    assert "job.yaml:4 features" in problem
