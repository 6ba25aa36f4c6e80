"""Ed25519 signatures over `label ‖ 0x00 ‖ payload`."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature

from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.crypto.labels import separated

SIGNATURE_BYTES = 64


def sign(key: SigningKey, label: bytes, payload: bytes) -> bytes:
    """The 64-byte signature. Raises CryptoError for a label with a NUL."""
    return key.library_key().sign(separated(label) + payload)


def verify(key: VerifyKey, label: bytes, payload: bytes, signature: bytes) -> bool:
    """Whether `signature` is this key's over label and payload; False for any malformed input."""
    if len(signature) != SIGNATURE_BYTES:
        return False
    try:
        key.library_key().verify(signature, separated(label) + payload)
    except (InvalidSignature, ValueError):
        return False
    return True
