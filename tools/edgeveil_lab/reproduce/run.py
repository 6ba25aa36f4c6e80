"""`edgeveil reproduce`: run a paper's experiment from its YAML file.

A row's job merges the file's `job`, the `parts` that the row names and its own `job`; `null`
removes a key. Rows have the paper's figure (`claimed`) and guarantee (`privacy`); `quick` replaces
these on digits. A row with `sweep` (value: figure) is repeated for each value, put in place of `{}`
and at key `set`."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from edgeveil.data.records import Records
from edgeveil.errors import INTERRUPTED, JobFailed, UsageError
from edgeveil.evaluation.figures import ACCURACY, baseline_text, baselines
from edgeveil.jobs import load_job
from edgeveil.pages.parts import figure_text
from edgeveil.parts.methods.local_steps import chosen_processor
from edgeveil.parts.sources import published_files
from edgeveil.parts.sources.digits import load_digits_split
from edgeveil.privacy.guarantee import guarantee_text
from edgeveil.registry import nearest
from edgeveil_lab.reproduce.picture import picture, rows_by
from edgeveil_tools.backbone.command import ensure_for_jobs
from edgeveil_tools.local.data import PLACES
from edgeveil_tools.local.grid import GridRun, grid_of, run_one
from edgeveil_tools.local.job import Overrides
from edgeveil_tools.result import versions, write_json, write_whole, writing

FOLDER = Path(__file__).parent
KEPT = "reproduction.json"
FILES = ("reproduction.md", KEPT, "reproduction.png", "reproduction.svg")
Row = dict[str, Any]

CHOSEN_ON = (
    "chosen on the images that devices learn from: features and parameters of {names} were set by"
    " the accuracy on 10,000 of MNIST's 60,000 training images, after learning on the others; the ε"
    " does not price that choice, and no test image took part in it"
)


# --- experiments ---


def experiments(folder: Path = FOLDER) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


@dataclass(frozen=True)
class Trial:
    """A row: its job (YAML as plain values), and the paper's figure for each of `points`."""

    name: str
    label: str
    job: dict[str, Any]
    privacy: str
    points: tuple[Row, ...]

    @property
    def source(self) -> str:
        return str(self.job["data"]["source"])


@dataclass(frozen=True)
class _Experiment:
    """An experiment's file in `about`, and its trials.

    `picture` is `rows`, one line each; `lines`, the figure against `x` by series; `rounds`,
    accuracy by round and trial; or `scores`, cluster score and test loss by round."""

    about: dict[str, Any]
    trials: tuple[Trial, ...]


def load_experiment(name: str, *, quick: bool = False, folder: Path = FOLDER) -> _Experiment:
    known = experiments(folder)
    if name not in known:
        fix = nearest(name, list(known))
        raise UsageError(f"unknown experiment '{name}'", where="edgeveil reproduce", fix=fix)
    found = yaml.safe_load(known[name].read_text("utf-8"))
    changes = found.get("quick", {}) if quick else {}
    rows = [one for row in found["rows"] for one in _swept(row)]
    if "rows" in changes or "only" in changes:
        rows = [row for row in rows if row["name"] in changes.get("only", ())]
        rows += changes.get("rows", [])
    parts = {**found.get("parts", {}), **changes.get("parts", {})}
    base = merged(found["job"], changes.get("job", {}))
    defaults = {"guarantee": "training", "picture": "rows", "x_label": "", "x_log": False}
    trials = []
    for row in rows:
        own = [row.get("job", {}), row.get("quick", {}) if quick else {}]
        job = merged(base, *(parts[part] for part in row.get("parts", ())), *own)
        job = {"job": row["name"], **job}
        points = tuple(row.get("points", [row]))
        trials.append(Trial(row["name"], row["label"], job, row["privacy"], points))
    return _Experiment({**defaults, **found}, tuple(trials))


def _swept(row: Row) -> Iterator[Row]:
    if "sweep" not in row:
        yield row
    for value, claimed in row.get("sweep", {}).items():
        texts = {key: row[key].replace("{}", str(value)) for key in ("name", "label", "privacy")}
        job: Any = value
        for key in reversed(row["set"].split(".") if "set" in row else ()):
            job = {key: job}
        one = {**row, **texts, "claimed": claimed, "x": value if "series" in row else None}
        one["parts"] = [part.replace("{}", str(value)) for part in row.get("parts", ())]
        yield {**one, "job": merged(row.get("job", {}), job if "set" in row else {})}


def merged(base: Mapping[str, Any], *more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge blocks key by key and replace other values; None removes a key."""
    result = dict(base)
    for one in more:
        for key, value in one.items():
            if value is None:
                result.pop(key, None)
            elif isinstance(value, dict) and isinstance(result.get(key), dict):
                result[key] = merged(result[key], value)
            else:
                result[key] = value
    return result


# --- data sources that jobs name ---


def digit_pictures() -> Records:
    """Return the digits as images: x (n, 8, 8) float32 in 0..16."""
    whole, _ = load_digits_split(0)
    return Records(whole.x.reshape(-1, 8, 8), whole.y)


def breast_cancer() -> Records:
    """Return Wisconsin's 569 records of 30 values, scaled by the ranges of their description."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    ranges = [line.split()[-2:] for line in found.DESCR.split("Max")[1].splitlines()[2:32]]
    low, high = np.array(ranges, np.float64).T
    x = np.clip((found.data - low) / (high - low), 0, 1)
    return Records(x.astype(np.float32), found.target.astype(np.int64))


# --- measures, from a run's result.json ---


def scores(result: Mapping[str, Any]) -> list[list[float]]:
    """Return round, cluster score and test loss of the rounds that have both."""
    rows = (
        [r["round"], (r["cluster_scores"] or {}).get("score"), r["loss"]] for r in result["rounds"]
    )
    return [row for row in rows if None not in row]


def agreement(result: Mapping[str, Any]) -> float | None:
    """Return Spearman's correlation of score and loss; None with fewer than three scores."""
    found = scores(result)
    if len(found) < 3:
        return None
    from scipy.stats import spearmanr

    _, score, loss = np.transpose(found)
    value = float(spearmanr(score, loss).statistic)
    return value if np.isfinite(value) else None


# --- running ---


@dataclass(frozen=True)
class ReproductionOptions:
    """`only` names trials (default: all); `rounds` caps the training rounds of every trial."""

    out: Path
    seeds: int = 3
    data: Path | None = None
    quick: bool = False
    only: Sequence[str] = ()
    rounds: int | None = None
    json: bool = False
    ray: str | None = None


def reproduce(name: str, wanted: ReproductionOptions, folder: Path = FOLDER) -> int:
    """Run missing trials and write the table; return 0, 6 if a trial failed, 130 after Ctrl-C.

    Rows of earlier runs into the same folder stay. Raises UsageError for an unknown name or trial,
    or a missing GPU or data files."""
    experiment = load_experiment(name, quick=wanted.quick, folder=folder)
    for value, option in ((wanted.seeds, "--seeds"), (wanted.rounds, "--rounds")):
        if value is not None and value < 1:
            raise UsageError(f"no {option[2:-1]} to run", where=option, fix="use 1 or more")
    names = [trial.name for trial in experiment.trials]
    for unknown in (one for one in wanted.only if one not in names):
        fix = nearest(unknown, names)
        raise UsageError(f"unknown trial '{unknown}'", where="--only", fix=fix)
    chosen = [one for one in experiment.trials if not wanted.only or one.name in wanted.only]
    if experiment.about.get("needs_gpu") and not wanted.quick and chosen_processor("auto") == "cpu":
        raise UsageError(
            f"'{name}' needs a GPU (CUDA or MPS), and torch finds none: a gradient of every record "
            "in every step would take days without",
            where="edgeveil reproduce",
            fix="run it on a machine with a GPU; --quick shows that its rows run",
        )
    stream = sys.stderr if wanted.json else sys.stdout
    lacking = without_files(experiment.trials, wanted.data)
    able = [trial for trial in chosen if trial.source not in lacking]
    left_out = {one.source: lacking[one.source] for one in chosen if one.source in lacking}
    if left_out and (wanted.only or not able):
        raise UsageError(
            f"the files of {', '.join(left_out)} are missing",
            where="--data",
            fix="name the folder with " + "; or with ".join(left_out.values()),
        )
    for files in left_out.values():
        print(f"left out, files are missing: {files}", file=stream)
    played = [(trial, *_prepared(trial, wanted)) for trial in able]
    failures: list[str] = []
    for run in (run for _, runs, _ in played for run in runs):
        if run_one(run, stream, failures, reference=False) == INTERRUPTED:
            print("edgeveil: interrupted; the same command continues", file=sys.stderr)
            return INTERRUPTED
    made = {one[0].name: rows_of(experiment, *one) for one in played}
    kept = kept_rows(wanted.out, name, wanted.quick)
    rows = [
        row
        for trial in experiment.trials
        for row in made.get(trial.name) or kept.get(trial.name) or _unmeasured(trial, lacking)
    ]
    about = {"title", "source", "figure", "remark", "picture", "x_label", "x_log"}
    content = {
        "experiment": name,
        **{key: experiment.about[key] for key in sorted(about)},
        "chosen": chosen_note(rows, experiment.trials),
        "quick": wanted.quick,
        "rows": rows,
        "failures": failures,
        "versions": versions(),
    }
    write(content, wanted.out)
    if wanted.json:
        print(json.dumps(content, allow_nan=False), flush=True)
    print(markdown(content), file=stream)
    print(f"Files: {wanted.out}/ with {', '.join(FILES)}", file=stream)
    return JobFailed.exit_code if failures else 0


def _prepared(trial: Trial, wanted: ReproductionOptions) -> tuple[Sequence[GridRun], int]:
    """Write and check a trial's job; return its runs, and its rounds before they are capped."""
    path = wanted.out / "jobs" / f"{trial.name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, yaml.safe_dump(trial.job, sort_keys=False).encode())
    ensure_for_jobs([path])
    full = load_job(path).rounds
    if wanted.rounds is not None and wanted.rounds < full:
        job = merged(trial.job, {"train": {"rounds": wanted.rounds}})
        write_whole(path, yaml.safe_dump(job, sort_keys=False).encode())
    folder = folder_of(trial.source, wanted.data)
    overrides = Overrides(simulate=True, data=folder, ray_address=wanted.ray)
    return grid_of(path, wanted.out, overrides, wanted.seeds, ()), full


def chosen_note(rows: Sequence[Row], trials: Sequence[Trial]) -> str:
    """Return the note on rows tuned on their training records: those of `fm` on MNIST."""
    ours = (trial for trial in trials if trial.source == "mnist")
    tuned = {trial.name for trial in ours if trial.job.get("train", {}).get("method") == "fm"}
    measured_rows = (row for row in rows if row["trial"] in tuned and row["values"])
    names = dict.fromkeys(f"`{row['trial']}`" for row in measured_rows)
    return CHOSEN_ON.format(names=", ".join(names)) if names else ""


def folder_of(source: str, data: Path | None) -> Path | None:
    """Return the folder with all files of a published data set; None if some are missing."""
    if source not in published_files():
        return None
    places = [place / source for place in PLACES] if data is None else [data, data / source]
    return next((one for one in places if not published_files()[source].missing(one)), None)


def without_files(trials: Sequence[Trial], data: Path | None) -> dict[str, str]:
    """Return a list of the required files of each data set that lacks some."""
    sources = {trial.source for trial in trials} & set(published_files())
    return {
        source: f"{source} as it is published: {', '.join(published_files()[source].names)}"
        for source in sorted(sources)
        if folder_of(source, data) is None
    }


# --- rows of the table, from completed runs ---


def rows_of(
    experiment: _Experiment, trial: Trial, runs: Sequence[GridRun], full_rounds: int
) -> list[Row]:
    results = [found.content for run in runs if (found := run.done)]
    agreed = experiment.about.get("measure") == "agreement"
    measured = [agreement(found) if agreed else found["final"]["accuracy"] for found in results]
    values = [value for value in measured if value is not None]
    shared: Row = {
        "rounds": runs[0].job.rounds,
        "full_rounds": full_rounds,
        "values": values,
        "ours": statistics.median(values) if values else None,
    }
    if results:
        first = results[0]
        accuracy = experiment.about["figure"] == "accuracy"
        shared |= {
            "proven_privacy": guarantee_text(first["privacy"], experiment.about["guarantee"]),
            "seconds": statistics.median(r["seconds"] for r in results),
            "guessing": baselines(first["final"].get("figures")) if accuracy else {},
            "curve": [
                [r["round"], r["accuracy"]] for r in first["rounds"] if r["accuracy"] is not None
            ],
            "scores": scores(first),
        }
    return [{**row, **shared} for row in _unmeasured(trial, {})]


def _unmeasured(trial: Trial, lacking: Mapping[str, str]) -> list[Row]:
    empty = ("ours", "rounds", "full_rounds", "seconds")
    why = f"not run: no files of {trial.source}" if trial.source in lacking else None
    several = len(trial.points) > 1
    return [
        {
            "trial": trial.name,
            "label": ", ".join([trial.label, *filter(None, [several and point.get("label")])]),
            "series": point.get("series", ""),
            "x": point.get("x"),
            "claimed": point.get("claimed"),
            "claimed_privacy": trial.privacy,
            **dict.fromkeys(empty),
            "proven_privacy": why,
            "values": [],
            "curve": [],
            "scores": [],
        }
        for point in trial.points
    ]


# --- the table as files ---

COLUMNS = ("row", "text", "ours", "privacy as claimed", "privacy as proven", "rounds", "seconds")


def write(content: Mapping[str, Any], out: Path) -> None:
    with writing(out):
        write_json(out / KEPT, content)
        write_whole(out / "reproduction.md", markdown(content).encode())
        for kind in ("png", "svg"):
            write_whole(out / f"reproduction.{kind}", picture(content, kind))


def kept_rows(out: Path, name: str, quick: bool) -> dict[str, list[Row]]:
    try:
        found = json.loads((out / KEPT).read_bytes())
        same = (found["experiment"], found["quick"]) == (name, quick)
        rows = [row for row in found["rows"] if row["rounds"]] if same else []
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return rows_by(rows, "trial")


def markdown(content: Mapping[str, Any]) -> str:
    lines = [f"## {content['experiment']}: {content['title']}", "", f"{content['source']}."]
    lines += [content["remark"], ""]
    if content["quick"]:
        lines += ["Quick: digits, few rounds. It shows that all runs; not to be compared.", ""]
    lines += [f"Figure: {content['figure']}. Of several seeds the median, and the range."]
    lines += ["", "| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in content["rows"]]
    if content.get("chosen"):
        lines += ["", f"{content['chosen'][:1].upper()}{content['chosen'][1:]}."]
    lines += [f"\nFailed: {failure}" for failure in content["failures"]]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> Iterator[str]:
    values, played, full = row["values"], row["rounds"], row["full_rounds"]
    yield row["label"]
    yield figure_text(row["claimed"])
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    note = "" if row["ours"] is None else baseline_text(ACCURACY, row["ours"], row.get("guessing"))
    yield figure_text(row["ours"]) + spread + (f"; {note}" if note else "")
    yield row["claimed_privacy"]
    yield row["proven_privacy"] or "not run"
    yield "–" if played is None else str(played) if played == full else f"**{played}** of {full}"
    yield "–" if row["seconds"] is None else f"{row['seconds']:.0f}"
