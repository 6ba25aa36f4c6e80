"""Tables: CSV, JSON lines and Parquet, numbers with a label column, or read by a job's schema.

Whether a CSV file's first line names the columns is set by the owner (`Origin.header`), never
guessed: otherwise a job could ask whether the first record holds certain cells. No record makes a
file unreadable, since taking part may not depend on a record: a malformed line becomes a record
that learning drops, reported by `csv_faults`.

The names of a Parquet file's columns are its form; the types are not, since writers derive them
from the rows. A value that is not a number is NaN, such a label -1; learning drops these records.
Numbers are read as float64, so that a gap does not change the rounding of others."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.config.data import TableForm
from edgeveil.data.encoding import UNREADABLE, Encoded, RowEncoder, cell_text
from edgeveil.data.records import (
    MAX_BYTES,
    Records,
    as_records,
    number_in_text,
    require_file,
    require_room,
    whole_labels,
)
from edgeveil.data.schema import DataSchema
from edgeveil.data.table_form import bounded_lines, number_in, number_reader, open_text, text_rows
from edgeveil.errors import DataError, RecordsError
from edgeveil.parts.sources.source import Origin, SourcePart, require_library
from edgeveil.registry import nearest
from edgeveil.storage import json_object

_ADD_HEADER = "write a first line that names every column, such as v1,v2,label"
_SET_HEADER = (
    "write header: true where the first line names the columns, header: false where it does not"
)

Report = Callable[[int, str], object]  # (line number from 1, fault)


def read_csv(origin: Origin) -> Records:
    """Return records by the origin's schema, or x (n, columns-1) and the label column.

    Without a schema the first line names every column; the label is the last column by default.
    Cells that are not numbers are NaN, such labels -1. Raises DataError for a file that is no such
    table."""
    if origin.schema is not None:
        return encode_csv(origin, origin.schema).records
    require_columns(origin.header, None)
    file = require_file(origin.path, "data.path")
    header, table = read_matrix(file, origin.max_bytes, form=origin.form)
    column = _label_index(header, origin.label_column, f"{file}:1")
    return as_records(np.delete(table, column, axis=1), table[:, column], where=str(file))


def csv_faults(origin: Origin) -> list[str]:
    """Return `file:line: fault` for each line that learning drops, without cell contents."""
    found: dict[int, str] = {}
    if origin.schema is not None:
        encode_csv(origin, origin.schema, found.setdefault)
    else:
        require_columns(origin.header, None)
        file, numbers = require_file(origin.path, "data.path"), list[int]()
        header, table = read_matrix(file, report=found.setdefault, lines=numbers, form=origin.form)
        labels = table[:, _label_index(header, origin.label_column, f"{file}:1")]
        for line, label, whole in zip(numbers, labels, whole_labels(labels), strict=True):
            if label != whole:
                found.setdefault(line, "the label is missing or no whole number")
    return [f"{origin.path}:{line}: {what}" for line, what in sorted(found.items())]


def read_matrix(
    file: Path,
    max_bytes: int = MAX_BYTES,
    report: Report = lambda _line, _what: None,
    lines: list[int] | None = None,
    *,
    need_header: bool = True,
    form: TableForm | None = None,
) -> tuple[list[str], NDArray[np.float64]]:
    """Return (header, table (n, columns) float64), with NaN for cells that are not numbers.

    Columns without a name are left out. `report` gets malformed lines, `lines` each record's line
    number. Raises DataError if a needed header is missing, or beyond `max_bytes`."""
    _require_small(file, max_bytes)
    form = form or TableForm()
    read, header = number_reader(form), list[str]()
    width, named, values = 0, list[int](), array("d")
    for number, cells in text_rows(file, form):
        if not width:
            first = _names(cells, f"{file}:{number}")
            width, named = len(first), list(range(len(first)))
            if need_header:
                _require_names(first, read, f"{file}:{number}")
            if need_header or any(_number(cell, read) is None for cell in first):
                named = [at for at, name in enumerate(first) if name]
                header = [first[at] for at in named]
                continue
        row, fault = _row(cells, width, named, read)
        values.extend(row)
        if fault:
            report(number, fault)
        if lines is not None:
            lines.append(number)
    if not width:
        raise DataError("is empty", where=str(file), fix=_ADD_HEADER)
    return header, np.frombuffer(values, dtype=np.float64).reshape(-1, len(named))


def encode_csv(
    origin: Origin,
    schema: DataSchema,
    report: Report = lambda _line, _what: None,
    *,
    labelled: bool | None = True,
) -> Encoded:
    """Return the records of a CSV file by a job's schema, and statistics of its columns.

    `report` gets malformed lines; with a limit a file may have any size. Raises DataError for a
    header that is missing or holds a number and for a missing column, never for a record."""
    require_columns(origin.header, schema)
    file, form = require_file(origin.path, "data.path"), origin.form or TableForm()
    read = number_reader(form)

    def encoding(names: list[str], where: str) -> RowEncoder:
        return _encoder(origin, schema, names, where, labelled=labelled, form=form)

    encoder = None if origin.header else encoding(list(schema.header or ()), str(file))
    for number, cells in text_rows(file, form):
        if encoder is None:
            names = _names(cells, f"{file}:{number}")
            _require_no_number(names, read, f"{file}:{number}")
            encoder = encoding(names, f"{file}:{number}")
        elif fault := encoder.add(cells):
            report(number, fault)
    if encoder is None:
        raise DataError("is empty", where=str(file), fix=_ADD_HEADER)
    return encoder.encoded()


def _encoder(
    origin: Origin, schema: DataSchema, names: Sequence[str], where: str, **how: Any
) -> RowEncoder:
    if origin.limit is None and origin.path is not None:
        _require_small(origin.path, origin.max_bytes)
    return RowEncoder(schema, names, where, max_bytes=origin.max_bytes, limit=origin.limit, **how)


def require_columns(header: bool | None, schema: DataSchema | None) -> None:
    """Raise DataError unless the first line (`header`) or a schema names a CSV file's columns."""
    if header is None:
        what = "must be set: whether the first line of the CSV file names its columns"
        raise DataError(what, where="data.header", fix=_SET_HEADER)
    if not header and (schema is None or schema.header is None):
        raise DataError(
            "no line of the CSV file names its columns, and the job does not either",
            where="data.header",
            fix="take a job whose data.schema.header names them, or write them into the file's"
            " first line and header: true",
        )


def csv_rows(file: Path, form: TableForm) -> list[list[str]]:
    _require_small(file, MAX_BYTES)
    return [[cell.strip() for cell in cells] for _, cells in text_rows(file, form)]


def _require_small(file: Path, max_bytes: int) -> None:
    # A cell takes at least two bytes of text and eight in memory.
    if 4 * file.stat().st_size > max_bytes:
        what = f"is larger than {max_bytes // 4} bytes"
        raise RecordsError(what, where=str(file), fix="store the records as NPZ, or fewer of them")


def _names(cells: Sequence[str], where: str) -> list[str]:
    if any("\ufffd" in cell for cell in cells):
        what = "is not readable CSV: it names columns with bytes that are no UTF-8"
        fix = "save it as UTF-8, or state its encoding, form: {encoding: cp1252}"
        raise DataError(what, where=where, fix=fix)
    return [cell.strip() for cell in cells]


def _require_names(cells: list[str], read: Callable[[str], float], where: str) -> None:
    named = [cell for cell in cells if cell]
    distinct = named and len(set(named)) == len(named)
    if not distinct or any(_number(cell, read) is not None for cell in named):
        what = "holds no header: one record more or less would change the form of the file"
        raise DataError(what, where=where, fix=_ADD_HEADER)


def _require_no_number(cells: list[str], read: Callable[[str], float], where: str) -> None:
    if any(cell and _number(cell, read) is not None for cell in cells):
        what = "should name the columns (data.header) but contains a number: it may be a record"
        fix = f"{_SET_HEADER}; no column may be called by a number"
        raise DataError(what, where=where, fix=fix)


def _row(
    cells: list[str], width: int, named: list[int], read: Callable[[str], float]
) -> tuple[list[float], str]:
    """Return the numbers of one line's named columns, and a fault or ""."""
    missing = float("nan")
    if len(cells) != width:
        return [missing] * len(named), f"{len(cells)} columns, the first line has {width}"
    if read is number_in and len(named) == width and "_" not in "".join(cells):
        with suppress(ValueError):
            return list(map(float, cells)), ""  # the common case
    row, fault = [_number(cells[at], read) for at in named], ""
    if None in row:  # the text may be private, so it is not shown
        fault = f"column {named[row.index(None)] + 1} holds text where a number belongs"
    return [missing if cell is None else cell for cell in row], fault


def _number(cell: str, read: Callable[[str], float] = number_in) -> float | None:
    text = cell.strip()
    value = read(text)
    known = not math.isnan(value) or text.lstrip("+-").lower() in ("", "nan")
    return value if known else None


def _label_index(columns: list[str], name: str | None, where: str) -> int:
    if len(columns) < 2:
        fix = "give each record its values and a label"
        raise DataError("has a single column", where=where, fix=fix)
    if name is not None and name not in columns:
        raise DataError(f"has no column '{name}'", where=where, fix=nearest(name, columns))
    return len(columns) - 1 if name is None else columns.index(name)


def read_jsonl(origin: Origin) -> Records:
    """Return records by the origin's schema. Raises DataError without one."""
    if origin.schema is None:
        what, fix = "no line of the file names its columns", "take a job whose data.schema does"
        raise DataError(what, where="data.source", fix=fix)
    return encode_jsonl(origin, origin.schema).records


def encode_jsonl(
    origin: Origin,
    schema: DataSchema,
    report: Report = lambda _line, _what: None,
    *,
    labelled: bool | None = True,
) -> Encoded:
    """Return the records of lines of JSON as `encode_csv`; a key that is not there is missing.

    The columns are the schema's: a line that is no object is dropped."""
    file = require_file(origin.path, "data.path")
    encoder = _encoder(origin, schema, schema.read_columns, str(file), labelled=labelled)
    for number, line, record in _objects(file):
        cells = (
            [] if record is None else [cell_text(record.get(name)) for name in schema.read_columns]
        )
        if fault := encoder.add(cells, stored=[line]):
            report(number, fault if cells else "is no JSON object")
    return encoder.encoded()


def jsonl_faults(origin: Origin) -> list[str]:
    """Return `file:line: fault` for each line that learning drops, without its contents."""
    found: dict[int, str] = {}
    if origin.schema is not None:
        encode_jsonl(origin, origin.schema, found.setdefault)
    return [f"{origin.path}:{line}: {what}" for line, what in sorted(found.items())]


def jsonl_rows(file: Path) -> tuple[list[str], list[list[str]]]:
    """Return all keys and the rows: "" for a key that a record lacks, no cell for a faulty line."""
    _require_small(file, MAX_BYTES)
    records = [record for _, _, record in _objects(file)]
    names = list(dict.fromkeys(name for record in records for name in record or ()))
    require_room((len(records), len(names)), 8, MAX_BYTES, str(file))
    return names, [
        [] if record is None else [cell_text(record.get(name)).strip() for name in names]
        for record in records
    ]


def _objects(file: Path) -> Iterator[tuple[int, str, dict[str, Any] | None]]:
    with open_text(file) as stream:
        for number, line in enumerate(bounded_lines(stream), 1):
            if text := line.strip():
                yield number, text, json_object(text)


_TEXT_BYTES = 1 << 20  # of one name in the footer
_ITEMS = 1 << 16  # of one list there
_ROWS = 4096  # unpacked at a time
_REPEATED_BYTES = 1 << 24  # of texts that pyarrow repeats in memory
_TIMES_ROOM = 4  # largest ratio of unpacked bytes to `max_bytes`
_AS_DICTIONARY = frozenset({"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"})
_NO_VALUE = (ValueError, OverflowError, TypeError)


def read_parquet(origin: Origin) -> Records:
    """Return records by the origin's schema, or x (n, columns-1) float32 and the label column.

    Raises DataError without pyarrow, for a file without the form, or, by its footer, beyond
    `max_bytes`."""
    if origin.schema is not None:
        return encode_parquet(origin, origin.schema).records
    file = require_file(origin.path, "data.path")
    with _opened(file) as opened:
        _check_size(opened, str(file), origin.max_bytes)
        names = opened.schema_arrow.names
        label = _label_index(names, origin.label_column, str(file))
        parts = [
            np.column_stack(list(map(column_numbers, batch.columns))) for batch in _batches(opened)
        ]
        rows = np.concatenate([np.empty((0, len(names))), *parts])
    return as_records(np.delete(rows, label, axis=1), rows[:, label], str(file))


def encode_parquet(origin: Origin, schema: DataSchema, *, labelled: bool | None = True) -> Encoded:
    """Return the records by a job's schema, and statistics of the columns. Raises DataError."""
    file, most, limit = require_file(origin.path, "data.path"), origin.max_bytes, origin.limit
    with _opened(file) as opened:
        _check_size(opened, str(file), most)
        names = opened.schema_arrow.names
        encoder = RowEncoder(
            schema, names, str(file), labelled=labelled, max_bytes=most, limit=limit
        )
        for cells in _row_texts(opened, str(file), None if limit else most):
            encoder.add(cells)
    return encoder.encoded()


def parquet_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    file = require_file(path, "the file")
    with _opened(file) as opened:
        _check_size(opened, str(file), MAX_BYTES)
        rows = [list(cells) for cells in _row_texts(opened, str(file), MAX_BYTES)]
        return opened.schema_arrow.names, rows


def column_numbers(column: Any) -> NDArray[np.float64]:
    """Return a column (n,) as numbers, NaN for other cells. No cell raises."""
    if holds_numbers(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    texts = column_texts(column)
    numbers = {text: number_in_text(text) for text in set(texts)}  # all rows may share a text
    return np.array([numbers[text] for text in texts], np.float64)


def holds_numbers(kind: Any) -> bool:
    import pyarrow as pa

    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    return any(is_kind(kind) for is_kind in numbers)


def parquet_faults(origin: Origin) -> list[str]:
    """Return `file: fault` for each column of a non-numeric type; [] with a schema."""
    if origin.schema is not None:
        return []
    file = require_file(origin.path, "data.path")
    with _opened(file, as_typed=True) as opened:
        return [
            f"{file}: column '{field.name}' holds {str(field.type)[:100]}: what is no number there"
            " is dropped"
            for field in opened.schema_arrow
            if not holds_numbers(field.type)
        ]


def _row_texts(opened: Any, where: str, max_bytes: int | None) -> Iterator[tuple[str, ...]]:
    """Yield all rows as texts. Raises DataError if their total length exceeds `max_bytes`."""
    letters = 0
    for batch in _batches(opened):
        for cells in zip(*map(column_texts, batch.columns), strict=True):
            if max_bytes is not None:
                letters += sum(map(len, cells))
                require_room((letters // 4,), 4, _TIMES_ROOM * max_bytes, where)
            yield cells


def column_texts(column: Any) -> list[str]:
    """Return a column's cells as text, each distinct text once in memory. No cell raises."""
    import pyarrow as pa

    if pa.types.is_nested(column.type):  # never unpacked
        return [UNREADABLE if given else "" for given in column.is_valid().to_pylist()]
    if pa.types.is_dictionary(column.type):
        used = column.indices.dictionary_encode()
        texts = column_texts(column.dictionary.take(used.dictionary))
        return ["" if at is None else texts[at] for at in used.indices.to_pylist()]
    with suppress(*_NO_VALUE):
        return [cell_text(value) for value in column.to_pylist()]
    texts = [UNREADABLE] * len(column)
    for at, value in enumerate(column):
        with suppress(*_NO_VALUE):
            texts[at] = cell_text(value.as_py())
    return texts


@contextmanager
def _opened(file: Path, *, as_typed: bool = False) -> Iterator[Any]:
    """Open a Parquet file, texts as dictionaries unless `as_typed`. Raises DataError."""
    require_library("pyarrow", "parquet")
    import pyarrow as pa
    from pyarrow import parquet

    bounds = {"thrift_string_size_limit": _TEXT_BYTES, "thrift_container_size_limit": _ITEMS}
    try:
        with parquet.ParquetFile(file, **bounds) as opened:
            if as_typed:
                yield opened
                return
            texts = [leaf.path for at, leaf in enumerate(_leaves(opened)) if _once(opened, at)]
            with parquet.ParquetFile(file, read_dictionary=texts, **bounds) as unrepeated:
                yield unrepeated
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        what = f"is not readable Parquet: {str(error)[:200]}"
        fix = "write it again, for example with pandas.DataFrame.to_parquet"
        raise DataError(what, where=str(file), fix=fix) from None


def _once(opened: Any, at: int) -> bool:
    """Return whether a leaf has texts in encodings that pyarrow can read as a dictionary."""
    groups = [opened.metadata.row_group(k) for k in range(opened.num_row_groups)]
    texts = opened.schema.column(at).physical_type == "BYTE_ARRAY"
    return texts and all(_AS_DICTIONARY.issuperset(one.column(at).encodings) for one in groups)


def _batches(opened: Any) -> Iterator[Any]:
    """Yield all rows, few at a time if texts are repeated; by row group if texts are in lists."""
    groups, rows = range(opened.num_row_groups), _ROWS
    if any(_repeats_texts(field.type) for field in opened.schema_arrow):
        longest = max((opened.metadata.row_group(k).total_byte_size for k in groups), default=0)
        rows = max(1, min(_ROWS, _REPEATED_BYTES // max(1, longest)))
    nested = any(leaf.path != leaf.name for leaf in _leaves(opened))
    for together in [[one] for one in groups] if nested else [list(groups)]:
        yield from opened.iter_batches(rows, row_groups=together, use_threads=False)


def _repeats_texts(kind: Any) -> bool:
    """Return whether a type holds texts in spite of `read_dictionary`."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return _repeats_texts(kind.storage_type)
    if any(_repeats_texts(kind.field(at).type) for at in range(kind.num_fields)):
        return True
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    return any(is_kind(kind) for is_kind in (*texts, pa.types.is_large_binary))


def _leaves(opened: Any) -> list[Any]:
    return [opened.schema.column(at) for at in range(opened.metadata.num_columns)]


def _check_size(opened: Any, where: str, max_bytes: int) -> None:
    schema, footer = opened.schema_arrow, opened.metadata
    require_room((footer.num_rows, len(schema)), 8, max_bytes, where)
    groups = [footer.row_group(k) for k in range(footer.num_row_groups)]
    packed = sum(group.total_byte_size for group in groups)
    require_room((packed,), 1, _TIMES_ROOM * max_bytes, where)
    # Fixed-width values and lists may be stored once in the file and many times in memory.
    widths = [max(1, (leaf.length + 7) // 8) for leaf in _leaves(opened)]
    words = sum(
        width * group.column(at).num_values for group in groups for at, width in enumerate(widths)
    )
    require_room((words,), 8, _TIMES_ROOM * max_bytes, where)


PARTS = (
    SourcePart(
        name="csv",
        read=read_csv,
        place="file",
        reads=("header", "form", "label_column"),
        faults=csv_faults,
        tallies=encode_csv,
        by_schema="columns",
        source="the user's own data",
        needs="a file of the user's",
        summary="A table, one record a line, under a line that names the columns.",
        example="local_run: {data: {source: csv, path: records.csv, label_column: label}}",
    ),
    SourcePart(
        name="jsonl",
        read=read_jsonl,
        place="file",
        faults=jsonl_faults,
        tallies=encode_jsonl,
        by_schema="columns",
        source="the user's own data",
        needs="a file of the user's; data.schema",
        summary="A table, one record a line, as a JSON object.",
        example="local_run: {data: {source: jsonl, path: records.jsonl}}",
    ),
    SourcePart(
        name="parquet",
        read=read_parquet,
        place="file",
        reads=("label_column",),
        faults=parquet_faults,
        tallies=encode_parquet,
        by_schema="columns",
        source="the user's own data",
        needs="a file of the user's; pip install 'edgeveil[parquet]'",
        summary="A table, one record a row.",
        example="local_run: {data: {source: parquet, path: records.parquet}}",
    ),
)
