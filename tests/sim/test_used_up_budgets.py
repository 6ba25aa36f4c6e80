"""A fleet whose owners' budgets are used up says so, at the cloud, at the proxy and on each box."""

import pytest

from edgeveil.config.policy import Policy
from edgeveil.privacy.policy import INFER
from tests.kits.fleet import Fleet, small_job

pytestmark = pytest.mark.slow

JOB = small_job(round={"deadline_s": 5.0, "min_batch": 3, "retries": 1, "grace_s": 1.0})


def test_a_used_up_inference_budget_is_named_everywhere(tmp_path):
    probe = Fleet(tmp_path / "probe", 5, floor=3)
    assert probe.finish(probe.submit(JOB)) == "completed"
    price = probe.devices[0].ledger.spent(purpose=INFER).epsilon
    fleet = Fleet(tmp_path / "site", 5, floor=3, policy=Policy(max_inference_epsilon=1.5 * price))
    assert fleet.finish(fleet.submit(JOB)) == "completed"
    spent = [box.ledger.spent() for box in fleet.devices]
    again = fleet.submit(JOB)
    assert fleet.finish(again) == "failed"
    reason = fleet.store.job(again).reason
    assert "(5 for budget)" in reason and "more time" not in reason
    (event,) = [e for e in fleet.store.events_after(0, again) if e.type == "all_declined"]
    assert event.data["causes"] == {"budget": 5}
    assert fleet.proxy.warnings() == ["rounds_declined"]
    for box in fleet.devices:
        (refusal,) = box.store.refused_lately()
        assert (refusal["cause"], refusal["job"]) == ("budget", JOB.job)
        assert refusal["why"].startswith("policy.max_inference_epsilon: ")
    assert [box.ledger.spent() for box in fleet.devices] == spent


def test_a_box_that_is_at_work_for_another_job_takes_this_one_up_later(tmp_path):
    fleet = Fleet(tmp_path, 5, policy=Policy(max_jobs=1))
    fleet.net.run(lambda: fleet.enrolled)
    first = fleet.submit(JOB)
    fleet.net.run(lambda: len(fleet.store.rounds(first)) >= 1)
    second = fleet.submit(JOB)
    assert fleet.finish(second) == "paused"
    assert "(5 for conditions)" in fleet.store.job(second).reason
    assert fleet.finish(first) == "completed"
    fleet.resume(second)
    assert fleet.finish(second) == "completed"
