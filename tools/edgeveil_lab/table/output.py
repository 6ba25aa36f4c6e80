"""A table of runs as files: `table.json`, `table.md`, `table.png` and `table.svg`."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.console import Console
from rich.table import Table

from edgeveil.errors import UsageError
from edgeveil.privacy.guarantee import up, worth
from edgeveil_tools.report.plots import BLUE, GREEN, ORANGE
from edgeveil_tools.result import write_json, write_whole

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
        _spread(row["accuracies"], row["median"]),
        _share(row["reference"]),
        "; ".join(claim["text"] for claim in row["claims"]) or "–",
        "–" if row["seconds"] is None else f"{row['seconds']:.0f}",
    )


def show(content: Mapping[str, Any], stream: IO[str]) -> None:
    """The table for a terminal, whose width has no room for all columns."""
    shown = Table()
    for name in _SHORT:
        shown.add_column(name, overflow="fold")
    for row in content["rows"]:
        named = dict(zip(COLUMNS, cells(row), strict=True))
        shown.add_row(*(named[name].replace(" (", "\n(") for name in _SHORT))
    console = Console(file=stream)
    console.print(shown)
    for note in content["notes"]:
        console.print(note, markup=False)


def write_table(content: Mapping[str, Any], out: Path) -> None:
    """Write all files. Raises UsageError where they cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "table.json", content)
        write_whole(out / "table.md", markdown(content).encode())
        for kind in ("png", "svg"):
            write_whole(out / f"table.{kind}", picture(content["rows"], kind, content["notes"]))
    except OSError as error:
        raise UsageError(
            f"cannot be written ({error.strerror})",
            where=str(error.filename or out),
            fix="name a folder that you may write to with --out",
        ) from error


def markdown(content: Mapping[str, Any]) -> str:
    """The table with its sources below."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
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
    with mpl.rc_context({"font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "edgeveil"}):
        figure = Figure(figsize=(7.2, 1.1 + 0.62 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for y, row in enumerate(reversed(rows)):
            _draw(axes, y, row)
        axes.set_yticks(range(len(rows)), [_label(row) for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        below = [textwrap.fill(note, 110) for note in notes]
        axes.set_xlabel("\n".join(["accuracy on the test records", *below]))
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.06)
        _legend(axes, rows)
        raw = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(raw, format=kind, dpi=160, metadata=metadata)
    return raw.getvalue()


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
    return f"{median:.4f} ({min(values):.4f}–{max(values):.4f})"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
