"""`edgeveil table JOB…`: each job simulated with several seeds, and what came of it in one table.

DIR/<job>/seed-<n>/ holds what `edgeveil run --simulate` writes. A seed that has completed is not
run again while its job file says the same, so a table that was interrupted goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
import statistics
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from rich.console import Console
from rich.table import Table

from edgeveil.errors import INTERRUPTED, EdgeVeilError, JobFailed, UsageError
from edgeveil.evaluation.figures import (
    BY_DEVICES,
    beside_text,
    federated_text,
    guessing,
    leading,
    leading_text,
)
from edgeveil.jobs import Job, load_job
from edgeveil.parts.sources import published_files
from edgeveil.privacy.guarantee import up, worth
from edgeveil.units import seconds_text
from edgeveil_tools.backbone.command import ensure_for_jobs
from edgeveil_tools.local.data import check_data, is_published
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.run import run_local
from edgeveil_tools.local.simulated import checkpoint_stamp, engine_of
from edgeveil_tools.report.plots import BLUE, GREEN, ORANGE, file_figure
from edgeveil_tools.result import (
    MEASURED_ON,
    UNPROTECTED,
    reference_of,
    versions,
    write_json,
    write_whole,
    writing,
)
from edgeveil_tools.simulation.checkpoint import load_checkpoint
from edgeveil_tools.tracking.tracker import TrackTarget

STAMP = "table.stamp"


@dataclass(frozen=True)
class TableJob:
    """One job file of the table: the job, its run and its folder."""

    path: Path
    job: Job
    run: LocalRun
    folder: Path

    def stamp(self, seed: int) -> str:
        """Digest of all that decides what a run gives, but for the code. Which engine plays it, on
        how many workers, decides nothing."""
        run = self.run.model_copy(update={"seed": seed, "simulate": True})
        said = run.model_dump_json(exclude={"engine", "ray_address", "workers"})
        return hashlib.sha256(self.job.canonical() + said.encode()).hexdigest()


@dataclass(frozen=True)
class TableOptions:
    """What the command line asks for."""

    seeds: int
    out: Path
    data: Path | None = None
    force: bool = False
    as_json: bool = False
    reference: bool | None = None  # of the first seed; None: of a published set
    engine: str | None = None
    ray_address: str | None = None
    track: tuple[str, ...] = ()
    command: str = ""

    def overrides(self, job: Job) -> Overrides:
        """For all runs of this job; the folder is for those that read one."""
        has_files = job.data.source in published_files() or job.data.schema_ is not None
        data = self.data if has_files else None
        return Overrides(simulate=True, data=data, engine=self.engine, ray_address=self.ray_address)


def table(paths: Sequence[Path], asked: TableOptions) -> int:
    """Run what is missing, write the table; 0, or 6 where a run failed, 130 after Ctrl-C.

    Every job file is checked before the first one runs: ConfigError, UsageError, DataError.
    """
    if asked.seeds < 1:
        raise UsageError("no seed to run", where="--seeds", fix="use 1 or more")
    for one in asked.track:
        TrackTarget.parse(one)
    studies = [study_of(path, asked) for path in paths]
    if len({study.job.measure for study in studies}) > 1:
        raise UsageError(
            "some jobs tell classes, some a number or anomalies, and their figures are no"
            " column of one table",
            where="edgeveil table",
            fix="make a table of each kind",
        )
    names = [study.folder for study in studies]
    if len(set(names)) < len(names):
        raise UsageError(
            "two job files have one name", where=str(asked.out), fix="rename one of them"
        )
    stream = sys.stderr if asked.as_json else sys.stdout
    failures: list[str] = []
    for study in studies:
        if run_seeds(study, str(study.path), asked, stream, failures) == INTERRUPTED:
            return INTERRUPTED
    rows = [row(study, asked.seeds) for study in studies]
    content = {
        "rows": rows,
        "notes": [*notes(studies), *filter(None, map(_by_devices, rows))],
        "failures": failures,
        "versions": versions(),
    }
    write_table(content, asked.out)
    if asked.as_json:
        print(json.dumps(content, allow_nan=False), flush=True)
    show(content, stream)
    print(f"Files: {asked.out}/ with {', '.join(FILES)}", file=stream)
    return JobFailed.exit_code if failures else 0


def _measured(rows: Sequence[Mapping[str, Any]]) -> str:
    return str(rows[0].get("measure", "accuracy")) if rows else "accuracy"


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The heads of the table."""
    return [name.replace("accuracy", _measured(rows)) for name in COLUMNS]


def row(study: TableJob, seeds: int) -> dict[str, Any]:
    """One row of `table.json`, of the runs that completed. `accuracies` are of its `measure`."""
    results = [found for n in range(seeds) if (found := done(study, study.run.seed + n))]
    measure = study.job.measure
    measured = [leading(r["final"])[1] for r in results]
    accuracies = [value for value in measured if value is not None]
    references = [reference_of(r["reference"]) for r in results]
    known = [value for value in references if value is not None]
    training = results[0]["privacy"]["training"] if results else {}
    privacy = study.job.privacy
    return {
        "job": study.job.job,
        "features": " + ".join(entry.name for entry in study.job.features),
        "method": study.job.train.method,
        "epsilon": training.get("epsilon") or privacy.epsilon,  # null: training adds no noise
        "delta": privacy.delta,
        "unit": training.get("unit", "record"),
        "status": training.get("status", "unknown"),
        "devices": study.run.devices,
        "rounds": study.job.rounds,
        "seeds": [study.run.seed + n for n in range(seeds)],
        "measure": measure,
        "accuracies": accuracies,
        "median": statistics.median(accuracies) if accuracies else None,
        "guessing": _guessing(results),
        "reference": known[0] if known else None,
        "federated": [told for r in results if (told := r["final"].get("federated"))],
        "seconds": statistics.median(r["seconds"] for r in results) if results else None,
        "memory_peak_bytes": max((r["memory_peak_bytes"] or 0 for r in results), default=None),
        "claims": [{"text": claim.text, **vars(claim)} for claim in claims(study.job.job)],
    }


def _by_devices(row: Mapping[str, Any]) -> str:
    """What devices' own counts say of the runs of a row, by seed, or ""."""
    told = ", ".join(federated_text(one).removesuffix(BY_DEVICES) for one in row["federated"])
    return f"by noised counts{BY_DEVICES}, {row['job']}: {told}" if told else ""


def notes(studies: Sequence[TableJob]) -> list[str]:
    """What must be read beside the rows: where settings were chosen, and figures of own records."""
    tuned = [s.job.job for s in studies if was_tuned(s.job.job, s.job.data.source)]
    own = [study.job.job for study in studies if not is_published(study.job, study.run)]
    found = [chosen_note(tuned)] if tuned else []
    if own:
        found.append(f"figures of {', '.join(own)}: on {MEASURED_ON[False]}")
        found.append(f"{', '.join(own)} without noise, where it stands: {UNPROTECTED}")
    return found


def study_of(path: Path, asked: TableOptions) -> TableJob:
    """The job file, checked with its records. ConfigError, UsageError or DataError."""
    ensure_for_jobs([path])
    job, run = local_job(path, asked.overrides(load_job(path)))
    check_data(job, run)
    return TableJob(path, job, run, asked.out / path.stem)


def run_seeds(
    study: TableJob, name: str, asked: TableOptions, stream: IO[str], failures: list[str]
) -> int:
    """Run each seed that has not completed; 0 or 130. What fails is told, and in `failures`."""
    for number in range(asked.seeds):
        try:
            if run_seed(study, number, asked, stream) == INTERRUPTED:
                return INTERRUPTED
        except EdgeVeilError as error:
            failures.append(f"{name}, seed {study.run.seed + number}: {error}")
            print(f"edgeveil: {failures[-1]}", file=sys.stderr)
    return 0


def run_seed(study: TableJob, number: int, asked: TableOptions, stream: IO[str]) -> int:
    """Run the seed `number` from 0, unless it has completed; 0 or 130. Raises EdgeVeilError."""
    seed = study.run.seed + number
    folder = study.folder / f"seed-{seed}"
    if not asked.force and done(study, seed):
        print(f"{study.path}, seed {seed}: done before", file=stream)
        return 0
    (folder / STAMP).unlink(missing_ok=True)
    code = run_local(
        study.path,
        folder,
        replace(asked.overrides(study.job), seed=seed),
        reference=asked.reference if number == 0 else False,  # one seed's is like another's
        resume=not asked.force and interrupted(folder, study, seed),
        force=True,  # what has completed is kept above
        track=asked.track,
        command=asked.command,
        brief=True,
        stream=stream if stream.isatty() else io.StringIO(),  # one line a run is enough in a file
    )
    if code == 0:
        (folder / STAMP).write_text(study.stamp(seed), "utf-8")
        result = json.loads((folder / "result.json").read_bytes())
        measure, value = leading(result["final"])
        told = leading_text(measure, value, result["final"].get("figures"))
        shown = "not tested" if value is None else f"{measure} {told}"
        which = f"{study.path}, seed {seed} ({number + 1} of {asked.seeds})"
        print(f"{which}: {shown}, {seconds_text(result['seconds'])}", file=stream, flush=True)
    return code


def interrupted(folder: Path, study: TableJob, seed: int) -> bool:
    """Whether the folder holds the checkpoint of this very run."""
    run = study.run.model_copy(update={"seed": seed, "simulate": True})
    if engine_of(study.job, run) == "faithful":
        return False
    try:
        load_checkpoint(folder, checkpoint_stamp(study.job, run))
    except UsageError:
        return False
    return True


def done(study: TableJob, seed: int) -> Mapping[str, Any] | None:
    """The result of a completed run of this very job, or None."""
    folder = study.folder / f"seed-{seed}"
    try:
        if (folder / STAMP).read_text("utf-8") != study.stamp(seed):
            return None
        found: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found


# --- published figures: claims of their authors, see docs/privacy.md ---


@dataclass(frozen=True)
class PublishedFigure:
    """Accuracies as published, and where."""

    method: str
    low: float
    high: float
    source: str

    @property
    def text(self) -> str:
        """`DELM 0.962 to 0.981`."""
        span = f"{self.low:.3f}" + (f" to {self.high:.3f}" if self.high > self.low else "")
        return f"{self.method} {span}"


_SOURCE = "Cao et al. 2023, Differentially Private Federated Learning with Functional Mechanism"
_AT_1 = (
    PublishedFigure("DELM", 0.962, 0.981, f"{_SOURCE}, fig. 3a"),
    PublishedFigure("LDP-FL", 0.927, 0.927, f"{_SOURCE}, fig. 3a"),
)
_AT_01 = (
    PublishedFigure("DELM", 0.913, 0.922, f"{_SOURCE}, fig. 3b"),
    PublishedFigure("LDP-FL", 0.826, 0.826, f"{_SOURCE}, fig. 3b"),
)
CLAIMS: dict[str, tuple[PublishedFigure, ...]] = {
    "mnist_fm_local": _AT_1,
    "mnist_fm_nofeatures": _AT_1,
    "mnist_fm_local_eps01": _AT_01,
}


CHOSEN_ON = (
    "chosen on the images that devices learn from: features and parameters of {names} were set by"
    " the accuracy on 10,000 of MNIST's 60,000 training images, after learning on the others; the ε"
    " does not price that choice, and no test image took part in it"
)
_TUNED = ("mnist_fm_local", "mnist_fm_local_eps01", "mnist_fm_nofeatures")


def chosen_note(names: Sequence[str]) -> str:
    """What a table says of rows whose settings were chosen on the records that they learn from."""
    return CHOSEN_ON.format(names=", ".join(names)) if names else ""


def was_tuned(job: str, source: str) -> bool:
    """Whether the settings of this job were chosen on the very records of its data set."""
    return source == "mnist" and job.replace("-", "_") in _TUNED


def claims(job: str) -> tuple[PublishedFigure, ...]:
    """What was published for the task of this job; names may be written with - or _."""
    return CLAIMS.get(job.replace("-", "_"), ())


# --- files and pictures ---

FILES = ("table.md", "table.json", "table.png", "table.svg")
COLUMNS = (
    "job",
    "features",
    "ε",
    "δ",
    "unit",
    "status",
    "accuracy, median (range)",
    "without noise",
    "published",
    "seconds (median)",
)
_SHORT = ("job", "ε", "status", "accuracy, median (range)", "without noise", "published")
_GREY = "#666666"


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One row in words."""
    return (
        row["job"],
        row["features"],
        _epsilon(row),
        up(row["delta"]),
        row["unit"],
        "proven" if row["status"] == "proven" else f"{row['status']}: no proven guarantee",
        _spread(row["accuracies"], row["median"]) + _beside(row),
        _share(row["reference"]),
        "; ".join(claim["text"] for claim in row["claims"]) or "–",
        "–" if row["seconds"] is None else f"{row['seconds']:.0f}",
    )


def show(content: Mapping[str, Any], stream: IO[str]) -> None:
    """The table for a terminal, whose width has no room for all columns."""
    shown = Table()
    for name in _SHORT:
        shown.add_column(name.replace("accuracy", _measured(content["rows"])), overflow="fold")
    for row in content["rows"]:
        named = dict(zip(COLUMNS, cells(row), strict=True))
        shown.add_row(*(named[name].replace(" (", "\n(") for name in _SHORT))
    console = Console(file=stream)
    console.print(shown)
    for note in content["notes"]:
        console.print(note, markup=False)


def write_table(content: Mapping[str, Any], out: Path) -> None:
    """Write all files. Raises UsageError where they cannot be written."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "table.json", content)
        write_whole(out / "table.md", markdown(content).encode())
        for kind in ("png", "svg"):
            write_whole(out / f"table.{kind}", picture(content["rows"], kind, content["notes"]))


def markdown(content: Mapping[str, Any]) -> str:
    """The table with its sources below."""
    lines = ["| " + " | ".join(columns(content["rows"])) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in content["rows"]]
    seeds = sorted({len(row["accuracies"]) for row in content["rows"]})
    lines += ["", f"Seeds for each job: {', '.join(map(str, seeds))}. Simulated, noise seeded."]
    lines += [f"{note[:1].upper()}{note[1:]}." for note in content["notes"]]
    sources = {
        claim["source"]: claim["method"] for row in content["rows"] for claim in row["claims"]
    }
    if sources:
        lines += ["Published figures are claims of their authors: " + "; ".join(sources) + "."]
    lines += [f"Failed: {failure}" for failure in content["failures"]]
    return "\n".join(lines) + "\n"


def picture(rows: Sequence[Mapping[str, Any]], kind: str, notes: Sequence[str] = ()) -> bytes:
    """Accuracy of each run, a line for each job; published figures as bars behind."""
    with file_figure(7.2, 1.1 + 0.62 * len(rows), kind) as (figure, done):
        axes = figure.add_subplot()
        for y, row in enumerate(reversed(rows)):
            _draw(axes, y, row)
        axes.set_yticks(range(len(rows)), [_label(row) for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        below = [textwrap.fill(note, 110) for note in notes]
        axes.set_xlabel("\n".join([f"{_measured(rows)} on the test records", *below]))
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.06)
        _legend(axes, rows)
    return done[0]


def _draw(axes: Axes, y: int, row: Mapping[str, Any]) -> None:
    for claim in row["claims"]:
        width = max(claim["high"] - claim["low"], 0.0008)
        axes.barh(y, width, left=claim["low"], height=0.5, color=ORANGE, alpha=0.35)
        axes.annotate(
            claim["method"], (claim["low"], y + 0.27), color=_GREY, fontsize=7, va="bottom"
        )
    if row["reference"] is not None:
        axes.plot(row["reference"], y, "D", mfc="white", mec=GREEN, ms=6, zorder=3)
    if row["median"] is not None:
        axes.plot(row["accuracies"], [y] * len(row["accuracies"]), "o", color=BLUE, ms=5, alpha=0.6)
        axes.plot(row["median"], y, "|", color=BLUE, ms=17, mew=2.2)
        axes.annotate(
            f"{row['median']:.3f}", (row["median"], y - 0.3), color=BLUE, ha="center", va="top"
        )


def _legend(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    seed = axes.plot([], [], "o", color=BLUE, ms=5, alpha=0.6, label="one seed; bar: median")
    handles: list[Artist] = [*seed]
    if any(row["reference"] is not None for row in rows):
        handles += axes.plot([], [], "D", mfc="white", mec=GREEN, ms=6, label="without noise")
    if any(row["claims"] for row in rows):
        handles.append(Patch(color=ORANGE, alpha=0.35, label="published, no proven guarantee"))
    axes.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
        frameon=False,
        borderaxespad=0.2,
    )


def _label(row: Mapping[str, Any]) -> str:
    proven = "" if row["status"] == "proven" else f", {row['status']}"
    return f"{row['job']}\n{row['features']}, ε = {_epsilon(row)}{proven}"


def _epsilon(row: Mapping[str, Any]) -> str:
    """What the job asks for; a dash where nothing of it is kept, for training adds no noise."""
    if row["epsilon"] is None or row["status"] == "none":
        return "–"
    return up(row["epsilon"]) + worth(row["epsilon"])


def _spread(values: Sequence[float], median: float | None) -> str:
    if median is None:
        return "–"
    return f"{_share(median)} ({_share(min(values))}–{_share(max(values))})"


def _guessing(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What guessing comes to on the runs' test sets, by `guessing`: the medians over the seeds."""
    found = [guessing(result["final"].get("figures")) for result in results]
    keys = dict.fromkeys(key for one in found for key in one)
    return {key: statistics.median(one[key] for one in found if key in one) for key in keys}


def _beside(row: Mapping[str, Any]) -> str:
    if row["median"] is None:
        return ""
    told = beside_text(row.get("measure", "accuracy"), row["median"], row.get("guessing"))
    return f"; {told}" if told else ""


def _share(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if value <= 1 else f"{value:.4g}"  # an error may be of any size
