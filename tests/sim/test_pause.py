"""A job whose devices are away pauses; resumed, it goes on with them and spends nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeveil_cloud.broadcasts import RoundSecret
from tests.kits.fleet import Fleet, small_job

pytestmark = pytest.mark.slow

JOB = small_job(round={"deadline_s": 5.0, "min_batch": 3, "retries": 1, "grace_s": 1.0})


def rounds(fleet: Fleet, job: str) -> list[tuple[int, int, int]]:
    return [(r.index, r.attempt, r.uploads) for r in fleet.store.exchanges(job)]


def asked(fleet: Fleet, job: str, index: int, attempt: int) -> set[bytes]:
    raw = fleet.store.round_key(job, index, attempt)
    assert raw is not None
    return set(RoundSecret.from_bytes(raw).recipients)


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Fleet, str]:
    """A job of five devices that paused in its third exchange, as most of them were cut off."""
    fleet = Fleet(tmp_path, 5, floor=3)
    job = fleet.submit(JOB)
    fleet.net.run(lambda: len(rounds(fleet, job)) == 2)
    for box in fleet.devices[1:]:
        box.runner.up = False
    assert fleet.finish(job) == "paused"
    return fleet, job


def test_a_paused_job_goes_on_with_the_same_devices_and_spends_once(
    stopped: tuple[Fleet, str],
) -> None:
    fleet, job = stopped
    assert "below the minimum" in fleet.store.job(job).reason
    before = asked(fleet, job, 3, 1)
    assert before == asked(fleet, job, 3, 2)
    for box in fleet.devices[1:]:
        box.runner.up = True
        fleet.net.connect(box.runner)
    fleet.resume(job)
    fleet.net.run(lambda: fleet.store.round_key(job, 3, 3) is not None)
    assert asked(fleet, job, 3, 3) == before
    assert fleet.finish(job) == "completed"
    assert [r[0] for r in rounds(fleet, job)] == [1, 2, 3, 4, 5]
    assert rounds(fleet, job)[2] == (3, 3, 5)
    assert {round(box.ledger.spent().epsilon, 6) for box in fleet.devices} == {8.0}
    types = [event.type for event in fleet.store.events_after(0, job)]
    assert types.count("job_paused") == types.count("job_resumed") == 1


def test_a_resumed_job_whose_devices_are_still_away_pauses_again(
    stopped: tuple[Fleet, str],
) -> None:
    fleet, job = stopped
    fleet.resume(job)
    assert fleet.finish(job) == "paused"
    attempts = [e.data["attempt"] for e in fleet.store.events_after(0, job) if "attempt" in e.data]
    assert max(attempts) == 4  # two of its first life, two more: the retries are fresh


def test_a_job_whose_devices_were_revoked_pauses_and_says_so(
    stopped: tuple[Fleet, str],
) -> None:
    fleet, job = stopped
    fleet.store.set_enrolled(sorted(fleet.store.enrolled())[:2])
    fleet.resume(job)
    assert fleet.finish(job) == "paused"
    assert "still enrolled" in fleet.store.job(job).reason
