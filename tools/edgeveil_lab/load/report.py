"""`load.html` and its pictures: inline SVG that follows the page's light or dark colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from edgeveil_lab.load.display import (
    CELL_COLUMNS,
    cell_row,
    ms,
    per_upload,
    rate,
    shortened,
    size_text,
    warnings,
)
from edgeveil_lab.load.run_log import FLAT_MIB_PER_HOUR, drifts
from edgeveil_lab.pages import (
    BLUE,
    CLUSTERS,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    svg_figure,
    write_page,
)

Result = Mapping[str, Any]
MIB = 1 << 20
WIDTH = 7.4
PHASES = (
    ("broadcast_s", "broadcast", PURPLE),
    ("upload_s", "upload", BLUE),
    ("handover_s", "hand over", ORANGE),
    ("absorb_s", "open, aggregate", GREEN),
)
_PERCENTILES = (("p50", BLUE), ("p95", ORANGE), ("p99", RED))
_SHOWN_ROUNDS = 60
_SHOWN_SAMPLES = 360
_DRAWN = ("t_s", "connected", "uploads_per_s", "bytes_up", "bytes_down")
_GAP = 0.055  # least distance of two labels, as a share of the axis


def throughput_plot(series: Sequence[Result]) -> str:
    """Connections, uploads a second and MB a second over time; "" for less than two samples."""
    if len(series) < 2:
        return ""
    series = _thinned(series)
    unit_s, unit_name = _time_unit(series)
    times = [sample["t_s"] / unit_s for sample in series]
    with svg_figure(WIDTH, 5.2, "throughput") as (figure, done):
        panels = figure.subplots(3, 1, sharex=True)
        lines = (
            ("connected devices", [("connected", 1.0, GREEN, "")]),
            ("uploads acknowledged a second", [("uploads_per_s", 1.0, BLUE, "")]),
            (
                "MB a second at the devices",
                [("bytes_up", 1e6, BLUE, "up"), ("bytes_down", 1e6, ORANGE, "down")],
            ),
        )
        for axes, (title, parts) in zip(panels, lines, strict=True):
            for key, unit, colour, name in parts:
                values = [sample[key] / unit for sample in series]
                axes.plot(times, values, color=colour, label=name, linewidth=1.4)
                axes.fill_between(times, values, color=colour, alpha=0.12, linewidth=0)
            if len(parts) > 1:
                axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
            axes.set_title(title)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
            axes.grid(axis="y")
        panels[-1].set_xlim(times[0], times[-1])
        panels[-1].set_xlabel(unit_name)
    return done[0]


def memory_plot(series: Sequence[Result]) -> str:
    names = dict.fromkeys(name for sample in series for name in sample.get("rss_bytes", {}))
    if len(series) < 2 or not names:
        return ""
    unit_s, unit_name = _time_unit(series)
    with svg_figure(WIDTH, 3.6, "memory") as (figure, done):
        axes, ends = figure.add_subplot(), []
        for number, name in enumerate(names):
            points = [
                (sample["t_s"] / unit_s, sample["rss_bytes"][name] / MIB)
                for sample in series
                if sample["rss_bytes"].get(name)
            ]
            if points:
                colour = CLUSTERS[number % len(CLUSTERS)]
                axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4)
                ends.append((points[-1][1], name, colour))
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, series[-1]["t_s"] / unit_s)
        axes.set_title("MiB in memory, each process")
        axes.set_xlabel(unit_name)
        axes.grid(axis="y")
        _name_ends(axes, ends)
    return done[0]


def phases_plot(rounds: Sequence[Result]) -> str:
    """Seconds of each round by phase, stacked; "" where none was committed."""
    shown = rounds[:: max(1, math.ceil(len(rounds) / _SHOWN_ROUNDS))]
    if not shown:
        return ""
    with svg_figure(WIDTH, 3.2, "phases") as (figure, done):
        axes = figure.add_subplot()
        places, bottom = np.arange(len(shown)), np.zeros(len(shown))
        for key, name, colour in PHASES:
            heights = np.array([float(row.get(key) or 0) for row in shown])
            axes.bar(places, heights, bottom=bottom, color=colour, label=name, width=0.72)
            bottom += heights
        step = max(1, math.ceil(len(shown) / 20))
        axes.set_xticks(places[::step], [str(row["round"]) for row in shown[::step]])
        if len(shown) < 6:  # a few bars are not to fill the page
            axes.set_xlim(-0.6, 5.6)
        axes.set_xlabel("round")
        axes.set_title("seconds")
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, handlelength=1.0)
        axes.grid(axis="y")
    return done[0]


def _time_unit(series: Sequence[Result]) -> tuple[float, str]:
    return (60.0, "minutes") if series[-1]["t_s"] > 300 else (1.0, "seconds")


def _thinned(series: Sequence[Result]) -> Sequence[Result]:
    """Means over neighbouring samples where there are more than a picture can show."""
    step = math.ceil(len(series) / _SHOWN_SAMPLES)
    if step == 1:
        return series
    groups = [series[at : at + step] for at in range(0, len(series), step)]
    return [{key: sum(s[key] for s in group) / len(group) for key in _DRAWN} for group in groups]


def _name_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names at the lines' right ends, moved apart where they would cover each other."""
    top, place = axes.get_ylim()[1], -math.inf
    for value, name, colour in sorted(ends):
        place = max(value / top, place + _GAP)
        axes.annotate(
            name, (1.0, place), (6, 0), xycoords="axes fraction", textcoords="offset points",
            color=colour, va="center", fontsize=8,
        )  # fmt: skip


# --- the page ---

_FILTERS: dict[str, Callable[..., object]] = {
    "rate": rate,
    "ms": ms,
    "size": size_text,
    "reasons": shortened,
    "per_upload": per_upload,
    "cell_row": cell_row,
}


def write_load_report(result: Result, path: Path) -> None:
    pictures = {
        "throughput": throughput_plot(result["series"]),
        "memory": memory_plot(result["series"]),
        "phases": phases_plot(result["rounds"]),
    }
    content = {
        "result": result,
        "options": result["options"],
        "cell_columns": CELL_COLUMNS,
        "uploads": sum(row["uploads"] for row in result["rounds"]),
        "pictures": {name: Markup(svg) for name, svg in pictures.items()},  # noqa: S704 - our own
        "warnings": list(warnings(result)),
        "drifts": drifts(result),
        "flat_mib_per_hour": FLAT_MIB_PER_HOUR,
        "conditions": list(_conditions(result["options"])),
    }
    write_page(path, "load.html", content, _FILTERS)


def _conditions(options: Mapping[str, Any]) -> list[str]:
    """What made it harder than a steady load, in words."""
    found = []
    if options.get("drop"):
        found.append(f"{options['drop']:.0%} of the devices go away in each round")
    if options.get("reconnect_storm"):
        found.append("all connections cut in each round")
    if options.get("interval_s"):
        found.append(f"a round every {options['interval_s']:g} s")
    return found
