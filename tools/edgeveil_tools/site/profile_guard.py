"""Holds a connection of a broker of ours to a managed service's limits, so that they can be tried.

Stricter than the services: what they delay or drop ends the connection here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from edgeveil.errors import ProtocolError
from edgeveil.sites.broker_profiles import BrokerProfile
from edgeveil.transport.mqtt_packets import CONNECT, PUBLISH, PacketCutter, packet, read_publish

_MQTT_3_1_1 = 4
_SUBSCRIBE, _UNSUBSCRIBE = 8, 10
_WINDOW_S = 1.0


class ProfileGuard:
    """Reads what a client of MQTT 3.1.1 sends, and is told what is acknowledged to it.

    A message of QoS 0 is never in flight, since nobody acknowledges it.
    """

    def __init__(self, profile: BrokerProfile, clock: Callable[[], float] = time.monotonic) -> None:
        self._profile, self._clock = profile, clock
        self._cutter = PacketCutter()
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_bytes = 0
        self._topics: set[bytes] = set()
        self._in_flight: dict[int, int] = {}  # packet id, bytes

    def acknowledged(self, packet_id: int) -> None:
        """The broker sends the acknowledgement of this message now."""
        self._in_flight.pop(packet_id, None)

    def received(self, data: bytes) -> str | None:
        """The limit that these bytes of the client break, in words; None: none."""
        try:
            for first, body in self._cutter.feed(data):
                if (broken := self._judge(first, body)) is not None:
                    return broken
        except (ProtocolError, IndexError):
            return "a malformed packet"
        return None

    def _judge(self, first: int, body: bytes) -> str | None:
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

    def _connects(self, body: bytes) -> str | None:
        at = 2 + int.from_bytes(body[:2], "big") + 2  # name, version, flags
        keepalive_s = int.from_bytes(body[at : at + 2], "big")
        id_bytes = int.from_bytes(body[at + 2 : at + 4], "big")
        low, high = self._profile.keepalive_s
        if not low <= keepalive_s <= high:
            return f"a keep-alive of {keepalive_s} s"
        if _above(id_bytes, self._profile.client_id_bytes):
            return f"a client id of {id_bytes} bytes"
        return None

    def _publishes(self, first: int, body: bytes, size: int) -> str | None:
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

    def _subscribes(self, body: bytes) -> str | None:
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

    def _topic(self, topic: bytes) -> str | None:
        if _above(len(topic), self._profile.topic_bytes):
            return f"a topic of {len(topic)} bytes"
        if _above(topic.count(b"/") + 1, self._profile.topic_levels):
            return f"a topic of {topic.count(b'/') + 1} levels"
        return None


def _above(value: int, limit: int | None) -> bool:
    return limit is not None and value > limit


def _texts(body: bytes, after: int) -> list[bytes]:
    """The sized texts that follow one another, each with `after` bytes behind it."""
    found, at = [], 0
    while at < len(body):
        end = at + 2 + int.from_bytes(body[at : at + 2], "big")
        found.append(body[at + 2 : end])
        at = end + after
    return found
