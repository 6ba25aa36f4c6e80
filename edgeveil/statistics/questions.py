"""The block `statistics` of a job file, and the raw form of records that it is answered from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from edgeveil.config.base import Block, Mix, as_tuples
from edgeveil.data.schema import (
    PICTURE_PARTS,
    Column,
    ColumnName,
    DataSchema,
    Finite,
    Label,
    Part,
    Range,
    Texts,
)
from edgeveil.errors import DataError
from edgeveil.statistics.heavy_hitters import LEVELS

Asked = Literal["mean", "deviation", "histogram", "quantiles"]
Pair = tuple[ColumnName, ColumnName]
DEFAULT_BINS, MOST_CELLS = 20, 1 << 16
_TERM = re.compile(
    r"\s*(.+?)\s*(<=|>=|!=|<|>|=)\s*(\"[^\"]*\"|'[^']*'|[^\"'<>=!]+?)\s*(?:$|\band\s+)"
)


class Values(Block):
    """Values of a text that no public list names."""

    length: int = Field(default=16, ge=1, le=32)
    """Bytes of UTF-8 that are read; longer texts, or words, are cut."""
    words: int | None = Field(default=None, ge=1, le=16, exclude_if=lambda value: value is None)
    """Find frequent words in place of whole texts: of each text its first words, each once, in
    lower case. A record counts so many times, and the noise grows with it."""


_OF_DATES = {"month": (1, 12), "weekday": (0, 6), "hour": (0, 23)}
RANGES = {**_OF_DATES, "channels": (1, 3), "brightness": (0, 255)}  # of parts with their own range


class AskedColumn(Block):
    """A column of a table, or a part of it or of pictures, and what to ask of it."""

    model_config = ConfigDict(serialize_by_alias=True)

    column: ColumnName = Field(alias="name", examples=["age"])
    """The column's name; any name for pictures."""
    part: Part | None = Field(
        default=None, examples=["hour"], exclude_if=lambda value: value is None
    )
    """Of a text: its length in `characters`; of a date: `year`, `month`, `weekday` from Monday 0,
    `hour`; of pictures: `height`, `width`, `channels` (1 or 3), `brightness`, the mean grey level,
    as numbers, and `class`, with `category`. Elsewhere it is called `name:part`."""
    number: Range | None = Field(default=None, examples=[[0, 100]])
    """Public range of a number; values outside are counted, and clipped in mean and deviation.
    Default: none, but 1 to 12 for a month, 0 to 6, 0 to 23, 1 to 3, and 0 to 255 for brightness."""
    bins: (
        Annotated[int, Field(ge=1, le=1024)] | Annotated[tuple[Finite, ...], Field(max_length=1024)]
    ) = DEFAULT_BINS
    """Bins of the histogram: their number, or their public inner edges; default: 20, or one for
    each month, weekday, hour and number of channels."""
    ask: tuple[Asked, ...] = Field(default=("mean", "deviation", "histogram", "quantiles"))
    """For a number, besides its counts of records, of missing and of clipped values."""
    category: Texts | None = Field(
        default=None, min_length=1, max_length=4096, examples=[["red", "green"]]
    )
    """Public list of a text's values; all others are counted together."""
    values: Values | None = Field(default=None, examples=[{}])
    """For a text: find its frequent values, without a list."""

    @model_validator(mode="before")
    @classmethod
    def _with_range(cls, given: Any) -> Any:
        """Fill in range and bins of a part that has a range by itself."""
        part = str(given.get("part")) if isinstance(given, dict) else ""
        if part not in RANGES or given.get("number") is not None:
            return given
        low, high = RANGES[part]
        inner = tuple(low + 0.5 + at for at in range(high - low))
        bins = {"bins": inner} if part != "brightness" else {}
        return {**bins, **given, "number": (low, high)}

    @property
    def name(self) -> str:
        """Name in tables, filters and answers."""
        return self.column if self.part is None else f"{self.column}:{self.part}"

    @property
    def edges(self) -> tuple[float, ...]:
        """Edges of the histogram's bins: the range's ends and all between."""
        low, high = self.number or (0.0, 1.0)
        if not isinstance(self.bins, int):
            return (low, *self.bins, high)
        return (*(low + (high - low) * at / self.bins for at in range(self.bins)), high)

    @property
    def codes(self) -> int:
        """Cells of the column in a table: its values, others and missing."""
        if self.category is not None:
            return len(self.category) + 2
        return len(self.edges) + 2

    @property
    def read_as(self) -> Column:
        if self.values is not None:
            values = self.values
            return Column(name=self.column, first_bytes=values.length, words=values.words)
        return Column(name=self.column, number=self.number, category=self.category, part=self.part)


class Condition(NamedTuple):
    """One comparison of a filter: `column operator literal`."""

    column: str
    operator: str
    literal: str


class Questions(Block):
    """What to ask of a fleet's records: one vector of counts and sums a device and exchange."""

    columns: tuple[AskedColumn, ...] = Field(
        min_length=1, max_length=1024, examples=[[{"name": "age", "number": [0, 100]}]]
    )
    """Columns to ask about; others are not read."""
    tables: tuple[Pair, ...] = Field(default=(), max_length=64, examples=[[["sex", "income"]]])
    """Pairs of `columns` whose records are counted by both: categories, or bins of numbers."""
    correlations: tuple[Pair, ...] = Field(default=(), max_length=256, examples=[[["age", "pay"]]])
    """Pairs of numbers in `columns`."""
    where: str | None = Field(default=None, max_length=1024, examples=["age >= 60"])
    """Ask only records that meet this: comparisons of `columns` with a literal, joined by `and`;
    a missing value meets none."""

    @model_validator(mode="before")
    @classmethod
    def _as_tuples(cls, given: Any) -> Any:
        return as_tuples(given)

    @cached_property
    def by_name(self) -> dict[str, AskedColumn]:
        return {one.name: one for one in self.columns}

    @cached_property
    def places(self) -> dict[str, int]:
        """The first value of each column in a record."""
        found, at = dict[str, int](), 0
        for one in self.columns:
            found[one.name] = at
            at += one.read_as.values(raw=True)
        return found

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The filter's comparisons. Raises DataError for a text that is none."""
        found, rest = list[Condition](), self.where or ""
        while rest:
            match = _TERM.match(rest)
            if match is None:
                what = f"'{rest[:64]}' is no comparison of a column with a number or a text"
                raise DataError(what, where="where", fix="write for example age >= 60")
            column, operator, literal = match.groups()
            text = literal[1:-1] if literal[0] in "\"'" else literal
            found.append(Condition(column, operator, text))
            rest = rest[match.end() :]
        return tuple(found)

    @property
    def records_schema(self) -> DataSchema:
        """The schema by which a record keeps its values as they are."""
        columns = tuple(one.read_as for one in self.columns)
        return DataSchema(origin="public", label=Label(), columns=columns, raw=True)

    def _mixes(self) -> Iterable[Mix]:
        return (Mix((f"train.{key}",), text) for key, text in self.faults())

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield (key, reason) of what cannot be asked."""
        if len(self.by_name) < len(self.columns):
            yield "columns", "name each column, or each part of one, once"
        pictures = [one.part in (*PICTURE_PARTS, "class") for one in self.columns]
        if any(pictures) and not all(pictures):
            yield "columns", "are parts of pictures or columns of a table; ask the others apart"
        for at, one in enumerate(self.columns):
            yield from ((f"columns.{at}.{key}", text) for key, text in _column_faults(one))
        for key, pairs in (("tables", self.tables), ("correlations", self.correlations)):
            for at, pair in enumerate(pairs):
                yield from ((f"{key}.{at}", text) for text in self._pair_faults(key, pair))
        yield from (("where", text) for text in self._where_faults())

    def _pair_faults(self, key: str, pair: Pair) -> Iterator[str]:
        unknown = [name for name in pair if name not in self.by_name]
        if unknown:
            yield f"'{unknown[0]}' is none of the columns; add it there, with ask: [] if need be"
            return
        if pair[0] == pair[1]:
            yield "names one column twice; name two"
        one, other = (self.by_name[name] for name in pair)
        if key == "correlations" and (one.number is None or other.number is None):
            yield "is of two numbers; name numbers, or use tables"
        elif one.values is not None or other.values is not None:
            yield "values that nobody listed cannot be counted by another column; list categories"
        elif one.codes * other.codes > MOST_CELLS:
            yield f"has {one.codes * other.codes} cells; use at most {MOST_CELLS}"

    def _where_faults(self) -> Iterator[str]:
        try:
            conditions = self.conditions
        except DataError as error:
            yield f"{error.what}; {error.fix}"
            return
        for one in conditions:
            column = self.by_name.get(one.column)
            if column is None or column.values is not None:
                yield f"'{one.column}' is no number or category of columns; add it there"
            elif column.number is not None and not _is_number(one.literal):
                yield f"'{one.literal[:64]}' is no number, and '{one.column}' is one"
            elif column.category is not None and (
                one.operator not in ("=", "!=") or one.literal not in column.category
            ):
                yield f"compare '{one.column}' by = or != with one of its categories"


def _column_faults(one: AskedColumn) -> Iterator[tuple[str, str]]:
    given = [key for key in ("number", "category", "values") if getattr(one, key) is not None]
    if len(given) != 1:
        there = f"{' and '.join(given) or 'none'} {'are' if given else 'is'} given"
        yield (given or ["number"])[0], f"a column is one of number, category, values; {there}"
        return
    if one.part is not None and given != ["category" if one.part == "class" else "number"]:
        fix = "category: [cat, dog]" if one.part == "class" else "number: [0, 500]"
        yield "part", f"'{one.part}' is read as its own kind of value; write for example {fix}"
    if one.number is None:
        return
    low, high = one.number
    if low >= high:
        yield "number", "must be the least and the greatest value; write [0, 100]"
    elif any(a >= b for a, b in pairwise(one.edges)):
        yield "bins", "are inner edges of the range, each above the one before"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", text) is not None


def least_rounds(block: Any) -> int:
    """Return the fewest exchanges for the questions of a file, plain."""
    columns = block.get("columns")
    columns = columns if isinstance(columns, list) else []
    named = any(isinstance(one, dict) and one.get("values") is not None for one in columns)
    return len(LEVELS) if named else 1


def expanded(block: Any, data: Any) -> dict[str, Any] | None:
    """Return the job's `data` for the questions of a file, plain; None if they are faulty."""
    import json

    from pydantic import ValidationError

    if not isinstance(data, dict) or not isinstance(block, dict):
        return None
    try:
        known = {key: block[key] for key in Questions.model_fields if key in block}
        schema = Questions.model_validate_json(json.dumps(known), strict=True).records_schema
    except ValidationError:
        return None
    made = json.loads(schema.model_dump_json())
    given = data.get("schema")
    kept = given if isinstance(given, dict) else {}
    made["origin"] = kept.get("origin", "public")
    return {"evaluation_share": 0, **data, "schema": {**kept, **made}}
