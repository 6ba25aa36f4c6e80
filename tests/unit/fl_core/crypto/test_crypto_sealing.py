"""Signatures, sealing, stanzas: any altered byte, key, label or context is noticed."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_core.crypto import (
    SEAL_OVERHEAD_BYTES,
    STANZA_BYTES,
    ContentKey,
    CryptoError,
    OpeningKey,
    SealingKey,
    SigningKey,
    open_sealed,
    open_stanzas,
    seal,
    seal_stanzas,
    sign,
    stanza_area_bytes,
    verify,
)

SIGNER = SigningKey.from_bytes(bytes(range(32)))
OPENER = OpeningKey.from_bytes(bytes(range(32)))
OTHER = OpeningKey.from_bytes(bytes(range(1, 33)))
INFO = b"edgeveil/v1/segment\0context"
LABEL = b"edgeveil/v1/manifest"


def altered(text: bytes, position: int, change: int) -> bytes:
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


@pytest.mark.parametrize("size", [0, 63, 65, 1000])
def test_a_signature_of_another_length_is_false(size):
    assert not verify(SIGNER.public(), LABEL, b"x", bytes(size))


@pytest.mark.parametrize("label", [b"", b"a\0b"])
def test_a_label_cannot_swallow_the_payload(label):
    with pytest.raises(CryptoError, match="label"):
        sign(SIGNER, label, b"x")


@given(text=st.binary(max_size=300), position=st.integers(0), change=st.integers(1, 255))
@settings(max_examples=50, deadline=None)
def test_only_the_owner_opens_and_any_change_closes(text, position, change):
    sealed = seal(OPENER.public(), INFO, text)
    assert len(sealed) == len(text) + SEAL_OVERHEAD_BYTES
    assert open_sealed(OPENER, INFO, sealed) == text
    assert open_sealed(OTHER, INFO, sealed) is None
    assert open_sealed(OPENER, INFO + b"x", sealed) is None
    assert open_sealed(OPENER, INFO, altered(sealed, position, change)) is None
    assert open_sealed(OPENER, INFO, sealed + b"\0") is None


@pytest.mark.parametrize("size", [0, 1, 31, 32, 47])
def test_a_short_ciphertext_is_not_for_me(size):
    assert open_sealed(OPENER, INFO, bytes(size)) is None


def test_two_seals_of_one_text_differ():
    assert seal(OPENER.public(), INFO, b"x") != seal(OPENER.public(), INFO, b"x")


@pytest.mark.parametrize("raw", [bytes(32), b"\1" + bytes(31)])
def test_a_low_order_key_is_refused_not_used(raw):
    with pytest.raises(CryptoError, match="nothing can be sealed"):
        seal(SealingKey.from_bytes(raw), INFO, b"x")
    assert open_sealed(OPENER, INFO, raw + bytes(48)) is None


@pytest.mark.parametrize(
    ("recipients", "stanzas"),
    [(0, 16), (1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (1000, 1024)],
)
def test_the_area_tells_only_the_bucket(recipients, stanzas):
    assert stanza_area_bytes(recipients) == stanzas * 80


@given(recipients=st.integers(0, 20), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_selected_keys_open_and_no_other(recipients, seed):
    keys = [OpeningKey.generate() for _ in range(recipients)]
    content = ContentKey.generate()
    area = seal_stanzas(content, [key.public() for key in keys], INFO, random.Random(seed).shuffle)
    assert len(area) == stanza_area_bytes(recipients)
    assert all(open_stanzas(key, INFO, area) == content for key in keys)
    assert open_stanzas(OTHER, INFO, area) is None
    assert all(open_stanzas(key, INFO + b"!", area) is None for key in keys)


def place(key: OpeningKey, area: bytes) -> int:
    """Which stanza opens for `key`."""
    starts = range(0, len(area), STANZA_BYTES)
    opened = [open_sealed(key, INFO, area[at : at + STANZA_BYTES]) is not None for at in starts]
    assert sum(opened) == 1
    return opened.index(True)


def test_the_order_is_random_by_default_and_the_dummies_are_mixed_in():
    public = OPENER.public()
    seen = {place(OPENER, seal_stanzas(ContentKey.generate(), [public], INFO)) for _ in range(40)}
    assert len(seen) > 3
    assert max(seen) > 0


def test_dummies_look_like_sealed_texts():
    """Each dummy's first half is a usable curve point, as `enc` always is."""
    area = seal_stanzas(ContentKey.generate(), [], INFO)
    stanzas = [area[at : at + STANZA_BYTES] for at in range(0, len(area), STANZA_BYTES)]
    assert len(set(stanzas)) == 16
    for stanza in stanzas:
        point = int.from_bytes(stanza[:32], "little")
        prime = 2**255 - 19
        square = (point**3 + 486662 * point**2 + point) % prime
        assert pow(square, (prime - 1) // 2, prime) in (0, 1)


@pytest.mark.parametrize("cut", [1, 79, 81])
def test_a_broken_area_is_not_for_me(cut):
    area = seal_stanzas(ContentKey.generate(), [OPENER.public()], INFO)
    assert open_stanzas(OPENER, INFO, area[:-cut]) is None
    assert open_stanzas(OPENER, INFO, b"") is None


def test_an_altered_stanza_no_longer_opens():
    area = seal_stanzas(ContentKey.generate(), [OPENER.public()], INFO)
    start = place(OPENER, area) * STANZA_BYTES
    for offset in range(STANZA_BYTES):
        assert open_stanzas(OPENER, INFO, altered(area, start + offset, 1)) is None
