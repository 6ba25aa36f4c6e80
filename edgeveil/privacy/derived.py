"""Derived noise: the same request over the same records always gets the same noise.

Noise is a pseudo-random function of the request's context and of the exact sum it hides, under a
key derived from the ledger's (`docs/privacy.md`, "Derived noise"). So a restored backup, a cloned
box or a crash gives no second draw that could be averaged with the first.

    context key   = HMAC-SHA256(noise key, label, data set, job, round, package digest)
    samples       = ChaCha20(HMAC-SHA256(context key, label))
    noise on sum  = ChaCha20(HMAC-SHA256(context key, label, draw, law, type, shape, the sum))

Each mechanism binds its stream to its sum by `bound`; other sources pass through unchanged.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto import labels
from edgeveil.crypto.keys import NoiseKey
from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import Event, to_dict
from edgeveil.privacy.sampler import RandomBytes, SampleBytes, keystream

KEY_BYTES = 32
_NUMBER_BYTES = 8
_NUMBER_AT = len(labels.context(labels.NOISE_SUM, b""))  # offset of the draw's number


@dataclass(frozen=True)
class NoiseContext:
    """The context of one answer's noise. `package_digest`: SHA-256 of the opened package."""

    dataset: str
    job_id: str
    round: int
    package_digest: bytes


NoiseByContext = Callable[[NoiseContext], RandomBytes]
"""Returns the source of a device's randomness for one answer."""


def noise_by_context(key: NoiseKey) -> NoiseByContext:
    return lambda context: DerivedRandom(noise_context_key(key, context))


def noise_context_key(key: NoiseKey, context: NoiseContext) -> bytes:
    message = labels.context(
        labels.NOISE_QUESTION,
        context.dataset.encode(),
        context.job_id.encode(),
        context.round.to_bytes(8, "big"),
        context.package_digest,
    )
    return hmac.digest(key.to_bytes(), message, "sha256")


class DerivedRandom(SampleBytes):
    """All randomness of one answer from its key: a call returns samples, `bound` a noise stream."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise PrivacyError(f"the key must have {KEY_BYTES} bytes, got {len(key)}")
        self._key, self._draws = bytes(key), 0
        self._keyed = hmac.new(self._key, digestmod="sha256")  # copied for each draw
        self._samples: RandomBytes | None = None  # most answers need none

    def __call__(self, count: int) -> bytes:
        if self._samples is None:
            label = labels.separated(labels.NOISE_SAMPLES)
            self._samples = keystream(hmac.digest(self._key, label, "sha256"))
        return self._samples(count)

    def __repr__(self) -> str:
        return "DerivedRandom(hidden)"

    def to_bytes(self) -> bytes:
        return self._key

    def bound(self, law: Event | str, total: NDArray[np.generic]) -> RandomBytes:
        """Return the independent stream of the next draw, for noise by `law` on `total`."""
        little = np.ascontiguousarray(total, total.dtype.newbyteorder("<"))
        head = _first_head(law, little.dtype.str, total.shape)
        number = self._draws.to_bytes(_NUMBER_BYTES, "big")
        mac = self._keyed.copy()
        mac.update(head[:_NUMBER_AT] + number + head[_NUMBER_AT + _NUMBER_BYTES :])
        mac.update(little.tobytes())  # its length follows from type and shape
        self._draws += 1
        return keystream(mac.digest())


def bound(random_bytes: RandomBytes, law: Event | str, total: NDArray[np.generic]) -> RandomBytes:
    """Return the source of noise by `law`, which must name all parameters, on the exact `total`."""
    if isinstance(random_bytes, DerivedRandom):
        return random_bytes.bound(law, total)
    return random_bytes


@lru_cache(maxsize=64)  # one event prices many draws
def _first_head(law: Event | str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the hash input before the sum for draw 0; other draws replace only its number."""
    named = law if isinstance(law, str) else json.dumps(to_dict(law), sort_keys=True)
    parts = named.encode(), dtype.encode(), str(shape).encode()
    return labels.context(labels.NOISE_SUM, bytes(_NUMBER_BYTES), *parts)
