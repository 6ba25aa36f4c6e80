"""HTTP next to a process's other work: pages of its state, or an application of aiohttp's.

Pages are for watchers on the same machine: GET, one answer a connection, or a stream of events; and
POST where a process takes questions. A process that shows no more than these, as the proxy and a
device, loads no web framework; who serves an application loads aiohttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgeveil.pages.assets import SECURITY_HEADERS, SHARED, asset, content_type
from edgeveil.transport.listener import ListenAt, Listener, is_loopback, most_connections
from edgeveil.transport.local_socket import listen_locally

if TYPE_CHECKING:
    from aiohttp import web

SHUTDOWN_S = 2.0
REQUEST_S = 10.0
REQUEST_BYTES = 16384
_LENGTH_DIGITS = 18  # of a body's length; more are not read as a number
CONNECTIONS = 64  # of watchers at once; more are hung up on
STREAMS = 16  # of these connections that stay; for one more the oldest is ended
NEAR_STREAMS = 4  # of these, for watchers on this machine alone
STREAM_S = 900.0  # after which a stream ends, and its watcher comes again
QUIET_S = 15.0  # after which a stream without news shows that it stands
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
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(
        cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> PageContent:
        """A value as JSON."""
        kind = "application/json; charset=utf-8"
        return cls(json.dumps(value).encode(), kind, status, headers or {})

    def response(self) -> web.Response:
        """The same for an application of aiohttp's."""
        from aiohttp import web

        headers = {**self.headers, "Content-Type": self.content_type}
        return web.Response(body=self.body, status=self.status, headers=headers)


@dataclass(frozen=True)
class EventStream:
    """Server-sent events: what `value` gives as JSON, looked at every `every_s` seconds, and told
    when it differs from before. It ends as soon as `stands` does not hold.
    """

    value: Callable[[], Awaitable[Any]]
    every_s: float = 1.0
    stands: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class PageRequest:
    """What a client sent: headers by their names in small letters, and a POST's content."""

    headers: Mapping[str, str]
    content: bytes = b""

    @property
    def content_type(self) -> str:
        """In small letters, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_for_this_machine(self) -> bool:
        """Whether the client asked for it by a name of this machine, or by none. A page of
        another's, in a browser here, asks by that other's name (DNS rebinding)."""
        return is_loopback(_name_of(self.headers.get("host", "localhost")))

    def cookie(self, name: str) -> str:
        """A cookie's value, or ""."""
        pairs = (one.partition("=") for one in self.headers.get("cookie", "").split(";"))
        return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


Answer = PageContent | EventStream
Page = Callable[[PageRequest], Awaitable[Answer]]
"""Makes a page anew for each request."""

Post = Callable[[PageRequest], Awaitable[PageContent]]
"""Answers what is posted to its path."""


def files(package: str, index: str, *names: str) -> dict[str, Page]:
    """A package's own files by their names, what all such pages share, and `index` under `/`."""

    def page(name: str, package: str) -> Page:
        async def told(_request: PageRequest) -> PageContent:
            return PageContent(asset(name, package), content_type(name))

        return told

    found = {f"/{name}": page(name, "edgeveil.pages") for name in SHARED}
    found.update({f"/{name}": page(name, package) for name in names})
    return {"/": page(index, package), **found}


class PageServer:
    """Pages by their paths. A request is read for REQUEST_S seconds and REQUEST_BYTES at most, and
    answered within `answer_s`.

    `posts` take bodies of `body_bytes` at most beside that: a longer one is refused by its header.
    `refusal(path, request)` answers in place of a page, or of a post before its body is read.
    Of the connections STREAMS may stay, for STREAM_S at most, NEAR_STREAMS of them only where they
    come from this machine; the oldest gives way to one more, so nobody keeps others out. Who does
    not take what is sent is hung up on after REQUEST_S.
    """

    def __init__(
        self,
        pages: Mapping[str, Page],
        posts: Mapping[str, Post] | None = None,
        body_bytes: int = 0,
        refusal: Callable[[str, PageRequest], PageContent | None] = lambda _path, _request: None,
        answer_s: float = REQUEST_S,
    ) -> None:
        self._pages, self._posts, self._body_bytes = pages, posts or {}, body_bytes
        self._refusal, self._answer_s = refusal, answer_s
        self._listener: Listener | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._streams: dict[asyncio.Task[None], bool] = {}  # the oldest first: is it near?

    async def listen(self, host: str | ListenAt, port: int = 0) -> None:
        """Serve on the running loop. Raises UsageError if the port cannot be had."""

        def connected() -> asyncio.BaseProtocol:
            return asyncio.StreamReaderProtocol(
                asyncio.StreamReader(limit=REQUEST_BYTES), self._connected
            )

        most = min(CONNECTIONS, most_connections())
        self._listener = Listener(_place(host, port), connected, most, yields=True)
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
            async with asyncio.timeout(self._answer_s):
                stream = await self._exchange(reader, writer)
            if stream is not None:
                if self._listener is not None:
                    self._listener.keep(writer.transport)
                near = _is_near(writer)
                self._make_room(near)
                self._streams[task] = near
                await self._tell(stream, reader, writer)
        except (TimeoutError, asyncio.CancelledError):  # too slow, or `stop`, which waits for this
            writer.transport.abort()  # what was not taken by now is not kept for later
        except (OSError, asyncio.IncompleteReadError):
            pass  # gone
        finally:
            self._open.discard(task)
            self._streams.pop(task, None)
            writer.close()

    def _make_room(self, near: bool) -> None:
        """End the oldest stream where one more would be too many: of those from elsewhere if they
        have all the places that they may have, else of those from this machine if all are taken."""
        kinds = list(self._streams.values())
        if not near and kinds.count(False) >= STREAMS - NEAR_STREAMS:
            wanted = False
        elif len(kinds) >= STREAMS:
            wanted = True
        else:
            return
        oldest = next(task for task, is_near in self._streams.items() if is_near == wanted)
        del self._streams[oldest]  # its task ends later, and others may come before
        oldest.cancel()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> EventStream | None:
        """Answer the request; the stream that is to follow, if that is the answer."""
        method, found = await self._asked(reader)
        if isinstance(found, EventStream):
            writer.write(_head(200, {"Content-Type": "text/event-stream"}))
            return found if method == "GET" else None
        kind, length = found.content_type, str(len(found.body))
        headers = {"Content-Type": kind, "Content-Length": length, **found.headers}
        writer.write(_head(found.status, headers))
        if method != "HEAD":
            writer.write(found.body)
        await writer.drain()
        return None

    async def _tell(
        self, stream: EventStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send what is new until the watcher is gone, or its time is over."""
        clock = asyncio.get_running_loop().time
        end_s, told, told_s = clock() + STREAM_S, "", clock()
        while clock() < end_s and not reader.at_eof() and stream.stands():
            try:
                now = json.dumps(await stream.value())
            except Exception:  # as for a page
                return
            if now != told or clock() - told_s >= QUIET_S:
                writer.write(f"data: {now}\n\n".encode() if now != told else b":\n\n")
                told, told_s = now, clock()
                async with asyncio.timeout(REQUEST_S):
                    await writer.drain()
            await asyncio.sleep(stream.every_s)

    async def _asked(self, reader: asyncio.StreamReader) -> tuple[str, Answer]:
        """Read a request; its method, and what it is answered."""
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return "GET", _plain(431)
        line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return "GET", _plain(400)
        method, path = line[0], line[1].partition("?")[0]
        page, post, request = self._pages.get(path), self._posts.get(line[1]), _request(head)
        if method == "POST" and post is not None:
            refused = self._refusal(path, request)
            return method, refused or await self._posted(post, request, reader)
        if page is None:
            return method, _plain(404 if post is None else 405)
        if method not in ("GET", "HEAD"):
            return method, _plain(405)
        if (refused := self._refusal(path, request)) is not None:
            return method, refused
        try:
            return method, await page(request)
        except Exception:  # which page failed is no matter of who asks
            return method, _plain(500)

    async def _posted(
        self, post: Post, request: PageRequest, reader: asyncio.StreamReader
    ) -> PageContent:
        if not request.is_for_this_machine:
            return _plain(403)
        told = request.headers.get("content-length", "")
        if not told.isdecimal() or "transfer-encoding" in request.headers:
            return _plain(411)
        if len(told) > _LENGTH_DIGITS or int(told) > self._body_bytes:
            return _plain(413)
        async with asyncio.timeout(REQUEST_S):
            content = await reader.readexactly(int(told))
        answering = asyncio.ensure_future(post(PageRequest(request.headers, content)))
        watching = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not watching.result():
                raise ConnectionAbortedError  # the client has left
            return await answering
        except ConnectionAbortedError:
            raise
        except Exception:  # as for a page
            return _plain(500)
        finally:
            answering.cancel()
            watching.cancel()


def _is_near(writer: asyncio.StreamWriter) -> bool:
    """Whether the client is on this machine: by a loopback address, or a socket in the file system,
    whose peer has no address."""
    peer = writer.get_extra_info("peername")
    return not isinstance(peer, tuple) or is_loopback(str(peer[0]).removeprefix("::ffff:"))


def _name_of(host: str) -> str:
    """A Host header without its port: `127.0.0.1:8710`, `[::1]:8710`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _request(head: bytes) -> PageRequest:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return PageRequest({name.strip().lower(): value.strip() for name, _, value in pairs})


def _plain(status: int) -> PageContent:
    text = f"{status}: {HTTPStatus(status).phrase}"
    return PageContent(text.encode(), "text/plain; charset=utf-8", status)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    every = {**SECURITY_HEADERS, "Connection": "close", **headers}
    lines = (f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *map(": ".join, every.items()))
    return "\r\n".join((*lines, "", "")).encode("ascii")


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

    def keep(self, transport: asyncio.BaseTransport | None, *, served: bool = True) -> None:
        """As `Listener.keep`."""
        self._listener.keep(transport, served=served)

    async def stop(self) -> None:
        """Stop listening; open requests get SHUTDOWN_S seconds to end."""
        await self._listener.stop()
        await self._runner.cleanup()


def _is_no_fault_of_a_client(record: logging.LogRecord) -> bool:
    """Filter for aiohttp's log: False for lines about a malformed request."""
    from aiohttp.http_exceptions import HttpProcessingError
    from aiohttp.web import RequestPayloadError

    fault = record.exc_info[1] if record.exc_info else None
    return not isinstance(fault, HttpProcessingError | RequestPayloadError)


async def serve(app: web.Application, host: str | ListenAt, port: int = 0) -> HttpServer:
    """Serve `app` on the running loop. Raises UsageError if the port cannot be had.

    A request's head has HEAD_LINES lines of HEAD_LINE_BYTES at most; who has not sent it whole
    after SILENT_S, or asks nothing more for so long after an answer, is hung up on. How large and
    how late a body may be is the application's to say; one that is packed (gzip) is a 400, since
    its size would be another than the one it says. Which connections `keep` their places is its to
    say too: of the others the oldest gives way to a new one where all places are taken.
    """
    from aiohttp import web

    @web.middleware
    async def plain_body(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            told = {"what": "the body is packed", "fix": "send it without Content-Encoding"}
            return web.json_response(told, status=400, headers={"Connection": "close"})
        try:
            found: web.StreamResponse = await handler(request)
        except ConnectionError:
            if request.transport is not None and not request.transport.is_closing():
                raise
            return web.Response()  # the client has left
        return found

    app.middlewares.insert(0, plain_body)
    logging.getLogger("aiohttp.server").addFilter(_is_no_fault_of_a_client)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
        keepalive_timeout=SILENT_S,
        max_line_size=HEAD_LINE_BYTES,
        max_field_size=HEAD_LINE_BYTES,
        max_headers=HEAD_LINES,
        auto_decompress=False,  # else what is left of a refused body is unpacked, and fails late
    )
    await runner.setup()
    if runner.server is None:
        raise RuntimeError("the runner was not set up")
    listener = Listener(_place(host, port), runner.server, most_connections(), yields=True)
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


PROBE_EVERY_S = 5.0
PROBE_TIMEOUT_S = 2.0
_PROBE_BYTES = 4096

Holds = bool | str
"""True, or False; or, where it does not hold, why, as one word."""
Check = Callable[[], Holds | Awaitable[Holds]]
HEALTH_SOCKET = "health.sock"
LINK_DOWN, STUCK, OTHER_KEY, UNHEARD = "link_down", "stuck", "other_key", "unheard"  # reasons
LIVE = "machine"  # the part that a new start of the process mends


class Health:
    """Named checks; a process is well while all of them hold. Beside them is told what each of
    `warnings` has to say."""

    def __init__(
        self, checks: Mapping[str, Check], warnings: Sequence[Callable[[], Sequence[str]]] = ()
    ) -> None:
        self._checks, self._warnings = checks, warnings

    async def failing(self) -> dict[str, str]:
        """The parts that do not work now, each with the reason as one word."""
        found = {}
        for name, check in self._checks.items():
            holds = check()
            if not isinstance(holds, bool | str):
                holds = await holds
            if holds is not True:
                found[name] = holds or f"{name.partition('/')[0]}_fails"
        return found

    def warnings(self) -> list[str]:
        """What is to be told beside."""
        return [one for told in self._warnings for one in told()]

    async def told(self, _request: object = None) -> PageContent:
        """200 `ok`, or 503 `degraded` and which part, for what reason: nothing that is worth
        hiding. `live`: whether the machine turns, so that a new start would mend nothing."""
        parts = await self.failing()
        found: dict[str, Any] = {"status": "degraded" if parts else "ok"}
        if parts:
            found |= {"parts": list(parts), "reasons": parts, "live": LIVE not in parts}
        if warnings := self.warnings():
            found["warnings"] = warnings
        return PageContent.of_json(found, 503 if parts else 200)

    async def page(self, _request: web.Request) -> web.Response:
        """The same for an application of aiohttp's."""
        return (await self.told()).response()


class HealthSocket:
    """Answers who connects to `health.sock` in a state folder with its `Health`, and hangs up: what
    a health check asks, past all crowds at the pages (`edgeveil_tools/probe.py`)."""

    def __init__(self, state_dir: Path, health: Health) -> None:
        self._path, self._health = state_dir / HEALTH_SOCKET, health
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises UsageError."""
        self._server = await asyncio.start_unix_server(
            self._connected, sock=listen_locally(self._path)
        )

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _connected(self, _reader: object, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(REQUEST_S):
                    writer.write((await self._health.told()).body)
                    await writer.drain()
        finally:
            writer.close()


class Probe:
    """A check that may hang: looked at in a thread, with a time limit, anew every few seconds.

    May be asked on several event loops: they share one look.
    """

    def __init__(
        self, look: Callable[[], Holds], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._clock = look, clock
        self._looked_s = -PROBE_EVERY_S
        self._holds: Holds = True
        self._looking: Future[Holds] | None = None
        self._lock = threading.Lock()

    async def __call__(self) -> Holds:
        looking = self._begun()
        if looking is not None:
            here = asyncio.wrap_future(looking)
            try:
                done, _ = await asyncio.wait([here], timeout=PROBE_TIMEOUT_S)
            finally:
                here.cancel()  # the look itself goes on: it runs
            if not done:
                return "hangs"
            with self._lock:
                if self._looking is looking:
                    self._holds, self._looking = looking.result(), None
                    self._looked_s = self._clock()
        return self._holds

    def _begun(self) -> Future[Holds] | None:
        """The look under way, begun if it is time; None where the last one still counts."""
        with self._lock:
            if self._looking is None and self._clock() - self._looked_s >= PROBE_EVERY_S:
                self._looking = Future()
                self._looking.set_running_or_notify_cancel()
                try:
                    threading.Thread(target=self._run, args=[self._looking], daemon=True).start()
                except RuntimeError:
                    self._looking.set_result("no_thread")
            return self._looking

    def _run(self, looking: Future[Holds]) -> None:
        try:
            looking.set_result(self._look())
        except Exception:
            looking.set_result("no_thread")


def writable(folder: Path, room_bytes: int = 0) -> Holds:
    """Whether the folder takes a small file to its disk, which has room for so much beside it; else
    the system's name of the error."""
    path = folder / "health.probe"
    try:
        with path.open("wb", buffering=0) as file:
            written = file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
        path.unlink()
        fits = written == _PROBE_BYTES and shutil.disk_usage(folder).free >= room_bytes
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "oserror").lower()
    return fits or "enospc"
