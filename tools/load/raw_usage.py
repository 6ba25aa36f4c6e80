"""Processor time and memory of some processes over a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil

_LOOK_S = 0.1


class Usage:
    """Measures from its making until `stop`; `pids` maps a name to a process id."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._began = {name: _cpu_s(process) for name, process in self._processes.items()}
        self._peaks = dict.fromkeys(self._processes, 0)
        self._began_s, self._done = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, dict[str, Any]]:
        """Each process's `cpu_s`, `cpu_percent` (of one core) and `peak_rss_bytes`."""
        seconds = time.monotonic() - self._began_s
        used = {name: _cpu_s(p) - self._began[name] for name, p in self._processes.items()}
        self._done.set()
        self._thread.join()
        return {
            name: {
                "cpu_s": round(cpu_s, 3),
                "cpu_percent": round(100 * cpu_s / seconds, 1),
                "peak_rss_bytes": self._peaks[name],
            }
            for name, cpu_s in used.items()
        }

    def _look(self) -> None:
        while True:
            for name, process in self._processes.items():
                with suppress(psutil.Error):
                    self._peaks[name] = max(self._peaks[name], process.memory_info().rss)
            if self._done.wait(_LOOK_S):
                return


def _cpu_s(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0
