"""The cloud's worker processes that open segments, and recovery when one dies.

Each runs `edgeveil_cloud.compute.worker`, started on first use. Workers keep nothing of a batch
between slices, so that any other can repeat a slice. A worker ends when the socket to its starter
closes. For Ray one process forwards slices to the cluster: Ray ends a process that loses its
cluster, which must not be the cloud.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from edgeveil.errors import EdgeVeilError, UsageError
from edgeveil.ray_cluster import ClusterAway
from edgeveil_cloud.open_segments import OpeningFields, RoundOpening, Slice

if TYPE_CHECKING:  # a worker needs no site file
    from edgeveil.config.cloud import ComputeAt

LOG = logging.getLogger("edgeveil.cloud")
TRIES = 3  # of one slice
_NO_START = ("cloud.compute", "read its output on the console, or set engine: local and workers: 0")
_BY_OTHERS = ("SIGKILL", "SIGTERM")  # out of memory, or killed: the next one may live
_END_S = 1.0
_LENGTH_BYTES, _MARK = 8, b"f"
START_S = 120.0  # timeout until a worker is ready, which may start Ray
AWAY_S = 60.0  # how long a round waits for a lost cluster


class ComputeError(EdgeVeilError):
    """Segments could not be opened as configured in `cloud.compute`; the cause may pass."""


@runtime_checkable
class BatchFile(Protocol):
    """A batch in a file that processes given its `fileno` can read."""

    def fileno(self) -> int: ...


@dataclass(frozen=True)
class WorkerRefusal:
    """Why a worker cannot work; `passes` if it may later."""

    what: str
    where: str
    fix: str
    passes: bool = False


@dataclass(frozen=True)
class SliceFailure:
    why: str


@dataclass(eq=False)
class _Process:
    process: subprocess.Popen[bytes]
    socket: socket.socket
    slots: int
    under_way: set[int] = field(default_factory=set)  # numbers of slices

    def fileno(self) -> int:
        return self.socket.fileno()

    def end(self) -> str:
        self.process.kill()
        code = self.process.wait()
        self.socket.close()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class WorkerProcesses:
    """Pool that opens slices of a batch, `count` at a time; thread-safe, one batch at a time.

    `on_ray` uses the cluster at `address` (default: one started here). Batches with fewer than
    `least_bytes` are opened in the cloud's process."""

    def __init__(
        self, count: int, *, on_ray: bool = False, address: str | None = None, least_bytes: int = 0
    ) -> None:
        self.count, self.least_bytes = count, least_bytes
        self._on_ray, self._address = on_ray, address
        self._there: list[_Process] = []
        self._turn, self._stopping = threading.Lock(), threading.Event()

    @property
    def pids(self) -> Sequence[int]:
        return [one.process.pid for one in self._there]

    def start(self) -> None:
        """Start the workers ahead; raises UsageError, or ClusterAway if they may work later."""
        with self._turn:
            self._start()

    def run(
        self,
        opening: RoundOpening,
        data: BatchFile,
        slices: Sequence[Slice],
        take: Callable[[int, Any], None],
    ) -> None:
        """Open all slices; `take` gets number and result on completion. Raises ComputeError."""
        with self._turn:
            try:
                _Work(self, opening.to_fields(), data, slices, take).do()
            except BaseException:
                self._end()  # else they would continue with abandoned slices
                raise

    def close(self) -> None:
        self._stopping.set()
        for one in list(self._there):
            one.process.kill()  # wakes the thread that waits for it
        with self._turn:
            self._end()

    def started(self) -> Sequence[_Process]:
        """Start missing workers, waiting for a lost cluster; raises ComputeError."""
        begun_s, pause_s, logged = time.monotonic(), 0.5, False
        while True:
            if self._stopping.is_set():
                raise ComputeError("the cloud is stopping")
            try:
                self._start()
                return self._there
            except UsageError as error:
                passes = isinstance(error, ClusterAway)
                if not passes or time.monotonic() - begun_s > AWAY_S:
                    raise ComputeError(error.what, where=error.where, fix=error.fix) from None
                if not logged:
                    logged = True
                    LOG.warning("compute_away", extra={"reason": str(error), "wait_s": AWAY_S})
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, 5.0)

    def drop(self, one: _Process) -> str:
        self._there.remove(one)
        return one.end()

    def _start(self) -> None:
        for one in list(self._there):
            # Idle workers end by themselves; the end of a busy one is noticed on its socket.
            if not one.under_way and one.process.poll() is not None:
                self.drop(one)
        processes = 1 if self._on_ray else self.count
        new = [self._launched() for _ in range(processes - len(self._there))]
        self._there += new
        for one in new:
            try:
                one.socket.settimeout(START_S)
                answer = receive_value(one.socket)
                one.socket.settimeout(None)
            except (EOFError, OSError):
                with suppress(subprocess.TimeoutExpired):
                    one.process.wait(_END_S)  # for its own exit code
                how = self.drop(one)
                answer = WorkerRefusal(
                    f"a worker does not start ({how})", *_NO_START, passes=how in _BY_OTHERS
                )
            if isinstance(answer, WorkerRefusal):
                self._end()
                kind = ClusterAway if answer.passes else UsageError
                raise kind(answer.what, where=answer.where, fix=answer.fix)

    def _launched(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            more = [str(self.count), self._address or ""] if self._on_ray else []
            module = "edgeveil_cloud.compute." + ("on_ray" if self._on_ray else "worker")
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), *more],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C must reach only the starter, which ends workers
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                },
            )
        return _Process(process, ours, self.count if self._on_ray else 1)

    def _end(self) -> None:
        for one in list(self._there):
            self.drop(one)


@dataclass
class _Work:
    pool: WorkerProcesses
    opening: OpeningFields
    data: BatchFile
    slices: Sequence[Slice]
    take: Callable[[int, Any], None]

    def __post_init__(self) -> None:
        self._waiting = deque(range(len(self.slices)))
        self._tries = [0] * len(self.slices)
        self._left = len(self.slices)

    def do(self) -> None:
        there = self.pool.started()
        while self._left:
            for one in list(there):
                self._give(one)
            busy: Any = [one for one in there if one.under_way]
            ready: Any = wait(busy)
            for one in ready:
                self._receive(one)
            if self._waiting:
                there = self.pool.started()

    def _give(self, one: _Process) -> None:
        try:
            while self._waiting and len(one.under_way) < one.slots:
                number = self._waiting.popleft()
                one.under_way.add(number)
                send_value(one.socket, (number, self.opening, self.slices[number]))
                socket.send_fds(one.socket, [_MARK], [self.data.fileno()])
        except OSError:
            self._lost(one)

    def _receive(self, one: _Process) -> None:
        try:
            number, result = receive_value(one.socket)
        except (EOFError, OSError):
            self._lost(one)
            return
        one.under_way.discard(number)
        if isinstance(result, WorkerRefusal):
            raise ComputeError(result.what, where=result.where, fix=result.fix)
        if isinstance(result, SliceFailure):
            self._again(number, result.why)
            return
        self._left -= 1
        self.take(number, result)

    def _lost(self, one: _Process) -> None:
        how = self.pool.drop(one)
        LOG.warning("worker_ended", extra={"how": how, "slices": len(one.under_way)})
        for number in sorted(one.under_way):
            self._again(number, how)

    def _again(self, number: int, why: str) -> None:
        self._tries[number] += 1
        LOG.warning("slice_repeated", extra={"reason": why})
        if self._tries[number] >= TRIES:
            what = f"some uploads could not be opened in {TRIES} tries, the last ended with {why}"
            fix = "if memory ran out set fewer workers, or workers: 0"
            raise ComputeError(what, where="cloud.compute", fix=fix)
        self._waiting.append(number)


def workers_of(at: ComputeAt) -> WorkerProcesses | None:
    """Return the configured workers, or None; raises UsageError if Ray is missing or differs."""
    if not at.workers:
        return None
    if at.engine == "local":
        return WorkerProcesses(at.workers, least_bytes=at.least_bytes)
    pool = WorkerProcesses(at.workers, on_ray=True, address=at.address, least_bytes=at.least_bytes)
    try:
        pool.start()
    except ClusterAway as error:
        LOG.warning("compute_away", extra={"reason": str(error)})  # awaited at the first batch
    except BaseException:
        pool.close()
        raise
    return pool


# Messages between cloud and workers: pickled values, arrays out of band without a copy.
def send_value(to: socket.socket, value: object) -> None:
    arrays: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, 5, buffer_callback=arrays.append)
    views = [one.raw() for one in arrays]
    lengths = [len(views), len(body), *(view.nbytes for view in views)]
    to.sendall(b"".join(length.to_bytes(_LENGTH_BYTES, "big") for length in lengths) + body)
    for view in views:
        to.sendall(view)


def receive_value(of: socket.socket) -> Any:
    """Return the next value; raises EOFError or OSError if the peer is gone."""
    arrays, body = (int.from_bytes(_bytes_of(of, _LENGTH_BYTES), "big") for _ in range(2))
    lengths = _bytes_of(of, arrays * _LENGTH_BYTES)
    starts = range(0, len(lengths), _LENGTH_BYTES)
    sizes = [int.from_bytes(lengths[start : start + _LENGTH_BYTES], "big") for start in starts]
    text = _bytes_of(of, body)
    return pickle.loads(text, buffers=[_bytes_of(of, size) for size in sizes])  # noqa: S301


def receive_file(of: socket.socket) -> int:
    """Return a received descriptor, which the caller closes; raises EOFError or OSError."""
    mark, descriptors, _, _ = socket.recv_fds(of, len(_MARK), 1)
    if not mark:
        raise EOFError
    return descriptors[0]


def _bytes_of(of: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = of.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return found
