"""Answers of a statistics job as rows and as text, each value with its ± (95 % of the noise)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from edgeveil.privacy.guarantee import up

TOO_NOISY = "too noisy to say"
COUNTS = ("count", "missing", "clipped", "categories", "table", "values")  # in records
_SHADES = "▁▂▃▄▅▆▇█"


class Cell(NamedTuple):
    """One number of an answer: `name` is its bin, rank, category or cell, "" for the only one."""

    name: str
    value: float
    plus_minus: float


def columns_of(answer: Mapping[str, Any]) -> str:
    """Return the column of an answer, or `a × b`."""
    return " × ".join(answer.get("columns") or [str(answer.get("column", ""))])


def cells(answer: Mapping[str, Any]) -> Iterator[Cell]:
    """Yield the numbers of an answer; a table row by row."""
    values, off = answer["value"], answer["plus_minus"]
    if not isinstance(values, list):
        yield Cell("", values, off)
        return
    if answer["statistic"] == "table":
        for row, each in zip(answer["names"][0], values, strict=True):
            for column, value in zip(answer["names"][1], each, strict=True):
                yield Cell(f"{row} × {column}", value, off)
        return
    errors = off if isinstance(off, list) else [off] * len(values)
    for name, value, error in zip(cell_names(answer), values, errors, strict=True):
        yield Cell(name, value, error)


def cell_names(answer: Mapping[str, Any]) -> list[str]:
    """Return the names of a histogram's bins, of ranks, or of categories."""
    if edges := answer.get("edges"):
        return [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    if ranks := answer.get("ranks"):
        return [f"{100 * rank:g} %" for rank in ranks]
    return [str(name) for name in answer["names"]]


def head_text(whole: Mapping[str, Any]) -> str:
    """Return who was asked, and at which price, in one line."""
    found = f"about {measured(whole['records'], whole['records_plus_minus'])} records"
    price = f"ε = {up(whole['epsilon'])} per {whole['unit']} (δ = {whole['delta']:g})"
    return f"{found} of {whole['uploads']} devices, {price} for all answers together"


def rows(whole: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (column, statistic, value with ±) of each answer; lists of counts take several."""
    for answer in whole["answers"]:
        column, name = columns_of(answer), str(answer["statistic"])
        if answer.get("too_noisy"):
            yield column, name, TOO_NOISY
        elif name == "histogram":
            yield column, name, _histogram_text(answer)
        elif name in ("categories", "values"):
            if name == "values":
                name = f"values above {number_text(answer['threshold'])} records"
            shown = [f"{cell.name} {count_text(cell)}" for cell in cells(answer)]
            for at, text in enumerate(shown or ["none"]):
                yield (column, name, text) if at == 0 else ("", "", text)
        elif name == "table":
            yield column, name, f"± {number_text(answer['plus_minus'])} in each cell"
            for row, each in zip(answer["names"][0], answer["value"], strict=True):
                named = zip(answer["names"][1], each, strict=True)
                yield "", str(row), ", ".join(f"{key} {value:,.0f}" for key, value in named)
        elif name == "quantiles":
            few = [*cells(answer)]
            picks = few if len(few) <= 3 else [few[0], few[len(few) // 2], few[-1]]
            yield column, name, ", ".join(f"{c.name} {measured(c[1], c[2])}" for c in picks)
        else:
            yield column, name, measured(answer["value"], answer["plus_minus"])


def _histogram_text(answer: Mapping[str, Any]) -> str:
    shares = [max(0.0, cell.value) for cell in cells(answer)]
    most, edges = max(shares, default=0.0) or 1.0, answer["edges"]
    shade = "".join(_SHADES[round(share / most * (len(_SHADES) - 1))] for share in shares)
    off = 100 * max(answer["plus_minus"], default=0.0)
    return f"{edges[0]:g} {shade} {edges[-1]:g}, ± {number_text(off)} % in each bin"


def count_text(cell: Cell) -> str:
    """Return a count with its ±, or its greatest probable value if the noise exceeds it."""
    if cell.value < cell.plus_minus:
        return f"at most {math.ceil(max(cell.value, 0.0) + cell.plus_minus):,}"
    return measured(cell.value, cell.plus_minus)


def measured(value: float, plus_minus: float) -> str:
    """Return `38.62 ± 0.20`: both to the second digit of the ±."""
    if not (math.isfinite(plus_minus) and plus_minus > 0):
        return number_text(value)
    digits = min(max(1 - math.floor(math.log10(plus_minus)), 0), 9)
    return f"{value:,.{digits}f} ± {plus_minus:,.{digits}f}"


def number_text(value: float) -> str:
    """Return a number with three digits, large ones whole."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def padded(found: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines of aligned columns, control characters of names escaped."""
    from edgeveil.logs import printable

    clean = [[printable(text) for text in row] for row in found]
    wide = [max(map(len, column)) for column in zip(*clean, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, wide, strict=True)).rstrip()
        for row in clean
    ]


def lines(whole: Mapping[str, Any]) -> list[str]:
    """Return all answers as lines of text."""
    return [head_text(whole), *padded([("column", "statistic", "answer"), *rows(whole)])]
