"""The workers that open batches are found wherever the cloud has started them, and killed."""

from __future__ import annotations

import sys

import psutil
import pytest

from edgeveil.errors import UsageError
from edgeveil_cloud.compute import WorkerProcesses
from edgeveil_lab.chaos.compute import ComputeWorkers, check_engine
from tests.kits.live_site import wait_for


def ended(pool: WorkerProcesses) -> list[bool]:
    return sorted(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pool.pids)


def test_one_of_the_real_workers_dies_and_the_other_stays() -> None:
    pool, chaos = WorkerProcesses(2), ComputeWorkers("local", 7)
    try:
        pool.start()
        chaos.kill()
        assert chaos.waiting == 1  # it stands still, so that work may come to it
        assert chaos.killed == 0
        chaos.stop()
        wait_for(lambda: ended(pool) == [False, True], "the end of one")
        assert (chaos.killed, chaos.waiting) == (1, 0)
    finally:
        pool.close()


def test_where_there_are_none_nobody_is_killed() -> None:
    chaos = ComputeWorkers("local", 7)
    chaos.kill()
    chaos.stop()
    assert (chaos.killed, chaos.waiting) == (0, 0)


def test_what_is_missing_for_ray_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    check_engine("local")
    with pytest.raises(UsageError, match="Ray is not installed") as told:
        check_engine("ray")
    assert told.value.where == "edgeveil chaos --engine" and "edgeveil[ray]" in told.value.fix
