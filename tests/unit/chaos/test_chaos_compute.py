"""The workers that open batches are found wherever the cloud has started them, and killed."""

import psutil

from edgeveil_cloud.compute.processes import WorkerProcesses
from tests.chaos.site import ComputeWorkers
from tests.kits.live_site import wait_for


def ended(pool):
    return sorted(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pool.pids)


def test_one_of_the_real_workers_dies_and_the_other_stays():
    pool, chaos = WorkerProcesses(2), ComputeWorkers("local", 7)
    chaos.kill()
    assert chaos.killed == 0, "none is there yet"
    try:
        pool.start()
        chaos.kill()
        wait_for(lambda: ended(pool) == [False, True], "the end of one")
        assert chaos.killed == 1
    finally:
        pool.close()
