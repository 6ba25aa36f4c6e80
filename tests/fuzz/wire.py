"""Targets: frames, what they carry, blobs in parts, and topics."""

import hashlib
import zlib

import msgspec
import numpy as np

from edgeveil.errors import ProtocolError
from edgeveil.protocol import messages as m
from edgeveil.protocol.effects import CloudAddress, DeviceAddress, ProxyAddress
from edgeveil.protocol.messages import decode, decode_body, decode_header, encode, encode_inner
from edgeveil.protocol.sealed import (
    JobPackage,
    ReleasePackage,
    RoundPackage,
    decode_package,
    encode_package,
)
from edgeveil.protocol.tensors import pack_tensors, unpack_tensors
from edgeveil.protocol.transfer import NEED_LIMIT, Fetch, describe, parts
from edgeveil.transport.link import Topics
from tests.fuzz.samples import BODIES, HEADERS, signer
from tests.fuzz.target import Tape, Target, demand

TOPICS = Topics()
_LIMITS = (64, 1024, 65536)


def shape(value):
    """Looks at every field: each kind of message is a path of its own for the coverage."""
    match value:
        case msgspec.Struct():
            return sum(shape(getattr(value, name)) for name in value.__struct_fields__)
        case tuple():
            return sum(map(shape, value))
        case bytes() | str():
            return len(value)
        case bool() | int() | float() | None:
            return 1
    raise TypeError(type(value))


def _frame(data):
    message = decode(data[1:], _LIMITS[data[0] % 3] if data else 0)
    demand(decode(encode(message), 1 << 20) == message, "a message survives the wire")
    demand(shape(message) <= 4 * len(data), "a message is no larger than its frame")


def _frames():
    header = signer("cloud").header(HEADERS[0])
    messages = [
        m.Offer(header, b"blob"),
        m.BlobPart(bytes(32), 1, 0, b"data"),
        m.Need(bytes(32), (0, 1, 2)),
        *(signer("proxy").note(body) for body in BODIES),
    ]
    yield from (b"\2" + encode(message) for message in messages)


def _inner(data):
    read = (decode_header, decode_body)[data[0] % 2 if data else 0]
    found = read(m.Envelope("cloud", data[1:], bytes(64)))
    again = m.Envelope("cloud", encode_inner(found), bytes(64))
    demand(read(again) == found, "a header or body survives the wire")
    demand(shape(found) <= 4 * len(data), "a header is no larger than its bytes")


def _package(data):
    package = decode_package(data)
    demand(decode_package(encode_package(package)) == package, "a package survives")
    demand(shape(package) <= 4 * len(data), "a package is no larger than its bytes")


def _packages():
    yield encode_package(JobPackage(b"{}", b"graph", (b"one", b"two")))
    yield encode_package(RoundPackage("train", 3, True, b"tensors", b"model"))
    yield encode_package(ReleasePackage("quickstart", b"onnx"))


def _tensors(data):
    found = unpack_tensors(data)
    demand(sum(a.nbytes for a in found.values()) <= len(data), "arrays lie inside the bytes")
    for name, array in found.items():
        demand(bool(array.dtype.kind in "buif" and isinstance(name, str)), "arrays hold numbers")


def _some_tensors():
    yield pack_tensors({"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    yield pack_tensors({"a": np.ones(3, np.int64), "b": np.zeros((0, 2), np.float16)})
    yield pack_tensors({})


def _assembly(data):
    tape = Tape(data)
    true = bytes(range(256)) * tape.number(6)
    honest = describe(true, tape.choice((256, 300, 1024)))
    claims = (honest.size_bytes, 0, 1, 2**20, 2**21, 2**40, tape.number(2**41))
    blob = m.Blob(
        tape.choice((honest.digest, bytes(32))),
        tape.choice(claims),
        tape.choice((honest.part_bytes, 1, 256, 2**28)),
    )
    header, received = m.Roster(1, blob), 0
    fetch = Fetch(m.Offer(signer("proxy").header(header)), header, 2**20)
    while not tape.over:
        what = tape.number(4)
        try:
            if what == 0:
                piece = tape.take(tape.number(300))
                index = tape.choice((0, 1, blob.parts - 1, blob.parts, tape.number(2**31)))
                fetch.add(m.BlobPart(blob.digest, index, zlib.crc32(piece), piece))
                received += len(piece)
            elif what == 1:
                for piece_ in parts(honest, true):
                    fetch.add(piece_)
                    received += len(piece_.data)
            elif what == 2:
                need = fetch.next_need(timer=True)
                demand(not need or len(need.indices) <= NEED_LIMIT, "a request within the credit")
            elif fetch.complete:
                whole = fetch.finish()
                demand(hashlib.sha256(whole).digest() == blob.digest, "the blob is the one")
        except ProtocolError:
            continue
    held = sum(map(len, fetch._parts.values()))
    demand(held <= received, "memory grows with what arrives")


def _tapes():
    yield bytes(64)
    yield bytes(range(256))
    yield bytes((3, 0, 0, 0, 0, 0, 1, 3, 1, 2, 0, 5, 0, 97, 97, 97, 97, 97, 2))
    yield bytes((3, 0, 2, 0, 1, 2, 0, 2, 0, 3, 2, 1, 2, 0, 2, 1))


def _topic(data):
    topic = data.decode("utf-8", "replace")
    sender = TOPICS.sender_of(topic)
    if isinstance(sender, DeviceAddress):
        demand(TOPICS.device_up(sender.id) == topic, "a device speaks on its own topic alone")
    elif isinstance(sender, CloudAddress):
        demand(topic == TOPICS.cloud_out, "the cloud speaks on one topic")
    elif isinstance(sender, ProxyAddress):
        known = (TOPICS.all_down, TOPICS.cloud_in)
        demand(topic in known or topic.endswith("/down"), "the proxy speaks on its topics")
    else:
        demand(sender is None, "nobody else")


def _topics():
    device = "0123456789abcdef"
    for topic in (TOPICS.device_up(device), TOPICS.device_down(device), TOPICS.all_down):
        yield topic.encode()
    yield TOPICS.cloud_in.encode()
    yield TOPICS.cloud_out.encode()


_TAGS = [bytes((0xA0 + len(tag),)) + tag for tag in (b"offer", b"part", b"need", b"note", b"ack")]
_BOMBS = [b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x91" * 16]

TARGETS = {
    "frame": Target(_frame, _frames, (ProtocolError,), words=[*_TAGS, *_BOMBS]),
    "inner": Target(
        _inner,
        lambda: [
            *(b"\0" + encode_inner(header) for header in HEADERS),
            *(b"\1" + encode_inner(body) for body in BODIES),
        ],
        (ProtocolError,),
        words=_BOMBS,
    ),
    "package": Target(_package, _packages, (ProtocolError,), words=_BOMBS),
    "tensors": Target(
        _tensors,
        _some_tensors,
        (ProtocolError,),
        words=[b'"dtype":"F32"', b'"shape":[1,2]', b'"data_offsets":[0,8]', b"9223372036854775807"],
    ),
    "assembly": Target(_assembly, _tapes, (ProtocolError,), max_bytes=1024),
    "topic": Target(_topic, _topics, (ProtocolError,), max_bytes=128, words=[b"/up", b"/down"]),
}
