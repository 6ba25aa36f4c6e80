"""MQTT client: a `MqttConnection` is one connection on the event loop, never reused."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from edgeveil.config.addresses import BrokerAddress
from edgeveil.errors import BrokerError, ProtocolError
from edgeveil.transport import dialling
from edgeveil.transport import mqtt_packets as packets
from edgeveil.transport.dialling import WebSocketFraming, client_context, connected_socket
from edgeveil.transport.link import (
    LinkDown,
    LinkSettings,
    MessageFilter,
    SendWindow,
    overhead_bytes,
)

_LOG = logging.getLogger("edgeveil.link")
_TICK_S = 5.0  # longest time between keep-alive checks
_PACKETS_PER_TURN = 32  # of the loop, so that one busy link does not starve the others
_SUBACK_S = 10.0
_SUBSCRIBE_TRIES, _SUBSCRIBE_AGAIN_S = 4, 0.5
_PACE_S = 1.0
_UNLIMITED = 1 << 62
_RECEIVE_MESSAGES = 256  # limit of messages that are not acknowledged yet (MQTT 5)
_ANSWERS_BYTES = 1 << 20  # buffer of acknowledgements for a broker that does not read them


class VersionNotSpoken(Exception):  # noqa: N818 - an outcome
    """The broker did not answer in this protocol version; `fault` has the reason."""

    def __init__(self, fault: BrokerError, *, certain: bool) -> None:
        self.fault, self.certain = fault, certain
        super().__init__(str(fault))


class MqttConnection(asyncio.Protocol):
    def __init__(
        self,
        settings: LinkSettings,
        address: BrokerAddress,
        protocol: int,
        on_packet: Callable[[str, bytes], None],
        takes: MessageFilter,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.protocol = protocol
        self.lost: asyncio.Future[str] = loop.create_future()
        self._loop, self._settings, self._address = loop, settings, address
        self._on_packet, self._takes = on_packet, takes
        self.packet_bytes = settings.packet_bytes  # the largest packet that both sides take
        self._keepalive_s = settings.keepalive_s
        self._profile = settings.profile
        self._transport: asyncio.Transport | None = None
        self._framing: WebSocketFraming | None = None  # of an address with a path
        self._cutter = packets.PacketCutter()
        self._held_back, self._awaited = False, 0  # reading; number of awaited answers
        self._paused = self._scheduled = False  # derived; packets wait for the loop's next turn
        self._taken: deque[int] = deque()  # messages to acknowledge later
        self._received_s = self._sent_s = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._framed: asyncio.Future[None] = loop.create_future()
        self._answer: asyncio.Future[tuple[int, int, int, int]] = loop.create_future()
        self.refused_topics = 0  # optional ones
        self._subacks: dict[int, asyncio.Future[bytes]] = {}
        self._unacknowledged: dict[int, int] = {}
        self._number = 0  # last packet id
        self._refused_reasons: set[int] = set()
        self._window = self._make_window(settings.window_messages)
        # Room is released a second after the acknowledgement: in no second of the broker's
        # clock do more messages or bytes arrive there, whatever the delays.
        self._pace = SendWindow(
            self._profile.publishes_per_s or _UNLIMITED,
            self._profile.bytes_per_s or _UNLIMITED,
            self._await_answer,
        )

    async def open(self, dial_s: float, answer_s: float) -> None:
        """Dial and log in. Raises BrokerError, VersionNotSpoken."""
        settings, address, context = self._settings, self._address, None
        if address.tls:
            context = client_context(settings.ca_file, settings.cert_file, settings.key_file)
        try:
            async with asyncio.timeout(dial_s):
                await self._dial(dial_s, context)
        except (OSError, ValueError) as error:
            raise dialling.dial_fault(error, address) from None
        in_flight = self._profile.in_flight_messages or _RECEIVE_MESSAGES
        login = packets.Login(
            settings.client_id + settings.client_suffix,
            settings.username,
            None if settings.username is None else settings.password,
            settings.will,
            settings.keepalive_s,
            settings.packet_bytes,
            min(_RECEIVE_MESSAGES, in_flight),
        )
        try:
            with self._awaiting():
                self._send(packets.connect(login, self.protocol))
                self._tick()
                found = await asyncio.wait_for(self._answer, answer_s)
        except TimeoutError:
            raise VersionNotSpoken(
                dialling.fault("silence", address, answer_s), certain=False
            ) from None
        except LinkDown:
            fault = dialling.hung_up(address, settings.cert_file)
            raise VersionNotSpoken(fault, certain=False) from None
        code, in_flight, packet_bytes, keepalive_s = found
        if code in dialling.UNSUPPORTED_PROTOCOL:
            raise VersionNotSpoken(dialling.refusal(code, address), certain=True)
        if code:
            raise dialling.refusal(code, address)
        self.packet_bytes = min(self.packet_bytes, packet_bytes)
        if keepalive_s:
            self._keepalive_s = keepalive_s
            self._tick()
        if in_flight < settings.window_messages:
            self._window = self._make_window(in_flight)

    async def _dial(self, dial_s: float, context: ssl.SSLContext | None) -> None:
        settings, address = self._settings, self._address
        if address.path is not None:
            self._framing = WebSocketFraming(address.url, settings.packet_bytes)
        sock = await connected_socket(address, settings.http_proxy, dial_s)
        await self._loop.create_connection(
            lambda: self,
            sock=sock,
            ssl=context,
            server_hostname=address.host if context else None,
            ssl_handshake_timeout=2 * dial_s if context else None,
        )
        if self._framing is not None:
            self._send_bytes(self._framing.to_send())
            await self._framed

    @property
    def unacknowledged(self) -> int:
        return self._window.messages

    async def subscribe(self, topics: Sequence[str], answer_s: float = _SUBACK_S) -> None:
        """Subscribe with QoS 1, retrying refused topics. Raises BrokerError, LinkDown."""
        end_s = self._loop.time() + answer_s
        at_once = self._profile.topics_per_subscribe or len(topics)
        for begin in range(0, len(topics), at_once):
            refused: Sequence[str] = topics[begin : begin + at_once]
            for tries_left in reversed(range(_SUBSCRIBE_TRIES)):
                refused = await self._subscribe(refused, end_s - self._loop.time())
                if not refused:
                    break
                if not tries_left or self._loop.time() + _SUBSCRIBE_AGAIN_S >= end_s:
                    raise dialling.fault("subscription_refused", self._address, topic=refused[0])
                await asyncio.sleep(_SUBSCRIBE_AGAIN_S)

    async def _subscribe(self, topics: Sequence[str], answer_s: float) -> list[str]:
        if self.lost.done():
            raise self._down()
        number = self._next_number()
        answer = self._subacks[number] = self._loop.create_future()
        self._send(packets.subscribe(number, tuple(topics), self.protocol))
        try:
            with self._awaiting():
                codes = await asyncio.wait_for(answer, answer_s)
        except TimeoutError:
            raise dialling.fault("no_suback", self._address, answer_s) from None
        finally:
            self._subacks.pop(number, None)
        results = zip(topics, codes, strict=False)
        refused = [topic for topic, code in results if code >= packets.FAILURE]
        wanted = [topic for topic in refused if topic not in self._settings.optional_topics]
        self.refused_topics += len(refused) - len(wanted)
        return wanted

    async def publish(self, topic: str, payload: bytes) -> None:
        """Send one message. Raises LinkDown, ProtocolError("oversized_packet")."""
        size = len(payload) + overhead_bytes(topic)
        if size > self.packet_bytes:
            text = f"a packet of {size} bytes exceeds {self.packet_bytes}"
            raise ProtocolError("oversized_packet", text)
        if self.lost.done():
            raise self._down()
        await self._pace.acquire(size)
        try:
            await self._window.acquire(size)
        except BaseException:
            self._pace.release(size)
            raise
        number = self._next_number()
        self._unacknowledged[number] = size
        encoded = packets.encoded_topic(topic)
        self._send(packets.publish_head(encoded, len(payload), number, self.protocol), payload)

    async def idle(self) -> None:
        """Wait until all messages are acknowledged, or the link is lost."""
        with self._awaiting():
            await self._window.idle()

    def finish(self) -> None:
        """Disconnect cleanly (no last will) and close."""
        self._send(packets.GOODBYE)
        if self._framing is not None:
            self._send_bytes(self._framing.closing())
        self.end("closed")

    def end(self, reason: str) -> None:
        """Close without DISCONNECT; every wait on this session raises LinkDown."""
        if self.lost.done():
            return
        self.lost.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        down = self._down()
        self._window.fail(down)
        self._pace.fail(down)
        waited: list[asyncio.Future[Any]] = [self._answer, *self._subacks.values()]
        for answer in waited:
            if not answer.done():
                answer.set_exception(down)
                answer.exception()  # mark as retrieved: no task may be waiting
        self._refuse_framing(dialling.WebSocketRefused("hung up during the WebSocket handshake"))

    # --- the transport's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.lost.done():
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end_by_peer()

    def _end_by_peer(self) -> None:
        """Handle the remaining packets, which may hold the reason, then end."""
        try:
            while not self.lost.done() and (found := self._cutter.next_packet()) is not None:
                self._handle(*found)
        except Exception as error:  # as in `_handle_some`
            self.end(f"malformed packet ({type(error).__name__})")
        self.end("connection lost")

    def data_received(self, data: bytes) -> None:
        self._received_s = self._loop.time()
        if self._framing is not None:
            try:
                data = self._framing.received(data)
            except dialling.WebSocketRefused as refused:
                self._refuse_framing(refused)
                return
            self._send_bytes(self._framing.to_send())
            if self._framing.is_open and not self._framed.done():
                self._framed.set_result(None)
        self._cutter.add(data)
        if not self._scheduled:
            self._handle_some()
        if self._framed.done() and self._framing is not None and not self._framing.is_open:
            self._end_by_peer()

    def _refuse_framing(self, why: Exception) -> None:
        if not self._framed.done():
            self._framed.set_exception(why)
            self._framed.exception()

    # --- receiving ---

    def _handle_some(self) -> None:
        """Handle some packets, the rest in the loop's next turn; reading pauses meanwhile."""
        try:
            for _ in range(_PACKETS_PER_TURN):
                if self._paused or self.lost.done():
                    return
                if (found := self._cutter.next_packet()) is None:
                    return
                self._handle(*found)
        except Exception as error:  # any error caused by the peer's bytes
            self.end(f"malformed packet ({type(error).__name__})")
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._update_reading()
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._scheduled = False
        self._handle_some()
        self._update_reading()

    def _handle(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == packets.PUBLISH:
            self._on_publish(first, body)
        elif kind == packets.PUBACK:
            self._on_puback(*packets.read_puback(body))
        elif kind == packets.CONNACK:
            if not self._answer.done():
                self._answer.set_result(packets.read_connack(body, self.protocol))
        elif kind == packets.SUBACK:
            number, codes = packets.read_suback(body, self.protocol)
            if number in self._subacks and not self._subacks[number].done():
                self._subacks[number].set_result(codes)
        elif kind == packets.DISCONNECT:
            code = body[0] if body else 0
            self.end(f"reason of the broker: {packets.REASONS.get(code, code)}")
        elif kind != packets.PINGRESP:
            raise ProtocolError("malformed")

    def _on_publish(self, first: int, body: bytes) -> None:
        number, begin = packets.read_publish(first, body, self.protocol)
        with suppress(UnicodeDecodeError):
            topic = body[2 : 2 + int.from_bytes(body[:2], "big")].decode()
            payload = body[begin:]
            if self._takes(topic, payload):
                self._on_packet(topic, payload)
        if number:
            self._taken.append(number)
            self._acknowledge()

    def _on_puback(self, number: int, reason: int) -> None:
        if (size := self._unacknowledged.pop(number, None)) is not None:
            self._window.release(size)
            if self._profile.publishes_per_s or self._profile.bytes_per_s:
                self._loop.call_later(_PACE_S, self._pace.release, size)
            else:
                self._pace.release(size)
        if reason >= packets.FAILURE and reason not in self._refused_reasons:
            self._refused_reasons.add(reason)
            code = packets.REASONS.get(reason, str(reason))
            _LOG.warning("broker_refuses", extra={"broker": str(self._address), "code": code})

    # --- sending ---

    def _send(self, *pieces: bytes) -> None:
        if self._transport is None or self.lost.done():
            return
        self._sent_s = self._loop.time()
        if self._framing is None:
            self._send_bytes(*pieces)
        elif self._framing.is_open:
            self._send_bytes(self._framing.framed(b"".join(pieces)))

    def _send_bytes(self, *pieces: bytes) -> None:
        if self._transport is not None and any(pieces):
            self._transport.writelines([piece for piece in pieces if piece])
            settings = self._settings
            most = max(settings.window_bytes, settings.packet_bytes) + _ANSWERS_BYTES
            if self._transport.get_write_buffer_size() > most:
                self.end("the broker requests answers and does not read them")

    def _acknowledge(self) -> None:
        while self._taken and not self._held_back:
            self._send(packets.puback(self._taken.popleft()))

    def _next_number(self) -> int:
        while True:
            self._number = self._number % 65535 + 1
            if self._number not in self._unacknowledged:
                return self._number

    def _tick(self) -> None:
        """Ping after one keep-alive without sending; end after two without receiving."""
        if self._timer is not None:
            self._timer.cancel()
        now_s, keepalive_s = self._loop.time(), self._keepalive_s
        if self._transport is not None and not self._transport.is_reading():
            self._received_s = now_s
        if now_s - self._received_s >= 2 * keepalive_s:
            self.end("connection lost")
            return
        if now_s - self._sent_s >= keepalive_s:
            self._send(packets.PINGREQ)
        self._timer = self._loop.call_later(min(_TICK_S, keepalive_s / 4), self._tick)

    # --- bounds ---

    def hold_back(self, wanted: bool) -> None:
        """Pause reading, except while an answer is awaited, or resume.

        An answer may be needed to make room. Messages read meanwhile are acknowledged on
        resumption, so the broker sends no more than its limit of unacknowledged ones.
        """
        self._held_back = wanted
        self._decide()
        self._acknowledge()

    @contextmanager
    def _awaiting(self) -> Iterator[None]:
        self._await_answer(True)
        try:
            yield
        finally:
            self._await_answer(False)

    def _await_answer(self, awaited: bool) -> None:
        self._awaited += 1 if awaited else -1
        self._decide()

    def _decide(self) -> None:
        before, self._paused = self._paused, self._held_back and not self._awaited
        if self._paused:
            self._update_reading()
        elif before:
            self._schedule()  # packets may be buffered without a further event

    def _update_reading(self) -> None:
        if self._transport is not None and not self.lost.done():
            wait = self._paused or self._scheduled
            (self._transport.pause_reading if wait else self._transport.resume_reading)()

    def _make_window(self, messages: int) -> SendWindow:
        messages = min(messages, self._profile.in_flight_messages or messages)
        own_bytes = self._settings.window_bytes
        size_bytes = min(own_bytes, self._profile.in_flight_bytes or own_bytes)
        return SendWindow(messages, size_bytes, self._await_answer)

    def _down(self) -> LinkDown:
        reason = self.lost.result() if self.lost.done() else "connection lost"
        fix = "unacknowledged messages are sent again after the reconnection"
        return LinkDown(f"the link is down: {reason}", where=str(self._address), fix=fix)
