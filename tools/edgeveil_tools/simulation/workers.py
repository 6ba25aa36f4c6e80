"""Worker processes that hold simulated devices, on this machine.

Where nothing stands in its way a worker is forked: it then shares the records, the libraries and
the compiled job with the process that starts it. Where there is a GPU, whose context a fork would
lose, and on systems without a sound fork it is started anew and reads them itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from edgeveil.errors import EdgeVeilError, JobFailed
from edgeveil.parts.methods.local_steps import gpu_in_sight
from edgeveil_tools.simulation.devices import SimulatedDevices, SimulatedFleet

Call = tuple[str, tuple[Any, ...]]
"""A method of `SimulatedDevices`, and what it is called with."""
LOOK_S = 0.1
_STOP_S = 2.0


class Workers(Protocol):
    """Holders of devices. Device k (from 1) belongs to worker (k - 1) mod `count`."""

    name: str

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    @property
    def pids(self) -> Sequence[int]:
        """Processes on this machine whose memory is the run's."""
        ...

    def each(
        self, calls: Sequence[Sequence[Call]], look: Callable[[], object]
    ) -> Iterator[tuple[int, Any]]:
        """Make each worker's calls one after the other, all workers side by side; (worker, result)
        as they come. `look` is called some times a second meanwhile; what it raises ends it.

        Raises JobFailed where a worker failed or is gone.
        """
        ...

    def stop(self) -> None:
        """End them, whatever they do."""
        ...


@dataclass(frozen=True)
class _Failed:
    what: str
    where: str
    fix: str


class ProcessWorkers:
    """A pool of processes on this machine; in each one thread computes."""

    def __init__(self, fleet: SimulatedFleet, count: int) -> None:
        forks = sys.platform == "linux" and not gpu_in_sight()
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self.name, self._connections = "processes", list[Connection]()
        self._processes: list[Any] = []
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

    @property
    def count(self) -> int:
        """See `Workers`."""
        return len(self._processes)

    @property
    def pids(self) -> Sequence[int]:
        """See `Workers`."""
        return [process.pid for process in self._processes]

    def each(
        self, calls: Sequence[Sequence[Call]], look: Callable[[], object]
    ) -> Iterator[tuple[int, Any]]:
        """See `Workers`."""
        # One call under way at each: two that write to each other would wait for ever.
        waiting = [iter(of) for of in calls]
        at_work = {w for w in range(self.count) if self._send_next(w, waiting[w])}
        while at_work:
            ready = wait([self._connections[w] for w in at_work], LOOK_S)
            look()
            for worker in sorted(w for w in at_work if self._connections[w] in ready):
                result = self._result(worker)
                if not self._send_next(worker, waiting[worker]):
                    at_work.discard(worker)
                yield worker, result

    def stop(self) -> None:
        """See `Workers`."""
        for process in self._processes:
            process.kill()
        for process, connection in zip(self._processes, self._connections, strict=True):
            process.join(_STOP_S)
            connection.close()

    def _send_next(self, worker: int, calls: Iterator[Call]) -> bool:
        call = next(calls, None)
        if call is None:
            return False
        try:
            self._connections[worker].send(call)
        except OSError:
            raise self._gone(worker) from None
        return True

    def _result(self, worker: int) -> Any:
        try:
            result = self._connections[worker].recv()
        except (EOFError, OSError):
            raise self._gone(worker) from None
        if isinstance(result, _Failed):
            raise JobFailed(result.what, where=result.where, fix=result.fix)
        return result

    def _gone(self, worker: int) -> JobFailed:
        process = self._processes[worker]
        process.join(_STOP_S)
        return JobFailed(
            f"a worker process ended by itself (exit code {process.exitcode})",
            where=process.name,
            fix="where memory ran out play fewer devices or workers; run again",
        )


def _serve(connection: Connection, others: Sequence[Connection], fleet: SimulatedFleet) -> None:
    """What a worker process does until nobody is at the other end any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that starts it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # or it would not hear that the starter is gone
        other.close()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        _answer_calls(connection, fleet)
    os._exit(0)  # nothing of the starter's is to be cleaned up here


def _answer_calls(connection: Connection, fleet: SimulatedFleet) -> None:
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    devices: SimulatedDevices | None = None
    with threadpool_limits(1):
        while True:
            name, arguments = connection.recv()
            try:
                devices = devices or SimulatedDevices(fleet)
                result = getattr(devices, name)(*arguments)
            except EdgeVeilError as error:
                result = _Failed(error.what, error.where, error.fix)
            except Exception as error:
                result = _Failed(f"{type(error).__name__}: {error}", "a worker process", "")
            connection.send(result)
