"""Keys, signatures, sealing, streams, stanzas and commitments; no cipher of our own."""

from edgeveil.crypto.commitment import COMMITMENT_BYTES, commit, commits_to
from edgeveil.crypto.errors import CryptoError
from edgeveil.crypto.keys import (
    ContentKey,
    LedgerKey,
    NoiseKey,
    OpeningKey,
    SealingKey,
    SigningKey,
    VerifyKey,
)
from edgeveil.crypto.sealing import SEAL_OVERHEAD_BYTES, open_sealed, seal
from edgeveil.crypto.signing import SIGNATURE_BYTES, sign, verify
from edgeveil.crypto.stanzas import STANZA_BYTES, open_stanzas, seal_stanzas, stanza_area_bytes
from edgeveil.crypto.stream import CHUNK_BYTES, open_stream, seal_stream, stream_bytes

__all__ = [
    "CHUNK_BYTES",
    "COMMITMENT_BYTES",
    "SEAL_OVERHEAD_BYTES",
    "SIGNATURE_BYTES",
    "STANZA_BYTES",
    "ContentKey",
    "CryptoError",
    "LedgerKey",
    "NoiseKey",
    "OpeningKey",
    "SealingKey",
    "SigningKey",
    "VerifyKey",
    "commit",
    "commits_to",
    "open_sealed",
    "open_stanzas",
    "open_stream",
    "seal",
    "seal_stanzas",
    "seal_stream",
    "sign",
    "stanza_area_bytes",
    "stream_bytes",
    "verify",
]
