"""A page as plain JSON, which `static/job_view.js` draws.

What is said is decided where these are called, in Python; a browser only shows it.

    view      {title, badge: {text, tone}, lines: [said], progress: null or {done, of, text},
               cards: [[card]], sections: [section], footer}
    card      {name, value, note, tone, words}: `words` a value that is no figure
    said      {text, tone}: one paragraph; tone is "", "soft", "good", "bad" or "warn"
    section   {id, title, said: [said], parts: [part], after: [said]}
    part      what one of the functions below returns, by its `kind`

Colours are names of the pages' own: blue, orange, red, green, purple, sky, olive, grey, indigo,
brown. Rounds are numbered from 1; `before` are the names of those before round 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

Json = dict[str, Any]
Tone = Literal["", "soft", "good", "bad", "warn"]
Form = Literal["figure", "up", "count", "seconds", "bytes"]

MOST_POINTS = 400  # of a line: more are not told apart on a screen


def said(text: str, tone: Tone = "soft") -> Json:
    return {"text": text, "tone": tone}


def card(name: str, value: str, note: str = "", *, tone: Tone = "", words: bool = False) -> Json:
    return {"name": name, "value": value, "note": note, "tone": tone, "words": words}


def section(
    key: str,
    title: str,
    parts: Sequence[Json | None],
    *,
    before: Sequence[Json | None] = (),
    after: Sequence[Json | None] = (),
) -> Json:
    said, shown, behind = ([one for one in some if one] for some in (before, parts, after))
    return {"id": key, "title": title, "said": said, "parts": shown, "after": behind}


def series(
    name: str,
    values: Sequence[float | None],
    colour: str,
    form: Form = "figure",
    *,
    dash: bool = False,
    steps: bool = False,
    quiet: bool = False,
    off: Sequence[float | None] | None = None,
) -> Json:
    """One line of a chart, its area filled with `steps`. `quiet`: only its value is told, beside
    those of the others. `off`: standard errors; points with bars, then, and no line."""
    how: dict[str, Any] = {"dash": dash, "steps": steps, "quiet": quiet}
    if off is not None:
        how["off"] = list(off)
    return {"name": name, "values": list(values), "colour": colour, "form": form, **how}


def lines(
    label: str,
    x: Sequence[float],
    shown: Sequence[Json],
    *,
    x_name: str = "training round",
    before: Sequence[str] = (),
    low: float | None = None,
    high: float | None = None,
) -> Json:
    """Lines over `x`, thinned to MOST_POINTS; `low` and `high` end the y axis where given."""
    picks = thinned(len(x), MOST_POINTS)
    drawn = []
    for one in shown:
        lists = [key for key in ("values", "off") if key in one]
        drawn.append(one | {key: [one[key][k] for k in picks] for key in lists})
    axes = {"x": [x[k] for k in picks], "x_name": x_name, "low": low, "high": high}
    return {"kind": "lines", "label": label, "before": list(before), "series": drawn, **axes}


def table(
    label: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text: Sequence[int] = (),
    first: int = 0,
) -> Json:
    """Cells as they are shown, `text` columns of words; only the `first` rows unless asked."""
    plain = [list(row) for row in rows]
    kinds = {"kind": "table", "label": label, "head": list(head), "text": list(text)}
    return {**kinds, "rows": plain, "first": first}


def terms(rows: Sequence[tuple[str, str]]) -> Json:
    return {"kind": "terms", "rows": [list(row) for row in rows]}


def bars(label: str, rows: Sequence[tuple[str, float, str]], colour: str = "blue") -> Json:
    return {"kind": "bars", "label": label, "rows": [list(row) for row in rows], "colour": colour}


def heat(
    label: str,
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    axes: tuple[str, str],
    *,
    red: Sequence[int] = (),
    top: Sequence[float] = (),
) -> Json:
    """Counts as shades, row by row; `axes` name rows and columns, `red` columns; `top` bars."""
    found = {"rows": list(rows), "columns": list(columns), "red": list(red), "top": list(top)}
    names = {"row_name": axes[0], "column_name": axes[1]}
    shown = [list(row) for row in values]
    return {"kind": "heat", "label": label, "values": shown, **found, **names}


def scatter(label: str, panels: Sequence[Json], limits: Sequence[tuple[float, float]]) -> Json:
    """Panels {title, points, labels, numbered} of one scale: `limits` of x and of y."""
    shown = {"panels": list(panels), "limits": [list(one) for one in limits]}
    return {"kind": "scatter", "label": label, **shown}


def events(rows: Sequence[Json], before: int) -> Json:
    """{time, text, tone}, newest first; `before`: how many older ones are not among them."""
    return {"kind": "events", "label": "Events", "rows": list(rows), "before": before}


# --- texts ---


def figure_text(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def thinned(count: int, most: int) -> list[int]:
    """At most so many of the indices below `count`, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(k * (count - 1) / (most - 1)) for k in range(most)})


def rounded(value: float | None, digits: int = 5) -> float | None:
    """So many significant digits, for a chart; None for what is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def least(values: Sequence[float | None]) -> float:
    return min((value for value in values if value is not None), default=0.0)
