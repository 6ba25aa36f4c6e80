"""Arrays x and y: NPZ files, or the result of an owner's function (`python: module:name`)."""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.encoding import NO_CLASS, asked_pictures, pictures
from edgeveil.data.records import (
    MAX_BYTES,
    OPAQUE,
    Records,
    as_records,
    flat_rows,
    number_in_text,
    plain_numbers,
    require_file,
    require_room,
    whole_labels,
)
from edgeveil.data.schema import DataSchema
from edgeveil.errors import OF_OTHERS_CODE, DataError, RecordsError
from edgeveil.parts.part import import_function
from edgeveil.parts.sources.source import Origin, SourcePart

# zipfile raises RuntimeError for an encrypted member or an unknown compression.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, RuntimeError)

_GREY = {1: (1.0,), 3: (0.299, 0.587, 0.114)}  # by channels, as Pillow's (ITU-R 601)
_HEADER_BYTES = 10_000
# By version: bytes of the header's length, and the reader of the header.
_READERS = {
    (1, 0): (2, np.lib.format.read_array_header_1_0),
    (2, 0): (4, np.lib.format.read_array_header_2_0),
}


def read_npz(origin: Origin) -> Records:
    """Return records from `x` (n, ...) and `y` (n,); with a schema, pictures and names or numbers.

    Raises DataError; never loads a pickle."""
    file, schema = require_file(origin.path, "data.path"), origin.schema
    x, y = npz_array(file, "x", origin.max_bytes), npz_array(file, "y", origin.max_bytes)
    if schema is None:
        return as_records(x, y, where=str(file))
    return picture_records(x, y, schema, str(file))


def picture_records(x: NDArray[Any], y: NDArray[Any], schema: DataSchema, where: str) -> Records:
    """Return pictures x (n, ...) and names or numbers y (n,) by a schema; raises DataError."""
    plain = as_records(x, _by_name(y, schema.label.numbers), where)
    if schema.raw:
        asked = asked_pictures(schema, array_parts(plain.x), lambda numbers: _by_name(y, numbers))
        return Records(asked, np.zeros(len(asked), np.int64), flat_rows(plain.x))
    return Records(pictures(schema, plain.x, where), plain.y, flat_rows(plain.x))


def array_parts(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return PICTURE_PARTS (n, 4) of arrays (n, h, w), with channels first or last, or of squares.

    Of another shape only the brightness is known."""
    shape, side = x.shape[1:], math.isqrt(x.shape[1])
    if shape == (side * side,):
        shape = (side, side)
    elif len(shape) == 3 and shape[2] in _GREY and shape[0] not in _GREY:
        x, shape = np.moveaxis(x, -1, 1), (shape[2], *shape[:2])
    grey = _GREY.get(shape[0] if len(shape) == 3 else 1, (1.0,))
    known = len(shape) == 2 or (len(shape) == 3 and shape[0] in _GREY)
    channels, height, width = (1, *shape)[-3:] if known else [math.nan] * 3
    found, each = np.empty((len(x), 4)), x[:1].size // len(grey) or 1
    for row, one in zip(found, flat_rows(x), strict=True):  # apart: no sum depends on other records
        planes = one.astype(np.float64).reshape(len(grey), -1)
        levels = [weight * plane.sum() / each for weight, plane in zip(grey, planes, strict=True)]
        row[:] = height, width, channels, sum(levels)
    return found


def _by_name(y: NDArray[Any], numbers: dict[str, int]) -> NDArray[np.int64]:
    """Return labels y as class numbers; 1, 1.0, True and their texts are one label."""
    classes: dict[str | float, int] = {}
    for name, number in numbers.items():
        classes.setdefault(_label(name, number_in_text(name)), number)
    counted = not any(isinstance(name, float) for name in classes)
    texts = np.char.decode(y, "utf-8", "replace") if y.dtype.kind == "S" else y
    values = plain_numbers(y)
    whole = whole_labels(values) if counted else np.full(y.shape, NO_CLASS)
    cells = zip(texts.ravel(), values.ravel().tolist(), whole.ravel().tolist(), strict=True)
    labels = [classes.get(_label(str(text), value), other) for text, value, other in cells]
    return np.array(labels, np.int64).reshape(y.shape)


def _label(text: str, value: float) -> str | float:
    return text.strip() if math.isnan(value) else float(value)


def npz_array(file: Path, name: str, max_bytes: int = MAX_BYTES) -> NDArray[Any]:
    """Return array `name` of an NPZ file, of any dtype, after a check of its header."""
    where = f"{file}:{name}"
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.namelist()
            if f"{name}.npy" not in members:
                what = f"has no array '{name}', only: {', '.join(members[:8]) or 'nothing'}"
                fix = f"save it with numpy.savez(file, {name}=…)"
                raise DataError(what, where=str(file), fix=fix)
            with archive.open(f"{name}.npy") as member:
                return _read_npy(member, where, max_bytes)
    except _UNREADABLE as error:
        what = f"is not a readable NPZ array: {error}"
        raise DataError(what, where=where, fix="save it with numpy.savez") from error


def npy_array(file: Path, max_bytes: int = MAX_BYTES) -> NDArray[Any]:
    try:
        with file.open("rb") as stream:
            return _read_npy(stream, str(file), max_bytes)
    except (ValueError, OSError, EOFError) as error:
        what = f"is not a readable NPY array: {error}"
        raise DataError(what, where=str(file), fix="save it with numpy.save") from error


def _read_npy(stream: IO[bytes], where: str, max_bytes: int) -> NDArray[Any]:
    shape, fortran, dtype = _header(stream)
    if dtype.kind in OPAQUE:
        # One None or integer beyond 64 bits makes the whole array dtype object.
        kind = RecordsError if dtype.kind == "O" else DataError
        raise kind(f"holds {dtype}, not numbers", where=where, fix="store plain numbers")
    require_room(shape, dtype.itemsize, max_bytes, where)
    count = int(np.prod(shape, dtype=np.int64))
    content = stream.read(count * dtype.itemsize + 1)
    if len(content) != count * dtype.itemsize:
        raise ValueError(f"{len(content)} bytes of data, but its header has shape {shape}")
    flat = np.frombuffer(content, dtype=dtype, count=count)
    return flat.reshape(shape, order="F" if fortran else "C")


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version not in _READERS:
        raise ValueError(f"unknown NPY version {version}")
    length_bytes, read = _READERS[version]
    length = stream.read(length_bytes)
    size = int.from_bytes(length, "little")
    if size > _HEADER_BYTES:  # NumPy alone reads up to 4 GiB
        raise ValueError(f"an NPY header of {size} bytes")
    try:
        return read(io.BytesIO(length + stream.read(size)))
    except (tokenize.TokenError, SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"the NPY header is damaged ({type(error).__name__})") from None


def read_python(origin: Origin) -> Records:
    where = f"data.source python: {origin.function or ''}"
    target = origin.function or ""
    if not all(target.partition(":")):
        raise DataError("names no function", where=where, fix="write python: module:function")
    function = import_function(target, where)
    try:
        found = function()
    except OF_OTHERS_CODE as error:  # the owner's code may raise anything
        what = f"raised {type(error).__name__}: {error}"
        raise RecordsError(what, where=where, fix="correct the function") from error
    return given_records(found, where, origin.max_bytes)


def given_records(found: object, where: str, max_bytes: int = MAX_BYTES) -> Records:
    """Return an owner's (x, y) or Records, checked; raises DataError that names `where`."""
    if isinstance(found, Records):
        found = (found.x, found.y)
    if not isinstance(found, tuple) or len(found) != 2:
        raise DataError("did not return (x, y)", where=where, fix="return two arrays")
    if any(isinstance(part, list | tuple) for part in found):
        fix = "return two arrays, numpy.asarray(x, numpy.float32) and numpy.asarray(y)"
        raise DataError("returned a list; return two arrays", where=where, fix=fix)
    try:
        x, y = np.asarray(found[0]), np.asarray(found[1])
    except ValueError as error:
        raise DataError(str(error), where=where, fix="return two arrays of numbers") from error
    require_room(x.shape, 4, max_bytes, where)
    return as_records(x, y, where)


PARTS = (
    SourcePart(
        name="npz",
        read=read_npz,
        place="file",
        by_schema="image",
        source="the user's own data",
        needs="a file of the user's",
        summary="NumPy's arrays x and y.",
        example="local_run: {data: {source: npz, path: records.npz}}",
    ),
    SourcePart(
        name="python",
        read=read_python,
        source="the user's own code",
        needs="`python: module:function`, installed",
        summary="What a function returns, two arrays (x, y).",
        example='local_run: {data: {source: "python: my_records:load"}}',
    ),
)
