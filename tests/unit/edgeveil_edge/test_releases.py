"""Releases: installed whole or not at all, kept, rolled back; and predicting with them."""

from pathlib import Path

import numpy as np
import pytest

from edgeveil.errors import DataError, UsageError
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models.heads import bake, build_graph, head_probabilities
from edgeveil_edge import releases
from edgeveil_edge.predict import predict, rollback
from edgeveil_edge.releases import ReleaseStore
from edgeveil_tools.cli import main

FEATURES = Identity(IdentityParameters())
GRAPH = build_graph(FEATURES, (2,), 3)
X = np.array([[1, 0], [0, 1], [3, 3]], np.float32)


def weights(turn=0):
    return {
        "centre": np.zeros(2, np.float32),
        "radius": np.full(1, 0.1, np.float32),
        "weight": np.roll(np.array([[5, 0, 1], [0, 5, 1]], np.float32), turn, axis=1),
    }


def model(turn=0):
    return bake(GRAPH, weights(turn))


def test_previous_versions_are_kept_up_to_the_limit(tmp_path):
    store = ReleaseStore(tmp_path, keep=3)
    for k in range(5):
        store.install("a", b"model %d" % k, {})
    assert store.history() == ["0003-a", "0004-a", "0005-a"]
    assert sorted(path.name for path in (tmp_path / "versions").iterdir()) == store.history()


def test_rollback_and_a_redelivery_does_not_undo_it(tmp_path):
    store = ReleaseStore(tmp_path)
    first = store.install("a", b"one", {})
    store.install("a", b"two", {})
    assert store.rollback() == first
    assert store.current() == first
    assert store.install("a", b"two", {}) == first
    third = store.install("a", b"three", {})
    assert store.current() == third
    assert store.rollback() == first
    with pytest.raises(UsageError, match="no earlier version"):
        store.rollback()
    with pytest.raises(UsageError):
        ReleaseStore(tmp_path / "none").rollback()


def test_a_damaged_model_is_refused_and_can_be_left(tmp_path):
    store = ReleaseStore(tmp_path)
    first = store.install("a", b"one", {})
    second = store.install("a", b"two", {})
    second.path.write_bytes(b"tvo")
    with pytest.raises(DataError, match="changed after it was installed"):
        store.current()
    assert store.rollback() == first
    first.path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        store.current()
    assert store.install("a", b"four", {}).path.read_bytes() == b"four"


STEPS = [(releases, "write_durably"), (Path, "rename"), (ReleaseStore, "_point")]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[1])
def test_a_crash_at_any_step_leaves_the_old_version_in_use(tmp_path, monkeypatch, step):
    """Power fails at that step: everything before it is done, nothing after."""
    store = ReleaseStore(tmp_path)
    old = store.install("a", b"one", {})

    def fail(*_args, **_more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*step, fail)
        store.install("a", b"two", {})
    again = ReleaseStore(tmp_path)
    assert again.current() == old
    new = again.install("a", b"two", {})
    assert again.current() == new
    assert new.path.read_bytes() == b"two"
    assert len(list((tmp_path / "versions").iterdir())) == 2


@pytest.mark.parametrize("text", ["", "[]", '{"history": ["../../etc"], "withdrawn": []}'])
def test_a_spoilt_pointer_is_refused(tmp_path, text):
    store = ReleaseStore(tmp_path)
    store.install("a", b"one", {})
    (tmp_path / "current.json").write_text(text)
    with pytest.raises(DataError, match=r"current\.json"):
        store.current()


@pytest.fixture
def inputs(tmp_path):
    np.savez(tmp_path / "x.npz", x=X)
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    np.savetxt(tmp_path / "x.csv", X, delimiter=",")
    return tmp_path


@pytest.mark.parametrize("kind", ["npz", "npy", "csv", "array"])
def test_predict_equals_numpy(inputs, kind):
    (inputs / "m.onnx").write_bytes(model())
    found = predict(inputs / "m.onnx", X if kind == "array" else inputs / f"x.{kind}")
    wanted = head_probabilities(FEATURES(X), weights())
    assert found.model == "m.onnx"
    assert list(found.labels) == [0, 1, int(wanted[2].argmax())]
    assert np.allclose([one["probabilities"] for one in found.plain()], wanted, atol=1e-6)


def test_predict_with_the_release_in_use_and_after_a_rollback(inputs, capsys):
    store = ReleaseStore(inputs / "releases")
    store.install("job", model(), {})
    store.install("job", model(turn=1), {})
    newer = predict(str(inputs), inputs / "x.npz")
    assert main(["predict", str(inputs), "--rollback"]) == 0
    assert capsys.readouterr().out == "now in use: 0001-job\n"
    older = predict(inputs, X)
    assert (newer.model, older.model) == ("0002-job", "0001-job")
    assert (newer.labels[0], older.labels[0]) == (1, 0)
    with pytest.raises(UsageError):
        rollback(inputs)


def test_predict_takes_one_record_and_marks_unusable_ones(inputs):
    (inputs / "m.onnx").write_bytes(model())
    assert predict(inputs / "m.onnx", X[1]).table()[0]["label"] == 1
    found = predict(inputs / "m.onnx", np.array([[np.nan, 0], [1, 0]]))
    assert [row["label"] for row in found.table()] == [None, 0]
    assert list(found.labels) == [-1, 0]
    assert found.plain()[0] == {"label": None}


def test_predict_refusals(inputs):
    (inputs / "m.onnx").write_bytes(model())
    (inputs / "open.onnx").write_bytes(GRAPH)
    np.save(inputs / "wide.npy", np.ones((2, 5)))
    np.save(inputs / "none.npy", np.ones((0, 2)))
    (inputs / "x.txt").write_text("1")
    with pytest.raises(UsageError, match="no released model"):
        predict(inputs, inputs / "x.npz")
    with pytest.raises(DataError, match="released model"):
        predict(inputs / "open.onnx", inputs / "x.npz")
    for name in ("wide", "none"):
        with pytest.raises(DataError, match="without labels"):
            predict(inputs / "m.onnx", inputs / f"{name}.npy")
    with pytest.raises(UsageError, match=r"'\.txt'"):
        predict(inputs / "m.onnx", inputs / "x.txt")
    with pytest.raises(DataError, match="no such file"):
        predict(inputs / "m.onnx", inputs / "absent.npz")
    with pytest.raises(DataError, match="numbers"):
        predict(inputs / "m.onnx", [["a", "b"]])
