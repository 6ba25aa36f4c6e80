"""An experiment's figures as a picture: the text's as diamonds, ours as dots and lines."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from edgeveil_tools.report.plots import BLUE, CLUSTERS, ORANGE

Row = Mapping[str, Any]


def picture(content: Mapping[str, Any], kind: str) -> bytes:
    """The experiment's kind of picture as a file of format `kind`, png or svg."""
    rows, height = content["rows"], 4.4
    if content["picture"] == "rows":
        rows = [row for row in rows if row["values"]] or rows  # those that were run
        height = 1.1 + 0.4 * len(rows)
    with mpl.rc_context({"font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "edgeveil"}):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        if content["picture"] == "scores":
            axes = _scores(figure, rows)
        else:
            axes = figure.add_subplot()
            _DRAWN[content["picture"]](axes, rows)
            _label(axes, content)
            axes.set_axisbelow(True)
        _legend(axes, content)
        if content.get("chosen"):
            figure.supxlabel(textwrap.fill(content["chosen"].replace("`", ""), 120), fontsize=6.5)
        raw = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(raw, format=kind, dpi=160, metadata=metadata)
    return raw.getvalue()


def _rows(axes: Axes, rows: Sequence[Row]) -> None:
    """A line of the picture for each row of the table."""
    for y, row in enumerate(reversed(rows)):
        if row["claimed"] is not None:
            axes.plot(row["claimed"], y, "D", color=ORANGE)
        axes.plot(row["values"], [y] * len(row["values"]), "o", color=BLUE, label="ours")
    axes.set_yticks(range(len(rows)), [row["label"] for row in reversed(rows)])
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)


def _lines(axes: Axes, rows: Sequence[Row]) -> None:
    """The figure against x: dots and a line through the medians of each series."""
    for colour, (name, points) in zip(_colours(), _by(rows, "series").items(), strict=False):
        points = sorted((row for row in points if row["x"] is not None), key=lambda row: row["x"])
        ours = [row for row in points if row["ours"] is not None]
        for row in ours:
            axes.plot([row["x"]] * len(row["values"]), row["values"], "o", color=colour, ms=4)
        axes.plot([r["x"] for r in ours], [r["ours"] for r in ours], color=colour, label=name)
        text = [row for row in points if row["claimed"] is not None]
        axes.plot([r["x"] for r in text], [r["claimed"] for r in text], "D:", **_hollow(colour))
    axes.grid(color="#dddddd", linewidth=0.6)


def _rounds(axes: Axes, rows: Sequence[Row]) -> None:
    """The accuracy after each round of each trial's first seed; the text's at its last round."""
    for colour, trial in zip(_colours(), _by(rows, "trial").values(), strict=False):
        row = trial[0]
        if row["curve"]:
            axes.plot(*zip(*row["curve"], strict=True), color=colour, label=row["label"])
            if row["claimed"] is not None:
                axes.plot(row["full_rounds"], row["claimed"], "D", **_hollow(colour))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#dddddd", linewidth=0.6)


def _scores(figure: Figure, rows: Sequence[Row]) -> Axes:
    """Score and loss of each trial's first seed over the rounds; the upper axes."""
    score, loss = figure.subplots(2, 1, sharex=True)
    for colour, style, trial in zip(_colours(), _STYLES, _by(rows, "trial").values(), strict=False):
        row = trial[0]
        if row["scores"]:
            rounds, scores, losses = zip(*row["scores"], strict=True)
            score.plot(rounds, scores, style, color=colour, label=row["label"])
            loss.plot(rounds, losses, style, color=colour)
    for axes, name in ((score, "cluster score"), (loss, "test loss")):
        axes.set_ylabel(name)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    loss.set_xlabel("round")
    loss.xaxis.set_major_locator(MaxNLocator(integer=True))
    upper: Axes = score
    return upper


_STYLES = ("-", "--", ":") * 4  # lines may lie on each other
_DRAWN: dict[str, Callable[[Axes, Sequence[Row]], None]] = {
    "rows": _rows,
    "lines": _lines,
    "rounds": _rounds,
}


def _colours() -> Sequence[str]:
    return CLUSTERS * 4


def _hollow(colour: str) -> dict[str, Any]:
    return {"color": colour, "mfc": "white"}


def _by(rows: Sequence[Row], key: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def _label(axes: Axes, content: Mapping[str, Any]) -> None:
    if content["picture"] == "rows":
        axes.set_xlabel(content["figure"])
        return
    axes.set_ylabel(content["figure"])
    axes.set_xlabel("round" if content["picture"] == "rounds" else content["x_label"])
    if content["x_log"]:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")


def _legend(axes: Axes, content: Mapping[str, Any]) -> None:
    handles, labels = axes.get_legend_handles_labels()
    named: dict[str, Artist] = dict(zip(labels, handles, strict=True))
    if any(row["claimed"] is not None for row in content["rows"]):
        shown = {"color": ORANGE} if content["picture"] == "rows" else _hollow("#666666")
        named["text, as claimed"] = Line2D([], [], linestyle="", marker="D", **shown)
    axes.legend(
        named.values(),
        named.keys(),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
        frameon=False,
    )
