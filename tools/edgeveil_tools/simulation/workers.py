"""Workers that hold simulated devices: processes of this machine, or actors of a Ray cluster.

Device k (from 1) belongs to worker (k - 1) mod `count`. Where nothing stands in its way a process
is forked: it then shares the records, the libraries and the compiled job with its parent. Where
there is a GPU, whose context a fork would lose, and on systems without a sound fork it is spawned.
An actor asks for one processor and the memory that it may take; a machine of the cluster needs
EdgeVeil of this version, and the records at the same place.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from multiprocessing.connection import Connection, wait
from typing import Any

from edgeveil.errors import EdgeVeilError, JobFailed, UsageError
from edgeveil.parts.methods.local_steps import gpu_in_sight
from edgeveil.ray_cluster import imported_ray, join_cluster
from edgeveil.units import byte_text
from edgeveil_tools.simulation.devices import SimulatedDevices, SimulatedFleet

Call = tuple[str, tuple[Any, ...]]
"""A method of `SimulatedDevices`, and its arguments."""
LOOK_S = 0.1
RAY_KEY = "local_run.ray_address"
HERE = "local"  # the address of a Ray that is started for the run
_STOP_S = 2.0
_ROOM_S = 120.0  # until the cluster has room for all actors
_ACTOR_BYTES = 1 << 30  # libraries, model, the records' shares at work


class Workers(ABC):
    """What holds devices: `count` workers, which compute at the same time."""

    name: str
    count = 0
    pids: Sequence[int] = ()  # processes on this machine whose memory is the run's

    def each(
        self, calls: Sequence[Sequence[Call]], look: Callable[[], object]
    ) -> Iterator[tuple[int, Any]]:
        """Make each worker's calls one after the other, all workers at the same time; yields
        (worker, result). `look` is called some times a second; what it raises ends the iteration.
        JobFailed: a call failed, or a worker is gone."""
        # One call under way at each: two that write to each other would wait for ever.
        waiting, at_work = [iter(of) for of in calls], dict[Any, int]()

        def send_next(worker: int) -> None:
            if (call := next(waiting[worker], None)) is not None:
                at_work[self._send(worker, call)] = worker

        for worker in range(self.count):
            send_next(worker)
        while at_work:
            ready = self._ready([*at_work])
            look()
            for done in ready:
                worker = at_work.pop(done)
                result = self._result(done, worker)
                send_next(worker)
                yield worker, result

    @abstractmethod
    def stop(self) -> None:
        """Kill them, whatever they do."""

    @abstractmethod
    def _send(self, worker: int, call: Call) -> Any:
        """Give the worker a call; returns what its result is waited for by."""

    @abstractmethod
    def _ready(self, waited_for: list[Any]) -> Sequence[Any]:
        """Those whose result is there, after `LOOK_S` at the latest."""

    @abstractmethod
    def _result(self, done: Any, worker: int) -> Any:
        """The result. JobFailed."""


class ProcessWorkers(Workers):
    """Processes of this machine; in each one thread computes."""

    name = "processes"

    def __init__(self, fleet: SimulatedFleet, count: int) -> None:
        forks = sys.platform == "linux" and not gpu_in_sight()
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self.count, self._connections, self._processes = count, list[Connection](), list[Any]()
        for number in range(1, count + 1):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, [*self._connections, ours] if forks else [], fleet),
                name=f"simulation-{number}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        self.pids = [process.pid for process in self._processes]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process, connection in zip(self._processes, self._connections, strict=True):
            process.join(_STOP_S)
            connection.close()

    def _send(self, worker: int, call: Call) -> Connection:
        try:
            self._connections[worker].send(call)
        except OSError:
            raise self._gone(worker) from None
        return self._connections[worker]

    def _ready(self, waited_for: list[Any]) -> Sequence[Any]:
        return wait(waited_for, LOOK_S)

    def _result(self, done: Connection, worker: int) -> Any:
        try:
            return _checked(done.recv())
        except (EOFError, OSError):
            raise self._gone(worker) from None

    def _gone(self, worker: int) -> JobFailed:
        process = self._processes[worker]
        process.join(_STOP_S)
        what = f"a worker process ended by itself (exit code {process.exitcode})"
        fix = "where memory ran out play fewer devices or workers; run again"
        return JobFailed(what, where=process.name, fix=fix)


def _checked(result: Any) -> Any:
    if isinstance(result, JobFailed):
        raise result
    return result


class _Holder:
    """The devices of one worker, made by its first call; one thread computes."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        import torch
        from threadpoolctl import threadpool_limits

        torch.set_num_threads(1)
        self._limits = threadpool_limits(1)
        self._fleet = fleet
        self._devices: SimulatedDevices | None = None

    def version(self) -> str:
        return metadata.version("edgeveil")

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._devices = self._devices or SimulatedDevices(self._fleet)
            return getattr(self._devices, name)(*arguments)
        except EdgeVeilError as error:
            return JobFailed(error.what, where=error.where, fix=error.fix)
        except Exception as error:
            return JobFailed(f"{type(error).__name__}: {error}", where="a worker process")


def _serve(connection: Connection, others: Sequence[Connection], fleet: SimulatedFleet) -> None:
    """Answer calls until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that starts it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # or it would not hear that the starter is gone
        other.close()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        holder = _Holder(fleet)
        while True:
            connection.send(holder.call(*connection.recv()))
    os._exit(0)  # nothing of the starter's is to be cleaned up here


class RayWorkers(Workers):
    """Actors of a Ray cluster, which accounts for its processes itself. UsageError."""

    name = "ray"

    def __init__(self, fleet: SimulatedFleet, count: int, address: str) -> None:
        self._ray, self._joined, self.count = imported_ray(RAY_KEY), False, count
        self._actors: list[Any] = []
        if address != HERE or not self._ray.is_initialized():  # else a notebook's own
            join_cluster(None if address == HERE else address, RAY_KEY)
            self._joined = True
        remote = self._ray.remote(num_cpus=1, memory=_ACTOR_BYTES, max_restarts=0)(_Holder)
        try:
            given = self._ray.put(fleet)
            self._actors = [remote.remote(given) for _ in range(count)]
            self._wait_for_room()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        if self._joined:
            self._ray.shutdown()

    def _send(self, worker: int, call: Call) -> Any:
        return self._actors[worker].call.remote(*call)

    def _ready(self, waited_for: list[Any]) -> Sequence[Any]:
        found: Sequence[Any] = self._ray.wait(waited_for, num_returns=1, timeout=LOOK_S)[0]
        return found

    def _result(self, done: Any, worker: int) -> Any:
        try:
            return _checked(self._ray.get(done))
        except self._ray.exceptions.RayError as error:
            what = f"a worker on Ray is gone ({type(error).__name__})"
            fix = "see Ray's own logs; where memory ran out ask for fewer workers; run again"
            raise JobFailed(what, where=f"simulation-{worker + 1}", fix=fix) from None

    def _wait_for_room(self) -> None:
        """Wait until every actor runs; each must be of this version."""
        begun_s, missing = time.monotonic(), [actor.version.remote() for actor in self._actors]
        own = metadata.version("edgeveil")
        while missing:
            for done in self._ready(missing):
                missing.remove(done)
                if (found := self._result(done, 0)) != own:
                    what = f"a machine of the cluster has EdgeVeil {found}, this one {own}"
                    fix = "install the same version on all machines"
                    raise UsageError(what, where=RAY_KEY, fix=fix)
            if missing and time.monotonic() - begun_s > _ROOM_S:
                what = f"the Ray cluster has no room for {len(missing)} of {self.count} workers,"
                what += f" each with one processor and {byte_text(_ACTOR_BYTES)}"
                fix = "ask for fewer workers, or add machines"
                raise UsageError(what, where="local_run.workers", fix=fix)
