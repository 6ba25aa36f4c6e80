"""State folders on small file systems of their own, each of which can be full (ENOSPC)."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

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
