"""Blobs come together from any order, and never from anything but their own bytes."""

import hashlib
import json
import tracemalloc
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_kit import CLOUD, manifest

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.messages import Offer, encode
from edgeveil.protocol.sealed import decode_package
from edgeveil.protocol.tensors import tensor_views, unpack_tensors

SIZE = 256


def new_fetch(parts_count, **options):
    data = hashlib.shake_256(b"pulled").digest(SIZE * parts_count)
    header = manifest(data, blob=tr.describe(data, SIZE))
    fetch = tr.Fetch(CLOUD.offer(header), header, len(data), **options)
    return fetch, list(tr.parts(header.blob, data))


def test_a_bad_part_changes_nothing_and_what_lacks_is_asked_for_after_a_silent_look():
    fetch, (good, second, _) = new_fetch(3)
    fetch.add(second)
    changes = [{"data": data, "crc": zlib.crc32(data)} for data in (good.data[1:], bytes(SIZE + 1))]
    changes += [{"data": bytes(SIZE)}, {"index": 2**31}, {"index": 3, "data": b"", "crc": 0}]
    for change in changes:
        with pytest.raises(ProtocolError, match="bad_part"):
            fetch.add(msgspec.structs.replace(good, **change))
    assert fetch.next_need(timer=False) is None  # pushed parts are no reason to ask
    assert fetch.next_need(timer=True) is None  # something came since the last look
    assert fetch.next_need(timer=True).indices == (0, 2)


@given(st.integers(0, 5 * 2048), st.integers(1024, 2048))
def test_no_frame_of_a_transfer_passes_the_packet_size(size, packet_bytes):
    data = bytes(size)
    header = manifest(data, blob=tr.describe(data, packet_bytes - tr.FRAME_OVERHEAD_BYTES))
    out = tr.sends(fx.ProxyAddress(), CLOUD.header(header), header.blob, data, packet_bytes)
    assert all(len(encode(send.message)) <= packet_bytes for send in out)
    inline = isinstance(out[0].message, Offer) and out[0].message.data == data
    assert inline or len(out) == 1 + header.blob.parts


@given(
    st.integers(tr.NEED_LIMIT + 1, 3 * tr.NEED_LIMIT),
    st.sampled_from([tr.NEED_LIMIT, 2 * tr.NEED_LIMIT + 3]),
    st.data(),
)
def test_no_more_than_the_credit_is_ever_on_its_way(count, credit, draw):
    fetch, pieces = new_fetch(count, credit=credit)
    assert fetch.next_need(timer=True).indices == tuple(range(tr.NEED_LIMIT))
    on_its_way, most = list(range(tr.NEED_LIMIT)), 0
    while on_its_way:
        place = draw.draw(st.integers(0, len(on_its_way) - 1))
        fetch.add(pieces[on_its_way.pop(place)])
        need = fetch.next_need(timer=False)
        assert need is None or len(need.indices) <= tr.NEED_LIMIT
        on_its_way += need.indices if need else ()
        most = max(most, len(on_its_way))
    assert min(count, credit) - tr.NEED_LIMIT // 2 <= most <= credit, "used, and kept to"
    assert fetch.complete


@given(st.binary(max_size=4096))
def test_parts_carry_the_crc_that_every_zlib_knows(data):
    assert tr.crc32(b"123456789") == 0xCBF43926
    assert tr.crc32(data) == zlib.crc32(data) == tr.crc32(memoryview(data))


ROOM = 1 << 20

HUGE = {
    "an array of 2^32 items": b"\xdd\xff\xff\xff\xff",
    "4 GiB of bytes": b"\xc6\xff\xff\xff\xff",
    "an extension of 4 GiB": b"\xc9\xff\xff\xff\xff\x01",
    "an offer with 4 GiB": b"\x93\xa5offer\x93\xa5cloud\xc6\xff\xff\xff\xff",
    "a need of 2^32 parts": b"\x93\xa4need\xc4\x20" + bytes(32) + b"\xdd\xff\xff\xff\xff",
    "a need of 60,000 parts": b"\x93\xa4need\xc4\x20" + bytes(32) + b"\xdc\xea\x60" + bytes(60_000),
    "arrays in arrays": b"\x91" * 60_000,
}


def peak_bytes(read):
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("raw", HUGE.values(), ids=HUGE)
def test_a_length_bomb_is_refused_by_its_header(raw):
    readers = [
        lambda: m.decode(bytes((m.VERSION,)) + raw, 1 << 16),
        lambda: m.decode_body(m.Envelope("cloud", raw, bytes(64))),
        lambda: decode_package(raw),
    ]
    assert max(map(peak_bytes, readers)) < ROOM


def tensors(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


TENSORS = {
    "a header of 2^63 bytes": tensors({}, length=2**63),
    "2^62 numbers in 4 bytes": tensors({"a": entry([2**62], 0, 4)}, bytes(4)),
    "axes that overflow": tensors({"a": entry([2**32, 2**32], 0, 0)}),
    "an axis below zero": tensors({"a": entry([-1], 0, 4)}, bytes(4)),
    "data beyond the end": tensors({"a": entry([4], 0, 16)}, bytes(4)),
    "an end before its start": tensors({"a": entry([1], 4, 0)}, bytes(4)),
    "two on the same bytes": tensors({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, bytes(4)),
    "objects": tensors({"a": entry([1], 0, 8, "O")}, bytes(8)),
    "a header in a header": tensors(b"[" * 60_000),
    "no header": b"\0\0",
}


@pytest.mark.parametrize("raw", TENSORS.values(), ids=TENSORS)
def test_tensors_that_claim_more_than_they_hold_are_refused(raw):
    for read in (unpack_tensors, tensor_views):
        assert peak_bytes(lambda read=read: read(raw)) < ROOM
