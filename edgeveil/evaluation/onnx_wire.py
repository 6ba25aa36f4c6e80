"""Reads protobuf's wire format as far as looking into an ONNX graph needs, and no further.

Stricter than protobuf: whatever two readers could take differently (a field of an unexpected
type, a single field given twice, groups, over-long numbers) is refused, so that what is read here
is what ONNX Runtime will run.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeveil.errors import DataError

MAX_FIELDS = 100_000  # of one message; a graph of plain layers has some hundreds
_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Field:
    """One field of a message: its number and its value; None for the fixed-size types."""

    number: int
    value: int | memoryview | None


def fields(raw: memoryview) -> list[Field]:
    """The fields of one message, in order. Raises DataError for anything out of form."""
    found: list[Field] = []
    at, end = 0, len(raw)
    while at < end:
        if len(found) == MAX_FIELDS:
            raise _malformed(f"a message has more than {MAX_FIELDS} fields")
        tag, at = _varint(raw, at, 5)
        number, kind = tag >> 3, tag & 7
        if not 1 <= number < 1 << 29:
            raise _malformed("a field's number is out of range")
        value: int | memoryview | None = None
        if kind == _VARINT:
            value, at = _varint(raw, at, 10)
        elif kind == _LENGTH:
            size, at = _varint(raw, at, 5)
            value, at = raw[at : at + size], at + size
        elif kind in (_I64, _I32):
            at += 8 if kind == _I64 else 4
        else:
            raise _malformed(f"a field has the wire type {kind}")
        if at > end:
            raise _malformed("a field ends past its message")
        found.append(Field(number, value))
    return found


def messages(parts: list[Field], number: int) -> list[memoryview]:
    """All values of a repeated field of messages or strings."""
    values = [field.value for field in parts if field.number == number]
    whole = [value for value in values if isinstance(value, memoryview)]
    if len(whole) != len(values):
        raise _malformed(f"field {number} has another type")
    return whole


def message(parts: list[Field], number: int, what: str) -> memoryview:
    """The one value of a field that must be there once."""
    found = messages(parts, number)
    if len(found) != 1:
        raise _malformed(f"it has {len(found)} fields '{what}' instead of 1")
    return found[0]


def text(parts: list[Field], number: int) -> str:
    """A string field, empty where it is left out; bytes that are no UTF-8 are kept apart."""
    found = messages(parts, number)
    if len(found) > 1:
        raise _malformed(f"field {number} is given twice")
    return bytes(found[0]).decode("utf-8", "surrogateescape") if found else ""


def number(parts: list[Field], number: int) -> int | None:
    """A whole-number field, None where it is left out."""
    found = [field.value for field in parts if field.number == number]
    if len(found) > 1 or not all(isinstance(value, int) for value in found):
        raise _malformed(f"field {number} is given twice or has another type")
    return found[0] if found and isinstance(found[0], int) else None


def varints(raw: memoryview) -> list[int]:
    """The numbers of a packed field, each below 2⁶⁴."""
    found, at = [], 0
    while at < len(raw):
        value, at = _varint(raw, at, 10)
        found.append(value % 2**64)
    return found


def _varint(raw: memoryview, at: int, longest: int) -> tuple[int, int]:
    """A number of base 128 at `at`, and where it ends; `longest` in bytes."""
    value = 0
    for index, byte in enumerate(raw[at : at + longest]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise _malformed("a number is cut off or too long")


def _malformed(what: str) -> DataError:
    return DataError(f"is no ONNX model: {what}", where="ONNX graph", fix="export or copy it again")
