"""`edgeveil predict`: the released model on the owner's own file. Never imports torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import require_file
from edgeveil.errors import DataError, UsageError
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.parts.sources.csvfile import read_matrix
from edgeveil.parts.sources.npz import npy_array, npz_array
from edgeveil_edge.releases import ReleaseStore

RELEASES = "releases"  # the folder of models inside a device's state folder


def predict(model: Path, input_file: Path, out: str = "text") -> int:
    """Print label and probability of each record of `input_file`; returns the exit code 0.

    `model` is an ONNX file or a device's state folder, whose release in use is then taken.
    `input_file` is .npz (array `x`), .npy or .csv (values alone); one record may come without
    its record axis. `out` is `text` or `json`. Raises DataError or UsageError.
    """
    if out not in ("text", "json"):
        raise UsageError(f"unknown output '{out}'", where="--out", fix="use text or json")
    path, name = _model_file(model)
    session = OnnxModel(path.read_bytes())
    if session.weight_names:
        raise DataError(
            f"has no weights of its own: {sorted(session.weight_names)}",
            where=str(path),
            fix="use a released model",
        )
    x = _records(require_file(input_file, "the input file"), session.input_shape)
    found = session.probabilities(x, {})
    labels = np.argmax(found, axis=1)
    sound = np.asarray(np.isfinite(found).all(axis=1))
    if out == "json":
        rows = [
            {"label": int(k), "probabilities": p.tolist()} if ok else {"label": None}
            for k, p, ok in zip(labels, found, sound, strict=True)
        ]
        print(json.dumps({"model": name, "predictions": rows}))
        return 0
    print(f"model {name}")
    for index, (label, row, ok) in enumerate(zip(labels, found, sound, strict=True), start=1):
        text = f"class {label}  probability {row[label]:.3f}" if ok else "not a usable record"
        print(f"{index:>6}  {text}")
    return 0


def rollback(state_dir: Path) -> int:
    """Put the release before this one in use again, and say which; returns 0."""
    earlier = ReleaseStore(state_dir / RELEASES).rollback()
    print(f"now in use: {earlier.version}")
    return 0


def _model_file(model: Path) -> tuple[Path, str]:
    if not model.is_dir():
        return require_file(model, "the model"), model.name
    release = ReleaseStore(model / RELEASES).current()
    if release is None:
        raise UsageError(
            "holds no released model yet",
            where=str(model),
            fix="wait until a job is completed, or name an ONNX file",
        )
    return release.path, release.version


def _records(file: Path, shape: tuple[int | None, ...]) -> NDArray[np.float32]:
    values: NDArray[Any]
    if file.suffix == ".npz":
        values = npz_array(file, "x")
    elif file.suffix == ".npy":
        values = npy_array(file)
    elif file.suffix == ".csv":
        values = read_matrix(file, need_header=False)[1]
    else:
        raise UsageError(f"unknown kind '{file.suffix}'", where=str(file), fix="use npz, npy, csv")
    per_record = int(np.prod([axis or 1 for axis in shape], dtype=np.int64))
    if None in shape:
        return np.asarray(values, np.float32)
    sizes = (axis for axis in shape if axis is not None)
    one_record = values.shape == shape
    if not one_record and (values.ndim < 2 or values[:1].size != per_record or not len(values)):
        raise DataError(
            f"has shape {values.shape}, the model takes (records, {', '.join(map(str, shape))})",
            where=str(file),
            fix="store values alone, without labels",
        )
    return np.asarray(values, np.float32).reshape(-1, *sizes)
