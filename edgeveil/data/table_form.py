"""Rows, numbers and dates of a table of text, read by its stated form.

No record fails, reaches another or takes more memory than `RECORD_CHARS` allow."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TextIO

from edgeveil.config.data import TableForm
from edgeveil.errors import DataError

RECORD_CHARS = 1 << 22  # of one record; more of it is not read
_CODECS = {"utf-8": "utf-8-sig"}  # without the byte order mark
_YEAR, _TWO = r"(?P<{}>\d{{4}})", r"(?P<{}>\d{{1,2}})"
_ORDERS = {"iso": "ymd", "day_first": "dmy", "month_first": "mdy"}
_TIME = r"(?:[T ]+(?P<h>\d{1,2}):\d{2}(?P<more>.{0,40}))?"
_DATES = {
    name: re.compile(
        "[-/.]".join((_YEAR if part == "y" else _TWO).format(part) for part in order) + _TIME,
        re.ASCII,
    )
    for name, order in _ORDERS.items()
}


def text_rows(file: Path, form: TableForm) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, cells) of each record; empty lines are no records."""
    with open_text(file, form.encoding) as stream:
        try:
            yield from rows_in(bounded_lines(stream), form)
        except UnicodeError:
            what, fix = "is UTF-16 without a byte order mark", "save it as UTF-8"
            raise DataError(what, where=str(file), fix=fix) from None


def open_text(file: Path, encoding: str = "utf-8", errors: str = "replace") -> TextIO:
    return file.open(encoding=_CODECS.get(encoding, encoding), errors=errors)


def bounded_lines(stream: TextIO) -> Iterator[str]:
    """Yield lines, each cut off at `RECORD_CHARS`."""
    while line := stream.readline(RECORD_CHARS):
        yield line
        while not line.endswith("\n") and (line := stream.readline(RECORD_CHARS)):
            pass


def rows_in(lines: Iterable[str], form: TableForm) -> Iterator[tuple[int, list[str]]]:
    """Cut lines into rows as `text_rows`; a line without CSV form is one cell."""
    numbered = ((at, line) for at, line in enumerate(lines, 1) if at > form.skip_lines)
    for at, line in numbered:
        if not line.strip() or (form.comment and line.lstrip().startswith(form.comment)):
            continue
        text = _until_full(line, numbered) if form.multiline else iter((line,))
        if form.separator == " ":
            text = (one.replace("\t", " ").strip(" \n") + "\n" for one in text)
        try:
            yield at, next(csv.reader(text, delimiter=form.separator, skipinitialspace=True))
        except csv.Error:
            yield at, [line]


def _until_full(line: str, more: Iterator[tuple[int, str]]) -> Iterator[str]:
    yield line
    room = RECORD_CHARS - len(line)
    while room > 0 and (found := next(more, None)) is not None:
        room -= len(found[1])
        yield found[1]


def number_in(cell: str) -> float:
    try:
        return float(cell.replace("_", "?"))  # Python reads 1_000 as a number
    except ValueError:
        return math.nan


def number_reader(form: TableForm) -> Callable[[str], float]:
    """Return a function from a cell to its number, NaN for any other cell."""
    if form.decimal == "." and not form.thousands:
        return number_in
    sign = "[ \u00a0\u202f]" if form.thousands == " " else re.escape(form.thousands)
    grouped = re.compile(rf"[+-]?\d{{1,3}}(?:{sign}\d{{2,3}})*{sign}\d{{3}}(?!\d)", re.ASCII)

    def read(cell: str) -> float:
        if form.thousands and (whole := grouped.match(cell)):
            cell = re.sub(sign, "", whole[0]) + cell[whole.end() :]
        if form.decimal == ",":
            cell = "" if "." in cell else cell.replace(",", ".")
        return number_in(cell)

    return read


def date_in(cell: str, form: TableForm) -> tuple[int, int, int, int] | None:
    """Return (year, month 1 to 12, weekday from Monday 0, hour, 24 without one), or None."""
    found = _DATES[form.dates].fullmatch(cell)
    if found is None:
        return None
    hour, half = int(found["h"] or 24), (found["more"] or "")[-2:].upper()
    if half in ("AM", "PM"):
        hour = hour % 12 + 12 * (half == "PM")
    with suppress(ValueError):
        day = date(int(found["y"]), int(found["m"]), int(found["d"]))
        return day.year, day.month, day.weekday(), min(hour, 24)
    return None
