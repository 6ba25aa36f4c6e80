"""HTTP server of cloud, proxy and devices: h11 parses, an asyncio loop transfers the bytes.

Client resources are limited in advance: connections (`most_connections`), bytes and lines of a
head, bytes of a body, streams, and the time for each. When all places are taken, the oldest
unprotected connection is closed (`Request.keep`); at most half are protected, so a new client
always finds a place. A handler is cancelled when its client leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import h11

from edgeveil.errors import EdgeVeilError
from edgeveil.pages.assets import SECURITY_HEADERS
from edgeveil.transport.http import (
    Answer,
    HttpError,
    LiveUpdates,
    Request,
    Response,
    Route,
    RouteTable,
    refusal,
)
from edgeveil.transport.listener import (
    HANDSHAKE_S,
    WAITING,
    ListenAt,
    is_loopback,
    listening_sockets,
    most_connections,
)

SHUTDOWN_S = 2.0  # for open requests, when the server stops
SILENT_S = 5.0  # until a request's head is whole, and between an answer and the next request
HEAD_BYTES, HEAD_LINES = 16384, 64
BODY_S = 30.0  # without a byte of a body; after that LEAST_BYTES_S on average
LEAST_BYTES_S = 4096
WRITE_S = 30.0  # until a client has taken a block of an answer
LINGER_S = 2.0  # time to discard a refused body: closing at once could drop the answer
STREAMS = 16  # concurrent event streams; one more ends the oldest
NEAR_STREAMS = 4  # of these, reserved for clients on this machine
STREAM_S = 900.0  # after which a stream ends and its client reconnects
_BLOCK_BYTES = 1 << 18
_READ_AHEAD_BYTES = 1 << 16
_TLS_SHUTDOWN_S = 2.0
_LOG = logging.getLogger("edgeveil.http")
_ALWAYS = {**SECURITY_HEADERS, "Cache-Control": "no-store"}
_EVENTS = {**_ALWAYS, "Content-Type": "text/event-stream"}
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class HttpServer:
    """Server of routes.

    `refuse(request)` is called before a lookup or a read of the body; its response replaces the
    route's. `explain(error)` converts an EdgeVeilError.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        refuse: Callable[[Request], Response | None] = lambda _request: None,
        explain: Callable[[EdgeVeilError], Response] = lambda e: refusal(400, e.what, e.fix),
        streams: int | None = None,
    ) -> None:
        self.table, self.refuse, self.explain = RouteTable(routes), refuse, explain
        self.at, self.port, self.stopping = ListenAt(), 0, False
        self.most = 0  # connections; set by the start
        self._most_streams = streams
        self._listening: list[asyncio.Server] = []
        self._connections: dict[Connection, None] = {}  # the oldest first
        self._kept: set[Connection] = set()
        self._streams: dict[Connection, None] = {}

    async def start(self, host: str | ListenAt = "127.0.0.1", port: int = 0) -> HttpServer:
        """Listen on the running loop. Raises UsageError if that fails."""
        self.at = host if isinstance(host, ListenAt) else ListenAt(host, port)
        self.most = most_connections()
        sockets, loop = await listening_sockets(self.at), asyncio.get_running_loop()
        self.port = 0 if self.at.socket else int(sockets[0].getsockname()[1])
        made = loop.create_server if self.at.socket is None else loop.create_unix_server
        for one in sockets:
            self._listening.append(await made(lambda: Connection(self), sock=one, backlog=WAITING))
        return self

    @property
    def url(self) -> str:
        """Address for clients on this machine; empty before the start."""
        return self.at.url(self.port) if self._listening else ""

    async def stop(self) -> None:
        """Stop listening; open requests get SHUTDOWN_S seconds."""
        self.stopping = True
        for one in self._listening:
            one.close()
        if self._listening and self.at.socket is not None:
            self.at.socket.unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.wind_up()
        tasks = [one.task for one in self._connections if one.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=SHUTDOWN_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn

    # --- places ---

    def admit(self, connection: Connection) -> bool:
        """Add a connection, closing the oldest unprotected one if needed; return False if full."""
        if len(self._connections) >= self.most:
            oldest = next((one for one in self._connections if one not in self._kept), None)
            if oldest is None:
                return False
            self.leave(oldest)
            oldest.transport.abort()
        self._connections[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._streams.pop(connection, None)
        self._kept.discard(connection)

    def keep(self, connection: Connection, kept: bool) -> None:
        """Protect a connection from being closed for others, unless half are protected."""
        if not kept:
            self._kept.discard(connection)
        elif len(self._kept) < self.most // 2:
            self._kept.add(connection)

    def admit_stream(self, connection: Connection) -> None:
        """Register a stream; one too many ends the oldest remote, or else local, one."""
        most = self._most_streams or STREAMS
        near = [one.is_near for one in self._streams]
        oldest: Connection | None = None
        if not connection.is_near and near.count(False) >= most - NEAR_STREAMS:
            oldest = next((one for one in self._streams if not one.is_near), None)
        elif len(near) >= most:
            oldest = next((one for one in self._streams if one.is_near), None)
        if oldest is not None and oldest.task is not None:
            del self._streams[oldest]  # its task ends later, and others may come before
            oldest.task.cancel()
        self._streams[connection] = None


class Connection(asyncio.Protocol):
    """One client; a task of its own serves one request after the other."""

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self.server, self.peer, self.is_near = server, "", True
        self.task: asyncio.Task[None] | None = None
        self._http = _parser(b"")
        self._keep_alive = True  # set by the head of the current answer
        self._chunked = False
        self._idle = True  # no request is being read or answered
        self._streaming = self._discarding = False
        self._unread = bytearray()
        self._data: asyncio.Future[None] | None = None  # awaited while the parser lacks bytes
        self._room: asyncio.Future[None] | None = None  # while the client takes nothing

    # --- the transport's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        if self.server.stopping or not self.server.admit(self):
            self.transport.abort()
            return
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):  # a Unix socket's peer has no address
            self.peer = str(address[0])
            self.is_near = is_loopback(self.peer.removeprefix("::ffff:"))
        if self.server.at.tls is not None:
            self.transport.pause_reading()
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.leave(self)
        for waiting in (self._data, self._room):
            if waiting is not None and not waiting.done():
                waiting.set_exception(ConnectionAbortedError())
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._unread += data
        if self._data is not None:
            if not self._data.done():
                self._data.set_result(None)
        elif len(self._unread) > _READ_AHEAD_BYTES:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    # --- for the server and requests ---

    def wind_up(self) -> None:
        """End at once if idle; end a stream with its last chunk."""
        if self._idle:
            self.transport.abort()
        elif self._streaming and self.task is not None:
            self.task.cancel()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raises HttpError 400, 408."""
        clock = asyncio.get_running_loop().time
        until_s = clock() + BODY_S
        while self._http.their_state is h11.SEND_BODY:
            try:
                async with asyncio.timeout(min(BODY_S, until_s - clock())):
                    event = await self._event()
            except TimeoutError:
                raise HttpError(408, "the body arrived too slowly") from None
            except h11.RemoteProtocolError as error:
                raise HttpError(400, str(error)) from None
            if not isinstance(event, h11.Data):
                return
            until_s += len(event.data) / LEAST_BYTES_S
            yield bytes(event.data)

    # --- one request after the other ---

    async def _serve(self) -> None:
        try:
            if (tls := self.server.at.tls) is not None:
                made = await asyncio.get_running_loop().start_tls(
                    self.transport,
                    self,
                    tls,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=_TLS_SHUTDOWN_S,
                )
                if made is None:
                    return
                self.transport = made
            while await self._round():
                left = self._http.trailing_data[0]
                self._http = _parser(left)
                if left or self._unread:  # yield to the loop between pipelined requests
                    await asyncio.sleep(0)
        except OSError:  # the client left, was too slow, or is not trusted
            self.transport.abort()
        except Exception:  # a body ended before its length, or its source failed
            _LOG.exception("answer_failed")
            self.transport.abort()
        finally:
            self.server.leave(self)
            self.transport.close()

    async def _round(self) -> bool:
        """Answer one request; return whether another may follow on this connection."""
        try:
            async with asyncio.timeout(SILENT_S):
                event = await self._event()
            if not isinstance(event, h11.Request):
                return False
            request = self._request(event)
        except h11.RemoteProtocolError as error:
            await self._send(refusal(error.error_status_hint or 400, str(error)))
            await self._linger()
            return False
        self._idle = False
        answer = await self._answer(request)
        if isinstance(answer, LiveUpdates):
            await self._stream(answer, request.method == "HEAD")
        else:
            await self._send(answer, head_only=request.method == "HEAD")
        self.server.keep(self, False)
        self._idle = True
        if self._keep_alive:
            return True
        await self._linger()
        return False

    def _request(self, event: h11.Request) -> Request:
        """Convert a request. Raises RemoteProtocolError for forms that only h11 accepts."""
        headers: dict[str, str] = {}
        for raw, value in event.headers:
            name, text = raw.decode("ascii"), value.decode("latin-1")
            both = "; " if name == "cookie" else ", "
            headers[name] = f"{headers[name]}{both}{text}" if name in headers else text
        if len(event.headers) > HEAD_LINES:
            raise h11.RemoteProtocolError("too many header lines", error_status_hint=431)
        if "transfer-encoding" in headers and "content-length" in headers:
            raise h11.RemoteProtocolError("a body with two lengths")
        target = event.target.decode("ascii")
        if not target.startswith("/"):
            raise h11.RemoteProtocolError("the target is no path")
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            self._http.next_event()  # the end of a request without a body
        return Request(event.method.decode("ascii"), target, headers, self)

    async def _answer(self, request: Request) -> Answer:
        server = self.server
        try:
            known = server.table.find(request)
            if (refused := server.refuse(request)) is not None:
                return refused
            if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
                raise HttpError(400, "the body is packed", "send it without Content-Encoding")
            route = request.route
            if route is None:
                raise HttpError(405 if known else 404)
            if route.body_bytes is not None:
                request.content = await self._content(request, route.body_bytes)
            return await route.handler(request)
        except HttpError as error:
            return error.response
        except EdgeVeilError as error:
            return server.explain(error)
        except Exception:
            if self.transport.is_closing():
                raise ConnectionAbortedError from None
            _LOG.exception("request_failed")
            return refusal(500)

    async def _content(self, request: Request, most_bytes: int) -> bytes:
        """Return the whole body. Raises HttpError 413 if announced or found too long."""
        too_long = HttpError(413, f"more than {most_bytes} bytes", "send less")
        if (request.content_length or 0) > most_bytes:
            raise too_long
        found = bytearray()
        async with aclosing(self.chunks()) as parts:
            async for part in parts:
                found += part
                if len(found) > most_bytes:
                    raise too_long
        return bytes(found)

    async def _event(self) -> Any:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                if event is h11.PAUSED:
                    raise h11.RemoteProtocolError("unexpected bytes")
                return event
            if self._http.they_are_waiting_for_100_continue:
                head = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                self.transport.write(self._http.send(head) or b"")
            if not self._unread:
                self._data = asyncio.get_running_loop().create_future()
                self.transport.resume_reading()
                try:
                    await self._data
                finally:
                    self._data = None
            # Feed a head in small pieces: the parser checks its length between two of them.
            size = HEAD_BYTES if self._idle else len(self._unread)
            self._http.receive_data(bytes(self._unread[:size]))
            del self._unread[:size]

    # --- answers ---

    def _head(self, status: int, headers: Mapping[str, str], length: int | None) -> bytes:
        """Return the head, which determines framing and keep-alive, in half of h11's time.

        Raises ValueError for a header with a line break.
        """
        http = self._http
        self._keep_alive = http.their_state is h11.DONE and not self.server.stopping
        lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *map(": ".join, headers.items())]
        self._chunked = False
        if length is not None:
            lines.append(f"Content-Length: {length}")
        elif http.their_http_version == b"1.1":
            self._chunked = True
            lines.append("Transfer-Encoding: chunked")
        else:  # the body ends with the connection
            self._keep_alive = False
        if not self._keep_alive:
            lines.append("Connection: close")
        text = "\r\n".join(lines)
        if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
            raise ValueError("a header with a line break")
        return f"{text}\r\n\r\n".encode("latin-1")

    async def _send(self, answer: Response, *, head_only: bool = False) -> None:
        body = answer.body
        length = len(body) if isinstance(body, bytes) else answer.length
        headers = {**_ALWAYS, "Content-Type": answer.content_type, **answer.headers}
        head = self._head(answer.status, headers, length)
        if head_only:
            self.transport.write(head)
        elif isinstance(body, bytes) and len(body) <= _BLOCK_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            blocks = _blocks(body) if isinstance(body, bytes) else body
            sent = await self._send_blocks(blocks)
            if length not in (None, sent):
                raise ConnectionAbortedError("the body has another length than announced")
        await self._drained()

    async def _send_blocks(self, blocks: AsyncGenerator[bytes, None]) -> int:
        sent = 0
        async with aclosing(blocks):
            async for block in blocks:
                sent += len(block)
                if self._chunked:
                    block = b"%x\r\n%b\r\n" % (len(block), block)
                self.transport.write(block)
                await self._drained()
        if self._chunked:
            self.transport.write(b"0\r\n\r\n")
        return sent

    async def _drained(self) -> None:
        """Wait until the client reads more. Raises ConnectionError after WRITE_S."""
        if self._room is not None:
            try:
                async with asyncio.timeout(WRITE_S):
                    await self._room
            except TimeoutError:
                self.transport.abort()  # drop the unread rest
                raise ConnectionAbortedError from None

    async def _stream(self, stream: LiveUpdates, head_only: bool) -> None:
        self.transport.write(self._head(200, _EVENTS, None))
        if head_only:
            return
        self.server.admit_stream(self)
        self.server.keep(self, True)
        self._streaming = True
        self._keep_alive = False
        try:
            async with asyncio.timeout(STREAM_S):
                await self._send_blocks(stream.events)
        except (TimeoutError, asyncio.CancelledError):  # STREAM_S passed, or the server stops
            if self.transport.is_closing():
                raise
            if self._chunked:
                self.transport.write(b"0\r\n\r\n")

    async def _linger(self) -> None:
        """Discard further input, so that the client reads the answer before a reset."""
        if self._http.their_state not in (h11.SEND_BODY, h11.ERROR):
            return
        self._discarding = True
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        await asyncio.sleep(LINGER_S)  # cancelled if the client leaves


def _parser(left: bytes) -> h11.Connection:
    made = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
    if left:
        made.receive_data(left)
    return made


async def _blocks(body: bytes) -> AsyncGenerator[bytes, None]:
    for at in range(0, len(body), _BLOCK_BYTES):
        yield body[at : at + _BLOCK_BYTES]
