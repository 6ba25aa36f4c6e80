"""Cluster scores, from vectors and from noised sums: by hand, and scikit-learn's."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn import metrics

from edgeveil.errors import ProtocolError
from edgeveil.evaluation.cluster_sums import ONE, SCORES, STEP, ClusterSums
from edgeveil.evaluation.clustering import MEAN, NOT_EVAL, SCORED, cluster_scores, project_2d

ODD = [np.nan, np.inf, -np.inf, -1e-9, 0.0, 1.5, 1e308]
NO_LABELS = np.zeros(0, np.int64)


def softmax(seed, count, classes, sharp=3.0):
    """Vectors about the corners of the simplex, as a trained model gives them."""
    chance = np.random.default_rng(seed)
    logits = chance.normal(0, 1, (count, classes))
    logits[np.arange(count), np.arange(count) % classes] += sharp
    raw = np.exp(logits)
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


def about(centroids):
    return ClusterSums(len(centroids)).of_broadcast(np.floor(centroids * ONE).astype(np.int64))


def by_hand(points, centroids):
    """(labels, simplified silhouette) by the distances themselves."""
    apart = np.sqrt(np.square(points[:, None] - centroids[None]).sum(axis=2))
    least = np.sort(apart, axis=1)
    return apart.argmin(axis=1), float(np.mean(1 - least[:, 0] / least[:, 1]))


def means(points, labels):
    return np.stack([points[labels == k].mean(axis=0) for k in range(points.shape[1])])


# --- what one record adds ---------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32),
    classes=st.integers(2, 6),
    count=st.integers(1, 30),
    gone=st.integers(0, 29),
    alike=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_one_record_changes_no_more_than_is_said(seed, classes, count, gone, alike):
    chance, at = np.random.default_rng(seed), gone % count
    points = softmax(seed, count, classes, sharp=float(chance.uniform(0, 40)))
    odd = chance.random(points.shape) < 0.05
    points[odd] = chance.choice(ODD, odd.sum())
    centroids = chance.dirichlet(np.full(classes, 0.2), classes)
    kind = about(np.repeat(centroids[:1], classes, axis=0) if alike else centroids)
    with_it, without = kind.of(points, NO_LABELS), kind.of(np.delete(points, at, 0), NO_LABELS)
    changed = with_it - without
    assert with_it.shape == (kind.cells,)
    assert changed.min() >= 0
    assert changed.max() <= kind.largest
    assert int((changed**2).sum()) <= kind.sensitivity_squared
    assert np.array_equal(changed, kind.of(points[at : at + 1], NO_LABELS))


def test_a_record_can_change_as_much_as_is_said():
    """A corner, all centroids at another: but for the square root of 2 all is as said."""
    kind = about(np.array([[0.0, 1.0]] * 2))
    changed = kind.of(np.array([[1.0, 0.0]]), NO_LABELS)
    assert changed.max() == kind.largest
    assert 0 <= kind.sensitivity_squared - int((changed**2).sum()) < 3 * STEP
    assert changed[-3:].tolist() == [2 * STEP, 0, STEP]  # ‖p − c‖² = 2, silhouette 0


def test_what_is_no_distribution_adds_nothing_and_its_label_is_not_looked_at():
    kind, sound = ClusterSums(3), softmax(1, 5, 3)
    rows = [[np.nan, 0.5, 0.5], [0.5, 0.5, 0.5], [-0.2, 0.6, 0.6], [np.inf, 0, 0], [0, 0, 0]]
    mixed = np.concatenate([rows[:2], sound, rows[2:]])
    assert np.array_equal(kind.of(mixed, np.arange(10)), kind.of(sound, np.full(5, -1)))
    assert not kind.of(np.array(rows), NO_LABELS).any()
    assert not kind.of(np.zeros((0, 3)), NO_LABELS).any()


CORNERS = np.eye(3, dtype=np.int64)
NO_CENTROIDS = {
    "float": np.eye(3),
    "shape": CORNERS[:2] * ONE,
    "large": CORNERS * (ONE + 1),
    "outside": np.array([[ONE, 1, 0]] * 3),
    "negative": np.array([[ONE, -1, 0]] * 3),
    "overflow": np.array([[2**62, 2**62, 2**62]] * 3),
}


@pytest.mark.parametrize("centroids", NO_CENTROIDS.values(), ids=NO_CENTROIDS)
def test_centroids_that_are_none_are_refused(centroids):
    """What is proven of a record holds for centroids on the simplex."""
    with pytest.raises(ProtocolError) as caught:
        ClusterSums(3).of_broadcast(centroids)
    assert caught.value.reason == "bad_package"


# --- scores without noise ---------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 4, 10])
def test_about_own_means_the_scores_are_scikit_learns(classes):
    points = softmax(3, 400, classes)
    centroids = np.eye(classes)
    for _ in range(50):  # to where the means stay where they are
        labels, _ = by_hand(points, centroids)
        centroids = means(points, labels)
    kind = about(centroids)
    parts = [kind.of(points[k::3], NO_LABELS) for k in range(3)]  # of three devices
    found = kind.figures(np.sum(parts, axis=0).astype(np.float64), 0.0)
    labels, silhouette = by_hand(points, centroids)
    assert found["silhouette"] == pytest.approx(silhouette, abs=1e-3)
    wanted = metrics.calinski_harabasz_score(points, labels)
    assert found["calinski_harabasz"] == pytest.approx(wanted, rel=1e-3)
    wanted = metrics.davies_bouldin_score(points, labels)
    assert found["davies_bouldin"] == pytest.approx(wanted, rel=1e-3)
    assert (found["records"], found["clusters"]) == (400, classes)
    assert all(found[f"{name}_deviation"] == 0 for name in SCORES)


# --- scores with noise ------------------------------------------------------------------------


def noised(kind, exact, deviation, seed):
    return np.asarray(exact + np.random.default_rng(seed).normal(0, deviation * STEP, exact.size))


def test_noise_moves_scores_by_their_standard_errors():
    points, kind, times, deviation = softmax(6, 20_000, 4), ClusterSums(4), 60, 20.0
    exact = kind.of(points, NO_LABELS).astype(np.float64)
    true = kind.figures(exact, 0.0)
    reported = [
        kind.figures(noised(kind, exact, deviation, seed), deviation * STEP)
        for seed in range(times)
    ]
    for name in SCORES:
        off = np.array([one[name] - true[name] for one in reported])
        stated = np.mean([one[f"{name}_deviation"] for one in reported])
        assert 0.6 < off.std() / stated < 1.5, name
        assert abs(off.mean()) < 5 * stated / math.sqrt(times), name
    assert {one["count_deviation"] for one in reported} == {deviation}


def test_what_the_noise_hides_is_not_told():
    points, kind = softmax(7, 200, 4), ClusterSums(4)
    exact = kind.of(points, NO_LABELS).astype(np.float64)
    for seed in range(20):
        found = kind.figures(noised(kind, exact, 25.0, seed), 25.0 * STEP)
        assert found["calinski_harabasz"] is None
        assert found["davies_bouldin"] is None
    nothing = kind.figures(noised(kind, exact * 0, 25.0, 1), 25.0 * STEP)
    assert [nothing[name] for name in SCORES] == [None] * 3
    moved = kind.moved(noised(kind, exact * 0, 25.0, 1), 1e6 * STEP)
    assert np.array_equal(moved, kind.about)


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
def test_scores_by_hand_leave_out_what_is_not_finite(kind, score):
    spoilt = np.concatenate([[[np.nan, 1.0]], POINTS, [[np.inf, 0]]])
    for vectors, labels in ((POINTS, (0, 0, 1, 1)), (spoilt, (-1, 0, 0, 1, 1, -1))):
        got = cluster_scores(vectors, kind, len(vectors))
        assert got.score == pytest.approx(score)
        assert (got.used, got.labels) == (4, labels)
        assert bool(got.reason) == (got.used < len(vectors))
    rows = cluster_scores(POINTS.reshape(2, 2, 2), kind, 3)  # two uploads of two rows each
    assert (rows.score, rows.used, rows.labels) == (pytest.approx(score), 2, (0, 0, 1, 1))


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        (np.zeros((0, 2)), "at least 3"),
        (np.array([[2, 1], [3, 1], [4, 0]]), "one cluster"),
        (np.eye(3), "single upload"),
    ],
)
@pytest.mark.parametrize("kind", SCORED)
def test_degenerate_uploads_have_no_score_and_say_why(kind, vectors, reason):
    got = cluster_scores(vectors, kind, 1000)
    assert got.score is None
    assert reason in got.reason
    same = cluster_scores(np.repeat(np.eye(2), 2, axis=0), "CALINSKI_HARABASZ_SCORE", 4)
    assert same.score is None and "infinite" in same.reason  # not a poor score


@settings(max_examples=60, deadline=None)
@example(np.array([[-9e307, 0.0], [-9e307, -9e307], [-9e307, -9e307]]), "DAVIES_BOULDIN_SCORE")
@given(
    arrays.arrays(np.float64, st.tuples(st.integers(0, 8), st.integers(1, 4))),
    st.sampled_from((NOT_EVAL, MEAN, *SCORED)),
)
def test_total(vectors, kind):
    got = cluster_scores(vectors, kind, 5)
    assert got.score is None or np.isfinite(got.score)
    assert got.score is not None or got.reason
    assert len(got.labels) == len(vectors)


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
    odd = project_2d(np.array([[1.0, 0], [np.nan, 0], [-1, 0], [1e300, 1]]))
    assert np.isfinite(odd).all(axis=1).tolist() == [True, False, True, True]
    assert project_2d(np.zeros((0, 3))).shape == (0, 2)
