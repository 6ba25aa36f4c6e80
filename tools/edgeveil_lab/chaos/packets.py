"""As much of MQTT as a relay needs that spoils single publications: where packets end and begin."""

from __future__ import annotations

from collections.abc import Iterator

from edgeveil.errors import ProtocolError

_CONNECT, _PUBLISH = 1, 3
_VERSION_5 = 5
_LENGTH_BYTES = 4


class Packets:
    """Cuts one direction of a connection into whole packets."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The packets that are complete now; ProtocolError("malformed") where none can be."""
        self._rest += data
        while (size := _packet_bytes(self._rest)) is not None and size <= len(self._rest):
            packet = bytes(self._rest[:size])
            del self._rest[:size]
            yield packet


def version_of(packet: bytes) -> int | None:
    """The protocol version that a CONNECT asks for, 4 or 5; None for any other packet."""
    body = _body(packet)
    if packet[0] >> 4 != _CONNECT or body is None:
        return None
    at = body + 2 + int.from_bytes(packet[body : body + 2], "big")
    return packet[at] if at < len(packet) else None


def is_publish(packet: bytes) -> bool:
    """Whether it carries a message."""
    return packet[0] >> 4 == _PUBLISH


def payload_start(packet: bytes, version: int) -> int:
    """Where the payload of a PUBLISH begins; its length where there is none to find."""
    at = _body(packet)
    if at is None:
        return len(packet)
    at += 2 + int.from_bytes(packet[at : at + 2], "big")
    if packet[0] & 0b110:  # a packet identifier comes with QoS 1 and 2
        at += 2
    if version == _VERSION_5:
        properties = _variable(packet, at)
        if properties is None:
            return len(packet)
        at = properties[1] + properties[0]
    return min(at, len(packet))


def flipped(packet: bytes, at: int) -> bytes:
    """The same with one bit of the byte `at` the other way round."""
    return packet[:at] + bytes([packet[at] ^ 0x20]) + packet[at + 1 :]


def _packet_bytes(data: bytes | bytearray) -> int | None:
    found = _variable(data, 1)
    if found is None and len(data) > _LENGTH_BYTES:
        raise ProtocolError("malformed", "a length that never ends")
    return None if found is None else found[0] + found[1]


def _body(packet: bytes) -> int | None:
    found = _variable(packet, 1)
    return None if found is None else found[1]


def _variable(data: bytes | bytearray, at: int) -> tuple[int, int] | None:
    """(value, where it ends) of a variable byte integer; None while it is not all there."""
    value = 0
    for place, byte in enumerate(data[at : at + _LENGTH_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return value, at + place + 1
    return None
