"""`edgeveil.ask` and `edgeveil ask`: questions to a simulated fleet, or to a running cloud's."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args

import numpy as np
import yaml
from numpy.typing import NDArray

from edgeveil.config.data import TableForm
from edgeveil.data.records import as_records
from edgeveil.data.schema import DATE_PARTS, PICTURE_PARTS, Part
from edgeveil.data.table_form import date_in
from edgeveil.errors import JobFailed, UsageError, needs_extra
from edgeveil.logs import printable
from edgeveil.parts.sources.arrays import array_parts
from edgeveil.parts.sources.guess import guess
from edgeveil.parts.sources.images import ENDINGS, encode_files, listed_files
from edgeveil.parts.sources.memory import Frame, opened
from edgeveil.registry import nearest
from edgeveil.statistics.questions import RANGES
from edgeveil.statistics.questions import Questions as Asked
from edgeveil_tools.describe import LIST, MISSING, Look, look_at, looks_of
from edgeveil_tools.local.job import job_of
from edgeveil_tools.result import SIMULATED, Result, write_whole
from edgeveil_tools.statistics.answers import Statistics

if TYPE_CHECKING:
    from edgeveil_tools.cloud_client import Cloud
    from edgeveil_tools.local.local_run import LocalJob

OF_NUMBERS = ("mean", "deviation", "histogram", "quantiles")
OTHERS = ("count", "values", "table", "correlation")
PARTS = get_args(Part)
DEVICES = 100
_JOB = re.compile(r"[^a-z0-9_-]+")
Names = str | Sequence[str]


class QuestionArguments(TypedDict, total=False):
    """What to ask: names of columns, by default everything about every column; see `ask`."""

    mean: Names
    deviation: Names
    histogram: Names | tuple[str, int] | Sequence[str | tuple[str, int]]
    quantiles: Names
    count: Names
    values: Names
    table: tuple[str, str] | Sequence[tuple[str, str]]
    correlation: tuple[str, str] | Sequence[tuple[str, str]]
    where: str | None
    ranges: Mapping[str, tuple[float, float]]
    categories: Mapping[str, Sequence[str]]


@needs_extra("tools")
def ask(
    data: Any = None,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    noise: Literal["shared", "local"] = "shared",
    fleet: Any = None,
    devices: int | None = None,
    nominal_records: int | None = None,
    seed: int = 7,
    cloud: Cloud | None = None,
    source: str = "",
    **questions: Unpack[QuestionArguments],
) -> Statistics:
    """Ask a fleet questions, all at the one price of `epsilon`; returns their answers with ±.

    Without `cloud` a fleet is simulated that holds `data`: errors are those of a real fleet, ε is
    its price, and nothing is protected. With `cloud` a job is submitted, and its devices answer.

        found = edgeveil.ask(frame, mean="age", histogram=("pulse", 20), epsilon=0.5)
        found["mean", "age"]["value"]

    Args:
        data: data file or records in memory, as of `simulate`; with `cloud` None.
        epsilon: ε of all answers together, per record.
        delta: δ of all answers together.
        noise: `shared` among the devices in secure sums, or `local`: each device adds all.
        fleet: holder of each record, as of `simulate`.
        devices: devices that hold the records of `data`, default 100; of a cloud, its least number.
        nominal_records: public number of records of a device.
        seed: of partition and simulated noise.
        cloud: running cloud.
        source: with `cloud`: `data.name` of the devices to ask.
        questions: mean, deviation, quantiles, count, values (that nobody listed): columns;
            histogram: columns or (column, bins); table, correlation: pairs of columns; without any
            of these: everything about every column. where: a filter such as `age >= 60`. ranges:
            public (low, high) by number; categories: public lists by text; those that are missing,
            and `nominal_records`, are read from `data` with a warning: ε does not cover them.

    Raises:
        UsageError, ConfigError: a question cannot be asked.
        JobFailed: the job ended without answers.
    """
    if unknown := questions.keys() - QuestionArguments.__annotations__.keys():
        raise TypeError(f"ask() got an unexpected keyword argument '{min(unknown)}'")
    how: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "noise": noise, "devices": devices}
    how |= {"nominal_records": nominal_records}
    if cloud is not None:
        if data is not None or fleet is not None:
            raise UsageError(
                "the devices have their own", where="data, fleet", fix="leave them out"
            )
        job, _ = job_to_ask(None, questions, source=source, **how)
        return of_cloud(cloud, cloud.submit(job.alone))
    job, read = job_to_ask(data, questions, fleet=fleet, **how)
    if read:
        warnings.warn(read, UserWarning, stacklevel=3)
    records = {} if isinstance(data, str | Path) else {"data": data, "fleet": fleet}
    result = _simulated(job, read, report=False, seed=seed, **records)
    return Statistics(result.content["statistics"])


def command(args: argparse.Namespace) -> int:
    """Run `edgeveil ask`."""
    from edgeveil_tools.cli.common import answer
    from edgeveil_tools.cli.jobs import AWAY_S, cloud_of

    given = vars(args)
    questions: dict[str, Any] = {
        name: [column for text in given[name] for column in text.split(",")]
        for name in ("mean", "deviation", "quantiles", "count", "values")
    }
    questions["histogram"] = [_bins(one) for text in args.histogram for one in text.split(",")]
    for name in ("table", "correlation"):
        questions[name] = [_split(f"--{name}", text, ",") for text in given[name]]
    ranges, lists = (
        [_split(f"--{name}", text, "=") for text in given[name]] for name in ("range", "category")
    )
    questions["ranges"] = {
        column: [_number("--range", end) for end in _split("--range", ends, ",")]
        for column, ends in ranges
    }
    questions |= {"categories": {name: one.split(",") for name, one in lists}, "where": args.where}
    how = {name: given[name] for name in ("epsilon", "delta", "devices")}
    how |= {"nominal_records": args.records}
    if args.file is None:
        job, _ = job_to_ask(None, questions, source=args.source, **how)
        cloud = cloud_of(args, AWAY_S)
        name = cloud.submit(job.alone)
        print(f"edgeveil: {name}: waiting for the answers", file=sys.stderr, flush=True)
        found = of_cloud(cloud, name)
        return answer(args, [str(found)], {"job": name, **found.content})
    job, read = job_to_ask(args.file, questions, **how)
    for note in filter(None, (SIMULATED, read)):
        print(printable(f"edgeveil: {note}"), file=sys.stderr)
    result = _simulated(job, read, out=args.out)
    found = Statistics(result.content["statistics"])
    lines = [str(found), f"Report: {result.report}"]
    return answer(args, lines, {**found.content, "folder": str(result.folder)})


def _simulated(job: LocalJob, read: str, **options: Any) -> Result:
    """Simulate a job; if anything was `read`, mark it so that no cloud and no draft takes it."""
    from edgeveil_tools.local.run import simulate

    result = simulate(job, reference=False, **options)
    if read:
        plain = yaml.safe_load((result.folder / "job.yaml").read_bytes())
        plain["data"]["schema"]["origin"] = "own_records"
        text = yaml.safe_dump(plain, sort_keys=False)
        write_whole(result.folder / "job.yaml", text.encode())
    return result


def _bins(text: str) -> str | tuple[str, int]:
    column, _, bins = text.partition("=")
    return (column, int(_number("--histogram", bins))) if bins else column


def _split(option: str, text: str, mark: str) -> list[str]:
    found = text.split(mark, 1)
    if len(found) != 2:
        example = {"=": "age=0,100", ",": "sex,income"}[mark]
        raise UsageError(f"got '{text}'", where=option, fix=f"write for example {example}")
    return found


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"'{text}' is no number", where=option, fix="write one") from None


def of_cloud(cloud: Cloud, job: str) -> Statistics:
    """Wait for a job of a cloud, and return its answers. Raises JobFailed without any."""
    cloud.wait(job)
    found = Statistics.of_events(cloud.events(job))
    if found is None:
        raise JobFailed("has no answers", where=job, fix="name a job of kind statistics")
    return found


def job_to_ask(
    data: Any,
    questions: Mapping[str, Any],
    *,
    source: str = "",
    fleet: Any = None,
    devices: int | None = None,
    nominal_records: int | None = None,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    noise: str = "shared",
) -> tuple[LocalJob, str]:
    """Return the job that asks, and what of it was read from the records, or "".

    Raises UsageError or DataError for questions about columns that are not there."""
    if data is None and not (source and nominal_records):
        fix = "name a file of records, or --source and --records of a cloud's devices"
        raise UsageError("asks nobody", where="edgeveil ask", fix=fix)
    looks, run, records = _looked(data)
    many = devices or (DEVICES if looks else 5)
    if isinstance(fleet, str) and fleet in looks:
        many = len(looks.pop(fleet).texts)
    elif fleet is not None:
        many = len({*map(str, fleet)})
    columns, read = _columns(questions, looks)
    if nominal_records is None:
        nominal_records = max(1, -(-records // many))
        read.append("nominal_records")
    block = {"columns": columns, "where": questions.get("where")}
    block |= {f"{name}s": _pairs(questions.get(name) or ()) for name in ("table", "correlation")}
    listed = {text for one in columns for text in one.get("category", ())}
    schema: dict[str, Any] = {}
    if looks and "picture:height" not in looks:
        schema["missing"] = [text for text in MISSING if text not in listed]
    if not run.get("header", True):
        schema |= {"header": [name for name in looks if _part(name, looks)[1] is None]}  # made up
    named = source or Path(run.get("path", "memory")).stem[:64]
    job = {
        "job": _JOB.sub("_", f"ask_{named.lower()}")[:64],
        "data": {"source": named, "nominal_records": nominal_records, "schema": schema},
        "statistics": block,
        "privacy": {"epsilon": epsilon, "delta": delta, "noise": noise},
        "aggregation": {"name": "fedavg", "secure": noise == "shared"},
        "round": {"min_batch": many},
        "selection": {"min_devices": many},
    }
    if data is not None:
        job["local_run"] = {"devices": many, "simulate": True, "data": run, "workers": 0}
    why = f"{', '.join(read)} were read from the records: ε does not cover them. Pass public ones."
    return job_of(job), why if read else ""


def _looked(data: Any) -> tuple[dict[str, Look], dict[str, Any], int]:
    """Return the columns of records by name, `local_run.data`, and the number of records."""
    if data is None:
        return {}, {}, 0
    if isinstance(data, str | Path) and Path(data).is_dir():
        path = Path(data).absolute()
        listed = [file for file, _ in listed_files(path, (), ENDINGS)]
        if not listed:
            fix = "name a file, or a folder with a folder of pictures for each class"
            raise UsageError("holds no pictures", where=str(path), fix=fix)
        looks = _of_pictures(encode_files(listed, None), [file.parent.name for file in listed])
        run: dict[str, Any] = {"source": "images", "path": str(path)}
    elif isinstance(data, str | Path):
        path = Path(data).absolute()
        found = guess(path)
        form = found.form.model_dump(mode="json", exclude_defaults=True)
        run = {"source": found.source, "path": str(path)}
        if found.source == "csv":
            run |= {"header": found.header, **({"form": form} if form else {})}
        looks = looks_of(path, found)
    else:
        table, run = opened(data), {"source": "memory"}
        if isinstance(table, Frame):
            named = zip(table.names, table.columns, strict=True)
            texts = {name: [*map(str.strip, table.text(name, column))] for name, column in named}
            looks = [look_at(name, cells, TableForm()) for name, cells in texts.items()]
        else:
            y = np.zeros(len(table)) if table.y is None else table.y
            looks = _of_pictures(array_parts(as_records(table.x, y, "data").x), [*map(str, y)])
    records = max((one.records for one in looks), default=0)
    looks += [part for one in looks if one.texts and one.dated for part in _of_dates(one)]
    return {one.name: one for one in looks}, run, records


def _of_dates(look: Look) -> Iterator[Look]:
    """Yield the parts of a column of dates, as columns."""
    found = [date for text in look.texts.elements() if (date := date_in(text, look.form))]
    for part, values in zip(DATE_PARTS, zip(*found, strict=True), strict=True):
        texts = Counter(str(one) for one in values if (part, one) != ("hour", 24))
        yield replace(look, name=f"{look.name}:{part}", texts=texts, form=TableForm())


def _of_pictures(parts: NDArray[Any], classes: Sequence[str]) -> list[Look]:
    """Return the parts of pictures, as columns."""
    cells = {
        part: map(str, one[~np.isnan(one)].tolist())
        for part, one in zip(PICTURE_PARTS, parts.T, strict=True)
    }
    texts = {"": (), **cells, "class": classes}
    return [
        Look(f"picture:{part}".rstrip(":"), Counter(of), frozenset(), TableForm(), len(parts))
        for part, of in texts.items()
    ]


def _part(column: str, looks: Mapping[str, Look]) -> tuple[str, str | None]:
    """Return the name and the part of a column `name:part`."""
    name, _, part = column.rpartition(":")
    return (name, part) if part in PARTS and (name in looks or not looks) else (column, None)


def _columns(
    questions: Mapping[str, Any], looks: Mapping[str, Look]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return `statistics.columns`, and the names of those whose range or list was read."""
    asked: dict[str, dict[str, Any]] = {}
    for name in OF_NUMBERS:
        for one in _list(questions.get(name) or ()):
            column, bins = (one, None) if isinstance(one, str) else one
            found = asked.setdefault(column, {"ask": []})
            found["ask"].append(name)
            if bins is not None:
                found["bins"] = int(bins)
    pairs = [*_pairs(questions.get("table") or ()), *_pairs(questions.get("correlation") or ())]
    others = [one for name in ("count", "values") for one in _list(questions.get(name) or ())]
    conditions = Asked.model_construct(columns=(), where=questions.get("where")).conditions
    for column in (*others, *(name for pair in pairs for name in pair)):
        asked.setdefault(column, {"ask": []})
    lists, ranges = questions.get("categories") or {}, questions.get("ranges") or {}
    unlisted = _list(questions.get("values") or ())
    if not any(questions.get(name) for name in (*OF_NUMBERS, *OTHERS)):
        whole = {_part(name, looks)[0] for name in looks if _part(name, looks)[1]}
        there = [name for name, look in looks.items() if look.texts and name not in whole]
        asked = {name: {} for name in (there if looks else (*ranges, *lists))}
    made, read = [], []
    for one in conditions:
        asked.setdefault(one.column, {"ask": []})
    for column in (*asked, *ranges, *lists):
        if looks and column not in looks and _part(column, looks)[1] is None:
            raise UsageError("is no column", where=column, fix=nearest(column, [*looks]))
    for column in dict.fromkeys([*(name for name in looks if name in asked), *asked]):
        found, look, (name, part) = asked[column], looks.get(column), _part(column, looks)
        if column in ranges:
            form: dict[str, Any] = {"number": [float(end) for end in ranges[column]]}
        elif column in lists:
            form = {"category": [str(one) for one in lists[column]]}
        elif part in RANGES:
            form = {}
        elif column in unlisted or (
            part is None
            and look is not None
            and not look.numeric
            and (len(look.texts) > LIST or look.prose)
        ):
            form = {"values": {"words": 3} if look is not None and look.prose else {}}
        elif look is None:
            fix = f"pass a range, {column}=0,100, or a list of its values"
            raise UsageError("has no public range or list", where=column, fix=fix)
        else:
            read.append(column)
            of_number = look.numeric and part != "class"
            form = {"number": [*look.span]} if of_number else {"category": sorted(look.texts)}
        if "number" not in form and part not in RANGES and (of_number := found.pop("ask", ())):
            what = f"is no number, and {of_number[0]} is of numbers"
            raise UsageError(what, where=column, fix="ask its count")
        made.append({"name": name, **({"part": part} if part else {}), **form, **found})
    if not made:
        raise UsageError("asks about no column", where="edgeveil ask", fix="name one: --mean age")
    return made, read


def _list(given: Any) -> list[Any]:
    """Return one or several columns as a list; a pair with a number is one column with its bins."""
    if isinstance(given, str):
        return [given]
    return [given] if len(given) == 2 and isinstance(given[1], int) else [*given]


def _pairs(given: Any) -> list[list[str]]:
    if len(given) == 2 and all(isinstance(one, str) for one in given):
        return [[*given]]
    return [[*pair] for pair in given]
