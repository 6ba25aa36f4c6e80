"""The chunked stream: altered, cut, moved, repeated, extended, or from elsewhere: refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.crypto import chunked as chunked_module
from edgeveil.crypto.chunked import (
    HEADER_BYTES,
    TAG_BYTES,
    chunked_bytes,
    commit,
    commits_to,
    open_chunked,
    seal_chunked,
)
from edgeveil.crypto.keys import ContentKey
from edgeveil.errors import CryptoError

KEY = ContentKey.from_bytes(bytes(range(32)))
CONTEXT = b"round 3"
CHUNK = 8


def chunks(stream):
    size = CHUNK + TAG_BYTES
    return [stream[at : at + size] for at in range(HEADER_BYTES, len(stream), size)]


def refused(stream, key=KEY, context=CONTEXT):
    with pytest.raises(CryptoError):
        open_chunked(key, context, stream)
    return True


@given(text=st.binary(max_size=100), chunk=st.integers(1, 64))
@settings(max_examples=100, deadline=None)
def test_round_trip_and_size(text, chunk):
    stream = seal_chunked(KEY, CONTEXT, text, chunk)
    assert len(stream) == chunked_bytes(len(text), chunk)
    assert open_chunked(KEY, CONTEXT, stream) == text


@pytest.mark.parametrize("size", [0, 1, 8, 17])
def test_every_altered_byte_and_every_cut_is_noticed(size):
    stream = seal_chunked(KEY, CONTEXT, bytes(size), CHUNK)
    for position in range(len(stream)):
        assert refused(stream[:position])
        for change in (1, 128):
            broken = bytearray(stream)
            broken[position] ^= change
            assert refused(bytes(broken))


@given(text=st.binary(min_size=9, max_size=48), data=st.data())
@settings(max_examples=60, deadline=None)
def test_moved_dropped_and_repeated_chunks_are_noticed(text, data):
    stream = seal_chunked(KEY, CONTEXT, text, CHUNK)
    head, body = stream[:HEADER_BYTES], chunks(stream)
    places = st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=len(body) + 2)
    order = data.draw(places.filter(lambda found: found != list(range(len(body)))))
    assert refused(head + b"".join(body[at] for at in order))


def test_splicing_and_another_key_or_context_are_refused():
    stream, other = (seal_chunked(KEY, CONTEXT, bytes(16), CHUNK) for _ in range(2))
    assert stream != other
    assert refused(stream + bytes(1))
    assert refused(stream + other[HEADER_BYTES:])
    assert refused(stream[:HEADER_BYTES] + other[HEADER_BYTES:])
    assert refused(stream[:HEADER_BYTES] + chunks(stream)[0] + chunks(other)[1])
    assert refused(stream, key=ContentKey.generate())
    assert refused(stream, context=b"round 4")


def test_a_commitment_binds_key_and_context():
    made = commit(KEY, CONTEXT)
    assert len(made) == 32
    assert commits_to(made, KEY, CONTEXT)
    assert not commits_to(made, ContentKey.generate(), CONTEXT)
    assert not commits_to(made, KEY, CONTEXT + b"!")
    assert not commits_to(made[:-1], KEY, CONTEXT)


def test_an_empty_last_chunk_behind_full_ones_is_refused_even_from_the_key_owner():
    head = seal_chunked(KEY, CONTEXT, b"", CHUNK)[:HEADER_BYTES]
    aead = chunked_module._aead(KEY, head[:32], CHUNK)
    full = aead.encrypt(chunked_module._nonce(0, last=False), bytes(CHUNK), CONTEXT)
    empty = aead.encrypt(chunked_module._nonce(1, last=True), b"", CONTEXT)
    ending = aead.encrypt(chunked_module._nonce(1, last=True), b"x", CONTEXT)
    assert open_chunked(KEY, CONTEXT, head + full + ending) == bytes(CHUNK) + b"x"
    assert refused(head + full + empty)
