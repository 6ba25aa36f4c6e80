"""Drift: how far the answers of two questions about the same columns are apart.

A column's records have a share in each bin or category, and in clipped, other and missing ones. Two
questions are their total variation apart, half the sum of the shares' differences. How far noise
and chance alone move them, both questions' records drawn from one population, is known by draws:
mean, variance and skewness, and the gamma distribution with those. A column has drifted beyond the
limit that no column exceeds by chance in 19 of 20 questions. All of it is post-processing of noised
answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeveil.evaluation.figures import to_digits
from edgeveil.logs import printable
from edgeveil.statistics.heavy_hitters import NORMAL_95

Answers = Mapping[str, Mapping[str, Any]]  # of one column, by statistic
_RISK = 0.05
_DRAWS = 4000


class _Shares(NamedTuple):
    """Shares (n,) of a column's records, the noise's variance in each, and the records."""

    cells: tuple[Any, ...]  # which bins or categories
    value: NDArray[np.float64]
    variance: NDArray[np.float64]
    records: float


def drift(before: Mapping[str, Any], now: Mapping[str, Any], since: str) -> dict[str, Any]:
    """Return `since` and, for each column in both answers with the same cells, its drift.

    None of answers with another filter or unit, which are about other records or weigh them
    otherwise."""
    alike = all(before.get(key) == now.get(key) for key in ("where", "unit"))
    old, new = (_by_column(before), _by_column(now)) if alike else ({}, {})
    both = [(name, _shares(old[name]), _shares(new[name])) for name in new if name in old]
    same = [(name, a, b) for name, a, b in both if a and b and a.cells == b.cells]
    columns = [_column(name, a, b, len(same)) | _shift(old[name], new[name]) for name, a, b in same]
    return {"since": since, "columns": columns}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each column."""
    for one in found.get("columns", ()):
        verdict = "drifted" if one["drifted"] else "no drift"
        far = f"{100 * one['distance']:.2g} % apart, by chance up to {100 * one['by_chance']:.2g} %"
        yield f"{printable(one['column'])}: {verdict} since {found['since']}, {far}"


def _by_column(whole: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for one in whole["answers"]:
        if "column" in one and not one.get("too_noisy"):
            found.setdefault(one["column"], {})[one["statistic"]] = one
    return found


def _shares(of: Answers) -> _Shares | None:
    if found := of.get("categories"):
        counts, off = np.array(found["value"]), np.array(found["plus_minus"])
        cells = tuple(found["names"])
    elif {"histogram", "count", "clipped", "missing"} <= of.keys():
        found, others = of["histogram"], [of["clipped"], of["missing"]]
        present = of["count"]["value"]
        counts = np.array([*np.multiply(found["value"], present), *(o["value"] for o in others)])
        off = np.multiply(found["plus_minus"], present)
        off = np.array([*off, *(one["plus_minus"] for one in others)])
        cells = tuple(found["edges"])
    else:
        return None
    records = float(counts.sum())
    if records <= 0:
        return None
    return _Shares(cells, counts / records, np.square(off / NORMAL_95 / records), records)


def _column(name: str, a: _Shares, b: _Shares, columns: int) -> dict[str, Any]:
    limit = _by_chance(a, b, _RISK / columns)
    distance = float(np.abs(a.value - b.value).sum() / 2)
    return {
        "column": name,
        "distance": to_digits(distance),
        "by_chance": to_digits(limit),
        "drifted": bool(distance > limit),
    }


def _by_chance(a: _Shares, b: _Shares, risk: float) -> float:
    from scipy.special import gammaincinv  # scipy.stats takes a second and 50 MB more to import

    both = np.maximum(a.records * a.value + b.records * b.value, 0.0)
    root = np.sqrt(both / both.sum())
    noise, drawn = np.random.default_rng(0).standard_normal((2, _DRAWS, len(root)))
    # Records by cell: multinomial, of covariance diag(p) - p·pᵀ.
    records = (drawn - (drawn @ root)[:, None] * root) * root
    moved = np.sqrt(a.variance + b.variance) * noise
    moved += math.sqrt(1 / a.records + 1 / b.records) * records
    found = np.abs(moved).sum(axis=1) / 2
    spread = found.std()
    if not spread:
        return 0.0
    shape = 4 / max(float(np.mean(((found - found.mean()) / spread) ** 3)), 0.1) ** 2
    beyond = (gammaincinv(shape, 1 - risk) - shape) / math.sqrt(shape)
    return float(found.mean() + spread * beyond)


def _shift(old: Answers, new: Answers) -> dict[str, float]:
    """Return how far a mean moved, with the noise's ±."""
    if "mean" not in old or "mean" not in new:
        return {}
    off = math.hypot(old["mean"]["plus_minus"], new["mean"]["plus_minus"])
    moved = new["mean"]["value"] - old["mean"]["value"]
    return {"mean_shift": to_digits(moved), "mean_shift_plus_minus": to_digits(off)}
