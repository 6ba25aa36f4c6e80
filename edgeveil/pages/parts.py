"""A page as plain JSON, which `static/job_view.js` draws. All texts are composed in Python.

    view      {title, badge: {text, tone}, lines: [said], progress: null or {done, of, text},
               cards: [[card]], sections: [section], footer}
    card      {name, value, note, tone, words}: `words` if the value is text
    said      {text, tone}: one paragraph; tone is "", "soft", "good", "bad" or "warn"
    section   {id, title, said: [said], parts: [part], after: [said]}
    part      the result of one of the functions below, with its `kind`

Colours are the pages' names. Rounds count from 1; `before` names the rounds before round 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

Json = dict[str, Any]
Tone = Literal["", "soft", "good", "bad", "warn"]
Form = Literal["figure", "up", "count", "seconds", "bytes"]

MOST_POINTS = 400  # of a line: more are indistinguishable on a screen


def paragraph(text: str, tone: Tone = "soft") -> Json:
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
    """Return one line of a chart; `quiet`: only its value; `off`: standard errors as bars."""
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
    """Return lines over `x`, thinned to MOST_POINTS; `low` and `high` limit the y axis."""
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
    """Return cells as shown, `text` columns of text; initially only the `first` rows."""
    plain = [list(row) for row in rows]
    kinds = {"kind": "table", "label": label, "head": list(head), "text": list(text)}
    return {**kinds, "rows": plain, "first": first}


def terms(rows: Sequence[tuple[str, str]]) -> Json:
    return {"kind": "terms", "rows": [list(row) for row in rows]}


def bars(label: str, rows: Sequence[tuple[Any, ...]], colour: str = "blue") -> Json:
    """Return bars of (name, value, text), optionally with the value's error as a fourth."""
    return {"kind": "bars", "label": label, "rows": [list(row) for row in rows], "colour": colour}


def histogram(
    label: str, edges: Sequence[float], values: Sequence[Any], off: Sequence[Any]
) -> Json:
    """Return bars between `edges`, one more than `values`, each with its error `off`."""
    shown: dict[str, Any] = {"edges": list(edges), "values": list(values), "off": list(off)}
    return {"kind": "histogram", "label": label, **shown}


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
    """Return counts as shades, row by row; `red` columns are marked, `top` are bars above."""
    found = {"rows": list(rows), "columns": list(columns), "red": list(red), "top": list(top)}
    names = {"row_name": axes[0], "column_name": axes[1]}
    shown = [list(row) for row in values]
    return {"kind": "heat", "label": label, "values": shown, **found, **names}


def scatter(label: str, panels: Sequence[Json], limits: Sequence[tuple[float, float]]) -> Json:
    shown = {"panels": list(panels), "limits": [list(one) for one in limits]}
    return {"kind": "scatter", "label": label, **shown}


def events(rows: Sequence[Json], before: int) -> Json:
    """Return {time, text, tone}, newest first; `before`: number of older, omitted ones."""
    return {"kind": "events", "label": "Events", "rows": list(rows), "before": before}


def figure_text(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def thinned(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced indices below `count`, including first and last."""
    if count <= most:
        return list(range(count))
    return sorted({round(k * (count - 1) / (most - 1)) for k in range(most)})


def rounded(value: float | None, digits: int = 5) -> float | None:
    """Round to significant digits for a chart; None if not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def least(values: Sequence[float | None]) -> float:
    return min((value for value in values if value is not None), default=0.0)
