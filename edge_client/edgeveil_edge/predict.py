"""`edgeveil.predict`: a released model on the owner's own records. Never imports torch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.anomaly import ALARM_RATE, NAMES
from edgeveil.data.encoding import Encoded, pictures
from edgeveil.data.records import MAX_BYTES, require_file
from edgeveil.data.schema import DataSchema, schema_in
from edgeveil.data.target import TargetRange
from edgeveil.errors import DataError, UsageError, needs_extra
from edgeveil.evaluation.figures import (
    ACCURACY,
    anomaly_figures,
    baseline_text,
    baselines,
    classification_figures,
    regression_figures,
)
from edgeveil.evaluation.onnx_session import SCORE, VALUE, OnnxModel, RunLimit
from edgeveil.parts.sources import hf
from edgeveil.parts.sources.arrays import npy_array, npz_array
from edgeveil.parts.sources.audio import AUDIO_ENDINGS, encode_recordings, remarks_on
from edgeveil.parts.sources.guess import guess
from edgeveil.parts.sources.images import ENDINGS, encode_files, files_below
from edgeveil.parts.sources.memory import Arrays, Frame, opened, read_opened
from edgeveil.parts.sources.source import Origin
from edgeveil.parts.sources.tables import encode_csv, encode_jsonl, encode_parquet, read_matrix
from edgeveil_edge.release_trial import released_session, run_trial
from edgeveil_edge.releases import InstalledRelease, ReleaseStore

ROOM_RATIO, ROOM_BYTES = 100, 1 << 26  # see `room_for`
NUMBER_BYTES = 8  # of one number in a model's output
RELEASES = "releases"  # the folder of models inside a device's state folder


_TABLES = {"csv": encode_csv, "jsonl": encode_jsonl, "parquet": encode_parquet}
_UNKNOWN: dict[str, None] = {"label": None, "name": None}


@dataclass(frozen=True)
class Predictions:
    """Answers of model `model`: `probabilities` (records, classes).

    A row with NaN or infinity belongs to an unusable record. `given` (records,) are labels found
    with the records, -1 for none. A regression model has `values` (records,) in the unit of its
    range `target` instead of probabilities, an anomaly model `scores` (records,); with `alarms`, a
    score above 1 is an anomaly.
    """

    model: str
    probabilities: NDArray[np.float64]
    stale: str = ""  # why a newer release than this one may be withheld, or ""
    classes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    given: NDArray[np.int64] | None = None
    values: NDArray[np.float64] | None = None
    target: TargetRange | None = None
    scores: NDArray[np.float64] | None = None
    alarms: bool = False
    notes: tuple[str, ...] = ()  # what was guessed of the file, and counts of records
    unread: tuple[dict[str, Any], ...] = ()  # counts of a table's columns that have some
    index: Any = None  # of a DataFrame of pandas given as records

    @classmethod
    def of(cls, model: str, session: OnnxModel, found: NDArray[np.float64], **fields: Any) -> Self:
        """Build from a model's output. Raises DataError for a wrong class count or no range."""
        schema = schema_in(session.metadata, session.input_shape)
        if session.output == SCORE:
            none, alarms = np.zeros((len(found), 0)), ALARM_RATE in session.metadata
            return cls(model, none, scores=found[:, 0], alarms=alarms, **fields)
        if session.output != VALUE:
            classes = () if schema is None else schema.label.names
            if classes and found.shape[1] != len(classes):
                what = f"names {len(classes)} classes of {found.shape[1]}"
                raise DataError(what, where=model)
            return cls(model, found, classes=classes, **fields)
        if schema is None or schema.target is None:
            raise DataError("gives a number, and its schema has no range", where=model)
        none = np.zeros((len(found), 0))
        return cls(model, none, values=found[:, 0], target=schema.target, **fields)

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Likeliest class of each record (records,); 1 for an anomaly; -1 for none."""
        if self.scores is not None and self.alarms:
            return np.where(self._sound, self.scores > 1, -1)
        if self._number is not None:
            return np.full(len(self), -1)
        return np.where(self._sound, np.argmax(self.probabilities, axis=1), -1)

    @property
    def _number(self) -> NDArray[np.float64] | None:
        return self.values if self.scores is None else self.scores

    @property
    def _sound(self) -> NDArray[np.bool_]:
        found = self.probabilities if self._number is None else self._number[:, None]
        return np.asarray(np.isfinite(found).all(axis=1))

    @property
    def errors(self) -> Mapping[str, Any] | None:
        if self.given is None:
            return None
        if self.scores is not None:
            return anomaly_figures(self.scores, self.given, alarms=self.alarms) or None
        if self.values is None or self.target is None:
            return None
        return regression_figures(self.values, self.given, self.target) or None

    @property
    def accuracy(self) -> float | None:
        """Share of correct answers among records with a label; None without any."""
        if self.given is None or self._number is not None:
            return None
        known = (self.given >= 0) & self._sound
        return float((self.labels[known] == self.given[known]).mean()) if known.any() else None

    @property
    def baselines(self) -> dict[str, float]:
        """Reference figures for `accuracy` or an RMSE, see `evaluation.figures.baselines`."""
        if self.given is None or self._number is not None:
            return baselines(self.errors)
        sound = self._sound  # as of `accuracy`
        return baselines(classification_figures(self.probabilities[sound], self.given[sound]))

    @property
    def baseline(self) -> str:
        accuracy = self.accuracy
        return "" if accuracy is None else baseline_text(ACCURACY, accuracy, self.baselines)

    def table(self) -> list[dict[str, Any]]:
        """Return a row per record: number, file, label, name, probability; else as `plain`."""
        return list(self.table_rows())

    def table_rows(self) -> Iterator[dict[str, Any]]:
        for number, plain in enumerate(self.plain_rows(), start=1):
            if self._number is None:
                row, label = plain.pop("probabilities", ()), plain["label"]
                name = {"name": plain.get("name")} if self.classes else {}
                plain |= {**name, "probability": None if label is None else row[label]}
            yield {"record": number, **plain}

    @needs_extra("frames")
    def frame(self) -> Any:
        """Return `table` as a DataFrame of pandas, with the index of one given as records."""
        import pandas

        return pandas.DataFrame(self.table(), index=self.index).drop(columns="record")

    def plain(self) -> list[dict[str, Any]]:
        """Return {label, name, probabilities, file}, {value} or {score} per record, for JSON."""
        return list(self.plain_rows())

    def plain_rows(self) -> Iterator[dict[str, Any]]:
        if self.scores is not None:
            for score, label, sound in zip(self.scores, self.labels, self._sound, strict=True):
                plain: dict[str, Any] = {"score": float(score) if sound else None}
                if self.alarms:
                    known = label >= 0
                    plain |= {"label": int(label), "name": NAMES[label]} if known else _UNKNOWN
                yield plain
            return
        if self.values is not None:
            for value, sound in zip(self.values, self._sound, strict=True):
                yield {"value": float(value) if sound else None}
            return
        for at, (label, row) in enumerate(zip(self.labels, self.probabilities, strict=True)):
            file = {"file": self.files[at]} if self.files else {}
            if label < 0:
                yield {**file, "label": None}
                continue
            name = {"name": self.classes[label]} if self.classes else {}
            yield {**file, "label": int(label), **name, "probabilities": row.tolist()}


@needs_extra("infer")
def predict(model: str | Path, records: Any, *, personal: bool = False) -> Predictions:
    """Run a released model on records, on this machine. Raises DataError or UsageError.

    `model` is an ONNX file, or a device's state folder for its release in use. `records` is an
    array (records, …), one record without that axis, or a file: .npz (array `x`), .npy or .csv
    (values only); with a job's schema a table of any form that `edgeveil check FILE` reads, a
    DataFrame of pandas or polars, an Arrow table, one dict or several by columns' names, a
    picture, a recording, or a folder of them or of `save_to_disk`. A release that no longer runs
    is rolled back; `personal` uses the model of `edge personalise`.
    """
    folder = Path(model)
    if not folder.is_dir():
        if personal:
            what, fix = "is no device's state folder", "name it, or leave out --personal"
            raise UsageError(what, where=str(model), fix=fix)
        path = require_file(folder, "the model")
        return _predicted(path, path.name, records)
    store = ReleaseStore(folder / RELEASES)
    if (release := store.current()) is None:
        what, fix = "holds no released model yet", "wait for a completed job, or name an ONNX file"
        raise UsageError(what, where=str(model), fix=fix)
    stale = release.stale(time.time())
    if stale and store.stops_expired:
        fix = "see that this device reaches the proxy, or set policy.on_expired_release: warn"
        raise UsageError(stale, where=str(model), fix=fix)
    if personal:
        from edgeveil_edge.personal import personal_model  # most predictions are the release's

        path, about = personal_model(folder, release)
        return replace(_predicted(path, f"{about.release}, personal", records), stale=stale)
    try:
        found = _predicted(release.path, release.version, records)
    except Exception as error:
        _leave_broken(store, release, error)
        raise
    return replace(found, stale=stale)


def _leave_broken(store: ReleaseStore, release: InstalledRelease, error: Exception) -> None:
    if not run_trial(release.path.read_bytes()):
        return
    what = f"does not run any more ({error}); {store.leave_broken()}"
    fix = "run it again, or wait for the next release"
    raise DataError(what, where=release.version, fix=fix) from error


def _predicted(path: Path, called: str, records: Any) -> Predictions:
    session = released_session(path.read_bytes(), str(path))
    return run_on_records(session, called, records)


def run_on_records(
    session: OnnxModel, called: str, records: Any, limit_s: float = math.inf
) -> Predictions:
    """Run a loaded model, named `called`, on records within `limit_s`. Raises DataError."""
    schema = schema_in(session.metadata, session.input_shape)
    given = _given(records, schema, session.input_shape)
    with RunLimit(limit_s) as limit:
        if given.file is not None:
            one = session.answers(given.x[:1], {}, limit=limit)
            _check_answers(given.file, given.x, one.shape[1])
        found = session.answers(given.x, {}, limit=limit)
    notes = given.notes
    if unusable := int((~np.isfinite(found).all(axis=1)).sum()):
        why = "nothing of them was read, or a value is not finite"
        notes += (f"{unusable} of {len(found)} records were not usable: {why}",)
    about = {"files": given.files, "notes": notes, "unread": given.unread}
    index = given.index if len(given.x) == len(found) else None
    return Predictions.of(called, session, found, given=given.labels, index=index, **about)


@dataclass(frozen=True)
class GivenRecords:
    x: NDArray[np.float32]
    labels: NDArray[np.int64] | None = None
    files: tuple[str, ...] = ()
    file: Path | None = None  # its size limits the number of records
    notes: tuple[str, ...] = ()
    unread: tuple[dict[str, Any], ...] = ()
    index: Any = None  # of a DataFrame of pandas

    @classmethod
    def of(cls, found: Encoded, *, notes: tuple[str, ...] = (), **fields: Any) -> Self:
        """Take encoded records; one of which no column was read is no usable record."""
        x = found.records.x
        if found.readable is not None:
            readable = found.readable.reshape(-1, *[1] * (x.ndim - 1))
            x = np.where(readable, x, np.float32(np.nan))
        labels = found.records.y if found.labelled else None
        counts = [c for c in found.columns if c.missing + c.unreadable + c.clipped + c.unknown]
        notes, unread = (*notes, *found.remarks), tuple(map(vars, counts))
        return cls(x, labels, notes=notes, unread=unread, **fields)


def _check_answers(file: Path, x: NDArray[np.float32], numbers: int) -> None:
    most = room_for(file)
    each = x.itemsize * math.prod(x.shape[1:]) + NUMBER_BYTES * (numbers + 1)  # and the label
    if len(x) * each > most:
        what = f"holds {len(x)} records, more than the {most // each} allowed for its file size"
        fix = "split it"
        raise DataError(what, where=str(file), fix=fix)


def _given(records: Any, schema: DataSchema | None, shape: tuple[int | None, ...]) -> GivenRecords:
    if isinstance(records, GivenRecords):
        return records
    if not isinstance(records, str | Path):
        given = list(records) if isinstance(records, tuple) else records  # no pair (X, y)
        return _given_in_memory(opened(given, "records"), records, schema, shape)
    path = Path(records)
    if (path / hf.STATE).is_file():
        saved = Origin(path=path)
        if schema is not None:
            return GivenRecords.of(hf.encode_hf(saved, schema, labelled=None))
        return GivenRecords(as_records(hf.read_hf(saved).x, shape, str(path)))
    if path.is_dir() or path.suffix.lower() in ENDINGS | AUDIO_ENDINGS:
        return _given_files(path, schema)
    file = require_file(path, "the input file")
    most = room_for(file)
    if schema is not None and schema.columns is not None and file.suffix not in (".npz", ".npy"):
        found = guess(file, schema)
        origin = Origin(path=file, max_bytes=most, header=found.header, form=found.form)
        encoded = _TABLES[found.source](origin, found.schema or schema, labelled=None)
        return GivenRecords.of(encoded, file=file, notes=found.notes)
    values = _read(file, most)
    if schema is not None and schema.image is not None and values.ndim == len(shape) + 1:
        return GivenRecords(pictures(schema, _numbers(values, str(file)), str(file)), file=file)
    return GivenRecords(as_records(values, shape, str(file)), file=file)


def _given_in_memory(
    data: Frame | Arrays, records: Any, schema: DataSchema | None, shape: tuple[int | None, ...]
) -> GivenRecords:
    if isinstance(data, Arrays):
        return GivenRecords(as_records(data.x, shape, "records"))
    found, index = read_opened(data, schema, "records", labelled=None), None
    if type(records).__module__.partition(".")[0] == "pandas":
        index = records.index
    if schema is not None:
        return GivenRecords.of(found, index=index)
    x = as_records(found.records.x, shape, "records")
    return GivenRecords(x, found.records.y if found.labelled else None, index=index)


def room_for(file: Path) -> int:
    """Return the bytes allowed for a file's records and answers; packed zeros expand 1000-fold."""
    return min(MAX_BYTES, max(ROOM_BYTES, ROOM_RATIO * file.stat().st_size))


def _given_files(path: Path, schema: DataSchema | None) -> GivenRecords:
    """Read one picture or recording, or a folder of them with labels by the folders' names."""
    if schema is None or schema.kind == "columns":
        what = "holds pictures or recordings, and the model has no schema to read them by"
        fix = "store arrays as the job's devices have them, in an NPZ file"
        raise DataError(what, where=str(path), fix=fix)
    endings = ENDINGS if schema.kind == "image" else AUDIO_ENDINGS
    files = files_below(path, endings) if path.is_dir() else [require_file(path, "the input file")]
    if not files:
        what = f"holds no {' or '.join(sorted(endings))} file"
        raise DataError(what, where=str(path), fix="name a folder with some")
    numbers = {name: number for number, name in enumerate(schema.label.names)}
    labels = np.array([numbers.get(file.parent.name, -1) for file in files], np.int64)
    below = path if path.is_dir() else path.parent
    names = tuple(str(file.relative_to(below)) for file in files)
    if schema.kind == "image":
        return GivenRecords(encode_files(files, schema), labels, names)
    x, read = encode_recordings(files, schema)
    return GivenRecords(x, labels, names, notes=remarks_on(read, schema))


def rollback(state_dir: str | Path) -> str:
    return ReleaseStore(Path(state_dir) / RELEASES).rollback().version


def _read(file: Path, most: int) -> NDArray[Any]:
    if file.suffix == ".npz":
        return npz_array(file, "x", most)
    if file.suffix == ".npy":
        return npy_array(file, most)
    if (found := guess(file)).source == "csv":
        return read_matrix(file, most, need_header=False, form=found.form)[1]
    fix = "use npz, npy, csv; only a model with a schema reads other tables, and pictures"
    raise DataError(f"is {found.source}", where=str(file), fix=fix)


def as_records(
    values: NDArray[Any], shape: tuple[int | None, ...], where: str
) -> NDArray[np.float32]:
    per_record = int(np.prod([axis or 1 for axis in shape], dtype=np.int64))
    values = _numbers(values, where)
    if None in shape:
        return values
    sizes = (axis for axis in shape if axis is not None)
    one_record = values.shape == shape
    if not one_record and (values.ndim < 2 or values[:1].size != per_record or not len(values)):
        what = f"has shape {values.shape}, the model takes (records, {', '.join(map(str, shape))})"
        fix = "store only values, without labels"
        raise DataError(what, where=where, fix=fix)
    return values.reshape(-1, *sizes)


def _numbers(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    if values.dtype.kind not in "biuf":
        raise DataError("are no real numbers", where=where, fix="store only numbers")
    with np.errstate(over="ignore"):
        found = values.astype(np.float32, copy=False)
    if (np.isinf(found) & ~np.isinf(values)).any():
        raise DataError("has values beyond 3e38", where=where, fix="scale them as for training")
    return found
