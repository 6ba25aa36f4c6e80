"""Buffered rounds over a whole fleet: late updates go on once, weighed, and cost nothing."""

import json

import numpy as np
import pytest

from edgeveil.config.policy import Policy
from edgeveil.jobs import buffered_rounds
from edgeveil.jobs.job import LEAST_BUDGET_S
from edgeveil.protocol.tensors import unpack_tensors
from edgeveil_cloud.stored_jobs import StoredJobs, wire_id
from edgeveil_edge.store import trial_name
from tests.kits.fleet import Fleet, small_job

DEVICES, BUFFER, ROUNDS = 6, 3, 6
OWNERS = Policy(allowed_methods=("dp_sgd",))
LATE = {"mode": "buffered", "buffer": BUFFER, "deadline_s": 60.0, "budget_s": 4.0, "min_batch": 3}


def buffered_job(*, rounds=ROUNDS, **round_):
    return small_job(
        features=(),
        model={"name": "mlp", "hidden": (), "input_scale": 16.0},
        train={"method": "dp_sgd", "rounds": rounds, "local_steps": 2, "sampling_rate": 0.5},
        unsupervised={"every_rounds": 0},
        round={**LATE, **round_},
    )


@pytest.fixture
def fleet(tmp_path):
    return Fleet(tmp_path, DEVICES, policy=OWNERS)


def sent(box, job_id, round):
    states = {(r.job_id, r.round): r.state for r in box.store.receipts()}
    return states.get((job_id, round)) in ("held", "counted")


def test_the_model_is_fedbuffs_of_what_was_released_and_late_updates_are_paid_for_once(fleet):
    job = fleet.submit(buffered_job())
    job_id, jobs = wire_id(job), StoredJobs(fleet.store)
    known = {name: np.array(a, np.float64) for name, a in jobs.state(jobs.entry(job_id)).items()}
    used = []
    stale = []
    for round in range(1, ROUNDS + 1):
        fleet.net.run(lambda at=round: len(fleet.store.rounds(job)) >= at)
        came = []
        for box in fleet.devices:
            if not sent(box, job_id, round):
                continue
            of = max(e for e in range(1, round + 1) if box.ledger.recall(job_id.hex(), e))
            used.append((box.id, of))
            stale.append(round - of)
            update = unpack_tensors(box.ledger.recall(job_id.hex(), of)[1])
            weight = (1 + round - of) ** -0.5
            came.append(
                {n: (a.astype(np.float64) * weight).astype(a.dtype) for n, a in update.items()}
            )
        assert len(came) == BUFFER
        found = jobs.state(jobs.entry(job_id))
        for name in came[0]:
            mean = np.mean([one[name].astype(np.float64) for one in came], axis=0)
            known[name] = known[name] + mean
            np.testing.assert_allclose(found[name], known[name], rtol=1e-5, atol=1e-6)
    assert len(used) == len(set(used)), "an update went on twice"
    assert 0 in stale and max(stale) >= 1
    assert fleet.finish(job) == "completed"
    printed = fleet.store.events_after(0, job)[-1].data["privacy"]["training"]["epsilon"]
    assert all(box.ledger.spent().epsilon <= printed for box in fleet.devices)
    counted = [r for box in fleet.devices for r in box.store.receipts() if r.state == "counted"]
    assert len(counted) == BUFFER * ROUNDS


@pytest.mark.parametrize("most", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_boxes_that_are_slow_have_a_say_and_hold_up_nobody(tmp_path, monkeypatch, most):
    """An answer takes them four rounds: it counts then, unless the job bounds how late it may be.

    What a box needs is what its trial says, as where trials are real.
    """
    monkeypatch.setattr(buffered_rounds, "MAX_STALENESS", most)
    fleet = Fleet(tmp_path, DEVICES, policy=OWNERS)
    slow = fleet.devices[:2]
    job = fleet.submit(buffered_job(rounds=8, buffer=4, budget_s=None))
    trial = trial_name(wire_id(job))
    fleet.net.run(lambda: all(box.store.fact(trial) for box in fleet.devices))
    for box in fleet.devices:
        needed_s = 0.4 if box in slow else 0.05
        box.store.put_fact(trial, json.dumps({"needed_s": needed_s, "refused": ""}))
    begun_s = fleet.net.now_s
    assert fleet.finish(job) == "completed"
    counted = [sum(r.state == "counted" for r in box.store.receipts()) for box in slow]
    assert all(counted) if most == 8 else not any(counted)
    # Each takes a fast box's budget: nobody waited for a slow one's, four times as long.
    assert fleet.net.now_s - begun_s < 8 * 1.5 * LEAST_BUDGET_S
