"""Processor time and memory of the processes of a load test, by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

from edgeveil.errors import EdgeVeilError
from edgeveil.transport.metrics import peak_rss_bytes


@dataclass(frozen=True)
class Figures:
    """What a process has used since `started_s`. `peak_bytes`: the kernel's mark, if it tells."""

    cpu_s: float
    rss_bytes: int
    peak_bytes: int | None
    started_s: float


Read = Callable[[], Figures]


@dataclass
class _Watched:
    read: Read
    peak_before_bytes: int | None  # a peak up to here is of the time before; None: the first mark
    started_s: float | None = None
    looked_s: float = 0.0
    cpu_s: float = 0.0
    cpu_before_s: float = 0.0  # of the process that this one took over from
    percent: float | None = None
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
        now_s, mark_bytes = time.monotonic(), found.peak_bytes or 0
        if self.peak_before_bytes is None:
            self.peak_before_bytes = mark_bytes
        if self.started_s is not None:
            if self.started_s != found.started_s:
                self.cpu_before_s, self.peak_before_bytes = self.cpu_s, 0
            used_s = self.cpu_before_s + found.cpu_s - self.cpu_s
            self.percent = 100 * used_s / max(now_s - self.looked_s, 1e-3)
        self.cpu_s, self.looked_s = self.cpu_before_s + found.cpu_s, now_s
        self.started_s, self.rss_bytes = found.started_s, found.rss_bytes
        risen_bytes = mark_bytes if mark_bytes > self.peak_before_bytes else 0
        self.peak_bytes = max(self.peak_bytes or 0, found.rss_bytes, risen_bytes)


class Watch:
    """Looks at processes now and then; one that has ended keeps its last memory."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()

    def add(self, pids: Mapping[str, int]) -> None:
        """Look at these too, processes of this machine that were started for the test."""
        for name, pid in pids.items():
            if name not in self._watched:
                with suppress(psutil.Error):
                    self._watched[name] = _Watched(_of_this_machine(pid), peak_before_bytes=0)

    def add_read(self, name: str, read: Read) -> None:
        """Look at this one too, which runs for longer than the test; `read` may raise OSError."""
        self._watched[name] = _Watched(read, peak_before_bytes=None)

    def look(self) -> None:
        """Take new figures, from any thread."""
        with self._lock:
            for one in list(self._watched.values()):
                one.look()

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of each that told them at the last look; also of what it replaced."""
        return {name: one.cpu_s for name, one in self._watched.items() if one.fresh}

    def percent(self) -> dict[str, float]:
        """Share of one core, 100 for all of it, since the look before."""
        found = self._watched.items()
        return {n: round(one.percent, 1) for n, one in found if one.percent is not None}

    def rss_bytes(self) -> dict[str, int]:
        """Memory now."""
        found = self._watched.items()
        return {name: one.rss_bytes for name, one in found if one.rss_bytes is not None}

    def peak_rss_bytes(self) -> dict[str, int | None]:
        """The most memory while it was watched; the kernel's own mark where that has risen.

        None of a process that never told.
        """
        return {name: one.peak_bytes for name, one in self._watched.items()}

    def troubles(self) -> dict[str, str]:
        """Why figures of a process are missing, if any were."""
        return {name: one.trouble for name, one in self._watched.items() if one.trouble}


def _of_this_machine(pid: int) -> Read:
    process = psutil.Process(pid)

    def read() -> Figures:
        try:
            times, rss_bytes = process.cpu_times(), int(process.memory_info().rss)
            cpu_s = float(times.user + times.system)
            return Figures(cpu_s, rss_bytes, peak_rss_bytes(pid), process.create_time())
        except psutil.Error as error:
            raise OSError(str(error)) from None

    return read
