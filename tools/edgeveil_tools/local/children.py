"""Processes of a run, with their logs and memory, and its temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

from edgeveil.errors import JobFailed, UsageError
from edgeveil.transport.process import LOCK_FILE, OwnFolder
from edgeveil_tools.lifeline import Lifeline

STOP_S = 4.0
LOG_LINES = 8
_LOG_BYTES = 16384
_MEMORY_S = 2.0  # between two measurements


class _Child(NamedTuple):
    name: str
    log: Path
    process: subprocess.Popen[bytes]


class Children:
    """Child processes in groups of their own, which end with this one; logs in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[_Child] = []
        self._foreign: list[tuple[str, int]] = []
        self._lifeline = Lifeline()
        self._next_look_s, self._memory_bytes, self.memory_peak_bytes = 0.0, 0, 0

    def start(self, name: str, arguments: Sequence[str], **how: Any) -> None:
        """Start `edgeveil <arguments>`; see `spawn` for `how`."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = spawn(arguments, output, self._lifeline, **how)
        self._children.append(_Child(name, log, process))

    def count(self, name: str, pid: int | None) -> None:
        """Count the memory of a process that is managed elsewhere."""
        if pid is not None:
            self._foreign.append((name, pid))

    def pids(self) -> dict[str, int]:
        return {child.name: child.process.pid for child in self._children}

    def check(self) -> None:
        for child in self._children:
            code = child.process.poll()
            if code is not None:
                how = f"exit code {code}" if code >= 0 else f"signal {-code}"
                fix = f"Its log {child.log} ends:\n{tail(child.log)}"
                raise JobFailed(f"the {child.name} process ended ({how})", fix=fix)

    def memory_bytes(self) -> int:
        """Return the memory of all processes, measured at most every two seconds."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return self._memory_bytes
        self._next_look_s = now_s + _MEMORY_S
        self._memory_bytes = _memory(psutil.Process())
        pids = [child.process.pid for child in self._children]
        for pid in [*pids, *(pid for _, pid in self._foreign)]:
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                for one in (process, *process.children(recursive=True)):
                    self._memory_bytes += _memory(one)
        self.memory_peak_bytes = max(self.memory_peak_bytes, self._memory_bytes)
        return self._memory_bytes

    def stop(self) -> None:
        for child in self._children:
            signal_group(child.process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for child in self._children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.05, deadline - time.monotonic()))
        for child in self._children:
            if child.process.returncode is None:
                signal_group(child.process, signal.SIGKILL)
                child.process.wait()
        self._children.clear()
        if not self._lifeline.closed:
            self._lifeline.close()


def spawn(
    arguments: Sequence[str],
    output: IO[bytes] | int,
    lifeline: Lifeline,
    *,
    threads: int | None = None,
    module: str = "edgeveil_tools.cli",
) -> subprocess.Popen[bytes]:
    """Start `edgeveil <arguments>` in its own process group, with all output to `output`.

    `threads` limits its numerical libraries."""
    settings = {"PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "2"}
    if threads is not None:
        settings |= {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **settings, **lifeline.environment},
        pass_fds=[lifeline.child_fd],
        start_new_session=True,
    )


def tail(log: Path) -> str:
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
        found = file.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:]
        return "\n".join(f"    {line}" for line in found) or "    (nothing)"
    return "    (no log)"


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the group of a process of `spawn`, unless reaped."""
    # Once reaped, its number may be another process's.
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _memory(process: psutil.Process) -> int:
    with suppress(psutil.AccessDenied, AttributeError):
        return int(process.memory_full_info().pss)
    return int(process.memory_info().rss)


PREFIX = "edgeveil-run-"


@contextmanager
def scratch(*, keep: bool, parent: Path | None = None) -> Iterator[Path]:
    """Yield a locked folder of mode 0700, removed at the end unless `keep`."""
    sweep(parent or Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    if keep:
        yield folder
        return
    with OwnFolder(folder):
        try:
            (folder / "site").mkdir()  # a site begins in an empty folder
            yield folder / "site"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(UsageError, OSError):
            if (folder / LOCK_FILE).is_file() and folder.stat().st_uid == os.getuid():
                with OwnFolder(folder):
                    shutil.rmtree(folder, ignore_errors=True)
