"""`load.html`: the tables of the terminal, and pictures as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from edgeveil_lab.load.display import rate, result_figures, result_tables, size_text, warnings
from edgeveil_lab.load.run_log import MIB
from edgeveil_lab.pages import BLUE, CLUSTERS, GREEN, ORANGE, PURPLE, STYLE, inline_svg
from edgeveil_tools.result import write_whole

Result = Mapping[str, Any]
PHASES = (
    ("broadcast_s", "broadcast", PURPLE),
    ("upload_s", "upload", BLUE),
    ("handover_s", "hand over", ORANGE),
    ("absorb_s", "open, aggregate", GREEN),
)
_SHOWN_ROUNDS = 60
_SHOWN_SAMPLES = 720


@mpl.rc_context(STYLE)
def over_time(series: Sequence[Result]) -> str:
    """Connections, uploads and MB a second, and memory of each process, over time."""
    series = series[:: math.ceil(len(series) / _SHOWN_SAMPLES)]
    unit_s, unit = (60.0, "minutes") if series[-1]["t_s"] > 300 else (1.0, "seconds")
    times = [sample["t_s"] / unit_s for sample in series]
    names = dict.fromkeys(name for sample in series for name in sample["rss_bytes"])
    rss = {name: [one["rss_bytes"].get(name, np.nan) / MIB for one in series] for name in names}
    panels = {
        "connected devices": {"": [one["connected"] for one in series]},
        "uploads acknowledged a second": {"": [one["uploads_per_s"] for one in series]},
        "MB a second at the devices": {
            way: [one[f"bytes_{way}"] / 1e6 for one in series] for way in ("up", "down")
        },
        "MiB in memory": rss,
    }
    figure = Figure(figsize=(7.4, 7.6), layout="constrained")
    rows = figure.subplots(len(panels), 1, sharex=True, height_ratios=(1, 1, 1, 2))
    for axes, (title, lines) in zip(rows, panels.items(), strict=True):
        for (name, values), colour in zip(lines.items(), CLUSTERS * 9, strict=False):
            axes.plot(times, values, color=colour, label=name, linewidth=1.4)
        if len(lines) > 1:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes.set(title=title, ylim=(0, None))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.grid(axis="y")
    rows[-1].set_xlabel(unit)
    return inline_svg(figure)


@mpl.rc_context(STYLE)
def phases(rounds: Sequence[Result]) -> str:
    """Seconds of each round by phase, stacked."""
    shown = rounds[:: math.ceil(len(rounds) / _SHOWN_ROUNDS)]
    figure = Figure(figsize=(7.4, 3.2), layout="constrained")
    axes, places, bottom = figure.add_subplot(), np.arange(len(shown)), np.zeros(len(shown))
    for key, name, colour in PHASES:
        heights = np.array([float(row[key]) for row in shown])
        axes.bar(places, heights, bottom=bottom, color=colour, label=name, width=0.72)
        bottom += heights
    step = math.ceil(len(shown) / 20)
    axes.set_xticks(places[::step], [str(row["round"]) for row in shown[::step]])
    axes.set(title="seconds", xlabel="round", xlim=(-0.6, max(5.6, len(shown) - 0.4)))
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, handlelength=1.0)
    axes.grid(axis="y")
    return inline_svg(figure)


def write_load_report(result: Result, path: Path) -> None:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1] / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = size_text
    pictures = {}
    if len(result["series"]) > 1:
        pictures["Over time, sampled once a second"] = over_time(result["series"])
    if result["rounds"]:
        pictures["Where a round's time goes"] = phases(result["rounds"])
    page = environment.get_template("load.html").render(
        result=result,
        options=result["options"],
        figures=result_figures(result),
        tables=[*result_tables(result), _rounds(result)],
        pictures=[(title, Markup(svg)) for title, svg in pictures.items()],  # noqa: S704 - our own
        warnings=[*([result["reason"]] if result["reason"] else []), *warnings(result)],
        conditions=_conditions(result["options"]),
    )
    write_whole(path, page.encode("utf-8"))


def _rounds(result: Result) -> dict[str, Any]:
    columns = ("round", "attempt", "selected", "uploads", "uploads/s", "seconds")
    rows = [
        [*(row[name] for name in columns[:4]), rate(row["uploads_per_s"]), f"{row['seconds']:.2f}"]
        for row in result["rounds"]
    ]
    return {"title": "Rounds", "columns": columns, "rows": rows}


def _conditions(options: Mapping[str, Any]) -> Iterator[str]:
    """What made it harder than a steady load, in words."""
    if options["drop"]:
        yield f"{options['drop']:.0%} of the devices go away in each round"
    if options["reconnect_storm"]:
        yield "all connections cut in each round"
    if options["interval_s"]:
        yield f"a round every {options['interval_s']:g} s"
