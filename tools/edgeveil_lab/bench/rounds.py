"""`python -m edgeveil_lab.bench.rounds JOB`: seconds a round of a simulated job, by engine.

`faithful` plays all parties in this process, two devices at work at a time; `processes` plays the
rounds alone over worker processes. Both in one run, so that the ratio is worth something. On a busy
machine read the processor's seconds: the wall's are then not its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from threadpoolctl import threadpool_limits

from edgeveil.data.records import Records
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.parts.exchange import Exchange
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.testing import MemoryFleet
from edgeveil_tools.local.children import scratch
from edgeveil_tools.local.data import dealt
from edgeveil_tools.local.job import Overrides, local_job, site_of
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.simulated import KEPT_BYTES, THREADS, memory_fleet
from edgeveil_tools.simulation.devices import SimulatedFleet
from edgeveil_tools.simulation.rounds import SimulatedRounds
from edgeveil_tools.simulation.workers import ProcessWorkers

REPEATS = 5
LOOK_S = 0.1  # of the processor's seconds: a look at the store takes 3 ms

Seconds = tuple[float, float]  # on the wall, of the processor
Player = Callable[[Job, LocalRun, int], Iterator[Seconds]]


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


def faithful(job: Job, run: LocalRun, rounds: int) -> Iterator[Seconds]:
    """Seconds of each exchange; the first reads the records too."""
    with scratch(keep=False, in_memory=True) as folder, ThreadPoolExecutor(THREADS) as executor:
        fleet = memory_fleet(site_of(job, run, folder), executor)
        job_id = fleet.submit(job)
        for index in range(1, min(rounds, len(compile_job(job).exchanges)) + 1):
            wall_s, busy_s = time.perf_counter(), time.process_time()
            fleet.net.run(_committed(fleet, job_id, index), limit_s=float("inf"))
            yield time.perf_counter() - wall_s, time.process_time() - busy_s
        fleet.close()


def processes(job: Job, run: LocalRun, rounds: int) -> Iterator[Seconds]:
    """The same of the rounds alone, a worker for each processor."""
    given = tuple(read_artifacts(job).values())
    found: list[Seconds] = []
    with scratch(keep=False, in_memory=True) as folder:
        site = site_of(job, run, folder)
        fleet = SimulatedFleet(site, job.canonical(), given, KEPT_BYTES)
        workers = ProcessWorkers(fleet, run.workers or os.cpu_count() or 1)
        begun = [time.perf_counter(), _busy_s(workers.pids)]

        def tell(kind: str, _data: Mapping[str, Any]) -> None:
            if kind == "exchange_committed":
                now = time.perf_counter(), _busy_s(workers.pids)
                found.append((now[0] - begun[0], now[1] - begun[1]))
                begun[:] = now
                if len(found) == rounds:
                    raise _Enough

        try:
            SimulatedRounds(job, site, workers, tell=tell).play()
        except _Enough:
            pass
        finally:
            workers.stop()
    yield from found


class _Enough(Exception):  # noqa: N818 - no error
    """So many rounds were asked for."""


PLAYERS: Mapping[str, Player] = {"faithful": faithful, "processes": processes}


def _busy_s(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return time.process_time() + float(sum(one.user + one.system for one in times))


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
    parser.add_argument("--devices", type=int, metavar="N", help="instead of the job's")
    parser.add_argument("--engine", nargs="+", choices=PLAYERS, default=[*PLAYERS], metavar="NAME")
    args = parser.parse_args()
    job, run = local_job(args.job, Overrides(simulate=True, data=args.data, devices=args.devices))
    torch.set_num_threads(1)
    medians: dict[str, float] = {}
    with threadpool_limits(1):
        alone_s = training_s(job, run)
        for engine in args.engine:
            walls: list[float] = []
            for wall_s, busy_s in PLAYERS[engine](job, run, args.rounds):
                walls.append(wall_s)
                print(
                    f"{engine}, exchange {len(walls)}: {wall_s:6.2f} s, processor {busy_s:6.2f} s",
                    flush=True,
                )
            medians[engine] = statistics.median(walls[1:] or walls)
    everybody_s = alone_s * run.devices
    print(
        f"training alone: {run.devices} x {1000 * alone_s:.1f} ms = {everybody_s:.2f} s processor"
    )
    if len(medians) == len(PLAYERS):
        ratio = medians["faithful"] / medians["processes"]
        print(f"after the first exchange, medians: processes {ratio:.1f} times as fast")


if __name__ == "__main__":
    main()
