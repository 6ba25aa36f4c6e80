"""Scores without their noise: near the true ones from ε = 20 on, and no number where none is."""

from functools import lru_cache

import numpy as np
import pytest

from edgeveil.evaluation.cluster_metrics import by_argmax, by_kmeans
from edgeveil.evaluation.noise_correction import (
    EXTRAPOLATION_ERROR,
    MODEL_ERROR,
    NOT_IDENTIFIABLE,
    TARGETS,
    CorrectedScore,
    corrected_score,
    fit_dirichlets,
)
from edgeveil.privacy.laplace_mechanism import noise_law, softmax_event, softmax_laplace
from edgeveil.privacy.sampler import SeededRandom
from tests.kits.softmax_fleets import fleet

RATIO, SILHOUETTE = TARGETS["CALINSKI_HARABASZ_SCORE"], TARGETS["SILHOUETTE_SCORE"]
DEVICES = 1000


@lru_cache(maxsize=64)
def found(target, name, epsilon, seed=1, devices=DEVICES, label=by_argmax):
    """(true, raw, corrected) of one simulated fleet."""
    clean = fleet(name, devices, seed)
    points, event = softmax_laplace(clean, epsilon, random_bytes=SeededRandom(seed))
    true, raw = (target.plain(x, label(x)) for x in (clean, points))
    return true, raw, corrected_score(points, target, label, *noise_law(event))


def test_the_noise_of_the_law_is_the_noise_that_is_drawn():
    event = softmax_event(10, 20.0)
    scale, variance = noise_law(event)
    drawn = softmax_laplace(np.full((3000, 10), 0.1), 20.0, random_bytes=SeededRandom(1))[0] - 0.1
    assert (scale, variance) == (0.1, pytest.approx(0.02, rel=1e-9))
    assert drawn.var() == pytest.approx(variance, rel=0.03)
    fine = softmax_laplace(np.full((3000, 10), 0.1), 2.0**22, random_bytes=SeededRandom(1))
    steps = fine[0] - fine[0].mean()
    assert steps.var() == pytest.approx(noise_law(fine[1])[1], rel=0.05)  # half a step a scale
    assert noise_law(softmax_event(10, 1e12))[1] == pytest.approx(0, abs=1e-200)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("unbalanced", marks=pytest.mark.drill),
        pytest.param("alike", marks=pytest.mark.drill),
        "early",
    ],
)
def test_at_epsilon_20_the_ratio_is_right_where_the_raw_one_is_off_by_far(name):
    true, raw, got = found(RATIO, name, 20.0)
    assert true > 5 * raw
    assert got.score == pytest.approx(true, rel=0.15)
    assert got.method == "model"


@pytest.mark.parametrize("name", ["unbalanced", "records", "two-class"])
@pytest.mark.parametrize("epsilon", [200.0, 1000.0])
def test_from_there_on_it_stays_right(name, epsilon):
    true, _, got = found(RATIO, name, epsilon)
    assert got.score == pytest.approx(true, rel=0.15)


@pytest.mark.parametrize("name", ["one-class", "unbalanced", "alike", "records"])
@pytest.mark.parametrize("epsilon", [20.0, 60.0])
def test_the_silhouette_of_squared_distances_is_right_from_20_on(name, epsilon):
    true, raw, got = found(SILHOUETTE, name, epsilon)
    assert got.score == pytest.approx(true, rel=0.15)
    assert abs(got.score - true) < abs(raw - true)


@pytest.mark.parametrize("target", [RATIO, SILHOUETTE], ids=["ratio", "silhouette"])
@pytest.mark.parametrize(("name", "epsilon"), [("iid", 20.0), ("two-class", 10.0), ("alike", 2.0)])
def test_clusters_that_the_noise_hides_have_no_number(target, name, epsilon):
    got = found(target, name, epsilon)[2]
    assert (got.score, got.error, got.method) == (None, None, "")
    assert got.reason.startswith(NOT_IDENTIFIABLE)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("unbalanced", "its error would pass 15 %"),
        ("early", "the noise hides which is which"),
    ],
)
def test_far_below_20_there_is_no_number_and_why(name, why):
    got = found(RATIO, name, 14.0)[2]
    assert got == CorrectedScore(None, None, "", f"{NOT_IDENTIFIABLE}: {why}")


@pytest.mark.parametrize("name", ["unbalanced", "early"])
def test_a_number_below_20_is_right_within_its_own_error(name):
    true, raw, got = found(RATIO, name, 16.0)
    assert true > 5 * raw
    assert abs(got.score - true) < got.error <= MODEL_ERROR * got.score
    assert (got.method, got.reason) == ("model", "")


@pytest.mark.parametrize("target", [RATIO, SILHOUETTE], ids=["ratio", "silhouette"])
def test_without_noise_to_speak_of_it_is_the_raw_score(target):
    true, raw, got = found(target, "unbalanced", 1e6)
    assert got.score == pytest.approx(raw, rel=1e-3)
    assert got.score == pytest.approx(true, rel=1e-3)


def test_kmeans_clusters_are_corrected_too():
    true, raw, got = found(RATIO, "alike", 60.0, label=by_kmeans)
    assert true > 1.5 * raw
    assert got.score == pytest.approx(true, rel=0.15)


def test_it_is_the_same_for_the_same_uploads():
    first = found(RATIO, "unbalanced", 100.0)[2]
    found.cache_clear()
    assert found(RATIO, "unbalanced", 100.0)[2] == first


def test_few_uploads_have_no_correction():
    got = found(RATIO, "unbalanced", 1e6, devices=20)[2]
    assert got == CorrectedScore(None, None, "", f"{NOT_IDENTIFIABLE}: too few uploads or clusters")


def test_huge_uploads_without_clusters_have_no_number():
    points = np.random.default_rng(1).normal(size=(40, 3)) * 1e200
    why = f"{NOT_IDENTIFIABLE}: the noise hides which is which"
    assert corrected_score(points, RATIO, by_argmax, 0.1, 0.02) == CorrectedScore(
        None, None, "", why
    )


def test_huge_uploads_in_clusters_are_scored_as_others_are():
    rng = np.random.default_rng(1)
    clean = 8e8 * np.eye(3)[np.arange(60) % 3] + 1e8 * rng.normal(size=(60, 3))
    points = clean + rng.laplace(0, 1e7, clean.shape)
    clean[0], points[0] = [1e9, 0, 0], [1e200, 0, 0]
    got = corrected_score(points, RATIO, by_argmax, 1e7, 2e14)
    true = RATIO.plain(clean, by_argmax(clean))
    assert abs(got.score - true) < got.error <= EXTRAPOLATION_ERROR * got.score
    assert (got.method, got.reason) == ("extrapolation", "")


def test_the_fit_finds_the_clusters_that_were_drawn():
    rng = np.random.default_rng(2)
    means = np.array([[0.8, 0.15, 0.05], [0.1, 0.8, 0.1], [0.05, 0.1, 0.85]])
    cluster = rng.integers(0, 3, 3000)
    clean = np.stack([rng.dirichlet(30 * means[c]) for c in cluster])
    points = clean + rng.laplace(0, 0.05, clean.shape)
    fit = fit_dirichlets(points, by_argmax(points), 0.05)
    assert np.abs(fit.means - means).max() < 0.01
    assert fit.concentration == pytest.approx(30, rel=0.1)
    assert fit.certainty > 0.99
    assert (fit.posterior.argmax(axis=1) == cluster).mean() > 0.99
    imputed = fit.impute(points, 0.05, np.random.default_rng(3))
    assert imputed.min() >= 0
    assert imputed.sum(axis=1) == pytest.approx(np.ones(3000))
    assert imputed.var(axis=0) == pytest.approx(clean.var(axis=0), rel=0.05)


@pytest.mark.parametrize("scale", [0.05, 0.1])
def test_a_device_with_half_the_nominal_records_is_placed_with_its_own(scale):
    """Mass 0.5, sure of the first class, beside devices that waver between two with mass 1."""
    rng = np.random.default_rng(0)
    sure, wavering = np.array([0.9, 0.05, 0.05]), np.array([0.45, 0.5, 0.05])
    cluster = np.arange(60) % 2
    clean = np.stack([rng.dirichlet(60 * (wavering if c else sure)) for c in cluster])
    clean[cluster == 0] *= 0.5
    points = clean + rng.laplace(0, scale, clean.shape)
    fit = fit_dirichlets(points, cluster, scale)
    assert (fit.posterior.argmax(axis=1) != cluster).sum() <= 3
    assert fit.certainty > 0.95
    assert np.abs(fit.means[0] - [0.45, 0.025, 0.025, 0.5]).max() < 0.1
    assert fit.means[1, -1] < 0.05
