"""Own metrics against scikit-learn's, and what noise adds against what is taken off."""

import numpy as np
import pytest
from sklearn.metrics import calinski_harabasz_score, silhouette_score

from edgeveil.evaluation import cluster_metrics as metrics


@pytest.fixture
def fleet():
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, 60)
    return rng.normal(size=(60, 4)) + 2 * np.eye(4)[labels], labels


def test_without_noise_the_squared_silhouette_is_scikit_learns_of_squared_distances(fleet):
    points, labels = fleet
    wanted = silhouette_score(points, labels, metric="sqeuclidean")
    assert metrics.silhouette_squared(points, labels) == pytest.approx(wanted)
    alone = np.append(labels[1:], 9)
    wanted = silhouette_score(points, alone, metric="sqeuclidean")
    assert metrics.silhouette_squared(points, alone) == pytest.approx(wanted)


def test_without_noise_the_scatters_make_calinski_harabasz(fleet):
    points, labels = fleet
    between, within, clusters = metrics.scatter(points, labels)
    got = metrics.scatter_ratio(between, within, len(points), clusters)
    assert got == pytest.approx(calinski_harabasz_score(points, labels))


def test_noise_comes_off_both_scatters_and_the_silhouette_on_average(fleet):
    points, labels = fleet
    points = points + 8 * np.eye(4)[labels]  # far apart: the nearest other cluster is certain
    rng = np.random.default_rng(5)
    noised = [points + rng.laplace(0, 0.2, points.shape) for _ in range(4000)]
    variance = 2 * 0.2**2
    got = np.mean([metrics.scatter(y, labels, variance)[:2] for y in noised], axis=0)
    assert got == pytest.approx(metrics.scatter(points, labels)[:2], rel=0.01)
    raw = np.mean([metrics.scatter(y, labels)[:2] for y in noised], axis=0)
    assert raw[1] > 1.05 * got[1]
    clean = metrics.silhouette_squared(points, labels)
    got = np.mean([metrics.silhouette_squared(y, labels, variance) for y in noised])
    raw = np.mean([metrics.silhouette_squared(y, labels) for y in noised])
    assert abs(got - clean) < 0.2 * abs(raw - clean)


def test_equal_points_have_a_silhouette_of_one_or_in_the_text_of_none():
    points, labels = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]]), np.array([0, 0, 1, 1])
    assert metrics.silhouette_squared(points, labels) == 1
    assert metrics.silhouette_text(points, labels) == 0
