"""Bytes that claim more than they hold are refused by their headers, before memory is taken."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pytest
from protocol_kit import CLOUD

from edgeveil.errors import ProtocolError
from edgeveil.protocol import messages as m
from edgeveil.protocol.sealed import decode_package
from edgeveil.protocol.tensors import unpack_tensors
from edgeveil.protocol.transfer import Assembly

ROOM = 1 << 20
LIMIT = 1 << 16

HUGE = {
    "an array of 2^32 items": b"\xdd\xff\xff\xff\xff",
    "a map of 2^32 items": b"\xdf\xff\xff\xff\xff",
    "4 GiB of bytes": b"\xc6\xff\xff\xff\xff",
    "4 GiB of text": b"\xdb\xff\xff\xff\xff",
    "an extension of 4 GiB": b"\xc9\xff\xff\xff\xff\x01",
    "an offer with 4 GiB": b"\x93\xa5offer\x93\xa5cloud\xc6\xff\xff\xff\xff",
    "a need of 2^32 parts": b"\x93\xa4need\xc4\x20" + bytes(32) + b"\xdd\xff\xff\xff\xff",
    "a need of 60,000 parts": b"\x93\xa4need\xc4\x20" + bytes(32) + b"\xdc\xea\x60" + bytes(60_000),
    "arrays in arrays": b"\x91" * 60_000,
    "maps in maps": b"\x81\xa1a" * 20_000,
    "a number beyond all": b"\xcf" + b"\xff" * 8,
}


def peak_bytes(read: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("raw", HUGE.values(), ids=HUGE)
def test_a_length_bomb_is_refused_by_its_header(raw):
    signed = m.Envelope("cloud", raw, bytes(64))
    readers: list[Callable[[], object]] = [
        lambda: m.decode(bytes((m.VERSION,)) + raw, LIMIT),
        lambda: m.decode_header(signed),
        lambda: m.decode_body(signed),
        lambda: decode_package(raw),
        lambda: unpack_tensors(raw),
    ]
    assert max(map(peak_bytes, readers)) < ROOM


def test_a_frame_above_the_limit_is_not_looked_at():
    frame = m.encode(CLOUD.note(m.Hello("0" * 16))) + bytes(8 << 20)
    assert peak_bytes(lambda: m.decode(frame, LIMIT)) < 1 << 16


def tensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


TENSORS = {
    "a header of 2^63 bytes": tensors({}, length=2**63),
    "a header of 100 MB": tensors({}, length=100_000_000),
    "2^62 numbers in 4 bytes": tensors({"a": entry([2**62], 0, 4)}, bytes(4)),
    "axes that overflow": tensors({"a": entry([2**32, 2**32], 0, 0)}),
    "an axis below zero": tensors({"a": entry([-1], 0, 4)}, bytes(4)),
    "data beyond the end": tensors({"a": entry([4], 0, 16)}, bytes(4)),
    "data before the beginning": tensors({"a": entry([1], -4, 0)}, bytes(4)),
    "an end before its start": tensors({"a": entry([1], 4, 0)}, bytes(4)),
    "two tensors on the same bytes": tensors(
        {"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, bytes(4)
    ),
    "bytes that are nobody's": tensors({"a": entry([1], 0, 4)}, bytes(400)),
    "an unknown type": tensors({"a": entry([1], 0, 4, "F7")}, bytes(4)),
    "objects": tensors({"a": entry([1], 0, 8, "O")}, bytes(8)),
    "a header in a header": tensors(b"[" * 60_000),
    "no header": b"\0\0",
}


@pytest.mark.parametrize("raw", TENSORS.values(), ids=TENSORS)
def test_tensors_that_claim_more_than_they_hold_are_refused(raw):
    assert peak_bytes(lambda: unpack_tensors(raw)) < ROOM


def test_a_blob_takes_no_memory_for_what_it_claims():
    def claim() -> None:
        for size in (2**40, 2**30 + 1):
            Assembly(m.Blob(bytes(32), size, 1 << 16), 1 << 30)

    assert peak_bytes(claim) < 1 << 16
    tracemalloc.start()
    allowed = Assembly(m.Blob(bytes(32), 1 << 30, 256), 1 << 30)
    assert len(allowed.missing().indices) == 16
    assert tracemalloc.get_traced_memory()[1] < 1 << 16
    tracemalloc.stop()
