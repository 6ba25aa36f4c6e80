"""Scores against hand-worked cases, and an answer for every degenerate one."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgeveil.errors import DataError, UsageError
from edgeveil.evaluation.clustering import EVALUATIONS, cluster_scores, project_2d

# Two clusters of two points on a line, at 0 and 1, 10 and 11: the entry that is larger says
# which. Distances within are √2, between about 10√2.
POINTS = np.array([[12, 0], [11, 1], [1, 11], [0, 12]], float)


# Along the line: a = 1; b = 10.5 or 11.5 to the other cluster's two points, by symmetry. Between:
# 4 · 5.5² · 2, within: 4 · 0.5² · 2, degrees of freedom 1 and 2.
@pytest.mark.parametrize(
    ("kind", "score"),
    [
        ("SILHOUETTE_SCORE", 1 - (1 / 11.5 + 1 / 10.5) / 2),
        ("CALINSKI_HARABASZ_SCORE", (4 * 5.5**2 / 1) / (4 * 0.5**2 / 2)),
        ("DAVIES_BOULDIN_SCORE", 1 / 11),
    ],
)
def test_scores_by_hand(kind, score):
    got = cluster_scores(POINTS, kind, 4)
    assert got.score == pytest.approx(score)
    assert (got.reason, got.used, got.wanted) == ("", 4, 4)


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
    got = cluster_scores(vectors, kind, 1000)
    assert got.score is None
    assert reason in got.reason


def test_no_inner_spread_is_not_a_poor_score():
    same = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    got = cluster_scores(same, "CALINSKI_HARABASZ_SCORE", 4)
    assert got.score is None
    assert "infinite" in got.reason
    assert cluster_scores(same, "SILHOUETTE_SCORE", 4).score == 1.0


def test_vectors_that_are_not_finite_are_left_out():
    spoilt = np.concatenate([[[np.nan, 1.0]], POINTS, [[np.inf, 0]]])
    got = cluster_scores(spoilt, "SILHOUETTE_SCORE", 6)
    assert got.labels == (-1, 0, 0, 1, 1, -1)
    assert got.score == cluster_scores(POINTS, "SILHOUETTE_SCORE", 4).score
    assert "4 of 6" in got.reason


@settings(max_examples=60, deadline=None)
@example(np.array([[-9e307, 0.0], [-9e307, -9e307], [-9e307, -9e307]]), "DAVIES_BOULDIN_SCORE")
@given(
    arrays.arrays(np.float64, st.tuples(st.integers(0, 8), st.integers(1, 4))),
    st.sampled_from(EVALUATIONS.names()),
)
def test_total(vectors, kind):
    got = cluster_scores(vectors, kind, 5)
    assert got.score is None or np.isfinite(got.score)
    assert got.score is not None or got.reason
    assert len(got.labels) == len(vectors)


def test_refusals():
    with pytest.raises(UsageError, match="did you mean 'SILHOUETTE_SCORE'"):
        cluster_scores(POINTS, "SILHOUETTE", 4)
    with pytest.raises(DataError):
        cluster_scores(POINTS[0], "NOT_EVAL", 4)
    with pytest.raises(DataError):
        cluster_scores(POINTS, "NOT_EVAL", 0)


def test_rows_of_one_upload_are_clustered_alike_and_uploads_are_counted():
    uploads = POINTS.reshape(2, 2, 2)
    got = cluster_scores(uploads, "SILHOUETTE_SCORE", 3)
    assert got.score == cluster_scores(POINTS, "SILHOUETTE_SCORE", 4).score
    assert (got.labels, got.used, got.reason) == ((0, 0, 1, 1), 2, "2 of 3 uploads wanted")
    assert cluster_scores(uploads, "NOT_EVAL", 1).labels == (0, 0, -1, -1)


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
    assert np.isfinite(got).all(axis=1).tolist() == [True, False, True]
    assert np.isfinite(project_2d(np.array([[1e300, 0], [-1e300, 1]]))).all()
