import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.external_data_helper import set_external_data

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
from edgeveil.parts.features.onnx import Backbone, Form, cached_backbone, check_batches, sha256_hex
from tests.kits.backbone_files import model, node, small_backbone

BACKBONE = small_backbone()
ONES = np.ones(4, np.float32)
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
    (folder / file).write_bytes(graph)
    (folder / "job.yaml").write_text(JOB.replace("FILE", file))
    return folder / "job.yaml"


@pytest.mark.parametrize("form", [(64,), (8, 8), (1, 8, 8)])
def test_a_record_takes_the_form_that_the_model_wants(form):
    flatten = node("Reshape", ["image", "flat"], ["a"])
    linear = node("MatMul", ["a", "weights"], ["features"])
    weights = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    constants = {"flat": np.array([-1, 64]), "weights": weights}
    graph = model([flatten, linear], {"image": ("N", *form)}, {"features": ("N", 3)}, constants)
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


def test_another_backbone_than_named_does_not_run():
    digest = sha256_hex(BACKBONE)
    with pytest.raises(DataError, match="another backbone"):
        check_backbones([entry()], {digest: small_backbone(seed=1)})
    with pytest.raises(DataError, match="another form"):
        check_backbones([entry(features=7)], {digest: BACKBONE})
    check_backbones([entry()], {digest: BACKBONE})


def file_beside():
    graph = model([node("Add", ["x", "w"], ["y"])], {"x": ("N", 4)}, {"y": ("N", 4)}, {"w": ONES})
    loaded = onnx.load_model_from_string(graph)
    set_external_data(loaded.graph.initializer[0], "/etc/hostname")
    loaded.graph.initializer[0].ClearField("raw_data")
    return loaded.SerializeToString()


def whole_numbers():
    ends = [helper.make_tensor_value_info(n, TensorProto.INT64, ["N", 4]) for n in "xy"]
    graph = helper.make_graph([node("Abs", ["x"], ["y"])], "g", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


X, Y, RELU = {"x": ("N", 4)}, {"y": ("N", 4)}, [node("Relu", ["x"], ["y"])]
NORM = [node("BatchNormalization", ["x", *"sbmv"], ["y"], training_mode=1)]
ODD = [
    (model([node("Add", ["x", "z"], ["y"])], {**X, "z": ("N", 4)}, Y), "has 2 inputs"),
    (model([*RELU, node("Abs", ["x"], ["z"])], X, {**Y, "z": ("N", 4)}), "has 2 outputs"),
    (model(RELU, {"x": ()}, {"y": ()}), "input of shape"),
    (model(RELU, {"x": ("N", "M")}, {"y": ("N", "M")}), "input of shape"),
    (model(RELU, {"x": (3, 4)}, {"y": (3, 4)}), "batches of exactly 3"),
    (model([node("NonZero", ["x"], ["y"])], X, Y), "'NonZero', which a device does not run"),
    (model(NORM, X, Y, dict.fromkeys("sbmv", ONES)), "normalises by the batch"),
    (file_beside(), "file outside itself"),
    (b"not a model", "no ONNX model"),
    (whole_numbers(), "tensor\\(int64\\)"),
]


@pytest.mark.parametrize(("graph", "said"), ODD, ids=range(len(ODD)))
def test_what_is_no_backbone_is_refused_with_a_fix(graph, said):
    with pytest.raises(DataError, match=said) as caught:
        Backbone(graph)
    assert caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize("opset", [13, 15, 17, 18, 20])
def test_opsets_around_are_brought_to_the_jobs(opset):
    check_batches(small_backbone(opset=opset))


def test_a_model_for_one_record_is_taken_if_it_holds_for_several():
    check_batches(small_backbone(batch=1))


def test_a_model_whose_shapes_are_made_for_one_record_is_refused():
    constants = {"flat": np.array([1, 64])}
    graph = model(
        [node("Reshape", ["x", "flat"], ["y"])], {"x": (1, 8, 8)}, {"y": (1, 64)}, constants
    )
    Backbone(graph)
    with pytest.raises(DataError, match="several records") as caught:
        check_batches(graph)
    assert "free batch axis" in caught.value.fix


def test_a_model_that_mixes_records_is_refused():
    constants = {"axes": np.array([0])}
    graph = model(
        [node("ReduceSum", ["x", "axes"], ["m"], keepdims=1), node("Add", ["x", "m"], ["y"])],
        {"x": ("N", 4)},
        {"y": ("N", 4)},
        constants,
    )
    with pytest.raises(DataError, match="several records"):
        check_batches(graph)


def test_a_job_file_names_a_file_and_the_job_its_digest(tmp_path):
    job = load_job(written(tmp_path))
    found = job.features[0]
    assert (found.sha256, found.input_form, found.output_dim) == (
        sha256_hex(BACKBONE),
        (1, 8, 8),
        6,
    )
    assert str(tmp_path).encode() not in job.canonical()
    assert b'"file"' not in job.canonical()
    again = Job.from_canonical(job.canonical())
    assert again.digest() == job.digest()
    assert backbone_digests(again.features) == (sha256_hex(BACKBONE),)
    assert read_backbones(job.features) == {sha256_hex(BACKBONE): BACKBONE}
    assert read_backbones(again.features) == {}
    x = np.ones((1, 64), np.float32)
    there = build_features(again.features, {sha256_hex(BACKBONE): BACKBONE})
    np.testing.assert_array_equal(build_features(job.features)(x), there(x))


def test_a_job_that_was_sent_opens_no_file(tmp_path):
    text = written(tmp_path).read_text()
    with pytest.raises(ConfigError, match="names no file"):
        parse_job(text)
    job = load_job(tmp_path / "job.yaml")
    spelled = job.canonical().replace(b'"input_form"', b'"file":"/dev/zero","input_form"')
    with pytest.raises(ProtocolError) as caught:
        Job.from_canonical(spelled)
    assert caught.value.reason == "bad_job"


@pytest.mark.parametrize(
    ("file", "graph", "said"),
    [
        ("absent.onnx", None, "cannot be read"),
        ("odd.onnx", b"no model", "no ONNX model"),
        ("other.onnx", small_backbone(side=10), "takes [1, 10, 10]"),
    ],
)
def test_problems_of_a_backbone_are_problems_of_the_job_file(tmp_path, file, graph, said):
    if graph:
        (tmp_path / file).write_bytes(graph)
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("FILE", file))
    with pytest.raises(ConfigError) as caught:
        load_job(path)
    (problem,) = caught.value.problems
    assert said in problem
    assert "job.yaml:4 features" in problem


def test_the_trained_encoder_is_named_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = cached_backbone("digits")
    assert place == tmp_path / "cache" / "edgeveil" / "backbones" / "digits.onnx"
    (tmp_path / "job.yaml").write_text(JOB.replace("FILE", "digits"))
    with pytest.raises(ConfigError, match="edgeveil backbone digits"):
        load_job(tmp_path / "job.yaml")
    place.parent.mkdir(parents=True)
    place.write_bytes(BACKBONE)
    assert load_job(tmp_path / "job.yaml").features[0].sha256 == sha256_hex(BACKBONE)


def test_backbones_are_matched_by_digest():
    other = small_backbone(seed=1)
    entries = [entry(), entry(other), entry()]
    assert match_artifacts(backbone_digests(entries), [other, BACKBONE]) == {
        sha256_hex(BACKBONE): BACKBONE,
        sha256_hex(other): other,
    }
    assert match_artifacts([], []) == {}
