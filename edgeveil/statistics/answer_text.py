"""Answers of a statistics job as numbers and as text, each value with its ± (95 % of the noise)."""

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


class NoisedCount(NamedTuple):
    """One number of an answer: `name` is its bin, rank, category or cell, "" for the only one."""

    name: str
    value: float  # None of a single number that is too noisy
    plus_minus: float


def columns_of(answer: Mapping[str, Any]) -> str:
    """Return the column of an answer, or `a × b`, control characters escaped."""
    return printable(" × ".join(answer.get("columns") or [str(answer.get("column", ""))]))


def cells(answer: Mapping[str, Any]) -> Iterator[NoisedCount]:
    """Yield the numbers of an answer; a table row by row."""
    values, off, names = answer["value"], answer["plus_minus"], [""]
    if not isinstance(values, list):
        values = [values]
    elif answer["statistic"] == "table":
        names = [f"{row} × {column}" for row in answer["names"][0] for column in answer["names"][1]]
        values = [value for row in values for value in row]
    elif edges := answer.get("edges"):
        names = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    elif ranks := answer.get("ranks"):
        names = [f"{100 * rank:g} %" for rank in ranks]
    else:
        names = answer["names"]
    errors = off if isinstance(off, list) else [off] * len(values)
    yield from map(NoisedCount, names, values, errors)


def price_text(whole: Mapping[str, Any]) -> str:
    """Return the price of all answers together."""
    price = f"ε = {up(whole['epsilon'])} per {whole['unit']} (δ = {whole['delta']:g})"
    return f"{price} for all answers together"


def head_text(whole: Mapping[str, Any]) -> str:
    """Return who was asked, and at which price, in one line."""
    found = count_text(NoisedCount("", whole["records"], whole["records_plus_minus"]))
    asked = f" where {printable(whole['where'])}" if whole.get("where") else ""
    return f"{found} records{asked} on {whole['uploads']} devices, {price_text(whole)}"


def rows(whole: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (column, statistic, text with ±); a list of counts or a table takes several lines.

    A column's counts of records are one row."""
    for column, answers in groupby(whole["answers"], columns_of):
        found = list(answers)
        counts = [one for one in found if one["statistic"] in COUNTS]
        if counts:
            said = [f"{single_text(one)}{COUNTS[one['statistic']]}" for one in counts]
            yield column, "records", ", ".join(said)
        for answer in found:
            if answer["statistic"] not in COUNTS:
                yield column, str(answer["statistic"]), _text_of(answer)


def single_text(answer: Mapping[str, Any]) -> str:
    """Return the value of an answer that is one number."""
    if answer.get("too_noisy"):
        return TOO_NOISY
    cell = next(cells(answer))
    return count_text(cell) if answer["statistic"] in COUNTS else measured(cell[1], cell[2])


def _text_of(answer: Mapping[str, Any]) -> str:
    name = answer["statistic"]
    if answer.get("too_noisy") or not isinstance(answer["value"], list):
        return single_text(answer)
    found = list(cells(answer))
    if name == "histogram":
        most = max(*(cell.value for cell in found), 1e-9)
        shade = "".join(_SHADES[max(0, round(cell.value / most * 7))] for cell in found)
        low, high = (number_text(answer["edges"][at]) for at in (0, -1))
        off = number_text(100 * max(answer["plus_minus"]))
        return f"{low} {shade} {high}, ± {off} % in each bin"
    if name == "quantiles":
        shown = ", ".join(f"{cell.name} {number_text(cell.value)}" for cell in found)
        within = f", in cells of {number_text(answer['cell'])}" if "cell" in answer else ""
        return f"{shown}{within}; rank ± {100 * answer['rank_plus_minus']:.1f} %"
    if name == "table":
        grid = [[f"each ± {number_text(answer['plus_minus'])}", *answer["names"][1]]]
        for row, values in zip(answer["names"][0], answer["value"], strict=True):
            grid.append([row, *(f"{value:,.0f}" for value in values)])
        return "\n".join(padded([[*map(printable, row)] for row in grid]))
    head = [f"all above {number_text(answer['threshold'])} records"] if name == "values" else []
    if "other" in answer:
        found.append(NoisedCount("(other)", answer["other"], answer["other_plus_minus"]))
    return "\n".join([*head, *(f"{printable(cell.name)} {count_text(cell)}" for cell in found)])


def count_text(cell: NoisedCount) -> str:
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
    return ["  ".join(map(str.ljust, row, wide)).rstrip() for row in split]


def lines(whole: Mapping[str, Any]) -> list[str]:
    """Return all answers as lines of text."""
    answers, last = [("column", "statistic", "answer")], ""
    for column, name, text in rows(whole):
        answers.append((column if column != last else "", name, text))
        last = column
    return [
        head_text(whole),
        *padded(answers),
        *(f"note: {printable(one)}" for one in whole.get("remarks", ())),
    ]
