"""Supervised processes, which are restarted at once; every end is recorded."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import psutil

from edgeveil_tools.lifeline import Lifeline
from edgeveil_tools.local.children import signal_group, spawn

STOP_S = 15.0
_FULL_BYTES = 1  # past this offset nothing is written to a file while the disk is "full"
_AGAIN_S = 0.2
_TRACE = re.compile(rb"^(Traceback |Fatal Python error|edgeveil: unexpected )")
_KEPT_TRACES = 20


@dataclass(frozen=True)
class ProcessEnd:
    """`at_s` counts from the supervisor's start; `said` is the last output line."""

    name: str
    at_s: float
    ran_s: float
    code: int
    how: Literal["killed", "stopped", "by itself"]
    said: str = ""


@dataclass
class _Supervised:
    """One process and its restarts, guarded by the supervisor's lock."""

    name: str
    arguments: Sequence[str]
    module: str
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    doomed: int = 0  # kills under way, or due as soon as it starts
    full: bool = False
    keeper: threading.Thread | None = None

    @property
    def alive(self):
        return self.process is not None and self.process.poll() is None

    def send(self, number):
        if self.process is not None:
            signal_group(self.process, number)

    def limit_files(self):
        """Set the file size limit according to `full`; returns False if no process runs."""
        with suppress(psutil.Error, OSError):
            if self.alive:
                process = psutil.Process(self.process.pid)
                hard = process.rlimit(psutil.RLIMIT_FSIZE)[1]
                process.rlimit(psutil.RLIMIT_FSIZE, (_FULL_BYTES if self.full else hard, hard))
                return True
        return False


class Supervisor:
    """Starts processes and keeps them running until `stop`; logs go to `folder/<name>.log`.

    Output goes through a pipe, so that a process with a full disk can still log."""

    def __init__(self, folder, now_s):
        self._folder, self._now_s = folder, now_s
        self._lifeline = Lifeline()
        self._lock = threading.RLock()
        self._stopping = False
        self._all = {}
        self.filled = 0  # processes that a full disk met
        self.ends = []
        self.traces = []

    def start(self, name, arguments, module="edgeveil_tools.cli"):
        """Run `python -m module <arguments>` from now on."""
        kept = self._all[name] = _Supervised(name, arguments, module)
        kept.keeper = threading.Thread(target=self._keep, args=(kept,), daemon=True, name=name)
        kept.keeper.start()

    def kill(self, name):
        """Send SIGKILL, also to a process that is just restarting."""
        kept = self._all[name]
        with self._lock:
            kept.doomed += 1
            kept.send(signal.SIGKILL)

    def fill(self, name, full):
        """Make writes of this process and its successors fail as on a full disk, or end that.

        A limit on the size of files has this effect, with `EFBIG` in place of `ENOSPC`."""
        kept = self._all[name]
        with self._lock:
            kept.full = full
            self.filled += kept.limit_files() and full

    def alive(self):
        with self._lock:
            return {kept.name: kept.alive for kept in self._all.values()}

    def stop(self):
        """End all by SIGTERM; return the names of those killed. May be called twice."""
        with self._lock:
            self._stopping = True
            for kept in self._all.values():
                kept.full = False
                kept.limit_files()
                kept.send(signal.SIGTERM)
        end_s = time.monotonic() + STOP_S
        late = []
        for kept in self._all.values():
            kept.keeper.join(max(0.05, end_s - time.monotonic()))
            if kept.keeper.is_alive():
                late.append(kept.name)
                self.kill(kept.name)
                kept.keeper.join()
        if not self._lifeline.closed:
            self._lifeline.close()
        return late

    def _keep(self, kept):
        """Run a process again and again."""
        with (self._folder / f"{kept.name}.log").open("ab", buffering=0) as log:
            while True:
                with self._lock:
                    if self._stopping:
                        return
                    process = self._spawn(kept)
                log.write(b"--- start\n")
                line = b""
                with process.stdout:
                    for line in process.stdout:
                        log.write(line)
                        if _TRACE.match(line) and len(self.traces) < _KEPT_TRACES:
                            said = line.decode("utf-8", "replace").strip()
                            self.traces.append(f"{kept.name} at {self._now_s():.1f} s: {said}")
                self._note(kept, process.wait(), line.decode("utf-8", "replace").strip())
                if process.returncode > 0:
                    time.sleep(_AGAIN_S)

    def _spawn(self, kept):
        threads = 1 if kept.name.startswith("worker") else None
        process = spawn(
            kept.arguments, subprocess.PIPE, self._lifeline, threads=threads, module=kept.module
        )
        kept.process, kept.started_s = process, self._now_s()
        self.filled += kept.full and kept.limit_files()
        if kept.doomed:
            signal_group(process, signal.SIGKILL)
        return process

    def _note(self, kept, code, said):
        with self._lock:
            how = "by itself"
            if kept.doomed and code == -signal.SIGKILL:
                how, kept.doomed = "killed", kept.doomed - 1
            elif self._stopping:
                how = "stopped"
            now_s = self._now_s()
            self.ends.append(ProcessEnd(kept.name, now_s, now_s - kept.started_s, code, how, said))
