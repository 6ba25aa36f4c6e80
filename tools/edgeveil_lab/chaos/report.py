"""`report.html` of a chaos run: its checks, and faults and rounds on one time line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from edgeveil_tools.pages import write_page
from edgeveil_tools.report.plots import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, svg_figure

_COLOURS = {
    "kill": RED,
    "broker": PURPLE,
    "cut": ORANGE,
    "delay": SKY,
    "corrupt": "#8C5A2B",
    "duplicate": "#B8A500",
    "disk": "#8A8A8A",
}
_ROW_INCHES = 0.28
_LEAST_SHARE = 1 / 160  # of the time line: a bar that can be seen


def write_report(result: Mapping[str, Any], path: Path) -> None:
    """Write the page from the content of `chaos.json`."""
    picture = Markup(timeline(result))  # noqa: S704 - our own drawing
    write_page(path, "chaos.html", {"result": result, "timeline": picture}, {})


def timeline(result: Mapping[str, Any]) -> str:
    """Each target's faults over time, and below them every committed round, as inline SVG."""
    up_s, faults = result["up_s"], result["schedule"]
    targets = sorted({_row(fault) for fault in faults})
    rows = {target: place for place, target in enumerate(targets, start=1)}
    least_s = _LEAST_SHARE * result["seconds"]
    with svg_figure(7.4, 0.9 + _ROW_INCHES * (len(rows) + 1), "chaos") as (figure, done):
        axes = figure.add_subplot()
        for kind, colour in _COLOURS.items():
            mine = [fault for fault in faults if fault["kind"] == kind]
            axes.barh(
                [rows[_row(fault)] for fault in mine],
                [max(least_s, fault["lasts_s"]) for fault in mine],
                left=[up_s + fault["at_s"] for fault in mine],
                height=0.62 if kind == "kill" else 0.4,
                color=colour,
                label=kind,
            )
        times_s = [row["at_s"] for row in result["rounds"]]
        axes.plot(times_s, [0] * len(times_s), "|", color=GREEN, markersize=9, label="round")
        axes.axvspan(result["quiet_s"], result["seconds"], color=BLUE, alpha=0.06, lw=0)
        axes.set_yticks([0, *rows.values()], ["committed", *rows])
        axes.invert_yaxis()
        axes.set_xlim(0, max(1.0, result["seconds"]))
        axes.set_xlabel("seconds; from the shade on, everything comes back")
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=8, handlelength=0.9)
    return done[0]


def _row(fault: Mapping[str, Any]) -> str:
    """The broker of a side is not the process of that name."""
    return f"broker-{fault['target']}" if fault["kind"] == "broker" else str(fault["target"])
