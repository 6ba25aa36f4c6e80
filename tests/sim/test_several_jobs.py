"""Two jobs of one fleet at once: each ends as if it were alone, and none waits for the other."""

import pytest

from tests.kits.fleet import Fleet, small_job

pytestmark = pytest.mark.slow

FIRST, SECOND = small_job(job="first"), small_job(job="second", priority="high")


def committed(fleet, job):
    return [(one.index, one.attempt, one.uploads) for one in fleet.store.rounds(job)]


def test_jobs_at_once_go_as_they_would_one_after_the_other(tmp_path):
    alone = Fleet(tmp_path / "alone", 5)
    after = [alone.submit(FIRST)]
    assert alone.finish(after[0]) == "completed"
    between = alone.net.now_s
    after.append(alone.submit(SECOND))
    assert alone.finish(after[1]) == "completed"

    fleet = Fleet(tmp_path / "together", 5)
    jobs = [fleet.submit(FIRST), fleet.submit(SECOND)]
    assert [fleet.finish(job) for job in jobs] == ["completed"] * 2
    for one, other in zip(jobs, after, strict=True):
        assert committed(fleet, one) == committed(alone, other)
    ends = [fleet.store.job(job).started_at for job in jobs]
    first_end = fleet.store.job(jobs[0]).ended_at
    assert first_end is not None and max(end or 0.0 for end in ends) < first_end
    assert fleet.net.now_s < alone.net.now_s and between < alone.net.now_s


def test_one_whose_devices_are_away_pauses_and_the_other_ends(tmp_path):
    fleet = Fleet(tmp_path, 6)
    large = small_job(
        job="large", round={"deadline_s": 5.0, "min_batch": 6, "retries": 0, "grace_s": 1.0}
    )
    jobs = [fleet.submit(large), fleet.submit(FIRST)]
    fleet.net.run(lambda: bool(committed(fleet, jobs[0])))
    fleet.devices[0].runner.up = False
    assert [fleet.finish(job) for job in jobs] == ["paused", "completed"]
