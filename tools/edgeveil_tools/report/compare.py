"""Comparison of runs: accuracy, cost and differing settings; one row for all seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml

from edgeveil.errors import DataError
from edgeveil.evaluation.figures import (
    ACCURACY,
    RMSE,
    baseline_text,
    baselines,
    leading,
    leading_of,
    leading_text,
)
from edgeveil.pages.frozen import frozen
from edgeveil.pages.parts import Json, least, lines, paragraph, rounded, section, series
from edgeveil.pages.parts import table as table_part
from edgeveil.privacy.guarantee import guarantee_text
from edgeveil.units import seconds_text
from edgeveil_tools.report.page import draw_again
from edgeveil_tools.result import (
    MEASURED_ON,
    Result,
    reference_of,
    write_json,
    write_whole,
    writing,
)
from edgeveil_tools.tracking.feed import flat

COMPARISON = "comparison.html"
TABLE = "table.json"
_COLOURS = ("blue", "orange", "green", "red", "purple", "sky", "olive", "indigo", "brown", "grey")
_OF_RUN = ("devices", "infer_only", "broker", "simulated")
_NO_DIFFERENCE = ("local_run.seed", "local_run.workers", "local_run.ray_address")
_COSTS = (
    "Each figure has two guarantees, for training and inference; neither ε alone is the total. Only"
    " guarantees of the same unit can be compared."
)
_SIMULATED = "A simulated run protects nobody: its ε is the cost of a real run of the job."
_CHOICE = "Choosing among runs by figures on own records is not in these ε."
_DIFFER = "Settings that differ between the runs, from job.yaml and result.json."
_HEAD = ("run", "seeds", "status", "", "without noise", "training", "inference", "rounds", "time")


def report(folders: Sequence[Path], out: Path | None, *, as_json: bool = False) -> int:
    """Run `edgeveil report`: redraw the page of one run, or write one that compares several."""
    results: list[Result] = []
    for folder in folders:
        below = [] if (folder / "result.json").exists() else sorted(folder.rglob("result.json"))
        results += [Result.load(one) for one in [path.parent for path in below] or [folder]]
    page = out or (results[0].report if len(results) == 1 else Path(COMPARISON))
    rows = compared(results)
    with writing(page, "name a file that you may write to with --out"):
        if len(results) == 1:
            draw_again(results[0], page)
        else:
            write_comparison(rows, page)
    if as_json:
        shown = {"command": "report", "ok": True, "report": str(page)}
        print(json.dumps({**shown, "rows": [row.plain for row in rows]}, allow_nan=False))
    else:
        print(page)
    return 0


@dataclass(frozen=True)
class ComparedRuns:
    """Runs that differ only in their seed, under a name that is unique in a comparison.

    `measure` is the leading figure: accuracy, RMSE or AUC; `plain` is the row of `table.json`."""

    name: str
    results: Sequence[Result]
    settings: Mapping[str, str]
    measure: str
    plain: dict[str, Any]

    @classmethod
    def of(cls, name: str, results: Sequence[Result]) -> ComparedRuns:
        """Build a row; figures, and those of guessing, are medians over the seeds."""
        contents = [one.content for one in results]
        first, finals = contents[0], [one["final"] for one in contents]
        measure = leading(first["final"])[0]
        values = [v for final in finals if (v := leading_of(measure, final)) is not None]
        guesses = [baselines(final.get("figures")) for final in finals]
        ideals = [v for one in contents if (v := reference_of(one["reference"])) is not None]
        plain = {
            "name": name,
            "folders": [str(one.folder) for one in results],
            "job": results[0].job,
            "status": sorted({one.status for one in results}),
            "simulated": first["simulated"],
            "seeds": [(one.get("run") or {}).get("seed") for one in contents],
            "measure": measure,
            "values": values,
            "median": statistics.median(values) if values else None,
            **{
                key: statistics.median(one[key] for one in guesses if key in one)
                for key in dict.fromkeys(key for one in guesses for key in one)
            },
            "measured_on": first["final"]["measured_on"],
            "without_noise": next(iter(ideals), None),
            "privacy": results[0].privacy,
            "rounds": max(len(one["rounds"]) for one in contents),
            "seconds": statistics.median(one["seconds"] for one in contents),
            "bytes": sum(first["bytes"].values()),
        }
        return cls(name, results, _settings(results[0]), measure, plain)

    @property
    def text(self) -> str:
        """Median figure, its range over the seeds, and the figure of guessing, as text."""
        median, values = self.plain["median"], self.plain["values"]
        if median is None:
            return "–"
        named = "" if self.measure == ACCURACY else f"{self.measure} "
        if len(self.results) == 1:
            return named + leading_text(self.measure, median, self.plain)
        middle, low, high = (
            leading_text(self.measure, value) for value in (median, min(values), max(values))
        )
        baseline = baseline_text(self.measure, median, self.plain)
        return f"{named}{middle} ({low} – {high}){'; ' * bool(baseline)}{baseline}"

    @property
    def cells(self) -> list[str]:
        row, free = self.plain, self.plain["without_noise"]
        return [
            self.name,
            str(len(self.results)),
            ", ".join(row["status"]) + (", simulated" if row["simulated"] else ""),
            self.text,
            "–" if free is None else leading_text(self.measure, free),
            *(guarantee_text(row["privacy"], which) for which in ("training", "inference")),
            str(row["rounds"]),
            seconds_text(row["seconds"]),
        ]


def compared(results: Sequence[Result]) -> list[ComparedRuns]:
    """Group runs by all settings except the seed, in the order given."""
    groups: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for one in results:
        settings = _settings(one)
        same = tuple((k, v) for k, v in settings.items() if k not in _NO_DIFFERENCE)
        groups.setdefault(same, []).append(one)
    names = _names([o[0].folder if len(o) == 1 else o[0].folder.parent for o in groups.values()])
    return [ComparedRuns.of(name, of) for name, of in zip(names, groups.values(), strict=True)]


def _settings(result: Result) -> dict[str, str]:
    found = {key: str(result.content.get(key)) for key in _OF_RUN}
    path = result.folder / "job.yaml"
    try:
        job = yaml.safe_load(path.read_bytes())
    except FileNotFoundError:
        return {**found, "folder": str(result.folder)}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DataError("is not valid YAML", where=str(path), fix="remove it") from error
    plain = job if isinstance(job, dict) else {}
    return {**{key: str(value) or "–" for key, value in flat(plain)}, **found}


def _differing(rows: Sequence[ComparedRuns]) -> list[tuple[str, list[str]]]:
    """Return settings that differ between rows, `–` where a row lacks one."""
    names = dict.fromkeys(name for row in rows for name in row.settings)
    found = [(name, [row.settings.get(name, "–") for row in rows]) for name in names]
    several = any(len(row.results) > 1 for row in rows)
    skipped = _NO_DIFFERENCE if several else ()
    return [(name, of) for name, of in found if len(set(of)) > 1 and name not in skipped]


def heads(rows: Sequence[ComparedRuns]) -> list[str]:
    several = any(len(row.results) > 1 for row in rows)
    led = _measure(rows) + (", median (range)" if several else "")
    return [name or led for name in _HEAD]


def write_table(rows: Sequence[ComparedRuns], out: Path, failures: Sequence[str] = ()) -> None:
    with writing(out):
        write_json(out / TABLE, {"rows": [row.plain for row in rows], "failures": [*failures]})


def write_comparison(rows: Sequence[ComparedRuns], page: Path) -> None:
    brief = [(row.name, row.text) for row in rows]
    write_whole(page, frozen(comparison_view(rows), brief).encode())


def choice_note(rows: Sequence[ComparedRuns]) -> str:
    """Return the note on the unpriced choice among runs (Papernot and Steinke 2022), or ""."""
    own = any(row.plain["measured_on"] != MEASURED_ON[True] for row in rows)
    return _CHOICE if own and sum(len(row.results) for row in rows) > 1 else ""


def comparison_view(rows: Sequence[ComparedRuns]) -> Json:
    apart = _differing(rows)
    head = ["setting", *(row.name for row in rows)]
    settings = table_part("Settings that differ", head, [[k, *of] for k, of in apart], text=[0])
    text = _DIFFER if apart else "No setting in job.yaml and result.json differs."
    simulated = any(row.plain["simulated"] for row in rows)
    notes = [paragraph(_COSTS), paragraph(_SIMULATED, "warn") if simulated else None]
    if own := [row.name for row in rows if row.plain["measured_on"] != MEASURED_ON[True]]:
        notes.append(paragraph(f"Figures of {', '.join(own)} are on {MEASURED_ON[False]}.", "warn"))
    notes.append(paragraph(choice, "warn") if (choice := choice_note(rows)) else None)
    costs = table_part("Runs", heads(rows), [row.cells for row in rows], text=[0, 2, 3, 5, 6])
    curves, differing = _curves(rows), [settings if apart else None]
    return {
        "title": f"{sum(len(row.results) for row in rows)} runs compared",
        "badge": None,
        "lines": [paragraph(", ".join(dict.fromkeys(row.plain["job"] for row in rows)))],
        "progress": None,
        "cards": [],
        "sections": [
            section("accuracy", f"{_measure(rows, title=True)} by round", [curves]),
            section("runs", "Runs", [costs], before=notes),
            section("settings", settings["label"], differing, before=[paragraph(text)]),
        ],
        "footer": " · ".join(dict.fromkeys(str(row.results[0].folder.parent) for row in rows)),
    }


def _measure(rows: Sequence[ComparedRuns], *, title: bool = False) -> str:
    names = {row.measure for row in rows}
    name = names.pop() if len(names) == 1 else ACCURACY
    return name[0].upper() + name[1:] if title else name


def _curves(rows: Sequence[ComparedRuns]) -> Json | None:
    measure, tested = _measure(rows), dict[str, dict[int, float]]()
    for row in rows:
        found: dict[int, list[float]] = {}
        for of in (of for one in row.results for of in one.content["rounds"]):
            if (value := leading_of(measure, of)) is not None:
                found.setdefault(of["round"], []).append(value)
        tested[row.name] = {number: statistics.median(of) for number, of in found.items()}
    x = sorted({number for of in tested.values() for number in of})
    if not x:
        return None
    styles = cycle([(colour, dash) for dash in (False, True) for colour in _COLOURS])
    shown = [
        series(name, [rounded(of.get(number)) for number in x], colour, dash=dash)
        for (name, of), (colour, dash) in zip(tested.items(), styles, strict=False)
    ]
    name = f"{_measure(rows, title=True)} on the test records"
    if measure == RMSE:
        return lines(name, x, shown, low=0.0)
    low = max(0.0, least([value for one in shown for value in one["values"]]) - 0.05)
    return lines(name, x, shown, low=round(low, 1), high=1.0)


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest endings of the folders that differ."""
    whole = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-count:]) for parts in whole]
        if len(set(names)) == len(names):
            return names
    return [f"{parts[-1]} ({number})" for number, parts in enumerate(whole, 1)]
