"""An experiment's table as files: Markdown, JSON and a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fl_core.errors import UsageError
from tools.report_plots import BLUE, ORANGE
from tools.result import write_json, write_whole

FILES = ("reproduction.md", "reproduction.json", "reproduction.png", "reproduction.svg")
COLUMNS = (
    "row",
    "text",
    "ours, median (range)",
    "privacy as claimed",
    "privacy as proven",
    "rounds",
    "seconds",
)


def write(content: Mapping[str, Any], out: Path) -> None:
    """Write all files. Raises UsageError where they cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "reproduction.json", content)
        write_whole(out / "reproduction.md", markdown(content).encode())
        for kind in ("png", "svg"):
            picture = _picture(content["rows"], content["figure"], kind)
            write_whole(out / f"reproduction.{kind}", picture)
    except OSError as error:
        raise UsageError(
            f"cannot be written ({error.strerror})",
            where=str(error.filename or out),
            fix="name a folder that you may write to with --out",
        ) from error


def markdown(content: Mapping[str, Any]) -> str:
    """The table under its title, with what must be known of it."""
    lines = [f"### {content['experiment']}: {content['title']}", "", f"{content['source']}."]
    lines += [content["remark"], "", f"Figure: {content['figure']}.", ""]
    if content["quick"]:
        lines += ["Quick: digits, few rounds. It shows that all runs; not to be compared.", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in content["rows"]]
    lines += [f"\nFailed: {failure}" for failure in content["failures"]]
    return "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    values, seconds = row["values"], row["seconds"]
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return (
        row["label"],
        _number(row["claimed"]),
        _number(row["ours"]) + spread,
        row["claimed_privacy"],
        row["proven_privacy"] or "not run",
        str(row["rounds"]),
        "–" if seconds is None else f"{seconds:.0f}",
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _picture(rows: Sequence[Mapping[str, Any]], figure_of: str, kind: str) -> bytes:
    with mpl.rc_context({"font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "edgeveil"}):
        figure = Figure(figsize=(7.2, 1.1 + 0.4 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for y, row in enumerate(reversed(rows)):
            if row["claimed"] is not None:
                axes.plot(row["claimed"], y, "D", color=ORANGE, label="text, as claimed")
            axes.plot(row["values"], [y] * len(row["values"]), "o", color=BLUE, label="ours")
        axes.set_yticks(range(len(rows)), [row["label"] for row in reversed(rows)])
        axes.set_xlabel(figure_of)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True))
        axes.legend(named.values(), named.keys(), frameon=False)
        raw = io.BytesIO()
        figure.savefig(
            raw, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None
        )
    return raw.getvalue()
