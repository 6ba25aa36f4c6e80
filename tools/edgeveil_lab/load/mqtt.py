"""A bare MQTT client for thousands of connections in one process: no task and no timer of its own.

For the load generator alone. A link of `edgeveil.transport` has a client object of paho and tasks
of its own for each connection, of which a process cannot hold ten thousand; packets are made and
read by the same code. The owner of all clients calls `tick`, which keeps an idle connection alive.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from edgeveil.errors import ProtocolError
from edgeveil.sites.addresses import BrokerAddress
from edgeveil.transport import mqtt_packets as packets
from edgeveil.transport.dialling import refusal_words

_WINDOW_MESSAGES = 64  # unacknowledged messages of one device, unless the broker allows fewer
_SLOW_BUFFER_BYTES = 16384
_SLICE_S = 0.1  # of a slow link
_HEADER_BYTES = 64 * 1024  # above a packet's limit: room for topic and properties


class Owner(Protocol):
    """Who is told. No call may take long."""

    def on_up(self) -> None:
        """The broker took the login and the subscriptions."""
        ...

    def on_frame(self, payload: bytes) -> None:
        """A message came."""
        ...

    def on_down(self, reason: str) -> None:
        """The connection is gone; called once."""
        ...


async def connect_client(
    make: Callable[[], asyncio.Protocol],
    address: BrokerAddress,
    context: ssl.SSLContext | None,
    host: str = "",
) -> None:
    """Connect a new client to the broker, at `host` if its name was resolved. Raises OSError."""
    server_hostname = address.host if context else None
    host = host or address.host
    loop = asyncio.get_running_loop()
    await loop.create_connection(
        make, host, address.port, ssl=context, server_hostname=server_hostname
    )


class BareClient(asyncio.Protocol):
    """One connection. Without topics it is up as soon as the broker takes the login."""

    __slots__ = (
        "_framer",
        "_heard_s",
        "_held_back",
        "_in_flight",
        "_login",
        "_loop",
        "_next_id",
        "_owner",
        "_protocol",
        "_queue",
        "_sending",
        "_sent_s",
        "_slow_bytes_per_s",
        "_topics",
        "_transport",
        "_up_topic",
        "_window",
        "bytes_in",
        "bytes_out",
        "up",
    )

    def __init__(
        self,
        owner: Owner,
        login: packets.Login,
        protocol: int,
        topics: tuple[str, ...],
        up_topic: bytes,
        slow_bytes_per_s: int = 0,
    ) -> None:
        self._owner, self._login, self._protocol = owner, login, protocol
        self._topics, self._up_topic = topics, up_topic
        self._slow_bytes_per_s = slow_bytes_per_s
        self._framer = packets.PacketCutter(login.packet_bytes + _HEADER_BYTES)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._queue: deque[tuple[bytes, int]] = deque()
        self._in_flight: set[int] = set()  # packet ids
        self._window, self._next_id = _WINDOW_MESSAGES, 0
        self._sending, self._held_back = False, b""
        self._heard_s = self._sent_s = self._loop.time()
        self.up = False
        self.bytes_in = self.bytes_out = 0

    # --- what the owner does ---

    def publish(self, frame: bytes, qos: int) -> bool:
        """Send to the device's own topic, now or once the window has room; False if it is down."""
        if not self.up:
            return False
        self._queue.append((frame, qos))
        if not self._sending:
            self._drain()
        return True

    def cut(self) -> None:
        """Break the connection without a goodbye: the broker sends the will."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Say goodbye and close."""
        if self._transport is not None and not self._transport.is_closing():
            if self.up:
                self._transport.write(packets.GOODBYE)
            self._transport.close()

    def tick(self, now_s: float) -> None:
        """Ping where nothing was sent for half the keep-alive; cut where nothing came for two."""
        if not self.up or self._transport is None:
            return
        keepalive_s = self._login.keepalive_s
        if now_s - self._heard_s > 2 * keepalive_s:
            self._transport.abort()
        elif now_s - self._sent_s > keepalive_s / 2:
            self._write(packets.PINGREQ)

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Dialled: log in."""
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._slow_bytes_per_s:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
        self._write(packets.connect(self._login, self._protocol))

    def data_received(self, data: bytes) -> None:
        """Bytes came: all complete packets are handled now."""
        self.bytes_in += len(data)
        self._heard_s = self._loop.time()
        if self._slow_bytes_per_s and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_later(len(data) / self._slow_bytes_per_s, self._arrived, data)
        else:
            self._take_in(data)

    def _take_in(self, data: bytes) -> None:
        try:
            for first, body in self._framer.feed(data):
                self._packet(first, body)
        except (ProtocolError, IndexError) as error:
            self._end(f"malformed packet ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._end("connection lost")

    # --- packets ---

    def _packet(self, first: int, body: bytes) -> None:
        match first >> 4:
            case packets.PUBLISH:
                packet_id, at = packets.read_publish(first, body, self._protocol)
                if packet_id:
                    self._write(packets.puback(packet_id))
                self._owner.on_frame(body[at:])
            case packets.PUBACK:
                packet_id, _ = packets.read_puback(body)
                self._in_flight.discard(packet_id)
                if self._queue and not self._sending:
                    self._drain()
            case packets.CONNACK:
                code, in_flight = packets.read_connack(body, self._protocol)
                if code:
                    self._end(refusal_words(code, self._protocol))
                    return
                self._window = min(self._window, in_flight)
                if self._topics:
                    self._subscribe()
                else:
                    self._come_up()
            case packets.SUBACK:
                if any(code >= 0x80 for code in body[-len(self._topics) :]):
                    self._end("subscription refused")
                    return
                self._come_up()
            case packets.DISCONNECT:
                self._end(f"broker says goodbye, reason {body[0] if body else 0}")

    def _subscribe(self) -> None:
        self._write(packets.subscribe(self._packet_id(), self._topics, self._protocol, 1))

    def _come_up(self) -> None:
        self.up = True
        self._owner.on_up()

    def _drain(self) -> None:
        """Send what waits, as far as the window and a slow link allow."""
        self._sending = False
        while self._queue and len(self._in_flight) < self._window:
            frame, qos = self._queue.popleft()
            packet_id = self._packet_id() if qos else 0
            if qos:
                self._in_flight.add(packet_id)
            head = packets.publish_head(self._up_topic, len(frame), packet_id, self._protocol)
            if self._slow_bytes_per_s:
                self._sending = True
                self._trickle(memoryview(head + frame))
                return
            self._write(head, frame)

    def _trickle(self, rest: memoryview) -> None:
        """Over a slow link: each slice once the time is over that it takes."""
        if not rest:
            waiting, self._held_back = self._held_back, b""
            if waiting:
                self._raw_write(waiting)
            self._drain()
            return
        piece = rest[: max(1, int(self._slow_bytes_per_s * _SLICE_S))]
        self._loop.call_later(
            len(piece) / self._slow_bytes_per_s, self._trickled, piece, rest[len(piece) :]
        )

    def _trickled(self, piece: memoryview, rest: memoryview) -> None:
        if self._transport is not None:
            self._raw_write(bytes(piece))
            self._trickle(rest)

    def _packet_id(self) -> int:
        while True:
            self._next_id = self._next_id % 65535 + 1
            if self._next_id not in self._in_flight:
                return self._next_id

    def _write(self, *pieces: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._sending:  # in the middle of another packet
            self._held_back += b"".join(pieces)
            return
        self._raw_write(*pieces)

    def _raw_write(self, *pieces: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._sent_s = self._loop.time()
        self.bytes_out += sum(map(len, pieces))
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)

    def _arrived(self, data: bytes) -> None:
        """A slow link's bytes are here only now."""
        if self._transport is not None and not self._transport.is_closing():
            self._take_in(data)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _end(self, reason: str) -> None:
        transport, self._transport, self.up = self._transport, None, False
        self._queue.clear()
        if transport is not None:
            transport.abort()
            self._owner.on_down(reason)
