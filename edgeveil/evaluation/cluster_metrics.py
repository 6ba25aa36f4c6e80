"""Which cluster an upload belongs to, and scores of labelled points.

Scores are scikit-learn's where it has them.

With squared distances, noise of variance v a coordinate adds exactly 2·k·v to the mean distance of
two points and v to each coordinate's inner variance, so `variance` takes it off again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgeveil.registry import Table

Points = NDArray[np.float64]
Labels = NDArray[np.int64]
Score = Callable[[Points, Labels], float]
Labeller = Callable[[Points], Labels]
_SEED = 1  # of k-means' starting points, so that the same uploads give the same clusters
_STARTS = 4


def load_libraries() -> None:
    """Import what is used below: it takes seconds, which the first score then does not."""
    import sklearn.cluster
    import sklearn.metrics  # noqa: F401


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


def silhouette(points: Points, labels: Labels) -> float:
    """Mean silhouette in [-1, 1] of points (n, k), Euclidean (Rousseeuw 1987)."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(points, labels))


def silhouette_text(points: Points, labels: Labels) -> float:
    """The silhouette with a point's distance 0 to itself counted in its mean inner distance.

    The inner mean divides by the cluster's whole size, and is 0, with a silhouette of 0, where all
    points of a cluster are equal or there is only one.
    """
    from sklearn.metrics import pairwise_distances_chunked

    kinds, place = np.unique(labels, return_inverse=True)
    member = np.eye(len(kinds))[place]

    def reduce(distances: Points, start: int) -> Points:
        rows = place[start : start + len(distances)]
        means = distances @ member / member.sum(axis=0)
        return _ratios(means, rows, empty_inner=0.0)

    return float(
        np.concatenate(list(pairwise_distances_chunked(points, reduce_func=reduce))).mean()
    )


def calinski_harabasz(points: Points, labels: Labels) -> float:
    """Scatter between clusters over scatter within, per degree of freedom, from 0."""
    from sklearn.metrics import calinski_harabasz_score

    return float(calinski_harabasz_score(points, labels))


def davies_bouldin(points: Points, labels: Labels) -> float:
    """Mean likeness of each cluster to its nearest, from 0, better when lower."""
    from sklearn.metrics import davies_bouldin_score

    return float(davies_bouldin_score(points, labels))


def scatter(points: Points, labels: Labels, variance: float = 0.0) -> tuple[float, float, int]:
    """Squared scatter (between, within) the clusters of points (n, k), and their number.

    What noise of `variance` a coordinate adds on average is taken off, so both may be negative.
    """
    sums, squares, sizes = _clusters(points, labels)
    mean = points.mean(axis=0)
    centred = ((sums - sizes[:, None] * mean) ** 2).sum(axis=1) / sizes
    within = float((squares - (sums**2).sum(axis=1) / sizes).sum())
    n, k = points.shape
    noise, clusters = k * variance, len(sizes)
    return float(centred.sum()) - noise * (clusters - 1), within - noise * (n - clusters), clusters


def scatter_ratio(between: float, within: float, n: float, clusters: int) -> float:
    """Calinski-Harabasz of the two scatters."""
    return between / within * (n - clusters) / (clusters - 1)


def silhouette_squared(points: Points, labels: Labels, variance: float = 0.0) -> float:
    """Mean silhouette of squared Euclidean distances; those of noise are taken off.

    A point alone in its cluster counts 0, as in the plain silhouette. Less its noise, one point's
    inner distance may be negative: it counts as it is, for cutting it off would bias the mean.
    """
    sums, squares, sizes = _clusters(points, labels)
    place = np.unique(labels, return_inverse=True)[1]
    own = (points**2).sum(axis=1)[:, None]
    means = own - 2 * points @ (sums / sizes[:, None]).T + squares / sizes
    noise = 2 * points.shape[1] * variance
    rows, size = np.arange(len(points)), sizes[place]
    inner = means[rows, place] * size / np.maximum(size - 1, 1)
    means = means - noise
    means[rows, place] = np.where(size > 1, inner - noise, 0.0)
    found = _ratios(means, place, empty_inner=None)
    return min(1.0, float(np.where(size > 1, found, 0.0).mean()))


def _ratios(means: Points, place: NDArray[np.intp], empty_inner: float | None) -> Points:
    """(b − a) / max(a, b) for each row's mean distances (n, clusters) and own cluster.

    `empty_inner` is the silhouette of a row whose own mean is 0; None: the formula's.
    """
    rows = np.arange(len(means))
    inner = means[rows, place]
    others = means.copy()
    others[rows, place] = np.inf
    nearest = others.min(axis=1)
    largest = np.maximum(inner, nearest)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(largest > 0, (nearest - inner) / largest, 0.0)
    if empty_inner is not None:
        ratio = np.where(inner == 0, empty_inner, ratio)
    return np.asarray(ratio)


def _clusters(points: Points, labels: Labels) -> tuple[Points, Points, Points]:
    """Sums (clusters, k), sums of squared norms (clusters,) and sizes (clusters,)."""
    place = np.unique(labels, return_inverse=True)[1]
    sizes = np.bincount(place).astype(np.float64)
    sums = np.stack([np.bincount(place, column) for column in points.T], axis=1)
    squares = np.bincount(place, (points**2).sum(axis=1)).astype(np.float64)
    return sums.astype(np.float64), squares, sizes


def on_simplex(vector: Points) -> Points:
    """The nearest vector with entries >= 0 and sum 1 (Duchi et al. 2008)."""
    falling = np.sort(vector)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(vector) + 1)
    return np.asarray(np.maximum(vector - excess[np.flatnonzero(falling > excess)[-1]], 0.0))
