"""Signatures, sealing: any altered byte, key, label or context is noticed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey, sign, verify
from edgeveil.crypto.sealing import SEAL_OVERHEAD_BYTES, open_sealed, seal
from edgeveil.errors import CryptoError

SIGNER = SigningKey.from_bytes(bytes(range(32)))
OPENER = OpeningKey.from_bytes(bytes(range(32)))
OTHER = OpeningKey.from_bytes(bytes(range(1, 33)))
INFO = b"edgeveil/v1/segment\0context"
LABEL = b"edgeveil/v1/manifest"


def altered(text, position, change):
    position %= len(text)
    return text[:position] + bytes([text[position] ^ change]) + text[position + 1 :]


@given(payload=st.binary(max_size=200), position=st.integers(0), change=st.integers(1, 255))
@settings(max_examples=50, deadline=None)
def test_a_signature_covers_label_and_payload(payload, position, change):
    signature = sign(SIGNER, LABEL, payload)
    key = SIGNER.public()
    assert verify(key, LABEL, payload, signature)
    assert not verify(key, LABEL, payload, altered(signature, position, change))
    assert not verify(key, LABEL, payload + b"\0", signature)
    assert not verify(key, b"edgeveil/v1/release", payload, signature)
    assert not verify(SigningKey.generate().public(), LABEL, payload, signature)
    if payload:
        assert not verify(key, LABEL, altered(payload, position, change), signature)
    for size in (0, 63, 65):
        assert not verify(key, LABEL, payload, bytes(size))


@pytest.mark.parametrize("label", [b"", b"a\0b"])
def test_a_label_cannot_swallow_the_payload(label):
    with pytest.raises(CryptoError, match="label"):
        sign(SIGNER, label, b"x")


@given(text=st.binary(max_size=300), position=st.integers(0), change=st.integers(1, 255))
@settings(max_examples=50, deadline=None)
def test_only_the_owner_opens_and_any_change_closes(text, position, change):
    sealed = seal(OPENER.public(), INFO, text)
    assert sealed != seal(OPENER.public(), INFO, text)
    assert len(sealed) == len(text) + SEAL_OVERHEAD_BYTES
    assert open_sealed(OPENER, INFO, sealed) == text
    assert open_sealed(OTHER, INFO, sealed) is None
    assert open_sealed(OPENER, INFO + b"x", sealed) is None
    assert open_sealed(OPENER, INFO, altered(sealed, position, change)) is None
    assert open_sealed(OPENER, INFO, sealed + b"\0") is None
    assert open_sealed(OPENER, INFO, sealed[: position % len(sealed)]) is None


@pytest.mark.parametrize("raw", [bytes(32), b"\1" + bytes(31)])
def test_a_low_order_key_is_refused_not_used(raw):
    with pytest.raises(CryptoError, match="nothing can be sealed"):
        seal(SealingKey.from_bytes(raw), INFO, b"x")
    assert open_sealed(OPENER, INFO, raw + bytes(48)) is None
