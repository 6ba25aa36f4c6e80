"""A commitment to a content key: AEAD alone does not bind a ciphertext to one key."""

from __future__ import annotations

import hashlib
import hmac

from edgeveil.crypto.keys import ContentKey
from edgeveil.crypto.labels import COMMITMENT

COMMITMENT_BYTES = 32


def commit(content_key: ContentKey, context: bytes) -> bytes:
    """SHA-256(label ‖ content key ‖ context), 32 bytes; label and key are of fixed length."""
    return hashlib.sha256(COMMITMENT + content_key.to_bytes() + context).digest()


def commits_to(commitment: bytes, content_key: ContentKey, context: bytes) -> bool:
    """Whether `commitment` was made for this key and context (constant time)."""
    return hmac.compare_digest(commitment, commit(content_key, context))
