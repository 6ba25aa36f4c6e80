"""HPKE (RFC 9180, base mode): X25519, HKDF-SHA256, ChaCha20-Poly1305.

The library offers no associated data, so all context goes into `info`. A sealed text is
`enc (32 bytes) ‖ ciphertext ‖ tag (16 bytes)`.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from edgeveil.crypto.errors import CryptoError
from edgeveil.crypto.keys import OpeningKey, SealingKey

SEAL_OVERHEAD_BYTES = 48

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def seal(public: SealingKey, info: bytes, plaintext: bytes) -> bytes:
    """`plaintext` for the owner of `public` alone, 48 bytes longer, under a fresh ephemeral key.

    Raises CryptoError when `public` is no usable X25519 key (a point of low order).
    """
    try:
        return _SUITE.encrypt(plaintext, public.library_key(), info)
    except ValueError:
        raise unusable(public) from None


def open_sealed(private: OpeningKey, info: bytes, ciphertext: bytes) -> bytes | None:
    """The plaintext, or None: sealed to another key or under another `info`, altered, too short."""
    if len(ciphertext) < SEAL_OVERHEAD_BYTES:
        return None
    try:
        return _SUITE.decrypt(ciphertext, private.library_key(), info)
    except (InvalidTag, ValueError):
        return None


def unusable(public: SealingKey) -> CryptoError:
    """What is said of a public key of low order."""
    return CryptoError(
        f"nothing can be sealed to the key {public.fingerprint()}",
        fix="enrol the device again with a key that it made itself",
    )
