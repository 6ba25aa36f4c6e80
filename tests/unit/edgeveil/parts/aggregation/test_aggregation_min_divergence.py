"""Rules that choose uploads, by hand: MinDivergence (equations 14 to 16) and SecProbe."""

import math
from collections import Counter

import numpy as np
import pytest

from edgeveil.errors import JobFailed
from edgeveil.parts.aggregation import Uploads
from edgeveil.parts.aggregation.choosing import MinDivergence, SecProbe, sign_changes
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


@pytest.mark.parametrize("name", RULES)
def test_top_k_is_the_mean_of_the_best(name):
    found = rule(name, k=2, sampling="top_k").combine(uploads(UPDATES, SeededRandom(0)))
    np.testing.assert_array_equal(found["a"], (UPDATES[1] + UPDATES[2]) / 2)


@pytest.mark.parametrize(
    ("name", "k", "epsilon", "score"),
    [
        ("min_divergence", 1, 12.0, [-d / 3 for d in DIVERGENCE]),  # equation 16, of 3 uploads
        ("secprobe", 1, 4.0, [right / 10 for right in RIGHT.values()]),
        ("secprobe", 2, 2.0, [right / 10 for right in RIGHT.values()]),
    ],
)
def test_k_draws_are_the_exponential_mechanism_and_share_epsilon(name, epsilon, score, k):
    random, runs = SeededRandom(5), 3000
    one = rule(name, k=k, sampling="exponential", epsilon_3=k * epsilon)
    drawn = Counter(float(one.combine(uploads(UPDATES, random))["a"][0]) for _ in range(runs))
    a, b, c = (math.exp(epsilon * s / 2) for s in score)
    total = a + b + c
    # of two draws, those of the second and the third in either order
    p = b / total if k == 1 else b / total * c / (a + c) + c / total * b / (a + b)
    found = drawn[-1.0] if k == 1 else drawn[-0.25]
    assert found / runs == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / runs))


@pytest.mark.parametrize("name", RULES)
def test_sums_cannot_be_chosen_from(name):
    with pytest.raises(JobFailed):
        rule(name, k=1).combine(Uploads({"a": UPDATES}))


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
