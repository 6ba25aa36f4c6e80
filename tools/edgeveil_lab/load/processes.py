"""Processes of a load test: children with pipes; processor time and memory by name."""

from __future__ import annotations

import math
import multiprocessing as mp
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from edgeveil.errors import EdgeVeilError, JobFailed
from edgeveil.heap import keep_heap
from edgeveil.transport.metrics import peak_rss_bytes
from edgeveil_tools.cloud_client import Cloud, get_text
from edgeveil_tools.lifeline import end_with_starter


class ChildProcesses:
    def __init__(self, where: str) -> None:
        self.context = mp.get_context("spawn")
        self._where = where
        self._children: dict[str, tuple[BaseProcess, Connection]] = {}
        self._ended: set[str] = set()

    @property
    def pids(self) -> dict[str, int]:
        return {name: child.pid or 0 for name, (child, _) in self._children.items()}

    def start(self, name: str, target: Any, *arguments: Any) -> None:
        """Call `target(*arguments, pipe)` in a new process."""
        ours, theirs = self.context.Pipe()
        child = self.context.Process(target=target, args=(*arguments, theirs), daemon=True)
        child.start()
        theirs.close()
        self._children[name] = child, ours

    def send(self, message: object) -> None:
        for _, pipe in self._children.values():
            with suppress(OSError):
                pipe.send(message)

    def received(self, timeout_s: float = 0.0) -> Iterator[tuple[str, Any]]:
        """Yield (name, message), None once a process ended; raises JobFailed if one failed."""
        open_pipes = [pipe for n, (_, pipe) in self._children.items() if n not in self._ended]
        ready = wait(open_pipes, timeout_s)
        for name, (_, pipe) in self._children.items():
            try:
                while pipe in ready and pipe.poll():
                    message = pipe.recv()
                    if isinstance(message, Exception):
                        raise JobFailed(f"{name}: {message}", where=self._where)
                    yield name, message
            except (EOFError, OSError):
                self._ended.add(name)
                yield name, None

    def end(self) -> None:
        for child, _pipe in self._children.values():
            child.terminate()
        for child, _pipe in self._children.values():
            child.join(2.0)
            if child.is_alive():
                child.kill()
                child.join()


def run_child(work: Callable[[], object], pipe: Connection) -> None:
    """Do a child's work, ending with its starter; errors are sent through `pipe`."""
    for number in (signal.SIGINT, signal.SIGHUP):  # the starter ends its children
        signal.signal(number, signal.SIG_IGN)
    end_with_starter()
    keep_heap()
    try:
        work()
    except (EdgeVeilError, OSError, TimeoutError, threading.BrokenBarrierError) as error:
        with suppress(OSError):
            pipe.send(Exception(str(error) or type(error).__name__))


@dataclass(frozen=True)
class ProcessFigures:
    """Use of a process since `started_s`; `peak_bytes` is the kernel's mark, if known."""

    cpu_s: float
    rss_bytes: int
    peak_bytes: int | None
    started_s: float


Read = Callable[[], ProcessFigures]


@dataclass
class _WatchedProcess:
    read: Read
    peak_before_bytes: int | None  # peak before the test; None: set by the first look
    started_s: float | None = None
    cpu_s: float = 0.0
    cpu_before_s: float = 0.0  # of the process that this one replaced
    rss_bytes: int | None = None
    peak_bytes: int | None = None
    fresh: bool = False
    trouble: str = ""

    def look(self) -> None:
        try:
            found, self.fresh = self.read(), True
        except (OSError, EdgeVeilError) as error:
            self.fresh, self.trouble = False, str(error)
            return
        mark_bytes = found.peak_bytes or 0
        if self.peak_before_bytes is None:
            self.peak_before_bytes = mark_bytes
        if self.started_s not in (None, found.started_s):
            self.cpu_before_s, self.peak_before_bytes = self.cpu_s, 0
        self.cpu_s = self.cpu_before_s + found.cpu_s
        self.started_s, self.rss_bytes = found.started_s, found.rss_bytes
        risen_bytes = mark_bytes if mark_bytes > self.peak_before_bytes else 0
        self.peak_bytes = max(self.peak_bytes or 0, found.rss_bytes, risen_bytes)


class ProcessWatch:
    """Samples processes; one that has ended keeps its last figures."""

    def __init__(self) -> None:
        self._watched: dict[str, _WatchedProcess] = {}
        self._lock = threading.Lock()

    def add(self, pids: Mapping[str, int]) -> None:
        for name in pids.keys() - self._watched.keys():
            read = _local_reader(pids[name])
            self._watched[name] = _WatchedProcess(read, peak_before_bytes=0)

    def add_read(self, name: str, read: Read) -> None:
        """Watch a process that outlives the test; `read` may raise OSError."""
        self._watched[name] = _WatchedProcess(read, peak_before_bytes=None)

    def look(self) -> None:
        """Sample all processes; may be called from any thread."""
        with self._lock:
            for one in list(self._watched.values()):
                one.look()

    def cpu_s(self) -> dict[str, float]:
        """Return processor seconds, including replaced processes, of those in the last sample."""
        return {name: one.cpu_s for name, one in self._watched.items() if one.fresh}

    def rss_bytes(self) -> dict[str, int]:
        found = ((name, one.rss_bytes) for name, one in self._watched.items())
        return {name: size for name, size in found if size is not None}

    def peak_rss_bytes(self) -> dict[str, int | None]:
        """Return the peak memory while watched; None for a process without figures."""
        return {name: one.peak_bytes for name, one in self._watched.items()}

    def troubles(self) -> dict[str, str]:
        return {name: one.trouble for name, one in self._watched.items() if one.trouble}


def _local_reader(pid: int) -> Read:
    found: list[psutil.Process] = []  # kept from the first look, since process ids are reused

    def read() -> ProcessFigures:
        try:
            process = found[0] if found else psutil.Process(pid)
            found[:] = [process]
            times, rss_bytes = process.cpu_times(), int(process.memory_info().rss)
            cpu_s = float(times.user + times.system)
            return ProcessFigures(cpu_s, rss_bytes, peak_rss_bytes(pid), process.create_time())
        except psutil.Error as error:
            raise OSError(str(error)) from None

    return read


_WAIT_S = 5.0  # an overloaded process answers late
_CPU, _RSS = "process_cpu_seconds_total", "process_resident_memory_bytes"
_STARTED, _PEAK = "process_start_time_seconds", "edgeveil_peak_resident_memory_bytes"


def page(url: str | None, token_file: Path | None = None) -> ProcessFigures:
    """Return the figures of the process at this HTTP address; raises OSError if unavailable."""
    if url is None:
        raise OSError("its HTTP address is unknown: set it with --proxy-http URL")
    if token_file is None:
        return figures(get_text(url, "/metrics", _WAIT_S))
    return figures(Cloud(url, token_file, insecure_http=True).metrics())


def figures(text: str) -> ProcessFigures:
    """Return the figures of a Prometheus text page; raises OSError if they are missing."""
    try:
        families = text_string_to_metric_families(text)
        samples = [s for family in families for s in family.samples if not s.labels]
    except (ValueError, LookupError) as error:
        raise OSError("its /metrics page cannot be parsed") from error
    found = {s.name: float(s.value) for s in samples if math.isfinite(s.value)}
    if not {_CPU, _RSS, _STARTED} <= found.keys():
        raise OSError("its /metrics page has no processor time or memory")
    peak = int(found[_PEAK]) if _PEAK in found else None
    return ProcessFigures(found[_CPU], int(found[_RSS]), peak, found[_STARTED])
