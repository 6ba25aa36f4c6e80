"""Keeps processes running: what ends is started again at once, and every end is written down."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import psutil

from edgeveil_tools.lifeline import Lifeline
from edgeveil_tools.local.children import signal_group, spawn

# --- state folders on small file systems of their own, each of which can be full ---

_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
_ROOM = "50%"  # of the memory, at most; nothing is taken before it is used

DiskBy = Literal["full", "limit"]


class Disk:
    """One file system in memory, mounted on `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        _mount("-t", "tmpfs", "-o", f"size={_ROOM},mode=0700", "edgeveil-chaos", str(folder))

    def fill(self) -> None:
        """Leave no block that is free. Raises OSError where it was written to faster than that."""
        for _ in range(100):
            found = os.statvfs(self.folder)
            used_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize
            # 0 would mean no bound. Refused where more was written in between.
            if self._resize(str(max(used_bytes, found.f_frsize))):
                return
        raise OSError(f"{self.folder} cannot be filled")

    def make_room(self) -> None:
        """Let it be written to again."""
        self._resize(_ROOM)

    def close(self, *, keep: bool) -> None:
        """Unmount it; what it holds stays in `folder` if `keep`."""
        aside = self.folder.with_name(f"{self.folder.name}.kept")
        if keep:
            shutil.copytree(self.folder, aside)
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
        if keep:
            self.folder.rmdir()
            aside.rename(self.folder)

    def _resize(self, size: str) -> bool:
        done = subprocess.run(
            ["mount", "-o", f"remount,size={size}", str(self.folder)], capture_output=True
        )
        return done.returncode == 0


class Disks:
    """Makes them where the system allows it; `by` says how a disk is filled here."""

    def __init__(self, by: DiskBy) -> None:
        self.by = by
        self._made: list[Disk] = []

    def under(self, folder: Path) -> list[Disk]:
        """A disk on this folder, which is empty; none where nothing may be mounted."""
        if self.by == "limit":
            return []
        self._made.append(Disk(folder))
        return self._made[-1:]

    def close(self, *, keep: bool) -> None:
        """Unmount all."""
        while self._made:
            self._made.pop().close(keep=keep)


@contextmanager
def own_disks(folder: Path, *, keep: bool) -> Iterator[Disks]:
    """Disks that this process and its children alone see, so that they end with them, however.

    `folder` is empty; it is tried out on it whether the system allows a mount.
    """
    disks = Disks("full" if _may_mount(folder) else "limit")
    try:
        yield disks
    finally:
        disks.close(keep=keep)


def _may_mount(folder: Path) -> bool:
    if sys.platform != "linux" or ctypes.CDLL(None).unshare(_NEW_MOUNTS):
        return False
    try:
        _mount("--make-rprivate", "/")
        Disk(folder).close(keep=False)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


# --- processes ---

How = Literal["killed", "stopped", "by itself"]

STOP_S = 15.0
FULL_BYTES = 1  # past this offset nothing is written to a file while the disk is "full"
_AGAIN_S = 0.2
_TRACE = re.compile(rb"^(Traceback |Fatal Python error|edgeveil: unexpected )")
_ERROR = b"edgeveil: "
_KEPT_TRACES = 20


@dataclass(frozen=True)
class ProcessEnd:
    """One end of a process. `at_s` counts from the supervisor's beginning; `said`: last line."""

    name: str
    at_s: float
    ran_s: float
    code: int
    how: How
    said: str = ""


@dataclass(frozen=True)
class ProcessTrace:
    """The first line of something that no process should ever write."""

    name: str
    at_s: float
    line: str


@dataclass
class _SupervisedProcess:
    """One process and all its lives. The lock of the supervisor guards it."""

    name: str
    arguments: tuple[str, ...]
    disks: tuple[Disk, ...] = ()
    module: str = "edgeveil_tools.cli"
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    starts: int = 0
    start_s: float = 2.0  # how long its last start took, to its first word
    doomed: int = 0  # kills that it was given, or will be as soon as it starts
    armed: deque[float] = field(default_factory=deque)  # shares of a start, one for each next life
    aimed: int = 0  # of them, those whose time runs
    full: bool = False
    keeper: threading.Thread | None = field(default=None, repr=False)

    def send(self, number: signal.Signals) -> None:
        """Signal this life of it, if there is one."""
        if self.process is not None:
            signal_group(self.process, number)


class Supervisor:
    """Starts processes and keeps them running until `stop`. Logs go to `folder/<name>.log`.

    What a process writes goes through a pipe, so that a full disk of its own does not silence it.
    """

    def __init__(self, folder: Path, now_s: Callable[[], float]) -> None:
        self._folder, self._now_s = folder, now_s
        self._lifeline = Lifeline()
        self._lock = threading.RLock()
        self._stopping = False
        self._waiting = 0
        self._all: dict[str, _SupervisedProcess] = {}
        self.filled = 0  # processes that a full disk met
        self.ends: list[ProcessEnd] = []
        self.traces: list[ProcessTrace] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Of all processes."""
        return tuple(self._all)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        disks: Sequence[Disk] = (),
        module: str = "edgeveil_tools.cli",
    ) -> None:
        """Run `edgeveil <arguments>`, as `module` has it, whose state lies on these disks, from now
        on."""
        kept = self._all[name] = _SupervisedProcess(name, tuple(arguments), tuple(disks), module)
        kept.keeper = threading.Thread(target=self._keep, args=(kept,), daemon=True, name=name)
        kept.keeper.start()

    def kill(self, name: str) -> None:
        """SIGKILL; a process that is just being started again gets it first thing."""
        kept = self._all[name]
        with self._lock:
            kept.doomed += 1
            kept.send(signal.SIGKILL)

    def kill_starting(self, name: str, share: float) -> None:
        """SIGKILL in its next life, after this share of the time that its last start took.

        In this life where nothing is about to end it: the next one might never come.
        """
        kept = self._all[name]
        with self._lock:
            kept.armed.append(share)
            self._waiting += 1
            if _alive(kept) and not kept.doomed and not kept.aimed:
                self._aim(kept)

    @property
    def waiting(self) -> int:
        """Kills of `kill_starting` that are still to come."""
        return self._waiting

    def fill(self, name: str, full: bool) -> None:
        """Whether the disks of this process, and of those that follow it, are full.

        Where it has none of its own, a limit on the size of its files stands for that.
        """
        kept = self._all[name]
        with self._lock:
            kept.full = full
            _fill(kept)
            self.filled += _limit(kept) and full

    def starts(self) -> int:
        """How often a process was started."""
        return sum(kept.starts for kept in self._all.values())

    def alive(self) -> dict[str, bool]:
        """Which processes run."""
        with self._lock:
            return {kept.name: _alive(kept) for kept in self._all.values()}

    def stop(self) -> list[str]:
        """End all by SIGTERM; the names of those that had to be killed. May be called twice."""
        with self._lock:
            self._stopping = True
            for kept in self._all.values():
                kept.full = False
                _fill(kept)
                _limit(kept)
                kept.send(signal.SIGTERM)
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

    def _keep(self, kept: _SupervisedProcess) -> None:
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

    def _spawn(self, kept: _SupervisedProcess) -> subprocess.Popen[bytes]:
        threads = 1 if kept.name.startswith("worker") else None
        process = spawn(
            kept.arguments, subprocess.PIPE, self._lifeline, threads=threads, module=kept.module
        )
        kept.process, kept.started_s, kept.starts = process, self._now_s(), kept.starts + 1
        self.filled += _limit(kept) and kept.full
        if kept.doomed:
            signal_group(process, signal.SIGKILL)
        elif kept.armed:
            self._aim(kept)
        return process

    def _aim(self, kept: _SupervisedProcess) -> None:
        """Let the time of the next armed kill run."""
        timer = threading.Timer(kept.armed.popleft() * kept.start_s, self._strike, (kept,))
        timer.daemon = True
        timer.start()
        kept.aimed += 1

    def _strike(self, kept: _SupervisedProcess) -> None:
        with self._lock:
            self._waiting -= 1
            kept.aimed -= 1
            if not self._stopping:
                self.kill(kept.name)

    def _copy(
        self, kept: _SupervisedProcess, process: subprocess.Popen[bytes], log: BinaryIO
    ) -> str:
        """All that it writes into its log; its last line."""
        line, heard = b"", False
        with process.stdout or open(os.devnull, "rb") as out:  # noqa: PTH123
            for line in out:
                if not heard and not line.startswith(_ERROR):  # that start came to nothing
                    heard, kept.start_s = True, self._now_s() - kept.started_s
                log.write(line)
                if _TRACE.match(line) and len(self.traces) < _KEPT_TRACES:
                    text = line.decode("utf-8", "replace").strip()
                    self.traces.append(ProcessTrace(kept.name, self._now_s(), text))
        return line.decode("utf-8", "replace").strip()

    def _note(self, kept: _SupervisedProcess, code: int, said: str) -> None:
        with self._lock:
            how: How = "by itself"
            if kept.doomed and code == -signal.SIGKILL:
                how, kept.doomed = "killed", kept.doomed - 1
            elif self._stopping:
                how = "stopped"
            now = self._now_s()
            self.ends.append(ProcessEnd(kept.name, now, now - kept.started_s, code, how, said))


def _alive(kept: _SupervisedProcess) -> bool:
    return kept.process is not None and kept.process.poll() is None


def _fill(kept: _SupervisedProcess) -> None:
    """Fit its disks to whether they are full."""
    for disk in kept.disks:
        disk.fill() if kept.full else disk.make_room()


def _limit(kept: _SupervisedProcess) -> bool:
    """Fit the size of files to it, where it has no disk of its own; False: the process is gone."""
    if kept.process is None or kept.process.poll() is not None:
        return False
    if kept.disks:
        return True
    with suppress(psutil.Error, OSError):
        process = psutil.Process(kept.process.pid)
        hard = process.rlimit(psutil.RLIMIT_FSIZE)[1]
        process.rlimit(psutil.RLIMIT_FSIZE, (FULL_BYTES if kept.full else hard, hard))
        return True
    return False
