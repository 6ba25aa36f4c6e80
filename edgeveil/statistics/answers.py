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
from itertools import pairwise
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


@dataclass
class CountEstimate(Estimate):
    """Counts of records by cell, of which those in groups were also counted together.

    Counts of 0 or more are found from the groups' to the cells'. What is 0 bears no noise of the
    others, which share its part equally."""

    block: Counts

    def covariance(self, a: Float64, b: Float64) -> float:
        return self.variance * self.block.covariance(a, b)

    @property
    def all(self) -> float:
        """The variance of the sum of all cells."""
        every = np.ones(len(self.value))
        return self.covariance(every, every)

    def nearest(self, records: float) -> None:
        """Change the counts to the nearest of 0 or more that add up to the records."""
        starts = self.block.starts
        totals = at_least_zero(np.add.reduceat(self.value, starts), records)
        parts = zip(np.split(self.value, starts[1:]), totals, strict=True)
        if self.block.group > 1:
            totals = np.concatenate([at_least_zero(part, total) for part, total in parts])
        self.value = totals

    def known(self, of: Float64, records_variance: float) -> float:
        """Return the variance of a weighted sum of counts that add up to the records."""
        starts, active = self.block.starts, (self.value > 0).astype(np.float64)
        if not (of * active).any():
            return self.covariance(of, of)
        sizes = np.diff(starts, append=len(of))
        there = np.add.reduceat(active, starts)
        mean = np.add.reduceat(of * active, starts) / np.maximum(there, 1)
        inside = float(active @ np.square(of - np.repeat(mean, sizes)))
        weight = (there > 0) * (sizes / (sizes + 1) if self.block.group > 1 else 1.0)
        whole = float(weight @ mean) / float(weight.sum())
        return self.variance * (inside + float(weight @ np.square(mean - whole))) + (
            whole**2 * records_variance
        )


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
        self.counts: dict[str, CountEstimate] = {}
        self.tables: list[CountEstimate] = []
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
                else:
                    counts = CountEstimate(block.counts(sums), estimate.variance, block)
                    if len(block.columns) == 1:
                        self.counts[block.columns[0]] = counts
                    else:
                        self.tables.append(counts)
        self.records, self.records_variance = self._records()
        for counts in self.counts.values():
            self._refine(counts)
        self.records = max(0.0, self.records)
        for counts in self.counts.values():
            counts.nearest(self.records)
        for counts in self.tables:
            self._fit(counts)

    def _records(self) -> tuple[float, float]:
        """Return the number of records from all blocks, by their precision, and its variance."""
        every = [(one.value.sum(), one.all) for one in (*self.counts.values(), *self.tables)]
        for block, one in self.values.values():
            found = block.counted(one.value)
            every.append((found.sum(), one.variance * len(found)))
        precision = sum(1 / variance for _, variance in every)
        return float(sum(total / variance for total, variance in every)) / precision, 1 / precision

    def _refine(self, counts: CountEstimate) -> None:
        """Let a column's counts take in its tables' margins, and add up to the records."""
        name, cells, sizes = counts.block.columns[0], len(counts.value), _sizes(counts.block)
        merged = _merged(counts)
        spread = counts.all / counts.variance / len(merged)  # of one merged count, about
        precision = 1 / (counts.variance * spread)
        total, weight = merged * precision, precision
        for table in self.tables:
            if name in table.block.columns:
                margin = _margin(table, name)
                own = 1 / (table.variance * len(table.value) / len(margin))
                total, weight = total + margin * own, weight + own
        counts.variance = 1 / (weight * spread)
        value = counts.value + np.repeat((total / weight - merged) / sizes, sizes)
        counts.value = value + (self.records - value.sum()) / cells

    def _fit(self, counts: CountEstimate) -> None:
        """Project a table to its columns' counts by least squares, then to counts of 0 or more."""
        shape = tuple(one.size for one in counts.block.codes)
        table = counts.value.reshape(shape)
        rows, columns = (_merged(self.counts[name]) for name in counts.block.columns)
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
        counts.value = table.ravel()

    # --- answers ---

    def all(self) -> Iterator[dict[str, Any]]:
        for one in self.questions.columns:
            if one.name in self.counts:
                yield from self._column(one)
            else:
                yield from self._values(one)
        for counts in self.tables:
            names = [_names(self.questions.by_name[name]) for name in counts.block.columns]
            shape = [len(each) for each in names]
            pm = NORMAL_95 * math.sqrt(counts.variance)
            yield {
                "statistic": "table",
                "columns": list(counts.block.columns),
                "names": names,
                "value": [_digits(row) for row in counts.value.reshape(shape)],
                "plus_minus": to_digits(pm),
                "too_noisy": bool(pm > self.records / max(shape)),
            }
        for product, estimate in self.products:
            yield self._correlation(product, estimate)

    def remarks(self) -> Iterator[str]:
        """Yield what the noised counts tell of ranges and lists that do not fit."""
        for one in self.questions.columns:
            counts = self.counts.get(one.name)
            if counts is None:
                continue
            missing, off = self._sum(counts, _cells(counts, -1))
            present = float(counts.value[:-1].sum())
            if missing > max(present, 2 * off):
                yield f"'{one.name}': most of its values are missing, or not of its kind"
            at = (0, -2) if one.number is not None else (-2,)
            beyond, off = self._sum(counts, _cells(counts, *at))
            if beyond <= max(_TOLD * present, 2 * off):
                continue
            share = f"'{one.name}': about {beyond / present:.0%} of its values are"
            if one.number is not None:
                yield f"{share} outside {one.number[0]:g} to {one.number[1]:g}; widen the range"
            else:
                yield f"{share} not in its list; name more, or ask for values"

    def _column(self, one: AskedColumn) -> Iterator[dict[str, Any]]:
        counts = self.counts[one.name]
        there = _cells(counts, *range(len(counts.value) - 1))
        yield self._said("count", one, *self._sum(counts, there))
        yield self._said("missing", one, *self._sum(counts, _cells(counts, -1)))
        if one.category is not None:
            names = _names(one)
            off = [self._sum(counts, _cells(counts, at))[1] for at in range(len(names))]
            yield {
                "statistic": "categories",
                "column": one.name,
                "names": names,
                "value": _digits(counts.value),
                "plus_minus": _digits(off),
                "too_noisy": bool(max(off) > self.records / 2),
            }
            return
        yield self._said("clipped", one, *self._sum(counts, _cells(counts, 0, -2)))
        if one.name in self.moments:
            yield from self._moments(one, *self._sum(counts, there))
        if "histogram" in one.ask:
            yield self._histogram(one, counts, there)
        if "quantiles" in one.ask:
            yield self._quantiles(one, counts, there)

    def _sum(self, counts: CountEstimate, cells: Float64) -> tuple[float, float]:
        """Return a weighted sum of a column's counts, and its ±."""
        variance = counts.known(cells, self.records_variance)
        return float(counts.value @ cells), NORMAL_95 * math.sqrt(max(0.0, variance))

    def _share(self, counts: CountEstimate, cells: Float64, of: Float64) -> tuple[float, float]:
        """Return some cells' share of others that include them, and its ±."""
        whole = max(float(counts.value @ of), 1.0)
        share = min(1.0, float(counts.value @ cells) / whole)
        return share, self._sum(counts, cells - share * of)[1] / whole

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

    def _moments(self, one: AskedColumn, present: float, off: float) -> Iterator[dict[str, Any]]:
        block, estimate = self.moments[one.name]
        half, middle, variance = block.number.half, block.number.middle, (off / NORMAL_95) ** 2
        if present <= off:
            for what in [name for name in ("mean", "deviation") if name in one.ask]:
                yield {"statistic": what, "column": one.name, **_UNKNOWN}
            return
        if "mean" in one.ask:
            values, variances = [estimate.value[0], present], [estimate.variance, variance]
            mean, pm = delta(lambda v: v[0] / v[1], values, variances)
            value = middle + half * min(1.0, max(-1.0, mean))
            yield {**self._said("mean", one, value, half * pm), "too_noisy": bool(pm > 0.5)}
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

    def _histogram(self, one: AskedColumn, counts: CountEstimate, there: Float64) -> dict[str, Any]:
        ends = np.cumsum([0, *_sizes(counts.block)])[1:-2]  # of the bins
        found = [
            self._share(counts, _cells(counts, *range(*ends_of)), there)
            for ends_of in pairwise(ends)
        ]
        shares, off = zip(*found, strict=True)
        return {
            "statistic": "histogram",
            "column": one.name,
            "edges": [float(edge) for edge in one.edges],
            "value": _digits(shares),
            "plus_minus": _digits(off),
            "too_noisy": bool(np.mean(off) > 1 / max(2, len(off))),
        }

    def _quantiles(self, one: AskedColumn, counts: CountEstimate, there: Float64) -> dict[str, Any]:
        edges = np.array(counts.block.codes[0].edges)
        present = max(float(counts.value @ there), 1.0)
        below = np.minimum(np.cumsum(counts.value[: len(edges)]) / present, 1.0)
        found, noise, errors, spans = list[float](), list[float](), list[float](), list[float]()
        for rank in RANKS:
            found.append(quantile(below, edges, rank))
            at = int(np.searchsorted(below, rank)) + 1
            noise.append(self._share(counts, _cells(counts, *range(at)), there)[1])
            chance, shape, width = _within(below, edges, rank, present)
            off = math.hypot(noise[-1], chance)
            ends = quantile(below, edges, rank + off), quantile(below, edges, rank - off)
            errors.append(off + shape)
            spans.append((ends[0] - ends[1]) / 2 + width)
        return {
            "statistic": "quantiles",
            "column": one.name,
            "ranks": list(RANKS),
            "value": _digits(found),
            "plus_minus": _digits(spans),
            "rank_plus_minus": to_digits(max(errors)),
            "cell": to_digits(float(np.diff(edges).max())),  # within which values are not known
            "too_noisy": bool(max(noise) > 0.25),
        }

    def _correlation(self, block: Product, estimate: Estimate) -> dict[str, Any]:
        plain = {"statistic": "correlation", "columns": list(block.columns)}
        values, variances = list(estimate.value), [estimate.variance] * 2
        for name in block.columns:
            counts, moments = self.counts[name], self.moments[name][1]
            there = _cells(counts, *range(len(counts.value) - 1))
            present, own = self._sum(counts, there)
            values += [*moments.value, present]
            variances += [moments.variance, moments.variance, (own / NORMAL_95) ** 2]
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
    """Return the value of a rank; `below` are the shares under each edge.

    Within a cell the density is taken as linear, with the lesser of both neighbours' slopes."""
    at = int(np.searchsorted(below, rank, side="left"))
    if at == 0:
        return float(edges[0])
    if at >= len(edges):
        return float(edges[-1])
    share, slope, _ = _slopes(below, at)
    # share·t + slope·(t² - t)/2 is the rank within the cell, t from 0 to 1.
    linear, rest = share - slope / 2, rank - float(below[at - 1])
    root = math.sqrt(max(0.0, linear**2 + 2 * slope * rest))
    part = min(1.0, 2 * rest / (linear + root)) if linear + root > 0 else 1.0
    return float(edges[at - 1] + part * (edges[at] - edges[at - 1]))


def _slopes(below: Float64, at: int) -> tuple[float, float, float]:
    """Return a cell's share, and the lesser and the greater slope to its neighbours' shares.

    The lesser is 0 if the slopes have two signs."""
    ends = below[[max(at - 2, 0), at - 1, at, min(at + 1, len(below) - 1)]]
    before, share, after = np.diff(ends).tolist()
    if at < 2 or at + 1 >= len(below):  # beyond the range nothing is known
        before, after = (share if at < 2 else before), (share if at + 1 >= len(below) else after)
    lesser, greater = sorted((share - before, after - share), key=abs)
    return share, lesser if lesser * greater > 0 else 0.0, greater


def _within(
    below: Float64, edges: Float64, rank: float, present: float
) -> tuple[float, float, float]:
    """Return how far a rank may be off within its cell: by chance (95 %), and by its slopes.

    Also how far the latter moves its value."""
    at = int(np.searchsorted(below, rank))
    if not 0 < at < len(below):
        return 0.0, 0.0, 0.0
    share, slope, greater = _slopes(below, at)
    if share <= 0:
        return 0.0, 0.0, 0.0
    part = (rank - float(below[at - 1])) / share
    spread = part * (1 - part)
    shape = abs(greater - slope) * spread
    width = shape / share * float(edges[at] - edges[at - 1])
    return NORMAL_95 * math.sqrt(share * spread / present), shape, width


def _sizes(block: Counts) -> NDArray[np.int64]:
    """Return the number of cells that each of the column's codes has."""
    size = block.codes[0].size
    if block.fine == 1:
        return np.ones(size, np.int64)
    return np.array([1, *[block.fine] * ((size - 3) // block.fine), 1, 1], np.int64)


def _merged(counts: CountEstimate) -> Float64:
    starts = np.concatenate([[0], np.cumsum(_sizes(counts.block))[:-1]])
    return np.asarray(np.add.reduceat(counts.value, starts))


def _margin(table: CountEstimate, name: str) -> Float64:
    cells = table.value.reshape([one.size for one in table.block.codes])
    return np.asarray(cells.sum(axis=1 - table.block.columns.index(name)))


def _cells(counts: CountEstimate, *at: int) -> Float64:
    """Return 1 for some cells, 0 for others."""
    found = np.zeros(len(counts.value))
    found[list(at)] = 1.0
    return found


def _names(one: AskedColumn) -> list[str]:
    if one.category is not None:
        return [*one.category, OTHER, MISSING]
    bins = [f"{low:g} to {high:g}" for low, high in zip(one.edges, one.edges[1:], strict=False)]
    return [BELOW, *bins, ABOVE, MISSING]


def _digits(values: Sequence[float] | Float64) -> list[float]:
    return [to_digits(float(one)) for one in values]
