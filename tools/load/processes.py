"""Processor time and memory of the processes of a load test, by name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass
class _Watched:
    process: psutil.Process
    pid: int
    cpu_s: float = 0.0
    percent: float = 0.0
    rss_bytes: int = 0
    peak_rss_bytes: int = 0


class Watch:
    """Looks at processes now and then; one that has ended keeps its last figures."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._looked_s = time.monotonic()

    def add(self, pids: Mapping[str, int]) -> None:
        """Look at these too."""
        for name, pid in pids.items():
            with suppress(psutil.Error):
                self._watched[name] = _Watched(psutil.Process(pid), pid)

    def look(self) -> None:
        """Take new figures; `percent` is since the last look, 100 for one core."""
        now_s = time.monotonic()
        elapsed_s, self._looked_s = max(now_s - self._looked_s, 1e-3), now_s
        for one in self._watched.values():
            with suppress(psutil.Error):
                times = one.process.cpu_times()
                cpu_s = float(times.user + times.system)
                one.percent = 100 * (cpu_s - one.cpu_s) / elapsed_s
                one.cpu_s, one.rss_bytes = cpu_s, int(one.process.memory_info().rss)
                high_water = _high_water_bytes(one.pid)
                one.peak_rss_bytes = max(one.peak_rss_bytes, one.rss_bytes, high_water)

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of each since its start."""
        return {name: one.cpu_s for name, one in self._watched.items()}

    def percent(self) -> dict[str, float]:
        """Share of one core since the look before."""
        return {name: round(one.percent, 1) for name, one in self._watched.items()}

    def rss_bytes(self) -> dict[str, int]:
        """Memory now."""
        return {name: one.rss_bytes for name, one in self._watched.items()}

    def peak_rss_bytes(self) -> dict[str, int]:
        """The most memory so far; the kernel's own mark where it keeps one."""
        return {name: one.peak_rss_bytes for name, one in self._watched.items()}


def _high_water_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
