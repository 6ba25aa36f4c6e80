"""Thousands of MQTT connections in one process: bare clients without tasks or timers.

Their owner calls `tick`, which keeps idle connections alive."""

from __future__ import annotations

import asyncio
import importlib.util
import resource
import ssl
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

from edgeveil.config.addresses import BrokerAddress
from edgeveil.errors import ProtocolError
from edgeveil.heap import keep_heap
from edgeveil.transport import mqtt_packets as packets
from edgeveil.transport.dialling import dial_fault, refusal

_WINDOW_MESSAGES = 64  # unacknowledged messages of one device, unless the broker allows fewer
_HEADER_BYTES = 64 * 1024  # above a packet's limit: room for topic and properties


def on_fast_loop(main: Coroutine[Any, Any, int]) -> int:
    keep_heap()
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(main)
    import uvloop

    return int(uvloop.run(main))


def raise_files_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class _ClientOwner(Protocol):
    answered: asyncio.Event
    """Set once the broker has answered, or the connection was lost."""

    def connect(self) -> None: ...
    def client(self) -> BareClient: ...
    def on_up(self) -> None: ...
    def on_frame(self, payload: bytes) -> None: ...
    def on_down(self, reason: str) -> None: ...


class BareClient(asyncio.Protocol):
    """One connection, up once the broker has accepted login and subscriptions."""

    def __init__(
        self,
        owner: _ClientOwner,
        login: packets.Login,
        protocol: int,
        topics: tuple[str, ...],
        up_topic: bytes,
    ) -> None:
        self._owner, self._login, self._protocol = owner, login, protocol
        self._topics, self._up_topic = topics, up_topic
        self._framer = packets.PacketCutter(login.packet_bytes + _HEADER_BYTES)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._queue: deque[tuple[bytes, int]] = deque()
        self._in_flight: set[int] = set()  # packet ids
        self._window, self._next_id = _WINDOW_MESSAGES, 0
        self._received_s = self._sent_s = self._loop.time()
        self.up = False
        self.bytes_in = self.bytes_out = 0

    def publish(self, frame: bytes, qos: int) -> bool:
        """Send to the device's own topic once the window has room; return False if down."""
        if not self.up:
            return False
        self._queue.append((frame, qos))
        self._drain()
        return True

    def cut(self) -> None:
        """Break the connection without DISCONNECT, so that the broker publishes the will."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if self.up:
                self._transport.write(packets.GOODBYE)
            self._transport.close()

    def tick(self, now_s: float) -> None:
        """Ping after half the keep-alive without sending; cut after two without receiving."""
        if not self.up or self._transport is None:
            return
        keepalive_s = self._login.keepalive_s
        if now_s - self._received_s > 2 * keepalive_s:
            self._transport.abort()
        elif now_s - self._sent_s > keepalive_s / 2:
            self._write(packets.PINGREQ)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._write(packets.connect(self._login, self._protocol))

    def data_received(self, data: bytes) -> None:
        self.bytes_in += len(data)
        self._received_s = self._loop.time()
        try:
            for first, body in self._framer.feed(data):
                self._packet(first, body)
        except (ProtocolError, IndexError) as error:
            self._end(f"malformed packet ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("connection lost")

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
                self._drain()
            case packets.CONNACK:
                code, in_flight, *_ = packets.read_connack(body, self._protocol)
                if code:
                    self._end(refusal(code).what)
                    return
                self._window = min(self._window, in_flight)
                self._write(packets.subscribe(self._packet_id(), self._topics, self._protocol, 1))
            case packets.SUBACK:
                if any(code >= 0x80 for code in body[-len(self._topics) :]):
                    self._end("subscription refused")
                    return
                self.up = True
                self._owner.on_up()
            case packets.DISCONNECT:
                self._end(f"disconnected by the broker, reason {body[0] if body else 0}")

    def _drain(self) -> None:
        while self._queue and len(self._in_flight) < self._window:
            frame, qos = self._queue.popleft()
            packet_id = self._packet_id() if qos else 0
            if qos:
                self._in_flight.add(packet_id)
            head = packets.publish_head(self._up_topic, len(frame), packet_id, self._protocol)
            self._write(head, frame)

    def _packet_id(self) -> int:
        while True:
            self._next_id = self._next_id % 65535 + 1
            if self._next_id not in self._in_flight:
                return self._next_id

    def _write(self, *pieces: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._sent_s = self._loop.time()
        self.bytes_out += sum(map(len, pieces))
        self._transport.writelines(pieces)

    def _end(self, reason: str) -> None:
        transport, self._transport, self.up = self._transport, None, False
        self._queue.clear()
        if transport is not None:
            transport.abort()
            self._owner.on_down(reason)


_AT_ONCE = 32  # brokers queue about 100 connections; above that a dial waits for a second
_TIMEOUT_S = 30.0
_STEP_S = 0.01


class Dialler:
    """Dials first connections at `rate_per_s` (None: unlimited), reconnections at once."""

    def __init__(
        self, address: BrokerAddress, context: ssl.SSLContext | None, rate_per_s: float | None
    ) -> None:
        self._address, self._context, self._rate_per_s = address, context, rate_per_s
        self._room, self._host = asyncio.Semaphore(_AT_ONCE), address.host
        self._open: set[asyncio.Task[None]] = set()

    async def resolve(self) -> None:
        """Resolve the name once for all devices; raises BrokerError."""
        loop, address = asyncio.get_running_loop(), self._address
        try:
            found = await loop.getaddrinfo(address.host, address.port, type=1)
        except OSError as error:
            raise dial_fault(error, address) from None
        self._host = str(found[0][4][0])

    async def connect_all(self, devices: Sequence[_ClientOwner]) -> None:
        loop, rate = asyncio.get_running_loop(), self._rate_per_s
        began_s = loop.time()
        for number, device in enumerate(devices):
            while rate is not None and number > (loop.time() - began_s) * rate:
                await asyncio.sleep(_STEP_S)
            device.connect()
        await asyncio.sleep(_STEP_S)

    def dial(self, device: _ClientOwner) -> None:
        task = asyncio.create_task(self._connect(device))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def stop(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connect(self, device: _ClientOwner) -> None:
        loop, address, context = asyncio.get_running_loop(), self._address, self._context
        place = (self._host, address.port)
        name = address.host if context else None
        async with self._room:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await loop.create_connection(
                        device.client, *place, ssl=context, server_hostname=name
                    )
            except (OSError, TimeoutError) as error:
                device.on_down(dial_fault(error, address).what)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    await device.answered.wait()
