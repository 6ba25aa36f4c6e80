"""What a device leaves with the proxy for its own eyes: what a job may cost it.

A device whose state was lost, copied or put back asks what it answered since; the proxy knows the
answers' jobs, and gives back what came with them. A deposit is sealed under a key that follows from
the ledger's, and looks the same whatever it holds: with a dummy it holds nothing.
"""

from __future__ import annotations

import os
import zlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from edgeveil.crypto.keys import DEPOSIT_BYTES, DepositKey
from edgeveil.crypto.labels import DEPOSIT_KEY, separated
from edgeveil.errors import PrivacyError
from edgeveil.privacy.policy import JobRequest

_NONCE_BYTES, _TAG_BYTES, _SIZE_BYTES = 12, 16, 2
_ROOM_BYTES = DEPOSIT_BYTES - _NONCE_BYTES - _TAG_BYTES - _SIZE_BYTES
_TEXT_BYTES = 1 << 16  # of what is unpacked


def sealed_deposit(key: DepositKey, request: JobRequest | None) -> bytes:
    """`DEPOSIT_BYTES`, holding a request, or nothing for None.

    A request that is too large for them leaves them unreadable: then nobody knows its price.
    """
    text = zlib.compress(request.to_json().encode(), 9) if request else b""
    nonce = os.urandom(_NONCE_BYTES)
    if len(text) > _ROOM_BYTES:
        return os.urandom(DEPOSIT_BYTES)
    plain = len(text).to_bytes(_SIZE_BYTES, "big") + text.ljust(_ROOM_BYTES, b"\0")
    return nonce + _aead(key).encrypt(nonce, plain, separated(DEPOSIT_KEY))


def opened_deposit(key: DepositKey, deposit: bytes) -> JobRequest | None:
    """The request; None where it holds none. Raises PrivacyError where it cannot be read."""
    nonce, sealed = deposit[:_NONCE_BYTES], deposit[_NONCE_BYTES:]
    try:
        plain = _aead(key).decrypt(nonce, sealed, separated(DEPOSIT_KEY))
    except (InvalidTag, ValueError):
        raise PrivacyError("a deposit cannot be read") from None
    size_bytes = int.from_bytes(plain[:_SIZE_BYTES], "big")
    if not size_bytes:
        return None
    text = zlib.decompressobj().decompress(plain[_SIZE_BYTES:][:size_bytes], _TEXT_BYTES)
    return JobRequest.from_json(text.decode())


def _aead(key: DepositKey) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(key.to_bytes())
