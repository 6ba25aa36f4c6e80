"""Answers from noised sums: consistent counts, and what is computed from them, each with its ±.

± is 1.96 standard deviations of the noise, by the delta method; it says nothing about sampling.
Everything here is post-processing. Counts are made consistent in this order: all blocks agree on
the number of records; a column's counts take in what its tables tell of it; tables agree with their
columns' counts; no count is negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.evaluation.figures import to_digits
from edgeveil.statistics.blocks import BlockVector, Counts, Moments, Product
from edgeveil.statistics.heavy_hitters import CANDIDATES, NORMAL_95, HeavyHitters
from edgeveil.statistics.questions import AskedColumn, Questions

Float64 = NDArray[np.float64]
_UNKNOWN = {"value": None, "plus_minus": None, "too_noisy": True}
_LEAST, _SCALINGS = 1e-9, 100
RANKS = (0.01, *(at / 10 for at in range(1, 10)), 0.99)  # the ends for a least and a greatest value
_TOLD = 0.05  # share of values beyond a range or list that is remarked on
OTHER, MISSING, BELOW, ABOVE = "(other)", "(missing)", "(below)", "(above)"


@dataclass(frozen=True)
class Sums:
    """The sums of one exchange over `uploads` devices, and the noise's deviation in each."""

    vector: BlockVector
    sums: Float64
    deviation: float
    uploads: int


@dataclass
class Estimate:
    """Numbers, and the variance of the noise in each."""

    value: Float64
    variance: float


def answered(
    questions: Questions, exchanges: Sequence[Sums], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all answers as JSON; `facts` are added to them."""
    found = _Answers(questions, exchanges)
    return {
        "records": to_digits(found.records),
        "records_plus_minus": to_digits(NORMAL_95 * math.sqrt(found.records_variance)),
        **facts,
        "uploads": min(one.uploads for one in exchanges),
        **({"where": questions.where} if questions.where else {}),
        "remarks": list(found.remarks()),
        "answers": list(found.all()),
    }


def delta(
    of: Callable[[Float64], float], values: Sequence[float], variances: Sequence[float]
) -> tuple[float, float]:
    """Return a function's value and its ± by the delta method, for independent `values`."""
    at, changed = np.array(values, np.float64), 0.0
    for index, variance in enumerate(variances):
        step = np.zeros(len(at))
        step[index] = max(1e-6 * math.sqrt(variance), 1e-9)
        slope = (of(at + step) - of(at - step)) / (2 * step[index])
        changed += slope**2 * variance
    return of(at), NORMAL_95 * math.sqrt(changed)


class _Answers:
    def __init__(self, questions: Questions, exchanges: Sequence[Sums]) -> None:
        self.questions = questions
        self.counts: dict[str, tuple[Counts, Estimate]] = {}
        self.tables: list[tuple[Counts, Estimate]] = []
        self.moments: dict[str, tuple[Moments, Estimate]] = {}
        self.products: list[tuple[Product, Estimate]] = []
        self.values: dict[str, tuple[HeavyHitters, Estimate]] = {}
        for one in exchanges:
            for block, weight, sums in one.vector.split(one.sums):
                estimate = Estimate(sums, (one.deviation / (weight * block.whole)) ** 2)
                if isinstance(block, Moments):
                    self.moments[block.column] = block, estimate
                elif isinstance(block, Product):
                    self.products.append((block, estimate))
                elif isinstance(block, HeavyHitters):
                    if block.level == CANDIDATES:
                        self.values[block.column] = block, estimate
                elif len(block.columns) == 1:
                    self.counts[block.columns[0]] = block, estimate
                else:
                    self.tables.append((block, estimate))
        self.records, self.records_variance = self._records()
        for block, estimate in self.counts.values():
            self._refine(block, estimate)
        self.records = max(0.0, self.records)
        for _, estimate in self.counts.values():
            estimate.value = at_least_zero(estimate.value, self.records)
        for block, estimate in self.tables:
            self._fit(block, estimate)

    def _records(self) -> tuple[float, float]:
        """Return the number of records from all blocks, by their precision, and its variance."""
        every = [one for _, one in (*self.counts.values(), *self.tables)]
        for block, one in self.values.values():
            every.append(Estimate(block.counted(one.value), one.variance))
        precision = [1 / (one.variance * len(one.value)) for one in every]
        weighted = sum(p * one.value.sum() for p, one in zip(precision, every, strict=True))
        return float(weighted) / sum(precision), 1 / sum(precision)

    def _refine(self, block: Counts, estimate: Estimate) -> None:
        """Let a column's counts take in its tables' margins, and add up to the records."""
        name, cells = block.columns[0], len(estimate.value)
        merged = _merged(block, estimate.value)
        spread = cells / len(merged)  # cells of one merged count
        precision = 1 / (estimate.variance * spread)
        total, weight = merged * precision, precision
        for table, of_table in self.tables:
            if name in table.columns:
                margin = _margin(table, of_table.value, name)
                own = 1 / (of_table.variance * len(of_table.value) / len(margin))
                total, weight = total + margin * own, weight + own
        estimate.variance = 1 / (weight * spread)
        change = (total / weight - merged) / _sizes(block)
        value = estimate.value + np.repeat(change, _sizes(block))
        estimate.value = value + (self.records - value.sum()) / cells

    def _fit(self, block: Counts, estimate: Estimate) -> None:
        """Project a table to its columns' counts by least squares, then to counts of 0 or more."""
        shape = tuple(one.size for one in block.codes)
        table = estimate.value.reshape(shape)
        of = [self.counts[name] for name in block.columns]
        rows, columns = (_merged(counts, one.value) for counts, one in of)
        total = rows.sum() - table.sum()
        table = (
            table
            + (rows - table.sum(axis=1))[:, None] / shape[1]
            + (columns - table.sum(axis=0))[None, :] / shape[0]
            - total / table.size
        )
        # Scaling to both margins in turn keeps counts at 0 or more.
        table = at_least_zero(table.ravel(), self.records).reshape(shape) + _LEAST
        for _ in range(_SCALINGS):
            table *= (rows / np.maximum(table.sum(axis=1), _LEAST))[:, None]
            table *= (columns / np.maximum(table.sum(axis=0), _LEAST))[None, :]
            if np.abs(table.sum(axis=1) - rows).sum() <= 1e-6 * self.records:
                break
        estimate.value = table.ravel()

    # --- answers ---

    def all(self) -> Iterator[dict[str, Any]]:
        for one in self.questions.columns:
            if one.name in self.counts:
                yield from self._column(one)
            else:
                yield from self._values(one)
        for block, estimate in self.tables:
            names = [_names(self.questions.by_name[name]) for name in block.columns]
            shape = [len(each) for each in names]
            pm = NORMAL_95 * math.sqrt(estimate.variance)
            yield {
                "statistic": "table",
                "columns": list(block.columns),
                "names": names,
                "value": [_digits(row) for row in estimate.value.reshape(shape)],
                "plus_minus": to_digits(pm),
                "too_noisy": bool(pm > self.records / max(shape)),
            }
        for product, estimate in self.products:
            yield self._correlation(product, estimate)

    def remarks(self) -> Iterator[str]:
        """Yield what the noised counts tell of ranges and lists that do not fit."""
        for one in self.questions.columns:
            block, estimate = self.counts.get(one.name, (None, None))
            if block is None or estimate is None:
                continue
            present, missing = float(estimate.value[:-1].sum()), float(estimate.value[-1])
            if missing > max(present, 2 * NORMAL_95 * math.sqrt(self._variance(estimate, 1))):
                yield f"'{one.name}': most of its values are missing, or not of its kind"
            beyond = estimate.value[[0, -2]] if one.number is not None else estimate.value[[-2]]
            off = NORMAL_95 * math.sqrt(self._variance(estimate, len(beyond)))
            if beyond.sum() <= max(_TOLD * present, 2 * off):
                continue
            share = f"'{one.name}': about {beyond.sum() / present:.0%} of its values are"
            if one.number is not None:
                yield f"{share} outside {one.number[0]:g} to {one.number[1]:g}; widen the range"
            else:
                yield f"{share} not in its list; name more, or ask for values"

    def _column(self, one: AskedColumn) -> Iterator[dict[str, Any]]:
        block, estimate = self.counts[one.name]
        cells, missing = estimate.value, float(estimate.value[-1])
        present = float(cells[:-1].sum())
        single = NORMAL_95 * math.sqrt(self._variance(estimate, 1))
        yield self._said("count", one, present, single)
        yield self._said("missing", one, missing, single)
        if one.category is not None:
            names = _names(one)
            yield {
                "statistic": "categories",
                "column": one.name,
                "names": names,
                "value": _digits(cells),
                "plus_minus": [to_digits(single)] * len(names),
                "too_noisy": bool(single > self.records / 2),
            }
            return
        clipped = float(cells[0] + cells[-2])
        both = NORMAL_95 * math.sqrt(self._variance(estimate, 2))
        yield self._said("clipped", one, clipped, both)
        if one.name in self.moments:
            yield from self._moments(one, present, self._variance(estimate, 1))
        if "histogram" in one.ask:
            yield self._histogram(one, block, estimate, present)
        if "quantiles" in one.ask:
            yield self._quantiles(one, block, estimate, present)

    def _values(self, one: AskedColumn) -> Iterator[dict[str, Any]]:
        block, estimate = self.values[one.name]
        missing, single = float(estimate.value[-1]), NORMAL_95 * math.sqrt(estimate.variance)
        off = math.sqrt(single**2 + NORMAL_95**2 * self.records_variance)
        yield self._said("count", one, max(0.0, self.records - missing), off)
        yield self._said("missing", one, max(0.0, missing), single)
        yield block.answer(estimate.value, math.sqrt(estimate.variance))

    def _said(self, what: str, one: AskedColumn, value: float, pm: float) -> dict[str, Any]:
        return {
            "statistic": what,
            "column": one.name,
            "value": to_digits(value),
            "plus_minus": to_digits(pm),
            "too_noisy": bool(pm > max(self.records, 1.0) / 2),
        }

    def _variance(self, estimate: Estimate, cells: int) -> float:
        """Return the variance of the sum of some cells that add up to the records with others."""
        of = len(estimate.value)
        return (
            estimate.variance * cells * (1 - cells / of) + self.records_variance * (cells / of) ** 2
        )

    def _moments(
        self, one: AskedColumn, present: float, variance: float
    ) -> Iterator[dict[str, Any]]:
        block, estimate = self.moments[one.name]
        half, middle = block.number.half, block.number.middle
        if present <= NORMAL_95 * math.sqrt(variance):
            for what in [name for name in ("mean", "deviation") if name in one.ask]:
                yield {"statistic": what, "column": one.name, **_UNKNOWN}
            return
        if "mean" in one.ask:
            values, variances = [estimate.value[0], present], [estimate.variance, variance]
            mean, pm = delta(lambda v: v[0] / v[1], values, variances)
            value = middle + half * min(1.0, max(-1.0, mean))
            yield {
                **self._said("mean", one, value, half * pm),
                "too_noisy": bool(pm > 0.5),
            }
        if "deviation" in one.ask:
            squared, pm = delta(
                _spread,
                [*estimate.value, present],
                [estimate.variance, estimate.variance, variance],
            )
            root = math.sqrt(max(0.0, squared))
            off = math.sqrt(max(0.0, squared) + pm) - root if squared < 2 * pm else pm / (2 * root)
            yield {
                **self._said("deviation", one, half * root, half * off),
                "too_noisy": bool(off > max(root, 0.05)),
            }

    def _histogram(
        self, one: AskedColumn, block: Counts, estimate: Estimate, present: float
    ) -> dict[str, Any]:
        bins = _merged(block, estimate.value)[1:-2]
        shares = bins / max(present, 1.0)
        own, whole = self._variance(estimate, block.fine), self._variance(estimate, 1)
        off = NORMAL_95 * np.sqrt(own + np.square(shares) * whole) / max(present, 1.0)
        return {
            "statistic": "histogram",
            "column": one.name,
            "edges": [float(edge) for edge in one.edges],
            "value": _digits(shares),
            "plus_minus": _digits(off),
            "too_noisy": bool(off.mean() > 1 / max(2, len(bins))),
        }

    def _quantiles(
        self, one: AskedColumn, block: Counts, estimate: Estimate, present: float
    ) -> dict[str, Any]:
        edges = np.array(block.codes[0].edges)
        below = np.cumsum(estimate.value[: len(edges)]) / max(present, 1.0)
        below = np.minimum(below, 1.0)
        cells = np.arange(1, len(edges) + 1)
        variance = np.array([self._variance(estimate, int(at)) for at in cells])
        off = NORMAL_95 * np.sqrt(variance) / max(present, 1.0)
        found = [quantile(below, edges, rank) for rank in RANKS]
        errors = [float(np.interp(value, edges, off)) for value in found]
        spans = [
            (quantile(below, edges, rank + error) - quantile(below, edges, rank - error)) / 2
            for rank, error in zip(RANKS, errors, strict=True)
        ]
        return {
            "statistic": "quantiles",
            "column": one.name,
            "ranks": list(RANKS),
            "value": _digits(found),
            "plus_minus": _digits(spans),
            "rank_plus_minus": to_digits(max(errors)),
            "too_noisy": bool(max(errors) > 0.25),
        }

    def _correlation(self, block: Product, estimate: Estimate) -> dict[str, Any]:
        plain = {"statistic": "correlation", "columns": list(block.columns)}
        values, variances = list(estimate.value), [estimate.variance] * 2
        for name in block.columns:
            counts = self.counts[name][1]
            moments = self.moments[name][1]
            values += [*moments.value, float(counts.value[:-1].sum())]
            variances += [moments.variance, moments.variance, self._variance(counts, 1)]
        both = 2 * values[1]
        few = both <= 2 * NORMAL_95 * math.sqrt(estimate.variance) or min(values[4::3]) <= 0
        if few or min(_spread(np.array(values[at : at + 3])) for at in (2, 5)) <= 0:
            return {**plain, **_UNKNOWN}
        value, pm = delta(_correlation_of, values, variances)
        value = min(1.0, max(-1.0, value))
        return {
            **plain,
            "value": to_digits(value),
            "plus_minus": to_digits(pm),
            "too_noisy": bool(pm > 0.5),
        }


def _spread(v: Float64) -> float:
    """Return the variance of z from Σz, Σ(z² - 1/2) and the number of records."""
    return float(v[1] / v[2] + 0.5 - (v[0] / v[2]) ** 2)


def _correlation_of(v: Float64) -> float:
    covariance = v[0] / (2 * v[1]) - v[2] / v[4] * v[5] / v[7]
    spread = max(1e-12, _spread(v[2:5])) * max(1e-12, _spread(v[5:8]))
    return float(covariance / math.sqrt(spread))


def at_least_zero(values: Float64, total: float) -> Float64:
    """Return the nearest values of 0 or more that add up to `total` (projection to a simplex)."""
    if total <= 0:
        return np.zeros(values.shape)
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    last = int(np.flatnonzero(ordered >= excess)[-1])
    return np.asarray(np.maximum(values - excess[last], 0.0))


def quantile(below: Float64, edges: Float64, rank: float) -> float:
    """Return the value of a rank; `below` are the shares under each edge."""
    at = int(np.searchsorted(below, rank, side="left"))
    if at == 0:
        return float(edges[0])
    if at >= len(edges):
        return float(edges[-1])
    low, high = below[at - 1], below[at]
    part = (rank - low) / (high - low) if high > low else 1.0
    return float(edges[at - 1] + part * (edges[at] - edges[at - 1]))


def _sizes(block: Counts) -> NDArray[np.int64]:
    """Return the number of cells that each of the column's codes has."""
    size = block.codes[0].size
    if block.fine == 1:
        return np.ones(size, np.int64)
    return np.array([1, *[block.fine] * ((size - 3) // block.fine), 1, 1], np.int64)


def _merged(block: Counts, value: Float64) -> Float64:
    starts = np.concatenate([[0], np.cumsum(_sizes(block))[:-1]])
    return np.asarray(np.add.reduceat(value, starts))


def _margin(table: Counts, value: Float64, name: str) -> Float64:
    cells = value.reshape([one.size for one in table.codes])
    return np.asarray(cells.sum(axis=1 - table.columns.index(name)))


def _names(one: AskedColumn) -> list[str]:
    if one.category is not None:
        return [*one.category, OTHER, MISSING]
    bins = [f"{low:g} to {high:g}" for low, high in zip(one.edges, one.edges[1:], strict=False)]
    return [BELOW, *bins, ABOVE, MISSING]


def _digits(values: Sequence[float] | Float64) -> list[float]:
    return [to_digits(float(one)) for one in values]
