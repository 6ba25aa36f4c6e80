"""Clusters of uploaded softmax vectors, their score and a plot, without labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError

NOT_EVAL = "NOT_EVAL"
MEAN = "MEAN_SOFTMAX"
SILHOUETTE = "SILHOUETTE_SCORE"


@dataclass(frozen=True)
class ClusterScores:
    """Clusters by row (-1: unused) with their score, None with a `reason`."""

    labels: tuple[int, ...]
    eval_type: str
    score: float | None
    reason: str
    used: int
    wanted: int

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "labels": list(self.labels)}


def load_libraries() -> None:
    import sklearn.metrics  # noqa: F401


def cluster_scores(
    uploads: NDArray[np.floating[Any]], eval_type: str, wanted: int
) -> ClusterScores:
    """Cluster and score `uploads` (n, k), or (n, m, k) of m rows each.

    Only the first `wanted` uploads count, and of those the finite ones. Fewer than 3 rows, a single
    cluster or only clusters of one have no score. Raises DataError for a wrong shape."""
    scored = eval_type in SCORED
    if uploads.ndim not in (2, 3) or 0 in uploads.shape[1:] or wanted < 1:
        what = f"cannot cluster shape {uploads.shape}, {wanted} wanted"
        fix = "pass vectors of shape (uploads, classes), at least one"
        raise DataError(what, where="unsupervised", fix=fix)
    values = uploads.astype(np.float64)
    values = values[:, None, :] if values.ndim == 2 else values
    chosen = np.asarray(np.isfinite(values).all(axis=(1, 2)))
    chosen[wanted:] = False
    points = values[chosen].reshape(chosen.sum() * values.shape[1], values.shape[2])
    found = np.argmax(points, axis=1) if len(points) else np.zeros(0, np.int64)
    labels = np.full(values.shape[:2], -1, dtype=np.int64)
    labels[chosen] = found.reshape(-1, values.shape[1])
    score, reason = _score(eval_type, points, found) if scored else (None, "not evaluated")
    used = int(chosen.sum())
    if used < wanted:
        short = f"{used} of {wanted} uploads wanted"
        reason = f"{reason}; {short}" if reason else short
    return ClusterScores(tuple(labels.ravel().tolist()), eval_type, score, reason, used, wanted)


def _score(
    eval_type: str, points: NDArray[np.float64], labels: NDArray[np.intp]
) -> tuple[float | None, str]:
    groups = [points[labels == k] for k in np.unique(labels)]
    if len(points) < 3:
        return None, f"{len(points)} uploads, at least 3 are needed"
    if len(groups) < 2:
        return None, "all uploads fall into one cluster"
    if len(groups) == len(points):
        return None, "every cluster holds a single upload"
    spread = any(np.ptp(group, axis=0).max() > 0 for group in groups)
    if eval_type == "CALINSKI_HARABASZ_SCORE" and not spread:  # scikit-learn returns a poor 1.0
        return None, "the clusters have no inner spread, the score is infinite"
    from sklearn import metrics

    with np.errstate(all="ignore"):  # strong noise can overflow; the result is checked below
        try:
            score = float(getattr(metrics, eval_type.lower())(points, labels))
        except ValueError:  # a centroid overflowed
            score = math.nan
    return (score, "") if math.isfinite(score) else (None, "the score is not finite")


# Cluster scores (Rousseeuw 1987; Caliński, Harabasz 1974; Davies, Bouldin 1979).
SCORED = (SILHOUETTE, "CALINSKI_HARABASZ_SCORE", "DAVIES_BOULDIN_SCORE")


def project_2d(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return two principal components (n, 2) of `vectors` (n, k); rows not finite become NaN."""
    if vectors.ndim != 2:
        what = f"has shape {vectors.shape}"
        raise DataError(what, where="vectors", fix="pass shape (uploads, classes)")
    values = vectors.astype(np.float64)
    finite = np.isfinite(values).all(axis=1)
    result = np.full((len(values), 2), np.nan)
    result[finite] = 0.0
    if finite.any() and values.shape[1]:
        # Scale before squaring, so that huge values do not overflow.
        scale = float(np.abs(values[finite]).max()) or 1.0
        centred = values[finite] / scale
        centred = centred - centred.mean(axis=0)
        axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
        largest = axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)]
        axes = axes * np.where(largest < 0, -1.0, 1.0)[:, None]
        result[np.flatnonzero(finite)[:, None], np.arange(len(axes))] = centred @ axes.T * scale
    return result
