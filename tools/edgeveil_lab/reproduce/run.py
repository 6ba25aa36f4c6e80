"""Runs an experiment's trials with several seeds; puts text and measurement in rows."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from edgeveil.errors import INTERRUPTED, JobFailed, UsageError
from edgeveil.evaluation.figures import guessing
from edgeveil.jobs import compile_job, load_job
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.jobs.job import Job
from edgeveil.parts.features import MapParameters
from edgeveil.parts.methods.local_steps import chosen_processor
from edgeveil.parts.sources import published_files
from edgeveil.privacy.guarantee import guarantee_text
from edgeveil.registry import nearest
from edgeveil_lab.reproduce import EXPERIMENTS
from edgeveil_lab.reproduce.experiment import Experiment, Result, Trial, scores
from edgeveil_lab.reproduce.output import FILES, kept_rows, markdown, write
from edgeveil_tools.backbone.command import ensure_for_jobs
from edgeveil_tools.local.data import PLACES
from edgeveil_tools.local.grid import GridRun, grid_of, run_one
from edgeveil_tools.local.job import Overrides
from edgeveil_tools.result import versions, write_whole

CHOSEN_ON = (
    "chosen on the images that devices learn from: features and parameters of {names} were set by"
    " the accuracy on 10,000 of MNIST's 60,000 training images, after learning on the others; the ε"
    " does not price that choice, and no test image took part in it"
)


def chosen_note(names: Sequence[str]) -> str:
    """What a table says of rows whose settings were chosen on the records that they learn from."""
    return CHOSEN_ON.format(names=", ".join(names)) if names else ""


@dataclass(frozen=True)
class ReproductionOptions:
    """What the command line asks for; `only` names trials, none for all of them.

    `rounds` caps the training rounds of every trial; None: as many as the text plays.
    """

    out: Path
    seeds: int = 3
    data: Path | None = None
    quick: bool = False
    only: Sequence[str] = ()
    rounds: int | None = None
    as_json: bool = False
    ray_address: str | None = None

    def command(self, name: str) -> str:
        """The command that asks for this: no path of the machine is in it, and no row's name."""
        parts = ["edgeveil", "reproduce", name]
        parts += ["--data", "DIR"] if self.data is not None else []
        parts += ["--quick"] if self.quick else []
        parts += ["--seeds", str(self.seeds)]
        parts += [] if self.rounds is None else ["--rounds", str(self.rounds)]
        return shlex.join(parts)


def reproduce(name: str, wanted: ReproductionOptions) -> int:
    """Run what is missing and write the table; 0, 6 where a trial failed, 130 after Ctrl-C.

    Rows that are not asked for stay as a former run into the same folder left them. UsageError
    for an unknown name or trial, and for a GPU or data files that nothing runs without.
    """
    experiment = EXPERIMENTS[name]
    for value, option in ((wanted.seeds, "--seeds"), (wanted.rounds, "--rounds")):
        if value is not None and value < 1:
            raise UsageError(f"no {option[2:-1]} to run", where=option, fix="use 1 or more")
    trials = experiment.trials(wanted.quick)
    chosen = _chosen(trials, wanted.only)
    if experiment.needs_gpu and not wanted.quick:
        require_gpu(name)
    stream = sys.stderr if wanted.as_json else sys.stdout
    lacking = without_files(trials, wanted.data)
    able = [trial for trial in chosen if trial.source not in lacking]
    left_out = {one.source: lacking[one.source] for one in chosen if one.source in lacking}
    if left_out and (wanted.only or not able):
        refuse_without_files(left_out)
    for files in left_out.values():
        print(f"left out, for want of files: {files}", file=stream)
    played = [_prepared(trial, wanted) for trial in able]
    failures: list[str] = []
    for one in played:
        for run in one.runs:
            if run_one(run, stream, failures, reference=False) == INTERRUPTED:
                print("edgeveil: interrupted; the same command goes on", file=sys.stderr)
                return INTERRUPTED
    made = {one.trial.name: rows_of(experiment, one, wanted.command(name)) for one in played}
    kept = kept_rows(wanted.out, name, wanted.quick)
    rows = [
        row
        for trial in trials
        for row in made.get(trial.name) or kept.get(trial.name) or not_run(trial, lacking)
    ]
    _show(_content(name, experiment, wanted, rows, failures), wanted, stream)
    return JobFailed.exit_code if failures else 0


def _chosen(trials: tuple[Trial, ...], only: Sequence[str]) -> list[Trial]:
    names = [trial.name for trial in trials]
    for name in only:
        if name not in names:
            raise UsageError(f"unknown trial '{name}'", where="--only", fix=nearest(name, names))
    return [trial for trial in trials if not only or trial.name in only]


def _prepared(trial: Trial, wanted: ReproductionOptions) -> PlayedTrial:
    """The trial's job file, written, cut to the rounds asked for, and checked with its records."""
    path = wanted.out / "jobs" / f"{trial.name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    job = dict(trial.job)
    _dump(path, job)
    ensure_for_jobs([path])
    full = load_job(path).rounds
    if wanted.rounds is not None and wanted.rounds < full:
        _dump(path, {**job, "train": {**job.get("train", {}), "rounds": wanted.rounds}})
    folder = folder_of(trial.source, wanted.data)
    overrides = Overrides(simulate=True, data=folder, ray_address=wanted.ray_address)
    return PlayedTrial(trial, grid_of(path, wanted.out, overrides, wanted.seeds, ()), full)


def _dump(path: Path, job: dict[str, Any]) -> None:
    write_whole(path, yaml.safe_dump(job, sort_keys=False).encode())


def _content(
    name: str,
    experiment: Experiment,
    wanted: ReproductionOptions,
    rows: list[dict[str, Any]],
    failures: list[str],
) -> dict[str, Any]:
    return {
        "experiment": name,
        "title": experiment.title,
        "source": experiment.source,
        "figure": experiment.figure,
        "remark": experiment.remark,
        "chosen": chosen_note(tuned_rows(rows, experiment.trials(wanted.quick))),
        "picture": experiment.picture,
        "x_label": experiment.x_label,
        "x_log": experiment.x_log,
        "shows_settings": experiment.shows_settings,
        "quick": wanted.quick,
        "rows": rows,
        "failures": failures,
        "versions": versions(),
    }


def tuned_rows(rows: Sequence[dict[str, Any]], trials: Sequence[Trial]) -> list[str]:
    """The measured rows whose settings were chosen on the same images: those of `fm` on MNIST."""
    ours = (t for t in trials if t.source == "mnist")
    tuned = {t.name for t in ours if t.job.get("train", {}).get("method") == "fm"}
    measured = (row for row in rows if row["trial"] in tuned and row["values"])
    return list(dict.fromkeys(f"`{row['trial']}`" for row in measured))


def _show(content: dict[str, Any], wanted: ReproductionOptions, stream: IO[str]) -> None:
    write(content, wanted.out)
    if wanted.as_json:
        print(json.dumps(content, allow_nan=False), flush=True)
    print(markdown(content), file=stream)
    print(f"Files: {wanted.out}/ with {', '.join(FILES)}", file=stream)


# --- the rows of the table, from the runs that are kept ---


@dataclass(frozen=True)
class PlayedTrial:
    """A trial with its job as it is run; `full_rounds` are those that `--rounds` may cut."""

    trial: Trial
    runs: Sequence[GridRun]
    full_rounds: int

    def results(self) -> list[Result]:
        """Of the seeds that have completed."""
        return [found.content for one in self.runs if (found := one.done)]


def rows_of(experiment: Experiment, played: PlayedTrial, command: str) -> list[dict[str, Any]]:
    """One row for each point of the trial; all values are JSON's."""
    results, rows = played.results(), _unmeasured(played.trial)
    shared: dict[str, Any] = {
        "rounds": played.runs[0].job.rounds,
        "full_rounds": played.full_rounds,
        "command": command,
    }
    if experiment.shows_settings:
        shared["settings"] = settings_of(played.runs[0].job)
    if results:
        first = results[0]
        shared |= {
            "proven_privacy": guarantee_text(first["privacy"], experiment.guarantee),
            "seconds": statistics.median(r["seconds"] for r in results),
            "guessing": _guessing(experiment, first),
            "curve": [
                [r["round"], r["accuracy"]] for r in first["rounds"] if r["accuracy"] is not None
            ],
            "scores": scores(first),
        }
    for row, point in zip(rows, played.trial.points, strict=True):
        row |= shared
        row["values"] = [v for found in results if (v := point.measure(found)) is not None]
        row["ours"] = statistics.median(row["values"]) if row["values"] else None
    return rows


def _guessing(experiment: Experiment, result: Mapping[str, Any]) -> dict[str, float]:
    """What an accuracy is read beside, where that is the figure."""
    return guessing(result["final"].get("figures")) if experiment.figure == "accuracy" else {}


def settings_of(job: Job) -> str:
    """What a job on features learns with: the fleet, the maps, their number, all values of it."""
    maps = " + ".join(Path(getattr(one, "file", None) or one.name).stem for one in job.features)
    weights = [one.weight for one in job.features if isinstance(one, MapParameters)]
    shares = f" ({' : '.join(f'{one:g}' for one in weights)})" if len(weights) > 1 else ""
    plan = compile_job(job).with_artifacts(read_artifacts(job))
    values = job.train.model_dump(mode="json", exclude={"method", "rounds"}, exclude_none=True)
    return "; ".join(
        (
            f"{job.selection.devices} × {job.data.nominal_records} records",
            f"{maps}{shares}, {plan.setting.dimension} features",
            ", ".join(f"{name} {_plain(value)}" for name, value in values.items()),
        )
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "/".join(map(_plain, value.values()))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def not_run(trial: Trial, lacking: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows that have the text's figures alone; `lacking` names data sets without files."""
    why = f"not run: no files of {trial.source}" if trial.source in lacking else None
    return [{**row, "proven_privacy": why} for row in _unmeasured(trial)]


def _unmeasured(trial: Trial) -> list[dict[str, Any]]:
    """A row for each point, with the text's figures alone. Curve and scores are the first seed's:
    [round, accuracy] where the cloud tested, and [round, cluster score, test loss].
    """
    return [
        {
            "trial": trial.name,
            "label": f"{trial.label}, {point.label}" if point.label else trial.label,
            "series": point.series,
            "x": point.x,
            "claimed": point.claimed,
            "claimed_privacy": trial.claimed_privacy,
            "values": [],
            "ours": None,
            "proven_privacy": None,
            "rounds": None,
            "full_rounds": None,
            "settings": None,
            "seconds": None,
            "curve": [],
            "scores": [],
            "command": None,
        }
        for point in trial.points
    ]


# --- data and hardware that a trial needs ---


def folder_of(source: str, data: Path | None) -> Path | None:
    """Where all files of a published data set are: `data`, or the folder of its name in there.

    None where files are missing, and for what reads no folder.
    """
    if source not in published_files():
        return None
    places = [place / source for place in PLACES] if data is None else [data, data / source]
    return next((one for one in places if not published_files()[source].missing(one)), None)


def without_files(trials: Sequence[Trial], data: Path | None) -> dict[str, str]:
    """For each data set whose files are missing, the files that are wanted, in words."""
    sources = {trial.source for trial in trials} & set(published_files())
    return {
        source: f"{source} as it is published: {', '.join(published_files()[source].names)}"
        for source in sorted(sources)
        if folder_of(source, data) is None
    }


def refuse_without_files(lacking: dict[str, str]) -> None:
    """Raise the UsageError that names all files that are wanted."""
    raise UsageError(
        f"the files of {', '.join(lacking)} are not there",
        where="--data",
        fix="name the folder with " + "; or with ".join(lacking.values()),
    )


def require_gpu(name: str) -> None:
    """Raise UsageError unless torch finds a GPU. Needs torch."""
    if chosen_processor("auto") == "cpu":
        raise UsageError(
            f"'{name}' needs a GPU (CUDA or MPS), and torch finds none: a gradient of every record "
            "in every step would take days without",
            where="edgeveil reproduce",
            fix="run it on a machine with a GPU; --quick shows that its rows run",
        )
