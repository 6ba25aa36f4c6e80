"""`MqttLink`: reconnecting broker link with subscriptions, limits and backoff; `RuntimeLink`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from edgeveil.config.addresses import BrokerAddress, HttpProxy
from edgeveil.config.broker_profiles import PROFILES
from edgeveil.config.links import BrokerLink
from edgeveil.errors import BrokerError, SystemFault, UsageError
from edgeveil.protocol import effects as fx
from edgeveil.storage import read_private
from edgeveil.transport import dialling
from edgeveil.transport.link import (
    ATTEMPT_S,
    LinkDown,
    LinkSettings,
    MessageFilter,
    MessageHandler,
    StateHandler,
    Will,
)
from edgeveil.transport.mqtt import MqttConnection, VersionNotSpoken
from edgeveil.transport.mqtt_packets import MQTT_3_1_1, MQTT_5
from edgeveil.transport.runtime import Runtime

_LOG = logging.getLogger("edgeveil.link")
_PATIENT_ATTEMPT_S = 40.0  # after all addresses failed
_DIAL_S = 6.0
_REPORT_S = 0.2  # a step ends so long before its attempt, to report which step it was
_STEADY_S = 10.0  # a session of this length resets the count of failures
_GOODBYE_S = 1.0
_YIELD_EVERY = 32
_LISTEN_S = 1.0
_MESSAGE_BYTES = 256  # approximate overhead of a queued message
_OVERFULL = 4
LONGEST_SILENCE_S = 3600.0  # upper limit of the waits
_SOONER = 10  # divisor of the wait after a repeated frame
_SENT_FRAMES = 256  # remembered to detect repetitions

Uniform = Callable[[float, float], float]


class _Inbox:
    """Received messages in order; accepts beyond its limit until `overfull` ends the session."""

    def __init__(
        self, size_bytes: int, pause: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        self._messages: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self._limit, self._queued_bytes, self.paused = size_bytes, 0, False
        self._pause, self._resume = pause, resume

    def put(self, topic: str, payload: bytes) -> None:
        self._messages.put_nowait((topic, payload))
        self._queued_bytes += len(payload) + _MESSAGE_BYTES
        if not self.paused and self._queued_bytes >= self._limit:
            self.paused = True
            self._pause()

    async def get(self) -> tuple[str, bytes]:
        topic, payload = await self._messages.get()
        self._queued_bytes -= len(payload) + _MESSAGE_BYTES
        if self.paused and self._queued_bytes <= self._limit // 2:
            self.paused = False
            self._resume()
        return topic, payload

    @property
    def overfull(self) -> bool:
        return self._queued_bytes > _OVERFULL * self._limit


class MqttLink:
    """Reconnecting link to one broker, MQTT 5 or 3.1.1; bound to one event loop.

    Messages that `takes(topic, payload)` rejects use no room in the inbox. `on_message(topic,
    payload)`, a function or coroutine function, gets one message at a time, in order; reading
    pauses while the inbox is full. Delivery is at least once. `on_state(connected, reason)` reports
    that the link is up, with every subscription, or down. Handlers must not block the event loop.
    `uniform(low, high)` draws the backoff after a failure.
    """

    def __init__(
        self,
        settings: LinkSettings,
        *,
        on_message: MessageHandler | None = None,
        on_state: StateHandler | None = None,
        uniform: Uniform | None = None,
    ) -> None:
        self.takes: MessageFilter = lambda topic, payload: True
        self.on_message: MessageHandler = on_message or (lambda topic, payload: None)
        self.on_state: StateHandler = on_state or (lambda connected, reason: None)
        self.connections = self.handler_errors = self.received_bytes = 0  # of payloads
        self.overflows = 0  # sessions ended by a full inbox
        self._settings, self._addresses = settings, settings.addresses
        self._took_us: set[BrokerAddress] = set()
        self._reported_refused = False  # that the broker does not allow all topics
        self._at = 0  # index of the address in use, or to be tried next
        self._uniform = uniform or secrets.SystemRandom().uniform
        self._protocols = (MQTT_5, MQTT_3_1_1) if settings.protocol == MQTT_5 else (MQTT_3_1_1,)
        self._topics: dict[str, None] = {}  # in the order of subscription
        limit = self._limit_reading
        self._inbox = _Inbox(settings.inbox_bytes, lambda: limit(True), lambda: limit(False))
        self._session: MqttConnection | None = None
        self._newest: MqttConnection | None = None  # the same, or the one that is logging in
        self._reported: tuple[bool, str] | None = None
        self._dispatcher: asyncio.Task[None] | None = None
        self._connecting, self._closing = asyncio.Lock(), asyncio.Event()

    @property
    def _address(self) -> BrokerAddress:
        return self._addresses[self._at]

    @property
    def connected(self) -> bool:
        return self._session is not None and not self._session.lost.done()

    @property
    def unacknowledged(self) -> int:
        return self._session.unacknowledged if self._session is not None and self.connected else 0

    @property
    def protocol(self) -> int | None:
        """Protocol version in use: 5, 4 (MQTT 3.1.1), or None when disconnected."""
        return self._session.protocol if self._session is not None and self.connected else None

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe from the next connection on. Raises BrokerError above the profile's limit."""
        self._topics.update(dict.fromkeys(topics))
        most = self._settings.profile.subscriptions
        if most is not None and len(self._topics) > most:
            what = f"the broker's profile allows {most} subscriptions on one connection"
            fix = "subscribe to fewer topics, or use another broker"
            raise BrokerError(what, where=str(self._address), fix=fix)

    async def publish(self, topic: str, payload: bytes) -> None:
        """Send one message; waits for room in the window. Raises LinkDown, ProtocolError."""
        if self._session is None:
            raise LinkDown("the link is down: not connected", where=str(self._address))
        await self._session.publish(topic, payload)

    async def connect_or_raise(self, timeout_s: float = ATTEMPT_S) -> None:
        """Try each address once, for `timeout_s` each. Raises one BrokerError for all."""
        async with self._connecting:
            if self.connected:
                return
            faults: list[BrokerError] = []
            while len(faults) < len(self._addresses):
                if faults:  # spread a fleet whose broker failed over the next one
                    await self._pause_up_to(self._settings.backoff_base_s)
                try:
                    async with asyncio.timeout(timeout_s):
                        await self._connect(timeout_s)
                except (BrokerError, TimeoutError) as error:
                    silent = dialling.fault("silence", self._address, timeout_s)
                    faults.append(error if isinstance(error, BrokerError) else silent)
                    self._at = (self._at + 1) % len(self._addresses)
                else:
                    return
            raise dialling.none_works(faults)

    async def run_forever(self) -> None:
        """Keep the link up until `close`, with random, growing backoff."""
        failures, loop = 0, asyncio.get_running_loop()
        while not self._closing.is_set():
            failures += 1
            try:
                await self.connect_or_raise(ATTEMPT_S if failures == 1 else _PATIENT_ATTEMPT_S)
            except BrokerError as error:
                self._report_state(False, str(error))
            else:
                if self._session is not None:
                    since_s = loop.time()
                    await asyncio.shield(self._session.lost)
                    failures = 0 if loop.time() - since_s >= _STEADY_S else failures
            base_s, cap_s = self._settings.backoff_base_s, self._settings.backoff_cap_s
            await self._pause_up_to(min(cap_s, base_s * 2 ** min(failures, 30)))

    def renew(self, reason: str) -> None:
        """End the connection; `run_forever` connects to the next address."""
        if self._session is not None and self.connected:
            self._session.end(reason)
            self._at = (self._at + 1) % len(self._addresses)

    async def close(self) -> None:
        """End the link for good; unacknowledged messages get one more second."""
        self._closing.set()
        session = self._session
        if session is not None and not session.lost.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(session.idle(), _GOODBYE_S)
            session.finish()
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None and dispatcher is not asyncio.current_task():
            dispatcher.cancel()
            with suppress(asyncio.CancelledError):
                await dispatcher

    async def _pause_up_to(self, longest_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), self._uniform(0.0, longest_s))

    async def _connect(self, timeout_s: float) -> None:
        if self._closing.is_set():
            raise LinkDown("the link is closed", where=str(self._address))
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s - _REPORT_S
        session = await self._log_in(timeout_s)
        try:
            if self._topics:
                await session.subscribe(list(self._topics), end_s - loop.time())
        except BaseException as error:
            session.end("subscription failed")
            self._change_client_id()
            if isinstance(error, LinkDown):
                raise dialling.fault("hung_up_on_topics", self._address) from None
            raise
        if session.refused_topics and not self._reported_refused:
            self._reported_refused = True
            _LOG.warning("subscriptions_refused", extra={"topics": session.refused_topics})
        if self._closing.is_set():
            session.finish()
            raise LinkDown("the link is closed", where=str(self._address))
        self._session = session
        self._took_us.add(self._address)
        self.connections += 1
        if self._dispatcher is None:
            self._dispatcher = asyncio.create_task(self._dispatch())
        spoken = "MQTT 5" if session.protocol == MQTT_5 else "MQTT 3.1.1"
        if session.protocol != MQTT_5 == self._settings.protocol:
            spoken += ": the broker does not speak MQTT 5"
        address = self._address
        self._report_state(True, f"connected to {address} ({spoken})")
        session.lost.add_done_callback(lambda lost: self._on_lost(session, address, lost))

    async def _log_in(self, timeout_s: float) -> MqttConnection:
        """Open a session in the newest protocol version that the broker supports."""
        loop, fault = asyncio.get_running_loop(), None
        refused = self._protocols[0] != self._settings.protocol  # known from an earlier attempt
        deadline_s = loop.time() + timeout_s
        for protocol in self._protocols:
            self._newest = session = MqttConnection(
                self._settings, self._address, protocol, self._receive, self._takes
            )
            session.hold_back(self._inbox.paused)
            left_s = deadline_s - loop.time()
            last = protocol == self._protocols[-1]
            dial_s = min(_DIAL_S, left_s) if last else min(_DIAL_S, left_s / 2)
            try:
                # A broker may ignore an unknown version without an answer.
                await session.open(dial_s, dial_s if last else dial_s / 2)
            except VersionNotSpoken as outcome:
                session.end("not spoken")
                if last and not outcome.certain:
                    self._change_client_id()
                not_yet = refused and not outcome.certain
                fault = dialling.fault("not_ready", self._address) if not_yet else outcome.fault
                if self._address in self._took_us and self._settings.cert_file is None:
                    fault = dialling.fault("no_longer", self._address)
                refused = refused or outcome.certain
                if outcome.certain and not last and len(self._addresses) == 1:
                    self._protocols = (MQTT_3_1_1,)
                continue
            except BaseException:
                session.end("connection failed")
                raise
            return session
        raise cast(BrokerError, fault)

    def _change_client_id(self) -> None:
        """Draw another id: a cluster may refuse one with a queue or session on a lost node."""
        if self._settings.client_suffix:
            self._settings = replace(self._settings, client_suffix=_suffix())

    def _on_lost(
        self, session: MqttConnection, address: BrokerAddress, lost: asyncio.Future[str]
    ) -> None:
        if self._session is session:
            self._report_state(False, f"{address}: {lost.result()}")

    def _report_state(self, connected: bool, reason: str) -> None:
        if self._reported == (connected, reason):
            return  # report an absent broker once
        self._reported = (connected, reason)
        try:
            self.on_state(connected, reason)
        except Exception as error:  # a handler's fault must not end the link
            self._note_fault("state", error)

    def _takes(self, topic: str, payload: bytes) -> bool:
        self.received_bytes += len(payload)
        try:
            return self.takes(topic, payload)
        except Exception as error:  # a handler's fault must not end the link
            self._note_fault("filter", error)
            return False

    def _receive(self, topic: str, payload: bytes) -> None:
        self._inbox.put(topic, payload)
        if self._inbox.overfull and self._newest is not None and not self._newest.lost.done():
            self.overflows += 1
            self._newest.end("inbox overflow: messages arrive faster than they are handled")

    async def _dispatch(self) -> None:
        handled = 0
        while not self._closing.is_set():
            topic, payload = await self._inbox.get()
            try:
                outcome = self.on_message(topic, payload)
                if outcome is not None:
                    await outcome
            except Exception as error:  # a handler's fault must not end the link
                self._note_fault("message", error)
            handled += 1
            if handled % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _note_fault(self, kind: str, error: Exception) -> None:
        self.handler_errors += 1
        if self.handler_errors == 1:
            extra = {"broker": str(self._address), "kind": kind, "error": type(error).__name__}
            _LOG.error("handler_failed", extra=extra)

    def _limit_reading(self, wanted: bool) -> None:
        if self._newest is not None:
            self._newest.hold_back(wanted)


# --- from a site file's broker block to a link that feeds a machine -------------------------


def link_settings(
    broker: BrokerLink,
    client_id: str,
    packet_bytes: int,
    will: Will | None = None,
    backoff_cap_s: float = LinkSettings.backoff_cap_s,
) -> LinkSettings:
    """Return the settings of a site file's broker block. Raises UsageError."""
    profile, proxy = PROFILES[broker.profile], None
    if broker.http_proxy is not None:
        proxy = HttpProxy.parse(broker.http_proxy)
        if (password := read_password(broker.http_proxy_password_file)) is not None:
            proxy = replace(proxy, password=password)
    same = ("url", "username", "ca_file", "cert_file", "key_file", "protocol", "keepalive_s")
    return LinkSettings(
        client_id=client_id,
        client_suffix="" if profile.stable_client_id else _suffix(),
        password=read_password(broker.password_file),
        http_proxy=proxy,
        profile=profile,
        backoff_cap_s=backoff_cap_s,
        packet_bytes=packet_bytes,
        will=will,
        **{name: getattr(broker, name) for name in (*same, "silence_s")},
    )


def _suffix() -> str:
    return f"-{secrets.token_hex(4)}"


def read_password(path: Path | None) -> str | None:
    """Return the first line of a password file. Raises UsageError or SystemFault."""
    if path is None:
        return None
    where, fix = str(path), "write the password on its first line, in UTF-8"
    try:
        lines = read_private(path, "password file", UsageError).decode().splitlines()
    except OSError as error:
        what = f"the password file cannot be read ({error.strerror})"
        raise UsageError(what, where=where, fix=f"{fix}, readable by this user only") from None
    except UnicodeDecodeError:
        raise UsageError("the password file is not UTF-8 text", where=where, fix=fix) from None
    if not lines or not lines[0]:
        kind = UsageError if lines else SystemFault
        raise kind("the password file is empty", where=where, fix=fix)
    return lines[0]


class SilenceMonitor:
    """Detects a link that is up but delivers nothing; `now_s` may count from any origin.

    A cluster that lost nodes may answer pings with a dead subscription. After `silence_s` without a
    message, or a tenth of it after a repeated own frame, the machine asks the peer for a sign of
    life (`fx.PeerSilent`); without an answer within a tenth, the link reconnects at the next
    address. Waits double with each reconnection in vain. `uniform(low, high)` spreads a fleet's
    waits.
    """

    def __init__(self, silence_s: float, uniform: Callable[[float, float], float]) -> None:
        self._silence_s, self._uniform = silence_s, uniform
        self._since_s = 0.0  # time of the last message, request or connection
        self._sent: set[int] = set()  # hashes of own frames since then
        self._repeated_s: float | None = None
        self._asked, self._in_vain = False, 0
        self._wait_s = self._drawn()

    def connected(self, now_s: float) -> None:
        self._begin(now_s, asked=True)

    def received(self, now_s: float) -> None:
        self._begin(now_s, asked=False)
        if self._in_vain:
            self._in_vain = 0
            self._wait_s = self._drawn()

    def sent(self, now_s: float, frame: bytes) -> None:
        digest = hash(frame)
        if digest in self._sent and self._repeated_s is None:
            self._repeated_s = now_s
        if len(self._sent) < _SENT_FRAMES:
            self._sent.add(digest)

    def due(self, now_s: float) -> Literal["ask", "renew"] | None:
        soon_s = self._wait_s / _SOONER
        if not self._asked:
            at_s = self._since_s + self._wait_s
            if self._repeated_s is not None:
                at_s = min(at_s, self._repeated_s + soon_s)
            if now_s < at_s:
                return None
            self._begin(now_s, asked=True)
            return "ask"
        if now_s < self._since_s + soon_s:
            return None
        sent = bool(self._sent)
        self._begin(now_s, asked=False)
        if not sent:  # without an own message no answer is due
            return None
        self._in_vain += 1
        self._wait_s = self._drawn()
        return "renew"

    def _begin(self, now_s: float, *, asked: bool) -> None:
        self._since_s, self._asked, self._repeated_s = now_s, asked, None
        self._sent.clear()

    def _drawn(self) -> float:
        wait_s = self._silence_s * 2.0 ** min(self._in_vain, 30) * self._uniform(1.0, 2.0)
        return min(wait_s, max(LONGEST_SILENCE_S, self._silence_s))


class RuntimeLink:
    """Connections of one runtime to one broker, with topics, peer, and bytes in each direction.

    With `connections` above 1, for a broker that limits the rate of one connection, the first one
    subscribes and the others publish, each topic always on the same one, to keep its order. The
    link is up while all are. Each has its own client id; only the first has a last will.
    """

    def __init__(
        self,
        settings: LinkSettings,
        topics: Sequence[str],
        peer: fx.Address,
        topic_of: Callable[[fx.Address], str],
        sender_of: Callable[[str], fx.Address | None],
        connections: int = 1,
    ) -> None:
        others = [
            replace(settings, client_id=f"{settings.client_id}-{number}", will=None)
            for number in range(1, connections)
        ]
        self.links = [MqttLink(one) for one in (settings, *others)]
        self.bytes: Counter[str] = Counter()
        self.connections, self._up = 0, False  # how often all were up together
        self._runtime: Runtime | None = None
        self._silence = SilenceMonitor(settings.silence_s, secrets.SystemRandom().uniform)
        self._topics, self._peer, self._topic_of = topics, peer, topic_of
        self._sender_of = lru_cache(maxsize=1024)(sender_of)

    @property
    def connected(self) -> bool:
        return all(link.connected for link in self.links)

    @property
    def unacknowledged(self) -> int:
        return sum(link.unacknowledged for link in self.links)

    async def attach(self, runtime: Runtime, on_state: StateHandler) -> None:
        self._runtime = runtime

        def takes(topic: str, payload: bytes) -> bool:
            self.bytes["in"] += len(payload)
            self._silence.received(time.monotonic())
            return runtime.takes(self._sender_of(topic), payload)

        async def on_message(topic: str, payload: bytes) -> None:
            if (sender := self._sender_of(topic)) is not None:
                await runtime.receive(sender, payload)
                self._silence.received(time.monotonic())  # reading may have paused meanwhile

        def state(connected: bool, reason: str) -> None:
            up = self.connected
            self.connections += up and not self._up
            if connected and not up:  # others are still down
                return
            self._up = up
            on_state(up, reason)
            if up:
                self._silence.connected(time.monotonic())
            runtime.post((fx.PeerConnected if up else fx.PeerLost)(self._peer))

        listening = self.links[0]
        listening.takes, listening.on_message = takes, on_message
        for link in self.links:
            link.on_state = state
        listening.subscribe(self._topics)

    async def publish(self, to: fx.Address, frame: bytes) -> None:
        """Send a frame to this address; requires only the topic's connection."""
        self.bytes["out"] += len(frame)
        topic = self._topic_of(to)
        await self.speaker(topic).publish(topic, frame)
        self._silence.sent(time.monotonic(), frame)

    def speaker(self, topic: str) -> MqttLink:
        speakers = self.links[1:] or self.links
        return speakers[zlib.crc32(topic.encode("utf-8")) % len(speakers)]

    async def connect_or_raise(self) -> None:
        for link in self.links:
            await link.connect_or_raise()

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self.links))

    async def run(self) -> None:
        """Keep the links up until they are closed, and monitor silence."""
        tasks: list[asyncio.Future[Any]] = [
            asyncio.gather(*(link.run_forever() for link in self.links)),
            asyncio.ensure_future(self._listen()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # mark exceptions as retrieved

    async def _listen(self) -> None:
        while True:
            await asyncio.sleep(_LISTEN_S)
            due = self._silence.due(time.monotonic()) if self.connected else None
            if due == "ask" and self._runtime is not None:
                self._runtime.post(fx.PeerSilent(self._peer))
            elif due == "renew":
                self.links[0].renew("nothing arrives on this connection")
