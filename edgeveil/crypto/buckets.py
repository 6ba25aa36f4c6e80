"""Stanzas in buckets: what a device has to look through does not grow with who else is asked.

A device's bucket is a public hash of its sealing key, so that it knows where to look, and listens
there, before it knows of any round. Of few recipients there is one bucket, which is the whole area
of `seal_stanzas`. All buckets of a broadcast have one size, a function of how many recipients there
are: dummies fill them up, so that a bucket does not tell how many of its devices were asked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from edgeveil.crypto.keys import KEY_BYTES, ContentKey, SealingKey
from edgeveil.crypto.labels import BUCKET, context
from edgeveil.crypto.sealing import STANZA_BYTES, seal_stanzas

LEVELS = (4, 16, 64, 256, 1024, 4096, 16384, 65536)  # numbers of buckets that a broadcast may have
CAPACITY = 64  # stanzas of a bucket at most
_USUAL = 24  # recipients of a bucket at most, on average
_OVERFULL = 2.0**-20  # the chance that any bucket of a broadcast has more than its size
_DRAWN_BITS = 16


def bucket_level(recipients: int) -> int:
    """How many buckets a broadcast to so many has; 1: it fits into one."""
    if recipients <= CAPACITY:
        return 1
    enough = (level for level in LEVELS if recipients <= _USUAL * level)
    return next(enough, LEVELS[-1])


def bucket_of(key: SealingKey, level: int) -> int:
    """The bucket of this key among `level`: the first bits of a hash, so that levels nest."""
    drawn = hashlib.sha256(context(BUCKET, key.to_bytes())).digest()
    return int.from_bytes(drawn[:2], "big") >> (_DRAWN_BITS - level.bit_length() + 1)


@lru_cache(maxsize=256)
def bucket_stanzas(recipients: int, level: int) -> int:
    """Stanzas of each bucket: so many that uniformly drawn recipients fit, but for 2^-20.

    The smallest k with level · P[Poisson(recipients / level) > k] ≤ 2^-20, at most 64; the Poisson
    tail bounds the binomial one up to a factor that the rounding up to k covers many times.
    """
    mean, most = recipients / level, CAPACITY
    logs = [k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(4 * CAPACITY)]
    tail = 0.0
    for k in reversed(range(4 * CAPACITY)):
        tail += math.exp(logs[k])  # P[more than k - 1]
        if level * tail > _OVERFULL:
            return min(k, most)
    return most


def bucket_bytes(recipients: int, level: int) -> int:
    """Bytes of each bucket."""
    return KEY_BYTES + bucket_stanzas(recipients, level) * STANZA_BYTES


def fitting(keys: Iterable[bytes]) -> tuple[list[bytes], int]:
    """Those of the keys that fit into the buckets of a broadcast to all of them, and how many are
    left out.

    More than 64 in a bucket come by chance about once in 10^10 broadcasts. They are the work of
    devices that looked for keys of one bucket, and it is their bucket that they crowd: of its keys
    the first 64 in the order given, which chance draws, are kept. So that whom a round asks stays
    uniform but for them.
    """
    asked = list(keys)
    level = bucket_level(len(asked))
    if level == 1:
        return asked, 0
    room = [CAPACITY] * level
    kept: list[bytes] = []
    for raw in asked:
        bucket = bucket_of(SealingKey(raw), level)
        if room[bucket]:
            room[bucket] -= 1
            kept.append(raw)
    return kept, len(asked) - len(kept)


def seal_buckets(
    content_key: ContentKey, recipients: Sequence[SealingKey], info: bytes, level: int
) -> bytes:
    """`level` areas one after the other, all of one size; each as `seal_stanzas` makes it.

    Where a bucket has more recipients than is usual (2^-20), all become as large as that one, at
    most 64 stanzas. Raises CryptoError for an unusable key, ValueError for more.
    """
    dealt: list[list[SealingKey]] = [[] for _ in range(level)]
    for key in recipients:
        dealt[bucket_of(key, level)].append(key)
    fullest = max(map(len, dealt))
    if fullest > CAPACITY:
        raise ValueError(f"{fullest} recipients of one bucket")
    size = max(bucket_stanzas(len(recipients), level), fullest)
    return b"".join(seal_stanzas(content_key, keys, info, size) for keys in dealt)
