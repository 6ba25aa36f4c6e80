"""The audit of correlated noise: its ε holds for real rounds, and is no larger than needed."""

import numpy as np
import pytest
from test_audit_shared_attacks import verdicts

from edgeveil_lab.audit import correlated_attacks as ca


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


@pytest.mark.drill
def test_fewer_honest_parts_than_promised_are_found():
    attack = ca.correlated_attack(4000, ca.CorrelatedJob(honest=1))
    assert set(verdicts(attack).values()) == {"FAILS"}
