"""The batch that the proxy hands over, on the disk and not in memory."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from edgeveil.errors import ProtocolError
from edgeveil.protocol.cloud_tasks import BatchPart
from edgeveil.protocol.messages import Blob
from edgeveil_cloud.store_records import StoreError

_READ_BYTES = 1 << 20


class SpooledBatch:
    """One batch in a file without a name: it is gone with the process, or with its last reader.

    A `edgeveil.protocol.blob.Data`: only what is sliced is read.
    """

    def __init__(self, digest: bytes, folder: Path | None) -> None:
        self.digest = digest
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see __del__
        self._bytes = 0
        self._running = hashlib.sha256()  # of the first `_hashed` bytes
        self._hashed = 0

    def write(self, offset: int, data: bytes) -> None:
        """Put a part in its place. Raises OSError."""
        if offset < self._hashed:  # written again: what was hashed is not there any more
            self._running, self._hashed = hashlib.sha256(), 0
        if offset == self._hashed:
            self._running.update(data)
            self._hashed += len(data)
        view = memoryview(data)
        while view:
            offset += (count := os.pwrite(self._file.fileno(), view, offset))
            view = view[count:]
        self._bytes = max(self._bytes, offset)

    def __len__(self) -> int:
        return self._bytes

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._bytes)
        return os.pread(self._file.fileno(), max(0, stop - start), start)

    def check(self, blob: Blob) -> None:
        """Raise ProtocolError `bad_digest` unless the file holds this blob."""
        digest = self._running.copy()
        for start in range(self._hashed, self._bytes, _READ_BYTES):
            digest.update(self[start : start + _READ_BYTES])
        if self._bytes != blob.size_bytes or digest.digest() != blob.digest:
            raise ProtocolError("bad_digest")

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


class BatchSpool:
    """At most one batch, in `folder` (None: the system's folder for temporary files).

    A disk that is full spoils the batch and not the process: `whole` says so, and the round is
    asked for again.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._batch: SpooledBatch | None = None
        self._failure = ""

    def put(self, part: BatchPart) -> None:
        """Keep a part; the first one of another batch takes the place of the one before."""
        try:
            if self._batch is None or self._batch.digest != part.digest:
                self.drop()
                self._batch = SpooledBatch(part.digest, self._folder)
            self._batch.write(part.offset, part.data)
        except OSError as error:
            self._failure = error.strerror or type(error).__name__

    def whole(self, blob: Blob) -> SpooledBatch:
        """The batch, checked. Raises ProtocolError `bad_digest`, or StoreError with its fix."""
        if self._failure:
            raise StoreError(
                f"the batch cannot be written ({self._failure})",
                where=str(self._folder or tempfile.gettempdir()),
                fix="make room on the disk",
            )
        if self._batch is None or self._batch.digest != blob.digest:
            raise ProtocolError("bad_digest")
        self._batch.check(blob)
        return self._batch

    def drop(self) -> None:
        """Forget the batch; its room on the disk is free when the last reader is done."""
        self._batch, self._failure = None, ""
