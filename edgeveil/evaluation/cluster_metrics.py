"""Which cluster an upload belongs to, and scikit-learn's scores of labelled points."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Labels = NDArray[np.int64]
Score = Callable[[Points, Labels], float]


def load_libraries() -> None:
    """Import what is used below: it takes seconds, which the first score then does not."""
    import sklearn.metrics  # noqa: F401


def by_argmax(points: NDArray[np.float64]) -> NDArray[np.int64]:
    """The place (n,) of each row's largest entry, the first of equals."""
    return np.asarray(np.argmax(points, axis=1), dtype=np.int64)


def silhouette(points: Points, labels: Labels) -> float:
    """Mean silhouette in [-1, 1] of points (n, k), Euclidean (Rousseeuw 1987)."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(points, labels))


def calinski_harabasz(points: Points, labels: Labels) -> float:
    """Scatter between clusters over scatter within, per degree of freedom, from 0."""
    from sklearn.metrics import calinski_harabasz_score

    return float(calinski_harabasz_score(points, labels))


def davies_bouldin(points: Points, labels: Labels) -> float:
    """Mean likeness of each cluster to its nearest, from 0, better when lower."""
    from sklearn.metrics import davies_bouldin_score

    return float(davies_bouldin_score(points, labels))


def scatter_ratio(between: float, within: float, n: float, clusters: int) -> float:
    """Calinski-Harabasz of the two scatters."""
    return between / within * (n - clusters) / (clusters - 1)


def on_simplex(vector: Points) -> Points:
    """The nearest vector with entries >= 0 and sum 1 (Duchi et al. 2008)."""
    falling = np.sort(vector)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(vector) + 1)
    return np.asarray(np.maximum(vector - excess[np.flatnonzero(falling > excess)[-1]], 0.0))
