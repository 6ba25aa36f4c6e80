"""Which cluster an upload belongs to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgeveil.registry import Table

Labeller = Callable[[NDArray[np.float64]], NDArray[np.int64]]
_SEED = 1  # of k-means' starting points, so that the same uploads give the same clusters
_STARTS = 4


def by_argmax(points: NDArray[np.float64]) -> NDArray[np.int64]:
    """The place (n,) of each row's largest entry, the first of equals."""
    return np.asarray(np.argmax(points, axis=1), dtype=np.int64)


def by_kmeans(points: NDArray[np.float64]) -> NDArray[np.int64]:
    """k-means labels (n,) of points (n, k), for k clusters or as many as there are unlike points.

    scikit-learn's, with fixed starting points.
    """
    from sklearn.cluster import KMeans

    clusters = min(points.shape[1], len(np.unique(points, axis=0)))
    if clusters < 2:
        return np.zeros(len(points), dtype=np.int64)
    found = KMeans(clusters, n_init=_STARTS, random_state=_SEED).fit_predict(points)
    return np.asarray(found, dtype=np.int64)


LABELLERS: Table[Labeller] = Table("labels", {"argmax": by_argmax, "kmeans": by_kmeans})
