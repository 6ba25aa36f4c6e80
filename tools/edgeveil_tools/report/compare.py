"""Several runs side by side: their accuracy, or RMSE, on one chart, what each cost, and what they
did differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml

from edgeveil.errors import DataError
from edgeveil.evaluation.figures import (
    ACCURACY,
    AUC,
    RMSE,
    guessing,
    leading,
    leading_of,
    leading_text,
)
from edgeveil.pages.parts import Json, least, lines, rounded, said, section, series
from edgeveil.pages.parts import table as table_part
from edgeveil.privacy.guarantee import guarantee_text
from edgeveil.units import byte_text, seconds_text
from edgeveil_tools.result import MEASURED_ON, Result

JOB_FILE = "job.yaml"
MOST_RUNS = 40
_MOST_JOB_BYTES = 1 << 20
_COLOURS = ("blue", "orange", "green", "red", "purple", "sky", "olive", "indigo", "brown", "grey")
_OF_RUN = ("devices", "infer_only", "broker", "simulated", "engine")
_SAME = "The runs have the same settings, as far as their folders tell."
_DIFFERENT = "Settings that are not the same in all of them, from job.yaml and result.json."
_NO_JOB = "Some of the folders have no job.yaml: what their jobs said is not compared."
_COSTS = (
    "Accuracy stands beside both guarantees, each with its δ, unit and status; neither ε alone is"
    " “the” ε. Only guarantees of the same unit can be compared."
)


@dataclass(frozen=True)
class RunOfMany:
    """One run of a comparison, under a name that no other of them has."""

    name: str
    result: Result
    settings: Mapping[str, str]

    @property
    def measured_on(self) -> str:
        """Which records its accuracy is of."""
        return str(self.result.content["final"]["measured_on"])

    @property
    def led(self) -> tuple[str, float | None]:
        """What leads its figures, by name."""
        return leading(self.result.content["final"])

    @property
    def led_text(self) -> str:
        """The same in words, beside what guessing comes to on its test records."""
        name, value = self.led
        if value is None:
            return "–"
        told = leading_text(name, value, self.result.content["final"].get("figures"))
        return told if name == ACCURACY else f"{name} {told}"

    @property
    def row(self) -> dict[str, Any]:
        """Its figures, plain."""
        content = self.result.content
        return {
            "name": self.name,
            "folder": str(self.result.folder),
            "job": self.result.job,
            "status": self.result.status,
            "simulated": content["simulated"],
            "accuracy": self.result.accuracy,
            "measured_on": self.measured_on,
            "accuracy_without_noise": self.result.reference_accuracy,
            "rmse": self.result.rmse,
            **guessing(content["final"].get("figures")),
            "auc": leading_of(AUC, content["final"]),
            "privacy": self.result.privacy,
            "rounds": len(content["rounds"]),
            "seconds": content["seconds"],
            "bytes": sum(content["bytes"].values()),
        }


def compared(folders: Sequence[Path]) -> list[RunOfMany]:
    """The runs of these folders. Raises UsageError where one holds no result."""
    results = [Result.load(folder) for folder in folders]
    names = _names(folders)
    return [
        RunOfMany(name, result, settings_of(result))
        for name, result in zip(names, results, strict=True)
    ]


def settings_of(result: Result) -> dict[str, str]:
    """What its folder says of how it was run: its job file where one is there, and itself."""
    found = {key: _text(result.content.get(key)) for key in _OF_RUN}
    path = result.folder / JOB_FILE
    try:
        if path.stat().st_size > _MOST_JOB_BYTES:
            raise DataError("is too large for a job file", where=str(path))
        job = yaml.safe_load(path.read_bytes())
    except FileNotFoundError:
        return found
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DataError("is no YAML", where=str(path), fix="take it away") from error
    return {**dict(_flat(job)), **found}


def differing(runs: Sequence[RunOfMany]) -> list[tuple[str, list[str]]]:
    """Settings that are not the same in all runs; `–` where one has none of the name. Where one's
    job file is not there, those of jobs are left out."""
    known = all(_has_job(run) for run in runs)
    names = dict.fromkeys(name for run in runs for name in (run.settings if known else _OF_RUN))
    rows = [(name, [run.settings.get(name, "–") for run in runs]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def comparison_view(runs: Sequence[RunOfMany]) -> Json:
    """The page of several runs."""
    apart = differing(runs)
    notes = [said(_COSTS), _simulated(runs), _own_records(runs)]
    head = ["setting", *(run.name for run in runs)]
    settings = table_part(
        "Settings that differ", head, [[name, *values] for name, values in apart], text=[0]
    )
    return {
        "title": f"{len(runs)} runs compared",
        "badge": None,
        "lines": [said(", ".join(dict.fromkeys(run.result.job for run in runs)))],
        "progress": None,
        "cards": [],
        "sections": [
            section("accuracy", f"{_head(_measure(runs))} by round", [_curves(runs)]),
            section("runs", "Runs", [_costs(runs)], before=notes),
            section(
                "settings",
                "Settings that differ",
                [settings if apart else None],
                before=[
                    said(_DIFFERENT if apart else _SAME),
                    None if all(map(_has_job, runs)) else said(_NO_JOB, "warn"),
                ],
            ),
        ],
        "footer": " · ".join(str(run.result.folder) for run in runs),
    }


def _measure(runs: Sequence[RunOfMany]) -> str:
    """What their chart is of: what leads the figures of all of them, else accuracy."""
    names = {run.led[0] for run in runs}
    return names.pop() if len(names) == 1 else ACCURACY


def _head(measure: str) -> str:
    return measure[0].upper() + measure[1:]


def _curves(runs: Sequence[RunOfMany]) -> Json | None:
    measure = _measure(runs)
    tested = {
        run.name: {row["round"]: leading_of(measure, row) for row in run.result.content["rounds"]}
        for run in runs
    }
    x = sorted({number for of in tested.values() for number, value in of.items() if value})
    if not x:
        return None
    shown = [
        series(name, [rounded(of.get(number)) for number in x], colour, dash=dash)
        for (name, of), (colour, dash) in zip(tested.items(), _styles(), strict=False)
    ]
    name = f"{_head(measure)} on the test records"
    if measure == RMSE:
        return lines(name, x, shown, low=0.0)
    low = max(0.0, least([value for one in shown for value in one["values"]]) - 0.05)
    return lines(name, x, shown, low=round(low, 1), high=1.0)


def _styles() -> Iterator[tuple[str, bool]]:
    """Colours, and after the last the same dashed."""
    return cycle([(colour, dash) for dash in (False, True) for colour in _COLOURS])


def _costs(runs: Sequence[RunOfMany]) -> Json:
    head = ["run", "status", _measure(runs), "training", "inference", "rounds", "time", "bytes"]
    rows = [
        [
            run.name,
            row["status"] + (", simulated" if row["simulated"] else ""),
            run.led_text,
            *(guarantee_text(row["privacy"], which) for which in ("training", "inference")),
            str(row["rounds"]),
            seconds_text(row["seconds"]),
            "–" if row["simulated"] else byte_text(row["bytes"]),
        ]
        for run in runs
        for row in (run.row,)
    ]
    return table_part("Runs", head, rows, text=[0, 1, 3, 4])


def _has_job(run: RunOfMany) -> bool:
    return len(run.settings) > len(_OF_RUN)


def _own_records(runs: Sequence[RunOfMany]) -> Json | None:
    own = [run.name for run in runs if run.measured_on != MEASURED_ON[True]]
    if not own:
        return None
    return said(f"Accuracy of {', '.join(own)} is on {MEASURED_ON[False]}.", "warn")


def _simulated(runs: Sequence[RunOfMany]) -> Json | None:
    if not any(run.row["simulated"] for run in runs):
        return None
    text = "A simulated run protects nobody: its ε is what a real run of the job costs."
    return said(text, "warn")


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the folders, as many as tell them apart."""
    whole = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-count:]) for parts in whole]
        if len(set(names)) == len(names):
            return names
    return [f"{parts[-1]} ({number})" for number, parts in enumerate(whole, 1)]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif name:
        yield name, _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return str(value.get("name", ", ".join(map(str, value))))
    return str(value)
