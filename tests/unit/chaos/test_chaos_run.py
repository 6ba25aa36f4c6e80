"""Faults come and go in their order, and jobs are kept going whatever the cloud answers."""

import threading
import time

import pytest

from edgeveil.errors import BrokerError, UsageError
from tests.chaos.faults import Fault
from tests.chaos.run import CloudJobs, Director


class Site:
    def __init__(self, *, broken=False):
        self.seen = []
        self.broken, self._lock = broken, threading.Lock()

    def begin(self, fault):
        if fault.kind == "broker":
            time.sleep(0.05)
        with self._lock:
            self.seen.append(("begin", fault.kind))

    def end(self, fault):
        if self.broken:
            raise BrokerError("does not start")
        with self._lock:
            self.seen.append(("end", fault.kind))


def directed(site, *faults):
    begun_s = time.monotonic()
    director = Director(site, faults, lambda: time.monotonic() - begun_s)
    director.start()
    return director


def wait_until_over(director):
    end_s = time.monotonic() + 10
    while not director.over():
        assert time.monotonic() < end_s
        time.sleep(0.01)
    director.stop()


def test_each_fault_begins_once_and_ends_after_it_began():
    site = Site()
    faults = (
        Fault(0.01, "broker", "edge", 0.0),  # over before it has come down
        Fault(0.02, "kill", "cloud"),
        Fault(0.03, "cut", "proxy-edge", 0.1),
        Fault(0.04, "disk", "proxy", 0.05),
    )
    director = directed(site, *faults)
    wait_until_over(director)
    assert sorted(director.done, key=lambda fault: fault.at_s) == list(faults)
    begun = [("begin", kind) for kind in ("broker", "cut", "disk", "kill")]
    assert sorted(site.seen) == [*begun, ("end", "broker"), ("end", "disk")]
    for kind in ("broker", "disk"):
        assert site.seen.index(("begin", kind)) < site.seen.index(("end", kind))


def test_a_broker_that_stays_away_is_told():
    director = directed(Site(broken=True), Fault(0.0, "broker", "edge", 0.0))
    with pytest.raises(BrokerError, match="does not start"):
        wait_until_over(director)
    director.stop()


def test_no_fault_comes_after_the_stop():
    site = Site()
    director = directed(site, Fault(30.0, "kill", "cloud"))
    director.stop()
    assert (site.seen, director.done) == ([], [])


class Cloud:
    """The cloud's HTTP control, as its client shows it."""

    def __init__(self, *statuses):
        self.statuses, self.away, self.asked = [*statuses], False, []

    def list(self):
        if self.away:
            raise UsageError("the cloud does not answer")
        return [
            {"id": f"job-{k}", "status": status, "ended_at": status == "completed"}
            for k, status in enumerate(self.statuses)
        ]

    def job(self, job):
        return {"exchanges": [{}] * 3}

    def resume(self, job):
        self.asked.append(f"resume {job}")

    def submit_yaml(self, _job_yaml):
        self.statuses.append("queued")
        raise UsageError("the answer was lost")


def jobs_of(cloud):
    return CloudJobs(lambda: cloud, b"job: x")


def test_a_paused_job_is_resumed_and_counts_as_no_progress():
    cloud = Cloud("completed", "paused")
    jobs = jobs_of(cloud)
    assert jobs.look()
    mark = jobs.mark
    assert jobs.look()
    assert cloud.asked == ["resume job-1"] * 2
    assert jobs.resumed == {"job-1": 2}
    assert (jobs.idle, jobs.completed, jobs.mark) == (False, ["job-0"], mark)


def test_a_submission_whose_answer_is_lost_is_found_by_the_next_look():
    jobs = jobs_of(Cloud())
    assert jobs.look()
    jobs.feeding = True
    jobs.look()
    assert jobs.look()
    assert [job["status"] for job in jobs.known] == ["queued"]


def test_a_cloud_that_is_away_changes_nothing_that_is_known():
    cloud = Cloud("running")
    jobs = jobs_of(cloud)
    assert jobs.look()
    cloud.away = True
    assert not jobs.look()
    assert (jobs.idle, jobs.committed) == (False, 3)
