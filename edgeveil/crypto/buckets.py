"""Buckets of stanzas: a device reads one small bucket, however large the broadcast.

A device's bucket is a public hash of its sealing key. With few recipients there is one bucket, the
area of `seal_stanzas`. All buckets of a broadcast are padded with dummies to one size, which
depends on the number of recipients, so none reveals how many of its devices were selected.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from edgeveil.crypto.keys import KEY_BYTES, ContentKey, SealingKey
from edgeveil.crypto.labels import BUCKET, context
from edgeveil.crypto.sealing import STANZA_BYTES, seal_stanzas

LEVELS = (4, 16, 64, 256, 1024, 4096, 16384, 65536)  # possible numbers of buckets
CAPACITY = 64  # most stanzas of a bucket
_USUAL = 24  # most recipients of a bucket on average
_OVERFULL = 2.0**-20  # probability that any bucket of a broadcast exceeds its size
_DRAWN_BITS = 16


def bucket_level(keys: Sequence[SealingKey]) -> int:
    """Return the number of buckets: the fewest with 24 keys on average and at most 64."""
    if len(keys) <= CAPACITY:
        return 1
    for level in LEVELS:
        if len(keys) <= _USUAL * level:
            loads = Counter(bucket_of(key, level) for key in keys)
            if max(loads.values()) <= CAPACITY:
                return level
    return LEVELS[-1]


def bucket_of(key: SealingKey, level: int) -> int:
    """Return the key's bucket among `level`: the first bits of a hash, so levels nest."""
    drawn = hashlib.sha256(context(BUCKET, key.to_bytes())).digest()
    return int.from_bytes(drawn[:2], "big") >> (_DRAWN_BITS - level.bit_length() + 1)


@lru_cache(maxsize=256)
def bucket_stanzas(recipients: int, level: int) -> int:
    """Return the stanzas per bucket that fit random recipients with probability 1 - 2^-20.

    The smallest k with level · P[Poisson(recipients / level) > k] ≤ 2^-20, at most 64; the Poisson
    tail bounds the binomial one up to a factor that the rounding up to k covers many times.
    """
    mean = recipients / level
    logs = [k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(4 * CAPACITY)]
    tail = 0.0
    for k in reversed(range(4 * CAPACITY)):
        tail += math.exp(logs[k])  # P[more than k - 1]
        if level * tail > _OVERFULL:
            return min(k, CAPACITY)
    return CAPACITY


def bucket_bytes(stanzas: int) -> int:
    return KEY_BYTES + stanzas * STANZA_BYTES


def fitting(keys: Iterable[bytes]) -> list[bytes]:
    """Return the keys, at most 64 per bucket at the largest level, first come first served.

    More do not occur by chance, but if devices searched for keys of one bucket. In random order,
    the selection of others stays uniform.
    """
    room = Counter[int]()
    kept: list[bytes] = []
    for raw in keys:
        bucket = bucket_of(SealingKey(raw), LEVELS[-1])
        room[bucket] += 1
        if room[bucket] <= CAPACITY:
            kept.append(raw)
    return kept


def seal_buckets(
    content_key: ContentKey, recipients: Sequence[SealingKey], info: bytes, level: int
) -> bytes:
    """Return `level` areas of `seal_stanzas`, all of the size that the largest needs."""
    dealt: list[list[SealingKey]] = [[] for _ in range(level)]
    for key in recipients:
        dealt[bucket_of(key, level)].append(key)
    size = max(bucket_stanzas(len(recipients), level), *map(len, dealt))
    return b"".join(seal_stanzas(content_key, keys, info, size) for keys in dealt)
