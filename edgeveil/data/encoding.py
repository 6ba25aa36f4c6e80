"""Encode records as numbers by a schema, the same on every device.

The result depends on schema and record alone, and no record fails: an unreadable value counts as
missing; a row of wrong width or unknown label is dropped. Only a missing column is an error.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.config.data import TableForm
from edgeveil.crypto.labels import RECORD_STORED, context
from edgeveil.data.anomaly import ANOMALOUS, UNKNOWN, UNLABELLED
from edgeveil.data.records import MAX_BYTES, Records, require_room
from edgeveil.data.schema import DATE_PARTS, PICTURE_PARTS, PIXEL_RANGE, Column, DataSchema
from edgeveil.data.split import RecordLimit
from edgeveil.data.table_form import date_in, number_reader
from edgeveil.data.text import (
    FIRST_TOKEN,
    LETTERS,
    UNKNOWN_TOKEN,
    Tokens,
    first_words,
    hashed_text,
    hashed_tokens,
    vocabulary_tokens,
)
from edgeveil.data.windows import WindowRows
from edgeveil.errors import DataError
from edgeveil.registry import nearest

_DIGEST_BYTES = 32
NO_CLASS = -1
_WHOLE = 2.0**53
_DIGITS = 400  # of a decimal that is written out; float64 has 309
UNREADABLE = "\ufffd"  # for a list, invalid UTF-8, or a date out of range
_MONTHS, _WEEK, _HOURS = 12, 7, 24  # periods; an hour of 24 is missing
_SPARE_ROWS = 64  # rows beyond a limit, so that not each further row needs a sort


@dataclass(frozen=True)
class ColumnTally:
    name: str
    rows: int
    missing: int  # empty, or one of the schema's `missing`
    unreadable: int  # not a number in a number column: read as missing
    clipped: int  # numbers outside the public range, texts that are too long
    unknown: int  # categories not in the public list, texts without any known token


@dataclass(frozen=True)
class Encoded:
    """Records and the tallies of their columns; `unknown_labels` are dropped in learning."""

    records: Records
    columns: tuple[ColumnTally, ...] = ()
    unknown_labels: int = 0
    labelled: bool = True
    readable: NDArray[np.bool_] | None = None  # records with a value in a column; None: all
    remarks: tuple[str, ...] = ()  # for the owner, one line for each


@dataclass(frozen=True, eq=False)
class Given:
    """All records of a simulated fleet in memory, and the cloud's test set if it is another."""

    encoded: Encoded
    test: Records | None = None


def cell_text(value: Any) -> str:
    """Return a value as cell text, independent of the file's format and of other cells' types."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < _DIGITS:
        places = format(value, "f")
        if value != value.to_integral_value():
            return places.rstrip("0")
        value = int(value)
    if isinstance(value, int) and abs(value) >= _WHOLE:
        try:
            value = float(value)
        except OverflowError:
            value = math.inf if value > 0 else -math.inf
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _WHOLE else repr(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        return str(value).removesuffix(" 00:00:00")
    return UNREADABLE if isinstance(value, list | tuple | dict) else str(value)


class RowEncoder:
    """Encodes rows of text; `names` are the file's columns in order.

    `labelled` None: read labels if present. All rows are tallied, the `limit` of them are kept.
    Raises DataError for a missing or duplicate column."""

    def __init__(
        self,
        schema: DataSchema,
        names: Sequence[str],
        where: str,
        *,
        labelled: bool | None = True,
        max_bytes: int = MAX_BYTES,
        limit: RecordLimit | None = None,
        form: TableForm | None = None,
    ) -> None:
        self._schema, self._where, self._max_bytes = schema, where, max_bytes
        self._limit = limit
        self._most_held = limit.count + limit.count // 4 + _SPARE_ROWS if limit else 0
        self._width, place = len(names), {name: at for at, name in enumerate(names)}
        label, required = schema.label.column or "", bool(labelled)
        if labelled is None or (labelled and schema.anomaly):
            labelled = label in place
        labelled = labelled and not schema.raw
        wanted = [name for column in schema.columns or () for name in column.names]
        windows = schema.windows
        wanted += () if windows is None else windows.columns
        person = schema.person if required else None
        wanted += [] if person is None else [person]
        if labelled:
            wanted.append(label)
        lacking = [name for name in wanted if name not in place]
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            key = "data.person" if lacking[0] == person else "data.schema"
            what = f"has no column '{lacking[0]}'{more}, which {key} names"
            raise DataError(what, where=where, fix=nearest(lacking[0], list(names)))
        counts = Counter(names)
        twice = next((name for name in wanted if counts[name] > 1), None)
        if twice is not None:
            what = f"names two columns '{twice}', which data.schema reads"
            raise DataError(what, where=where, fix="give each column its own name")
        missing = self._missing = frozenset(("", *schema.missing))
        form = form or TableForm()
        self._columns = [
            (place[name], _reader(name, column, missing, form, raw=schema.raw))
            for column in schema.columns or ()
            for name in column.names
        ]
        self._label = place[label] if labelled else None
        self._label_of = _label_reader(schema, number_reader(form))
        self._dropped = UNKNOWN if schema.anomaly else NO_CLASS
        self._labels, self._broken, self._digests = array("q"), array("b"), bytearray()
        self._person = None if person is None else place[person]
        self._persons = bytearray()
        self._windows = None if windows is None else WindowRows(windows, place)

    def add(self, cells: Sequence[str], stored: Sequence[str] | None = None) -> str:
        """Add a row; return its problem or "". Raises RecordsError for too many bytes.

        `stored` identifies the record in its file; by default its cells do."""
        self._make_room(len(self._labels) + 1)
        whole, stored = len(cells) == self._width, cells if stored is None else stored
        if self._person is not None:
            self._persons += self._person_digest(cells[self._person] if whole else "")
        self._digests += stored_digest(cell.encode("utf-8", "surrogatepass") for cell in stored)
        self._broken.append(not whole)
        for at, column in self._columns:
            column.add(cells[at].strip() if whole else "")
        label = 0 if whole and self._schema.raw else NO_CLASS
        if whole and self._label is not None:
            label = self._label_of(cells[self._label].strip())
        self._labels.append(label)
        problem = "" if self._windows is None else self._windows.add(cells if whole else None)
        if not whole:
            return f"{len(cells)} columns instead of {self._width}"
        if problem:
            return problem
        if label == self._dropped and self._label is not None:
            is_class = self._schema.target is None
            what = "none of the classes of" if is_class else "no number, as"
            return f"the label is {what} data.schema"
        return ""

    def encoded(self) -> Encoded:
        """Return all rows so far, up to the limit. Raises as `add`."""
        self._keep_limit()
        self._make_room(len(self._labels))
        rows = len(self._labels)
        broken = np.frombuffer(self._broken, np.int8).astype(np.bool_)
        x, at = np.zeros((rows, self._schema.width), np.float32), 0
        for _, column in self._columns:
            column.fill(x[:, at : at + column.width])
            at += column.width
        x[broken] = np.nan
        known = np.array([column.known() for _, column in self._columns], np.bool_)
        labels = np.array(self._labels, np.int64)
        found = Encoded(
            Records(x, labels, self._places()),
            tuple(column.tally(broken) for _, column in self._columns),
            int((labels[~broken] == self._dropped).sum()) if self._label is not None else 0,
            self._label is not None,
            np.asarray(known.any(axis=0)),
        )
        return found if self._windows is None else self._windowed(found, self._windows)

    def _windowed(self, found: Encoded, rows: WindowRows) -> Encoded:
        """Return windows in place of the rows, up to the limit. Raises as `add`."""
        raw, windows = np.frombuffer(self._digests, np.uint8).reshape(-1, _DIGEST_BYTES), rows.form
        all_of_them = rows.assembled(raw)
        stored = bytearray().join(stored_digest([raw[own].tobytes()]) for own in all_of_them.own)
        places = digest_rows(stored)
        if self._person is not None:  # of the group, and so of all rows
            places = self._places()[[own[0] for own in all_of_them.own]]
        limit = self._limit
        chosen = np.arange(len(places)) if limit is None else limit.kept(places)
        require_room((len(chosen), *self._schema.input_shape), 4, self._max_bytes, self._where)
        members, x = all_of_them.rows(chosen, windows.length), found.records.x
        labels = found.records.y[members]
        y = labels[:, -1] if windows.label == "last" else labels.max(axis=1, initial=UNKNOWN)
        readable = None
        if found.readable is not None:
            readable = np.asarray(found.readable[members].any(axis=1))
        few = f"{all_of_them.left_out} windows have fewer than half of their readings: left out"
        return replace(
            found,
            records=Records(x[members], y, places[chosen]),
            unknown_labels=int((y == self._dropped).sum()) if self._label is not None else 0,
            readable=readable,
            remarks=(few,) if all_of_them.left_out else (),
        )

    def _make_room(self, rows: int) -> None:
        if self._limit is None or self._windows is not None:
            each = self._schema.width + (0 if self._windows is None else _DIGEST_BYTES)
            require_room((rows, each), 4, self._max_bytes, self._where)
        elif rows > self._most_held:
            self._keep_limit()

    def _keep_limit(self) -> None:
        limit = None if self._windows is not None else self._limit  # of windows, not of readings
        if limit is None or len(self._labels) <= limit.count:
            return
        digests, places = digest_rows(self._digests), self._places()
        chosen = limit.kept(places)
        if self._person is not None:
            self._persons = bytearray(places[chosen].astype(np.uint8).tobytes())
        self._labels = _chosen(self._labels, chosen)
        self._broken = _chosen(self._broken, chosen)
        self._digests = bytearray(digests[chosen].astype(np.uint8).tobytes())
        for _, column in self._columns:
            column.keep(chosen)

    def _places(self) -> NDArray[np.float32]:
        return digest_rows(self._digests if self._person is None else self._persons)

    def _person_digest(self, cell: str) -> bytes:
        """Return the digest of a person; all records without one have that of one person."""
        name = "" if cell.strip() in self._missing else cell.strip()
        return stored_digest([name.encode("utf-8", "surrogatepass")])


def _chosen(values: array[Any], chosen: NDArray[np.int64], width: int = 1) -> array[Any]:
    rows = np.frombuffer(values, values.typecode).reshape(-1, width)
    return array(values.typecode, rows[chosen].tobytes())


def _label_reader(schema: DataSchema, number: Callable[[str], float]) -> Callable[[str], int]:
    target, numbers = schema.target, schema.label.numbers
    missing = frozenset(("", *schema.missing))
    if schema.anomaly:
        other = UNKNOWN if schema.label.anomalous else ANOMALOUS
        return lambda cell: UNLABELLED if cell in missing else numbers.get(cell, other)
    if target is None:
        return lambda cell: numbers.get(cell, NO_CLASS)

    def label(cell: str) -> int:
        found = None if cell in missing else target.label(number(cell))
        return NO_CLASS if found is None else found

    return label


class _ColumnReader:
    def __init__(
        self, name: str, column: Column, missing: frozenset[str], form: TableForm, *, raw: bool
    ) -> None:
        self._name, self._column, self._missing, self._raw = name, column, missing, raw
        self.width, category = column.values(raw=raw), column.category or ()
        self._unknown = len(category)
        self._index = {text: at for at, text in enumerate(category)}
        self._form, self._number = form, number_reader(form)
        if column.part == "characters":
            self._number = lambda cell: float(len(cell))
        elif column.part is not None:
            self._number = self._date_part
        self._cells = array("d")  # numbers, indices of categories, or packed dates
        self._gaps = self._unreadable = 0

    def add(self, cell: str) -> None:
        gap = cell in self._missing
        self._gaps += gap
        if self._column.category is not None:
            at_gap = math.nan if self._raw else self._unknown
            value = float(at_gap if gap else self._index.get(cell, self._unknown))
        else:
            read = self._packed_date if self._column.date else self._number
            value = math.nan if gap else read(cell)
            self._unreadable += not gap and math.isnan(value)
        self._cells.append(value)

    def _date_part(self, cell: str) -> float:
        found = dict(zip(DATE_PARTS, date_in(cell, self._form) or (), strict=False))
        value = found.get(self._column.part or "", math.nan)
        return math.nan if self._column.part == "hour" and value == _HOURS else float(value)

    def _packed_date(self, cell: str) -> float:
        found = date_in(cell, self._form)
        if found is None:
            return math.nan
        year, month, weekday, hour = found
        months = year * _MONTHS + month - 1
        return float((months * _WEEK + weekday) * (_HOURS + 1) + hour)

    def keep(self, chosen: NDArray[np.int64]) -> None:
        self._cells = _chosen(self._cells, chosen)

    def known(self) -> NDArray[np.bool_]:
        """Return for each row whether its cell was read: no gap, no unknown category."""
        values = np.frombuffer(self._cells)
        of_category = self._column.category is not None
        unread = of_category and not self._raw
        return np.asarray(values != self._unknown if unread else ~np.isnan(values))

    def fill(self, x: NDArray[np.float32]) -> None:
        column, values = self._column, np.frombuffer(self._cells)
        if self._raw:
            with np.errstate(over="ignore"):  # too large values become infinite
                x[:, 0] = values
            return
        if column.category is not None:
            x[np.arange(len(x)), values.astype(np.int64)] = 1
            return
        known = ~np.isnan(values)
        if column.date:
            self._fill_date(x, np.where(known, values, 0).astype(np.int64), known)
            return
        low, high = column.number or (0.0, 1.0)
        within = np.clip(np.where(known, values, low), low, high)
        if column.bins:
            places = np.searchsorted(np.array(column.bins), within, side="right")
            x[np.arange(len(x)), np.where(known, places, len(column.bins) + 1)] = 1
            return
        scaled = (within - low) / (high - low) * 2.0 - 1.0
        x[:, 0] = np.where(known, scaled, 0.0)

    def _fill_date(
        self, x: NDArray[np.float32], packed: NDArray[np.int64], known: NDArray[np.bool_]
    ) -> None:
        days, hour = np.divmod(packed, _HOURS + 1)
        months, weekday = np.divmod(days, _WEEK)
        year, month = np.divmod(months, _MONTHS)
        of = {"month": (month, _MONTHS), "weekday": (weekday, _WEEK), "hour": (hour, _HOURS)}
        (low, high), places = self._column.years or (0, 1), list[NDArray[Any]]()
        for part in self._column.date:
            if part == "year":
                places.append(known * ((np.clip(year, low, high) - low) / (high - low) * 2.0 - 1.0))
                continue
            value, period = of[part]
            there, angle = known & (value < period), value * (2 * math.pi / period)
            places += [there * np.sin(angle), there * np.cos(angle)]
        x[:] = np.column_stack(places)

    def tally(self, broken: NDArray[np.bool_]) -> ColumnTally:
        rows, gaps = int((~broken).sum()), self._gaps - int(broken.sum())
        clipped, unknown, values = 0, 0, np.frombuffer(self._cells)
        ends = self._column.number
        if self._column.category is not None:
            unknown = int((values == self._unknown).sum()) - self._gaps * (not self._raw)
        elif self._column.date:
            values = values // (_MONTHS * _WEEK * (_HOURS + 1))
            ends = self._column.years
        if ends is not None:
            clipped = int(((values < ends[0]) | (values > ends[1])).sum())
        return ColumnTally(self._name, rows, gaps, self._unreadable, clipped, unknown)


class _TextReader:
    """Texts of one column as hashed counts or token ids, in few bytes until all rows are read."""

    def __init__(self, name: str, column: Column, missing: frozenset[str]) -> None:
        self._name, self._missing, self.width = name, missing, column.width
        self._text, self._tokens = column.text, column.tokens or Tokens()
        self._ids = {one: at for at, one in enumerate(self._tokens.vocabulary, FIRST_TOKEN)}
        self._cells = array("i" if self._text is None else "b")
        self._gaps = self._cut = self._unknown = 0

    def add(self, cell: str) -> None:
        gap = cell in self._missing
        cell = "" if gap else cell
        self._gaps += gap
        if self._text is not None:
            self._cut += len(cell) > LETTERS
            self._cells.frombytes(hashed_text(cell, self._text).tobytes())
            return
        most, buckets = self.width + 1, self._tokens.buckets
        if buckets is not None:
            ids = hashed_tokens(cell, most, buckets)
        else:
            ids = vocabulary_tokens(cell, most, self._ids)
        self._cut += len(ids) == most
        self._unknown += bool(ids) and max(ids) == UNKNOWN_TOKEN
        self._cells.extend((*ids, *[0] * most)[: self.width])

    def keep(self, chosen: NDArray[np.int64]) -> None:
        self._cells = _chosen(self._cells, chosen, self.width)

    def known(self) -> NDArray[np.bool_]:
        """Return for each row whether its text has any word."""
        rows = np.frombuffer(self._cells, self._cells.typecode).reshape(-1, self.width)
        return np.asarray((rows != 0).any(axis=1))

    def fill(self, x: NDArray[np.float32]) -> None:
        rows = np.frombuffer(self._cells, self._cells.typecode).reshape(x.shape)
        np.divide(rows, np.float32(self._text.cap if self._text else 1), out=x, casting="same_kind")

    def tally(self, broken: NDArray[np.bool_]) -> ColumnTally:
        rows, gaps = int((~broken).sum()), self._gaps - int(broken.sum())
        return ColumnTally(self._name, rows, gaps, 0, self._cut, self._unknown)


class _BytesReader:
    """The first bytes of the texts of one column, or of their words, NaN if missing."""

    def __init__(self, name: str, column: Column, missing: frozenset[str]) -> None:
        self._name, self._missing, self.width = name, missing, column.width
        self._bytes, self._words = column.first_bytes or 1, column.words
        self._cells = array("h")
        self._gaps = self._cut = 0

    def add(self, cell: str) -> None:
        gap = cell in self._missing
        parts = (cell,) if self._words is None else first_words(cell, self._words)
        found = [one.encode("utf-8", "replace") for one in (() if gap else parts)]
        self._gaps += gap
        self._cut += any(len(one) > self._bytes for one in found)
        padded = b"".join(one[: self._bytes].ljust(self._bytes, b"\0") for one in found)
        self._cells.extend((*padded, *[-1] * (self.width - len(padded))))

    def keep(self, chosen: NDArray[np.int64]) -> None:
        self._cells = _chosen(self._cells, chosen, self.width)

    def known(self) -> NDArray[np.bool_]:
        return np.asarray(np.frombuffer(self._cells, "h").reshape(-1, self.width)[:, 0] >= 0)

    def fill(self, x: NDArray[np.float32]) -> None:
        values = np.frombuffer(self._cells, "h").reshape(x.shape)
        x[:] = np.where(values < 0, np.nan, values)

    def tally(self, broken: NDArray[np.bool_]) -> ColumnTally:
        rows, gaps = int((~broken).sum()), self._gaps - int(broken.sum())
        return ColumnTally(self._name, rows, gaps, 0, self._cut, 0)


def _reader(
    name: str, column: Column, missing: frozenset[str], form: TableForm, *, raw: bool = False
) -> _ColumnReader | _TextReader | _BytesReader:
    if column.first_bytes is not None:
        return _BytesReader(name, column, missing)
    if column.text is not None or column.tokens is not None:
        return _TextReader(name, column, missing)
    return _ColumnReader(name, column, missing, form, raw=raw)


def stored_digest(parts: Iterable[bytes]) -> bytes:
    """Return the SHA-256 of a stored record: a row's cells, or a file's bytes."""
    return hashlib.sha256(context(RECORD_STORED, *parts)).digest()


def digest_rows(digests: bytes | bytearray) -> NDArray[np.float32]:
    """Return concatenated digests as (n, 32), one byte per value, for `Records.stored`."""
    rows = np.frombuffer(bytes(digests), np.uint8).reshape(-1, _DIGEST_BYTES)
    return rows.astype(np.float32)


def asked_pictures(
    schema: DataSchema, parts: NDArray[Any], classes: Callable[[dict[str, int]], Iterable[int]]
) -> NDArray[np.float32]:
    """Return what a `raw` schema asks of pictures (n, columns), as a table's values are.

    `parts` (n, 4) are PICTURE_PARTS, NaN for an unreadable picture; `classes` returns each
    picture's class by the number of its name, NO_CLASS for another."""
    x = np.empty((len(parts), schema.width), np.float32)
    for at, column in enumerate(schema.columns or ()):
        if column.part in PICTURE_PARTS:
            x[:, at] = parts[:, PICTURE_PARTS.index(column.part)]
            continue
        numbers = {name: number for number, name in enumerate(column.category or ())}
        x[:, at] = [len(numbers) if one == NO_CLASS else one for one in classes(numbers)]
    return x


def pictures(schema: DataSchema, x: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    """Convert pictures (n, h, w), (n, 3, h, w) or (n, h, w, 3) to the schema's form."""
    image = schema.image
    if image is None:
        what = "the job's schema has columns, and an NPZ file does not"
        raise DataError(what, where=where, fix="store CSV or Parquet")
    shape, (low, high) = schema.input_shape, image.values
    if len(shape) == 3 and x.shape[1:] == (*shape[1:], shape[0]):
        x = np.moveaxis(x, -1, 1)
    if x.shape[1:] != shape and x.shape != (0, 0):
        what = f"holds records of shape {list(x.shape[1:])}, data.schema requires {list(shape)}"
        fix = "correct image.size and image.channels, or the file"
        raise DataError(what, where=where, fix=fix)
    x = x.reshape(len(x), *shape)
    if image.values == PIXEL_RANGE:
        return np.asarray(np.clip(x, np.float32(low), np.float32(high)))
    wide = (np.clip(x.astype(np.float64), low, high) - low) / (high - low) * PIXEL_RANGE[1]
    return np.ascontiguousarray(wide, np.float32)
