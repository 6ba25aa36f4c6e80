"""The audit of correlated noise: its ε holds for real rounds, and is no larger than needed."""

from dataclasses import replace

import numpy as np
import pytest
from test_audit_shared_attacks import verdicts

from edgeveil.crypto.ring import NOISE_BITS
from edgeveil.privacy.correlation import Correlation
from edgeveil.protocol import tensors
from edgeveil_lab.audit import correlated_attacks as ca

PAST, LOW, SIZE = "past the threshold", "low bits of the second sum", "size of the second sum"
RUNS = 130  # with fewer, no event proves as much as is claimed


@pytest.fixture(scope="module")
def job():
    return ca.CorrelatedJob()


def test_what_rounds_open_is_independent_noise_once_the_correlation_is_undone(job):
    assert job.correlation.coefficient > 50
    seen = np.stack([job.observed(True) - job.gap for _ in range(40)])
    sigma = job.event.together.sigma_squared**0.5
    assert seen.std(axis=(0, 2)) == pytest.approx([sigma] * 3, rel=0.2)
    noise = seen.transpose(1, 0, 2).reshape(len(job.rounds), -1)
    assert np.abs(np.corrcoef(noise) - np.eye(len(noise))).max() < 0.3


def test_the_price_is_that_of_all_participations_and_little_more(job):
    asked, event = job.correlation.participations, job.event.together
    assert job.turns.tolist() == [True, False, True]
    attacked, priced = np.linalg.norm(job.gap), asked**0.5 * event.sensitivity_steps
    assert attacked < priced < 1.05 * attacked  # as if rounds went on after the last
    found = ca.epsilon([job.event] * asked, 1e-5)
    assert 7.9 < found.epsilon <= 8


@pytest.mark.slow
def test_nothing_goes_past_what_is_printed(job):
    assert set(verdicts(ca.correlated_attack(150, job)).values()) == {"holds"}


def whole(half, ring, coefficient):
    """Return a server's share as it is before `taken_back` rounds it."""
    return half * np.uint64(coefficient % 2**64) & np.uint64((1 << ring.bits) - 1)


def test_a_share_that_is_opened_in_fractions_of_a_step_is_found_by_its_low_bits(monkeypatch):
    """What either server's rounding drops is given to the cloud, and all else as it is."""
    rounded, opened, dropped = tensors.taken_back, ca._CorrelatedRound.opened, []

    def noted(*half):
        dropped.append(whole(*half) % np.uint64(1 << NOISE_BITS))
        return rounded(*half)

    def with_fractions(*of):
        dropped.clear()
        sums, halves = opened(*of)
        if dropped:  # one step stands for both
            sums = sums + np.sum(dropped, axis=0) / (1 << NOISE_BITS) - 1
        return sums, halves

    monkeypatch.setattr(tensors, "taken_back", noted)
    monkeypatch.setattr(ca._CorrelatedRound, "opened", with_fractions)
    found = verdicts(ca.correlated_attack(RUNS))
    assert found == {PAST: "holds", LOW: "FAILS", SIZE: "holds"}


def test_halves_that_are_not_rounded_are_found_by_the_size_of_a_sum(monkeypatch):
    monkeypatch.setattr(tensors, "taken_back", whole)
    assert verdicts(ca.correlated_attack(RUNS))[SIZE] == "FAILS"


NEAR = ca.JOB.replace("rounds: 3", "rounds: 9").replace(
    "min_separation: 2, max_participations: 2", "min_separation: 4, max_participations: 3"
)


@pytest.mark.parametrize(("text", "far"), [(ca.JOB, [0, 2]), (NEAR, [0, 4, 8])])
def test_a_device_that_answers_in_rounds_too_near_goes_beyond_its_price(monkeypatch, text, far):
    job = ca.CorrelatedJob(text=text)
    priced = len(far) ** 0.5 * job.event.together.sensitivity_steps
    assert np.flatnonzero(job.turns).tolist() == far
    assert np.linalg.norm(job.gap) < priced
    monkeypatch.setattr(ca, "check_separation", lambda *_: None)
    near = ca.CorrelatedJob(text=text)
    assert np.flatnonzero(near.turns).tolist() == list(range(len(far)))
    assert np.linalg.norm(near.gap) > priced


@pytest.mark.timeout(900)
@pytest.mark.drill
def test_answers_in_rounds_too_near_are_found(monkeypatch):
    monkeypatch.setattr(ca, "check_separation", lambda *_: None)
    assert verdicts(ca.correlated_attack(4000, ca.CorrelatedJob(text=NEAR)))[PAST] == "FAILS"


@pytest.mark.drill
def test_noise_for_one_participation_of_several_is_found(monkeypatch):
    squared = Correlation.squared_sensitivity.func
    of_one = property(lambda self: squared(replace(self, participations=1)))
    monkeypatch.setattr(Correlation, "squared_sensitivity", of_one)
    assert verdicts(ca.correlated_attack(4000))[PAST] == "FAILS"


@pytest.mark.drill
def test_fewer_honest_parts_than_promised_are_found():
    attack = ca.correlated_attack(4000, ca.CorrelatedJob(honest=1))
    assert verdicts(attack)[PAST] == "FAILS"
