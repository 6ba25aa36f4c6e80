"""Keeps processes running: what ends is started again at once, and every end is written down."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import psutil

from tools.lifeline import Lifeline
from tools.run_children import spawn

How = Literal["killed", "stopped", "by itself"]

STOP_S = 15.0
FULL_BYTES = 1  # past this offset nothing is written to a file while the disk is "full"
_AGAIN_S = 0.2
_TRACE = re.compile(rb"^(Traceback |Fatal Python error|edgeveil: unexpected )")
_KEPT_TRACES = 20


@dataclass(frozen=True)
class Ended:
    """One end of a process. `at_s` counts from the supervisor's beginning; `said`: last line."""

    name: str
    at_s: float
    ran_s: float
    code: int
    how: How
    said: str = ""


@dataclass(frozen=True)
class Trace:
    """The first line of something that no process should ever write."""

    name: str
    at_s: float
    line: str


@dataclass
class _Kept:
    """One process and all its lives. The lock of the supervisor guards it."""

    name: str
    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    starts: int = 0
    doomed: bool = False  # killed, or to be killed as soon as it starts
    full: bool = False
    keeper: threading.Thread | None = field(default=None, repr=False)


class Supervisor:
    """Starts processes and keeps them running until `stop`. Logs go to `folder/<name>.log`.

    What a process writes goes through a pipe, so that a full disk of its own does not silence it.
    """

    def __init__(self, folder: Path, now_s: Callable[[], float]) -> None:
        self._folder, self._now_s = folder, now_s
        self._lifeline = Lifeline()
        self._lock = threading.RLock()
        self._stopping = False
        self._all: dict[str, _Kept] = {}
        self.ends: list[Ended] = []
        self.traces: list[Trace] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Of all processes."""
        return tuple(self._all)

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Run `edgeveil <arguments>` from now on."""
        kept = self._all[name] = _Kept(name, tuple(arguments))
        kept.keeper = threading.Thread(target=self._keep, args=(kept,), daemon=True, name=name)
        kept.keeper.start()

    def kill(self, name: str) -> None:
        """SIGKILL; a process that is just being started again gets it first thing."""
        kept = self._all[name]
        with self._lock:
            kept.doomed = True
            _signal(kept.process, signal.SIGKILL)

    def fill(self, name: str, full: bool) -> None:
        """Whether writes of this process, and of those that follow it, fail as on a full disk."""
        kept = self._all[name]
        with self._lock:
            kept.full = full
            _limit(kept)

    def starts(self) -> int:
        """How often a process was started."""
        return sum(kept.starts for kept in self._all.values())

    def alive(self) -> dict[str, bool]:
        """Which processes run."""
        with self._lock:
            return {
                kept.name: kept.process is not None and kept.process.poll() is None
                for kept in self._all.values()
            }

    def stop(self) -> list[str]:
        """End all by SIGTERM; the names of those that had to be killed. May be called twice."""
        with self._lock:
            self._stopping = True
            for kept in self._all.values():
                kept.full = False
                _limit(kept)
                _signal(kept.process, signal.SIGTERM)
        end_s = time.monotonic() + STOP_S
        late = []
        for kept in self._all.values():
            if kept.keeper is None:
                continue
            kept.keeper.join(max(0.05, end_s - time.monotonic()))
            if kept.keeper.is_alive():
                late.append(kept.name)
                self.kill(kept.name)
                kept.keeper.join()
        if not self._lifeline.closed:
            self._lifeline.close()
        return late

    def _keep(self, kept: _Kept) -> None:
        """One process's lives, one after the other."""
        with (self._folder / f"{kept.name}.log").open("ab", buffering=0) as log:
            while True:
                with self._lock:
                    if self._stopping:
                        return
                    process = self._spawn(kept)
                log.write(b"--- start %d\n" % kept.starts)
                said = self._copy(kept, process, log)
                self._note(kept, process.wait(), said)
                if process.returncode > 0:
                    time.sleep(_AGAIN_S)

    def _spawn(self, kept: _Kept) -> subprocess.Popen[bytes]:
        threads = 1 if kept.name.startswith("worker") else None
        process = spawn(kept.arguments, subprocess.PIPE, self._lifeline, threads=threads)
        kept.process, kept.started_s, kept.starts = process, self._now_s(), kept.starts + 1
        _limit(kept)
        if kept.doomed:
            _signal(process, signal.SIGKILL)
        return process

    def _copy(self, kept: _Kept, process: subprocess.Popen[bytes], log: BinaryIO) -> str:
        """All that it writes into its log; its last line."""
        line = b""
        with process.stdout or open(os.devnull, "rb") as out:  # noqa: PTH123
            for line in out:
                log.write(line)
                if _TRACE.match(line) and len(self.traces) < _KEPT_TRACES:
                    text = line.decode("utf-8", "replace").strip()
                    self.traces.append(Trace(kept.name, self._now_s(), text))
        return line.decode("utf-8", "replace").strip()

    def _note(self, kept: _Kept, code: int, said: str) -> None:
        with self._lock:
            how: How = "by itself"
            if kept.doomed and code == -signal.SIGKILL:
                how, kept.doomed = "killed", False
            elif self._stopping:
                how = "stopped"
            now = self._now_s()
            self.ends.append(Ended(kept.name, now, now - kept.started_s, code, how, said))


def _limit(kept: _Kept) -> None:
    """Fit the largest file that the process may write to whether its disk is full."""
    if kept.process is None or kept.process.poll() is not None:
        return
    with suppress(psutil.Error, OSError):
        process = psutil.Process(kept.process.pid)
        hard = process.rlimit(psutil.RLIMIT_FSIZE)[1]
        process.rlimit(psutil.RLIMIT_FSIZE, (FULL_BYTES if kept.full else hard, hard))


def _signal(process: subprocess.Popen[bytes] | None, number: signal.Signals) -> None:
    # Only while it is not reaped: afterwards its number may be another process's.
    if process is not None and process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
