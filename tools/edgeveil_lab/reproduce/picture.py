"""The picture of an experiment: the paper's figures as diamonds, ours as dots and lines."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from edgeveil_lab.pages import BLUE, CLUSTERS, ORANGE, STYLE, saved

Row = dict[str, Any]

_STYLES = ("-", "--", ":") * 4  # lines may lie on each other
_COLOURS = CLUSTERS * 4


@mpl.rc_context(STYLE)
def picture(content: Mapping[str, Any], kind: str) -> bytes:
    rows, drawn = content["rows"], content["picture"]
    if drawn == "rows":
        rows = [row for row in rows if row["values"]] or rows  # those that were run
    height = 1.1 + 0.4 * len(rows) if drawn == "rows" else 4.4
    figure = Figure(figsize=(7.2, height), layout="constrained")
    if drawn == "scores":
        axes = _draw_rounds(figure, rows, "scores", ("cluster score", "test loss"))
    elif drawn == "rounds":
        axes = _draw_rounds(figure, rows, "curve", (content["figure"],))
    else:
        axes = figure.add_subplot()
        (_draw_rows if drawn == "rows" else _draw_lines)(axes, rows)
        axes.set_xlabel(content["figure"] if drawn == "rows" else content["x_label"])
        axes.set_ylabel("" if drawn == "rows" else content["figure"])
        axes.grid(axis="x" if drawn == "rows" else "both")
        if content["x_log"]:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    if any(row["claimed"] is not None for row in content["rows"]):
        shown = {"color": ORANGE} if drawn == "rows" else _hollow("#666666")
        named["text, as claimed"] = Line2D([], [], linestyle="", marker="D", **shown)
    place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3}
    axes.legend(named.values(), named.keys(), **place)
    if content.get("chosen"):
        figure.supxlabel(textwrap.fill(content["chosen"].replace("`", ""), 120), fontsize=6.5)
    return saved(figure, kind)


def _hollow(colour: str) -> dict[str, Any]:
    return {"color": colour, "mfc": "white"}


def _draw_rows(axes: Axes, rows: Sequence[Row]) -> None:
    for y, row in enumerate(reversed(rows)):
        if row["claimed"] is not None:
            axes.plot(row["claimed"], y, "D", color=ORANGE)
        axes.plot(row["values"], [y] * len(row["values"]), "o", color=BLUE, label="ours")
    axes.set_yticks(range(len(rows)), [row["label"] for row in reversed(rows)])


def _draw_lines(axes: Axes, rows: Sequence[Row]) -> None:
    for colour, (name, points) in zip(_COLOURS, rows_by(rows, "series").items(), strict=False):
        points = sorted((row for row in points if row["x"] is not None), key=lambda row: row["x"])
        ours = [row for row in points if row["ours"] is not None]
        for row in ours:
            axes.plot([row["x"]] * len(row["values"]), row["values"], "o", color=colour, ms=4)
        axes.plot([r["x"] for r in ours], [r["ours"] for r in ours], color=colour, label=name)
        text = [row for row in points if row["claimed"] is not None]
        axes.plot([r["x"] for r in text], [r["claimed"] for r in text], "D:", **_hollow(colour))


def _draw_rounds(figure: Figure, rows: Sequence[Row], key: str, panels: Sequence[str]) -> Axes:
    """Plot column `key` of each trial's first seed over the rounds; return the upper axes."""
    every = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    trials = rows_by(rows, "trial").values()
    for colour, style, (row, *_) in zip(_COLOURS, _STYLES, trials, strict=False):
        if row[key]:
            rounds, *columns = zip(*row[key], strict=True)
            for axes, found in zip(every, columns, strict=True):
                axes.plot(rounds, found, style, color=colour, label=row["label"])
            if key == "curve" and row["claimed"] is not None:
                every[0].plot(row["full_rounds"], row["claimed"], "D", **_hollow(colour))
    for axes, name in zip(every, panels, strict=True):
        axes.set_ylabel(name)
        axes.grid()
    every[-1].set_xlabel("round")
    every[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    made: Axes = every[0]
    return made


def rows_by(rows: Sequence[Row], key: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found
