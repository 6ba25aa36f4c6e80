"""Fields in their range, signatures, and tensors as safetensors writes them."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_kit import CLOUD, CLOUD_KEY, PROXY_KEY, manifest
from safetensors.numpy import save

from edgeveil.crypto.labels import HEADER
from edgeveil.errors import ProtocolError
from edgeveil.protocol import messages as m
from edgeveil.protocol.tensors import pack_tensors, tensor_views, unpack_tensors

GOOD = manifest(b"model")
OUT_OF_RANGE = [
    {"deadline_s": -1.0},
    {"grace_s": 10 * 86400 + 1.0},
    {"selected": -1},
    {"selected": 2**31 + 1},
    {"sequence": 2**63},
    {"phase": "train\n"},
    {"commitment": b"short"},
    {"groups": tuple(m.Group("g", 1) for _ in range(1025))},
    {"groups": (m.Group("g\n", 1),)},
    {"at": m.RoundId(b"J" * 15, 1, 0)},
    {"blob": m.Blob(b"x" * 32, 1, 0)},
]


@pytest.mark.parametrize("changes", OUT_OF_RANGE, ids=lambda c: repr(c)[:50])
def test_a_field_out_of_range_is_refused(changes):
    raw = msgspec.msgpack.encode(msgspec.structs.replace(GOOD, **changes))
    with pytest.raises(ProtocolError, match="malformed"):
        m.decode_header(m.Envelope("cloud", raw, bytes(64)))


def test_tensors_are_real_numbers():
    with pytest.raises(ProtocolError, match="malformed_tensors"):
        unpack_tensors(save({"w": np.ones(3, np.complex64)}))
    with pytest.raises(ValueError, match="real numbers, not complex64"):
        pack_tensors({"w": np.ones(3, np.complex64)})


REAL = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
REAL += ["float16", "float32", "float64"]
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
ARRAYS = st.builds(lambda kind, shape: np.ones(shape, kind), st.sampled_from(REAL), SHAPES)


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


def test_a_signature_binds_signer_key_payload_and_label():
    header = CLOUD.header(GOOD)
    m.check_signature(header, "cloud", CLOUD_KEY, HEADER)
    other = msgspec.structs.replace
    forged = [
        other(header, payload=header.payload + b"\0"),
        other(header, signature=bytes(64)),
        CLOUD.note(m.Want(b"J" * 16)).body,
    ]
    for signed, key in [(one, CLOUD_KEY) for one in forged] + [(header, PROXY_KEY)]:
        with pytest.raises(ProtocolError, match="forged"):
            m.check_signature(signed, "cloud", key, HEADER)
    for name, key in (("proxy", PROXY_KEY), ("cloud", None)):
        with pytest.raises(ProtocolError, match="unknown_signer"):
            m.check_signature(header, name, key, HEADER)


def test_a_data_set_s_tag_is_the_same_for_all_time():
    assert m.data_set_tag("digits").hex() == "aa74d3144595628955a09779ac5b7234"
    assert m.data_set_tag("digit") != m.data_set_tag("digits")
