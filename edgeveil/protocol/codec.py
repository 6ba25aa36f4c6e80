"""Bytes to messages and back. All validation of form happens here, once.

A frame is one version byte and a msgpack array. The size is checked before anything is parsed;
an array or string header longer than the frame is refused by the parser before memory is taken.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from edgeveil.errors import ProtocolError
from edgeveil.protocol.messages import Body, Header, Message, Signed

VERSION = 1

_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_headers: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)
_bodies: msgspec.msgpack.Decoder[Body] = msgspec.msgpack.Decoder(Body)

T = TypeVar("T")


def encode(message: Message) -> bytes:
    """The frame of a message."""
    return bytes((VERSION,)) + _encoder.encode(message)


def decode(frame: bytes, limit_bytes: int) -> Message:
    """The message of a frame.

    Raises ProtocolError `oversized`, `unknown_version` or `malformed`.
    """
    if len(frame) > limit_bytes:
        raise ProtocolError("oversized", f"{len(frame)} bytes where {limit_bytes} are allowed")
    if not frame or frame[0] != VERSION:
        raise ProtocolError("unknown_version")
    return _parse(_messages, memoryview(frame)[1:])


def encode_inner(value: Header | Body) -> bytes:
    """The bytes of a header or body: what is signed."""
    return _encoder.encode(value)


def decode_header(signed: Signed) -> Header:
    """The header inside; form only, the signature is checked by `envelope`."""
    return _parse(_headers, signed.payload)


def decode_body(signed: Signed) -> Body:
    """The body inside; form only, the signature is checked by `envelope`."""
    return _parse(_bodies, signed.payload)


def _parse(decoder: msgspec.msgpack.Decoder[T], data: bytes | memoryview) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, OverflowError, UnicodeDecodeError):
        # The text of the error may quote the input, so it is not passed on.
        raise ProtocolError("malformed") from None
