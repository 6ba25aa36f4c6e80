"""Answers of a statistics job as rows and as text, each value with its ± (95 % of the noise)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from edgeveil.logs import printable
from edgeveil.privacy.guarantee import up

TOO_NOISY = "too noisy to say"
COUNTS = {"count": "", "missing": " missing", "clipped": " clipped"}  # of a column's records
_SHADES = "▁▂▃▄▅▆▇█"


class Cell(NamedTuple):
    """One number of an answer: `name` is its bin, rank, category or cell, "" for the only one."""

    name: str
    value: float  # None of a single number that is too noisy
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
    asked = f" where {whole['where']}" if whole.get("where") else ""
    return f"{found}{asked} on {whole['uploads']} devices, {price_text(whole)}"


def price_text(whole: Mapping[str, Any]) -> str:
    """Return the price of all answers together."""
    price = f"ε = {up(whole['epsilon'])} per {whole['unit']} (δ = {whole['delta']:g})"
    return f"{price} for all answers together"


def rows(whole: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (column, statistic, text with ±); a list of counts or a table takes several lines.

    A column's counts of records are one row. Control characters of names are escaped."""
    for column, found in _by_column(whole["answers"]):
        counts = [one for one in found if one["statistic"] in COUNTS]
        if counts:
            said = [f"{single_text(one)}{COUNTS[one['statistic']]}" for one in counts]
            yield column, "records", ", ".join(said)
        for answer in found:
            if answer["statistic"] not in COUNTS:
                yield column, str(answer["statistic"]), _text_of(answer)


def _by_column(
    answers: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for column, found in groupby(answers, columns_of):
        yield printable(column), list(found)


def single_text(answer: Mapping[str, Any]) -> str:
    """Return the value of an answer that is one number."""
    if answer.get("too_noisy"):
        return TOO_NOISY
    cell = next(cells(answer))
    return count_text(cell) if answer["statistic"] in COUNTS else measured(cell[1], cell[2])


def _text_of(answer: Mapping[str, Any]) -> str:
    name = answer["statistic"]
    if answer.get("too_noisy"):
        return TOO_NOISY
    if name == "histogram":
        return _histogram_text(answer)
    if name in ("categories", "values"):
        head = f"all above {number_text(answer['threshold'])} records" if name == "values" else ""
        shown = [f"{printable(cell.name)} {count_text(cell)}" for cell in cells(answer)]
        return "\n".join([*([head] if head else ()), *shown])
    if name == "table":
        named = [[printable(str(one)) for one in some] for some in answer["names"]]
        found = [[f"{count:,.0f}" for count in row] for row in answer["value"]]
        head = [f"each ± {number_text(answer['plus_minus'])}", *named[1]]
        grid = [head, *([name, *row] for name, row in zip(named[0], found, strict=True))]
        return "\n".join(padded(grid))
    if name == "quantiles":
        shown = ", ".join(f"{cell.name} {number_text(cell.value)}" for cell in cells(answer))
        return f"{shown}; rank ± {100 * answer['rank_plus_minus']:.1f} %"
    return single_text(answer)


def _histogram_text(answer: Mapping[str, Any]) -> str:
    shares = [max(0.0, cell.value) for cell in cells(answer)]
    most, edges = max(shares, default=0.0) or 1.0, answer["edges"]
    shade = "".join(_SHADES[round(share / most * (len(_SHADES) - 1))] for share in shares)
    off = 100 * max(answer["plus_minus"], default=0.0)
    low, high = number_text(edges[0]), number_text(edges[-1])
    return f"{low} {shade} {high}, ± {number_text(off)} % in each bin"


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
    """Return rows as lines of aligned columns; the last column's lines stay below each other."""
    split = [
        [*row[:-1], text] if at == 0 else [*[""] * (len(row) - 1), text]
        for row in found
        for at, text in enumerate(row[-1].split("\n"))
    ]
    wide = [max(map(len, column)) for column in zip(*split, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, wide, strict=True)).rstrip()
        for row in split
    ]


def lines(whole: Mapping[str, Any]) -> list[str]:
    """Return all answers as lines of text."""
    answers, last = [("column", "statistic", "answer")], ""
    for column, name, text in rows(whole):
        answers.append((column if column != last else "", name, text))
        last = column
    return [head_text(whole), *padded(answers), *(f"note: {one}" for one in whole["remarks"])]
