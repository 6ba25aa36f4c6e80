"""Clustering scores of the uploaded mean-softmax vectors; no label of any device is needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_core.errors import DataError
from fl_core.registry import Table

NOT_EVAL = "NOT_EVAL"
Score = Callable[[NDArray[np.float64], NDArray[np.int64]], float]


@dataclass(frozen=True)
class ClusterScores:
    """Clusters and their score. `score` is None when `reason` says why there is none.

    `labels` has the cluster of each upload given, in the order given, -1 for one not used.
    `used` uploads were scored, `wanted` is the configured `cluster_client_num`.
    """

    labels: tuple[int, ...]
    eval_type: str
    score: float | None
    reason: str
    used: int
    wanted: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON: labels as a list, everything else as it is."""
        return {**self.__dict__, "labels": list(self.labels)}


def cluster_scores(
    vectors: NDArray[np.floating[Any]], eval_type: str, cluster_client_num: int
) -> ClusterScores:
    """Score the clusters of `vectors` (n, k); an upload's cluster is its largest entry.

    Only the first `cluster_client_num` uploads count, and of those only finite ones. With fewer
    than 3 of them, a single cluster or only clusters of one, no score is defined: `score` is
    None. Silhouette is in [-1, 1], the higher the better, as is Calinski-Harabasz (from 0);
    Davies-Bouldin (from 0) is better when lower. Raises UsageError for an unknown `eval_type`,
    DataError for a wrong shape.
    """
    rule = EVALUATIONS[eval_type]
    if vectors.ndim != 2 or vectors.shape[1] < 1 or cluster_client_num < 1:
        raise DataError(
            f"cannot cluster shape {vectors.shape}, {cluster_client_num} wanted",
            where="unsupervised",
            fix="pass vectors of shape (uploads, classes) and want at least one",
        )
    values = vectors.astype(np.float64)
    chosen = np.asarray(np.isfinite(values).all(axis=1))
    chosen[cluster_client_num:] = False
    labels = np.full(len(values), -1, dtype=np.int64)
    labels[chosen] = np.argmax(values[chosen], axis=1)
    score, reason = _score(rule, eval_type, values[chosen], labels[chosen])
    used = int(chosen.sum())
    if used < cluster_client_num:
        short = f"{used} of {cluster_client_num} uploads wanted"
        reason = f"{reason}; {short}" if reason else short
    return ClusterScores(tuple(labels.tolist()), eval_type, score, reason, used, cluster_client_num)


def _score(
    rule: Score | None, eval_type: str, points: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[float | None, str]:
    if rule is None:
        return None, "not evaluated"
    clusters = len(np.unique(labels))
    if len(points) < 3:
        return None, f"{len(points)} uploads, at least 3 are needed"
    if clusters < 2:
        return None, "all uploads fall into one cluster"
    if clusters == len(points):
        return None, "every cluster holds a single upload"
    if eval_type == "CALINSKI_HARABASZ_SCORE" and _no_spread(points, labels):
        return None, "the clusters have no inner spread, the score is infinite"
    with np.errstate(all="ignore"):  # very strong noise can overflow: judged by the result
        score = float(rule(points, labels))
    return (score, "") if math.isfinite(score) else (None, "the score is not finite")


def _no_spread(points: NDArray[np.float64], labels: NDArray[np.int64]) -> bool:
    # scikit-learn returns 1.0 here, which would read as a poor score.
    return all(bool(np.ptp(points[labels == k], axis=0).max() == 0) for k in np.unique(labels))


def _silhouette(points: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(points, labels))


def _calinski_harabasz(points: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    from sklearn.metrics import calinski_harabasz_score

    return float(calinski_harabasz_score(points, labels))


def _davies_bouldin(points: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    from sklearn.metrics import davies_bouldin_score

    return float(davies_bouldin_score(points, labels))


EVALUATIONS: Table[Score | None] = Table(
    "eval_type",
    {
        NOT_EVAL: None,
        "SILHOUETTE_SCORE": _silhouette,
        "CALINSKI_HARABASZ_SCORE": _calinski_harabasz,
        "DAVIES_BOULDIN_SCORE": _davies_bouldin,
    },
)
