"""The mean is exact; median, trimmed mean and Krum by hand, and with poisoned uploads."""

from fractions import Fraction

import numpy as np
import pytest

from edgeveil.errors import JobFailed
from edgeveil.parts.aggregation import AGGREGATIONS, Uploads
from edgeveil.parts.aggregation import rule as rules
from edgeveil.parts.aggregation.mean import mean
from edgeveil.parts.aggregation.robust import krum_scores, squared_distances


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300, 0.0])
def test_floats_of_any_size_are_summed_exactly(scale):
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=4) * 10.0 ** rng.integers(-6, 6) * scale for _ in range(300)]
    exact = [float(sum(Fraction(float(a[k])) for a in arrays)) / 300 for k in range(4)]
    np.testing.assert_array_equal(mean({"a": arrays})["a"], exact)


def test_no_upload_is_no_mean():
    with pytest.raises(JobFailed, match="head"):
        mean({"head": []})


FIVE = [np.array(row, np.float32) for row in ([1, 9], [2, 0], [3, 5], [50, 6], [-70, 7])]


def combined(name, arrays, **options):
    entry = AGGREGATIONS[name]
    return entry.rule(entry.made(**options)).combine(Uploads({"a": arrays}))["a"]


@pytest.mark.parametrize(
    ("name", "count", "options", "expected"),
    [
        ("median", 5, {}, [2, 6]),
        ("median", 4, {}, [2.5, 5.5]),
        ("median", 1, {}, [1, 9]),
        ("trimmed_mean", 5, {"share": 0.2}, [2, 6]),  # one left out at either end
        ("trimmed_mean", 5, {"share": 0.4}, [2, 6]),
        ("trimmed_mean", 5, {"share": 0.19}, [-2.8, 5.4]),  # none
    ],
)
def test_the_median_and_the_trimmed_mean_by_hand(name, count, options, expected):
    np.testing.assert_allclose(combined(name, FIVE[:count], **options), expected)


def test_distances_and_scores_by_hand():
    points = [np.array([value], np.float32) for value in (0, 1, 3, 100)]
    expected = [[0, 1, 9, 10000], [1, 0, 4, 9801], [9, 4, 0, 9409], [10000, 9801, 9409, 0]]
    distances = squared_distances(points)
    np.testing.assert_allclose(distances, expected, rtol=1e-12, atol=1e-9)
    # f = 0: of each the two nearest others; f = 1: the nearest.
    np.testing.assert_allclose(krum_scores(distances, 0), [10, 5, 13, 19210], rtol=1e-12)
    np.testing.assert_allclose(krum_scores(distances, 1), [1, 1, 4, 9409], rtol=1e-12)
    far = [np.array([1e9 + value]) for value in (0.0, 1.0, 3.0)]
    np.testing.assert_array_equal(squared_distances(far), [[0, 1, 9], [1, 0, 4], [9, 4, 0]])


def test_krum_is_the_nearest_upload_and_multi_krum_the_mean_of_k():
    # With f = 1 the three nearest count: 12.25, 5.25, 15.25, …, 4.75, …
    points = [np.array([value], np.float32) for value in (0, 1, 3, 100, 1.5, -90)]
    np.testing.assert_allclose(combined("krum", points, malicious=1), [1.5])
    np.testing.assert_allclose(combined("krum", points, malicious=1, k=4), [1.375])


def test_blocks_join_to_the_same_result(monkeypatch):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(4, 7)).astype(np.float32) for _ in range(9)]
    options = {"median": {}, "trimmed_mean": {}, "krum": {"k": 3}}
    whole = {name: combined(name, arrays, **options[name]) for name in options}
    monkeypatch.setattr(rules, "BLOCK_BYTES", 8 * 9 * 5)  # five values at a time
    for name, expected in whole.items():
        np.testing.assert_array_equal(combined(name, arrays, **options[name]), expected)
