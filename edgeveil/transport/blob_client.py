"""HTTP client of blob stores: GET with resumption, PUT, no redirects.

Uses the standard library, so a device loads nothing more, and threads, since TLS, hashing and disks
block. Bytes are counted and hashed on arrival; no more than the announced size is read.
"""

from __future__ import annotations

import hashlib
import io
import logging
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from edgeveil.errors import ProtocolError
from edgeveil.protocol.effects import WorkFailed
from edgeveil.protocol.messages import Blob
from edgeveil.protocol.transfer import (
    BlobStored,
    Carriage,
    FetchedOutOfBand,
    FetchOutOfBand,
    PutOutOfBand,
)
from edgeveil.transport.dialling import client_context, clock_advice

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG = logging.getLogger("edgeveil.blobs")
AT_ONCE = 4  # transfers of one process
SILENT_S = 20.0  # without a byte until a connection is closed
TRIES = 4  # consecutive attempts without progress
FIRST_PAUSE_S = 0.5  # between attempts, doubled each time
BLOCK_BYTES = 1 << 18

_PARTIAL, _OK, _NO_RANGE = 206, 200, 416
_EXPIRED = (401, 403, 404, 410)


class _Sink(Protocol):
    def restart(self) -> None: ...

    def write(self, data: memoryview, /) -> object: ...

    def finish(self) -> bytes:
        """Return the whole verified blob, or b"" if written to a file."""


class MemorySink(io.BytesIO):
    def restart(self) -> None:
        self.seek(0)
        self.truncate()

    finish = io.BytesIO.getvalue


class _Broken(Exception):  # noqa: N818 - an outcome
    """A temporary failure of the connection or the store."""


class BlobClient:
    """Transfers blobs to and from stores, at most `AT_ONCE` at a time, each in a thread."""

    def __init__(
        self,
        ca_file: Path | None = None,
        sink: Callable[[Blob], _Sink] = lambda _blob: MemorySink(),
        *,
        silent_s: float = SILENT_S,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._context = client_context(ca_file, None, None) if ca_file is not None else None
        self._sink, self._silent_s, self._first_pause_s = sink, silent_s, first_pause_s
        self.executor = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="edgeveil-blobs")
        self._ended = threading.Event()
        self._open: set[HTTPConnection] = set()

    def close(self) -> None:
        self._ended.set()
        for connection in list(self._open):
            with suppress(OSError, AttributeError):
                connection.sock.shutdown(2)
        self.executor.shutdown(wait=False, cancel_futures=True)

    def carry(self, task: Carriage) -> FetchedOutOfBand | BlobStored | WorkFailed:
        """Transfer one blob; a failure has one of a few reasons, none of which quotes a URL."""
        until_s = time.monotonic() + task.within_s
        try:
            if isinstance(task, FetchOutOfBand):
                return FetchedOutOfBand(self._fetch(task, until_s))
            self._put(task, until_s)
            return BlobStored()
        except ProtocolError as error:
            return WorkFailed(error.reason)
        except (OSError, ValueError, HTTPException):  # of the disk, or a malformed answer
            return WorkFailed("failed")

    def _fetch(self, task: FetchOutOfBand, until_s: float) -> bytes:
        size_bytes, sink = task.blob.size_bytes, self._sink(task.blob)
        digest, got, failed = hashlib.sha256(), 0, 0
        block = memoryview(bytearray(BLOCK_BYTES))
        while got < size_bytes:
            before = got
            try:
                asked = {"Range": f"bytes={got}-"} if got else {}
                with self._answer("GET", task.url, asked) as answer:
                    if _begins_anew(answer, got, size_bytes):
                        sink.restart()
                        digest, got, before = hashlib.sha256(), 0, 0
                    while count := answer.readinto(block):
                        if got + count > size_bytes:
                            raise ProtocolError("wrong_size")
                        digest.update(block[:count])
                        sink.write(block[:count])
                        got += count
                        self._check_time(until_s)
            except _Broken:
                pass
            if got < size_bytes:
                failed = 0 if got > before else failed + 1
                self._pause(failed, until_s)
        if digest.digest() != task.blob.digest:
            raise ProtocolError("wrong_bytes")
        return sink.finish()

    def _put(self, task: PutOutOfBand, until_s: float) -> None:
        failed = 0
        while True:
            try:
                with self._answer("PUT", task.url, {}, task, until_s):
                    return
            except _Broken:
                failed += 1
                self._pause(failed, until_s)

    @contextmanager
    def _answer(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: PutOutOfBand | None = None,
        until_s: float = 0.0,
    ) -> Iterator[HTTPResponse]:
        """Yield the store's answer. Raises _Broken, or ProtocolError for a lasting refusal."""
        parts = urlsplit(url)
        at, silent_s = (parts.hostname or "", parts.port), self._silent_s
        if parts.scheme == "http":
            connection = HTTPConnection(*at, timeout=silent_s)
        else:
            self._context = self._context or client_context(None, None, None)
            connection = HTTPSConnection(*at, timeout=silent_s, context=self._context)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        self._open.add(connection)
        try:
            connection.putrequest(method, target, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(body.blob.size_bytes))
            connection.endheaders()
            if body is not None:
                self._send(connection, body, until_s)
            answer = connection.getresponse()
            _check(answer.status)
            yield answer
        except (OSError, HTTPException) as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                if fix := clock_advice(error):
                    _LOG.warning("untrusted_store", extra={"fix": fix})
                raise ProtocolError("untrusted_store") from None
            raise _Broken from None
        finally:
            self._open.discard(connection)
            connection.close()

    def _send(self, connection: HTTPConnection, body: PutOutOfBand, until_s: float) -> None:
        try:
            for start in range(0, body.blob.size_bytes, BLOCK_BYTES):
                connection.send(body.data[start : start + BLOCK_BYTES])
                self._check_time(until_s)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server may have sent a reason before

    def _pause(self, failed: int, until_s: float) -> None:
        if failed >= TRIES:
            raise ProtocolError("unreachable")
        self._check_time(until_s)
        self._ended.wait(self._first_pause_s * 2 ** max(0, failed - 1))
        self._check_time(until_s)

    def _check_time(self, until_s: float) -> None:
        if self._ended.is_set() or time.monotonic() > until_s:
            raise ProtocolError("ended")


def _begins_anew(answer: HTTPResponse, got: int, size_bytes: int) -> bool:
    """Return whether the whole blob is sent again. Raises ProtocolError for wrong sizes."""
    anew = bool(got) and answer.status == _OK
    length, start = answer.headers.get("Content-Length"), 0 if anew else got
    begins = answer.headers.get("Content-Range", "")
    if answer.status == _PARTIAL and not begins.startswith(f"bytes {got}-"):
        raise ProtocolError("wrong_range")
    if length is not None and (not length.isdecimal() or int(length) != size_bytes - start):
        raise ProtocolError("wrong_size")
    return anew


def _check(status: int) -> None:
    if status in (_OK, 201, 204, _PARTIAL):
        return
    if status in _EXPIRED:
        raise ProtocolError("expired")
    if 300 <= status < 400:
        raise ProtocolError("redirected")
    if status >= 500 or status in (408, 429):
        raise _Broken
    raise ProtocolError("wrong_size" if status == 413 else "refused")
