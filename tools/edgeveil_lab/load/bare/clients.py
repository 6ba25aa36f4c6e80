"""Bare load on one broker: its clients connect, publish or listen, and what came of it is counted.

All of it runs on one event loop, of bare clients (`load/mqtt.py`). A payload of 16 bytes or more
begins with a mark and the time of its sending in nanoseconds since 1970, so that whoever receives
it knows how long it took: exact on one machine, over several as exact as their clocks agree.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import secrets
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from edgeveil.errors import BrokerError
from edgeveil.sites.addresses import BrokerAddress
from edgeveil.transport.mqtt_packets import MOST_BODY_BYTES, Login, encoded_topic
from edgeveil_lab.load.bare.options import BareOptions, seconds_or_forever, topic_of
from edgeveil_lab.load.connections import Dialler
from edgeveil_lab.load.counters import DurationHistogram, LoadMeter
from edgeveil_lab.load.mqtt import BareClient, Manner

# --- the time in a payload ---

_MARK = b"edgeveil"
STAMP_BYTES = len(_MARK) + 8


def stamped(filler: bytes, now_ns: int) -> bytes:
    """A payload of the filler's size that tells when it was sent, where it has room to."""
    if len(filler) < STAMP_BYTES:
        return filler
    return _MARK + now_ns.to_bytes(8, "big") + filler[STAMP_BYTES:]


def sent_ns(payload: bytes) -> int | None:
    """When a stamped payload was sent, nanoseconds since 1970; None of any other."""
    if len(payload) < STAMP_BYTES or not payload.startswith(_MARK):
        return None
    return int.from_bytes(payload[len(_MARK) : STAMP_BYTES], "big")


# --- what is counted ---


@dataclass
class BareCounters:
    """Of one broker, over all its turns. `expected`: what subscribers of ours should receive."""

    clients: int = 0
    connected: int = 0
    connects: int = 0
    sent: int = 0
    expected: int = 0
    acknowledged: int = 0
    received: int = 0
    held_back: int = 0  # messages that were due while a client's window was full
    bytes_up: int = 0
    bytes_down: int = 0
    connecting_s: float = 0.0
    seconds: float = 0.0  # of load: from the first message to the last sign of one
    failures: Counter[str] = field(default_factory=Counter)
    ahead: int = 0  # messages that came before they were sent: clocks differ
    connect_s: DurationHistogram = field(default_factory=DurationHistogram)
    ack_s: DurationHistogram = field(default_factory=DurationHistogram)
    end_to_end_s: DurationHistogram = field(default_factory=DurationHistogram)
    meter: LoadMeter = field(default_factory=LoadMeter)
    series: list[dict[str, Any]] = field(default_factory=list)
    last_s: float = 0.0  # the loop's time at the newest sign of a message

    @property
    def lost(self) -> int:
        """Messages that no subscriber of ours received."""
        return max(0, self.expected - self.received)

    def ack(self, took_s: float, code: int) -> None:
        """The broker acknowledged a message with this reason code."""
        self.last_s = time.monotonic()
        if code >= _REFUSED:
            self.failures[f"publish refused, reason {code}"] += 1
            return
        self.acknowledged += 1
        self.ack_s.add(took_s)

    def receive(self, payload: bytes) -> None:
        """A subscriber got a message."""
        self.last_s = time.monotonic()
        self.received += 1
        at_ns = sent_ns(payload)
        if at_ns is None:
            return
        took_ns = time.time_ns() - at_ns
        if took_ns < 0:
            self.ahead += 1
        else:
            self.end_to_end_s.add(took_ns / 1e9)


_REFUSED = 0x80
_SUMS = ("sent", "acknowledged", "received", "bytes_up", "bytes_down")

# --- one client ---


class PlainClient:
    """One client of the load. It connects once: a connection that fails or breaks is counted.

    `readers`: how many subscribers of ours get what it publishes.
    """

    def __init__(self, load: BareLoad, client_id: str, listens: str = "", speaks: str = "") -> None:
        self._load, self._client_id = load, client_id
        self._topics = (listens,) if listens else ()
        self._up_topic = encoded_topic(speaks)
        self.readers = 0
        self.connection: BareClient | None = None
        self.answered = asyncio.Event()
        self._dialled_s, self._was_up = 0.0, False

    def connect(self) -> None:
        """Want a connection."""
        self._load.dialler.dial(self)

    def client(self) -> BareClient:
        """The connection, to be dialled now."""
        load, options = self._load, self._load.options
        login = Login(
            client_id=self._client_id,
            username=options.user,
            password=load.password,
            will=None,
            keepalive_s=options.keepalive_s,
            packet_bytes=MOST_BODY_BYTES,
        )
        manner = Manner(
            subscribe_qos=options.qos, window=options.inflight, on_ack=self._acknowledged
        )
        self._dialled_s = time.monotonic()
        self.connection = BareClient(
            self, login, load.protocol, self._topics, self._up_topic, manner
        )
        return self.connection

    def _acknowledged(self, took_s: float, code: int) -> None:
        self._load.counters.ack(took_s, code)
        self._load.next_of(self)

    def on_up(self) -> None:
        """The broker took the login, and the subscription of one that listens."""
        self.answered.set()
        self._was_up, counters = True, self._load.counters
        counters.connected += 1
        counters.connects += 1
        counters.connect_s.add(time.monotonic() - self._dialled_s)

    def on_down(self, reason: str) -> None:
        """The connection is gone, or was never had."""
        counters, known = self._load.counters, self.answered.is_set()
        self.add_bytes()
        self.connection = None
        counters.connected -= self._was_up
        if not self._load.leaving and (self._was_up or not known):
            counters.failures[f"{'lost' if self._was_up else 'connect'}: {reason}"] += 1
        self._was_up = False
        self.answered.set()

    def give_up(self, reason: str) -> None:
        """Wait for the broker's answer no longer."""
        connection = self.connection
        self.on_down(reason)
        if connection is not None:
            connection.cut()

    def on_frame(self, payload: bytes) -> None:
        """A message; what comes before all are connected is not of the load."""
        if self._load.phase != "connecting":
            self._load.counters.receive(payload)

    def tick(self, now_s: float) -> None:
        """Now and then: keep the connection alive, add up its bytes."""
        if self.connection is not None:
            self.connection.tick(now_s)
            self.add_bytes()

    def add_bytes(self) -> None:
        """Move the connection's byte counts into the counters."""
        if self.connection is not None:
            self._load.counters.bytes_up += self.connection.bytes_out
            self._load.counters.bytes_down += self.connection.bytes_in
            self.connection.bytes_in = self.connection.bytes_out = 0


# --- all of them ---

Show = Callable[[dict[str, Any]], None]
_LAG_S = 0.05
_SAMPLE_S = 1.0
_SLICE_S = 0.005  # of publishing at a time, so that the sockets are served meanwhile
_STEP_S = 0.001
_QUIET_S = 2.0  # without a sign of a message, after the last was sent
_SILENT_S = 30.0  # without an answer to any connection
_GOODBYE_S = 1.0


class BareLoad:
    """One turn of load on one broker. `protocol` is what it was found to speak, 5 or 4."""

    def __init__(
        self,
        options: BareOptions,
        url: str,
        protocol: int,
        password: str | None,
        context: ssl.SSLContext | None,
        counters: BareCounters,
        show: Show,
    ) -> None:
        self.options, self.protocol, self.password = options, protocol, password
        self.counters, self._show = counters, show
        self._url, self.phase, self.leaving = url, "connecting", False
        self._began_s = 0.0  # of the phase's figures
        self.dialler = Dialler(BrokerAddress.parse(url), context, options.rate_per_s)
        self._most, self._flowing = math.inf, False
        self._speakers, self._listeners = self._clients()
        self._filler = os.urandom(options.size_bytes)
        gc.collect()  # many lasting objects: looking through them again and again takes a core
        gc.freeze()

    async def run(self) -> None:
        """Connect, load, and leave, however it ends. Raises BrokerError if nobody was let in."""
        keeping = asyncio.create_task(self._keep())
        self._began_s = time.monotonic()
        try:
            await self.dialler.resolve()
            await self._connect()
            now_s = self.counters.last_s = time.monotonic()
            self.counters.connecting_s += now_s - self._began_s
            self.phase, self._began_s = "loading", now_s
            if self.options.mode == "pub":
                await self._publish()
                self.phase = "draining"
                await self._drain()
            else:
                await self._hold()
                self.counters.last_s = time.monotonic()
        finally:
            if self.phase != "connecting":
                self.counters.seconds += self.counters.last_s - self._began_s
            keeping.cancel()
            await self._leave()

    @property
    def _all(self) -> Sequence[PlainClient]:
        return [*self._listeners, *self._speakers]

    def _clients(self) -> tuple[list[PlainClient], list[PlainClient]]:
        """(who publishes or just stays, who listens); a listener hears one speaker's topic."""
        options, run = self.options, secrets.token_hex(3)
        numbers = range(options.startnumber + 1, options.startnumber + options.count + 1)
        names = [(f"load-{run}-{number}", number) for number in numbers]
        topics = [topic_of(options.topic, number, name, options.user) for name, number in names]
        if options.mode == "sub":
            return [], [
                PlainClient(self, name, listens=topic)
                for (name, _), topic in zip(names, topics, strict=True)
            ]
        if options.mode == "conn":
            return [PlainClient(self, name) for name, _ in names], []
        heard = [topics[at % len(topics)] for at in range(options.subscribers)]
        readers = Counter(heard)
        speakers = []
        for (name, _), topic in zip(names, topics, strict=True):
            speaker = PlainClient(self, name, speaks=topic)
            speaker.readers = readers[topic]
            speakers.append(speaker)
        return speakers, [
            PlainClient(self, f"load-{run}-s{at + 1}", listens=topic)
            for at, topic in enumerate(heard)
        ]

    # --- its phases ---

    async def _connect(self) -> None:
        """Until each has had its answer, good or bad."""
        clients, counters = self._all, self.counters
        before = counters.connects
        counters.clients += len(clients)
        await self.dialler.bring(clients)
        waiting, heard_s = list(clients), time.monotonic()
        while waiting:
            still = [client for client in waiting if not client.answered.is_set()]
            if len(still) < len(waiting):
                waiting, heard_s = still, time.monotonic()
            elif time.monotonic() - heard_s > _SILENT_S:
                await self.dialler.stop()
                for client in waiting:
                    client.give_up(f"no answer to MQTT within {_SILENT_S:.0f} s")
                break
            await asyncio.sleep(_STEP_S)
        if counters.connects == before:
            [(reason, _)] = counters.failures.most_common(1)
            raise BrokerError(
                f"none of {len(clients):,} clients was let in ({reason})",
                where=self._url,
                fix="look at the broker's log, at its limits and its users",
            )

    async def _hold(self) -> None:
        end_s = time.monotonic() + seconds_or_forever(self.options.duration_s)
        while time.monotonic() < end_s:
            self._check()
            await asyncio.sleep(min(_LAG_S, max(0.0, end_s - time.monotonic())))

    def _check(self) -> None:
        if self.counters.connected == 0:
            [(reason, _)] = self.counters.failures.most_common(1)
            raise BrokerError(
                f"all connections are gone ({reason})",
                where=self._url,
                fix="look at the broker's log",
            )

    async def _publish(self) -> None:
        """Until the limit, the end of the time, or nobody is left who could."""
        options, counters = self.options, self.counters
        self._most = counters.sent + options.limit if options.limit else math.inf
        end_s = time.monotonic() + seconds_or_forever(options.duration_s)
        if options.message_interval_ms:
            await self._publish_at_intervals(end_s)
        else:
            await self._publish_in_flow(end_s)

    async def _publish_at_intervals(self, end_s: float) -> None:
        """Each client at its own, evenly spread over it."""
        interval_s, now_s = self.options.message_interval_ms / 1000, time.monotonic()
        step_s = interval_s / len(self._speakers)
        turns = deque((now_s + at * step_s, one) for at, one in enumerate(self._speakers))
        while turns and self.counters.sent < self._most and (now_s := time.monotonic()) < end_s:
            self._check()
            slice_s = now_s + _SLICE_S
            while turns and turns[0][0] <= now_s < slice_s and self.counters.sent < self._most:
                due_s, client = turns.popleft()
                if client.connection is not None:
                    turns.append((due_s + interval_s, client))
                    self.counters.held_back += not self._send(client)
                now_s = time.monotonic()
            await asyncio.sleep(0 if now_s >= slice_s else _STEP_S)

    async def _publish_in_flow(self, end_s: float) -> None:
        """As fast as windows let them: each acknowledgement brings the client's next message."""
        flowing, acknowledged = deque(self._speakers), self.options.qos > 0
        self._flowing = True
        while self.counters.sent < self._most and (now_s := time.monotonic()) < end_s:
            self._check()
            slice_s, sent = now_s + _SLICE_S, self.counters.sent
            for _ in range(len(flowing)):
                client = flowing.popleft()
                if self._send(client) or (client.connection is not None and not acknowledged):
                    flowing.append(client)
                if time.monotonic() >= slice_s:
                    break
            moved = flowing and self.counters.sent > sent
            await asyncio.sleep(0 if moved else _STEP_S)
        self._flowing = False

    def next_of(self, client: PlainClient) -> None:
        """The broker acknowledged a message of this client."""
        if self._flowing:
            self._send(client)

    def _send(self, client: PlainClient) -> bool:
        """Publish one more, if the client's window has room and the limit is not reached."""
        counters, connection = self.counters, client.connection
        if connection is None or not connection.has_room or counters.sent >= self._most:
            return False
        connection.publish(stamped(self._filler, time.time_ns()), self.options.qos)
        counters.sent += 1
        counters.expected += client.readers
        counters.last_s = time.monotonic()
        return True

    async def _drain(self) -> None:
        """Until all is acknowledged and received, or nothing moves any more."""
        counters, under_way = self.counters, list(self._speakers)
        while True:
            under_way = [one for one in under_way if _unacknowledged(one)]
            if not under_way and counters.received >= counters.expected:
                return
            if time.monotonic() - counters.last_s > _QUIET_S:
                missing = sum(map(_unacknowledged, under_way))
                if missing:
                    counters.failures["not acknowledged"] += missing
                return
            await asyncio.sleep(_STEP_S)

    async def _leave(self) -> None:
        """All say good-bye."""
        self.leaving = True
        await self.dialler.stop()
        clients = self._all
        for client in clients:
            client.add_bytes()
            if client.connection is not None:
                client.connection.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                while any(client.connection is not None for client in clients):
                    await asyncio.sleep(_STEP_S)
        gc.unfreeze()

    # --- meanwhile ---

    async def _keep(self) -> None:
        """Keep connections alive, look how late the loop is, and take a sample each second."""
        loop, counters, clients = asyncio.get_running_loop(), self.counters, self._all
        last_s = time.monotonic()
        before = {key: getattr(counters, key) for key in _SUMS}
        while True:
            due_s = loop.time() + _LAG_S
            await asyncio.sleep(_LAG_S)
            counters.meter.look(loop.time() - due_s, _LAG_S, counts=self.phase == "loading")
            now_s = time.monotonic()
            if now_s - last_s < _SAMPLE_S:
                continue
            for client in clients:
                client.tick(loop.time())
            sums = {key: getattr(counters, key) for key in _SUMS}
            rates = {
                f"{key}_per_s": round((sums[key] - before[key]) / (now_s - last_s), 1)
                for key in _SUMS
            }
            before, last_s = sums, now_s
            t_s = round(now_s - self._began_s, 2)
            sample = {"t_s": t_s, "connected": counters.connected, **rates}
            if self.phase != "connecting":
                counters.series.append(sample)
            self._show({**sample, "phase": self.phase, "failures": dict(counters.failures)})


def _unacknowledged(client: PlainClient) -> int:
    return client.connection.unacknowledged if client.connection is not None else 0
