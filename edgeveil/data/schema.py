"""A job's `data.schema`: names and public values of columns, pictures and labels."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, get_args

from pydantic import Field

from edgeveil.config.base import Block, Mix
from edgeveil.data import anomaly
from edgeveil.data.audio import LEVELS, AudioForm
from edgeveil.data.target import LABELS, TargetRange
from edgeveil.data.text import HashedText, Tokens
from edgeveil.data.windows import Windows, faults
from edgeveil.errors import DataError
from edgeveil.registry import nearest

Text = Annotated[str, Field(max_length=256)]
ColumnName = Annotated[str, Field(min_length=1, max_length=128)]
Finite = Annotated[float, Field(ge=-1e30, le=1e30)]
Range = tuple[Finite, Finite]
Texts = tuple[Text, ...]
Pixels = Annotated[int, Field(ge=1, le=4096)]
LabelNames = Annotated[tuple[Text, ...], Field(max_length=256)]

Origin = Literal["public", "own_records"]
DatePart = Literal["year", "month", "weekday", "hour"]
PicturePart = Literal["height", "width", "channels", "brightness"]
Part = Literal[DatePart, PicturePart, "characters", "class"]
DATE_PARTS: tuple[str, ...] = get_args(DatePart)
PICTURE_PARTS: tuple[str, ...] = get_args(PicturePart)
PIXEL_RANGE = (0.0, 255.0)


def _empty(value: object) -> bool:
    return value is None or value == ()


class Column(Block):
    """One column of a table, or several of one form."""

    name: ColumnName | Annotated[tuple[ColumnName, ...], Field(min_length=1, max_length=4096)] = (
        Field(examples=["age"])
    )
    """The column's name, or a list of the names of several columns with the same range."""
    number: Range | None = Field(default=None, examples=[[17, 90]], exclude_if=_empty)
    """Public range of a number, mapped to [-1, 1]; values are clipped, missing ones become 0."""
    bins: tuple[Finite, ...] = Field(
        default=(), max_length=256, examples=[[3, 6]], exclude_if=_empty
    )
    """For a number: public inner edges of bins, one-hot, with one more place for missing."""
    category: Texts | None = Field(
        default=None, min_length=1, max_length=4096, examples=[["red", "green"]], exclude_if=_empty
    )
    """Public list of a text's values, one-hot, with one more place for all others."""
    text: HashedText | None = Field(default=None, examples=[{}], exclude_if=_empty)
    """A text of any length as hashed counts; `{}` for the defaults."""
    tokens: Tokens | None = Field(default=None, examples=[{"buckets": 4096}], exclude_if=_empty)
    """A text as token ids, for a model with an embedding."""
    date: Annotated[tuple[DatePart, ...], Field(max_length=4)] = Field(
        default=(), examples=[["year", "month", "weekday", "hour"]], exclude_if=_empty
    )
    """Parts of a date that are read, a missing one 0: the year within `years`, each other as sine
    and cosine of its place in the year, week or day."""
    years: tuple[int, int] | None = Field(default=None, examples=[[2020, 2030]], exclude_if=_empty)
    """Public range of the year, mapped to [-1, 1]; others are clipped."""
    first_bytes: int | None = Field(default=None, ge=1, le=64, exclude_if=_empty)
    """Of a `raw` schema: a text as its first bytes of UTF-8."""
    words: int | None = Field(default=None, ge=1, le=16, exclude_if=_empty)
    """With `first_bytes`: so many first words of the text in its place, each once."""
    part: Part | None = Field(default=None, exclude_if=_empty)
    """Of a `raw` schema: what is read of a text, a date or a picture."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if isinstance(self.name, str) else self.name

    @property
    def width(self) -> int:
        if self.date:
            return sum(1 if part == "year" else 2 for part in self.date)
        if self.text is not None:
            return self.text.buckets
        if self.tokens is not None:
            return self.tokens.length
        if self.first_bytes is not None:
            return self.first_bytes * (self.words or 1)
        if self.category is not None:
            return len(self.category) + 1
        return len(self.bins) + 2 if self.bins else 1

    def values(self, *, raw: bool) -> int:
        """Values of a record; a `raw` category is one, its place in the list."""
        return 1 if raw and self.category is not None else self.width


class Label(Block):
    """The label to predict."""

    column: ColumnName | None = Field(default=None, examples=["income"], exclude_if=_empty)
    """The label's column in a table; pictures are in one folder per class."""
    classes: tuple[Text | Annotated[tuple[Text, ...], Field(min_length=1, max_length=16)], ...] = (
        Field(default=(), max_length=10000, examples=[["no", "yes"]], exclude_if=_empty)
    )
    """The classes' names, class 0 first; a list of names is one class. Other labels are dropped."""
    number: Range | None = Field(default=None, examples=[[0, 100]], exclude_if=_empty)
    """In place of `classes`: public range of a number; clipped, and dropped if missing."""
    normal: LabelNames = Field(default=(), examples=[["ok"]], exclude_if=_empty)
    """Instead of both: learn normal records, which have one of these labels or no label."""
    anomalous: LabelNames = Field(default=(), examples=[["leak", "stall"]], exclude_if=_empty)
    """With `normal`: labels of anomalies; others are dropped. Empty: all other labels."""

    @property
    def names(self) -> tuple[str, ...]:
        if self.normal:
            return anomaly.NAMES
        return tuple(one if isinstance(one, str) else one[0] for one in self.classes)

    @property
    def numbers(self) -> dict[str, int]:
        if self.normal:
            bad = dict.fromkeys(self.anomalous, anomaly.ANOMALOUS)
            return {**dict.fromkeys(self.normal, anomaly.NORMAL), **bad}
        return {
            name: number
            for number, one in enumerate(self.classes)
            for name in ((one,) if isinstance(one, str) else one)
        }


class PictureForm(Block):
    """The form of records from pictures."""

    size: tuple[Pixels, Pixels] = Field(examples=[[32, 32]])
    """Height and width; pictures of another size are scaled to it."""
    channels: Literal[1, 3] = 1
    """1: grey, records of [height, width]; 3: red, green, blue, records of [3, height, width]."""
    values: Range = Field(default=PIXEL_RANGE, exclude_if=lambda value: value == PIXEL_RANGE)
    """Public range of values in an NPZ file, mapped to 0 to 255."""


class DataSchema(Block):
    """Names and values of a data set's records, all public."""

    origin: Origin = Field(examples=["public"])
    """`public`: known without any records. `own_records`: drawn from them (`edgeveil init --from`),
    refused in jobs: review each list and range, then set `public`."""
    label: Label
    """The label to predict."""
    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=4096)] | None = Field(
        default=None, examples=[[{"name": "age", "number": [17, 90]}]], exclude_if=_empty
    )
    """Input columns of a table; others are not read."""
    header: Annotated[tuple[ColumnName, ...], Field(min_length=2, max_length=65536)] | None = Field(
        default=None, exclude_if=_empty
    )
    """All columns of a CSV file without a header line; null: its first line is the header."""
    person: ColumnName | None = Field(default=None, exclude_if=_empty)
    """Set by `data.person`."""
    missing: Texts = Field(default=(), max_length=16, examples=[["?"]], exclude_if=_empty)
    """Texts for a missing value in a table, besides an empty cell."""
    image: PictureForm | None = Field(default=None, exclude_if=_empty)
    """The form of pictures."""
    windows: Windows | None = Field(
        default=None, exclude_if=_empty, examples=[{"length": 64, "time": "time", "every_s": 1}]
    )
    """For a table of readings: several rows are one record."""
    audio: AudioForm | None = Field(default=None, exclude_if=_empty, examples=[{"seconds": 1}])
    """The form of recordings."""
    raw: bool = Field(default=False, exclude_if=lambda value: not value)
    """Set by `statistics`: numbers and places of categories as they are, NaN if missing."""

    @property
    def kind(self) -> Literal["columns", "image", "audio"]:
        if self.audio is not None:
            return "audio"
        of_pictures = any(one.part in (*PICTURE_PARTS, "class") for one in self.columns or ())
        return "image" if self.columns is None or (self.raw and of_pictures) else "columns"

    @property
    def files(self) -> str:
        """Plural of what one record is read from, for messages."""
        return {"columns": "tables", "image": "pictures", "audio": "recordings"}[self.kind]

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        if self.audio is not None:
            return self.audio.shape
        if self.image is not None:
            colours = (self.image.channels,) if self.image.channels > 1 else ()
            return (*colours, *self.image.size)
        return (self.width,) if self.windows is None else (self.windows.length, self.width)

    @property
    def width(self) -> int:
        """Values of one row of a table."""
        columns = self.columns or ()
        return max(1, sum(len(one.names) * one.values(raw=self.raw) for one in columns))

    @property
    def read_columns(self) -> tuple[str, ...]:
        """All columns of a table that are read, each once: also what orders windows, or persons."""
        inputs = tuple(name for one in self.columns or () for name in one.names)
        ordering = () if self.windows is None else self.windows.columns
        others = [name for name in (self.person, self.label.column) if name is not None]
        return tuple(dict.fromkeys((*inputs, *ordering, *others)))

    @property
    def classes(self) -> int:
        return max(2, len(self.label.names)) if self.target is None else LABELS

    @property
    def anomaly(self) -> bool:
        return bool(self.label.normal)

    @property
    def target(self) -> TargetRange | None:
        return None if self.label.number is None else TargetRange(*self.label.number)

    @property
    def largest(self) -> float:
        """Largest absolute value in a record: the default of `input_scale`."""
        if self.audio is not None and self.audio.form == "logmel":
            return float(LEVELS)
        return PIXEL_RANGE[1] if self.image is not None else 1.0


COLUMN_KINDS = ("number", "category", "date", "text", "tokens", "first_bytes")
SCHEMA, NAMES = "edgeveil.schema", "edgeveil.labels"
METADATA_BYTES = 1 << 17


def schema_metadata(schema: DataSchema) -> dict[str, str]:
    properties = {SCHEMA: schema.model_dump_json()}
    if schema.target is None:
        properties[NAMES] = json.dumps(list(schema.label.names), ensure_ascii=False)
    return {key: without_location(text) for key, text in properties.items()}


def without_location(text: str) -> str:
    """Escape "location" in JSON, which `open_session` refuses as a mark of an external tensor."""
    return text.replace("location", r"\u006cocation")


def schema_in(
    properties: Mapping[str, str], input_shape: Sequence[int | None]
) -> DataSchema | None:
    """Invert `schema_metadata`; None without one. Raises DataError, also for another size."""
    text = properties.get(SCHEMA)
    if text is None:
        return None
    try:
        if len(text) > METADATA_BYTES:
            raise ValueError(f"has {len(text)} characters")
        schema = DataSchema.model_validate_json(text, strict=True)
        mixes = list(impossible(schema, SCHEMA))
        if mixes:
            raise ValueError(mixes[0].text)
        if math.prod(schema.input_shape) != math.prod(axis or 0 for axis in input_shape):
            raise ValueError("its records differ from the model's")
    except (ValueError, RecursionError) as error:
        what = f"holds no schema known to this version ({str(error)[:100]})"
        raise DataError(what, where=SCHEMA, fix="use an EdgeVeil of the model's version") from None
    return schema


def impossible(schema: DataSchema, at: str) -> Iterator[Mix]:
    if schema.origin == "own_records":
        text = "lists and ranges drawn from records can reveal a single record, and a job is"
        fix = "review each, replace values known only from records, and set public"
        yield Mix((f"{at}.origin",), f"{text} public; {fix}")
    given = [kind for kind in ("columns", "image", "audio") if getattr(schema, kind) is not None]
    if len(given) != 1:
        there = f"{' and '.join(given) or 'none'} {'are' if given else 'is'} given"
        text = f"a record is a row of columns, a picture (image) or a recording (audio); {there}"
        yield Mix((f"{at}.columns", f"{at}.image", at), f"{text}; write one of them")
    if not schema.raw:
        yield from _labels(schema.label, at)
    if schema.columns is not None and schema.kind == "columns":
        yield from _table(schema, schema.columns, at)
    else:
        if schema.person is not None:
            yield Mix(("data.person",), f"is for tables, not for {schema.files}; leave it out")
        for key in ("windows", "header", "missing"):
            if getattr(schema, key):
                yield Mix((f"{at}.{key}",), f"is for tables, not for {schema.files}; leave it out")
        for key in ("column", "number", "normal"):
            if getattr(schema.label, key) not in (None, ()):
                text = f"is for tables, not for {schema.files}; name classes"
                yield Mix((f"{at}.label.{key}",), text)
    if schema.image is not None and schema.image.values[0] >= schema.image.values[1]:
        yield _not_a_range(schema.image.values, f"{at}.image.values")


def _labels(label: Label, at: str) -> Iterator[Mix]:
    names = [n for one in label.classes for n in ((one,) if isinstance(one, str) else one)]
    yield from _twice(names, "name each class once", f"{at}.label.classes")
    keys = (f"{at}.label.normal", f"{at}.label.anomalous")
    yield from _twice([*label.normal, *label.anomalous], "list each label once", *keys)
    if label.anomalous and not label.normal:
        text = "needs label.normal, which is missing; add for example normal: [ok]"
        yield Mix((f"{at}.label.anomalous", f"{at}.label"), text)
    given = [name for name in ("classes", "number", "normal") if getattr(label, name)]
    if len(given) != 1:
        there = f"{' and '.join(given) or 'none'} {'are' if given else 'is'} given"
        fix = "write for example classes: [no, yes], number: [0, 100], or normal: [ok]"
        text = f"set one of classes, number and normal; {there}; {fix}"
        yield Mix((f"{at}.label.{(given or ['classes'])[0]}", f"{at}.label"), text)
    elif len(label.classes) == 1:
        text = "names only one class; name at least two"
        yield Mix((f"{at}.label.classes",), text)
    elif label.number is not None and label.number[0] >= label.number[1]:
        yield _not_a_range(label.number, f"{at}.label.number")
    elif label.number is not None and not TargetRange(*label.number).distinct_in_float32:
        text = "is too narrow for float32, in which models compute; subtract an"
        yield Mix((f"{at}.label.number",), f"{text} offset from the column, and from its range")


def _table(schema: DataSchema, columns: tuple[Column, ...], at: str) -> Iterator[Mix]:
    named = [name for one in columns for name in one.names]
    label = schema.label.column
    if not schema.raw:  # whose columns may be parts of one
        yield from _twice(named, "name each column once", f"{at}.columns")
    if schema.windows is not None:
        for key, text in faults(schema.windows, [*named, *(() if label is None else (label,))]):
            yield Mix((f"{at}.windows.{key}", f"{at}.windows"), text)
    if label is None and not schema.raw:
        text = "is missing; name the column of the label"
        yield Mix((f"{at}.label.column", f"{at}.label"), text)
    elif label in named:
        text = f"'{label}' is both the label and an input; leave it out of columns"
        yield Mix((f"{at}.columns", f"{at}.label.column"), text)
    yield from _person(schema, [*named, label], at)
    for index, column in enumerate(columns):
        yield from _column(column, schema.missing, f"{at}.columns.{index}")
        asked = [key for key in ("first_bytes", "words", "part") if getattr(column, key)]
        if asked and not schema.raw:
            text = "is what a job with a block statistics reads, not an input; leave it out"
            yield Mix((f"{at}.columns.{index}.{asked[0]}",), text)
    if schema.header is None:
        return
    yield from _twice(schema.header, "give each column its own name", f"{at}.header")
    needed = label if label is not None and not schema.anomaly else None
    ordering = () if schema.windows is None else schema.windows.columns
    others = [name for name in (needed, schema.person) if name]
    wanted, there = (*named, *ordering, *others), set(schema.header)
    lacking = [name for name in wanted if name not in there]
    if lacking:  # report one: the search for a near name takes time, and anyone may send a job
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        close = nearest(lacking[0], list(schema.header))
        text = f"does not hold '{lacking[0]}'{more}, {close}; name all columns in their order"
        yield Mix((f"{at}.header", f"{at}.columns"), text)


def _person(schema: DataSchema, taken: Sequence[str | None], at: str) -> Iterator[Mix]:
    person, windows = schema.person, schema.windows
    if person is None:
        return
    if person in taken:
        text = f"'{person}' is also an input or the label, and the person is not learned from;"
        yield Mix(("data.person", f"{at}.columns"), f"{text} leave it out there")
    if windows is not None and windows.group != person:
        text = f"a window must hold readings of one person; set windows.group to '{person}'"
        yield Mix(("data.person", f"{at}.windows.group"), text)


def _column(column: Column, missing: tuple[str, ...], at: str) -> Iterator[Mix]:
    given = [kind for kind in COLUMN_KINDS if getattr(column, kind) not in (None, ())]
    if len(given) != 1:
        there = f"{' and '.join(given) or 'none'} {'are' if given else 'is'} given"
        fix = "write for example number: [0, 100], or category: [red, green]"
        text = f"a column has one of {', '.join(COLUMN_KINDS[:-1])}, and {there}; {fix}"
        yield Mix((f"{at}.{(given or ['number'])[0]}", at), text)
        return
    if ("year" in column.date) != (column.years is not None):
        text = "is the range of the year of a date; write date: [year], years: [2020, 2030]"
        yield Mix((f"{at}.years", f"{at}.date", at), text)
    elif column.years is not None and column.years[0] >= column.years[1]:
        yield _not_a_range(column.years, f"{at}.years")
    yield from _twice(column.date, "name each part once", f"{at}.date")
    if column.text is not None:
        if not (column.text.words or column.text.characters):
            yield Mix((f"{at}.text",), "counts nothing; set words: 2, or characters: [3, 5]")
        low, high = column.text.characters or (1, 1)
        if low > high:
            yield Mix((f"{at}.text.characters",), "are the least and the greatest; write [3, 5]")
    if column.tokens is not None:
        if (column.tokens.buckets is None) == (not column.tokens.vocabulary):
            text = "needs either buckets or a vocabulary; write buckets: 4096, or file: vocab.txt"
            yield Mix((f"{at}.tokens",), text)
        yield from _twice(column.tokens.vocabulary, "name each once", f"{at}.tokens.vocabulary")
    if column.category is not None:
        yield from _twice(column.category, "name each once", f"{at}.category")
        for name in column.category:
            if name in missing or not name.strip():
                text = f"'{name}' means a missing value, which has a place already"
                yield Mix((f"{at}.category",), f"{text}, leave it out")
            elif name != name.strip():
                text = f"'{name}' begins or ends with a space, which no cell is read with; drop it"
                yield Mix((f"{at}.category",), text)
    if column.number is not None and column.number[0] >= column.number[1]:
        yield _not_a_range(column.number, f"{at}.number")
    elif column.bins:
        ends = column.number or (0.0, 0.0)
        edges = (ends[0], *column.bins, ends[1])
        if column.number is None or any(low >= high for low, high in pairwise(edges)):
            text = "are the inner edges of a number's range, each above the one before"
            yield Mix((f"{at}.bins",), f"{text}; write for example number: [0, 9], bins: [3, 6]")


def _not_a_range(given: tuple[float, float], at: str) -> Mix:
    text = f"must be the least and the greatest value, got {list(given)}; write [0, 100]"
    return Mix((at,), text)


def _twice(names: Sequence[str], fix: str, *keys: str) -> Iterator[Mix]:
    """Yield the first of the `names` at these keys that occurs more than once."""
    counts = Counter(names)
    for name in [name for name in names if counts[name] > 1][:1]:
        yield Mix(keys, f"'{name}' occurs twice; {fix}")
