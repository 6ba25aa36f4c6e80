"""Correlated noise: the sensitivity of its matrix, its price, and how much noise it saves."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import epsilon, total_mu
from edgeveil.privacy.correlation import Correlation
from edgeveil.privacy.events import (
    UnprotectedEvent,
    as_single,
    as_summed,
    event_from_dict,
    to_dict,
)
from edgeveil.privacy.gaussian_mechanism import correlated_event, shared_gaussian, update_event


def matrix(of):
    rounds = np.arange(of.rounds)
    apart = rounds[:, None] - rounds[None, :]
    return np.where(apart >= 0, (of.coefficient / 256.0) ** np.maximum(apart, 0), 0.0)


def patterns(of):
    """Return all sets of at most k rounds, b or more apart."""
    for k in range(1, of.participations + 1):
        for chosen in itertools.combinations(range(of.rounds), k):
            if all(b - a >= of.min_separation for a, b in itertools.pairwise(chosen)):
                yield chosen


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), st.integers(0, 255), st.data())
def test_no_pattern_of_participations_moves_more_than_the_sensitivity(rounds, k, b, a, data):
    k = min(k, -(-rounds // b))
    of = Correlation(rounds, k, b, a)
    c, most = matrix(of), 0.0
    for chosen in patterns(of):
        most = max(most, float(np.linalg.norm(c[:, chosen].sum(1))))
    assert of.squared_sensitivity / 2**64 >= most**2 * (1 - 1e-15)
    # It is that of rounds which go on for ever, so that any fewer participations have less each.
    asked = [float(t % b == 0 and t // b < k) for t in range(rounds + 6000)]
    whole = np.array(list(itertools.accumulate(asked, lambda v, x: v * a / 256 + x)))
    assert of.squared_sensitivity / 2**64 == pytest.approx(whole @ whole, rel=1e-9)
    for fewer in range(1, k):
        less = Correlation(rounds, fewer, b, a)
        assert less.squared_sensitivity / fewer <= of.squared_sensitivity / k * (1 + 1e-12)
    # Updates of any direction move less, and so do rounds that take nothing back.
    chosen = data.draw(st.sampled_from(list(patterns(of))))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    updates = np.zeros((rounds, 3))
    drawn = rng.normal(size=(len(chosen), 3))
    updates[list(chosen)] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    noise, before = np.zeros_like(updates), np.zeros(3)
    for t in range(rounds):
        noise[t] = updates[t] + (a / 256 * before if rng.random() < 0.7 else 0)
        before = noise[t]
    assert np.linalg.norm(noise) <= most + 1e-9


def test_rounding_adds_a_step_for_each_coordinate_of_each_round():
    of, clip, size = Correlation(5, 2, 2, 192), 1000, 400
    c = matrix(of)
    each = clip * math.sqrt(of.squared_sensitivity / 2**64 / 2)
    rng = np.random.default_rng(3)
    for _ in range(50):
        rounding = rng.uniform(-1, 1, size=(5, size))
        assert np.linalg.norm(c @ rounding) <= 4 * math.sqrt(5 * size)
    steps = of.sensitivity_steps(clip, size)
    assert 0 <= steps - (each + 4 * math.sqrt(5 * size)) <= 2


@pytest.mark.parametrize("facts", [(5, 2, 4), (64, 4, 21), (32, 8, 4), (7, 1, 3)])
def test_fewer_participations_than_allowed_cost_no_less_than_they_move(facts):
    """A device pays for the rounds that it answered; the last columns may be cut short."""
    of, clip, size = Correlation.of_least_error(*facts), 10_000, 100
    rounds, k, b = facts
    first = matrix(of)[:, ::b][:, :k]
    rounding = math.sqrt(size * rounds) / (1 - of.coefficient / 256)
    moved = [clip * np.linalg.norm(first[:, :j].sum(1)) + rounding for j in range(1, k + 1)]
    each = of.sensitivity_steps(clip, size)
    for j, one in enumerate(moved, 1):
        assert math.sqrt(j) * each >= one
    event = correlated_event("update", 0.5, size, 4.0, 1e-5, of, 20)
    assert k * as_summed(event).coordinates >= rounds * size
    assert epsilon([event] * k, 1e-5).epsilon <= 4.0


def test_all_participations_together_have_the_price_of_the_whole_mechanism():
    of = Correlation.of_least_error(60, 4, 15)
    event = correlated_event("update", 0.5, 3000, 4.0, 1e-5, of, 20)
    sigma = math.sqrt(20 * event.own.sigma_squared)
    moved = event.own.sensitivity_steps * math.sqrt(of.squared_sensitivity / 2**64)
    assert total_mu([as_summed(event)] * 4) == pytest.approx(moved / sigma, rel=0.01)
    assert total_mu([as_summed(event)] * 4) >= moved / sigma
    found = epsilon([event] * 4, 1e-5)
    assert 3.7 < found.epsilon <= 4.0 and found.unit == "device"
    # Discreteness is paid for all rounds, not only for those of one device.
    assert 4 * as_summed(event).coordinates >= 60 * 3000
    assert epsilon([event] * 5, 1e-5).epsilon > 4.0


def test_collusion_leaves_the_local_noise_or_none():
    of = Correlation.of_least_error(20, 2, 5)
    bare = correlated_event("update", 0.5, 100, 4.0, 1e-5, of, 10)
    assert isinstance(as_single(bare), UnprotectedEvent)
    assert epsilon([bare] * 2, 1e-5).colluding.epsilon == math.inf
    kept = correlated_event("update", 0.5, 100, 4.0, 1e-5, of, 2, local_share=0.5)
    alone = as_single(kept)
    assert alone.sigma_squared == math.ceil(kept.own.sigma_squared / 2)
    assert alone.sensitivity_steps == kept.own.sensitivity_steps
    colluding = epsilon([kept] * 2, 1e-5).colluding.epsilon
    assert 4.0 < colluding < math.inf
    assert colluding == epsilon([alone] * 2, 1e-5).epsilon


def test_the_plain_form_keeps_every_field_and_refuses_others():
    of = Correlation.of_least_error(20, 2, 5)
    event = correlated_event("update", 0.5, 100, 4.0, 1e-5, of, 10, local_share=0.5)
    plain = to_dict(event)
    assert event_from_dict(plain) == event
    for name in ("coefficient", "rounds", "local_sigma_squared", "honest"):
        with pytest.raises(PrivacyError):
            event_from_dict({k: v for k, v in plain.items() if k != name})
    with pytest.raises(PrivacyError):
        event_from_dict(plain | {"coefficient": 256})


@pytest.mark.parametrize(
    ("facts", "gain"),
    [((150, 5, 30), 3.20), ((200, 1, 200), 3.61), ((200, 4, 50), 3.57), ((1000, 10, 100), 5.31)],
)
def test_the_coefficient_saves_the_noise_that_theory_says(facts, gain):
    of = Correlation.of_least_error(*facts)
    assert of.gain == pytest.approx(gain, abs=0.005)
    rounds, k, _ = facts
    rng = np.random.default_rng(7)
    noise = rng.normal(size=(rounds, 2000)) * math.sqrt(of.squared_sensitivity / 2**64)
    taken = of.coefficient / 256 * np.vstack([np.zeros(2000), noise[:-1]])
    alone = rng.normal(size=(rounds, 2000)) * math.sqrt(k)
    ratio = alone.sum(0).std() / (noise - taken).sum(0).std()
    assert ratio == pytest.approx(of.gain, rel=0.05)


def test_no_coefficient_has_less_mean_square_error():
    of = Correlation.of_least_error(40, 2, 20)

    def error(a):
        one = Correlation(40, 2, 20, a)
        back = np.linalg.inv(matrix(one))
        models = np.tril(np.ones((40, 40))) @ back  # each round's model adds up all before
        return one.squared_sensitivity * float((models**2).sum())

    assert min(range(256), key=error) == of.coefficient


def test_its_noise_in_the_model_is_less_than_that_of_independent_noise():
    of = Correlation.of_least_error(150, 5, 30)
    one = correlated_event("update", 0.5, 26_010, 8.0, 1e-5, of, 100)
    other = shared_gaussian(update_event("update", 0.5, 26_010, 8.0, 1e-5, 5, 24), 100)

    def sigma(event):
        return math.sqrt(100 * event.own.sigma_squared) / 2**event.own.grid_bits

    left = math.sqrt(1 + 149 * (1 - of.coefficient / 256) ** 2)
    gain = sigma(other) * math.sqrt(150) / (sigma(one) * left)
    assert gain == pytest.approx(of.gain, rel=0.03)
