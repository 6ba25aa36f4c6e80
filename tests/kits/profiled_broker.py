"""A test broker that holds each connection to a managed service's limits.

It is stricter than the services: it ends connections where they delay or drop."""

import asyncio
import contextlib
import os
import sys
import time
from collections import deque

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
        self._topics = set()
        self._in_flight = {}  # packet id, bytes

    def acknowledged(self, packet_id):
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
        kind, size, profile = first >> 4, len(packet(first, body)), self._profile
        reached = [(size, profile.packet_bytes, "a packet of {} bytes")]
        if kind == CONNECT:
            at = 2 + int.from_bytes(body[:2], "big") + 2  # name, version, flags
            keepalive_s = int.from_bytes(body[at : at + 2], "big")
            id_bytes = int.from_bytes(body[at + 2 : at + 4], "big")
            reached.append((id_bytes, profile.client_id_bytes, "a client id of {} bytes"))
            low, high = profile.keepalive_s
            if not low <= keepalive_s <= high:
                return f"a keep-alive of {keepalive_s} s"
        if kind == PUBLISH:
            topics = [body[2 : 2 + int.from_bytes(body[:2], "big")]]
            reached += [*self._of_topics(topics), *self._of_message(first, body, size)]
        if kind == _SUBSCRIBE:
            topics = _texts(body[2:], 1)
            self._topics.update(topics)
            reached += [
                *self._of_topics(topics),
                (len(topics), profile.topics_per_subscribe, "{} topics in one subscription"),
                (len(self._topics), profile.subscriptions, "{} subscriptions"),
            ]
        if kind == _UNSUBSCRIBE:
            self._topics.difference_update(_texts(body[2:], 0))
        beyond = (text.format(n) for n, limit, text in reached if limit is not None and n > limit)
        return next(beyond, None)

    def _of_topics(self, topics):
        for topic in topics:
            yield len(topic), self._profile.topic_bytes, "a topic of {} bytes"
            yield topic.count(b"/") + 1, self._profile.topic_levels, "a topic of {} levels"

    def _of_message(self, first, body, size):
        if packet_id := read_publish(first, body, _MQTT_3_1_1)[0]:
            self._in_flight[packet_id] = size
        now_s = self._clock()
        while self._recent and now_s - self._recent[0][0] >= _WINDOW_S:
            self._recent.popleft()
        self._recent.append((now_s, size))
        in_flight, recent = self._in_flight.values(), [size for _, size in self._recent]
        profile = self._profile
        yield len(in_flight), profile.in_flight_messages, "{} unacknowledged messages"
        yield sum(in_flight), profile.in_flight_bytes, "{} unacknowledged bytes"
        yield len(recent), profile.publishes_per_s, "{} publishes in a second"
        yield sum(recent), profile.bytes_per_s, "{} bytes in a second"


def _texts(body, after):
    """Return the consecutive sized texts, each followed by `after` bytes."""
    found, at = [], 0
    while at < len(body):
        end = at + 2 + int.from_bytes(body[at : at + 2], "big")
        found.append(body[at + 2 : end])
        at = end + after
    return found


def late(writer, guard):
    """Delay a writer's acknowledgements as a distant service does, and record them."""
    write, close, waiting = writer.write, writer.close, set()

    async def acknowledge(puback):
        await asyncio.sleep(_ACKNOWLEDGE_S)
        guard.acknowledged(int.from_bytes(puback[2:4], "big"))
        with contextlib.suppress(OSError, ConnectionClosed):  # the client is gone
            write(puback)
            await writer.drain()

    def write_late(data):
        if data[0] >> 4 != PUBACK:
            write(data)
            return
        task = asyncio.create_task(acknowledge(data))
        waiting.add(task)
        task.add_done_callback(waiting.discard)

    async def close_all():
        for task in waiting:
            task.cancel()
        await close()

    writer.write, writer.close = write_late, close_all


def guarded(reader, guard):
    """Make a reader end the connection beyond the profile."""
    read = reader.read

    async def read_within(n=-1):
        data = await read(n)
        if (broken := guard.received(data)) is not None:
            sys.stderr.write(f"{BEYOND_PROFILE}: {broken}\n")
            sys.stderr.flush()
            reader.transport.abort()
            raise asyncio.IncompleteReadError(b"", n)
        return data

    reader.read = read_within


class GuardedBroker(BoundedBroker):
    async def external_connected(self, reader, writer, listener_name):
        guard = ProfileGuard(PROFILES[os.environ["PROFILE"]])
        guarded(reader, guard)
        late(writer, guard)
        await super().external_connected(reader, writer, listener_name)


class ProfiledBroker(BrokerProcess):
    def __init__(self, plan, directory, profile, *, users_file):
        super().__init__(plan, directory, users_file=users_file)
        self._profile = profile

    def _amqtt(self):
        *_, config = super()._amqtt()
        return ["env", f"PROFILE={self._profile}", sys.executable, __file__, config]


if __name__ == "__main__":
    status = main(sys.argv[1:], GuardedBroker)
    sys.stderr.flush()
    os._exit(status)
