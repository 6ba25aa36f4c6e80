"""Records and labels, with the checks of every source before memory is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError, RecordsError

MAX_BYTES = 2 << 30  # of one array in memory, as float32
OPAQUE = "OV"  # kinds of NumPy arrays that are never read from files: objects, structures


@dataclass(frozen=True, eq=False)
class Records:
    """Records of one device: `x` (n, ...) float32, `y` (n,) int64, immutable.

    `stored` (n, k) identifies each record as stored in its file, with a schema, or its person if
    the job names their column; `holders` (n,) numbers the device that holds each, of a simulated
    fleet's records in memory."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    stored: NDArray[np.float32] | None = None
    holders: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def places(self) -> NDArray[np.float32]:
        """Values (n, ...) that decide a record's split and rank: the record as stored."""
        return self.x if self.stored is None else self.stored

    def owners(self, unit: str) -> NDArray[np.int64] | None:
        """Return the number (n,) of the `unit` that each record belongs to; None: each its own.

        Records that identify no person belong to one shared person."""
        if unit == "record":
            return None
        if unit == "device" or self.stored is None:
            return np.zeros(len(self), np.int64)
        found = np.unique(canonical_rows(self.stored), axis=0, return_inverse=True)[1]
        return np.asarray(found.reshape(-1), np.int64)

    def at(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> Records:
        given = (self.x, self.y, self.stored, self.holders)
        return Records(*(None if one is None else one[chosen] for one in given))  # type: ignore[arg-type]


def grouped(owners: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the ascending indices of each owner's records."""
    order = np.argsort(owners, kind="stable")
    edges = np.flatnonzero(np.diff(owners[order])) + 1
    return np.split(order, edges) if len(order) else []


def require_file(path: Path | None, key: str) -> Path:
    """Return the path of an existing file. Raises DataError with the configuration `key`."""
    if path is None:
        raise DataError("no file is named", where=key, fix=f"set {key} to the file's path")
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "no such file"
        raise DataError(what, where=str(path), fix=f"check {key}")
    return path


def require_room(shape: Sequence[int], item_bytes: int, max_bytes: int, where: str) -> None:
    """Raise RecordsError if an array of `shape` would take more than `max_bytes`."""
    if any(axis < 0 for axis in shape):
        raise DataError(f"has the shape {shape}", where=where, fix="copy the file again")
    # Records become float32. An axis of 0 must not hide the size of the others.
    wanted = math.prod(max(axis, 1) for axis in shape) * max(item_bytes, 4)
    if wanted > max_bytes:
        what = f"holds {wanted} bytes of numbers, the limit is {max_bytes}"
        raise RecordsError(what, where=where, fix="use a smaller file for this device")


def as_records(x: NDArray[Any], y: NDArray[Any], where: str) -> Records:
    """Return records from numeric `x` (n, ...) and labels `y` (n,).

    Raises DataError for shapes, never for a value: participation must not depend on a record."""
    if x.shape == y.shape == (0,):  # empty lists
        x = x.reshape(0, 0)
    if x.dtype.kind == "V" or y.dtype.kind == "V":
        what = f"x has type {x.dtype}, y {y.dtype}"
        raise DataError(what, where=where, fix="store plain numbers")
    x, y = plain_numbers(x), plain_numbers(y)
    if x.ndim < 2:
        what = f"x has shape {x.shape}, wanted (records, ...)"
        raise DataError(what, where=where, fix="store one row for each record")
    if y.ndim != 1 or len(x) != len(y):
        what = f"x has shape {x.shape} and y {y.shape}"
        raise DataError(what, where=where, fix="store one label for each record")
    if x.dtype.kind in "iu" and x.dtype.itemsize > 4:
        # A missing value elsewhere makes an integer column float64: round the same way here.
        x = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # too large values become infinite
        values = np.ascontiguousarray(x, dtype=np.float32)
    return Records(values, whole_labels(y))


def plain_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Convert an array of any type to numbers, NaN for each other value."""
    kind = array.dtype.kind
    if kind == "O":
        values = [_number(value) for value in array.ravel()]
        return np.array(values, np.float64).reshape(array.shape)
    if kind in "buif":
        return array
    if kind == "c":
        return np.where(array.imag == 0, array.real, np.nan)
    if kind not in "US":
        return np.full(array.shape, np.nan)
    if kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    numbers = (number_in_text(str(text)) for text in array.ravel())
    return np.fromiter(numbers, np.float64, array.size).reshape(array.shape)


def _number(value: object) -> float:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, complex | np.complexfloating):
        return float(value.real) if value.imag == 0 else math.nan
    known = isinstance(value, str | int | float | Decimal | np.number | np.bool_)
    with suppress(ValueError):  # a whole number of more digits than Python prints
        return number_in_text(str(value)) if known else math.nan
    return math.nan


def number_in_text(text: str) -> float:
    """Convert a text as a numeric column or array would, else NaN."""
    with suppress(ValueError):
        number = complex(text.replace("_", "?"))  # Python reads 1_000 as a number
        return number.real if number.imag == 0 else math.nan
    return {"true": 1.0, "false": 0.0}.get(text.strip().lower(), math.nan)


def flat_rows(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return x.reshape(len(x), math.prod(x.shape[1:]))


def canonical_rows(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return x (n, ...) as (n, values per record), little-endian: equal numbers, equal bytes."""
    # Adding 0.0 turns -0.0 into 0.0.
    return np.ascontiguousarray(flat_rows(x) + np.float32(0.0), dtype="<f4")


def whole_labels(y: NDArray[Any]) -> NDArray[np.int64]:
    """Return labels (n,) as int64; fractions and huge values become -1, outside every class."""
    if y.dtype.kind == "u":
        return np.where(y > 2**53, -1, y.astype(np.int64))
    if y.dtype.kind in "bi":
        return y.astype(np.int64)
    wide = y.astype(np.float64)
    whole = np.isfinite(wide) & (wide == np.trunc(wide)) & (np.abs(wide) <= 2**53)
    return np.asarray(np.where(whole, wide, -1), dtype=np.int64)
