"""An experiment's table as files and as a section of a page: Markdown, JSON and a picture."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from edgeveil.errors import UsageError
from edgeveil.evaluation.figures import ACCURACY, beside_text
from edgeveil_tools.pages import placed
from edgeveil_tools.report.plots import BLUE, CLUSTERS, ORANGE, file_figure
from edgeveil_tools.result import write_json, write_whole, writing

KEPT = "reproduction.json"
FILES = ("reproduction.md", KEPT, "reproduction.png", "reproduction.svg")
COLUMNS = (
    "row",
    "text",
    "ours",
    "privacy as claimed",
    "privacy as proven",
    "rounds",
    "seconds",
)
SETTINGS = "features and settings"


def write(content: Mapping[str, Any], out: Path) -> None:
    """Write all files. Raises UsageError where they cannot be written."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / KEPT, content)
        write_whole(out / "reproduction.md", markdown(content).encode())
        for kind in ("png", "svg"):
            write_whole(out / f"reproduction.{kind}", picture(content, kind))


def kept(out: Path) -> dict[str, Any] | None:
    """What a former run left in this folder; None where there is nothing of this form."""
    try:
        found = json.loads((out / KEPT).read_bytes())
    except (OSError, ValueError):
        return None
    known = isinstance(found, dict) and all("command" in row for row in found.get("rows", ()))
    return found if known else None


def kept_rows(out: Path, name: str, quick: bool) -> dict[str, list[dict[str, Any]]]:
    """By trial, the rows that a former run of this experiment measured."""
    found = kept(out)
    if found is None or (found.get("experiment"), found.get("quick")) != (name, quick):
        return {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        if row.get("command"):
            rows.setdefault(row["trial"], []).append(row)
    return rows


def markdown(content: Mapping[str, Any]) -> str:
    """The table under its title, with what must be known of it and the commands that made it."""
    lines = [f"## {content['experiment']}: {content['title']}", "", f"{content['source']}."]
    lines += [content["remark"], ""]
    if content["quick"]:
        lines += ["Quick: digits, few rounds. It shows that all runs; not to be compared.", ""]
    lines += ["```sh", *_commands(content["rows"]), "```", ""]
    lines += [f"Figure: {content['figure']}. Of several seeds the median, and the range.", ""]
    settings = bool(content.get("shows_settings"))
    columns = COLUMNS + (SETTINGS,) * settings
    lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in content["rows"]:
        cells = _cells(row) + ((row.get("settings") or "–"),) * settings
        lines.append("| " + " | ".join(cells) + " |")
    if content.get("chosen"):
        lines += ["", f"{content['chosen'][:1].upper()}{content['chosen'][1:]}."]
    lines += [f"\nFailed: {failure}" for failure in content["failures"]]
    return "\n".join(lines) + "\n"


def _commands(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each command once, with the rows that it made where others are not its own."""
    trials: dict[str, dict[str, None]] = {}
    for row in rows:
        trials.setdefault(row["command"] or "", {})[row["trial"]] = None
    every = len(trials) == 1
    made = [(command, names) for command, names in trials.items() if command]
    return [command if every else f"{command} --only {' '.join(names)}" for command, names in made]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    values, seconds = row["values"], row["seconds"]
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return (
        row["label"],
        _number(row["claimed"]),
        _number(row["ours"]) + spread + _beside(row),
        row["claimed_privacy"],
        row["proven_privacy"] or "not run",
        _rounds(row["rounds"], row["full_rounds"]),
        "–" if seconds is None else f"{seconds:.0f}",
    )


def _beside(row: Mapping[str, Any]) -> str:
    if row["ours"] is None:
        return ""
    told = beside_text(ACCURACY, row["ours"], row.get("guessing"))
    return f"; {told}" if told else ""


def _rounds(played: int | None, full: int | None) -> str:
    if played is None:
        return "–"
    return str(played) if played == full else f"**{played}** of {full}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


PAGE = Path("docs/reproduction.md")


def write_section(name: str, out: Path, page: Path) -> Path:
    """Put the table and picture of `name` that `out` keeps into the page; the picture's file.

    What stands between `<!-- drawn: NAME -->` and `<!-- end -->` is replaced; a page without
    these marks gets them at its end. All else stays. Raises UsageError where `out` keeps no
    table of this experiment, or the page cannot be written.
    """
    content = kept(out)
    if content is None or content.get("experiment") != name:
        raise UsageError(
            f"holds no table of {name}",
            where=str(out / KEPT),
            fix=f"run `edgeveil reproduce {name}` first, with the same --out",
        )
    image = Path("images") / f"reproduction-{name}.png"
    section = f"{markdown(content)}\n![{name}: the text's figures and ours]({image.as_posix()})\n"
    with writing(page, "name a page that you may write with --write"):
        (page.parent / image).parent.mkdir(parents=True, exist_ok=True)
        text = page.read_text("utf-8") if page.exists() else ""
        write_whole(page, placed(text, name, section).encode())
        write_whole(page.parent / image, picture(content, "png"))
    return page.parent / image


# --- the picture: the text's figures as diamonds, ours as dots and lines ---

Row = Mapping[str, Any]


def picture(content: Mapping[str, Any], kind: str) -> bytes:
    """The experiment's kind of picture as a file of format `kind`, png or svg."""
    rows, height = content["rows"], 4.4
    if content["picture"] == "rows":
        rows = [row for row in rows if row["values"]] or rows  # those that were run
        height = 1.1 + 0.4 * len(rows)
    with file_figure(7.2, height, kind) as (figure, done):
        if content["picture"] == "scores":
            axes = _draw_scores(figure, rows)
        else:
            axes = figure.add_subplot()
            _DRAWN[content["picture"]](axes, rows)
            _name_axes(axes, content)
            axes.set_axisbelow(True)
        _draw_legend(axes, content)
        if content.get("chosen"):
            figure.supxlabel(textwrap.fill(content["chosen"].replace("`", ""), 120), fontsize=6.5)
    return done[0]


def _draw_rows(axes: Axes, rows: Sequence[Row]) -> None:
    """A line of the picture for each row of the table."""
    for y, row in enumerate(reversed(rows)):
        if row["claimed"] is not None:
            axes.plot(row["claimed"], y, "D", color=ORANGE)
        axes.plot(row["values"], [y] * len(row["values"]), "o", color=BLUE, label="ours")
    axes.set_yticks(range(len(rows)), [row["label"] for row in reversed(rows)])
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)


def _draw_lines(axes: Axes, rows: Sequence[Row]) -> None:
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


def _draw_rounds(axes: Axes, rows: Sequence[Row]) -> None:
    """The accuracy after each round of each trial's first seed; the text's at its last round."""
    for colour, trial in zip(_colours(), _by(rows, "trial").values(), strict=False):
        row = trial[0]
        if row["curve"]:
            axes.plot(*zip(*row["curve"], strict=True), color=colour, label=row["label"])
            if row["claimed"] is not None:
                axes.plot(row["full_rounds"], row["claimed"], "D", **_hollow(colour))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#dddddd", linewidth=0.6)


def _draw_scores(figure: Figure, rows: Sequence[Row]) -> Axes:
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
    "rows": _draw_rows,
    "lines": _draw_lines,
    "rounds": _draw_rounds,
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


def _name_axes(axes: Axes, content: Mapping[str, Any]) -> None:
    if content["picture"] == "rows":
        axes.set_xlabel(content["figure"])
        return
    axes.set_ylabel(content["figure"])
    axes.set_xlabel("round" if content["picture"] == "rounds" else content["x_label"])
    if content["x_log"]:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")


def _draw_legend(axes: Axes, content: Mapping[str, Any]) -> None:
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
