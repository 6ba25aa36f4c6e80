"""HPKE (RFC 9180, base mode): X25519, HKDF-SHA256, ChaCha20-Poly1305.

The library has no associated data, so all context goes into `info`. A sealed text is `enc (32
bytes) ‖ ciphertext ‖ tag (16 bytes)`.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgeveil.crypto.keys import KEY_BYTES, ContentKey, OpeningKey, SealingKey
from edgeveil.crypto.labels import STANZA_TAG
from edgeveil.crypto.labels import context as bound_to
from edgeveil.errors import CryptoError

SEAL_OVERHEAD_BYTES = 48

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def seal(public: SealingKey, info: bytes, plaintext: bytes | bytearray | memoryview) -> bytes:
    """Encrypt for the owner of `public`; adds 48 bytes. Raises CryptoError for a low-order key."""
    try:
        return _SUITE.encrypt(plaintext, public.library_key(), info)
    except ValueError:
        raise unusable(public) from None


def open_sealed(private: OpeningKey, info: bytes, ciphertext: bytes) -> bytes | None:
    """Return the plaintext, or None for another key or `info`, or an altered or short text."""
    if len(ciphertext) < SEAL_OVERHEAD_BYTES:
        return None
    try:
        return _SUITE.decrypt(ciphertext, private.library_key(), info)
    except (InvalidTag, ValueError):
        return None


def unusable(public: SealingKey) -> CryptoError:
    what = f"nothing can be sealed to the key {public.fingerprint()}"
    return CryptoError(what, fix="enrol the device again with its own key")


TAG_BYTES = 8
STANZA_BYTES = TAG_BYTES + KEY_BYTES + SEAL_OVERHEAD_BYTES
_TEXT_BYTES = STANZA_BYTES - TAG_BYTES - KEY_BYTES  # ciphertext and its tag
SMALLEST_BUCKET = 16
# Two recipients share a tag about once in 2^64 pairs: more equal tags are an attempt to waste a
# device's time.
EQUAL_TAGS_TRIED = 4


def stanza_count(recipients: int) -> int:
    """Return the stanzas for this many recipients: the next power of two, at least 16."""
    return max(SMALLEST_BUCKET, 1 << max(0, recipients - 1).bit_length())


def stanza_area_bytes(recipients: int) -> int:
    return KEY_BYTES + stanza_count(recipients) * STANZA_BYTES


def seal_stanzas(
    content_key: ContentKey, recipients: Sequence[SealingKey], info: bytes, count: int | None = None
) -> bytes:
    """Return `count` stanzas, filled up with dummies. Raises CryptoError for an unusable key.

    A dummy is what a stanza is to all but its recipient: a fresh public key and random bytes."""
    ephemeral = OpeningKey.generate()
    public, private = ephemeral.public(), ephemeral.library_key()
    raw = content_key.to_bytes()
    stanzas = [
        _tag(private, key, _bound(public, key, info)) + seal(key, info, raw) for key in recipients
    ]
    dummies = [
        os.urandom(TAG_BYTES) + point.public_bytes_raw() + os.urandom(_TEXT_BYTES)
        for _ in range((count or stanza_count(len(recipients))) - len(recipients))
        for point in (X25519PrivateKey.generate().public_key(),)
    ]
    return b"".join([public.to_bytes(), *sorted(stanzas + dummies)])


def open_stanzas(key: OpeningKey, info: bytes, area: bytes | memoryview) -> ContentKey | None:
    """Return the content key if a stanza is for `key`; None otherwise, or for a malformed area."""
    count, extra_bytes = divmod(len(area) - KEY_BYTES, STANZA_BYTES)
    if count < 1 or extra_bytes:
        return None
    ephemeral = SealingKey(bytes(area[:KEY_BYTES]))
    try:
        own = _tag(key.library_key(), ephemeral, _bound(ephemeral, key.public(), info))
    except CryptoError:
        return None

    def stanza(index: int) -> bytes:
        start = KEY_BYTES + index * STANZA_BYTES
        return bytes(area[start : start + STANZA_BYTES])

    first = bisect_left(range(count), own, key=lambda index: stanza(index)[:TAG_BYTES])
    for index in range(first, min(first + EQUAL_TAGS_TRIED, count)):
        found = stanza(index)
        if not found.startswith(own):
            break
        opened = open_sealed(key, info, found[TAG_BYTES:])
        if opened is not None:
            return ContentKey(opened)
    return None


def _bound(ephemeral: SealingKey, recipient: SealingKey, info: bytes) -> bytes:
    """Return a tag's context: both public keys, as HPKE binds its own secrets, and `info`."""
    return bound_to(STANZA_TAG, ephemeral.to_bytes(), recipient.to_bytes(), info)


def _tag(private: X25519PrivateKey, other: SealingKey, bound: bytes) -> bytes:
    """Return the tag of the shared secret. Raises CryptoError if `other` is of low order."""
    try:
        secret = private.exchange(other.library_key())
    except ValueError:
        raise unusable(other) from None
    return HKDF(algorithm=SHA256(), length=TAG_BYTES, salt=None, info=bound).derive(secret)
