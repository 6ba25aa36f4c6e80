"""Workers that hold simulated devices: local processes, this one, or actors of a Ray cluster.

Device k (from 1) belongs to worker (k - 1) mod `count`. A process is forked where possible, and
shares records, libraries and the compiled job with its parent; it is spawned on systems without a
sound fork, or with a GPU, as a fork loses its context. An actor requests one processor and its
memory; each machine of the cluster needs this version of EdgeVeil, and the records at the same
path."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from multiprocessing.connection import Connection, wait
from typing import Any

from edgeveil.errors import EdgeVeilError, JobFailed, UsageError
from edgeveil.parts.methods.local_steps import gpu_in_sight
from edgeveil.ray_cluster import imported_ray, join_cluster
from edgeveil.subnormals import loaded_torch
from edgeveil.units import byte_text
from edgeveil_tools.simulation.devices import SimulatedDevices, SimulatedFleet

Call = tuple[str, tuple[Any, ...]]
"""A method of `SimulatedDevices`, and its arguments."""
LOOK_S = 0.1
RAY_KEY = "local_run.ray_address"
HERE = "local"  # address that starts Ray for the run
_STOP_S = 2.0
_ROOM_S = 120.0  # until the cluster has room for all actors
_ACTOR_BYTES = 1 << 30  # libraries, model and records in use


class Workers(ABC):
    """A pool of `count` workers that hold devices and compute at the same time."""

    name: str
    count = 0
    pids: Sequence[int] = ()  # local processes, whose memory is counted

    def each(
        self, calls: Sequence[Sequence[Call]], look: Callable[[], object]
    ) -> Iterator[tuple[int, Any]]:
        """Make each worker's calls in order, all workers at once; yields (worker, result).

        `look` is called several times a second; an exception that it raises ends the iteration.
        Raises JobFailed if a call failed or a worker ended."""
        # At most one open call per worker: both ends writing at once would deadlock.
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
        """Kill all workers."""

    @abstractmethod
    def _send(self, worker: int, call: Call) -> Any:
        """Send a call to the worker; returns the handle to wait for."""

    @abstractmethod
    def _ready(self, waited_for: list[Any]) -> Sequence[Any]:
        """Return handles whose result has arrived, after at most `LOOK_S`."""

    @abstractmethod
    def _result(self, done: Any, worker: int) -> Any:
        """Return the result of a handle; raises JobFailed."""


class ProcessWorkers(Workers):
    """Processes of this machine, with one computing thread each."""

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


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, on which the last bits of a product depend, then as before."""
    from threadpoolctl import threadpool_limits

    torch = loaded_torch()
    before = torch.get_num_threads() if torch else os.cpu_count() or 1
    try:
        with threadpool_limits(1):
            yield
    finally:
        if torch := loaded_torch():
            torch.set_num_threads(before)


class InProcess(Workers):
    """The calling process itself: nothing is started, so a small simulation takes milliseconds."""

    name = "in process"
    count = 1

    def __init__(self, fleet: SimulatedFleet) -> None:
        self._holder = _Holder(fleet)
        self._calls = dict[int, Call]()

    def stop(self) -> None:
        """Do nothing: `one_thread` gives this process its threads back."""

    def _send(self, worker: int, call: Call) -> int:
        self._calls[worker] = call
        return worker

    def _ready(self, waited_for: list[Any]) -> Sequence[Any]:
        return waited_for

    def _result(self, done: int, worker: int) -> Any:
        return _checked(self._holder.call(*self._calls.pop(done)))


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
        threadpool_limits(1)
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # else the parent's end is not noticed
        other.close()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        holder = _Holder(fleet)
        while True:
            connection.send(holder.call(*connection.recv()))
    os._exit(0)  # skip cleanup inherited from the parent


class RayWorkers(Workers):
    """Actors of a Ray cluster, which manages its processes itself; raises UsageError."""

    name = "ray"

    def __init__(self, fleet: SimulatedFleet, count: int, address: str) -> None:
        self._ray, self._joined, self.count = imported_ray(RAY_KEY), False, count
        self._actors: list[Any] = []
        if address != HERE or not self._ray.is_initialized():  # else use the notebook's Ray
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
            what = f"a worker on Ray ended ({type(error).__name__})"
            fix = "read Ray's logs; if memory ran out set fewer workers; run again"
            raise JobFailed(what, where=f"simulation-{worker + 1}", fix=fix) from None

    def _wait_for_room(self) -> None:
        """Wait until every actor runs; raises UsageError without room or for another version."""
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
                fix = "set fewer workers, or add machines"
                raise UsageError(what, where="local_run.workers", fix=fix)
