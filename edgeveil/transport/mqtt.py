"""The MQTT client, by paho. A `MqttConnection` is one connection; none is reused.

paho's own thread uses select(), which ends at 1024 descriptors; here the asyncio loop watches the
socket, and only dialling (`dialling.py`) runs in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edgeveil.config.addresses import BrokerAddress
from edgeveil.errors import BrokerError, ProtocolError
from edgeveil.transport import dialling
from edgeveil.transport.dialling import WebSocketStream, client_context, dial_in_thread, open_stream
from edgeveil.transport.link import (
    LinkDown,
    LinkSettings,
    MessageFilter,
    SendWindow,
    overhead_bytes,
)
from edgeveil.transport.mqtt_packets import (
    CONNACK,
    PUBACK,
    PUBLISH,
    PacketCutter,
    encoded_topic,
    packet,
    publish_head,
    read_puback,
    read_publish,
)

_LOG = logging.getLogger("edgeveil.link")
_MISC_S = 5.0
_READ_BYTES, _READ_AT_MOST_BYTES = 1 << 14, 1 << 18
_QOS_2 = 0x04  # of a message's first byte
_PIECES_PER_WAKE = 2  # so that one busy link does not starve the others
_PACKETS_PER_WAKE = 32  # likewise
_VERSION_REFUSED = b"\x01"  # the return code of a CONNACK of MQTT 3.1.1, its last byte
_FAILURE = 0x80  # reason codes from here on
_SUBACK_S = 10.0
_SUBSCRIBE_TRIES, _SUBSCRIBE_AGAIN_S = 4, 0.5
_PACE_S = 1.0
_UNLIMITED = 1 << 62
_RECEIVE_MESSAGES = 256  # how many the broker may send before we acknowledge (MQTT 5)

MQTT_5, MQTT_3_1_1 = 5, 4
Stream = socket.socket | WebSocketStream


class VersionNotSpoken(Exception):  # noqa: N818 - an outcome
    """The broker did not answer in this protocol version; `fault` says how."""

    def __init__(self, fault: BrokerError, *, certain: bool) -> None:
        self.fault, self.certain = fault, certain
        super().__init__(str(fault))


class Intake:
    """Whether a socket is read, and when messages are acknowledged.

    Held back, the socket is read only while an answer is awaited: whoever waits for it may be the
    one to make room. Messages that come then are acknowledged when the holding back ends, so the
    broker sends no more than its limit of unacknowledged ones.
    """

    def __init__(
        self,
        pause: Callable[[], None],
        resume: Callable[[], None],
        acknowledge: Callable[[int], None],
    ) -> None:
        self._pause, self._resume, self._acknowledge = pause, resume, acknowledge
        self._held_back, self._awaited = False, 0
        self._taken: deque[int] = deque()

    def hold_back(self, wanted: bool) -> None:
        """Begin or end the holding back."""
        self._held_back = wanted
        self._decide()
        self._tell()

    def await_answer(self, awaited: bool) -> None:
        self._awaited += 1 if awaited else -1
        self._decide()

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        self.await_answer(True)
        try:
            yield
        finally:
            self.await_answer(False)

    def took(self, number: int) -> None:
        self._taken.append(number)
        if not self._held_back:
            self._tell()

    def _decide(self) -> None:
        if self._held_back and not self._awaited:
            self._pause()
        else:
            self._resume()

    def _tell(self) -> None:
        while self._taken and not self._held_back:
            self._acknowledge(self._taken.popleft())


class MqttConnection:
    """One connection from dialling to its end. Everything but `_dial` runs on the event loop."""

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
        self._profile = settings.profile
        self._answer: asyncio.Future[tuple[int, Properties]] = loop.create_future()
        self._optional = settings.optional_topics
        self.refused_topics = 0  # of those that may be
        self._subacks: dict[int, asyncio.Future[list[ReasonCode]]] = {}
        self._unacknowledged: dict[int, int] = {}
        self._refused_reasons: set[int] = set()
        self._finishing = False
        self._dialled = False  # until then the callbacks run in the dialling thread
        self._client = self._make_client()
        misc_s = max(0.2, min(_MISC_S, settings.keepalive_s / 4))
        self.watch = SocketLoop(self._client, self.end, misc_s)
        self.intake = Intake(self.watch.pause, self.watch.resume, self._acknowledge)
        self._window = self._make_window(settings.window_messages)
        # Room comes back a second after the acknowledgement: in no second of the broker's own
        # clock do more messages or bytes reach it, however late either side was.
        self._pace = SendWindow(
            self._profile.publishes_per_s or _UNLIMITED,
            self._profile.bytes_per_s or _UNLIMITED,
            self.intake.await_answer,
        )

    async def open(self, dial_s: float, answer_s: float) -> None:
        """Dial and log in. Raises BrokerError, or NotSpoken when another version may do better."""
        self._client.connect_timeout = dial_s
        await dial_in_thread(self._dial, self._abandon, self._address, dial_s)
        self._attach()
        try:
            with self.intake.awaiting():
                code, properties = await asyncio.wait_for(asyncio.shield(self._answer), answer_s)
        except TimeoutError:
            raise VersionNotSpoken(
                dialling.fault("silence", self._address, answer_s), certain=False
            ) from None
        except LinkDown:
            fault = dialling.hung_up(self._address, self._settings.cert_file)
            raise VersionNotSpoken(fault, certain=False) from None
        if code == dialling.UNSUPPORTED_PROTOCOL:
            raise VersionNotSpoken(dialling.refusal(code, self._address), certain=True)
        if code:
            raise dialling.refusal(code, self._address)
        self._keep_to(properties)

    @property
    def unacknowledged(self) -> int:
        return self._window.messages

    async def subscribe(self, topics: Sequence[str], answer_s: float = _SUBACK_S) -> None:
        """Subscribe with QoS 1; a refused topic is tried again. Raises BrokerError, LinkDown."""
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
        """Those that are refused, without the ones that may be."""
        result, mid = self._client.subscribe([(topic, 1) for topic in topics])
        if result != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise self._down()
        answer: asyncio.Future[list[ReasonCode]] = self._loop.create_future()
        self._subacks[mid] = answer
        try:
            with self.intake.awaiting():
                codes = await asyncio.wait_for(answer, answer_s)
        except TimeoutError:
            raise dialling.fault("no_suback", self._address, answer_s) from None
        finally:
            self._subacks.pop(mid, None)
        refused = [topic for topic, code in zip(topics, codes, strict=False) if code.is_failure]
        wanted = [topic for topic in refused if topic not in self._optional]
        self.refused_topics += len(refused) - len(wanted)
        return wanted

    async def publish(self, topic: str, payload: bytes) -> None:
        """Hand over one message. Raises LinkDown, ProtocolError("oversized_packet")."""
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
        self._unacknowledged[self._client.send(topic, payload)] = size

    async def idle(self) -> None:
        """Wait until nothing is unacknowledged, or the link is lost."""
        with self.intake.awaiting():
            await self._window.idle()

    def finish(self) -> None:
        """Say goodbye (no last will) and close."""
        self._finishing = True
        with suppress(Exception):
            self._client.disconnect()
            self._client.loop_write()
        self.end("closed")

    def end(self, reason: str) -> None:
        """Close without a goodbye; every wait on this session ends with LinkDown."""
        if self.lost.done():
            return
        self.lost.set_result(reason)
        if (sock := self.watch.detach()) is not None:
            sock.close()
        down = self._down()
        self._window.fail(down)
        self._pace.fail(down)
        if not self._answer.done():
            self._answer.set_exception(down)
            self._answer.exception()  # seen: nobody may be waiting any more
        for answer in self._subacks.values():
            if not answer.done():
                answer.set_exception(down)

    def _down(self) -> LinkDown:
        reason = self.lost.result() if self.lost.done() else "connection lost"
        fix = "what was under way is sent again after the reconnection"
        return LinkDown(f"the link is down: {reason}", where=str(self._address), fix=fix)

    def _make_client(self) -> MessageClient:
        settings = self._settings
        clean = None if self.protocol == MQTT_5 else True
        context = None
        if self._address.tls:
            context = client_context(settings.ca_file, settings.cert_file, settings.key_file)
        client = MessageClient(
            lambda timeout_s: open_stream(
                self._address, settings.http_proxy, context, settings.packet_bytes, timeout_s
            ),
            CallbackAPIVersion.VERSION2,
            client_id=settings.client_id + settings.client_suffix,
            clean_session=clean,
            manual_ack=True,  # by the intake
            protocol=MQTTProtocolVersion(self.protocol),
            reconnect_on_failure=False,
        )
        client.on_plain_message = self._on_message
        client.on_acknowledged = self._on_acknowledged
        client.on_version_refused = self._on_version_refused
        if settings.username is not None:
            client.username_pw_set(settings.username, settings.password)
        if settings.will is not None:
            client.will_set(*settings.will, qos=1)
        client.max_inflight_messages_set(settings.window_messages)
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = lambda _c, _d, sock: self.watch.want_write(sock, True)
        client.on_socket_unregister_write = lambda _c, _d, sock: self.watch.want_write(sock, False)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        return client

    def _dial(self) -> None:
        options: dict[str, Any] = {}
        if self.protocol == MQTT_5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.MaximumPacketSize = self._settings.packet_bytes
            in_flight = self._profile.in_flight_messages or _RECEIVE_MESSAGES
            properties.ReceiveMaximum = min(_RECEIVE_MESSAGES, in_flight)
            options = {"clean_start": True, "properties": properties}
        self._client.connect(
            self._address.host, self._address.port, self._settings.keepalive_s, **options
        )

    def _abandon(self) -> None:
        """Close what a dialling thread opened after nobody waited for it any more."""
        if (opened := self._client.socket()) is not None:
            opened.close()

    def _attach(self) -> None:
        self._dialled = True
        sock = self._client.socket()
        if isinstance(sock, (socket.socket, WebSocketStream)):
            self.watch.attach(sock, want_write=self._client.want_write())
        else:
            self.end("closed while connecting")

    def _keep_to(self, properties: Properties) -> None:
        announced = getattr(properties, "MaximumPacketSize", self.packet_bytes)
        self.packet_bytes = min(self.packet_bytes, announced)
        in_flight = getattr(properties, "ReceiveMaximum", self._settings.window_messages)
        if in_flight < self._settings.window_messages:
            self._window = self._make_window(in_flight)

    def _make_window(self, messages: int) -> SendWindow:
        messages = min(messages, self._profile.in_flight_messages or messages)
        own_bytes = self._settings.window_bytes
        size_bytes = min(own_bytes, self._profile.in_flight_bytes or own_bytes)
        return SendWindow(messages, size_bytes, self.intake.await_answer)

    def _release(self, size: int) -> None:
        self._window.release(size)
        if self._profile.publishes_per_s or self._profile.bytes_per_s:
            self._loop.call_later(_PACE_S, self._pace.release, size)
        else:
            self._pace.release(size)

    def _acknowledge(self, mid: int) -> None:
        if not self.lost.done():
            self._client.ack(mid, 1)

    # paho's callbacks: they note and return; the socket ones may run in the dialling thread.

    def _on_socket_close(self, *_: object) -> None:
        self.watch.detach()

    def _on_connect(
        self, _client: paho.Client, _data: object, _flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if not self._answer.done():
            self._answer.set_result((code.value, properties))

    def _on_version_refused(self) -> None:
        if not self._answer.done():
            said_nothing_else = Properties(PacketTypes.CONNACK)  # type: ignore[no-untyped-call]
            self._answer.set_result((dialling.UNSUPPORTED_PROTOCOL, said_nothing_else))

    def _on_disconnect(
        self, _client: paho.Client, _data: object, flags: Any, code: ReasonCode, _properties: Any
    ) -> None:
        if self._dialled and not self._finishing:
            from_broker = flags.is_disconnect_packet_from_server
            self.end(f"broker says: {code}" if from_broker else "connection lost")

    def _on_message(self, topic: bytes, payload: bytes, number: int) -> None:
        with suppress(UnicodeDecodeError):
            where = topic.decode()
            if self._takes(where, payload):
                self._on_packet(where, payload)
        if number:
            self.intake.took(number)

    def _on_acknowledged(self, number: int, reason: int) -> None:
        if (size := self._unacknowledged.pop(number, None)) is not None:
            self._release(size)
        if reason >= _FAILURE and reason not in self._refused_reasons:
            self._refused_reasons.add(reason)
            code = ReasonCode(PacketTypes.PUBACK, identifier=reason)
            _LOG.warning("broker_refuses", extra={"broker": str(self._address), "code": str(code)})

    def _on_subscribe(
        self, _client: paho.Client, _data: object, mid: int, codes: Any, _properties: Any
    ) -> None:
        answer = self._subacks.get(mid)
        if answer is not None and not answer.done():
            answer.set_result(list(codes))


class MessageClient(paho.Client):
    """paho's client, past which messages and their acknowledgements go.

    paho reads the socket three times for each packet and makes a dozen objects of it, ten times
    the cost of a message. Here the socket is read in large pieces, and messages of QoS 0 and 1 and
    their acknowledgements bypass paho, which gets all other packets. `dial(timeout_s)` connects:
    paho's own way over WebSockets masks byte by byte in Python.
    """

    on_plain_message: Callable[[bytes, bytes, int], None]  # topic, payload, number if QoS 1
    on_acknowledged: Callable[[int, int], None]  # number, reason code
    on_version_refused: Callable[[], None]  # by a CONNACK of MQTT 3.1.1
    pieces = packets = 0  # read and handled so far

    def __init__(self, dial: Callable[[float], Stream], *options: Any, **named: Any) -> None:
        super().__init__(*options, **named)
        self._dial = dial
        self._cutter = PacketCutter()
        self._left_to_paho = b""

    def _create_socket(self) -> Any:
        return self._dial(self._connect_timeout)

    @property
    def read_ahead(self) -> bool:
        """Whether packets wait here that the socket will not announce again."""
        return not self._cutter.missing_bytes

    def send(self, topic: str, payload: bytes) -> int:
        """Queue a message of QoS 1; its number."""
        number = self._mid_generate()
        head = publish_head(encoded_topic(topic), len(payload), number, int(self._protocol))
        self._packet_queue(head[0], head + payload, number, 1)
        return number

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Handle the next packet. Raises what a malformed one provokes."""
        if (found := self._cutter.next_packet()) is None:
            if fault := self._read():
                return self._loop_rc_handle(fault)
            if (found := self._cutter.next_packet()) is None:
                return MQTTErrorCode.MQTT_ERR_SUCCESS
        first, body = found
        self.packets += 1
        if first >> 4 == PUBLISH and not first & _QOS_2:
            number, begin = read_publish(first, body, int(self._protocol))
            self.on_plain_message(
                body[2 : 2 + int.from_bytes(body[:2], "big")], body[begin:], number
            )
        elif first >> 4 == PUBACK:
            self.on_acknowledged(*read_puback(body))
        elif first >> 4 == CONNACK and body[1:] == _VERSION_REFUSED:
            self.on_version_refused()  # paho would end the connection without a word
        else:
            self._left_to_paho = packet(first, body)
            if (fault := self._packet_read()) > 0:
                return self._loop_rc_handle(fault)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _read(self) -> MQTTErrorCode:
        """Read a piece, and of a large packet that begins in it what else is here."""
        for _ in range(_PIECES_PER_WAKE):
            wanted = min(max(_READ_BYTES, self._cutter.missing_bytes), _READ_AT_MOST_BYTES)
            try:
                data = super()._sock_recv(wanted)
            except BlockingIOError:
                break
            except OSError:
                return MQTTErrorCode.MQTT_ERR_CONN_LOST
            if not data:
                return MQTTErrorCode.MQTT_ERR_CONN_LOST
            self.pieces += 1
            self._last_bytes_received = time.monotonic()
            self._cutter.add(data)
            if not self._cutter.missing_bytes:
                break
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _sock_recv(self, bufsize: int) -> bytes:
        """What paho reads: the packet that was left to it."""
        data, self._left_to_paho = self._left_to_paho[:bufsize], self._left_to_paho[bufsize:]
        if not data:
            raise BlockingIOError
        return data


class SocketLoop:
    """Drives paho from the asyncio loop; `on_end(reason)` is called when a step fails."""

    def __init__(self, client: MessageClient, on_end: Callable[[str], None], misc_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._client, self._on_end, self._misc_s = client, on_end, misc_s
        self._sock: Stream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = self._reads_on = False

    def attach(self, sock: Stream, *, want_write: bool) -> None:
        self._sock = sock
        if not self._paused:
            self._loop.add_reader(sock, self._readable)
        if want_write:
            self._loop.add_writer(sock, self._writable)
        self._timer = self._loop.call_later(self._misc_s, self._misc)

    def detach(self) -> Stream | None:
        """Watch no more; the socket, for its owner to close."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
        if self._timer is not None:
            self._timer.cancel()
        return sock

    def want_write(self, sock: object, wanted: bool) -> None:
        """Wake up, or no longer, when `sock` takes bytes; another socket than ours is ignored."""
        if self._sock is None or self._sock is not sock:
            return
        if wanted:
            self._loop.add_writer(self._sock, self._writable)
        else:
            self._loop.remove_writer(self._sock)

    def pause(self) -> None:
        """Stop reading: TCP then holds the other side back."""
        self._paused = True
        if self._sock is not None:
            self._loop.remove_reader(self._sock)

    def resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        if self._sock is not None:
            self._loop.add_reader(self._sock, self._readable)
            self._read_on()  # bytes may be here that no event announces

    def _readable(self) -> None:
        enough = self._client.pieces + _PIECES_PER_WAKE
        for _ in range(_PACKETS_PER_WAKE):
            if self._sock is None or self._paused:
                return
            if self._client.pieces >= enough:
                break
            seen = self._client.packets
            self._step(self._client.loop_read)
            if self._client.packets == seen:
                break
        streams = (ssl.SSLSocket, WebSocketStream)
        held_back = isinstance(self._sock, streams) and self._sock.pending()
        if self._sock is not None and (held_back or self._client.read_ahead):
            self._read_on()

    def _read_on(self) -> None:
        """Read in the loop's next turn; once, however often that is wanted until then."""
        if not self._reads_on:
            self._reads_on = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._reads_on = False
        self._readable()

    def _writable(self) -> None:
        self._step(self._client.loop_write)

    def _misc(self) -> None:
        self._step(self._client.loop_misc)
        if self._sock is not None:
            self._timer = self._loop.call_later(self._misc_s, self._misc)

    def _step(self, step: Callable[[], int]) -> None:
        """A malformed packet ends the connection, never the process."""
        if self._sock is None:
            return
        try:
            result = step()
        except Exception as error:  # whatever the other side's bytes provoke
            self._on_end(f"malformed packet ({type(error).__name__})")
            return
        if result:
            self._on_end("connection lost")
