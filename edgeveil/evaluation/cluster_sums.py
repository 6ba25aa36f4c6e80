"""Cluster scores from sums over evaluation records, without any single softmax vector.

The cloud broadcasts centroids on the simplex: first its corners, then the projected means of the
last noised sums. A device adds each record to its nearest centroid's sums, in exact integers: `p`
in steps of 1 / (2·STEP), all others in steps of 1 / STEP.

    for each centroid   count; p (classes,), doubled; distance ‖p − c‖
    for all together    ‖p − c‖²; simplified silhouette s; 1 − s

s = 1 − ‖p − c‖ / ‖p − c′‖ with the second nearest centroid c′ (Hruschka et al. 2004); 0 if both
distances are 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import ProtocolError
from edgeveil.evaluation.figures import to_digits
from edgeveil.evaluation.record_counts import LEAST_SIGNAL

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
STEP_BITS = 14
STEP = 1 << STEP_BITS
ONE = 2 * STEP  # steps of a probability of 1
SCORES = ("silhouette", "calinski_harabasz", "davies_bouldin")
HIDDEN = "the noise hides it"
_SUM_ERROR = 1e-3  # tolerance of a sum of probabilities, which is then scaled to 1
_TOTALS = 3
_DRAWS, _SEED = 100, 1  # of the public noise that estimates the standard errors
_SURE = 4.0  # standard errors that a reported score must exceed


@dataclass(frozen=True)
class ClusterSums:
    """Sums of records by nearest centroid, in steps of sum ≤ ONE; default: the corners."""

    classes: int
    centroids: tuple[tuple[int, ...], ...] = ()
    largest = 2 * STEP
    whole = STEP
    sensitivity_squared = 12 * STEP**2

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def cells(self) -> int:
        return self.classes * (self.classes + 2) + _TOTALS

    @property
    def about(self) -> Int64:
        found: Int64 = np.diag(np.full(self.classes, ONE, np.int64))
        if self.centroids:
            found[:] = self.centroids
        return found

    def of_broadcast(self, centroids: NDArray[np.generic]) -> ClusterSums:
        """Return the sums about these centroids, in steps. Raises ProtocolError `bad_package`."""
        whole = centroids.dtype == np.int64 and centroids.shape == (self.classes, self.classes)
        rows = tuple(tuple(row) for row in centroids.tolist()) if whole else ()
        if not rows or any(min(row) < 0 or sum(row) > ONE for row in rows):
            raise ProtocolError("bad_package", "the centroids are no distributions over classes")
        return ClusterSums(self.classes, rows)

    def of(self, outputs: Float64, labels: Int64) -> Int64:
        """Return the sums (cells,) of outputs, in steps; invalid distributions add nothing."""
        p = _in_steps(outputs)
        squares = np.stack([np.square(p - one).sum(axis=1) for one in self.about])  # exact
        own, rows = np.argmin(squares, axis=0), np.arange(len(p))
        nearest = squares[own, rows]
        squares[own, rows] = np.iinfo(np.int64).max
        second = np.sqrt(squares.min(axis=0).astype(np.float64))
        distance = np.sqrt(nearest.astype(np.float64))
        away = np.divide(distance, second, out=np.ones(len(p)), where=second > 0)
        silhouettes = STEP - np.rint(away * STEP).astype(np.int64)
        each = np.zeros((len(p), self.classes + 2), np.int64)
        each[:, 0], each[:, 1:-1] = STEP, p
        each[:, -1] = np.rint(distance / 2)
        sums = np.zeros((self.classes, self.classes + 2), np.int64)
        np.add.at(sums, own, each)
        # A square of 1 is ONE² = 4·STEP² in the steps of p.
        totals = [(nearest + 2 * STEP) // (4 * STEP), silhouettes, STEP - silhouettes]
        return np.concatenate([sums.ravel(), np.stack(totals).sum(axis=1)])

    def figures(self, counts: Float64, deviation: float) -> Mapping[str, Any]:
        """Return SCORES with `_deviation`, None if noise hides them, `clusters`, `records`."""
        sums, noise = self._sums(counts / STEP), deviation / STEP
        found = _scores(sums, noise)
        likely, chance = _likely(sums, noise), np.random.default_rng(_SEED)
        true, size = _scores(likely, 0.0), self.cells
        draws = [
            _scores(likely.plus(self._sums(chance.normal(0.0, noise, size))), noise)
            for _ in range(_DRAWS if noise else 0)
        ]
        scores: dict[str, Any] = {}
        for name in SCORES:
            off = [draw.get(name, math.inf) - true.get(name, math.nan) for draw in draws]
            error = math.sqrt(float(np.mean(np.square(off)))) if off else 0.0
            value = found.get(name, math.nan)
            sure = value >= _SURE * error  # False for NaN
            scores[name] = to_digits(value) if sure else None
            scores[f"{name}_deviation"] = to_digits(error) if sure else None
        return {
            **scores,
            "clusters": int(np.count_nonzero(_there(sums, noise))),
            "records": to_digits(max(0.0, sums.records)),
            "count_deviation": to_digits(noise),
        }

    def moved(self, counts: Float64, deviation: float) -> Int64:
        """Return the next centroids (classes, classes): projected means of noised sums."""
        sums, after = self._sums(counts / STEP), self.about
        for k in np.flatnonzero(_there(sums, deviation / STEP)):
            mean = on_simplex(sums.vectors[k] / sums.counts[k])
            after[k] = _in_steps(mean[None])[0]
        return after

    def _sums(self, cells: Float64) -> _Sums:
        by = cells[:-_TOTALS].reshape(self.classes, self.classes + 2)
        squares, silhouettes, others = cells[-_TOTALS:]
        about = self.about / ONE
        return _Sums(
            *(by[:, 0], by[:, 1:-1] / 2, by[:, -1], about),
            *(float(squares), float(silhouettes), float(silhouettes + others)),
        )


def _in_steps(outputs: Float64) -> Int64:
    """Return the valid distributions (n, classes), each rounded alone to steps of sum ONE."""
    kept = outputs[((outputs >= 0) & (outputs <= 2)).all(axis=1)]  # so none is NaN
    sums = np.array([math.fsum(row) for row in kept.tolist()])
    near = np.abs(sums - 1) < _SUM_ERROR
    exact = kept[near] / sums[near, None] * ONE
    whole = np.floor(exact).astype(np.int64)
    order = np.argsort(whole - exact, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(kept.shape[1])[None], axis=1)
    steps = whole + (rank < (ONE - whole.sum(axis=1))[:, None])
    exact_sums: Int64 = steps[steps.sum(axis=1) == ONE]  # all; the sensitivity bound needs it
    return exact_sums


@dataclass(frozen=True)
class _Sums:
    """Sums by centroid (k,), and totals of `squares`, `silhouettes` and `records`."""

    counts: Float64
    vectors: Float64
    distances: Float64
    centroids: Float64
    squares: float
    silhouettes: float
    records: float

    def plus(self, noise: _Sums) -> _Sums:
        both = {f.name: getattr(self, f.name) + getattr(noise, f.name) for f in fields(self)}
        return _Sums(**both | {"centroids": self.centroids})


def _there(sums: _Sums, noise: float) -> NDArray[np.bool_]:
    return np.asarray(sums.counts > max(0.5, LEAST_SIGNAL * noise))


def _likely(sums: _Sums, noise: float) -> _Sums:
    there = _there(sums, noise)
    counts = np.where(there, sums.counts, 0.0)
    means = sums.vectors / np.maximum(sums.counts, 1e-9)[:, None]
    means = np.stack([on_simplex(m) if k else m * 0 for m, k in zip(means, there, strict=True)])
    distances = np.clip(sums.distances, 0, math.sqrt(2) * counts)
    square = (distances**2)[there] / counts[there]
    away = np.square(means - sums.centroids).sum(axis=1) * counts
    squares = max(sums.squares, float(square.sum()), float(away.sum()))
    records = max(sums.records, LEAST_SIGNAL * math.sqrt(2) * noise)
    silhouettes = min(max(sums.silhouettes, 0.0), records)
    return _Sums(
        *(counts, means * counts[:, None], distances, sums.centroids),
        *(squares, silhouettes, records),
    )


def _scores(sums: _Sums, noise: float) -> dict[str, float]:
    """Return SCORES of these sums, minus the noise's expected share in squares."""
    found = dict[str, float]()
    if sums.records > max(0.0, LEAST_SIGNAL * math.sqrt(2) * noise):
        found["silhouette"] = min(1.0, max(0.0, sums.silhouettes / sums.records))
    there = _there(sums, noise)
    clusters = int(np.count_nonzero(there))
    if clusters < 2:
        return found
    of_count, of_vector = noise**2, sums.vectors.shape[1] * (noise / 2) ** 2
    counts, vectors, centroids = sums.counts[there], sums.vectors[there], sums.centroids[there]
    means, n = vectors / counts[:, None], float(counts.sum())
    lengths = np.minimum(np.square(means).sum(axis=1), 1.0)
    moved = np.square(vectors - counts[:, None] * centroids).sum(axis=1)
    moved -= of_vector + np.square(centroids).sum(axis=1) * of_count
    within = sums.squares - float((moved / counts).sum())
    whole = vectors.sum(axis=0)
    centre = float(whole @ whole) - clusters * (of_vector + float(whole @ whole) / n**2 * of_count)
    own = np.square(vectors).sum(axis=1) - of_vector - lengths * of_count
    between = float((own / counts).sum()) - centre / n
    if within <= 0 or between <= 0 or n <= clusters:
        return found
    found["calinski_harabasz"] = between / within * (n - clusters) / (clusters - 1)
    # Distances to means are those to broadcast centroids, scaled by the squares' reduction.
    share = math.sqrt(min(1.0, within / sums.squares)) if sums.squares > 0 else 0.0
    spread = np.maximum(sums.distances[there], 0.0) / counts * share
    off = (of_vector + lengths * of_count) / counts**2
    lengths = np.square(means).sum(axis=1)
    apart = lengths[:, None] + lengths - 2 * means @ means.T - off[:, None] - off
    np.fill_diagonal(apart, np.inf)
    if apart.min() <= 0:
        return found
    likeness = (spread[:, None] + spread) / np.sqrt(apart)
    found["davies_bouldin"] = float(likeness.max(axis=1).mean())
    return found


def on_simplex(vector: Float64) -> Float64:
    """Return the nearest vector with entries >= 0 and sum 1 (Duchi et al. 2008)."""
    falling = np.sort(vector)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(vector) + 1)
    return np.asarray(np.maximum(vector - excess[np.flatnonzero(falling > excess)[-1]], 0.0))
