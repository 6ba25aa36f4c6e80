"""How the scores of devices' evaluation records spread, and the threshold that follows from it.

A record adds 1 to one cell: the bin of its score, among those of the records that are normal or
have no label, or among those of the anomalous. All else is post-processing of the noised counts.
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
from edgeveil.evaluation.figures import SCORE_BINS, alarm_figures, score_bins, to_digits

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
_LOW, _HIGH, _BINS = SCORE_BINS
_SURE = 3.0  # standard deviations of the noise that a count must pass to be more than noise
_BULK = 0.75  # a quantile at least so high is needed to tell how wide scores spread


@dataclass(frozen=True)
class ScoreCounts:
    """Of a model that gives scores; `alarm_rate` is the share of normal records that may be above
    the threshold. Unlabelled records count as normal: most of them are."""

    alarm_rate: float
    outputs = 1
    cells = 2 * _BINS
    largest = whole = 1
    sensitivity_squared = 1

    def of(self, outputs: Float64, labels: Int64) -> Int64:
        """See `RecordCounts.of`: a record without a finite score, or with a label that says
        neither, is not counted."""
        scores, bad = outputs[:, 0], anomalous(labels)
        there = np.isfinite(scores) & (bad | learned_from(labels))
        at = score_bins(scores[there]) + np.where(bad[there], _BINS, 0)
        return np.bincount(at, minlength=self.cells).astype(np.int64)

    def figures(self, counts: Float64, deviation: float) -> Mapping[str, Any]:
        """`threshold`, what it comes to by the counts (`false_alarm_rate`, and with enough
        anomalous records `detection_rate`, `precision`, `f1` and `auc`), and about how many
        records there are. `far` is true where the counts cannot tell so small an alarm rate from
        noise: the threshold then continues a log-normal from the farthest quantile that they tell.
        """
        kept = _above_noise(counts, deviation)
        normal, bad = counts[:_BINS][kept], counts[_BINS:][kept]
        noise = deviation * math.sqrt(len(normal))  # of a sum of either
        quiet = float(normal.sum())
        if not len(normal) or quiet <= _SURE * noise:
            return {}
        share, edges = _cumulative(normal, quiet), _edges(kept)
        found = _quantile(share, edges, 1 - self.alarm_rate, noise / quiet)
        if found is None:
            return {}
        threshold, far = found
        false = (1 - _at(share, edges, threshold)) * quiet
        told: dict[str, Any] = {
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
            return told
        missed = _at(_cumulative(bad, unusual), edges, threshold) * unusual
        area, off = _area(normal / quiet, bad / unusual, deviation / quiet, deviation / unusual)
        return {
            **told,
            **alarm_figures(unusual - missed, missed, false, quiet - false),
            "leading": "auc",
            "auc": to_digits(area),
            "auc_deviation": to_digits(off),
            "anomalous": to_digits(unusual),
        }


def _above_noise(counts: Float64, deviation: float) -> slice:
    """The bins from the first to the last in which there is more than noise, and one beside each:
    others hold noise alone, which would add up."""
    sure = counts.reshape(2, _BINS).max(axis=0) > (_SURE + 1) * deviation
    there = np.flatnonzero(sure)
    if not len(there):
        return slice(0, 0)
    return slice(max(0, int(there[0]) - 1), min(_BINS, int(there[-1]) + 2))


def _edges(kept: slice) -> Float64:
    """log2 of the scores at which the kept bins begin, and the last one ends."""
    return _LOW + np.arange(kept.start, kept.stop + 1) * ((_HIGH - _LOW) / _BINS)


def _cumulative(counts: Float64, whole: float) -> Float64:
    """The share of the counts below each edge (bins + 1,), which never falls."""
    found = np.concatenate([[0.0], np.cumsum(counts) / whole])
    return np.clip(np.maximum.accumulate(found), 0.0, 1.0)


def _at(share: Float64, edges: Float64, log_score: float) -> float:
    return float(np.interp(log_score, edges, share))


def _quantile(
    share: Float64, edges: Float64, wanted: float, noise: float
) -> tuple[float, bool] | None:
    """log2 of the score below which the share `wanted` lies, and whether it is continued from a
    lower quantile; None where even that is lost in the noise."""
    sure = 1 - _SURE * noise
    if wanted <= sure:
        return _inverse(share, edges, wanted), False
    if sure < _BULK:
        return None
    normal, middle = NormalDist(), _inverse(share, edges, 0.5)
    wide = (_inverse(share, edges, sure) - middle) / normal.inv_cdf(sure)
    return middle + normal.inv_cdf(wanted) * wide, True


def _inverse(share: Float64, edges: Float64, wanted: float) -> float:
    """Where the share rises past `wanted`, between edges in a straight line."""
    above = int(np.searchsorted(share, wanted, side="left"))
    above = min(max(above, 1), len(share) - 1)
    low, high = share[above - 1], share[above]
    part = (wanted - low) / (high - low) if high > low else 1.0
    return float(edges[above - 1] + min(max(part, 0.0), 1.0) * (edges[above] - edges[above - 1]))


def _area(normal: Float64, bad: Float64, of_normal: float, of_bad: float) -> tuple[float, float]:
    """The area under the ROC curve of shares by bin, those in one bin counted half, and its
    standard deviation by the noise of a share in each, to first order."""
    below = np.cumsum(normal) - normal / 2  # share of the normal below an anomalous one
    above = bad[::-1].cumsum()[::-1] - bad / 2
    area = float((bad * below).sum())
    off = math.hypot(
        of_bad * math.sqrt(float(np.square(below - area).sum())),
        of_normal * math.sqrt(float(np.square(above - area).sum())),
    )
    return min(1.0, max(0.0, area)), off
