"""The answers of a statistics job on its page: a table, histograms, quantiles and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgeveil.logs import printable
from edgeveil.pages.parts import (
    Json,
    bars,
    heat,
    histogram,
    lines,
    paragraph,
    rounded,
    section,
    series,
    table,
)
from edgeveil.statistics.answer_text import (
    cells,
    columns_of,
    count_text,
    head_text,
    measured,
    single_text,
)

MOST_BARS = 60  # more categories are in the table of counts


def statistics_sections(
    whole: Mapping[str, Any], drift: Mapping[str, Any] | None = None
) -> list[Json]:
    """Return sections for drift, for all single numbers, and for each column or pair of columns."""
    if not whole:
        return []
    text = f"Asked {head_text(whole)}. ± holds the noise with 95 % confidence, not the sampling."
    said = [paragraph(text), *(paragraph(note, "warn") for note in whole.get("remarks", ()))]
    drawn: dict[str, list[Json]] = {}
    single: dict[str, dict[str, str]] = {}
    for answer in whole["answers"]:
        column = columns_of(answer)
        if parts := [] if answer.get("too_noisy") else list(_drawn(column, answer)):
            drawn.setdefault(column, []).extend(parts)
        else:
            text = "none" if answer["value"] == [] else single_text(answer)
            single.setdefault(column, {})[answer["statistic"]] = text
    names = list(dict.fromkeys(name for row in single.values() for name in row))
    rows = [[column, *(row.get(name, "–") for name in names)] for column, row in single.items()]
    shown = [table("Answers", ["column", *names], rows)] if rows else []
    found = [section("statistics", "What is out there", shown, before=said)]
    found += [_drift(drift)] if drift and drift["columns"] else []
    for at, (column, parts) in enumerate(drawn.items()):
        found.append(section(f"statistics-{at + 1}", column, parts))
    return found


def _drift(drift: Mapping[str, Any]) -> Json:
    rows = list[list[str]]()
    for one in drift["columns"]:
        moved = one.get("mean_shift")
        shift = "–" if moved is None else measured(moved, one["mean_shift_plus_minus"])
        far = [f"{100 * one[name]:.2g} %" for name in ("distance", "by_chance")]
        rows.append([printable(one["column"]), *far, shift, "drifted" if one["drifted"] else "no"])
    names = ["column", "total variation", "by chance up to", "mean moved by", "drift"]
    since = f"Drift since {printable(drift['since'])}"
    return section("drift", since, [table(since, names, rows)])


def _drawn(column: str, answer: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the figure of an answer that is a list; nothing for a single number."""
    name, found = answer["statistic"], [*cells(answer)] if answer["value"] != [] else []
    if name == "histogram":
        shares = [rounded(100 * cell.value) for cell in found]
        off = [rounded(100 * cell.plus_minus) for cell in found]
        yield histogram("Share of records by value, in %", answer["edges"], shares, off)
    elif name == "quantiles":
        ranks = [round(100 * rank, 3) for rank in answer["ranks"]]
        off = [rounded(cell.plus_minus) for cell in found]
        line = series(column, [rounded(cell.value) for cell in found], "green", off=off)
        yield lines("Quantiles", ranks, [line], x_name="% of records below")
    elif name == "table":
        names = [[printable(one) for one in some] for some in answer["names"]]
        counts = [[max(0, round(value)) for value in row] for row in answer["value"]]
        axes = (printable(answer["columns"][0]), printable(answer["columns"][1]))
        label = f"Records by both, each count ± {answer['plus_minus']:,.0f}"
        yield heat(label, counts, names[0], names[1], axes)
    elif name in ("categories", "values") and found:
        most: Sequence[Any] = sorted(found, key=lambda one: -one.value)[:MOST_BARS]
        told = [(printable(c.name), max(0.0, c.value), count_text(c), c.plus_minus) for c in most]
        yield bars("Records by value" if name == "values" else "Records by category", told)
