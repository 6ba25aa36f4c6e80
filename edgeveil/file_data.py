"""A file's bytes as a blob's `Data`: only what is sliced is read."""

from __future__ import annotations

import hashlib
import os
import weakref
from pathlib import Path

CHUNK_BYTES = 1 << 20


class FileData:
    """The bytes of `path` from `offset` on, `size_bytes` of them; None: to its end.

    The file may be renamed or unlinked meanwhile: it is held open. Raises OSError.
    """

    def __init__(self, path: Path, offset: int = 0, size_bytes: int | None = None) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._file)
        self._offset = offset
        self._size_bytes = (
            os.fstat(self._file).st_size - offset if size_bytes is None else size_bytes
        )

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, step = part.indices(self._size_bytes)
        if step != 1:
            raise ValueError("a part has no step")
        return os.pread(self._file, max(0, stop - start), self._offset + start)

    def digest(self) -> bytes:
        """SHA-256 of the whole, read a chunk at a time."""
        found = hashlib.sha256()
        for start in range(0, self._size_bytes, CHUNK_BYTES):
            found.update(self[start : start + CHUNK_BYTES])
        return found.digest()


def sync_folder(folder: Path) -> None:
    """Make names that were made, changed or removed in `folder` durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
