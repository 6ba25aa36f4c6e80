"""MQTT 5 and 3.1.1 packets, as far as a load test's devices need them: bytes and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from edgeveil.errors import ProtocolError

MQTT_5 = 5
CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP, DISCONNECT = 2, 3, 4, 9, 13, 14
PINGREQ = b"\xc0\x00"
GOODBYE = b"\xe0\x00"
_RECEIVE_MAXIMUM = 0x21
_MAXIMUM_PACKET_SIZE = 0x27
_FIXED_PROPERTY_BYTES = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), 2),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), 4),
}


@dataclass(frozen=True)
class Login:
    """What a device says when it connects. `will` is (topic, payload), QoS 1."""

    client_id: str
    username: str | None
    password: str | None
    will: tuple[str, bytes] | None
    keepalive_s: int
    packet_bytes: int


def connect(login: Login, protocol: int) -> bytes:
    """CONNECT with a clean start."""
    flags = 0x02
    properties = b""
    tail = _text(login.client_id)
    if protocol == MQTT_5:
        size = login.packet_bytes.to_bytes(4, "big")
        own = bytes((_MAXIMUM_PACKET_SIZE,)) + size
        properties = bytes((len(own),)) + own
    if login.will is not None:
        flags |= 0x04 | 0x08
        topic, payload = login.will
        tail += b"\0" if protocol == MQTT_5 else b""
        tail += _text(topic) + _sized(payload)
    if login.username is not None:
        flags |= 0x80
        tail += _text(login.username)
    if login.password is not None:
        flags |= 0x40
        tail += _text(login.password)
    head = _text("MQTT") + bytes((protocol, flags)) + login.keepalive_s.to_bytes(2, "big")
    return _packet(0x10, head + properties + tail)


def subscribe(packet_id: int, topics: tuple[str, ...], protocol: int) -> bytes:
    """SUBSCRIBE to all topics with QoS 1."""
    head = packet_id.to_bytes(2, "big") + (b"\0" if protocol == MQTT_5 else b"")
    return _packet(0x82, head + b"".join(_text(topic) + b"\1" for topic in topics))


def publish_head(topic: bytes, payload_bytes: int, packet_id: int, protocol: int) -> bytes:
    """All of a PUBLISH before its payload; `packet_id` 0 means QoS 0.

    `topic` is encoded already, with its length in front (`encoded_topic`).
    """
    identifier = packet_id.to_bytes(2, "big") if packet_id else b""
    properties = b"\0" if protocol == MQTT_5 else b""
    size = len(topic) + len(identifier) + len(properties) + payload_bytes
    first = bytes((0x32 if packet_id else 0x30,))
    return first + _length(size) + topic + identifier + properties


def encoded_topic(topic: str) -> bytes:
    """A topic as packets hold it."""
    return _text(topic)


def puback(packet_id: int) -> bytes:
    """PUBACK, success."""
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


def read_connack(body: bytes, protocol: int) -> tuple[int, int]:
    """(reason code, how many unacknowledged messages the broker takes)."""
    if len(body) < 2:
        raise ProtocolError("malformed")
    in_flight = 65535
    if protocol == MQTT_5 and len(body) > 2:
        found = _property(body, 2, _RECEIVE_MAXIMUM)
        in_flight = found if found is not None else in_flight
    return body[1], in_flight


def read_publish(first: int, body: bytes, protocol: int) -> tuple[int, bytes]:
    """(packet id or 0, payload)."""
    at = 2 + int.from_bytes(body[:2], "big")
    packet_id = 0
    if first & 0x06:
        packet_id = int.from_bytes(body[at : at + 2], "big")
        at += 2
    if protocol == MQTT_5:
        size, at = _read_length(body, at)
        at += size
    if at > len(body):
        raise ProtocolError("malformed")
    return packet_id, body[at:]


class Framer:
    """Cuts a byte stream into packets; each byte is copied a fixed number of times.

    A packet above `limit_bytes` is refused by its header, with ProtocolError `oversized`.
    """

    __slots__ = ("_chunks", "_have", "_limit_bytes", "_need")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._chunks: list[bytes] = []
        self._have = self._need = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """All packets that are complete now: (first byte, what follows the length)."""
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        packets, at = [], 0
        while (measured := self._measure(data, at)) is not None:
            begin, end = measured
            if end > len(data):
                break
            packets.append((data[at], data[begin:end]))
            at = end
        if at < len(data):
            self._chunks.append(data[at:] if at else data)
            self._have = len(data) - at
            self._need = measured[1] - at if measured else self._have + 1
        return packets

    def _measure(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Where the body of the packet at `at` begins and ends; None while its header is cut."""
        size, shift, position = 0, 0, at + 1
        while position < len(data) and shift <= 21:
            byte = data[position]
            size |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if byte < 0x80:
                if size > self._limit_bytes:
                    raise ProtocolError("oversized")
                return position, position + size
        if shift > 21:
            raise ProtocolError("malformed")
        return None


def _property(body: bytes, at: int, wanted: int) -> int | None:
    """The integer property `wanted` of the property list at `at`, or None."""
    size, at = _read_length(body, at)
    end = at + size
    if end > len(body):
        raise ProtocolError("malformed")
    while at < end:
        identifier, at = body[at], at + 1
        width = _FIXED_PROPERTY_BYTES.get(identifier)
        if width is None:  # texts: one, or two for a user's own property
            for _ in range(2 if identifier == 0x26 else 1):
                at += 2 + int.from_bytes(body[at : at + 2], "big")
            continue
        if identifier == wanted:
            return int.from_bytes(body[at : at + width], "big")
        at += width
    return None


def _read_length(body: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while at < len(body) and shift <= 21:
        byte = body[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return size, at
    raise ProtocolError("malformed")


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + _length(len(body)) + body


def _length(size: int) -> bytes:
    out = bytearray()
    while True:
        size, low = size >> 7, size & 0x7F
        out.append(low | (0x80 if size else 0))
        if not size:
            return bytes(out)


def _text(text: str) -> bytes:
    return _sized(text.encode("utf-8"))


def _sized(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw
