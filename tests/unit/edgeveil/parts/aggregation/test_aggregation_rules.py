"""Aggregation by hand: the exact mean, robust rules, MinDivergence (eqs. 14 to 16), SecProbe."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from edgeveil.parts.aggregation import AGGREGATIONS, Uploads
from edgeveil.parts.aggregation import rule as rules
from edgeveil.parts.aggregation.choosing import MinDivergence, SecProbe, sign_changes
from edgeveil.parts.aggregation.mean import mean
from edgeveil.parts.aggregation.robust import krum_scores, squared_distances
from edgeveil.parts.aggregation.rule import ChoosingParameters
from edgeveil.parts.round import Aim
from edgeveil.privacy.sampler import SeededRandom


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300, 0.0])
def test_floats_of_any_size_are_summed_exactly(scale):
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=4) * 10.0 ** rng.integers(-6, 6) * scale for _ in range(300)]
    exact = [float(sum(Fraction(float(a[k])) for a in arrays)) / 300 for k in range(4)]
    np.testing.assert_array_equal(mean({"a": arrays})["a"], exact)


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


WEIGHTS = np.array([1.0, -1.0, 0.0, 2.0], np.float32)
UPDATES = [
    np.array([-2.0, 2.0, -0.5, -3.0], np.float32),  # -1, 1, -0.5, -1: all four, for 0 is positive
    np.array([-1.0, 1.0, 0.0, -2.0], np.float32),  # 0, 0, 0, 0: only -1 turns
    np.array([0.5, -0.5, 0.5, 0.5], np.float32),  # none
]
DIVERGENCE = [1.0, 0.25, 0.0]
RIGHT = {-2.0: 2, -1.0: 9, 0.5: 10}  # of 10 records, by the first value


def rule(name="min_divergence", **options):
    more = {"validation_records": 10} if name == "secprobe" else {}
    return RULES[name](ChoosingParameters(name=name, **more, **options))


RULES = {"min_divergence": MinDivergence, "secprobe": SecProbe}


def uploads(arrays, random_bytes, **layers):
    aim = Aim({"a": WEIGHTS, **layers}, change=True)
    segments = dict.fromkeys(aim.weights, arrays)
    return Uploads(segments, aim, random_bytes, lambda s: RIGHT[float(s["a"][0])])


def test_a_divergence_is_the_share_of_signs_that_turn():
    weights = [WEIGHTS + update for update in UPDATES]
    for given, change in ((UPDATES, True), (weights, False)):
        counts = sign_changes(given, WEIGHTS, change=change)
        np.testing.assert_array_equal(counts / 4, DIVERGENCE)


@pytest.mark.parametrize(
    ("name", "k", "epsilon", "score"),
    [
        ("min_divergence", 1, 12.0, [-d / 3 for d in DIVERGENCE]),  # equation 16, of 3 uploads
        ("secprobe", 1, 4.0, [right / 10 for right in RIGHT.values()]),
        ("secprobe", 2, 2.0, [right / 10 for right in RIGHT.values()]),
    ],
)
def test_k_draws_are_the_exponential_mechanism_and_share_epsilon(name, epsilon, score, k):
    random, runs = SeededRandom(5), 1000
    one = rule(name, k=k, sampling="exponential", epsilon_3=k * epsilon)
    drawn = Counter(float(one.combine(uploads(UPDATES, random))["a"][0]) for _ in range(runs))
    a, b, c = (math.exp(epsilon * s / 2) for s in score)
    total = a + b + c
    # of two draws, those of the second and the third in either order
    p = b / total if k == 1 else b / total * c / (a + c) + c / total * b / (a + b)
    found = drawn[-1.0] if k == 1 else drawn[-0.25]
    assert found / runs == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / runs))


def test_top_k_is_the_mean_of_the_best_and_each_layer_chooses_for_itself():
    for name in RULES:
        found = rule(name, k=2, sampling="top_k").combine(uploads(UPDATES, SeededRandom(0)))
        np.testing.assert_array_equal(found["a"], (UPDATES[1] + UPDATES[2]) / 2)
    mirrored = uploads(UPDATES, SeededRandom(0), b=-WEIGHTS - np.float32(2))  # -3, -1, -2, -4
    found = rule(k=1, sampling="top_k").combine(mirrored)
    np.testing.assert_array_equal(found["a"], UPDATES[2])
    # Turned in b: one (-1 + 2), none or the one at 0, none: chance decides among what is equal.
    assert any(np.array_equal(found["b"], update) for update in UPDATES[1:])


def test_of_equal_uploads_chance_decides_and_not_the_order():
    same = [np.full(4, value, np.float32) for value in (1.0, 1.5, 1.75)]  # each turns one sign
    drawn = Counter(
        float(rule(k=1, sampling="top_k").combine(uploads(same, SeededRandom(k)))["a"][0])
        for k in range(60)
    )
    assert set(drawn) == {1.0, 1.5, 1.75}
