"""Scores against hand-worked cases, and an answer for every degenerate one.

Own metrics against scikit-learn's, and what noise adds against what is taken off.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import calinski_harabasz_score, silhouette_score

from edgeveil.errors import DataError, UsageError
from edgeveil.evaluation import cluster_metrics as metrics
from edgeveil.evaluation.clustering import EVALUATIONS, Noise, cluster_scores, project_2d
from edgeveil.jobs.job import Unsupervised

# Two clusters of two points on a line, at 0 and 1, 10 and 11: the entry that is larger says
# which. Distances within are √2, between about 10√2.
POINTS = np.array([[12, 0], [11, 1], [1, 11], [0, 12]], float)


def scores(uploads, kind, number, noise=None, **wanted):
    asked = Unsupervised.model_construct(eval_type=kind, cluster_client_num=number, **wanted)
    return cluster_scores(uploads, asked, noise)


def test_the_cluster_is_the_largest_entry():
    assert scores(POINTS, "NOT_EVAL", 4).labels == (0, 0, 1, 1)


def test_silhouette_by_hand():
    # Along the line: a = 1; b = 10.5 or 11.5 to the other cluster's two points, by symmetry.
    outer, inner = 1 - 1 / 11.5, 1 - 1 / 10.5
    got = scores(POINTS, "SILHOUETTE_SCORE", 4)
    assert got.score == pytest.approx((outer + inner) / 2)
    assert (got.reason, got.used, got.wanted) == ("", 4, 4)


def test_calinski_harabasz_by_hand():
    # Between: 4 · 5.5² · 2, within: 4 · 0.5² · 2, degrees of freedom 1 and 2.
    got = scores(POINTS, "CALINSKI_HARABASZ_SCORE", 4)
    assert got.score == pytest.approx((4 * 5.5**2 / 1) / (4 * 0.5**2 / 2))


def test_davies_bouldin_by_hand():
    assert scores(POINTS, "DAVIES_BOULDIN_SCORE", 4).score == pytest.approx(1 / 11)


def test_only_the_first_uploads_count():
    more = np.concatenate([POINTS, [[5.0, 5.1]]])
    got = scores(more, "SILHOUETTE_SCORE", 4)
    assert got.score == scores(POINTS, "SILHOUETTE_SCORE", 4).score
    assert got.labels == (0, 0, 1, 1, -1)


def test_fewer_uploads_than_wanted_are_said():
    got = scores(POINTS, "SILHOUETTE_SCORE", 1000)
    assert got.score is not None
    assert "4 of 1000" in got.reason


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        (np.zeros((0, 2)), "at least 3"),
        (POINTS[[0, 3]], "at least 3"),
        (np.array([[2, 1], [3, 1], [4, 0]]), "one cluster"),
        (np.eye(3), "single upload"),
    ],
)
@pytest.mark.parametrize("kind", [name for name in EVALUATIONS if EVALUATIONS[name]])
def test_degenerate_uploads_have_no_score_and_say_why(kind, vectors, reason):
    got = scores(vectors, kind, 1000)
    assert got.score is None
    assert reason in got.reason


def test_no_inner_spread_is_not_a_poor_score():
    same = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    got = scores(same, "CALINSKI_HARABASZ_SCORE", 4)
    assert got.score is None
    assert "infinite" in got.reason
    assert scores(same, "SILHOUETTE_SCORE", 4).score == 1.0


def test_vectors_that_are_not_finite_are_left_out():
    spoilt = np.concatenate([[[np.nan, 1.0]], POINTS, [[np.inf, 0]]])
    got = scores(spoilt, "SILHOUETTE_SCORE", 6)
    assert got.labels == (-1, 0, 0, 1, 1, -1)
    assert got.score == scores(POINTS, "SILHOUETTE_SCORE", 4).score
    assert "4 of 6" in got.reason


@settings(max_examples=60, deadline=None)
@example(np.array([[-9e307, 0.0], [-9e307, -9e307], [-9e307, -9e307]]), "DAVIES_BOULDIN_SCORE")
@given(
    arrays.arrays(np.float64, st.tuples(st.integers(0, 8), st.integers(1, 4))),
    st.sampled_from(EVALUATIONS.names()),
)
def test_total(vectors, kind):
    got = scores(vectors, kind, 5)
    assert got.score is None or np.isfinite(got.score)
    assert got.score is not None or got.reason
    assert len(got.labels) == len(vectors)


def test_refusals():
    with pytest.raises(UsageError, match="did you mean 'SILHOUETTE_SCORE'"):
        scores(POINTS, "SILHOUETTE", 4)
    with pytest.raises(DataError):
        scores(POINTS[0], "NOT_EVAL", 4)
    with pytest.raises(DataError):
        scores(POINTS, "NOT_EVAL", 0)


def test_rows_of_one_upload_are_clustered_alike_and_uploads_are_counted():
    uploads = POINTS.reshape(2, 2, 2)
    got = scores(uploads, "SILHOUETTE_SCORE", 3)
    assert got.score == scores(POINTS, "SILHOUETTE_SCORE", 4).score
    assert (got.labels, got.used, got.reason) == ((0, 0, 1, 1), 2, "2 of 3 uploads wanted")
    assert scores(uploads, "NOT_EVAL", 1).labels == (0, 0, -1, -1)


def test_an_upload_with_one_spoilt_row_is_left_out_whole():
    uploads = np.stack([POINTS, POINTS])
    uploads[0, 3, 0] = np.nan
    got = scores(uploads, "SILHOUETTE_SCORE", 2)
    assert got.labels == (-1, -1, -1, -1, 0, 0, 1, 1)
    assert got.used == 1


def test_the_texts_silhouette_counts_the_point_itself():
    # a = (0 + 1) / 2 in place of 1; a pair of equal points has a = 0 and counts 0.
    got = scores(POINTS, "SILHOUETTE_SCORE", 4, silhouette="text")
    assert got.score == pytest.approx((1 - 0.5 / 11.5 + 1 - 0.5 / 10.5) / 2)
    same = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    assert scores(same, "SILHOUETTE_SCORE", 4, silhouette="text").score == 0
    with pytest.raises(UsageError, match="silhouette"):
        scores(POINTS, "SILHOUETTE_SCORE", 4, silhouette="texts")


def test_kmeans_finds_clusters_that_share_their_largest_entry():
    three = np.array([[9, 0, 0], [9, 1, 0], [9, 7, 0], [9, 8, 0], [1, 0, 9], [0, 0, 9]], float)
    assert len(set(scores(three, "NOT_EVAL", 6).labels)) == 2
    a, b, c, d, e, f = scores(three, "NOT_EVAL", 6, labels="kmeans").labels
    assert (a == b, c == d, e == f, len({a, c, e})) == (True, True, True, 3)


def test_kmeans_wants_no_more_clusters_than_there_are_unlike_points():
    two = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]], float)
    assert len(set(scores(two, "NOT_EVAL", 4, labels="kmeans").labels)) == 2
    assert set(scores(two[:2], "NOT_EVAL", 4, labels="kmeans").labels) == {0}
    assert "one cluster" in scores(two[[0, 0, 0]], "SILHOUETTE_SCORE", 3, labels="kmeans").reason


def test_a_correction_that_is_not_made_says_why():
    assert scores(POINTS, "SILHOUETTE_SCORE", 4).corrected_reason == "sent without noise"
    noise = Noise(0.1, 0.02)
    few = scores(POINTS, "CALINSKI_HARABASZ_SCORE", 4, noise)
    assert (few.corrected, few.noise_variance) == (None, 0.02)
    assert few.corrected_reason == "not identifiable: too few uploads or clusters"
    other = scores(POINTS, "DAVIES_BOULDIN_SCORE", 4, noise)
    assert "no correction is known" in other.corrected_reason
    assert "no score" in scores(POINTS, "NOT_EVAL", 4, noise).corrected_reason


def test_projection_keeps_distances_of_a_plane_and_its_sign():
    random = np.random.default_rng(3)
    flat = random.normal(size=(12, 2)) * [5, 1]
    turn = np.linalg.qr(random.normal(size=(4, 4)))[0][:, :2]
    lifted = flat @ turn.T + 7
    got = project_2d(lifted)
    wanted = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    assert np.allclose(np.linalg.norm(got[:, None] - got[None], axis=2), wanted)
    assert np.ptp(got[:, 0]) > np.ptp(got[:, 1])
    assert np.allclose(project_2d(lifted[::-1])[::-1], got)


def test_projection_of_odd_inputs():
    assert project_2d(np.zeros((0, 3))).shape == (0, 2)
    assert project_2d(np.array([[1.0, 2.0, 3.0]])).tolist() == [[0, 0]]
    assert project_2d(np.array([[1.0], [3.0]])).tolist() == [[-1, 0], [1, 0]]
    got = project_2d(np.array([[1.0, 0], [np.nan, 0], [-1, 0]]))
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()
    assert np.isfinite(project_2d(np.array([[1e300, 0], [-1e300, 1]]))).all()
    with pytest.raises(DataError):
        project_2d(np.zeros(3))


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
