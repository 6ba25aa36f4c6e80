"""One content key for many recipients, none of them named.

A stanza is the content key sealed to one recipient: 80 bytes (`enc` 32, ciphertext 32, tag 16).
Stanzas stand in random order, filled up to a bucket with dummies. A dummy is sealed to a key that
is thrown away: random bytes would give themselves away, since only half of all 32-byte strings
are points of the curve, as every true `enc` is.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from fl_core.crypto.keys import ContentKey, OpeningKey, SealingKey
from fl_core.crypto.sealing import open_sealed, seal

STANZA_BYTES = 80
SMALLEST_BUCKET = 16

Shuffle = Callable[[list[bytes]], None]


def stanza_count(recipients: int) -> int:
    """Stanzas for this many recipients: the next power of two, at least 16."""
    return max(SMALLEST_BUCKET, 1 << max(0, recipients - 1).bit_length())


def stanza_area_bytes(recipients: int) -> int:
    """Bytes of all stanzas together."""
    return stanza_count(recipients) * STANZA_BYTES


def seal_stanzas(
    content_key: ContentKey,
    recipients: Sequence[SealingKey],
    info: bytes,
    shuffle: Shuffle | None = None,
) -> bytes:
    """All stanzas, `stanza_area_bytes(len(recipients))` bytes.

    `shuffle` permutes a list in place; the operating system's random source by default. Raises
    CryptoError when a recipient's key is unusable.
    """
    stanzas = [seal(key, info, content_key.to_bytes()) for key in recipients]
    while len(stanzas) < stanza_count(len(recipients)):
        thrown_away = OpeningKey.generate().public()
        stanzas.append(seal(thrown_away, info, ContentKey.generate().to_bytes()))
    (shuffle or secrets.SystemRandom().shuffle)(stanzas)
    return b"".join(stanzas)


def open_stanzas(key: OpeningKey, info: bytes, stanzas: bytes) -> ContentKey | None:
    """The content key if one stanza is for `key`, else None; None too for a broken area."""
    if len(stanzas) % STANZA_BYTES:
        return None
    for start in range(0, len(stanzas), STANZA_BYTES):
        opened = open_sealed(key, info, stanzas[start : start + STANZA_BYTES])
        if opened is not None:
            return ContentKey(opened)
    return None
