"""The spool's files: ciphertext in its place, durable when asked for, gone when dropped."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from edgeveil.file_data import sync_folder
from edgeveil.protocol.messages import ExchangeId


def uploads_of(at: ExchangeId) -> str:
    """The file of a round's uploads."""
    return f"uploads-{at.job_id.hex()}-{at.exchange}-{at.attempt}"


def batch_of(at: ExchangeId) -> str:
    """The file of a round's batch."""
    return f"batch-{at.job_id.hex()}-{at.exchange}-{at.attempt}"


def arriving_of(digest: bytes) -> str:
    """The file of a broadcast under way."""
    return f"arriving-{digest.hex()}"


def kept_of(digest: bytes) -> str:
    """The file of a whole broadcast."""
    return f"kept-{digest.hex()}"


class SpoolFiles:
    """Files in `folder`, made with mode 0600. Used by one thread. Every method raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._open: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._dropped: set[str] = set()
        self._made = False

    def path(self, name: str) -> Path:
        """Where a file is."""
        return self.folder / name

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Put bytes in their place; durable with the next `sync`."""
        if name not in self._open:
            self._made |= not self.path(name).exists()
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._open[name] = os.open(self.path(name), flags, 0o600)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._open[name], rest, offset)
            offset, rest = offset + written, rest[written:]
        self._dirty.add(name)

    def sync(self, name: str) -> None:
        """Make what was written to a file durable, and the file's name."""
        if name in self._dirty:
            os.fdatasync(self._open[name])
            self._dirty.discard(name)
        if self._made:
            sync_folder(self.folder)
            self._made = False

    def drop(self, name: str) -> None:
        """The file goes with the next `remove_dropped`."""
        self._dropped.add(name)

    def spare(self, name: str) -> None:
        """The file stays after all."""
        self._dropped.discard(name)

    def keep_dropped(self) -> None:
        """Nothing goes after all."""
        self._dropped.clear()

    def remove_dropped(self) -> None:
        """Remove what was dropped."""
        for name in self._dropped:
            self.close(name)
            with suppress(FileNotFoundError):
                self.path(name).unlink()
        self._dropped.clear()

    def sweep(self, known: Collection[str]) -> None:
        """Remove what a killed process left behind: every file that is not known."""
        for path in self.folder.iterdir():
            if path.name not in known:
                path.unlink()

    def close(self, name: str) -> None:
        """Let a file go; it stays on the disk."""
        self._dirty.discard(name)
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        """Let all files go."""
        for name in list(self._open):
            self.close(name)
