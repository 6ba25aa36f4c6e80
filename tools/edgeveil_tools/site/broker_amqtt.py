"""amqtt in a process of its own, `python -m edgeveil_tools.site.broker_amqtt CONFIG`.

Ends at SIGTERM or EOF. Adds to the library a bound on packets, a refusal of MQTT 5 that clients
understand, and mosquitto's users file and rules."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter, WebSocketsWriter, WriterAdapter
from amqtt.broker import Broker
from amqtt.contexts import Action
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from edgeveil.errors import BrokerError, ProtocolError
from edgeveil.transport.mqtt_packets import body_place
from edgeveil_tools.site.broker_rules import Access, Rule, allows, password_matches, read_users

_UNSUPPORTED_VERSION = bytes([0x20, 3, 0, 0x84, 0])  # an MQTT 5 CONNACK
_CONNECT = 0x10
_MQTT_5_HEAD = b"\x00\x04MQTT\x05"
_FIRST_PACKET_S = 10.0
_SHUTDOWN_S = 3.0


class UsersPlugin(BaseAuthPlugin):  # type: ignore[misc]
    """Authentication by password, which reloads a changed users file."""

    @dataclass
    class Config:
        """`users_file`: `name:hash` lines; default: everyone may connect."""

        users_file: str = ""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._path = Path(self.config.users_file) if self.config.users_file else None
        self._read_at = (0, 0)
        self._users: dict[str, str] = {}

    async def authenticate(self, *, session: Any) -> bool:
        if self._path is None:
            return True
        with contextlib.suppress(OSError, BrokerError):  # being replaced: keep the old list
            found = self._path.stat()
            if (stamp := (found.st_mtime_ns, found.st_size)) != self._read_at:
                self._users, self._read_at = read_users(self._path), stamp
        hashed = self._users.get(session.username or "")
        return hashed is not None and password_matches(hashed, session.password or "")


class RulesPlugin(BaseTopicPlugin):  # type: ignore[misc]
    """Access control that denies every topic without an allowing rule."""

    @dataclass
    class Config:
        """`rules`: `[user or "", "read" | "write", topic]` each."""

        rules: list[list[str]] = field(default_factory=list)

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._rules = tuple(
            Rule(user or None, "read" if access == "read" else "write", topic)
            for user, access, topic in self.config.rules
        )

    async def topic_filtering(
        self, *, session: Any = None, topic: str | None = None, action: Any = None
    ) -> bool:
        user = session.username if session is not None else None
        access: Access = "write" if action == Action.PUBLISH else "read"
        return bool(user and topic) and allows(self._rules, str(user), access, str(topic))


class _WebSocketBytes:
    """The bytes of a WebSocket as a stream, independent of frames."""

    def __init__(self, websocket: ServerConnection) -> None:
        self._websocket, self._held = websocket, bytearray()

    async def readexactly(self, n: int) -> bytes:
        while len(self._held) < n:
            try:
                frame = await self._websocket.recv()
            except ConnectionClosed:
                raise asyncio.IncompleteReadError(bytes(self._held), n) from None
            self._held += frame.encode() if isinstance(frame, str) else frame
        taken = bytes(self._held[:n])
        del self._held[:n]
        return taken

    def feed_eof(self) -> None:
        """Ignore the library's call: the socket signals its end itself."""


Stream = asyncio.StreamReader | _WebSocketBytes
Transport = asyncio.Transport | asyncio.WriteTransport


class BoundedReader(StreamReaderAdapter):  # type: ignore[misc]
    """A reader that aborts the connection at an oversized packet."""

    def __init__(
        self, reader: Stream, transport: Transport, packet_bytes: int, first: bytes
    ) -> None:
        super().__init__(reader)
        self.transport, self._packet_bytes, self._first = transport, packet_bytes, first

    async def read(self, n: int = -1) -> bytes:
        if n > self._packet_bytes:
            self.transport.abort()
            raise asyncio.IncompleteReadError(b"", n)
        if not self._first:
            return bytes(await super().read(n))
        taken, self._first = self._first[:n], self._first[n:]
        return taken if len(taken) == n else taken + bytes(await super().read(n - len(taken)))


class BoundedBroker(Broker):  # type: ignore[misc]
    """The library's broker, with a check of each connection's first bytes."""

    packet_bytes = 65536

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """Refuse MQTT 5 at once (the library would wait for bytes that never arrive)."""
        await self._serve(reader, StreamWriterAdapter(writer), writer.transport, listener_name)

    async def ws_connected(self, websocket: ServerConnection, listener_name: str) -> None:
        """Serve a WebSocket without the library's reader, which loops at an early end."""
        stream, writer = _WebSocketBytes(websocket), WebSocketsWriter(websocket)
        await self._serve(stream, writer, websocket.transport, listener_name)

    async def _serve(
        self, reader: Stream, writer: WriterAdapter, transport: Transport, listener_name: str
    ) -> None:
        try:
            first = await asyncio.wait_for(first_bytes(reader), _FIRST_PACKET_S)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ProtocolError):
            transport.close()
            return
        if first.endswith(_MQTT_5_HEAD):
            writer.write(_UNSUPPORTED_VERSION)
            with contextlib.suppress(OSError, ConnectionClosed):
                await writer.drain()
                await writer.close()
            return
        bounded = BoundedReader(reader, transport, self.packet_bytes, first)
        await self.external_connected(bounded, writer, listener_name)


async def first_bytes(reader: Stream) -> bytes:
    """Return the start of a CONNECT, or one byte of another packet; raises ProtocolError."""
    first = await reader.readexactly(1)
    if first[0] != _CONNECT:
        return first
    while body_place(first) is None:
        first += await reader.readexactly(1)
    return first + await reader.readexactly(len(_MQTT_5_HEAD))


async def serve(settings: dict[str, Any], kind: type[BoundedBroker]) -> None:
    """Run until SIGTERM, SIGINT, or the end of standard input (the parent has ended)."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_reader(sys.stdin.fileno(), stop.set)
    broker = kind(settings["library"])
    broker.packet_bytes = settings["packet_bytes"]
    await broker.start()
    await stop.wait()
    with contextlib.suppress(Exception):
        await asyncio.wait_for(broker.shutdown(), _SHUTDOWN_S)


def main(argv: list[str], kind: type[BoundedBroker] = BoundedBroker) -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    settings = json.loads(Path(argv[0]).read_text("utf-8"))
    try:
        asyncio.run(serve(settings, kind))
    except Exception as error:  # the parent shows the last line
        sys.stderr.write(f"{error}\n")
        return BrokerError.exit_code
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # tasks of the library may outlive its shutdown
