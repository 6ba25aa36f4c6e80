"""A party's own store of out-of-band blobs: files that it serves, or a bucket.

URLs are capabilities: 32 random bytes, or a signature that expires. Blobs are ciphertext.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from edgeveil.config.blobs import BlobBucket, BlobStore, bucket_options
from edgeveil.errors import ProtocolError, UsageError
from edgeveil.protocol.messages import Blob
from edgeveil.protocol.transfer import BlobShown, Data, GrantPut, PutGranted, ShowBlob
from edgeveil.storage import FileData
from edgeveil.transport.health import warn_of_plain_http
from edgeveil.transport.http import HttpError, Request, Response, Route
from edgeveil.transport.http_server import HttpServer
from edgeveil.transport.listener import ListenAt, peer_of, server_context

_LOG = logging.getLogger("edgeveil.blobs")
_BLOCK_BYTES = 1 << 18
EXPIRES_S = 3600.0  # validity of a URL
_SWEEP_S = 600.0
_ADD_SWEEP_S = 1.0  # between sweeps when names are added
_KEPT = 4  # protected connections of one peer
_NAME = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def open_store(site: BlobStore | None, state_dir: Path) -> OpenBlobStore | None:
    """Open the store of a site file's block. Raises UsageError."""
    if site is None:
        return None
    if site.bucket is not None:
        return BucketStore(site.bucket, EXPIRES_S)
    served = site.serve
    if served is None or site.url is None:  # excluded by the schema
        raise UsageError("blobs need a store", fix="add serve or bucket")
    tls = server_context(served.tls.cert_file, served.tls.key_file, None) if served.tls else None
    at = ListenAt(served.host, served.port, tls=tls)
    return ServedStore(state_dir / "blobs", site.url, at, EXPIRES_S)


def taken(store: OpenBlobStore, name: str, blob: Blob) -> Iterator[bytes]:
    """Yield the blob uploaded as `name`, then delete it. Raises ProtocolError."""
    digest, left_bytes = hashlib.sha256(), blob.size_bytes
    try:
        for block in store.blocks(name, blob.size_bytes):
            left_bytes -= len(block)
            if left_bytes < 0:
                raise ProtocolError("wrong_size")
            digest.update(block)
            yield block
        if digest.digest() != blob.digest:
            raise ProtocolError("wrong_bytes")
    finally:
        store.forget(name)


async def sweep_forever(store: OpenBlobStore) -> None:
    while True:
        await asyncio.sleep(_SWEEP_S)
        try:
            await asyncio.to_thread(store.sweep)
        except Exception as error:  # a bucket's client raises its own types; retried
            _LOG.warning("not_swept", extra={"error": type(error).__name__})


# --- served from here --------------------------------------------------------------------------


@dataclass
class _Capability:
    size_bytes: int
    until_s: float
    data: Data | None = None  # of a download; None: an upload
    busy: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether the blob's source file was removed and only this entry keeps it."""
        if isinstance(self.data, FileData):
            return self.data.is_unlinked
        return self.data is not None and len(self.data) < self.size_bytes


class ServedStore:
    """HTTP(S) server of a folder: GET with ranges, and PUT. URLs end with the process."""

    def __init__(
        self,
        folder: Path,
        url: str,
        at: ListenAt,
        expires_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._url, self._at = folder, url, at
        self._expires_s, self._clock = expires_s, clock
        self._lock = threading.Lock()
        self._named: dict[str, _Capability] = {}
        self._next_sweep_s = -math.inf
        self._kept_of = Counter[str]()
        blob = "/{path:path}"
        self._server = HttpServer(
            [Route("GET", blob, self._get), Route("PUT", blob, self._put, body_bytes=None)]
        )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.iterdir():
            left.unlink()

    @property
    def port(self) -> int:
        return self._server.port

    def show(self, task: ShowBlob) -> BlobShown:
        """Return a URL of the blob where it is stored; copies nothing."""
        return BlobShown(self._url + self._add(task.blob.size_bytes, task.data))

    def grant(self, task: GrantPut) -> PutGranted:
        for unused in task.in_place_of:
            self.forget(unused)
        name = self._add(task.blob.size_bytes, None)
        return PutGranted(name, self._url + name)

    def _add(self, size_bytes: int, data: Data | None) -> str:
        if self._clock() >= self._next_sweep_s:
            self.sweep()
            self._next_sweep_s = self._clock() + _ADD_SWEEP_S
        name = secrets.token_hex(32)
        with self._lock:
            self._named[name] = _Capability(size_bytes, self._clock() + self._expires_s, data)
        return name

    def blocks(self, name: str, size_bytes: int) -> Iterator[bytes]:
        try:
            data = FileData(self._folder / name)
        except OSError:
            raise ProtocolError("not_there") from None
        if len(data) != size_bytes:
            raise ProtocolError("wrong_size")
        yield from _read_blocks(data)

    def forget(self, name: str) -> None:
        with self._lock:
            self._named.pop(name, None)
        with suppress(FileNotFoundError):
            (self._folder / name).unlink()

    def sweep(self) -> None:
        now_s = self._clock()
        with self._lock:
            over = [n for n, one in self._named.items() if now_s >= one.until_s or one.is_gone]
        for name in over:
            self.forget(name)

    async def start(self) -> None:
        await self._server.start(self._at)
        warn_of_plain_http(self._at, _LOG)

    async def stop(self) -> None:
        await self._server.stop()

    def _found(self, request: Request, *, put: bool) -> tuple[str, _Capability]:
        name = request.path[-64:]
        with self._lock:
            found = self._named.get(name) if _NAME.fullmatch(name) else None
        fine = found is not None and self._clock() < found.until_s and (found.data is None) == put
        if found is None or not fine:
            raise HttpError(404)
        return name, found

    async def _get(self, request: Request) -> Response:
        _, found = self._found(request, put=False)
        start, stop = _range_of(request.headers.get("range", ""), found.size_bytes)
        headers, whole = {"Accept-Ranges": "bytes"}, (start, stop) == (0, found.size_bytes)
        if not whole:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{found.size_bytes}"
        blocks = self._blocks_of(request, found, start, stop)
        kind, status = "application/octet-stream", 200 if whole else 206
        return Response(blocks, kind, status, headers, length=stop - start)

    async def _blocks_of(
        self, request: Request, found: _Capability, start: int, stop: int
    ) -> AsyncGenerator[bytes, None]:
        with self._kept(request):
            for place in range(start, stop, _BLOCK_BYTES):
                block = found.data[place : min(place + _BLOCK_BYTES, stop)] if found.data else b""
                if not block:
                    raise ConnectionResetError("the blob was removed meanwhile")
                yield block

    @contextmanager
    def _kept(self, request: Request) -> Iterator[None]:
        """Protect the connection of a valid request from eviction, at most _KEPT per peer."""
        peer = peer_of(request.peer)
        kept = self._kept_of[peer] < _KEPT
        if kept:
            self._kept_of[peer] += 1
            request.keep()
        try:
            yield
        finally:
            if kept:
                self._kept_of[peer] -= 1
                if not self._kept_of[peer]:
                    del self._kept_of[peer]

    async def _put(self, request: Request) -> Response:
        name, found = self._found(request, put=True)
        if request.content_length is None:
            raise HttpError(411)
        if request.content_length != found.size_bytes:
            raise HttpError(413)
        if found.busy:
            raise HttpError(409)
        found.busy = True
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            with (
                self._kept(request),
                os.fdopen(
                    os.open(self._folder / name, flags, 0o600), "wb", buffering=_BLOCK_BYTES
                ) as file,
            ):
                async for block in request.chunks():
                    file.write(block)
        finally:
            found.busy = False
        return Response(status=201)


def _range_of(asked: str, size_bytes: int) -> tuple[int, int]:
    """Return begin and end of the requested range. Raises HttpError 416."""
    if not asked:
        return 0, size_bytes
    form = _RANGE.fullmatch(asked.strip())
    if form is None or not any(form.groups()):
        raise HttpError(416)
    first, last = (int(one[:18]) if one else None for one in form.groups())
    if first is None:
        first, last = max(0, size_bytes - (last or 0)), None
    stop = size_bytes if last is None else min(last + 1, size_bytes)
    if first >= stop:
        raise HttpError(416)
    return first, stop


# --- a bucket ------------------------------------------------------------------------------------


class BucketStore:
    """S3, Google or Azure bucket by obstore, with signed URLs; a rule should delete old blobs."""

    def __init__(self, bucket: BlobBucket, expires_s: float) -> None:
        """Open a bucket. Raises UsageError if obstore is missing or rejects the options."""
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            what = "a bucket needs obstore"
            raise UsageError(what, fix="pip install 'edgeveil[blobs]'") from None
        self._obstore, self._expires = obstore, timedelta(seconds=expires_s)
        options: Any = bucket_options(bucket.options_file)
        near = options.get("endpoint", "").startswith("http://")
        try:
            self._store: Any = from_url(
                bucket.url, config=options, client_options={"allow_http": near}
            )
        except Exception as error:
            what = "the bucket's options cannot be used"
            raise UsageError(what, where=bucket.url, fix=str(error)[:200]) from None

    def show(self, task: ShowBlob) -> BlobShown:
        """Copy the blob to the bucket under a random name."""
        name = secrets.token_hex(32)
        self._obstore.put(self._store, name, _read_blocks(task.data))
        return BlobShown(self._signed("GET", name))

    def grant(self, task: GrantPut) -> PutGranted:
        """Return a signed URL; the size is checked when the blob is read."""
        for unused in task.in_place_of:
            self.forget(unused)
        name = secrets.token_hex(32)
        return PutGranted(name, self._signed("PUT", name))

    def _signed(self, method: Literal["GET", "PUT"], name: str) -> str:
        return str(self._obstore.sign(self._store, method, name, self._expires))

    def blocks(self, name: str, size_bytes: int) -> Iterator[bytes]:
        try:
            found = self._obstore.get(self._store, name)
        except FileNotFoundError:
            raise ProtocolError("not_there") from None
        if found.meta["size"] != size_bytes:
            raise ProtocolError("wrong_size")
        for block in found.stream(min_chunk_size=_BLOCK_BYTES):
            yield bytes(block)

    def forget(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._obstore.delete(self._store, name)

    def sweep(self) -> None:
        before = datetime.now(UTC) - self._expires
        for batch in self._obstore.list(self._store):
            for one in batch:
                if one["last_modified"] < before:
                    self.forget(one["path"])

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


OpenBlobStore = ServedStore | BucketStore  # methods may block, and run in any thread


def _read_blocks(data: Data) -> Iterator[bytes]:
    for start in range(0, len(data), _BLOCK_BYTES):
        yield data[start : start + _BLOCK_BYTES]
