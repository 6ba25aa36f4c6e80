"""Device selection: public keys drawn uniformly from the enrolled ones, without replacement."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random
from secrets import SystemRandom

from edgeveil.errors import UsageError


def uniform(keys: Sequence[bytes], count: int, random: Random | None = None) -> list[bytes]:
    """Return `count` distinct keys, all subsets and orders equally likely. Raises UsageError."""
    if len(set(keys)) != len(keys):
        raise UsageError("a key is listed twice", where="selection", fix="list each key once")
    if not 0 <= count <= len(keys):
        what, fix = f"cannot choose {count} of {len(keys)} keys", "enrol more or select fewer"
        raise UsageError(what, where="selection.devices", fix=fix)
    return (random or SystemRandom()).sample(list(keys), count)


def in_turn(job_id: bytes, number: int) -> Callable[[Sequence[bytes], int], list[bytes]]:
    """Return a choice of keys for training round `number`, in one random order of all per job.

    Of n keys and m a round, none is chosen again before ⌊n/m⌋ rounds."""

    def chosen(keys: Sequence[bytes], count: int) -> list[bytes]:
        order = sorted(keys, key=lambda key: hashlib.sha256(job_id + key).digest())
        first = (number - 1) * count
        return [order[(first + place) % len(order)] for place in range(min(count, len(order)))]

    return chosen


def how_many(devices: int | str, enrolled: int, over_select: float = 1.0) -> int:
    """Return the keys to draw: `devices` (or "all") times `over_select`, at most `enrolled`."""
    return enrolled if isinstance(devices, str) else min(enrolled, rounded_up(devices, over_select))


def rounded_up(devices: int, factor: float) -> int:
    """Return `devices` times the decimal `factor`, rounded up: 50 · 1.1 is 55, in floats 56."""
    return math.ceil(devices * Fraction(str(factor)))
