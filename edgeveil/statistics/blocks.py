"""Blocks of cells that a record adds bounded integers to, and their weights in one vector.

Each block has

    cells    number of integers
    whole    the most that one record adds to a cell; what a counted record adds
    bound    bound on the sum of squares that one record adds, in units of whole²
    scale    deviation of the block's answer, relative to the answer's own scale, for noise of 1
             record in each cell
    of       sums (cells,) over records x (n, values); each record stays within these bounds
             whatever its values, and changes no other record's part
    parts    but for values that nobody listed: cells (n, k) and what each record adds to them

A cell is multiplied by its block's integer weight, so that one Gaussian event with one sensitivity,
sqrt(Σ weight²·bound·whole²), prices all blocks together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records, flat_rows, grouped
from edgeveil.parts.round import Tensors
from edgeveil.privacy.events import GaussianEvent
from edgeveil.statistics.heavy_hitters import LEVELS, HeavyHitters
from edgeveil.statistics.questions import AskedColumn, Condition, Questions

Int64 = NDArray[np.int64]
Rows = NDArray[np.float32]
STEPS = 1 << 12  # fixed-point steps of 1 in moments and products
UNIT = 1 << 14  # weight of a record where the noise matters by 1
ROOM = 4  # most records of a device that count, in nominal_records
MOST = 1 << 61  # of a cell, so that its noise fits an int64
_TIE = 1e-3  # of equal strategies that of the better ranks
_FINE = 3  # cells of a bin of the histogram if quantiles are asked


@dataclass(frozen=True)
class Codes:
    """The number of a column's cell for each record: its bin or category, others, missing.

    A number's cells are `below`, its bins, `above` and missing."""

    place: int
    size: int
    edges: tuple[float, ...] = ()

    def of(self, x: Rows) -> Int64:
        values = x[:, self.place]
        known = ~np.isnan(values)
        if self.edges:
            edges = np.array(self.edges, np.float32)
            found = np.searchsorted(edges, values, side="right")
            found = np.where(values == edges[-1], len(edges) - 1, found)
        else:
            whole = np.rint(np.where(known, values, 0))
            listed = (whole >= 0) & (whole < self.size - 2)
            found = np.where(listed, whole, self.size - 2)
        return np.where(known, found, self.size - 1).astype(np.int64)


@dataclass(frozen=True)
class Counts:
    """Records by the cell of one column, or of two: every record is in exactly one cell.

    If `group` > 1 so many cells in turn are counted together too, and a record once more: sums over
    many cells then take fewer counts (a tree of two levels, as of Hay et al. 2010)."""

    columns: tuple[str, ...]
    codes: tuple[Codes, ...]
    scale: float = 1.0
    fine: int = 1  # cells for each bin of the histogram
    group: int = 1
    whole = 1

    @property
    def bound(self) -> float:
        return 1.0 if self.group == 1 else 2.0

    @property
    def size(self) -> int:
        """The cells without the groups."""
        return math.prod(one.size for one in self.codes)

    @property
    def starts(self) -> Int64:
        """The first cell of each group; the last cell, of missing values, is a group alone.

        Beside empty cells, whose noise is cut at 0, its count would be too low."""
        return np.append(np.arange(0, self.size - 1, self.group), self.size - 1)

    @property
    def cells(self) -> int:
        return self.size + (len(self.starts) if self.group > 1 else 0)

    def of(self, x: Rows) -> Int64:
        at = self.parts(x)[0].ravel()
        return np.bincount(at, minlength=self.cells).astype(np.int64)

    def parts(self, x: Rows) -> tuple[Int64, Int64]:
        at = np.zeros(len(x), np.int64)
        for one in self.codes:
            at = at * one.size + one.of(x)
        groups = self.size - 1 + np.searchsorted(self.starts, at, side="right")
        cells = np.stack([at, groups][: 1 if self.group == 1 else 2], axis=1)
        return cells, np.ones(cells.shape, np.int64)

    def counts(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the counts (size,) nearest to the sums of cells and of groups."""
        found, groups = sums[: self.size], sums[self.size :]
        if not len(groups):
            return found
        sizes = np.diff(self.starts, append=self.size)
        off = (groups - np.add.reduceat(found, self.starts)) / (sizes + 1)
        return np.asarray(found + np.repeat(off, sizes))

    def covariance(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
        """Return that of two weighted sums of `counts`, for noise of 1 in each cell."""
        found = float(a @ b)
        if self.group > 1:
            sizes = np.diff(self.starts, append=self.size)
            sums = (np.add.reduceat(one, self.starts) for one in (a, b))
            found -= float(np.prod(list(sums), axis=0) @ (1 / (sizes + 1)))
        return found


@dataclass(frozen=True)
class Scaled:
    """A number's distance from the middle of its range, in halves of it: [-1, 1], NaN missing."""

    place: int
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def middle(self) -> float:
        return self.low + self.half

    def of(self, x: Rows) -> NDArray[np.float64]:
        values = x[:, self.place].astype(np.float64)
        return np.clip((values - self.middle) / self.half, -1.0, 1.0)


@dataclass(frozen=True)
class Moments:
    """Sums of a number's z in [-1, 1] and, if `squares`, of z² - 1/2; a missing one adds nothing.

    z² + (z² - 1/2)² is at most 5/4, at the ends of the range."""

    column: str
    number: Scaled
    squares: bool = True
    whole = STEPS

    @property
    def bound(self) -> float:
        return 1.25 if self.squares else 1.0

    @property
    def scale(self) -> float:
        return 1.0 if self.squares else 0.5

    @property
    def cells(self) -> int:
        return 2 if self.squares else 1

    def of(self, x: Rows) -> Int64:
        return np.asarray(self.parts(x)[1].sum(axis=0))

    def parts(self, x: Rows) -> tuple[Int64, Int64]:
        z = self.number.of(x)
        return _fixed(np.stack([z, np.square(z) - 0.5][: self.cells], axis=1))


@dataclass(frozen=True)
class Product:
    """Sums of z·z' and of 1/2 over the records in which two numbers are present."""

    columns: tuple[str, str]
    numbers: tuple[Scaled, Scaled]
    whole = STEPS
    bound = 1.25
    scale = 4.0
    cells = 2

    def of(self, x: Rows) -> Int64:
        return np.asarray(self.parts(x)[1].sum(axis=0))

    def parts(self, x: Rows) -> tuple[Int64, Int64]:
        product = self.numbers[0].of(x) * self.numbers[1].of(x)
        return _fixed(np.stack([product, np.where(np.isnan(product), np.nan, 0.5)], axis=1))


Block = Counts | Moments | Product | HeavyHitters


def _fixed(values: NDArray[np.float64]) -> tuple[Int64, Int64]:
    # Toward zero: the squares of a record's steps then stay within the bound.
    steps = np.trunc(np.where(np.isnan(values), 0.0, values) * STEPS).astype(np.int64)
    return np.broadcast_to(np.arange(values.shape[1]), values.shape), steps


@dataclass(frozen=True)
class BlockVector:
    """The blocks of one exchange with their weights, of records that meet `conditions`."""

    blocks: tuple[Block, ...]
    questions: Questions = field(repr=False)

    @cached_property
    def weights(self) -> tuple[int, ...]:
        return tuple(max(1, math.ceil(UNIT * one.scale / one.whole)) for one in self.blocks)

    @property
    def cells(self) -> int:
        return sum(one.cells for one in self.blocks)

    @property
    def sensitivity_squared(self) -> int:
        """Bound on the sum of squares that one record adds."""
        pairs = zip(self.weights, self.blocks, strict=True)
        return sum(math.ceil((weight * one.whole) ** 2 * one.bound) for weight, one in pairs)

    @property
    def largest(self) -> int:
        """The most that one record adds to a cell."""
        return max(w * one.whole for w, one in zip(self.weights, self.blocks, strict=True))

    def about(self, tensors: Tensors) -> BlockVector:
        """Return the vector about what the package broadcasts. Raises ProtocolError."""
        found = (
            one.about(tensors) if isinstance(one, HeavyHitters) else one for one in self.blocks
        )
        return replace(self, blocks=tuple(found))

    @property
    def values(self) -> tuple[HeavyHitters, ...]:
        return tuple(one for one in self.blocks if isinstance(one, HeavyHitters))

    def of(self, x: Rows) -> Int64:
        """Return the weighted sums (cells,) over records x (n, values)."""
        x = x[self._asked(x)]
        parts = [w * one.of(x) for w, one in zip(self.weights, self.blocks, strict=True)]
        return np.concatenate(parts)

    def means(self, x: Rows, owners: Int64, bits: int) -> Int64:
        """Return the sum (cells,) over owners of the mean of each one's records, in 2**-`bits`.

        `owners` (n,) counts from 0. A record that is not asked counts in its owner's mean, as 0."""
        sizes, asked = np.bincount(owners), self._asked(x)
        x, owners, found = x[asked], owners[asked], []
        for weight, one in zip(self.weights, self.blocks, strict=True):
            total = np.zeros(one.cells, np.int64)
            if isinstance(one, HeavyHitters):
                for own in grouped(owners):
                    total += _mean(weight * one.of(x[own]), sizes[owners[own[0]]], bits)
            else:
                cells, steps = one.parts(x)
                pairs, at = np.unique(owners[:, None] * one.cells + cells, return_inverse=True)
                sums = np.zeros(len(pairs), np.int64)
                np.add.at(sums, at.ravel(), weight * steps.ravel())
                np.add.at(total, pairs % one.cells, _mean(sums, sizes[pairs // one.cells], bits))
            found.append(total)
        return np.concatenate(found)

    def steps(self, records: Records, event: GaussianEvent, room: int) -> Int64:
        """Return the sums in steps within ±`room`; a person's, or the device's, are means."""
        records = records.at(records.y >= 0)  # others are broken rows
        owners, bits, x = records.owners(event.unit), event.grid_bits, flat_rows(records.x)
        if owners is not None:
            return np.clip(self.means(x, owners, bits), -room, room)
        whole = room >> bits  # cut first: the shift of a large sum would overflow
        return np.clip(self.of(x), -whole, whole) << bits

    def room(self, event: GaussianEvent, nominal_records: int) -> int:
        """Return the bound on a cell of one device, in steps."""
        most = 1 if event.unit == "device" else ROOM * nominal_records
        return min(most * self.largest << event.grid_bits, MOST)

    def _asked(self, x: Rows) -> NDArray[np.bool_]:
        found = np.ones(len(x), np.bool_)
        for one in self.questions.conditions:
            found &= _meets(one, self.questions, x)
        return found

    def split(self, sums: NDArray[np.float64]) -> Iterator[tuple[Block, int, NDArray[np.float64]]]:
        """Yield each block with its weight and its sums, in units of what a record adds."""
        start = 0
        for weight, one in zip(self.weights, self.blocks, strict=True):
            yield one, weight, sums[start : start + one.cells] / (weight * one.whole)
            start += one.cells


def _mean(sums: Int64, of: Int64, bits: int) -> Int64:
    """Return sums / of in steps of 2**-`bits`, rounded down, without an overflow of the shift."""
    each, rest = np.divmod(sums, of)
    return np.asarray((each << bits) + (rest << bits) // of)


def _meets(one: Condition, questions: Questions, x: Rows) -> NDArray[np.bool_]:
    column = questions.by_name[one.column]
    values = x[:, questions.places[one.column]].astype(np.float64)
    literal = float(one.literal) if column.category is None else column.category.index(one.literal)
    compared = {
        "<": np.less,
        "<=": np.less_equal,
        ">": np.greater,
        ">=": np.greater_equal,
        "=": np.equal,
        "!=": np.not_equal,
    }
    with np.errstate(over="ignore"):  # a literal beyond float32 is infinite, as a value is
        met: NDArray[np.bool_] = compared[one.operator](values, np.float32(literal))
    return met & ~np.isnan(values)


def made_up(questions: Questions, count: int, chance: np.random.Generator) -> Rows:
    """Return records (count, values), uniform in the public ranges and lists, none missing."""
    parts = list[NDArray[Any]]()
    for column in questions.columns:
        if column.values is not None:
            parts.append(chance.integers(97, 123, (count, column.read_as.width)))
        elif column.category is not None:
            parts.append(chance.integers(0, len(column.category), (count, 1)))
        else:
            low, high = column.number or (0.0, 1.0)
            parts.append(chance.uniform(low, high, (count, 1)))
    return np.concatenate(parts, axis=1).astype(np.float32)


def dearest(questions: Questions, count: int, chance: np.random.Generator) -> Rows:
    """Return made-up records that take longest: all pass the filter, and no value is missing."""
    made = made_up(questions, count, chance)
    for name in {one.column for one in questions.conditions}:
        own = [one for one in questions.conditions if one.column == name]
        column = questions.by_name[name]
        low, high = column.number or (0, len(column.category or ()) - 1)
        made[:, questions.places[name]] = _met_by_all(own, questions, low, high)
    return made


def _met_by_all(own: list[Condition], questions: Questions, low: float, high: float) -> float:
    """Return a value that meets all conditions of a column; if none does, one that does not."""
    column = questions.by_name[own[0].column]
    if column.category is not None:
        tried = np.arange(len(column.category), dtype=np.float32)
    else:
        with np.errstate(over="ignore"):  # as of a literal in `_meets`
            ends = np.array([low, high, *(float(one.literal) for one in own)], np.float32)
        tried = np.concatenate([ends, np.nextafter(ends, -np.inf), np.nextafter(ends, np.inf)])
    x = np.zeros((len(tried), questions.records_schema.width), np.float32)
    x[:, questions.places[column.name]] = tried
    met = np.all([_meets(one, questions, x) for one in own], axis=0)
    return float(tried[np.argmax(met)])


def vectors(questions: Questions, exchanges: int) -> tuple[BlockVector, ...]:
    """Return the vector of each exchange: a level of each column of values, and of the others.

    Other blocks are dealt to the exchanges in turn."""
    blocks, places = tuple(_blocks(questions)), questions.places
    columns = [(one.name, one.values) for one in questions.columns if one.values is not None]
    levels = [
        tuple(HeavyHitters(name, places[name], of.length, at, of.words) for name, of in columns)
        for at in range(exchanges)
    ]
    return tuple(
        BlockVector((*blocks[at::exchanges], *(levels[at] if at in LEVELS else ())), questions)
        for at in range(exchanges)
    )


def _blocks(questions: Questions) -> Iterator[Block]:
    correlated = {name for pair in questions.correlations for name in pair}
    for one in questions.columns:
        if one.values is not None:
            continue
        yield _counts_of(one, questions)
        squares = "deviation" in one.ask or one.name in correlated
        if one.number is not None and (squares or "mean" in one.ask):
            yield Moments(one.name, _scaled(one, questions), squares)
    for pair in questions.tables:
        of = tuple(_codes(questions.by_name[name], questions) for name in pair)
        yield Counts(pair, of)
    for pair in questions.correlations:
        numbers = tuple(_scaled(questions.by_name[name], questions) for name in pair)
        yield Product(pair, (numbers[0], numbers[1]))


def _counts_of(one: AskedColumn, questions: Questions) -> Counts:
    if one.category is not None:
        return Counts((one.name,), (_codes(one, questions),))
    in_tables = any(one.name in pair for pair in questions.tables)
    if not {"histogram", "quantiles"} & set(one.ask) and not in_tables:
        low, high = one.number or (0.0, 1.0)
        return Counts((one.name,), (Codes(questions.places[one.name], 4, (low, high)),))
    fine = _FINE if "quantiles" in one.ask else 1
    edges = tuple(
        low + (high - low) * part / fine
        for low, high in zip(one.edges, one.edges[1:], strict=False)
        for part in range(fine)
    )
    codes = Codes(questions.places[one.name], len(edges) + 3, (*edges, one.edges[-1]))
    if fine == 1:
        return Counts((one.name,), (codes,))
    return Counts((one.name,), (codes,), *_strategy(codes.size, fine))


@lru_cache(maxsize=64)
def _strategy(size: int, fine: int) -> tuple[float, int, int]:
    """Return the scale of an answer, `fine`, and the `group` whose answers have the least noise.

    The worst of ranks (sums of the first k cells) and, as shares are small, twice of bins (`fine`
    cells), for noise of 1 in each cell and a known number of records; times the bound on squares,
    so that all are as dear."""

    def worst(group: int) -> float:
        k, less = np.arange(1, size + 1), 1 / (group + 1) if group > 1 else 0.0
        rest = k % group
        ranks = (k - rest) * (less if group > 1 else 1.0) + rest - less * rest**2
        ranks -= k * k / size * (less if group > 1 else 1.0)
        return float(max(ranks.max(), 2 * fine) + _TIE * ranks.max())

    groups = sorted({round(2 ** (at / 2)) for at in range(2 * size.bit_length())})
    best = min(groups, key=lambda group: worst(group) * (1 if group == 1 else 2))
    return math.sqrt(worst(best)), fine, best


def _codes(one: AskedColumn, questions: Questions) -> Codes:
    edges = () if one.number is None else one.edges
    return Codes(questions.places[one.name], one.codes, edges)


def _scaled(one: AskedColumn, questions: Questions) -> Scaled:
    low, high = one.number or (0.0, 1.0)
    return Scaled(questions.places[one.name], low, high)
