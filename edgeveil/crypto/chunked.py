"""Chunked AEAD (the STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár, 2015).

    salt (32) ‖ chunk size (4, big-endian) ‖ chunk 0 ‖ chunk 1 ‖ …     each chunk: bytes ‖ tag (16)

The key is HKDF-SHA256(content key, salt, label ‖ chunk size). A chunk's nonce is its position (11
bytes) and 1 for the last chunk, else 0, so a cut, moved, repeated or appended chunk fails;
`context` is every chunk's associated data.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from io import BytesIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgeveil.crypto.keys import KEY_BYTES, ContentKey
from edgeveil.crypto.labels import COMMITMENT, STREAM_KEY
from edgeveil.crypto.labels import context as bound_to
from edgeveil.errors import CryptoError

CHUNK_BYTES = 65536
MAX_CHUNK_BYTES = 1 << 24
TAG_BYTES = 16
SALT_BYTES = 32
HEADER_BYTES = SALT_BYTES + 4


def chunked_bytes(plaintext_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the ciphertext's size; an empty plaintext is one empty chunk."""
    chunks = max(1, -(-plaintext_bytes // chunk_bytes))
    return HEADER_BYTES + plaintext_bytes + chunks * TAG_BYTES


def seal_chunked(
    content_key: ContentKey,
    context: bytes,
    plaintext: bytes | bytearray | memoryview,
    chunk_bytes: int = CHUNK_BYTES,
    *,
    front: bytes = b"",
) -> bytes:
    """Return `front` and the sealed text. Raises CryptoError unless 1 ≤ chunk_bytes ≤ 2^24."""
    if not 1 <= chunk_bytes <= MAX_CHUNK_BYTES:
        raise CryptoError(f"chunk_bytes must be in 1..{MAX_CHUNK_BYTES}, got {chunk_bytes}")
    salt = os.urandom(SALT_BYTES)
    aead = _aead(content_key, salt, chunk_bytes)
    view, sealed = memoryview(plaintext), BytesIO()  # one growing buffer: a package may be large
    sealed.write(front + salt + chunk_bytes.to_bytes(4, "big"))
    starts = range(0, max(1, len(plaintext)), chunk_bytes)
    for position, start in enumerate(starts):
        nonce = _nonce(position, last=position == len(starts) - 1)
        sealed.write(aead.encrypt(nonce, view[start : start + chunk_bytes], context))
    return sealed.getvalue()


def open_chunked(content_key: ContentKey, context: bytes, ciphertext: bytes | memoryview) -> bytes:
    """Return the whole plaintext. Raises CryptoError for any other key, context or content."""
    view = memoryview(ciphertext)
    chunk_bytes = int.from_bytes(view[SALT_BYTES:HEADER_BYTES], "big")
    body = view[HEADER_BYTES:]
    if not 1 <= chunk_bytes <= MAX_CHUNK_BYTES or len(body) < TAG_BYTES:
        raise _refused()
    aead = _aead(content_key, bytes(view[:SALT_BYTES]), chunk_bytes)
    starts = range(0, len(body), chunk_bytes + TAG_BYTES)
    opened = BytesIO()
    for position, start in enumerate(starts):
        nonce = _nonce(position, last=position == len(starts) - 1)
        try:
            piece = aead.decrypt(nonce, body[start : start + chunk_bytes + TAG_BYTES], context)
        except (InvalidTag, ValueError):
            raise _refused() from None
        # One text has one chunking: reject an empty last chunk after full ones.
        if not piece and position:
            raise _refused()
        opened.write(piece)
    return opened.getvalue()


def _aead(content_key: ContentKey, salt: bytes, chunk_bytes: int) -> ChaCha20Poly1305:
    info = bound_to(STREAM_KEY, chunk_bytes.to_bytes(4, "big"))
    hkdf = HKDF(SHA256(), KEY_BYTES, salt=salt, info=info)
    return ChaCha20Poly1305(hkdf.derive(content_key.to_bytes()))


def _nonce(position: int, *, last: bool) -> bytes:
    return position.to_bytes(11, "big") + (b"\1" if last else b"\0")


def _refused() -> CryptoError:
    return CryptoError("the ciphertext was altered, cut off or made for another context")


# Commitments: AEAD alone does not bind a ciphertext to one key.
def commit(content_key: ContentKey, context: bytes) -> bytes:
    """Return SHA-256(label ‖ content key ‖ context), 32 bytes; label and key have fixed length."""
    return hashlib.sha256(COMMITMENT + content_key.to_bytes() + context).digest()


def commits_to(commitment: bytes, content_key: ContentKey, context: bytes) -> bool:
    """Return whether `commitment` is for this key and context (constant time)."""
    return hmac.compare_digest(commitment, commit(content_key, context))
