"""Records of a local run: sources, partition, and checks that the job can learn from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from edgeveil.config.data import MAX_SIDE, DataFiles, DataSource, Images, TableForm, data_mixes
from edgeveil.data.anomaly import NORMAL, learned_from
from edgeveil.data.check import check_records, schema_problems
from edgeveil.data.records import Records
from edgeveil.data.schema import DATE_PARTS, DataSchema
from edgeveil.errors import DataError, UsageError
from edgeveil.jobs import Job
from edgeveil.parts.aggregation import build_rule
from edgeveil.parts.own_records import dealt_records, local_records, origin_of
from edgeveil.parts.partitions import Shares
from edgeveil.parts.sources import (
    SOURCES,
    guessed_header,
    has_own_test,
    load_records,
    published_files,
    source_part,
)
from edgeveil.parts.sources.audio import AUDIO_ENDINGS
from edgeveil.parts.sources.guess import guess, table_source
from edgeveil.parts.sources.images import class_folders, files_below
from edgeveil.parts.sources.tables import read_matrix
from edgeveil_tools.local.local_run import LocalJob, LocalRun

PLACES = (Path("../shared/data"), Path("data"))  # searched if no folder is named
_OF_FILES = ("csv", "jsonl", "parquet", "npz", "images")
LINES_SHOWN = 10
TEST_SHARE = 0.2  # of records that come without a test half


def check_data(job: Job, run: LocalRun) -> list[str]:
    """Return notes on the records that a run deals; raises UsageError or DataError."""
    data = source(job, run)
    pool, test = dealt(job, run)[0], held(job, run)
    for what, records in (("training", pool), ("test", test)):
        shape = tuple(records.x.shape[1:])
        if shape != job.data.input_shape:
            text = f"is {list(job.data.input_shape)}, the {what} records of {_called(data)} have"
            fix = f"write input_shape: {list(shape)}"
            raise UsageError(f"{text} {list(shape)}", where="data.input_shape", fix=fix)
    if has_own_test(data.source) and len(pool) < run.devices:
        text, fix = f"{len(pool)} records cannot be dealt to", f"play at most {len(pool)}"
        raise UsageError(f"{text} {run.devices} devices", where="local_run.devices", fix=fix)
    scored = build_rule(job.aggregation).validation_records
    if scored and len(test) <= scored:
        text = f"{scored} records score uploads, others test the model; there are only"
        more = "test_records" if has_own_test(data.source) else "test_share"
        key, fix = "aggregation.validation_records", f"set fewer, or raise local_run.{more}"
        raise UsageError(f"{text} {len(test)}", where=key, fix=fix)
    classes, schema = job.data.classes, job.data.schema_
    if asks(job):
        return [*_guessed(job, run)[1], *column_problems(data, schema)]
    largest = int(max(pool.y.max(initial=-1), test.y.max(initial=-1)))
    if largest >= classes and not job.anomaly:
        what = f"has the label {largest}, data.classes is {classes}"
        fix = f"correct the labels, which folds count from 0, or write classes: {largest + 1}"
        raise DataError(what, where=_first(data, classes, schema), fix=fix)
    report = check_records(pool, test, **form_of(job))
    if not report.usable:
        fix = f"give each record numbers and a label of 0 to {classes - 1}"
        if schema is not None:
            fix = "correct data.schema.label: its column, its classes or range as the file has them"
        where = (places(data, schema) or [_called(data)])[0]
        raise DataError("no record can be learned from", where=where, fix=fix)
    sizes = []  # notes only: a refusal would depend on a single record
    if not len(test):
        sizes.append("no record is held back: the models will not be tested")
    if len(pool) < run.devices:
        sizes.append(f"{len(pool)} records for {run.devices} devices: some devices have none")
    dropped = places(data, schema) if report.usable < report.records else []
    labels, by_column = _labels(job, data, pool, test), column_problems(data, schema)
    return [*_guessed(job, run)[1], *sizes, *report.problems, *labels, *by_column, *dropped]


def run_on(file: Path, job: LocalJob) -> LocalRun:
    """Return the job's run on the records of a file or folder; raises UsageError or DataError."""
    run = job.local_run or LocalRun(devices=1)
    if not file.exists():
        raise UsageError("is not there", where=str(file), fix="check the path")
    kind = source_of(file, run.data.source or job.data.source)
    if not source_part(kind).place:
        what = f"the job's records are those of '{kind}', which reads no file"
        raise UsageError(what, where=str(file), fix="leave the file out")
    changes: dict[str, Any] = {"source": kind, "path": file.absolute(), "test_path": None}
    if run.data.path is not None and file.name != run.data.path.name:  # the form is of that one
        changes |= {"form": None, "header": None}
    return run.model_copy(update={"data": run.data.model_copy(update=changes)})


def source_of(file: Path, named: str) -> str:
    """Return the source that reads a file; `named` unless it is one of tables and pictures."""
    if named in SOURCES and named not in _OF_FILES:
        return named
    if file.is_dir():
        return "audio" if files_below(file, AUDIO_ENDINGS) else "images"
    if file.suffix.lower() == ".npz":
        return "npz"
    return table_source(file)


def held(job: Job, run: LocalRun) -> Records:
    return local_records(source(job, run), job.data.schema_)


def dealt(job: Job, run: LocalRun) -> tuple[Records, Shares]:
    """Return all records as the devices hold them, and each device's indices into them."""
    data = source(job, run)
    classes = dealt_classes(job, data)
    origin, rule = origin_of(data, job.data.schema_), run.partition
    return dealt_records(data.source, origin, run.devices, rule, run.seed, classes)


def dealt_classes(job: Job, data: DataSource) -> int | None:
    return None if has_own_test(data.source) else job.data.classes


def is_published(job: Job, run: LocalRun) -> bool:
    """Return whether the records are a published set's, so that all figures may be shown."""
    return has_own_test(run.data.source or job.data.source)


def asks(job: Job) -> bool:
    """Return whether the job asks for statistics, and so has no model to test."""
    return job.data.schema_ is not None and job.data.schema_.raw


def source(job: Job, run: LocalRun) -> DataSource:
    name, own = run.data.source or job.data.source, run.data
    path = _folder(name) if name in published_files() and own.path is None else own.path
    form = _guessed(job, run)[0]
    found = DataSource(
        name=job.data.source,
        source=name,
        path=path,
        labels_path=own.labels_path,
        header=guessed_header(name, own.header, path, job.data.schema_, form),
        form=form,
        label_column=own.label_column,
        images=_form(job, own) if name == "images" and not job.data.schema_ else own.images,
        test_records=run.test_records,
        test_share=1 / run.test_folds if run.test_folds else run.test_share,
        test_fold=run.seed % run.test_folds if run.test_folds else 0,
        test_path=own.test_path,
    )
    for mix in data_mixes(found, "local_run.data"):
        what, _, fix = mix.text.rpartition("; ")
        if "local_run.data.path" in mix.paths:
            fix += " there, or give it with --data PATH"
        raise UsageError(what, where="local_run.data", fix=fix)
    given = own.given
    tests_itself = has_own_test(name) or found.test_path is not None or asks(job)
    if found.test_share is None and not tests_itself and (given is None or given.test is None):
        found = found.model_copy(update={"test_share": TEST_SHARE})
    return found.holding(given)


def _guessed(job: Job, run: LocalRun) -> tuple[TableForm | None, tuple[str, ...]]:
    """Return the form of a run's CSV file, stated or guessed, and why; raises DataError."""
    name, own = run.data.source or job.data.source, run.data
    if name != "csv" or own.form is not None or own.path is None or not own.path.is_file():
        return own.form, ()
    schema = job.data.schema_
    found = guess(own.path, schema, header=own.header if schema is not None else True)
    if found.source != name:
        fix = f"write local_run: {{data: {{source: {found.source}}}}}"
        raise DataError(f"is {found.source}, not csv", where=str(own.path), fix=fix)
    return found.form, found.notes


def form_problems(data: DataSource, schema: DataSchema | None) -> list[str]:
    """Return how a device's CSV file seems to differ from the form that its owner states."""
    if data.source != "csv" or data.path is None or not data.path.is_file():
        return []
    try:
        found = guess(data.path, schema)
    except DataError as error:
        return [str(error)]
    if found.source != "csv":
        return [f"data.source: {data.path} is {found.source}"]
    stated, columns = data.form or TableForm(), (schema and schema.columns) or ()
    differing = {key: value for key, value in found.form if value != getattr(stated, key)}
    if not any(column.date or column.part in DATE_PARTS for column in columns):
        differing.pop("dates", None)
    block = ", ".join(f"{key}: {json.dumps(value)}" for key, value in differing.items())
    why = f"{data.path} seems to need {{{block}}}: {'; '.join(found.notes)}"
    return [f"data.form: {why}"] if differing else []


def _folder(name: str) -> Path:
    files = published_files()[name]
    folders = [folder / name for folder in PLACES]
    for folder in folders:
        if not files.missing(folder):
            return folder.absolute()
    what = f"{name} is neither in {folders[0]} nor in {folders[1]}"
    fix = f"name the folder that holds {', '.join(files.names)} with --data DIR"
    raise UsageError(what, where="data.source", fix=fix)


def _form(job: Job, own: DataFiles) -> Images:
    form = own.images
    if form is None:
        *colours, height, width = (0, *job.data.input_shape)
        if colours not in ([0], [0, 3]) or max(height, width) > MAX_SIDE:
            what = f"pictures are [height, width] or [3, height, width], at most {MAX_SIDE} a side"
            fix = "write input_shape: [28, 28]"
            raise UsageError(what, where="data.input_shape", fix=fix)
        form = Images(size=(height, width), colours="rgb" if len(colours) > 1 else "grey")
    if form.classes is not None or own.path is None:
        return form
    names = [folder.name for folder in class_folders(own.path)]
    if not names:
        fix = "put each class's pictures into a folder"
        raise DataError("holds no folders", where=str(own.path), fix=fix)
    return form.model_copy(update={"classes": tuple(names)})


def _labels(job: Job, data: DataSource, pool: Records, test: Records) -> list[str]:
    """Return notes on labels of an anomaly job; raises DataError if no record is normal."""
    if not job.anomaly:
        return []
    schema, labels = job.data.schema_, np.concatenate([pool.y, test.y])
    normal = "0" if schema is None else ", ".join(map(repr, schema.label.normal))
    if not learned_from(pool.y).any():
        what = f"every record has a label, and none is normal ({normal}): nothing is"
        fix = "set data.schema.label.normal to the file's label of normal records"
        fix = "give normal records the label 0" if schema is None else fix
        raise DataError(f"{what} learned", where=_called(data), fix=fix)
    if not (labels >= NORMAL).any():
        column = "" if schema is None else f" in column {schema.label.column!r}"
        return [f"no record has a label{column}: all are learned from, and no model is tested"]
    if not (labels == NORMAL).any():
        return [f"no label is normal ({normal}): all labels count as anomalous"]
    return []


def _first(data: DataSource, classes: int, schema: DataSchema | None) -> str:
    whole = load_records(data.source, origin_of(data, schema))
    index = int(np.flatnonzero(whole.y >= classes)[0])
    if data.source == "csv" and data.path is not None:
        lines: list[int] = []
        read_matrix(data.path, lines=lines, form=data.form)
        return f"{data.path}:{lines[index]}"
    return f"{_called(data)}, record {index + 1}"


def _called(data: DataSource) -> str:
    return data.source if data.path is None else str(data.path)


def form_of(job: Job) -> dict[str, Any]:
    form = {"classes": job.data.classes, "input_shape": job.data.input_shape}
    return {**form, "input_range": input_range(job), "anomaly": job.anomaly}


def column_problems(data: DataSource, schema: DataSchema | None) -> list[str]:
    """Return values of a table's columns that the job's schema lacks, over the whole file."""
    read = source_part(data.source).tallies
    if read is None or schema is None:
        return []
    return schema_problems(schema, read(origin_of(data, schema), schema))


def places(data: DataSource, schema: DataSchema | None = None) -> list[str]:
    find = source_part(data.source).faults
    faults = [] if find is None else find(origin_of(data, schema))
    more = len(faults) - LINES_SHOWN
    return faults[:LINES_SHOWN] + [f"… and {more} more"] * (more > 0)


def input_range(job: Job) -> tuple[float, float] | None:
    """Return (least, largest) of the values that features or model expect; None if undefined."""
    schema = job.data.schema_
    if schema is not None and any(column.tokens for column in schema.columns or ()):
        return None  # ids, which are no measure
    if tokens := getattr(job.model, "tokens", 0):
        return 0.0, float(tokens - 1)
    parts = [one for one in (*job.features, job.model) if not getattr(one, "ranges", ())]
    largest = max((getattr(one, "input_scale", 0.0) for one in parts), default=0.0)
    return (-largest, largest) if largest else None
