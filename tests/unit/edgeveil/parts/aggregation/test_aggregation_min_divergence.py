"""Text 000, equations 14 to 16, by hand."""

import math
from collections import Counter

import numpy as np
import pytest

from edgeveil.errors import JobFailed
from edgeveil.parts.aggregation import Uploads
from edgeveil.parts.aggregation.choosing import (
    MinDivergence,
    sign_changes,
)
from edgeveil.parts.aggregation.rule import ChoosingParameters
from edgeveil.parts.round import Aim
from edgeveil.privacy.sampler import SeededRandom

WEIGHTS = np.array([1.0, -1.0, 0.0, 2.0], np.float32)
UPDATES = [
    np.array([-2.0, 2.0, -0.5, -3.0], np.float32),  # -1, 1, -0.5, -1: all four, for 0 is positive
    np.array([-1.0, 1.0, 0.0, -2.0], np.float32),  # 0, 0, 0, 0: only -1 turns
    np.array([0.5, -0.5, 0.5, 0.5], np.float32),  # none
]
DIVERGENCE = [1.0, 0.25, 0.0]


def rule(**options):
    return MinDivergence(ChoosingParameters(name="min_divergence", **options))


def uploads(arrays, random_bytes, **layers):
    aim = Aim({"a": WEIGHTS, **layers}, change=True)
    return Uploads(dict.fromkeys(aim.weights, arrays), aim, random_bytes)


def test_a_divergence_is_the_share_of_signs_that_turn():
    counts = sign_changes(UPDATES, WEIGHTS, change=True)
    np.testing.assert_array_equal(counts / 4, DIVERGENCE)


def test_uploads_may_be_weights_in_place_of_changes():
    weights = [WEIGHTS + update for update in UPDATES]
    np.testing.assert_array_equal(sign_changes(weights, WEIGHTS, change=False), [4, 1, 0])


def test_top_k_is_the_mean_of_the_least_divergent():
    found = rule(k=2, sampling="top_k").combine(uploads(UPDATES, SeededRandom(0)))
    np.testing.assert_array_equal(found["a"], (UPDATES[1] + UPDATES[2]) / 2)


def test_each_layer_chooses_for_itself():
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


def test_the_draw_follows_equation_16():
    epsilon, n, runs = 12.0, 3, 6000
    weights = [math.exp(-epsilon * d / (2 * n)) for d in DIVERGENCE]
    random = SeededRandom(5)
    one = rule(k=1, sampling="exponential", epsilon_3=epsilon)
    found = Counter(float(one.combine(uploads(UPDATES, random))["a"][0]) for _ in range(runs))
    for update, weight in zip(UPDATES, weights, strict=True):
        p = weight / sum(weights)
        spread = math.sqrt(p * (1 - p) / runs)
        assert found[float(update[0])] / runs == pytest.approx(p, abs=4 * spread)


def test_sums_have_no_divergence():
    with pytest.raises(JobFailed, match="undefined"):
        rule(k=1).combine(Uploads({"a": UPDATES}))
