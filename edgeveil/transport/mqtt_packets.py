"""MQTT 5 and 3.1.1 packets as bytes: split from a stream, decoded, encoded.

A packet is its first byte (type and flags) and its body, which follows the length.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeveil.errors import ProtocolError

MQTT_5, MQTT_3_1_1 = 5, 4
CONNECT, CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP, DISCONNECT = 1, 2, 3, 4, 9, 13, 14
FAILURE = 0x80  # reason codes from here on
REASONS = {  # of MQTT 5, in PUBACK or DISCONNECT
    0x00: "goodbye",
    0x10: "no matching subscribers",
    0x80: "unspecified error",
    0x83: "implementation specific error",
    0x87: "not authorized",
    0x89: "busy",
    0x8B: "shutting down",
    0x8D: "keep-alive timeout",
    0x8E: "session taken over",
    0x90: "topic name invalid",
    0x93: "receive maximum exceeded",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format invalid",
}
PINGREQ = b"\xc0\x00"
GOODBYE = b"\xe0\x00"
MOST_BODY_BYTES = (1 << 28) - 1  # four bytes of length
_LENGTH_BYTES = 4
_HEAD_BYTES = 2  # of the shortest packet
_IDENTIFIER_BYTES = 2
_SERVER_KEEP_ALIVE = 0x13
_RECEIVE_MAXIMUM = 0x21
_MAXIMUM_PACKET_SIZE = 0x27
_FIXED_PROPERTY_BYTES = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), 2),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), 4),
}


class PacketCutter:
    """Splits a stream into packets. Raises ProtocolError `oversized` or `malformed`."""

    __slots__ = ("_at", "_chunks", "_have", "_limit_bytes", "_need")

    def __init__(self, limit_bytes: int = MOST_BODY_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._chunks: list[bytes] = []
        self._at = self._have = 0  # where the next packet begins in the first chunk; bytes there
        self._need = _HEAD_BYTES

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self._have += len(data)

    def next_packet(self) -> tuple[int, bytes] | None:
        """Return (first byte, body) of the next packet; None while incomplete."""
        if self._have < self._need:
            return None
        if len(self._chunks) > 1:
            self._chunks[0] = self._chunks[0][self._at :]
            self._chunks, self._at = [b"".join(self._chunks)], 0
        data, at = self._chunks[0], self._at
        body = body_place(data, at, self._limit_bytes)
        if body is None or body[1] > len(data):
            self._need = body[1] - at if body else self._have + 1
            return None
        self._at, self._have, self._need = body[1], len(data) - body[1], _HEAD_BYTES
        if not self._have:
            self._chunks, self._at = [], 0
        return data[at], data[body[0] : body[1]]

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        self.add(data)
        return list(iter(self.next_packet, None))


def body_place(
    data: bytes, at: int = 0, limit_bytes: int = MOST_BODY_BYTES
) -> tuple[int, int] | None:
    """Return begin and end of a packet's body, None while unknown. Raises ProtocolError."""
    found = _read_length(data, at + 1)
    if found is None:
        return None
    size, begin = found
    if size > limit_bytes:
        raise ProtocolError("oversized")
    return begin, begin + size


def packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + _length(len(body)) + body


@dataclass(frozen=True)
class Login:
    """Content of CONNECT; `will` is (topic, payload), `in_flight` MQTT 5's receive maximum."""

    client_id: str
    username: str | None
    password: str | None
    will: tuple[str, bytes] | None
    keepalive_s: int
    packet_bytes: int
    in_flight: int = 65535


def connect(login: Login, protocol: int) -> bytes:
    flags = 0x02
    properties = b""
    tail = _text(login.client_id)
    if protocol == MQTT_5:
        size = login.packet_bytes.to_bytes(4, "big")
        own = bytes((_MAXIMUM_PACKET_SIZE,)) + size
        if login.in_flight < 65535:
            own += bytes((_RECEIVE_MAXIMUM,)) + login.in_flight.to_bytes(2, "big")
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
    return packet(0x10, head + properties + tail)


def subscribe(packet_id: int, topics: tuple[str, ...], protocol: int, qos: int = 1) -> bytes:
    head = packet_id.to_bytes(2, "big") + (b"\0" if protocol == MQTT_5 else b"")
    return packet(0x82, head + b"".join(_text(topic) + bytes((qos,)) for topic in topics))


def publish_head(topic: bytes, payload_bytes: int, packet_id: int, protocol: int) -> bytes:
    """Return a PUBLISH up to its payload; `packet_id` 0: QoS 0; `topic`: an `encoded_topic`."""
    identifier = packet_id.to_bytes(2, "big") if packet_id else b""
    properties = b"\0" if protocol == MQTT_5 else b""
    size = len(topic) + len(identifier) + len(properties) + payload_bytes
    first = bytes((0x32 if packet_id else 0x30,))
    return first + _length(size) + topic + identifier + properties


def encoded_topic(topic: str) -> bytes:
    return _text(topic)


def puback(packet_id: int) -> bytes:
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


def read_connack(body: bytes, protocol: int) -> tuple[int, int, int, int]:
    """Return (reason code, receive maximum, maximum packet bytes, server keep-alive).

    The keep-alive is in seconds; 0: the client's own. Raises ProtocolError.
    """
    if len(body) < 2:
        raise ProtocolError("malformed")
    given = _integers(body, 2) if protocol == MQTT_5 and len(body) > 2 else {}
    most = given.get(_RECEIVE_MAXIMUM, 65535), given.get(_MAXIMUM_PACKET_SIZE, MOST_BODY_BYTES)
    if not all(most):
        raise ProtocolError("malformed", "a limit of zero")
    return body[1], *most, given.get(_SERVER_KEEP_ALIVE, 0)


def read_suback(body: bytes, protocol: int) -> tuple[int, bytes]:
    """Return (packet id, one code per topic). Raises ProtocolError `malformed`."""
    begin = _IDENTIFIER_BYTES
    if protocol == MQTT_5:
        size, at = _properties(body, begin)
        begin = at + size
    if begin >= len(body):
        raise ProtocolError("malformed")
    return int.from_bytes(body[:2], "big"), body[begin:]


def read_puback(body: bytes) -> tuple[int, int]:
    """Return (packet id, reason code). Raises ProtocolError `malformed`."""
    if len(body) < _IDENTIFIER_BYTES:
        raise ProtocolError("malformed")
    return int.from_bytes(body[:2], "big"), body[2] if len(body) > _IDENTIFIER_BYTES else 0


def read_publish(first: int, body: bytes, protocol: int) -> tuple[int, int]:
    """Return (packet id or 0, start of the payload). Raises ProtocolError `malformed`."""
    at = 2 + int.from_bytes(body[:2], "big")
    packet_id = 0
    if first & 0x06:  # QoS 1 or 2
        packet_id = int.from_bytes(body[at : at + 2], "big")
        at += 2
    if protocol == MQTT_5:
        size, at = _properties(body, at)
        at += size
    if at > len(body):
        raise ProtocolError("malformed")
    return packet_id, at


def _integers(body: bytes, at: int) -> dict[int, int]:
    size, at = _properties(body, at)
    end, found = at + size, {}
    if end > len(body):
        raise ProtocolError("malformed")
    while at < end:
        identifier, at = body[at], at + 1
        width = _FIXED_PROPERTY_BYTES.get(identifier)
        if width is None:  # texts: one, or two for a user's own property
            for _ in range(2 if identifier == 0x26 else 1):
                at += 2 + int.from_bytes(body[at : at + 2], "big")
            continue
        found[identifier] = int.from_bytes(body[at : at + width], "big")
        at += width
    return found


def _properties(body: bytes, at: int) -> tuple[int, int]:
    found = _read_length(body, at)
    if found is None:
        raise ProtocolError("malformed")
    return found


def _read_length(data: bytes, at: int) -> tuple[int, int] | None:
    """Return (value, end) of a variable byte integer; None while incomplete."""
    value = shift = 0
    for byte in data[at : at + _LENGTH_BYTES]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and shift:
                raise ProtocolError("malformed", "a length with needless bytes")
            return value, at
        shift += 7
    if shift == 7 * _LENGTH_BYTES:
        raise ProtocolError("malformed", "a length that never ends")
    return None


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
