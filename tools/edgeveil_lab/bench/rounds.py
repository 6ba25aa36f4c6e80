"""`python -m edgeveil_lab.bench.rounds JOB`: seconds a round of a simulated job.

All parties in this process, two devices at work at a time, as `edgeveil run --simulate`. On a busy
machine read the processor's seconds: the wall's are then not its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from threadpoolctl import threadpool_limits

from edgeveil.data.records import Records
from edgeveil.jobs import Job, compile_job
from edgeveil.parts.exchange import Exchange
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.testing import MemoryFleet
from edgeveil_tools.local.children import scratch
from edgeveil_tools.local.data import dealt
from edgeveil_tools.local.fleet import THREADS, memory_fleet
from edgeveil_tools.local.job import Overrides, local_job, site_of
from edgeveil_tools.local.local_run import LocalRun

REPEATS = 5
LOOK_S = 0.1  # of the processor's seconds: a look at the store takes 3 ms


def training_s(job: Job, run: LocalRun) -> float:
    """Processor's seconds of the first device's work on its records in the first exchange."""
    plan, (pool, shares) = compile_job(job), dealt(job, run)
    records = Records(pool.x[shares[0]], pool.y[shares[0]])
    exchange: Exchange = plan.exchanges[0]
    tensors = plan.cloud.package(plan.cloud.initial_state(), exchange)

    def answer() -> None:
        plan.device.answer(exchange, tensors, records, SeededRandom(0), "cpu")

    answer()  # torch is loaded
    begun_s = time.process_time()
    for _ in range(REPEATS):
        answer()
    return (time.process_time() - begun_s) / REPEATS


def played(job: Job, run: LocalRun, rounds: int) -> Iterator[tuple[float, float]]:
    """(wall, processor's) seconds of each exchange; the first reads the records too."""
    with scratch(keep=False, in_memory=True) as folder, ThreadPoolExecutor(THREADS) as executor:
        fleet = memory_fleet(site_of(job, run, folder), executor)
        job_id = fleet.submit(job)
        for index in range(1, min(rounds, len(compile_job(job).exchanges)) + 1):
            wall_s, busy_s = time.perf_counter(), time.process_time()
            fleet.net.run(_committed(fleet, job_id, index), limit_s=float("inf"))
            yield time.perf_counter() - wall_s, time.process_time() - busy_s
        fleet.close()


def _committed(fleet: MemoryFleet, job_id: str, index: int) -> Callable[[], bool]:
    next_look_s = 0.0

    def committed() -> bool:
        nonlocal next_look_s
        if time.process_time() < next_look_s:
            return False
        next_look_s = time.process_time() + LOOK_S
        last = fleet.store.last_commit(job_id)
        return last is not None and last.index >= index

    return committed


def main() -> None:
    """Print the figures."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, metavar="JOB", help="job file with a local_run block")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data set's files")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="exchanges to play")
    args = parser.parse_args()
    job, run = local_job(args.job, Overrides(simulate=True, data=args.data))
    torch.set_num_threads(1)
    with threadpool_limits(1):
        alone_s = training_s(job, run)
        for number, (wall_s, busy_s) in enumerate(played(job, run, args.rounds), start=1):
            print(f"exchange {number}: {wall_s:6.2f} s, processor {busy_s:6.2f} s", flush=True)
    everybody_s = alone_s * run.devices
    print(
        f"training alone: {run.devices} x {1000 * alone_s:.1f} ms = {everybody_s:.2f} s processor"
    )


if __name__ == "__main__":
    main()
