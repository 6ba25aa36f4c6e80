"""CSV files of numbers: one record a line, the label in the last or a named column."""

from __future__ import annotations

import csv
from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_core.algorithms.base import Records
from fl_core.data.limits import MAX_BYTES, as_records, require_file
from fl_core.errors import DataError
from fl_core.registry import nearest


def read_csv(
    path: Path | None, label_column: str | None = None, max_bytes: int = MAX_BYTES
) -> Records:
    """Records with x (n, columns-1); the label is the last column or the one named.

    A header is recognised by a cell of its first line that is no number. An empty cell is a
    missing value (NaN), an empty label is -1: such records are dropped when learning. Raises
    DataError with file, line and column.
    """
    file = require_file(path, "data.path")
    header, table = read_matrix(file, max_bytes)
    column = _label_index(header, table.shape[1], label_column, file)
    return as_records(np.delete(table, column, axis=1), table[:, column], where=str(file))


def read_matrix(
    file: Path, max_bytes: int = MAX_BYTES
) -> tuple[list[str] | None, NDArray[np.float64]]:
    """(header or None, table (n, columns) float64) of a CSV file. Raises DataError."""
    # A cell takes at least two bytes of text and eight in memory.
    if 4 * file.stat().st_size > max_bytes:
        raise DataError(
            f"is larger than {max_bytes // 4} bytes",
            where=str(file),
            fix="store the records as NPZ, or fewer of them",
        )
    header: list[str] | None = None
    width, values = 0, array("d")
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            for row in reader:
                if not row or row == [""]:
                    continue
                if not width:
                    width = len(row)
                    if any(_number(cell) is None for cell in row):
                        header = [cell.strip() for cell in row]
                        continue
                _append(values, row, width, f"{file}:{reader.line_num}")
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"is not readable CSV: {error}", where=str(file), fix="save it as UTF-8 CSV"
        ) from error
    if not values:
        raise DataError("holds no record", where=str(file), fix="add one line for each record")
    return header, np.frombuffer(values, dtype=np.float64).reshape(-1, width)


def _append(values: array[float], row: list[str], width: int, where: str) -> None:
    if len(row) != width:
        raise DataError(
            f"{len(row)} columns, the first line has {width}", where=where, fix="correct the line"
        )
    for column, cell in enumerate(row, start=1):
        number = _number(cell)
        if number is None:
            raise DataError(
                f"column {column} holds text where a number belongs",  # the text may be private
                where=where,
                fix="write a number, or leave it empty for a missing value",
            )
        values.append(number)


def _number(cell: str) -> float | None:
    text = cell.strip()
    if not text:
        return float("nan")
    try:
        return float(text)
    except ValueError:
        return None


def _label_index(header: list[str] | None, width: int, name: str | None, file: Path) -> int:
    if width < 2:
        raise DataError(
            "has a single column", where=str(file), fix="give each line its values and a label"
        )
    if name is None:
        return width - 1
    if header is None:
        raise DataError(
            f"has no header line, so column '{name}' is unknown",
            where=f"{file}:1",
            fix="add a header or put the label in the last column",
        )
    if name not in header:
        raise DataError(f"has no column '{name}'", where=f"{file}:1", fix=nearest(name, header))
    return header.index(name)
