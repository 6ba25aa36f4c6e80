"""The audit of whole persons and devices: bounds of single records are found, and less noise."""

import numpy as np
import pytest
from test_audit_shared_attacks import verdicts

from edgeveil.evaluation.cluster_sums import ONE, ClusterSums
from edgeveil.evaluation.record_counts import Confusion
from edgeveil.jobs import federated_evaluation
from edgeveil.parts.methods import dp_sgd, fm_sums
from edgeveil_lab.audit.evaluation_attack import evaluation_attack
from edgeveil_lab.audit.mechanism_attacks import MANY
from edgeveil_lab.audit.shared_attacks import (
    DEVICE_JOB,
    SECOND,
    SharedNoiseJob,
    sampled_attack,
    sum_attack,
)
from edgeveil_lab.audit.update_attacks import PERSON, dp_sgd_attack

PAST, BOTH = "past the threshold", "both evaluations"
CLUSTERS = ClusterSums(2, ((ONE, 0), (ONE, 0)))


def as_it_is(total, limit):
    return total


def whole_device(runs, honest=0):
    """All of the budget in one round, where less noise or a larger sum is found soonest."""
    text = DEVICE_JOB.replace(
        "rounds: 2, shares: {centre: 0.3, quadratic: 0.3}",
        "rounds: 1, centre: false, quadratic: never",
    )
    return sum_attack(runs, SharedNoiseJob(honest, text), "a whole device")


def counts(kind, runs):
    return evaluation_attack("counts", kind, runs, unit="person")


def test_what_is_attacked_is_one_unit_of_many_records_and_its_price():
    job = SharedNoiseJob(text=DEVICE_JOB)
    assert {event.unit for event in job.events} == {"device"}
    assert len(job.scene.without) == 0 and len(job.scene.present) > MANY
    for event, gap in zip(job.events, job.hostile.gaps, strict=True):
        assert np.linalg.norm(gap) <= event.together.sensitivity_steps
    assert PERSON.owners("person").tolist() == [0] * MANY


@pytest.mark.slow
@pytest.mark.parametrize("attack", [dp_sgd_attack, sampled_attack], ids=["dp_sgd", "dp_sgd_sums"])
def test_gradients_of_a_person_that_are_bounded_by_record_are_found(monkeypatch, attack):
    person = PERSON.at(np.arange(4))
    assert verdicts(attack(100, person)) == {PAST: "holds"}
    monkeypatch.setattr(dp_sgd, "clip_sum", as_it_is)
    assert verdicts(attack(350, person)) == {PAST: "FAILS"}


def test_a_device_bounded_by_record_goes_beyond_its_price(monkeypatch):
    monkeypatch.setattr(fm_sums, "clip_sum", as_it_is)
    job = SharedNoiseJob(text=DEVICE_JOB)
    for k in range(SECOND):
        steps = job.events[k].together.sensitivity_steps
        assert np.linalg.norm(job.hostile.gaps[k]) > 1.2 * steps


@pytest.mark.slow
def test_sums_of_a_device_that_are_bounded_by_record_are_found(monkeypatch):
    monkeypatch.setattr(fm_sums, "clip_sum", as_it_is)
    assert verdicts(whole_device(400)) == {"round 1": "FAILS"}


@pytest.mark.slow
def test_sums_of_a_device_with_fewer_honest_parts_are_found():
    assert verdicts(whole_device(250)) == {"round 1": "holds"}
    assert verdicts(whole_device(1200, honest=1)) == {"round 1": "FAILS"}


@pytest.mark.parametrize(
    "kind",
    [Confusion(2), pytest.param(CLUSTERS, marks=pytest.mark.slow)],
    ids=["counts", "clusters"],
)
def test_counts_of_a_person_that_are_of_each_record_are_found(monkeypatch, kind):
    assert set(verdicts(counts(kind, 200)).values()) == {"holds"}
    monkeypatch.setattr(federated_evaluation, "grouped", lambda of: np.arange(len(of))[:, None])
    assert verdicts(counts(kind, 200))[BOTH] == "FAILS"
