"""HTTP next to a process's other work: pages of its state, or an application of aiohttp's.

Pages are for watchers on the same machine: GET, one answer a connection; and POST where a process
takes questions. A process that shows no more than these, as the proxy, loads no web framework; who
serves an application loads aiohttp.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgeveil.transport.listener import ListenAt, Listener, is_loopback, most_connections

if TYPE_CHECKING:
    from aiohttp import web

SHUTDOWN_S = 2.0
REQUEST_S = 10.0
REQUEST_BYTES = 16384
_LENGTH_DIGITS = 18  # of a body's length; more are not read as a number
CONNECTIONS = 64  # of watchers at once; more are hung up on
SILENT_S = 5.0  # until a request's head is whole, and between an answer and the next request
HEAD_LINE_BYTES = 8190
HEAD_LINES = 64


class Served(Protocol):
    """What listens: its address, and the way to end it."""

    @property
    def url(self) -> str:
        """Address for clients on this machine."""

    async def stop(self) -> None:
        """Stop listening."""


# --- pages ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageContent:
    """What one request is answered."""

    body: bytes
    content_type: str
    status: int = 200

    @classmethod
    def of_json(cls, value: Any, status: int = 200) -> PageContent:
        """A value as JSON."""
        return cls(json.dumps(value).encode(), "application/json; charset=utf-8", status)

    def response(self) -> web.Response:
        """The same for an application of aiohttp's."""
        from aiohttp import web

        headers = {"Content-Type": self.content_type}
        return web.Response(body=self.body, status=self.status, headers=headers)


Page = Callable[[], Awaitable[PageContent]]
"""Makes a page anew for each request."""


@dataclass(frozen=True)
class PostedBody:
    """What came with a POST; `content_type` in small letters, without parameters."""

    content: bytes
    content_type: str


Post = Callable[[PostedBody], Awaitable[PageContent]]
"""Answers what is posted to its path."""


class PageServer:
    """Pages by their paths. A request is read for REQUEST_S seconds and REQUEST_BYTES at most.

    `posts` take bodies of `body_bytes` at most beside that: a longer one is refused by its header.
    """

    def __init__(
        self,
        pages: Mapping[str, Page],
        posts: Mapping[str, Post] | None = None,
        body_bytes: int = 0,
    ) -> None:
        self._pages, self._posts, self._body_bytes = pages, posts or {}, body_bytes
        self._listener: Listener | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def listen(self, host: str | ListenAt, port: int = 0) -> None:
        """Serve on the running loop. Raises UsageError if the port cannot be had."""

        def connected() -> asyncio.BaseProtocol:
            return asyncio.StreamReaderProtocol(
                asyncio.StreamReader(limit=REQUEST_BYTES), self._connected
            )

        most = min(CONNECTIONS, most_connections())
        self._listener = Listener(_place(host, port), connected, most)
        await self._listener.start()

    @property
    def url(self) -> str:
        """Address for clients on this machine."""
        return self._listener.url if self._listener is not None else ""

    async def stop(self) -> None:
        """Stop listening; what is being answered is dropped."""
        if self._listener is not None:
            await self._listener.stop()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served in no task")
        self._open.add(task)
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_S):
                    await self._exchange(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            method, found = "GET", _plain(431)
        else:
            method, found = await self._answered(head, reader)
        reason = HTTPStatus(found.status).phrase
        lines = (
            f"HTTP/1.1 {found.status} {reason}",
            f"Content-Type: {found.content_type}",
            f"Content-Length: {len(found.body)}",
            "Connection: close",
        )
        writer.write("\r\n".join((*lines, "", "")).encode("ascii"))
        if method != "HEAD":
            writer.write(found.body)
        await writer.drain()

    async def _answered(self, head: bytes, reader: asyncio.StreamReader) -> tuple[str, PageContent]:
        line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return "GET", _plain(400)
        method, page = line[0], self._pages.get(line[1].partition("?")[0])
        post = self._posts.get(line[1])
        if method == "POST" and post is not None:
            return method, await self._posted(post, head, reader)
        if page is None:
            return method, _plain(404 if post is None else 405)
        if method not in ("GET", "HEAD"):
            return method, _plain(405)
        try:
            return method, await page()
        except Exception:  # which page failed is no matter of who asks
            return method, _plain(500)

    async def _posted(self, post: Post, head: bytes, reader: asyncio.StreamReader) -> PageContent:
        headers = _headers(head)
        if not is_loopback(_name_of(headers.get("host", "localhost"))):
            return _plain(403)  # a page of another's in a browser of this machine (DNS rebinding)
        told = headers.get("content-length", "")
        if not told.isdecimal() or "transfer-encoding" in headers:
            return _plain(411)
        if len(told) > _LENGTH_DIGITS or int(told) > self._body_bytes:
            return _plain(413)
        content = await reader.readexactly(int(told))
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            return await post(PostedBody(content, kind))
        except Exception:  # as for a page
            return _plain(500)


def _name_of(host: str) -> str:
    """A Host header without its port: `127.0.0.1:8710`, `[::1]:8710`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _plain(status: int) -> PageContent:
    text = f"{status}: {HTTPStatus(status).phrase}"
    return PageContent(text.encode(), "text/plain; charset=utf-8", status)


async def serve_pages(pages: Mapping[str, Page], host: str | ListenAt, port: int = 0) -> Served:
    """Serve pages by their paths on the running loop. Raises UsageError for a port in use."""
    server = PageServer(pages)
    await server.listen(host, port)
    return server


def _place(host: str | ListenAt, port: int) -> ListenAt:
    return host if isinstance(host, ListenAt) else ListenAt(host, port)


# --- applications -----------------------------------------------------------------------------


class HttpServer:
    """A served application; `url` has the port that it got when 0 was asked for."""

    def __init__(self, runner: web.AppRunner, listener: Listener) -> None:
        self._runner, self._listener = runner, listener

    @property
    def port(self) -> int:
        """The TCP port that it listens on."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Address for clients on this machine."""
        return self._listener.url

    async def stop(self) -> None:
        """Stop listening; open requests get SHUTDOWN_S seconds to end."""
        await self._listener.stop()
        await self._runner.cleanup()


async def serve(app: web.Application, host: str | ListenAt, port: int = 0) -> HttpServer:
    """Serve `app` on the running loop. Raises UsageError if the port cannot be had.

    A request's head has HEAD_LINES lines of HEAD_LINE_BYTES at most; who has not sent it whole
    after SILENT_S, or asks nothing more for so long after an answer, is hung up on. How large and
    how late a body may be is the application's to say.
    """
    from aiohttp import web

    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
        keepalive_timeout=SILENT_S,
        max_line_size=HEAD_LINE_BYTES,
        max_field_size=HEAD_LINE_BYTES,
        max_headers=HEAD_LINES,
    )
    await runner.setup()
    if runner.server is None:
        raise RuntimeError("the runner was not set up")
    listener = Listener(_place(host, port), runner.server, most_connections())
    try:
        await listener.start()
    except BaseException:
        await runner.cleanup()
        raise
    return HttpServer(runner, listener)


def warnings_of(at: ListenAt) -> Sequence[str]:
    """What the health page is to say of where it is served."""
    return ("plain_http",) if at.is_readable_on_the_way else ()


def warn_of_plain_http(at: ListenAt, log: logging.Logger) -> None:
    """One line where others than this machine may reach what is served without encryption."""
    if at.is_readable_on_the_way:
        log.warning(
            "plain_http",
            extra={"host": at.host, "fix": "set http.tls or http.socket, or listen on 127.0.0.1"},
        )


# --- health ---------------------------------------------------------------------------------


STUCK_S = 30.0
PROBE_EVERY_S = 5.0
PROBE_TIMEOUT_S = 2.0
_PROBE_BYTES = 4096

Check = Callable[[], bool | Awaitable[bool]]


class Health:
    """Named checks; a process is well while all of them hold. Beside them is told what each of
    `warnings` has to say."""

    def __init__(
        self, checks: Mapping[str, Check], warnings: Sequence[Callable[[], Sequence[str]]] = ()
    ) -> None:
        self._checks, self._warnings = checks, warnings

    async def failing(self) -> list[str]:
        """Names of the parts that do not work now."""
        found = []
        for name, check in self._checks.items():
            holds = check()
            if not (holds if isinstance(holds, bool) else await holds):
                found.append(name)
        return found

    async def told(self) -> PageContent:
        """200 `ok`, or 503 `degraded` and which part: nothing that is worth hiding."""
        parts = await self.failing()
        found: dict[str, Any] = {"status": "degraded" if parts else "ok"}
        if parts:
            found["parts"] = parts
        warnings = [one for told in self._warnings for one in told()]
        if warnings:
            found["warnings"] = warnings
        return PageContent.of_json(found, 503 if parts else 200)

    async def page(self, _request: web.Request) -> web.Response:
        """The same for an application of aiohttp's."""
        return (await self.told()).response()


class Probe:
    """A check that may hang: looked at in a thread, with a time limit, anew every few seconds."""

    def __init__(
        self, look: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._clock = look, clock
        self._looked_s, self._holds = -PROBE_EVERY_S, True
        self._looking: asyncio.Task[bool] | None = None

    async def __call__(self) -> bool:
        looking = self._looking
        if looking is None and self._clock() - self._looked_s >= PROBE_EVERY_S:
            looking = self._looking = asyncio.create_task(asyncio.to_thread(self._look))
        if looking is not None:
            done, _ = await asyncio.wait([looking], timeout=PROBE_TIMEOUT_S)
            if not done:
                return False
            self._holds, self._looked_s, self._looking = await looking, self._clock(), None
        return self._holds


def writable(folder: Path) -> bool:
    """Whether the folder takes a small file to its disk."""
    path = folder / "health.probe"
    try:
        with path.open("wb", buffering=0) as file:
            written = file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
        path.unlink()
    except OSError:
        return False
    return written == _PROBE_BYTES
