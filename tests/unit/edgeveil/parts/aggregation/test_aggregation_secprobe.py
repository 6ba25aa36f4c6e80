import math
from collections import Counter

import numpy as np
import pytest

from edgeveil.errors import JobFailed
from edgeveil.parts.aggregation import Uploads
from edgeveil.parts.aggregation.choosing import SecProbe
from edgeveil.parts.aggregation.rule import ChoosingParameters
from edgeveil.privacy.sampler import SeededRandom

UPDATES = [np.array([k], np.float32) for k in (0.0, 1.0, 2.0)]
RIGHT = {0.0: 2, 1.0: 9, 2.0: 10}  # of 10 records


def rule(**options):
    return SecProbe(ChoosingParameters(name="secprobe", validation_records=10, **options))


def uploads(random_bytes, arrays=UPDATES):
    return Uploads({"update": arrays}, None, random_bytes, lambda s: RIGHT[float(s["update"][0])])


def test_top_k_is_the_mean_of_those_that_do_best():
    found = rule(k=2, sampling="top_k").combine(uploads(SeededRandom(0)))
    np.testing.assert_array_equal(found["update"], [1.5])


def test_a_draw_is_the_exponential_mechanism_on_the_accuracy():
    epsilon, runs, random = 4.0, 6000, SeededRandom(1)
    one = rule(k=1, epsilon_3=epsilon)
    found = Counter(float(one.combine(uploads(random))["update"][0]) for _ in range(runs))
    weights = {value: math.exp(epsilon * right / 10 / 2) for value, right in RIGHT.items()}
    for value, weight in weights.items():
        p = weight / sum(weights.values())
        spread = math.sqrt(p * (1 - p) / runs)
        assert found[value] / runs == pytest.approx(p, abs=4 * spread)


def test_k_draws_share_epsilon():
    epsilon, runs, random = 40.0, 4000, SeededRandom(2)
    one = rule(k=2, epsilon_3=epsilon)
    found = Counter(float(one.combine(uploads(random))["update"][0]) for _ in range(runs))
    a, b, c = (math.exp(epsilon / 2 * RIGHT[value] / 10 / 2) for value in (0.0, 1.0, 2.0))
    total = a + b + c
    p = b / total * c / (a + c) + c / total * b / (a + b)  # 1 and 2 in either order
    assert found[1.5] / runs == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / runs))


def test_nothing_to_score_on_is_said():
    with pytest.raises(JobFailed, match="own records"):
        rule(k=1).combine(Uploads({"update": UPDATES}))
