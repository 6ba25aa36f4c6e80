"""`load.html` of bare load: the table, and the curves of all its brokers on the same axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from edgeveil_lab.load.bare.display import (
    LATENCIES,
    PERCENTILES,
    figures,
    notes,
    order_text,
    ratio_text,
)
from edgeveil_lab.load.display import ms
from edgeveil_lab.load.report import WIDTH
from edgeveil_tools.pages import write_page
from edgeveil_tools.report.plots import BLUE, ORANGE, svg_figure

Result = Mapping[str, Any]
_COLOURS = (BLUE, ORANGE)
_CURVES = (
    ("connected", "clients connected"),
    ("sent_per_s", "messages sent a second"),
    ("acknowledged_per_s", "acknowledged a second"),
    ("received_per_s", "received a second"),
)


def rates_plot(brokers: Sequence[Result]) -> str:
    """Rates over time, a line for each turn of each broker; "" for less than two samples."""
    shown = [
        (key, title)
        for key, title in _CURVES
        if any(sample[key] for one in brokers for sample in one["series"])
    ]
    if not shown or max(len(one["series"]) for one in brokers) < 2:
        return ""
    with svg_figure(WIDTH, 0.6 + 1.5 * len(shown), "rates") as (figure, done):
        panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (key, title) in zip(panels, shown, strict=True):
            for one, colour in zip(brokers, _COLOURS, strict=False):
                name = one["broker"]
                for turn in turns(one["series"]):
                    times, values = [s["t_s"] for s in turn], [s[key] for s in turn]
                    axes.plot(times, values, color=colour, label=name, linewidth=1.4)
                    name = ""
            axes.set_title(title)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
            axes.grid(axis="y")
        panels[0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
        panels[-1].set_xlabel("seconds of a turn")
    return done[0]


def turns(series: Sequence[Result]) -> Iterator[Sequence[Result]]:
    """The samples of each turn: its time begins anew."""
    begin = 0
    for at in range(1, len(series) + 1):
        if at == len(series) or series[at]["t_s"] <= series[at - 1]["t_s"]:
            yield series[begin:at]
            begin = at


def latency_plot(brokers: Sequence[Result]) -> str:
    """Percentiles of each latency that was measured, of all brokers; "" without any."""
    rows = [
        (f"{name}, {percentile}", [one[key][percentile] for one in brokers])
        for key, name in LATENCIES
        for percentile in PERCENTILES
        if all(one[key][percentile] for one in brokers)
    ]
    if not rows:
        return ""
    with svg_figure(WIDTH, 0.6 + 0.17 * len(rows) * (1 + len(brokers)), "latency") as (
        figure,
        done,
    ):
        axes = figure.add_subplot()
        height = 0.8 / len(brokers)
        for number, (one, colour) in enumerate(zip(brokers, _COLOURS, strict=False)):
            for place, (_, values) in enumerate(rows):
                y = place + height * (number - (len(brokers) - 1) / 2)
                name = "" if place else one["broker"]
                axes.barh(y, values[number], height=0.9 * height, color=colour, label=name)
                axes.annotate(
                    ms(values[number]), (values[number], y), (4, 0),
                    textcoords="offset points", va="center", fontsize=7.5,
                )  # fmt: skip
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("seconds")
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, handlelength=1.0)
        axes.grid(axis="x")
    return done[0]


def write_bare_report(result: Result, path: Path) -> None:
    """Write the page."""
    pictures = {
        "rates": rates_plot(result["brokers"]),
        "latency": latency_plot(result["brokers"]),
    }
    content = {
        "result": result,
        "options": result["options"],
        "figures": list(figures(result)),
        "compared": len(result["brokers"]) > 1,
        "order": order_text(result),
        "notes": list(notes(result)),
        "pictures": {name: Markup(svg) for name, svg in pictures.items()},  # noqa: S704 - our own
    }
    write_page(path, "bare_load.html", content, {"ratio": ratio_text})
