"""Parquet files: one record a row; numbers with a label column, or whatever a job's schema reads.

Names of columns are the form of the file. Types are not, since writers take them from the rows. A
value that is no number is NaN, such a label -1, and learning drops these records. Numbers are read
as float64, so that a gap rounds none of the others differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.encoding import UNREADABLE, Encoded, RowEncoder, cell_text
from edgeveil.data.records import (
    MAX_BYTES,
    Records,
    as_records,
    number_in_text,
    require_file,
    require_room,
)
from edgeveil.data.schema import DataSchema
from edgeveil.data.split import RecordLimit
from edgeveil.errors import DataError
from edgeveil.parts.sources.source import Origin, SourcePart, label_index

_TEXT_BYTES = 1 << 20  # of one name in the footer
_ITEMS = 1 << 16  # of one list there
_ROWS = 4096  # of what is unpacked at a time
_REPEATED_BYTES = 1 << 24  # of texts that pyarrow repeats in memory
_TIMES_ROOM = 4  # of what is read for records that take the room
_AS_DICTIONARY = frozenset({"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"})
_NO_VALUE = (ValueError, OverflowError, TypeError)


def read_parquet(
    path: Path | None, label_column: str | None = None, max_bytes: int = MAX_BYTES
) -> Records:
    """Records with x (n, columns-1) float32. DataError without pyarrow, for a file that is none or
    has no such columns, and by its footer for one of more than `max_bytes`."""
    file = require_file(path, "data.path")
    with _opened(file) as opened:
        if len(opened.schema_arrow) < 2:
            what, fix = "has fewer than two columns", "give each row its values and a label"
            raise DataError(what, where=str(file), fix=fix)
        _check_size(opened, str(file), max_bytes)
        names = opened.schema_arrow.names
        parts = [np.column_stack(list(map(_numbers, batch.columns))) for batch in _batches(opened)]
        rows = np.concatenate([np.empty((0, len(names))), *parts])
    label = label_index(names, label_column, str(file))
    return as_records(np.delete(rows, label, axis=1), rows[:, label], str(file))


def encode_parquet(
    path: Path | None,
    schema: DataSchema,
    max_bytes: int = MAX_BYTES,
    *,
    labelled: bool | None = True,
    limit: RecordLimit | None = None,
) -> Encoded:
    """The records as a job's schema reads them, and what its columns hold; `limit` cuts them.
    DataError as `read_parquet`, for a lacking column, and without a limit for too long texts."""
    file = require_file(path, "data.path")
    with _opened(file) as opened:
        _check_size(opened, str(file), max_bytes)
        names = opened.schema_arrow.names
        encoder = RowEncoder(
            schema, names, str(file), labelled=labelled, max_bytes=max_bytes, limit=limit
        )
        for cells in _cells(opened, str(file), None if limit else max_bytes):
            encoder.add(cells)
    return encoder.encoded()


def parquet_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    file = require_file(path, "the file")
    with _opened(file) as opened:
        _check_size(opened, str(file), MAX_BYTES)
        rows = [list(cells) for cells in _cells(opened, str(file), MAX_BYTES)]
        return opened.schema_arrow.names, rows


def _numbers(column: Any) -> NDArray[np.float64]:
    """A column (n,) as numbers; NaN for what is none. Raises nothing for a cell."""
    if _holds_numbers(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    texts = _texts(column)
    numbers = {text: number_in_text(text) for text in set(texts)}  # one may be that of all rows
    return np.array([numbers[text] for text in texts], np.float64)


def _holds_numbers(kind: Any) -> bool:
    """Whether a column's type has numbers alone, or gaps alone, which writers give a type too."""
    import pyarrow as pa

    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    return any(is_kind(kind) for is_kind in numbers)


def parquet_faults(path: Path | None) -> list[str]:
    """`file: what is wrong` of each column whose type is not one of numbers."""
    file = require_file(path, "data.path")
    with _opened(file, as_typed=True) as opened:
        return [
            f"{file}: column '{field.name}' holds {str(field.type)[:100]}: what is no number there"
            " is dropped"
            for field in opened.schema_arrow
            if not _holds_numbers(field.type)
        ]


def _cells(opened: Any, where: str, max_bytes: int | None) -> Iterator[tuple[str, ...]]:
    """All rows as texts. Raises DataError where they are too long in all for `max_bytes`."""
    letters = 0
    for batch in _batches(opened):
        for cells in zip(*map(_texts, batch.columns), strict=True):
            if max_bytes is not None:
                letters += sum(map(len, cells))
                require_room((letters // 4,), 4, _TIMES_ROOM * max_bytes, where)
            yield cells


def _texts(column: Any) -> list[str]:
    """A column's cells as text, each text of the file once in memory. Raises nothing for a cell."""
    import pyarrow as pa

    if pa.types.is_nested(column.type):  # never unpacked: all are one text
        return [UNREADABLE if given else "" for given in column.is_valid().to_pylist()]
    if pa.types.is_dictionary(column.type):
        used = column.indices.dictionary_encode()
        texts = _texts(column.dictionary.take(used.dictionary))
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
    """A Parquet file, texts as dictionaries unless `as_typed`; DataError for whatever cannot be
    read."""
    if find_spec("pyarrow") is None:
        raise DataError(
            "the source 'parquet' needs pyarrow, which is not installed",
            where="data.source",
            fix="pip install 'edgeveil[parquet]'",
        )
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
        raise DataError(
            f"is not readable Parquet: {str(error)[:200]}",
            where=str(file),
            fix="write it again, for example with pandas.DataFrame.to_parquet",
        ) from None


def _once(opened: Any, at: int) -> bool:
    """Whether a leaf has texts in encodings that pyarrow reads as a dictionary."""
    groups = [opened.metadata.row_group(k) for k in range(opened.num_row_groups)]
    texts = opened.schema.column(at).physical_type == "BYTE_ARRAY"
    return texts and all(_AS_DICTIONARY.issuperset(one.column(at).encodings) for one in groups)


def _batches(opened: Any) -> Iterator[Any]:
    """All rows. Texts in lists come by group, since pyarrow reads no list of two dictionaries.
    Where texts are repeated after all, few rows at a time."""
    groups, rows = range(opened.num_row_groups), _ROWS
    if any(_repeats_texts(field.type) for field in opened.schema_arrow):
        longest = max((opened.metadata.row_group(k).total_byte_size for k in groups), default=0)
        rows = max(1, min(_ROWS, _REPEATED_BYTES // max(1, longest)))
    nested = any(leaf.path != leaf.name for leaf in _leaves(opened))
    for together in [[one] for one in groups] if nested else [list(groups)]:
        yield from opened.iter_batches(rows, row_groups=together, use_threads=False)


def _repeats_texts(kind: Any) -> bool:
    """Whether a type holds texts although dictionaries are asked for."""
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
    # What is long by its type, and lists, may be in the file once and in memory many times.
    widths = [max(1, (leaf.length + 7) // 8) for leaf in _leaves(opened)]
    words = sum(
        width * group.column(at).num_values for group in groups for at, width in enumerate(widths)
    )
    require_room((words,), 8, _TIMES_ROOM * max_bytes, where)


def _read(origin: Origin) -> Records:
    if origin.schema is not None:
        path, most = origin.path, origin.max_bytes
        return encode_parquet(path, origin.schema, most, limit=origin.limit).records
    return read_parquet(origin.path, origin.label_column, origin.max_bytes)


PART = SourcePart(
    name="parquet",
    read=_read,
    place="file",
    reads=("label_column",),
    faults=lambda at: [] if at.schema is not None else parquet_faults(at.path),
    tallies=lambda at, schema: encode_parquet(at.path, schema, at.max_bytes),
    by_schema="columns",
    source="the user's own data",
    needs="a file of the user's; pip install 'edgeveil[parquet]'",
    summary="A table, one record a row.",
    example="local_run: {data: {source: parquet, path: records.parquet}}",
)
