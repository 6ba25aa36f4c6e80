"""A test broker that holds each connection to a managed service's limits.

It is stricter than the services: it ends connections where they delay or drop."""

import asyncio
import contextlib
import os
import sys
import time
from collections import deque

from amqtt.adapters import ReaderAdapter, WriterAdapter
from websockets.exceptions import ConnectionClosed

from edgeveil.config.broker_profiles import PROFILES
from edgeveil.errors import ProtocolError
from edgeveil.transport.mqtt_packets import (
    CONNECT,
    PUBACK,
    PUBLISH,
    PacketCutter,
    packet,
    read_publish,
)
from edgeveil_tools.site.broker_amqtt import BoundedBroker, main
from edgeveil_tools.site.brokers import BrokerProcess

_MQTT_3_1_1 = 4
_SUBSCRIBE, _UNSUBSCRIBE = 8, 10
_WINDOW_S = 1.0
_ACKNOWLEDGE_S = 0.05  # as a distant service; without delay, nothing would be in flight
BEYOND_PROFILE = "a client was cut off beyond the profile"


class ProfileGuard:
    """Checks an MQTT 3.1.1 client's packets against a profile.

    A QoS 0 message is never in flight, since it is not acknowledged."""

    def __init__(self, profile, clock=time.monotonic):
        self._profile, self._clock = profile, clock
        self._cutter = PacketCutter()
        self._recent = deque()
        self._recent_bytes = 0
        self._topics = set()
        self._in_flight = {}  # packet id, bytes

    def acknowledged(self, packet_id):
        """Record the acknowledgement of a message."""
        self._in_flight.pop(packet_id, None)

    def received(self, data):
        """Return the limit that the client's bytes exceed; None if none."""
        try:
            for first, body in self._cutter.feed(data):
                if (broken := self._judge(first, body)) is not None:
                    return broken
        except (ProtocolError, IndexError):
            return "a malformed packet"
        return None

    def _judge(self, first, body):
        kind, size = first >> 4, len(packet(first, body))
        if _above(size, self._profile.packet_bytes):
            return f"a packet of {size} bytes"
        if kind == CONNECT:
            return self._connects(body)
        if kind == PUBLISH:
            return self._publishes(first, body, size)
        if kind == _SUBSCRIBE:
            return self._subscribes(body)
        if kind == _UNSUBSCRIBE:
            self._topics.difference_update(_texts(body[2:], 0))
        return None

    def _connects(self, body):
        at = 2 + int.from_bytes(body[:2], "big") + 2  # name, version, flags
        keepalive_s = int.from_bytes(body[at : at + 2], "big")
        id_bytes = int.from_bytes(body[at + 2 : at + 4], "big")
        low, high = self._profile.keepalive_s
        if not low <= keepalive_s <= high:
            return f"a keep-alive of {keepalive_s} s"
        if _above(id_bytes, self._profile.client_id_bytes):
            return f"a client id of {id_bytes} bytes"
        return None

    def _publishes(self, first, body, size):
        if (broken := self._topic(body[2 : 2 + int.from_bytes(body[:2], "big")])) is not None:
            return broken
        if packet_id := read_publish(first, body, _MQTT_3_1_1)[0]:
            self._in_flight[packet_id] = size
        if _above(len(self._in_flight), self._profile.in_flight_messages):
            return f"{len(self._in_flight)} unacknowledged messages"
        if _above(sum(self._in_flight.values()), self._profile.in_flight_bytes):
            return f"{sum(self._in_flight.values())} unacknowledged bytes"
        now_s = self._clock()
        while self._recent and now_s - self._recent[0][0] >= _WINDOW_S:
            self._recent_bytes -= self._recent.popleft()[1]
        self._recent.append((now_s, size))
        self._recent_bytes += size
        if _above(len(self._recent), self._profile.publishes_per_s):
            return f"{len(self._recent)} publishes in a second"
        if _above(self._recent_bytes, self._profile.bytes_per_s):
            return f"{self._recent_bytes} bytes in a second"
        return None

    def _subscribes(self, body):
        topics = _texts(body[2:], 1)
        for topic in topics:
            if (broken := self._topic(topic)) is not None:
                return broken
        self._topics.update(topics)
        if _above(len(topics), self._profile.topics_per_subscribe):
            return f"{len(topics)} topics in one subscription"
        if _above(len(self._topics), self._profile.subscriptions):
            return f"{len(self._topics)} subscriptions"
        return None

    def _topic(self, topic):
        if _above(len(topic), self._profile.topic_bytes):
            return f"a topic of {len(topic)} bytes"
        if _above(topic.count(b"/") + 1, self._profile.topic_levels):
            return f"a topic of {topic.count(b'/') + 1} levels"
        return None


def _above(value, limit):
    return limit is not None and value > limit


def _texts(body, after):
    """Return the consecutive sized texts, each followed by `after` bytes."""
    found, at = [], 0
    while at < len(body):
        end = at + 2 + int.from_bytes(body[at : at + 2], "big")
        found.append(body[at + 2 : end])
        at = end + after
    return found


class LateAcknowledgements(WriterAdapter):
    """A writer that delays acknowledgements as a distant service does, and records them."""

    def __init__(self, writer, guard):
        self._writer, self._guard = writer, guard
        self._late = set()

    def write(self, data):
        if data[0] >> 4 != PUBACK:
            self._writer.write(data)
            return
        task = asyncio.create_task(self._acknowledge(data))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _acknowledge(self, puback):
        await asyncio.sleep(_ACKNOWLEDGE_S)
        self._guard.acknowledged(int.from_bytes(puback[2:4], "big"))
        with contextlib.suppress(OSError, ConnectionClosed):  # the client is gone
            self._writer.write(puback)
            await self._writer.drain()

    async def drain(self):
        await self._writer.drain()

    def get_peer_info(self):
        return self._writer.get_peer_info()

    def get_ssl_info(self):
        return self._writer.get_ssl_info()

    async def close(self):
        for task in self._late:
            task.cancel()
        await self._writer.close()


class GuardedReader(ReaderAdapter):
    """A reader that ends the connection beyond the profile."""

    def __init__(self, reader, guard):
        self._reader, self._guard = reader, guard

    async def read(self, n=-1):
        data = await self._reader.read(n)
        if (broken := self._guard.received(data)) is not None:
            sys.stderr.write(f"{BEYOND_PROFILE}: {broken}\n")
            sys.stderr.flush()
            self._reader.transport.abort()
            raise asyncio.IncompleteReadError(b"", n)
        return data

    def feed_eof(self):
        self._reader.feed_eof()


class GuardedBroker(BoundedBroker):
    """A broker that enforces the profile its process was started with."""

    async def external_connected(self, reader, writer, listener_name):
        guard = ProfileGuard(PROFILES[os.environ["PROFILE"]])
        late = LateAcknowledgements(writer, guard)
        await super().external_connected(GuardedReader(reader, guard), late, listener_name)


class ProfiledBroker(BrokerProcess):
    """amqtt that enforces a profile."""

    def __init__(self, plan, directory, profile, *, users):
        super().__init__(plan, directory, users=users)
        self._profile = profile

    def _amqtt(self):
        *_, config = super()._amqtt()
        return ["env", f"PROFILE={self._profile}", sys.executable, __file__, config]


if __name__ == "__main__":
    status = main(sys.argv[1:], GuardedBroker)
    sys.stderr.flush()
    os._exit(status)
