"""`edgeveil.predict`: a released model on the owner's own records. Never imports torch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import require_file
from edgeveil.errors import DataError, EdgeVeilError, UsageError, needs_extra
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.parts.sources.csvfile import read_matrix
from edgeveil.parts.sources.npz import npy_array, npz_array
from edgeveil_edge.personal import personal_model
from edgeveil_edge.release_trial import run_trial
from edgeveil_edge.releases import InstalledRelease, ReleaseStore

RELEASES = "releases"  # the folder of models inside a device's state folder


@dataclass(frozen=True)
class Predictions:
    """What a model says of records: `probabilities` (records, classes), of model `model`.

    A row with NaN or infinity is that of an unusable record.
    """

    model: str
    probabilities: NDArray[np.float64]
    stale: str = ""  # why a newer release than this one may be withheld, or ""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The likeliest class of each record (records,); -1 for an unusable one."""
        return np.where(self._sound, np.argmax(self.probabilities, axis=1), -1)

    @property
    def _sound(self) -> NDArray[np.bool_]:
        return np.asarray(np.isfinite(self.probabilities).all(axis=1))

    def table(self) -> list[dict[str, Any]]:
        """A row for each record: its number from 1, label and probability, None if unusable."""
        return [
            {
                "record": number,
                "label": int(label) if label >= 0 else None,
                "probability": float(row[label]) if label >= 0 else None,
            }
            for number, (label, row) in enumerate(
                zip(self.labels, self.probabilities, strict=True), start=1
            )
        ]

    def plain(self) -> list[dict[str, Any]]:
        """For JSON: {label, probabilities} of each record, {label: null} of an unusable one."""
        return [
            {"label": int(label), "probabilities": row.tolist()} if label >= 0 else {"label": None}
            for label, row in zip(self.labels, self.probabilities, strict=True)
        ]


@needs_extra("infer")
def predict(
    model: str | Path, records: str | Path | NDArray[Any], *, personal: bool = False
) -> Predictions:
    """Class and probabilities of records, by a released model; nothing leaves this machine.

    `model` is an ONNX file or a device's state folder, whose release in use is then taken.
    `records` is an array (records, …) or a file: .npz (array `x`), .npy or .csv (values alone);
    one record may come without its record axis. A release that does not run any more is left for
    the one before it. `personal`: the model that this device made of its release for itself.
    Raises DataError or UsageError.
    """
    if personal and not Path(model).is_dir():
        raise UsageError(
            "is no device's state folder", where=str(model), fix="name it, or leave out --personal"
        )
    if not Path(model).is_dir():
        path = require_file(Path(model), "the model")
        return Predictions(path.name, _probabilities(path, records))
    store = ReleaseStore(Path(model) / RELEASES)
    release = _in_use(store, Path(model))
    stale = stale_since(release, time.time())
    if stale and store.stops_expired:
        raise UsageError(
            stale,
            where=str(model),
            fix="see that this device reaches the proxy, or set policy.on_expired_release: warn",
        )
    if personal:
        path, about = personal_model(Path(model), release)
        return Predictions(f"{about.release}, personal", _probabilities(path, records), stale)
    try:
        found = _probabilities(release.path, records)
    except Exception as error:
        _leave_broken(store, release, error)
        raise
    return Predictions(release.version, found, stale)


def stale_since(release: InstalledRelease, now_s: float) -> str:
    """That the cloud has not renewed this release in time, or ""."""
    if not release.expired(now_s):
        return ""
    since = datetime.fromtimestamp(release.expires_s, UTC)
    return f"the release {release.version} is stale since {since:%F %R} UTC: it was not renewed"


def _leave_broken(store: ReleaseStore, release: InstalledRelease, error: Exception) -> None:
    """Go back where the release itself fails, on made-up records too, and not the input.

    The device's process then reports it as rolled back. Raises DataError in place of `error`.
    """
    if not run_trial(release.path.read_bytes()):
        return
    try:
        then = f"{store.rollback(broken=True).version} takes its place"
    except EdgeVeilError:
        then = "and none is there before it"
    raise DataError(
        f"does not run any more ({error}); {then}",
        where=release.version,
        fix="run it again, or wait for the next release",
    ) from error


def _probabilities(path: Path, records: str | Path | NDArray[Any]) -> NDArray[np.float64]:
    session = OnnxModel(path.read_bytes())
    if session.weight_names:
        raise DataError(
            f"has no weights of its own: {sorted(session.weight_names)}",
            where=str(path),
            fix="use a released model",
        )
    if isinstance(records, str | Path):
        file = require_file(Path(records), "the input file")
        x = as_records(read_values(file), session.input_shape, str(file))
    else:
        try:
            given = np.asarray(records)
        except ValueError:
            raise DataError("are no numbers", where="records", fix="pass an array") from None
        x = as_records(given, session.input_shape, "records")
    return session.probabilities(x, {})


def rollback(state_dir: str | Path) -> str:
    """Put the release before this one in use again; returns its version."""
    return ReleaseStore(Path(state_dir) / RELEASES).rollback().version


def _in_use(store: ReleaseStore, model: Path) -> InstalledRelease:
    release = store.current()
    if release is None:
        raise UsageError(
            "holds no released model yet",
            where=str(model),
            fix="wait until a job is completed, or name an ONNX file",
        )
    return release


def read_values(file: Path) -> NDArray[Any]:
    """The values of a file of records, of whatever shape. Raises DataError or UsageError."""
    if file.suffix == ".npz":
        return npz_array(file, "x")
    if file.suffix == ".npy":
        return npy_array(file)
    if file.suffix == ".csv":
        return read_matrix(file, need_header=False)[1]
    raise UsageError(f"unknown kind '{file.suffix}'", where=str(file), fix="use npz, npy, csv")


def as_records(
    values: NDArray[Any], shape: tuple[int | None, ...], where: str
) -> NDArray[np.float32]:
    """The values as records of the model's shape. Raises DataError."""
    per_record = int(np.prod([axis or 1 for axis in shape], dtype=np.int64))
    values = _numbers(values, where)
    if None in shape:
        return values
    sizes = (axis for axis in shape if axis is not None)
    one_record = values.shape == shape
    if not one_record and (values.ndim < 2 or values[:1].size != per_record or not len(values)):
        raise DataError(
            f"has shape {values.shape}, the model takes (records, {', '.join(map(str, shape))})",
            where=where,
            fix="store values alone, without labels",
        )
    return values.reshape(-1, *sizes)


def _numbers(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    if values.dtype.kind not in "biuf":
        raise DataError("are no real numbers", where=where, fix="store numbers alone")
    with np.errstate(over="ignore"):
        found = values.astype(np.float32, copy=False)
    if (np.isinf(found) & ~np.isinf(values)).any():
        raise DataError("has values beyond 3e38", where=where, fix="scale them as for training")
    return found
