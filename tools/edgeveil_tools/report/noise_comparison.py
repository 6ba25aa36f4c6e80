"""`edgeveil compare JOB`: one job with local, shared and no noise, side by side.

DIR/local/ and DIR/shared/ hold what `edgeveil run --simulate` writes. Without noise nothing is run
as a job: the figures are those of the reference beside one of these runs, which learns from the
same records in this process, and of which no model is written.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, get_args

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.table import Table

from edgeveil.errors import INTERRUPTED, UsageError
from edgeveil.evaluation.figures import ACCURACY, guessing, leading, leading_text, spread_of
from edgeveil.jobs import Job
from edgeveil.privacy.guarantee import up, worth
from edgeveil_tools.local.data import check_data, held, is_published
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.reference import has_reference
from edgeveil_tools.local.run import require_unused, run_local
from edgeveil_tools.pages import write_page
from edgeveil_tools.report.plots import BLUE, GREEN, RED, svg_figure
from edgeveil_tools.result import (
    MEASURED_ON,
    SIMULATED,
    UNPROTECTED,
    finite,
    versions,
    write_json,
    writing,
)

Noise = Literal["local", "shared", "none"]
NOISES: tuple[Noise, ...] = get_args(Noise)
FILES = ("compare.json", "compare.html")
NO_NOISE = (
    "none: NO PRIVACY AT ALL. Learned without noise from all records together, in this process and"
    " for comparison alone: no device would answer so, and no model of it is written"
)
COLUMNS = ("noise", "accuracy", "ε", "ε if all others collude", "δ", "unit", "seconds")
_COLOURS = {"local": BLUE, "shared": GREEN, "none": RED}
_GREY = "#8A8A8A"


@dataclass(frozen=True)
class ComparisonOptions:
    """What the command line asks for; no `noises`: all that may be shown of the records."""

    out: Path
    noises: tuple[Noise, ...] = ()
    seed: int | None = None
    devices: int | None = None
    data: Path | None = None
    as_json: bool = False
    force: bool = False
    command: str = ""

    def overrides(self, noise: Noise) -> Overrides:
        """Of the run with this noise; `none`: of the job as it is written."""
        return Overrides(
            simulate=True,
            seed=self.seed,
            devices=self.devices,
            data=self.data,
            noise=None if noise == "none" else noise,
        )


def compare(path: Path, asked: ComparisonOptions) -> int:
    """Simulate the job with each noise, show and write what came of it; 0, or 130 after Ctrl-C.

    All of them are checked before the first one runs: ConfigError where the job's noise cannot be
    shared, UsageError where it has no noise-free reference, DataError. Raises as a run does.
    """
    if not asked.force:
        require_unused(asked.out, "compare.json")
    written = local_job(path, asked.overrides("none"))
    published = is_published(*written)
    noises = asked.noises or (NOISES if published else ("local", "shared"))
    for noise in noises:
        check_data(*local_job(path, asked.overrides(noise)))
    runs = [noise for noise in noises if noise != "none"]
    if not runs:
        raise UsageError(
            "no noise alone is no comparison",
            where="--noise none",
            fix="add local or shared",
        )
    if "none" in noises and not has_reference(written[0]):
        raise UsageError(
            f"training method '{written[0].train.method}' has no noise-free reference",
            where="--noise none",
            fix="leave it out, as --noise local,shared does",
        )
    stream: IO[str] = sys.stderr if asked.as_json else sys.stdout
    rows: dict[Noise, dict[str, Any]] = {}
    # The reference is the job's as `edgeveil run` has it, where that run is one of these.
    beside = written[0].privacy.noise if written[0].privacy.noise in runs else runs[0]
    for noise in runs:
        print(f"{path}, noise {noise}", file=stream, flush=True)
        code = run_local(
            path,
            asked.out / noise,
            asked.overrides(noise),
            reference="none" in noises and noise == beside,
            force=True,  # of a comparison that was interrupted
            command=asked.command,
            brief=True,
            stream=stream if stream.isatty() else io.StringIO(),
        )
        if code == INTERRUPTED:
            return INTERRUPTED
        result = json.loads((asked.out / noise / "result.json").read_bytes())
        rows[noise] = _row(noise, result)
        if "none" in noises and noise == beside:
            rows["none"] = _without_noise(result["reference"]["rounds"])
    content = finite(
        {
            "job": written[0].job,
            "measure": written[0].measure,
            "rows": [rows[noise] for noise in noises],
            "predicting_the_mean": _predicting_the_mean(*written),
            "notes": _notes(noises, published=published),
            "measured_on": MEASURED_ON[published],
            "versions": versions(),
        }
    )
    write_comparison(content, asked.out)
    if asked.as_json:
        print(json.dumps(content, allow_nan=False), flush=True)
    show(content, stream)
    print(f"Files: {asked.out}/ with {', '.join(FILES)}", file=stream)
    return 0


def _predicting_the_mean(job: Job, run: LocalRun) -> float | None:
    """RMSE of saying the test records' own mean for each of them; None where labels are classes."""
    target = job.data.target
    return None if target is None else spread_of(held(job, run).y, target)


def _row(noise: Noise, result: Mapping[str, Any]) -> dict[str, Any]:
    """`accuracies` are of the content's `measure`."""
    training, rounds = result["privacy"]["training"], result["rounds"]
    proven = training["status"] == "proven"
    return {
        "noise": noise,
        "accuracy": leading(result["final"])[1],
        "guessing": guessing(result["final"].get("figures")),
        "accuracies": [leading(row)[1] for row in rounds],
        "epsilon": training["epsilon"] if proven else None,
        "collusion_epsilon": _colluding(training) if proven else None,
        "honest_devices": training.get("honest_devices", 0),
        "delta": training["delta"],
        "unit": training["unit"],
        "status": training["status"],
        "epsilons": [row["epsilon"]["training"] if proven else None for row in rounds],
        "collusion_epsilons": [row["epsilon"].get("collusion") for row in rounds if proven],
        "seconds": result["seconds"],
    }


def _colluding(training: Mapping[str, Any]) -> float | None:
    """What is printed of the case that all others collude: of local noise the same ε."""
    found: float | None = training.get("collusion_epsilon", training["epsilon"])
    return found


def _without_noise(accuracies: Sequence[float]) -> dict[str, Any]:
    return {
        "noise": "none",
        "accuracy": accuracies[-1] if accuracies else None,
        "accuracies": list(accuracies),
        "epsilon": None,
        "collusion_epsilon": None,
        "honest_devices": 0,
        "delta": None,
        "unit": None,
        "status": "none",
        "epsilons": [],
        "collusion_epsilons": [],
        "seconds": None,
    }


def _notes(noises: Sequence[Noise], *, published: bool) -> list[str]:
    """What must be read beside the figures."""
    found = [SIMULATED]
    if "none" in noises:
        found.append(NO_NOISE)
        found += [] if published else [f"none: {UNPROTECTED}"]
    return found


# --- table, page and pictures ---


def cells(row: Mapping[str, Any], measure: str = ACCURACY) -> tuple[str, ...]:
    """One row in words."""
    reached = leading_text(measure, row["accuracy"], row.get("guessing"))
    if row["noise"] == "none":
        nothing = "no privacy at all"
        return ("none", reached, nothing, nothing, "–", "–", "–")
    seconds = f"{row['seconds']:.1f}"
    if row["status"] != "proven":
        told = "no proven guarantee"
        return (row["noise"], reached, told, told, "–", row["unit"], seconds)
    return (
        row["noise"],
        reached,
        _epsilon(row["epsilon"]),
        _epsilon(row["collusion_epsilon"]),
        up(row["delta"]),
        row["unit"],
        seconds,
    )


def _epsilon(value: float | None) -> str:
    return "not bounded" if value is None else up(value) + worth(value)


def show(content: Mapping[str, Any], stream: IO[str]) -> None:
    """The table for a terminal."""
    measure = content["measure"]
    table = Table(title=f"{content['job']}: {measure} on {content['measured_on']}")
    for name in columns(measure):
        table.add_column(name, justify="left" if name == "noise" else "right")
    for row in content["rows"]:
        table.add_row(*cells(row, measure), style="red" if row["noise"] == "none" else None)
    console = Console(file=stream, highlight=False)
    console.print(table)
    if content["predicting_the_mean"] is not None:
        console.print(_mean_text(content), markup=False)
    for note in content["notes"]:
        console.print(note, markup=False, style="bold red" if note == NO_NOISE else None)


def columns(measure: str) -> list[str]:
    """The heads of the table."""
    return [name.replace("accuracy", measure) for name in COLUMNS]


def _mean_text(content: Mapping[str, Any]) -> str:
    of_mean = leading_text(content["measure"], content["predicting_the_mean"])
    return f"Saying the mean of the test records for each of them: {content['measure']} {of_mean}"


def write_comparison(content: Mapping[str, Any], out: Path) -> None:
    """Write all files. Raises UsageError where they cannot be written."""
    measure = content["measure"]
    pictures = {
        "accuracy": accuracy_picture(content["rows"], measure, content["predicting_the_mean"]),
        "epsilon": epsilon_picture(content["rows"]),
    }
    page = {
        "content": content,
        "columns": columns(measure),
        "rows": [cells(row, measure) for row in content["rows"]],
        "mean": "" if content["predicting_the_mean"] is None else _mean_text(content),
        "no_noise": NO_NOISE,
        "pictures": {name: Markup(svg) for name, svg in pictures.items()},  # noqa: S704 - our own
        "rounds": _by_round(content["rows"]),
    }
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "compare.json", content)
        shown = partial(leading_text, measure)
        write_page(out / "compare.html", "noise.html", page, {"figure": shown})


def _by_round(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, list[float | None]]]:
    """Each round with the figures of all noises, None where one ended earlier."""
    most = max((len(row["accuracies"]) for row in rows), default=0)
    return [
        (k + 1, [row["accuracies"][k] if k < len(row["accuracies"]) else None for row in rows])
        for k in range(most)
    ]


def accuracy_picture(
    rows: Sequence[Mapping[str, Any]], measure: str = ACCURACY, mean: float | None = None
) -> str:
    """The measure by round, a line for each noise, and one for saying the `mean`; "" where nothing
    was tested."""
    tested = {row["noise"]: _points(row["accuracies"]) for row in rows}
    if not any(tested.values()):
        return ""
    with svg_figure(7.4, 3.2, "compared-accuracy") as (figure, done):
        axes = figure.add_subplot()
        for noise, points in tested.items():
            none = noise == "none"
            axes.plot(
                *_columns(points),
                color=_COLOURS[noise],
                linestyle="--" if none else "-",
                marker="s" if none else "o",
                label="none: no privacy at all" if none else noise,
            )
        if measure == ACCURACY:
            lowest = min(value for points in tested.values() for _, value in points)
            axes.set_ylim(max(0.0, math.floor(lowest * 20 - 0.5) / 20), 1.0)
        else:
            axes.set_ylim(bottom=0)
        if mean is not None:
            axes.axhline(mean, color=_GREY, linestyle=":", label="saying the mean")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
        axes.set_xlabel("training round")
        axes.set_title(f"{measure}, by noise")
        axes.grid(axis="y")
        axes.legend(loc="lower right" if measure == ACCURACY else "best")
    return done[0]


def epsilon_picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Training's ε by plan after each round; dashed, if all others collude. "" without any."""
    if not any(_points(row["epsilons"]) for row in rows):
        return ""
    with svg_figure(7.4, 2.6, "compared-epsilon") as (figure, done):
        axes = figure.add_subplot()
        for row in rows:
            colour = _COLOURS[row["noise"]]
            for key, line, name in (
                ("epsilons", "-", row["noise"]),
                ("collusion_epsilons", "--", f"{row['noise']}, if all others collude"),
            ):
                points = _points(row[key])
                if points:  # local and shared noise are mostly made for one ε: see both
                    (drawn,) = axes.plot(*_columns(points), line, color=colour, label=name)
                    if row["noise"] == "local":
                        drawn.set(linewidth=5, alpha=0.4)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
        axes.set_xlabel("training round")
        axes.set_title("training: ε by plan")
        axes.grid(axis="y")
        axes.legend(loc="upper left")
    return done[0]


def _points(values: Sequence[float | None]) -> list[tuple[int, float]]:
    return [(k, value) for k, value in enumerate(values, 1) if value is not None]


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [k for k, _ in points], [value for _, value in points]
