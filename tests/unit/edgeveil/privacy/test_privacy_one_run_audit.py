"""The lower bound of an audit in one run: right with its confidence, and of use."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from edgeveil.privacy.one_run_audit import CONFIDENCE, OneRunAudit, guesses, lower_bound


def chance(canaries, right, epsilon, delta):
    """Theorem 5.2, term by term."""
    count, accuracy = guesses(canaries), math.exp(epsilon) / (1 + math.exp(epsilon))
    at_least = [float(binom.sf(v - 1, count, accuracy)) for v in range(right + 1)]
    steps = [(at_least[right - i] - at_least[right]) / i for i in range(1, right + 1)]
    return at_least[right] + 2 * canaries * delta * max(steps)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-4])
@pytest.mark.parametrize(("canaries", "right"), [(100, 20), (1000, 150), (1000, 200)])
def test_the_bound_is_where_the_theorem_allows_one_error_in_twenty(canaries, right, delta):
    bound = lower_bound(canaries, right, delta)
    assert bound > 0.5
    assert chance(canaries, right, bound, delta) <= 1 - CONFIDENCE + 1e-9
    assert chance(canaries, right, bound * 1.01, delta) > 1 - CONFIDENCE


def test_luck_and_leaks_within_delta_show_nothing():
    assert lower_bound(1000, 100, 1e-5) == lower_bound(1000, 0, 1e-5) == 0
    # All coins given away with probability 0.06 is (0, 0.06)-DP.
    assert lower_bound(100, 20, 0.06) == 0 < lower_bound(100, 20, 1e-5)


def test_randomised_response_is_bounded_by_its_epsilon_and_nearly_reached():
    chance_of_truth, count, found = math.e / (1 + math.e), 2000, []
    draws = np.random.default_rng(5)
    for _ in range(300):
        included = draws.random(count) < 0.5
        told = included ^ (draws.random(count) > chance_of_truth)
        # Ties in random order, so that the guesses are a random choice of those told.
        scores = told + draws.random(count) / 2
        found.append(OneRunAudit.of(scores.tolist(), included.tolist(), 0.0).epsilon)
    assert 0.001 < np.mean(np.array(found) > 1.0) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
    assert np.median(found) > 0.75


def test_who_scores_high_is_guessed_included_and_who_scores_low_excluded():
    scores, included = list(range(20)), [False] * 10 + [True] * 10
    assert OneRunAudit.of(scores, included, 0.0).plain["right"] == guesses(20) == 4
    assert OneRunAudit.of(scores[::-1], included, 0.0).right == 0
