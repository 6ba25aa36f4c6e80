"""Releases: installed whole or not at all, kept, rolled back; and predicting with them."""

from pathlib import Path

import numpy as np
import pytest

from edgeveil.errors import DataError, UsageError
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models.heads import bake, build_graph, head_probabilities
from edgeveil_edge import releases
from edgeveil_edge.predict import ROOM_BYTES, predict, rollback
from edgeveil_edge.releases import ReleaseStore
from edgeveil_tools.cli import main
from tests.kits.memory_peak import peak_bytes

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


def test_rollback_and_a_redelivery_does_not_undo_it(tmp_path):
    store = ReleaseStore(tmp_path, keep=2)
    store.install("a", b"zero", {})
    first = store.install("a", b"one", {})
    store.install("a", b"two", {})
    assert store.history() == ["0002-a", "0003-a"]
    assert sorted(path.name for path in (tmp_path / "versions").iterdir()) == store.history()
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
    first, second = store.install("a", b"one", {}), store.install("a", b"two", {})
    second.path.write_bytes(b"tvo")
    with pytest.raises(DataError):
        store.current()
    assert store.rollback() == first
    first.path.unlink()
    with pytest.raises(DataError):
        store.current()
    assert store.install("a", b"four", {}).path.read_bytes() == b"four"
    for text in ("", "[]", '{"history": ["../../etc"], "withdrawn": []}'):
        (tmp_path / "current.json").write_text(text)
        with pytest.raises(DataError, match=r"current\.json"):
            store.current()


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


@pytest.fixture
def release(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    return path


def test_predict_equals_numpy_and_marks_unusable_records(release, tmp_path):
    np.savez(tmp_path / "x.npz", x=X)
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    np.savetxt(tmp_path / "x.csv", X, delimiter=",")
    wanted = head_probabilities(FEATURES(X), weights())
    for given in (X, *(tmp_path / f"x.{kind}" for kind in ("npz", "npy", "csv"))):
        found = predict(release, given)
        assert found.model == "m.onnx"
        assert list(found.labels) == [0, 1, int(wanted[2].argmax())]
        assert np.allclose([one["probabilities"] for one in found.plain()], wanted, atol=1e-6)
    assert predict(release, X[1]).table()[0]["label"] == 1  # a single record
    found = predict(release, np.array([[np.nan, 0], [1, 0]]))
    assert list(found.labels) == [-1, 0]
    assert [row["label"] for row in found.table()] == [None, 0]
    assert found.plain()[0] == {"label": None}


def test_predict_with_the_release_in_use_and_after_a_rollback(tmp_path, capsys):
    with pytest.raises(UsageError):  # nothing is released
        predict(tmp_path, X)
    store = ReleaseStore(tmp_path / "releases")
    for turn in (0, 1):
        store.install("job", model(turn), {})
    newer = predict(str(tmp_path), X)
    assert main(["predict", str(tmp_path), "--rollback"]) == 0
    assert "0001-job" in capsys.readouterr().out
    older = predict(tmp_path, X)
    assert (newer.model, older.model) == ("0002-job", "0001-job")
    assert (newer.labels[0], older.labels[0]) == (1, 0)
    with pytest.raises(UsageError):
        rollback(tmp_path)


def test_predict_refuses_what_is_no_model_or_no_records(release, tmp_path):
    (tmp_path / "open.onnx").write_bytes(GRAPH)
    np.save(tmp_path / "wide.npy", np.ones((2, 5)))
    (tmp_path / "x.txt").write_text("1")
    for onnx, records, kind in (
        (tmp_path / "open.onnx", X, DataError),
        (release, tmp_path / "wide.npy", DataError),
        (release, np.ones((0, 2)), DataError),
        (release, tmp_path / "x.txt", DataError),
        (release, tmp_path / "absent.npz", DataError),
        (release, [["a", "b"]], DataError),
    ):
        with pytest.raises(kind):
            predict(onnx, records)


@pytest.mark.parametrize("times", [1, 2])
def test_predict_refuses_a_small_file_of_many_records_before_it_takes_them(
    release, tmp_path, times
):
    """Also where the numbers would have room, and what the model tells of them would not."""
    file, rows = tmp_path / "x.npz", times * ROOM_BYTES // X[0].nbytes
    np.savez_compressed(file, x=np.zeros((rows, 2), np.float32))
    assert file.stat().st_size < ROOM_BYTES / 100

    def refused():
        with pytest.raises(DataError):
            predict(release, file)

    assert peak_bytes(refused) < (ROOM_BYTES / 8 if times == 2 else 3 * ROOM_BYTES)
