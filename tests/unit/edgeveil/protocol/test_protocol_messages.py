"""Every message survives the wire; nothing else gets in."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_kit import CLOUD, CLOUD_KEY, PROXY_KEY, manifest
from safetensors.numpy import save

from edgeveil.crypto.labels import HEADER
from edgeveil.errors import ProtocolError
from edgeveil.protocol import messages as m
from edgeveil.protocol.tensors import pack_tensors, tensor_views, unpack_tensors
from tests.fuzz.samples import BODIES, HEADERS

LIMIT = 1 << 22

WIRE = [
    m.Offer(CLOUD.header(manifest(b"model")), b"blob"),
    m.BlobPart(bytes(32), 1, 0, b"data"),
    m.Need(bytes(32), (0, 1, 2)),
    CLOUD.note(m.Want(b"J" * 16)),
]


@pytest.mark.parametrize("inner", [*HEADERS, *BODIES], ids=lambda one: type(one).__name__)
def test_a_header_is_no_body_and_a_body_no_header(inner):
    carrier = m.Envelope("cloud", m.encode_inner(inner), bytes(64))
    right, wrong = m.decode_header, m.decode_body
    if not isinstance(inner, m.Header):
        right, wrong = wrong, right
    assert right(carrier) == inner
    with pytest.raises(ProtocolError, match="malformed"):
        wrong(carrier)


@pytest.mark.parametrize("message", WIRE)
def test_nothing_may_follow_a_message_and_the_size_is_checked_before_anything_else(message):
    frame = m.encode(message)
    assert m.decode(frame, len(frame)) == message
    with pytest.raises(ProtocolError, match="malformed"):
        m.decode(frame + b"\0", LIMIT)
    with pytest.raises(ProtocolError, match=r"where .* are allowed"):
        m.decode(b"\xff" + frame, len(frame))  # an unknown version too


def _inner(type_, **changes):
    """The wire form of a value whose constraints are not checked."""
    return msgspec.msgpack.encode(msgspec.structs.replace(type_, **changes))


GOOD = manifest(b"model")
OUT_OF_RANGE = [
    {"deadline_s": math.nan},
    {"deadline_s": math.inf},
    {"deadline_s": -1.0},
    {"grace_s": 10 * 86400 + 1.0},
    {"selected": -1},
    {"selected": 2**31 + 1},
    {"sequence": 2**63},
    {"kind": "other"},
    {"phase": "Train"},
    {"phase": "train\n"},
    {"phase": ""},
    {"phase": "a" * 65},
    {"commitment": b"short"},
    {"cloud_key": b"k" * 33},
    {"groups": tuple(m.Group("g", 1) for _ in range(1025))},
    {"groups": (m.Group("g\n", 1),)},
    {"groups": (m.Group("g", -1),)},
    {"at": m.RoundId(b"J" * 15, 1, 0)},
    {"blob": m.Blob(b"x" * 32, -1, 1)},
    {"blob": m.Blob(b"x" * 32, 1, 0)},
    {"blob": m.Blob(b"x" * 32, 2**40 + 1, 1)},
]


@pytest.mark.parametrize("changes", OUT_OF_RANGE, ids=lambda c: repr(c)[:50])
def test_a_field_out_of_range_is_refused(changes):
    assert m.decode_header(m.Envelope("cloud", _inner(GOOD), bytes(64))) == GOOD
    with pytest.raises(ProtocolError) as caught:
        m.decode_header(m.Envelope("cloud", _inner(GOOD, **changes), bytes(64)))
    assert caught.value.reason == "malformed"


TENSORS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array([1], dtype=np.int64)}


def test_tensors_are_real_numbers():
    with pytest.raises(ProtocolError, match="malformed_tensors"):
        unpack_tensors(save({"w": np.ones(3, np.complex64)}))
    with pytest.raises(ValueError, match="real numbers, not complex64"):
        pack_tensors({"w": np.ones(3, np.complex64)})


REAL = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
REAL += ["float16", "float32", "float64"]
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
ARRAYS = st.builds(lambda kind, shape: np.ones(shape, kind), st.sampled_from(REAL), SHAPES)


@settings(max_examples=200)
@given(st.dictionaries(st.text('ab/é"', max_size=4), ARRAYS, max_size=6))
def test_tensors_are_packed_as_the_library_packs_them_and_read_where_they_lie(tensors):
    packed = pack_tensors(tensors)
    whole = {name: np.ascontiguousarray(one) for name, one in tensors.items()}
    assert packed == save(whole)
    assert pack_tensors(tensors, {"format": "pt"}) == save(whole, {"format": "pt"})
    views, copies = tensor_views(packed), unpack_tensors(packed)
    assert views.keys() == copies.keys()
    for name, view in views.items():
        assert (view.dtype, view.shape) == (copies[name].dtype, copies[name].shape)
        assert view.tobytes() == copies[name].tobytes()
        assert not view.flags.owndata and not view.flags.writeable


@settings(max_examples=300)
@given(st.data())
def test_damaged_tensors_are_read_or_refused(data):
    file = bytearray(pack_tensors(TENSORS))
    position = data.draw(st.integers(0, len(file) - 1))
    file[position] = data.draw(st.integers(0, 255))
    for damaged in (bytes(file), bytes(file[:position])):
        for read in (unpack_tensors, tensor_views):
            try:
                read(damaged)
            except ProtocolError as error:
                assert error.reason == "malformed_tensors"


def test_a_signature_binds_signer_key_payload_and_label():
    header = CLOUD.header(GOOD)
    m.check_signature(header, "cloud", CLOUD_KEY, HEADER)
    other = msgspec.structs.replace
    forged = [
        other(header, payload=header.payload + b"\0"),
        other(header, signature=bytes(64)),
        CLOUD.note(m.Want(b"J" * 16)).body,
    ]
    for signed_ in forged:
        with pytest.raises(ProtocolError, match="forged"):
            m.check_signature(signed_, "cloud", CLOUD_KEY, HEADER)
    with pytest.raises(ProtocolError, match="forged"):
        m.check_signature(header, "cloud", PROXY_KEY, HEADER)
    for name, key in (("proxy", PROXY_KEY), ("cloud", None)):
        with pytest.raises(ProtocolError, match="unknown_signer"):
            m.check_signature(header, name, key, HEADER)


def test_a_data_set_s_tag_is_the_same_for_all_time():
    assert m.data_set_tag("digits").hex() == "aa74d3144595628955a09779ac5b7234"
    assert m.data_set_tag("digit") != m.data_set_tag("digits")
