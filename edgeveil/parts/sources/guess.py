"""What a file of records is, guessed from its first lines: for a person's own commands alone.

A device reads a file as its owner states (`TableForm`, `header`), since a guess would depend on
records."""

from __future__ import annotations

import codecs
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

from edgeveil.config.data import TableForm
from edgeveil.data.records import require_file
from edgeveil.data.schema import DataSchema
from edgeveil.data.table_form import date_in, number_reader, open_text, rows_in
from edgeveil.errors import DataError
from edgeveil.storage import json_object

_SAMPLE = 1 << 20  # bytes looked at
_ROWS = 1000
MOSTLY = 0.95
_SEPARATORS: tuple[Any, ...] = (",", ";", "\t", "|", " ")
_WHY = {
    "separator": "it cuts the lines into cells of a steady number",
    "decimal": "more columns are numbers by it",
    "thousands": "more columns are numbers by it",
    "dates": "a column holds dates in this order",
    "encoding": "the file is no UTF-8",
    "comment": "line 1 begins with it, and names no columns",
    "skip_lines": "these lines have other cells than those below",
    "multiline": "quoted cells have line breaks (RFC 4180)",
    "jsonl": "its lines are JSON objects",
    "parquet": "it begins as Parquet does",
}
_DATE_ORDERS: tuple[Any, ...] = ("iso", "day_first", "month_first")
_IN_GROUPS = re.compile(r"[+-]?(0|[1-9]\d{0,2}([.,]\d{3})?)")  # maybe of thousands
_FROM_FEATHER = "write it as Parquet: pandas.read_feather(FILE).to_parquet('records.parquet')"
_FROM_JSON = "write one object a line: in pandas to_json(FILE, orient='records', lines=True)"
_FROM_EXCEL = "save its sheet as CSV: pandas.read_excel(FILE).to_csv('records.csv', index=False)"
_FROM_ARFF = "pandas.DataFrame(scipy.io.arff.loadarff(FILE)[0]).to_parquet('records.parquet')"
_ARFF_FILE = ("ARFF", f"write it as Parquet: {_FROM_ARFF}")
# Beginnings of files, in lower case, and how to get a table from them.
_OTHERS = {
    b"pk\x03\x04": ("an Excel workbook, or another ZIP archive", _FROM_EXCEL),
    b"\xd0\xcf\x11\xe0": ("an Excel workbook of 1997 to 2003", _FROM_EXCEL),
    b"arrow1": ("Feather", _FROM_FEATHER),
    b"fea1": ("Feather", _FROM_FEATHER),
    b"\x1f\x8b": ("compressed by gzip", "unpack it with gunzip"),
    b"%pdf": ("a PDF document", "export its table as CSV"),
    b"<!doctype": ("HTML", "save its table as CSV"),
    b"<html": ("HTML", "save its table as CSV"),
}
_JSON = re.compile(rb'[\[{]\s*(["\[\]{}\d-]|$)')
_ARFF = re.compile(rb"^@relation\s", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class Guess:
    """How to read a table; `notes` give the reasons.

    `schema` is the given one, without its label's column in `header` where the file has none."""

    source: str
    form: TableForm = field(default_factory=TableForm)
    header: bool = True
    schema: DataSchema | None = None
    notes: tuple[str, ...] = ()


def guess(
    file: Path,
    schema: DataSchema | None = None,
    form: TableForm | None = None,
    header: bool | None = None,
) -> Guess:
    """Return how to read a table; `form` and `header`, where they are known, are not guessed.

    With a schema, its columns tell a header. Raises DataError for what is no table."""
    if (source := table_source(file)) != "csv":
        return Guess(source, schema=schema, notes=(f"source {source!r}: {_WHY[source]}",))
    raw = _sample(file)
    notes: list[str] = []
    known = {name for column in (schema and schema.columns) or () for name in column.names}
    encoding = form.encoding if form is not None else _encoding(file, raw)
    text = raw.decode(encoding, "replace").removeprefix("\ufeff")
    lines = list(io.StringIO(text, newline=None))
    if len(raw) == _SAMPLE and len(lines) > 1:
        lines.pop()  # cut off by the sample
    if form is None:
        form = _cut_as(lines, TableForm(encoding=encoding), known, str(file))
        found = form.model_dump(exclude_defaults=True).items()
        notes += [f"{key} {value!r}: {_WHY[key]}" for key, value in found]
        notes += _doubts(without_units(_stripped(lines, form)), form)
    rows = _stripped(lines, form)
    if not rows:
        raise DataError("is empty", where=str(file), fix="name a file with records")
    listed = None if schema is None else schema.header
    if header is None and schema is not None and listed is not None and not known <= set(rows[0]):
        if not any(len(row) == len(listed) for row in rows):
            listed = tuple(name for name in listed if name != schema.label.column)
        return Guess("csv", form, False, schema.model_copy(update={"header": listed}), tuple(notes))
    if header is None:
        header = bool(known) or _names_columns(rows, notes)
    width = _usual_width(rows[1:] or rows)
    if header and width != len(rows[0]):
        of = "every row has" if all(len(row) == width for row in rows[1:]) else "most rows have"
        what = f"{of} {width} cells, the header {len(rows[0])} names"
        raise DataError(what, where=str(file), fix="name every column in the first line")
    if header:
        notes += _unread(rows[0])
        if len(without_units(rows)) < len(rows):
            notes.append("below the header is a second one, such as units: delete that line")
    return Guess("csv", form, header, schema, tuple(notes))


def _sample(file: Path) -> bytes:
    with require_file(file, "the file").open("rb") as stream:
        return stream.read(_SAMPLE)


def table_source(file: Path) -> str:
    """Return the source that reads a table, by its first bytes. Raises DataError for no table."""
    raw = _sample(file)
    if raw.startswith(b"PAR1"):
        return "parquet"
    utf_16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = raw.decode("utf-16", "replace").encode() if utf_16 else raw
    begin = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    found = next((one for mark, one in _OTHERS.items() if begin[: len(mark)].lower() == mark), None)
    found = _ARFF_FILE if found is None and _ARFF.search(text) else found
    if found is None and _JSON.match(begin):
        first, _, rest = begin.partition(b"\n")
        record = json_object(first.decode("utf-8", "replace"))
        nested = record and any(isinstance(one, list | dict) for one in record.values())
        found = "JSON, but no object in each line", _FROM_JSON
        if record is not None and (rest.strip() or not nested):
            if (encoding := _encoding(file, raw)) == "utf-8":
                return "jsonl"
            found = "JSON lines not in UTF-8", f"run iconv -f {encoding} -t utf-8 FILE > NEW"
    if found is None and b"\0" in raw and not utf_16:
        found = "binary", "write its records as CSV, in UTF-8"
    if found is not None:
        raise DataError(f"is {found[0]}: no table that is read", where=str(file), fix=found[1])
    return "csv"


def _encoding(file: Path, raw: bytes) -> Any:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        with open_text(file, errors="strict") as stream:
            while stream.read(_SAMPLE):
                pass
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _cut_as(lines: Sequence[str], form: TableForm, known: set[str], where: str) -> TableForm:
    """Guess comment, lines to skip, separator, line breaks in quotes, number and date signs."""
    best, most = None, (0.0, 0.0)
    for separator, multiline in product(_SEPARATORS, (False, True)):
        one = form.model_copy(update={"separator": separator, "multiline": multiline})
        one = _below_preamble(lines, one, known)
        rows = _stripped(lines, one)
        if multiline and not any("\n" in cell for row in rows for cell in row):
            continue
        score = _score(rows, len(rows) + one.skip_lines, known, blanks=separator == " ")
        if score > most and not (separator == " " and best is not None):
            best, most = one, score
    column = _stripped(lines, form)[1:]
    if best is None and all(len(row) == 1 and _is_value(row[0]) for row in column):
        best = form
    if best is None:
        what = "is no table: no sign separates its lines into cells of a steady number"
        raise DataError(what, where=where, fix="write CSV, one record a line")
    return _with_signs(without_units(_stripped(lines, best)), best)


def _below_preamble(lines: Sequence[str], form: TableForm, known: set[str]) -> TableForm:
    """Return the form with `comment` or `skip_lines`, by which a preamble is left out."""
    rows = list(islice(rows_in(lines, form), _ROWS))
    width = _usual_width([cells for _, cells in rows])
    for (at, cells), (_, after) in pairwise(rows):
        whole, names = len(cells) == width, len(after) == width and all(map(_is_name, after))
        begin = lines[at - 1].lstrip()[:1]
        if known & set(map(str.strip, cells)):
            break
        if begin in ("#", "%") and (names or not whole):
            return form.model_copy(update={"comment": begin})
        named = lines[at - 1].lower().startswith("sep=")  # as Excel writes it
        if whole and not named:
            break
        if named or names or (len(cells) == 1 and len(after) == width > 2):
            return form.model_copy(update={"skip_lines": at})
    return form


def _stripped(lines: Sequence[str], form: TableForm) -> list[list[str]]:
    rows = (cells for _, cells in islice(rows_in(lines, form), _ROWS))
    return [[cell.strip() for cell in cells] for cells in rows]


def _score(
    rows: Sequence[Sequence[str]], lines: int, known: set[str], *, blanks: bool
) -> tuple[float, float]:
    """Return (share of `lines` with the usual number of cells, that number); 0 for no table."""
    width = _usual_width(rows)
    count = sum(len(row) == width for row in rows)
    if rows and known and known <= set(rows[0]):
        return 2 + count / lines, width
    if width < 2 or count <= len(rows) / 2:
        return 0.0, 0.0
    if blanks:  # prose has them too
        body = [row for row in rows[1:] if len(row) == width]
        numeric = any(body and all(_is_value(row[at]) for row in body) for at in range(width))
        if count < MOSTLY * len(rows) or not numeric:
            return 0.0, 0.0
    return count / lines, width


def _usual_width(rows: Sequence[Sequence[str]]) -> int:
    return Counter(map(len, rows)).most_common(1)[0][0] if rows else 0


def _with_signs(rows: list[list[str]], form: TableForm) -> TableForm:
    """Return the form with the signs by which most columns hold numbers, and most hold dates."""
    columns = _columns(rows)
    comma = [(",", ""), (".", ",")]
    signs = [(".", ""), *(comma if form.separator == ";" else comma[::-1])]
    signs += [(",", "."), (",", " "), (".", " "), (".", "'")]
    read_as = [form.model_copy(update={"decimal": d, "thousands": t}) for d, t in signs]
    best = max(read_as, key=lambda one: _count(columns, _numbers(one)))
    dates = max(_DATE_ORDERS, key=lambda order: _count(columns, _dates(order)))
    return best.model_copy(update={"dates": dates})


def _doubts(rows: list[list[str]], form: TableForm) -> Iterator[str]:
    """Yield notes on an order of dates or signs of numbers that fit as well as those of `form`."""
    columns, is_number, sign = _columns(rows), _numbers(form), form.decimal
    dated = _count(columns, _dates(form.dates))
    for order in _DATE_ORDERS:
        if dated and order != form.dates and _count(columns, _dates(order)) == dated:
            as_well = f"dates {form.dates!r}: {order} fits as many columns; if that is right"
            yield f"{as_well}, write form: {{dates: {order}}}"
    found = {at: texts for at, texts in enumerate(columns) if mostly(texts, is_number)}
    numbers = {at: list(filter(is_number, texts)) for at, texts in found.items()}
    signed = {text for texts in numbers.values() for text in texts if sign in text}
    if form.separator != ";" or form.thousands or not all(map(_IN_GROUPS.fullmatch, signed)):
        return
    block = f'decimal: "{"," if sign == "." else "."}", thousands: "{sign}"'
    for at, texts in numbers.items():
        if signed.intersection(texts) and all(map(_IN_GROUPS.fullmatch, texts)):
            name = next(iter(rows[0][at:]), "")
            what = f"'{name}'" if _is_name(name) else f"column {at + 1}"
            yield f"{what}: '{sign}' may set off thousands; if so, write form: {{{block}}}"


def _columns(rows: Sequence[Sequence[str]]) -> list[Counter[str]]:
    """Return the texts of each column below the first row, of rows of the usual width."""
    width = _usual_width(rows)
    body = [row for row in rows[1:] if len(row) == width]
    return [Counter(row[at] for row in body if row[at]) for at in range(width)]


def without_units(rows: list[list[str]]) -> list[list[str]]:
    """Return rows without a second header: texts above numbers, none of which recurs below."""
    below = [row for row in rows[2:_ROWS] if len(row) == len(rows[0])]
    if not below or len(rows[1]) != len(rows[0]):
        return rows
    columns = [Counter(filter(None, column)) for column in zip(*below, strict=True)]
    named = [(cell, texts) for cell, texts in zip(rows[1], columns, strict=True) if cell]
    texts_alone = not any(_is_value(cell) or cell in texts for cell, texts in named)
    above_numbers = any(mostly(texts, _is_value) for _, texts in named)
    return rows[:1] + rows[2:] if texts_alone and above_numbers else rows


def _count(columns: Sequence[Counter[str]], holds: Callable[[str], bool]) -> int:
    return sum(mostly(texts, holds) for texts in columns)


def _numbers(form: TableForm) -> Callable[[str], bool]:
    read = number_reader(form)
    return lambda cell: not math.isnan(read(cell))


def _dates(order: Any) -> Callable[[str], bool]:
    form = TableForm(dates=order)
    return lambda cell: date_in(cell, form) is not None


def mostly(texts: Counter[str], holds: Callable[[str], bool]) -> bool:
    given = texts.total()
    return given > 0 and sum(n for text, n in texts.items() if holds(text)) >= MOSTLY * given


def _is_value(cell: str) -> bool:
    """Return whether a cell is a number or a date of some form."""
    forms = (TableForm(), TableForm(decimal=",", thousands="."))
    holding = (*map(_numbers, forms), *map(_dates, ("iso", "day_first")))
    return any(holds(cell) for holds in holding)


def _is_name(cell: str) -> bool:
    return bool(cell) and not _is_value(cell)


def _names_columns(rows: Sequence[Sequence[str]], notes: list[str]) -> bool:
    """Return whether the first row names columns: none of its cells is a value or recurs below."""
    first = rows[0]
    if not any(first) or any(map(_is_value, first)):
        notes.append("header false: line 1 holds a number or a date, so it is a record")
        return False
    body = [row for row in rows[1:] if len(row) == len(first) and row != first]
    seen = [{row[at] for row in body} for at in range(len(first))]
    given = [at for at, cell in enumerate(first) if cell]
    recurring = sum(first[at] in seen[at] for at in given)
    if recurring > len(given) / 2:
        notes.append("header false: line 1 is a record, its cells recur in their columns")
        return False
    notes.append("header true: no cell of line 1 is a number, and most recur nowhere below")
    return True


def _unread(names: Sequence[str]) -> list[str]:
    unnamed = [f"column {at} has no name: left out" for at, name in enumerate(names, 1) if not name]
    counts = Counter(filter(None, names)).items()
    return unnamed + [f"{n} columns are called '{name}': left out" for name, n in counts if n > 1]
