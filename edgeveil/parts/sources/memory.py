"""Records in memory: arrays, tables, dicts, data sets of torch and Hugging Face (`memory`).

A table with a job's schema is encoded cell by cell as a file's rows are, so that the same table
gives the same records as a DataFrame, as dicts and as a file. Libraries are imported only for
objects of theirs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.encoding import NO_CLASS, Encoded, RowEncoder, asked_pictures, cell_text
from edgeveil.data.records import MAX_BYTES, Records, as_records, require_room
from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError, needs_extra
from edgeveil.parts.sources.arrays import picture_records
from edgeveil.parts.sources.images import encode_files, stored_pictures
from edgeveil.parts.sources.source import Origin, SourcePart
from edgeveil.parts.sources.tables import column_numbers, column_texts, holds_numbers
from edgeveil.registry import nearest

_NO_TABLE = "pass a DataFrame, an Arrow table, dicts, a data set, or arrays (X, y)"
_UNPACKED = {  # expressions of the records that an object gives
    "torch.DataLoader": "{0}.dataset",
    "datasets.DatasetDict": "{0}['train']",
    "datasets.IterableDatasetDict": "{0}['train']",
    "datasets.IterableDataset": "datasets.Dataset.from_list(list({0}), features={0}.features)",
}
_ROWS = 4096  # that are texts at a time
_TIMES_ROOM = 4  # largest ratio of texts to `max_bytes`
_CLASSES = b"huggingface"  # key of an Arrow schema's metadata with the names of class numbers


@dataclass(frozen=True)
class Frame:
    """A table in memory; each column is an Arrow array or a list of values, of equal length.

    `label` is the name of the column with the y of a pair (X, y), or empty; `classes` are names of
    class numbers by column."""

    names: list[str]
    columns: list[Any]
    label: str = ""
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def column(self, name: str, where: str) -> Any:
        """Return a column by name; raises DataError with the nearest name."""
        if name not in self.names:
            raise DataError(f"has no column '{name}'", where=where, fix=nearest(name, self.names))
        return self.columns[self.names.index(name)]

    def without(self, names: Sequence[str]) -> Frame:
        kept = [at for at, name in enumerate(self.names) if name not in names]
        columns = [self.columns[at] for at in kept]
        return replace(self, names=[self.names[at] for at in kept], columns=columns)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield all rows as text, with the names of classes; no cell raises."""
        for start in range(0, len(self), _ROWS):
            part = [column[start : start + _ROWS] for column in self.columns]
            yield from zip(*map(self.text, self.names, part), strict=True)

    def text(self, name: str, column: Any) -> list[str]:
        """Return the cells of one of its columns as text."""
        found = _texts(column)
        if name not in self.classes:
            return found
        names = {str(at): text for at, text in enumerate(self.classes[name])}
        return [names.get(text, text) for text in found]


@dataclass(frozen=True)
class Arrays:
    """Records x (n, ...), and labels y (n,) if given."""

    x: NDArray[Any]
    y: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.x)


def opened(data: Any, where: str = "data") -> Frame | Arrays:
    """Return data in memory as a table, or as arrays. Raises DataError for another object.

    `data` is a DataFrame, an Arrow table, a mapping of columns, one record or more as mappings, a
    data set of torch or Hugging Face, an array x, or a pair (X, y) of these and labels."""
    if isinstance(data, tuple) and len(data) == 2:
        return _with_labels(opened(data[0], where), data[1], where)
    for kind in type(data).__mro__:
        if way := _UNPACKED.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}"):
            raise DataError(f"is {kind.__name__}", where=where, fix=f"pass {way.format(where)}")
    if _root(data) == "datasets" and hasattr(data, "with_format"):
        tables = import_module("datasets.table")
        data = tables.embed_table_storage(data.with_format("arrow")[:])  # pictures by path
    elif any(kind.__module__.startswith("torch.utils.data") for kind in type(data).__mro__):
        items = map(data.__getitem__, range(len(data))) if hasattr(data, "__len__") else data
        try:
            pairs = [(np.asarray(x), np.asarray(y)) for x, y in items]
        except (TypeError, ValueError):
            what = "has items that are no pairs"
            raise DataError(what, where=where, fix="yield (x, y)") from None
        return Arrays(_array([x for x, _ in pairs], where), _array([y for _, y in pairs], where))
    if hasattr(data, "__arrow_c_stream__") and getattr(data, "ndim", 2) == 2:
        return _arrow_table(data, where)
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        data = {name: [row.get(name) for row in data] for name in names}
    return _mapping_table(data, where) if isinstance(data, Mapping) else Arrays(_array(data, where))


def read_opened(
    data: Frame | Arrays,
    schema: DataSchema | None,
    where: str = "data",
    *,
    label_column: str | None = None,
    labelled: bool | None = True,
) -> Encoded:
    """Return records by the schema, or of numbers; `labelled` None: read labels if present.

    Without a schema every column of a table is a number, the label `label_column` or the last.
    Raises DataError, also for values that are no numbers."""
    if not len(data):
        raise DataError("holds no record", where=where, fix="pass at least one")
    if isinstance(data, Frame):
        if schema is not None:
            return encode_table(
                data, schema, Origin(label_column=label_column), where, labelled=labelled
            )
        data = of_numbers(data, where, label_column, labelled=bool(labelled))
    elif schema is not None and schema.kind == "columns":
        what = "has no names, and data.schema reads columns by name"
        raise DataError(what, where=where, fix="pass a DataFrame or dicts")
    if data.y is None and labelled:
        raise DataError("has no labels", where=where, fix="pass (X, y)")
    require_room(data.x.shape, 4, MAX_BYTES, where)
    y = np.full(len(data), -1) if data.y is None else data.y
    if schema is not None:
        return Encoded(picture_records(data.x, y, schema, where))
    for name, array in (("X", data.x), ("y", y)):
        if array.dtype.kind not in "biuf":
            raise _no_numbers(f"{name} has type {array.dtype}", where)
    return Encoded(as_records(data.x, y, where), labelled=data.y is not None)


def of_numbers(
    data: Frame, where: str, label_column: str | None, *, labelled: bool = True, total: bool = False
) -> Arrays:
    """Return a table's columns as numbers x and y; `total`: NaN for a cell of another type.

    Raises DataError for its columns, and unless `total` for a column of another type."""
    require_room((len(data), len(data.names)), 8, MAX_BYTES, where)
    label = data.label or label_column or (data.names or [""])[-1] if labelled else ""
    y = _numbers(label, data.column(label, where), where, total=total) if labelled else None
    rest = data.without([label])
    if not rest.names:
        raise DataError("has a single column", where=where, fix="give records values and a label")
    named = zip(rest.names, rest.columns, strict=True)
    return Arrays(np.column_stack([_numbers(*one, where, total=total) for one in named]), y)


def encode_table(
    data: Frame, schema: DataSchema, origin: Origin, where: str, *, labelled: bool | None = True
) -> Encoded:
    """Return a table's records by a schema, within the origin's limits.

    Raises DataError for its columns and its size, never for a record."""
    require_room((len(data), len(data.names)), 8, origin.max_bytes, where)
    if schema.kind == "image":
        return _of_pictures(data, schema, origin, where)
    called = {data.label: schema.label.column or data.label}
    names = [called.get(name, name) for name in data.names]
    how: dict[str, Any] = {"max_bytes": origin.max_bytes, "limit": origin.limit}
    encoder = RowEncoder(schema, names, where, labelled=labelled, **how)
    letters = 0  # texts that a dictionary holds once
    for cells in data.rows():
        letters += sum(map(len, cells))
        require_room((letters,), 1, 4 * _TIMES_ROOM * origin.max_bytes, where)
        encoder.add(cells)
    return encoder.encoded()


def holders_of(data: Frame | Arrays, fleet: Any, where: str = "fleet") -> NDArray[np.int64]:
    """Return the number from 0 of each record's holder (n,), in the order of their sorted names.

    `fleet` names a column of the table, or is a list or an array (n,). Raises DataError."""
    if isinstance(fleet, str):
        if isinstance(data, Arrays):
            what = f"names the column '{fleet}', and arrays have no names"
            raise DataError(what, where=where, fix="pass a list of the records' holders")
        texts = _texts(data.column(fleet, where))
    else:
        texts = [cell_text(_plain(value)) for value in _array(fleet, where).ravel()]
    if len(texts) != len(data):
        what = f"names {len(texts)} holders of {len(data)} records"
        raise DataError(what, where=where, fix="name one for each record")
    if missing := sum(text.strip() in ("", "nan") for text in texts):
        raise DataError(f"names no holder of {missing} records", where=where, fix="fill them in")
    return np.unique(np.array(texts), return_inverse=True)[1].astype(np.int64)


def _of_pictures(data: Frame, schema: DataSchema, origin: Origin, where: str) -> Encoded:
    """Encode the one column of structures with `bytes`, as Hugging Face stores pictures."""
    stored = [name for name in data.names if _holds_pictures(data.column(name, where))]
    others = data.without(stored)
    label_column = data.label or origin.label_column
    if len(stored) != 1 or (label_column is None and len(others.names) != 1):
        what = f"has {len(stored)} columns of pictures and {len(others.names)} others"
        fix = "keep one column of pictures and one of labels, or name local_run.data.label_column"
        raise DataError(what, where=where, fix=fix)
    label = label_column or others.names[0]
    texts = others.text(label, others.column(label, where))
    compute = import_module("pyarrow.compute")
    cells = compute.struct_field(data.column(stored[0], where), "bytes").to_pylist()
    contents = [cell if isinstance(cell, bytes) else None for cell in cells]
    numbers = [schema.label.numbers.get(text.strip(), -1) for text in texts]
    places, y = stored_pictures(contents), np.array(numbers, np.int64)
    if origin.limit is not None:
        kept = origin.limit.kept(places)
        contents, places, y = [contents[at] for at in kept], places[kept], y[kept]
        texts = [texts[at] for at in kept]
    asked = None if schema.raw else schema
    x = encode_files([io.BytesIO(one or b"") for one in contents], asked, origin.max_bytes)
    if schema.raw:
        named, y = [*map(str.strip, texts)], np.zeros_like(y)
        x = asked_pictures(schema, x, lambda of: (of.get(one, NO_CLASS) for one in named))
    return Encoded(Records(x, y, places), unknown_labels=int((y < 0).sum()))


def _holds_pictures(column: Any) -> bool:
    kind: Any = getattr(column, "type", None)
    return str(kind).startswith("struct<") and kind.get_field_index("bytes") >= 0


def _with_labels(data: Frame | Arrays, labels: Any, where: str) -> Frame | Arrays:
    y = _array(labels, f"{where}: y")
    if len(data) != len(y) or y.ndim != 1:
        what = f"has {len(data)} records and labels of shape {list(y.shape)}"
        raise DataError(what, where=where, fix="pass one label for each record")
    if isinstance(data, Arrays):
        return Arrays(data.x, y)
    name = str(getattr(labels, "name", None) or "label")
    if name in data.names:
        what = f"has a column '{name}' in X, which is the name of y"
        raise DataError(what, where=where, fix=f"drop it from X, X.drop(columns={name!r})")
    column = _pandas_column(labels) if _root(labels) == "pandas" else y.tolist()
    return Frame([*data.names, name], [*data.columns, column], name)


@needs_extra("frames")
def _arrow_table(data: Any, where: str) -> Frame:
    import pyarrow as pa

    if _root(data) == "pandas":  # by column: one of several types of object is no Arrow array
        return Frame([str(one) for one in data], [_pandas_column(one) for _, one in data.items()])
    try:
        found = pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        what = f"is no table ({str(error)[:100]})"
        raise DataError(what, where=where, fix=_NO_TABLE) from None
    return arrow_table(found)


def arrow_table(table: Any) -> Frame:
    """Return an Arrow table, with the names of classes that Hugging Face stores beside it."""
    classes = _class_names(table.schema.metadata or {})
    return Frame(list(table.column_names), table.columns, classes=classes)


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        features = json.loads(metadata[_CLASSES])["info"]["features"].items()
        return {
            name: [str(one) for one in feature["names"]]
            for name, feature in features
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    return {}


def _pandas_column(series: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return series.astype(object).where(series.notna(), None).tolist()


def _mapping_table(data: Mapping[Any, Any], where: str) -> Frame:
    columns = list(data.values())
    sizes = {str(name): _length(one) for name, one in data.items()}
    if set(sizes.values()) == {None}:
        columns = [[one] for one in columns]  # one record
    elif len(set(sizes.values())) > 1:
        what = f"has columns of different lengths: {str(sizes)[:300]}"
        raise DataError(what, where=where, fix="give each one cell for each record")
    found = [one.tolist() if hasattr(one, "tolist") else list(one) for one in columns]
    return Frame([str(name) for name in data], found)


def _length(column: Any) -> int | None:
    is_list = isinstance(column, Sequence) and not isinstance(column, str | bytes)
    return len(column) if is_list or getattr(column, "shape", None) else None


def _root(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


def _array(data: Any, where: str) -> NDArray[Any]:
    try:
        found = np.asarray(data)
    except (ValueError, TypeError, RuntimeError) as error:
        what = f"is no array ({str(error)[:100]})"
        raise DataError(what, where=where, fix=_NO_TABLE) from None
    if not found.ndim:
        raise DataError(f"is {type(data).__name__}", where=where, fix=_NO_TABLE)
    return found


def _texts(column: Any) -> list[str]:
    if hasattr(column, "chunks"):
        return [text for chunk in column.chunks for text in column_texts(chunk)]
    if hasattr(column, "to_pylist"):
        return column_texts(column)
    return [cell_text(_plain(value)) for value in column]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _numbers(name: str, column: Any, where: str, *, total: bool) -> NDArray[np.float64]:
    if hasattr(column, "to_pylist"):
        chunks = getattr(column, "chunks", [column])
        if total or holds_numbers(column.type):
            return np.concatenate([np.empty(0), *map(column_numbers, chunks)])
        kind = str(column.type)
    else:
        array = _array([np.nan if one is None else one for one in column], where)
        if array.dtype.kind in "biuf":
            return array.astype(np.float64)
        kind = str(array.dtype)
    raise _no_numbers(f"column '{name}' has type {kind[:100]}", where)


def _no_numbers(what: str, where: str) -> DataError:
    fix = "convert or drop it, or take a job with data.schema, which reads texts by name"
    return DataError(f"{what}, not numbers", where=where, fix=fix)


def _encoded(origin: Origin, _schema: DataSchema | None = None) -> Encoded:
    if origin.given is None:
        what, fix = "is only for records in memory", "call edgeveil.simulate(job, data=…)"
        raise DataError(what, where="data.source memory", fix=fix)
    return origin.given.encoded


PART = SourcePart(
    name="memory",
    read=lambda origin: _encoded(origin).records,
    tallies=_encoded,
    by_schema="any",
    source="the user's own data",
    needs="`simulate(job, data=…)` in Python",
    summary="Arrays, DataFrames, Arrow tables, dicts or data sets of the calling program.",
    example="local_run: {simulate: true, data: {source: memory}}",
)
