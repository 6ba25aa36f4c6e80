"""Stanzas in buckets: a device looks through few of them, however many devices are asked.

A device's bucket is a public hash of its sealing key. Few recipients have one bucket, the whole
area of `seal_stanzas`. All buckets of a broadcast have one size, by the number of recipients:
dummies fill them up, so that none tells how many of its devices were asked.
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

LEVELS = (4, 16, 64, 256, 1024, 4096, 16384, 65536)  # numbers of buckets that a broadcast may have
CAPACITY = 64  # stanzas of a bucket at most
_USUAL = 24  # recipients of a bucket at most, on average
_OVERFULL = 2.0**-20  # the chance that any bucket of a broadcast has more than its size
_DRAWN_BITS = 16


def bucket_level(keys: Sequence[SealingKey]) -> int:
    """How many buckets a broadcast has: the fewest with 24 keys on average and 64 at most."""
    if len(keys) <= CAPACITY:
        return 1
    for level in LEVELS:
        if len(keys) <= _USUAL * level:
            loads = Counter(bucket_of(key, level) for key in keys)
            if max(loads.values()) <= CAPACITY:
                return level
    return LEVELS[-1]


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
    mean = recipients / level
    logs = [k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(4 * CAPACITY)]
    tail = 0.0
    for k in reversed(range(4 * CAPACITY)):
        tail += math.exp(logs[k])  # P[more than k - 1]
        if level * tail > _OVERFULL:
            return min(k, CAPACITY)
    return CAPACITY


def bucket_bytes(stanzas: int) -> int:
    """Bytes of a bucket of so many stanzas."""
    return KEY_BYTES + stanzas * STANZA_BYTES


def fitting(keys: Iterable[bytes]) -> list[bytes]:
    """The keys without those that crowd a bucket at the largest level: of each the first 64 stay.

    More do not come by chance, but from devices that searched for keys of one bucket. Others are
    asked uniformly still, where the given order is random.
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
    """`level` areas of `seal_stanzas` one after the other, all as large as the largest needs."""
    dealt: list[list[SealingKey]] = [[] for _ in range(level)]
    for key in recipients:
        dealt[bucket_of(key, level)].append(key)
    size = max(bucket_stanzas(len(recipients), level), *map(len, dealt))
    return b"".join(seal_stanzas(content_key, keys, info, size) for keys in dealt)
