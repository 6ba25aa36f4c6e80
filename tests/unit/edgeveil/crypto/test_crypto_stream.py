"""The chunked stream: altered, cut, moved, repeated, extended, or from elsewhere: refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.crypto import stream as stream_module
from edgeveil.crypto.keys import ContentKey
from edgeveil.crypto.stream import (
    HEADER_BYTES,
    TAG_BYTES,
    commit,
    commits_to,
    open_stream,
    seal_stream,
    stream_bytes,
)
from edgeveil.errors import CryptoError

KEY = ContentKey.from_bytes(bytes(range(32)))
CONTEXT = b"round 3"
CHUNK = 8


def chunks(stream):
    size = CHUNK + TAG_BYTES
    return [stream[at : at + size] for at in range(HEADER_BYTES, len(stream), size)]


def refused(stream, key=KEY, context=CONTEXT):
    try:
        open_stream(key, context, stream)
    except CryptoError:
        return True
    return False


@given(text=st.binary(max_size=100), chunk=st.integers(1, 64))
@settings(max_examples=100, deadline=None)
def test_round_trip_and_size(text, chunk):
    stream = seal_stream(KEY, CONTEXT, text, chunk)
    assert len(stream) == stream_bytes(len(text), chunk)
    assert open_stream(KEY, CONTEXT, stream) == text


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17])
def test_every_altered_byte_is_noticed(size):
    stream = seal_stream(KEY, CONTEXT, bytes(size), CHUNK)
    for position in range(len(stream)):
        for change in (1, 128):
            broken = bytearray(stream)
            broken[position] ^= change
            assert refused(bytes(broken)), position


@pytest.mark.parametrize("size", [0, 1, 8, 9, 16, 17, 24])
def test_every_cut_is_noticed(size):
    stream = seal_stream(KEY, CONTEXT, bytes(size), CHUNK)
    assert all(refused(stream[:end]) for end in range(len(stream)))


@given(text=st.binary(min_size=9, max_size=48), data=st.data())
@settings(max_examples=60, deadline=None)
def test_moved_dropped_and_repeated_chunks_are_noticed(text, data):
    stream = seal_stream(KEY, CONTEXT, text, CHUNK)
    head, body = stream[:HEADER_BYTES], chunks(stream)
    order = data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=len(body) + 2))
    moved = head + b"".join(body[at] for at in order)
    assert refused(moved) == (order != list(range(len(body))))


def test_extension_and_splicing_are_noticed():
    stream = seal_stream(KEY, CONTEXT, bytes(16), CHUNK)
    other = seal_stream(KEY, CONTEXT, bytes(16), CHUNK)
    assert refused(stream + bytes(1))
    assert refused(stream + other[HEADER_BYTES:])
    assert refused(stream[:HEADER_BYTES] + other[HEADER_BYTES:])
    assert refused(stream[:HEADER_BYTES] + chunks(stream)[0] + chunks(other)[1])


def test_another_key_or_context_is_refused():
    stream = seal_stream(KEY, CONTEXT, b"model", CHUNK)
    assert refused(stream, key=ContentKey.generate())
    assert refused(stream, context=b"round 4")
    assert seal_stream(KEY, CONTEXT, b"model", CHUNK) != stream


def test_a_commitment_binds_key_and_context():
    made = commit(KEY, CONTEXT)
    assert len(made) == 32
    assert commits_to(made, KEY, CONTEXT)
    assert not commits_to(made, ContentKey.generate(), CONTEXT)
    assert not commits_to(made, KEY, CONTEXT + b"!")
    assert not commits_to(made[:-1], KEY, CONTEXT)


def test_an_empty_last_chunk_behind_full_ones_is_refused_even_from_the_key_owner():
    head = seal_stream(KEY, CONTEXT, b"", CHUNK)[:HEADER_BYTES]
    aead = stream_module._aead(KEY, head[:32], CHUNK)
    full = aead.encrypt(stream_module._nonce(0, last=False), bytes(CHUNK), CONTEXT)
    empty = aead.encrypt(stream_module._nonce(1, last=True), b"", CONTEXT)
    ending = aead.encrypt(stream_module._nonce(1, last=True), b"x", CONTEXT)
    assert open_stream(KEY, CONTEXT, head + full + ending) == bytes(CHUNK) + b"x"
    assert refused(head + full + empty)
