"""The fleet of a run that is simulated: seeded chance, so it repeats exactly, and nobody is late.

Two engines, which give the same model bit for bit. `FleetInMemory` (`faithful`) plays the very
machines, hosts, ledgers and stores of a site in virtual time. `FleetOfWorkers` plays the rounds
alone: plan, devices' answers, aggregation and price, with the devices in worker processes on this
machine or on Ray. Either shows what learning comes to; it protects nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from edgeveil import logs
from edgeveil.errors import JobFailed, UsageError
from edgeveil.jobs import Job
from edgeveil.jobs.artifacts import carried_digests, read_artifacts
from edgeveil.parts.exchange import Array
from edgeveil.protocol.tensors import pack_tensors
from edgeveil.ray_cluster import check_cluster, imported_ray
from edgeveil.testing import MemoryFleet, PlainSealing, device_sites
from edgeveil_tools.local.data import dealt, is_published
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.simulation.checkpoint import (
    EVERY_S,
    Checkpoint,
    drop_checkpoint,
    load_checkpoint,
)
from edgeveil_tools.simulation.devices import SimulatedFleet
from edgeveil_tools.simulation.rounds import SimulatedRounds
from edgeveil_tools.simulation.workers import ProcessWorkers, Workers
from edgeveil_tools.site.provision import SitePlan

if TYPE_CHECKING:
    from edgeveil_tools.local.fleet import LocalFleet as SimulatedRun

THREADS = 2  # devices of the faithful engine that compute at one time
KEPT_BYTES = 256 << 20  # of a round's uploads in a worker's memory; the rest waits on the disk
_LOOK_S = 0.1

Engine = Literal["faithful", "processes", "ray"]


class FleetPlayers(Protocol):
    """What plays a run's job."""

    def play(self) -> None:
        """From keys to models. Raises EdgeVeilError, or KeyboardInterrupt at Ctrl-C."""
        ...

    def stop(self) -> None:
        """End everything; may be called at any moment, and before `play` has ended."""
        ...

    def facts(self) -> dict[str, Any]:
        """What it adds to `RunLog.result`."""
        ...


def engine_of(job: Job, run: LocalRun, *, keep: bool = False) -> Engine:
    """What plays a simulated run. Raises UsageError where the engine asked for cannot."""
    why = ""
    if keep:
        why = "keeps no keys, ledgers or stores"
    elif job.round.mode == "buffered":
        why = "plays no device that is late (round.mode: buffered)"
    elif job.aggregation.groups > 1:
        why = "deals no uploads into groups as they stream in (aggregation.groups)"
    if run.engine == "auto":
        return "faithful" if why else "processes"
    if run.engine != "faithful" and why:
        raise UsageError(
            f"engine {run.engine} {why}", where="local_run.engine", fix="use --engine faithful"
        )
    return run.engine


def check_engine(engine: Engine, run: LocalRun) -> None:
    """Raise UsageError where the engine is not there; nothing has started yet."""
    if engine == "ray":
        imported_ray("local_run.engine")
        check_cluster(run.ray_address, "local_run.ray_address")


# --- the parties themselves ---


class FleetInMemory:
    """The machines, hosts, ledgers and stores of a site, without brokers and encryption."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._fleet: MemoryFleet | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._events, self._next_look_s, self._job_id = 0, 0.0, ""
        self._seconds: float | None = None
        self._declined = ""

    def play(self) -> None:
        """See `FleetPlayers`."""
        run = self._run
        run.progress.note("Simulation of all parties in one process: encryption off, noise seeded")
        import torch  # devices at work in two threads must not be the first to import it
        from threadpoolctl import threadpool_limits

        torch.set_num_threads(1)
        # One thread for each device at work: more would only stand in each other's way.
        with threadpool_limits(1), _log_file(run.out / "logs" / "simulation.log"):
            self._play()
        self._seconds = run.progress.elapsed_s
        if run.reference:
            run.progress.doing("training the noise-free reference")
            run.reference.start()
            run.reference.wait(None)

    def stop(self) -> None:
        """See `FleetPlayers`."""
        if self._fleet is not None:
            self._fleet.interrupt()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        if self._run.reference:
            self._run.reference.stop()
        if self._fleet is not None:
            self._fleet.close()

    def facts(self) -> dict[str, Any]:
        """See `FleetPlayers`."""
        return _facts("faithful", self._seconds)

    def _play(self) -> None:
        run = self._run
        run.progress.doing(f"making {run.settings.devices} devices")
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="edgeveil-work")
        fleet = self._fleet = memory_fleet(run.site, self._executor, self._hear)
        self._job_id = fleet.submit(run.job)
        fleet.net.run(self._look, limit_s=float("inf"))
        self._take_events(fleet)
        if not run.log.record.ended:
            raise JobFailed("the simulation came to a stand", where=self._job_id)
        _require_completed(run, self._job_id, self._declined)
        release = fleet.store.release(self._job_id)
        if release is None:
            raise JobFailed("the job left no model", where=self._job_id)
        run.keep_models(release.onnx, release.safetensors)

    def _hear(self, line: str) -> None:
        """What an owner is told; the first reason to decline is kept."""
        logging.getLogger("edgeveil.devices").info(line)
        if not self._declined and " declined: " in line:
            self._declined = line

    def _look(self) -> bool:
        """Now and then, see how it stands; True once the job has ended."""
        now_s = time.monotonic()
        if now_s < self._next_look_s or self._fleet is None:
            return False
        self._next_look_s = now_s + _LOOK_S
        view, counts = self._run.progress.view, self._fleet.proxy.host
        view.memory_bytes, view.online = self._run.memory.look(), counts.online
        view.uploads = int(counts.round.get("uploads", view.uploads))
        view.declined = int(counts.round.get("declined", view.declined))
        self._take_events(self._fleet)
        self._run.log.look()
        return bool(self._run.log.record.ended)

    def _take_events(self, fleet: MemoryFleet) -> None:
        for event in fleet.store.events_after(self._events, self._job_id):
            self._events = event.seq
            self._run.log.take(asdict(event))


def memory_fleet(
    plan: SitePlan,
    executor: ThreadPoolExecutor | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> MemoryFleet:
    """The site that a plan describes, in memory and not encrypted; its seed seeds all chance."""
    devices = device_sites(
        plan.devices,
        plan.source,
        infer_only=plan.infer_only,
        partition=plan.partition,
        classes=plan.classes,
        policy=plan.policy,
        seed=plan.seed,
    )
    return MemoryFleet(
        plan.folder,
        devices,
        test_data=plan.source,
        seed=plan.seed,
        sealing=PlainSealing(),
        executor=executor,
        say=say,
        cloud={"record_dir": plan.record_dir},
        proxy={"min_batch_floor": plan.min_batch_floor},
    )


# --- rounds alone, over workers ---


class FleetOfWorkers:
    """The same rounds without the parties: devices in worker processes, here or on Ray."""

    def __init__(self, run: SimulatedRun, engine: Engine, *, resume: bool = False) -> None:
        self._run, self._engine, self._resume = run, engine, resume
        self._stamp = checkpoint_stamp(run.job, run.settings)
        self._earlier_s = self._kept_s = 0.0  # of the run that was interrupted; of the checkpoint
        self._workers: Workers | None = None
        self._events, self._next_look_s = 0, 0.0
        self._seconds: float | None = None
        self._declined = ""
        self._rounds: SimulatedRounds | None = None

    def play(self) -> None:
        """See `FleetPlayers`."""
        run = self._run
        from threadpoolctl import threadpool_limits

        # One thread, as the faithful engine has it: the last bits of a product depend on it.
        with threadpool_limits(1), _log_file(run.out / "logs" / "simulation.log"):
            self._play()
        self._seconds = self._earlier_s + run.progress.elapsed_s
        if run.reference:
            run.progress.doing("training the noise-free reference")
            run.reference.start()
            run.reference.wait(None)

    def stop(self) -> None:
        """See `FleetPlayers`."""
        if self._workers is not None:
            self._workers.stop()
        if self._run.reference:
            self._run.reference.stop()

    def facts(self) -> dict[str, Any]:
        """See `FleetPlayers`."""
        count = self._workers.count if self._workers else 0
        return _facts(self._engine, self._seconds, count)

    def _play(self) -> None:
        run, job = self._run, self._run.job
        run.progress.doing(f"making {run.settings.devices} devices")
        dealt(job, run.settings)  # read once, before workers share it
        found = read_artifacts(job)
        carried = tuple(found[digest] for digest in carried_digests(job))
        fleet = SimulatedFleet(run.site, job.canonical(), carried, KEPT_BYTES)
        count = min(run.settings.workers or os.cpu_count() or 1, run.settings.devices)
        workers = self._workers = self._started(fleet, count)
        where = f"{workers.count} worker{'s' * (workers.count > 1)} ({workers.name})"
        run.progress.note(f"Simulation of rounds by {where}: encryption off, noise seeded")
        for number, pid in enumerate(workers.pids, start=1):
            run.children.count(f"worker-{number}", pid)
        rounds = self._rounds = SimulatedRounds(
            job,
            run.site,
            workers,
            tell=self._tell,
            say=self._hear,
            look=self._look,
            committed=self._committed,
        )
        run.progress.view.online = run.settings.devices
        model = rounds.play(self._begin())
        drop_checkpoint(run.out)
        _require_completed(run, job.job, self._declined)
        if model is not None:
            run.keep_models(model.onnx, model.safetensors)

    def _begin(self) -> Checkpoint | None:
        """Where to go on, with the events until there taken again."""
        if not self._resume:
            return None
        found = load_checkpoint(self._run.out, self._stamp)
        self._run.log.take_again(found.events)
        self._events, self._earlier_s = found.events, found.seconds
        self._run.progress.note(f"Going on after exchange {found.exchange}")
        return found

    def _committed(
        self, exchange: int, event: Mapping[str, Any], state: Mapping[str, Array]
    ) -> None:
        """Keep where to go on, now and then."""
        run, rounds, now_s = self._run, self._rounds, self._run.progress.elapsed_s
        if rounds is None or now_s - self._kept_s < EVERY_S:
            return
        self._kept_s = now_s
        Checkpoint(
            self._stamp,
            exchange,
            self._events,
            self._earlier_s + now_s,
            event["accuracy"],
            rounds.chance(),
            pack_tensors(state),
            rounds.states(),
            event.get("federated"),
        ).save(run.out)

    def _started(self, fleet: SimulatedFleet, count: int) -> Workers:
        if self._engine == "ray":
            from edgeveil_tools.simulation.ray_workers import RayWorkers

            return RayWorkers(fleet, count, self._run.settings.ray_address)
        return ProcessWorkers(fleet, count)

    def _tell(self, kind: str, data: Mapping[str, Any]) -> None:
        self._events += 1
        named = {"seq": self._events, "job": self._run.job.job, "time": time.time()}
        self._run.log.take({**named, "type": kind, "data": dict(data)})

    def _hear(self, number: int, line: str) -> None:
        """What an owner is told; the first reason to decline is kept."""
        logging.getLogger("edgeveil.devices").info(f"box-{number}: {line}")
        if not self._declined and " declined: " in line:
            self._declined = f"box-{number}: {line}"

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_look_s or self._rounds is None:
            return
        self._next_look_s = now_s + _LOOK_S
        view, counts = self._run.progress.view, self._rounds.counts
        view.memory_bytes = self._run.memory.look()
        view.uploads, view.declined = counts.uploads, counts.declined
        self._run.log.look()


def checkpoint_stamp(job: Job, run: LocalRun) -> str:
    """Digest of all that decides what a simulation gives: not who plays it, on how many workers."""
    said = run.model_dump_json(exclude={"engine", "ray_address", "workers"})
    version = metadata.version("edgeveil")
    return hashlib.sha256(job.canonical() + said.encode() + version.encode()).hexdigest()


# --- of both ---


def _facts(engine: Engine, seconds: float | None, workers: int = 0) -> dict[str, Any]:
    return {
        "broker": "none (simulated)",
        "protocol": None,
        "bytes": {},
        "seconds": seconds,
        "simulated": True,
        "engine": {"name": engine, "workers": workers},
    }


def _require_completed(run: SimulatedRun, job: str, declined: str) -> None:
    """Raise JobFailed unless the run's job completed; with what the first device that declined
    told its owner, which may quote a record: of a user's own it is for this console alone."""
    published = is_published(run.job, run.settings)
    if declined and not published:
        run.progress.note(declined)
    run.log.require_completed(job, declined if published else "")


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """What the parties log goes to one file meanwhile, and not over the progress."""
    log, handler = logging.getLogger("edgeveil"), logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logs.formatter("text"))
    before = (log.level, log.propagate)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
        log.setLevel(before[0])
        log.propagate = before[1]
