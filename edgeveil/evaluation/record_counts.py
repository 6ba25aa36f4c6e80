"""Counts of devices over their evaluation records, and the cloud's figures from the noised sum.

A record is counted by its own outputs and label alone, in bounded integers, so that sums are exact
and their noise has a price. For scores a record adds 1 to one bin, of normal and unlabelled or of
anomalous records; the threshold is derived from these bins.

Each kind of counts, and `ClusterSums`, has

    outputs, cells       values per record that the model returns; number of counts
    largest, whole       the most that one record adds to a cell; the amount for a counted one
    sensitivity_squared  bound on the sum of squares that one record adds
    of                   counts (cells,) of outputs (n, outputs), NaN rows where it fails, and
                         labels (n,). Every record stays within these bounds or is not counted, and
                         changes no other record's count
    figures              JSON figures of noised counts (cells,) and the noise's deviation in each:
                         `records`, `leading`, `<leading>_deviation`; {} if there is only noise
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.anomaly import anomalous, learned_from
from edgeveil.data.target import LABELS, TargetRange
from edgeveil.evaluation.figures import (
    MOST_CROSSED,
    SCORE_BINS,
    alarm_figures,
    by_class,
    score_bins,
    to_digits,
    to_places,
)

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
LEAST_SIGNAL = 2.0  # noise deviations that a count must exceed to be reported
ERROR_STEPS = 1 << 10  # rounding steps of an error, to half of the range of a number


@dataclass(frozen=True)
class _Classes:
    classes: int
    largest = whole = 1

    @property
    def outputs(self) -> int:
        return self.classes


@dataclass(frozen=True)
class Confusion(_Classes):
    """Counts: right, wrong, and records by true (row) and predicted (column) class.

    The first two have less noise than the sum of the others. Outputs that are not finite are wrong.
    """

    sensitivity_squared = 2

    @property
    def cells(self) -> int:
        return 2 + self.classes**2

    def of(self, outputs: Float64, labels: Int64) -> Int64:
        labels, predicted = _predicted(outputs, labels, self.classes)
        there = predicted >= 0
        crossed = np.bincount(
            labels[there] * self.classes + predicted[there], minlength=self.classes**2
        )
        return np.concatenate([_right_and_wrong(labels, predicted), crossed]).astype(np.int64)

    def figures(self, counts: Float64, deviation: float) -> Mapping[str, Any]:
        """Return `accuracy`, `balanced_accuracy`, `macro_f1`, `per_class` and `confusion`."""
        crossed = counts[2:].reshape(self.classes, self.classes)
        least = LEAST_SIGNAL * deviation * math.sqrt(self.classes)
        several = by_class(np.diagonal(crossed), crossed.sum(axis=1), crossed.sum(axis=0), least)
        confusion = [[to_places(x) for x in row] for row in crossed]
        return _accuracy(counts, deviation, {**several, "confusion": confusion})


@dataclass(frozen=True)
class Hits(_Classes):
    """For many classes: right, wrong, and per class hits, misses and false predictions."""

    sensitivity_squared = 3

    @property
    def cells(self) -> int:
        return 2 + 3 * self.classes

    def of(self, outputs: Float64, labels: Int64) -> Int64:
        labels, predicted = _predicted(outputs, labels, self.classes)
        hit, there = labels == predicted, predicted >= 0
        by_class = (
            np.bincount(of, minlength=self.classes)
            for of in (labels[hit], labels[~hit], predicted[there & ~hit])
        )
        return np.concatenate([_right_and_wrong(labels, predicted), *by_class]).astype(np.int64)

    def figures(self, counts: Float64, deviation: float) -> Mapping[str, Any]:
        right, missed, taken = counts[2:].reshape(3, self.classes)
        least = LEAST_SIGNAL * deviation * math.sqrt(2)
        several = by_class(right, right + missed, right + taken, least)
        return _accuracy(counts, deviation, several)


@dataclass(frozen=True)
class Errors:
    """For a number: records, errors and squared errors, in ERROR_STEPS, each at most that.

    Errors are in halves of the target's range, at most one, also for outputs that are not finite.
    """

    target: TargetRange
    outputs = 1
    cells = 3
    largest = whole = ERROR_STEPS
    sensitivity_squared = 3 * ERROR_STEPS**2

    def of(self, outputs: Float64, labels: Int64) -> Int64:
        known = (labels >= 0) & (labels < LABELS)
        found, wanted = outputs[known, 0], self.target.values(labels[known])
        away = np.abs(np.where(np.isfinite(found), found, np.inf) - wanted) / self.target.half
        away = np.minimum(away, 1.0)
        each = np.stack([np.ones_like(away), away, np.square(away)])
        return np.asarray(np.rint(each * ERROR_STEPS).astype(np.int64).sum(axis=1))

    def figures(self, counts: Float64, deviation: float) -> Mapping[str, Any]:
        """Return `rmse` and `mae` in the target's unit, each with `_deviation`."""
        records, errors, squared = (float(one) for one in counts / ERROR_STEPS)
        deviation /= ERROR_STEPS
        if records <= max(0.0, LEAST_SIGNAL * deviation):
            return {}
        half, mean, square = self.target.half, errors / records, squared / records
        off = deviation / records
        of_square = off * math.hypot(1, square)
        square, root = max(0.0, square), math.sqrt(max(0.0, square))
        return {
            "leading": "rmse",
            "rmse": to_digits(half * root),
            "rmse_deviation": to_digits(half * (math.sqrt(square + of_square) - root)),
            "mae": to_digits(half * max(0.0, mean)),
            "mae_deviation": to_digits(half * off * math.hypot(1, mean)),
            "records": to_places(records),
            "count_deviation": to_places(deviation),
        }


def _predicted(outputs: Float64, labels: Int64, classes: int) -> tuple[Int64, Int64]:
    known = (labels >= 0) & (labels < classes)
    outputs, labels = outputs[known], labels[known]
    sound = np.isfinite(outputs).all(axis=1)
    return labels, np.where(sound, np.argmax(outputs, axis=1), -1)


def _right_and_wrong(labels: Int64, predicted: Int64) -> list[int]:
    right = int(np.count_nonzero(labels == predicted))
    return [right, len(labels) - right]


def _accuracy(counts: Float64, deviation: float, further: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return accuracy by the first two counts, with its deviation to first order."""
    right, wrong = float(counts[0]), float(counts[1])
    records, noise = right + wrong, math.sqrt(2) * deviation
    if records <= max(0.0, LEAST_SIGNAL * noise):
        return {}
    accuracy = min(1.0, max(0.0, right / records))
    off = deviation * math.hypot(1 - accuracy, accuracy) / records
    return {
        "leading": "accuracy",
        "accuracy": to_places(accuracy),
        "accuracy_deviation": to_places(off),
        "records": to_places(records),
        "count_deviation": to_places(deviation),
        **further,
    }


_LOW, _HIGH, _BINS = SCORE_BINS
_SURE = 3.0  # noise deviations from which a count is significant
_BULK = 0.75  # least quantile that determines the spread of scores


@dataclass(frozen=True)
class ScoreCounts:
    """For scores; `alarm_rate` of normal and unlabelled records may exceed the threshold."""

    alarm_rate: float
    outputs = 1
    cells = 2 * _BINS
    largest = whole = 1
    sensitivity_squared = 1

    def of(self, outputs: Float64, labels: Int64) -> Int64:
        """Count records by score; one without a finite score or a valid label is not counted."""
        scores, bad = outputs[:, 0], anomalous(labels)
        there = np.isfinite(scores) & (bad | learned_from(labels))
        at = score_bins(scores[there]) + np.where(bad[there], _BINS, 0)
        return np.bincount(at, minlength=self.cells).astype(np.int64)

    def figures(self, counts: Float64, deviation: float) -> Mapping[str, Any]:
        """Return the `threshold` and figures at it; `far`: extrapolated as log-normal."""
        kept = _above_noise(counts, deviation)
        normal, bad = counts[:_BINS][kept], counts[_BINS:][kept]
        noise = deviation * math.sqrt(len(normal))  # of a sum of either
        quiet = float(normal.sum())
        if not len(normal) or quiet <= _SURE * noise:
            return {}
        share = _cumulative(normal, quiet)
        # log2 of the scores at the edges of the kept bins
        edges = _LOW + np.arange(kept.start, kept.stop + 1) * ((_HIGH - _LOW) / _BINS)
        found = _quantile(share, edges, 1 - self.alarm_rate, noise / quiet)
        if found is None:
            return {}
        threshold, far = found
        false = (1 - float(np.interp(threshold, edges, share))) * quiet
        figures: dict[str, Any] = {
            "leading": "false_alarm_rate",
            "threshold": to_digits(2.0**threshold),
            "far": far,
            "alarm_rate": self.alarm_rate,
            "false_alarm_rate": to_digits(false / quiet),
            "false_alarm_rate_deviation": to_digits(noise / quiet),
            "records": to_digits(quiet),
            "count_deviation": to_digits(deviation),
        }
        unusual = float(bad.sum())
        if unusual <= _SURE * noise:
            return figures
        missed = float(np.interp(threshold, edges, _cumulative(bad, unusual))) * unusual
        area, off = _score_area(
            normal / quiet, bad / unusual, deviation / quiet, deviation / unusual
        )
        return {
            **figures,
            **alarm_figures(unusual - missed, missed, false, quiet - false),
            "leading": "auc",
            "auc": to_digits(area),
            "auc_deviation": to_digits(off),
            "anomalous": to_digits(unusual),
        }


RecordCounts = Confusion | Hits | Errors | ScoreCounts


def counts_of(classes: int, target: TargetRange | None) -> RecordCounts:
    if target is not None:
        return Errors(target)
    return Confusion(classes) if classes <= MOST_CROSSED else Hits(classes)


def _above_noise(counts: Float64, deviation: float) -> slice:
    sure = counts.reshape(2, _BINS).max(axis=0) > (_SURE + 1) * deviation
    there = np.flatnonzero(sure)
    if not len(there):
        return slice(0, 0)
    return slice(max(0, int(there[0]) - 1), min(_BINS, int(there[-1]) + 2))


def _cumulative(counts: Float64, whole: float) -> Float64:
    found = np.concatenate([[0.0], np.cumsum(counts) / whole])
    return np.clip(np.maximum.accumulate(found), 0.0, 1.0)


def _quantile(
    share: Float64, edges: Float64, wanted: float, noise: float
) -> tuple[float, bool] | None:
    """Return (log2 of the score with share `wanted` below, extrapolated), or None."""
    sure = 1 - _SURE * noise
    if wanted <= sure:
        return _inverse(share, edges, wanted), False
    if sure < _BULK:
        return None
    normal, middle = NormalDist(), _inverse(share, edges, 0.5)
    wide = (_inverse(share, edges, sure) - middle) / normal.inv_cdf(sure)
    return middle + normal.inv_cdf(wanted) * wide, True


def _inverse(share: Float64, edges: Float64, wanted: float) -> float:
    above = int(np.searchsorted(share, wanted, side="left"))
    above = min(max(above, 1), len(share) - 1)
    low, high = share[above - 1], share[above]
    part = (wanted - low) / (high - low) if high > low else 1.0
    return float(edges[above - 1] + min(max(part, 0.0), 1.0) * (edges[above] - edges[above - 1]))


def _score_area(
    normal: Float64, bad: Float64, of_normal: float, of_bad: float
) -> tuple[float, float]:
    """Return the area under the ROC curve of shares by bin, and its deviation to first order."""
    below = np.cumsum(normal) - normal / 2  # share of the normal below an anomalous one
    above = bad[::-1].cumsum()[::-1] - bad / 2
    area = float((bad * below).sum())
    off = math.hypot(
        of_bad * math.sqrt(float(np.square(below - area).sum())),
        of_normal * math.sqrt(float(np.square(above - area).sum())),
    )
    return min(1.0, max(0.0, area)), off
