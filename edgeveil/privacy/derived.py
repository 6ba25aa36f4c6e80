"""Noise that is derived, not drawn: the same question over the same records has the same answer.

Noise is a pseudo-random function of the question and of the exact sum it hides, under a key that
follows from the ledger's (`docs/privacy.md`, "Derived noise"): a restored backup, a cloned box or a
crash bring no second draw whose average with the first would hide less.

    question key  = HMAC-SHA256(noise key, label, data set, job, round, package digest)
    samples       = ChaCha20(HMAC-SHA256(question key, label))
    noise on sum  = ChaCha20(HMAC-SHA256(question key, label, draw, law, type, shape, the sum))

Each mechanism binds its stream to its sum by `bound`; streams that are not derived pass through.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from edgeveil.crypto import labels
from edgeveil.crypto.keys import NoiseKey
from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import Event, to_dict
from edgeveil.privacy.sampler import RandomBytes, SampleBytes

KEY_BYTES = 32
_NONCE = bytes(16)  # a key has one stream
_NUMBER_BYTES = 8
_NUMBER_AT = len(labels.context(labels.NOISE_SUM, b""))  # the draw's number in what is hashed


@dataclass(frozen=True)
class Question:
    """What a device is asked. `package_digest`: SHA-256 of the opened package, 32 bytes."""

    dataset: str
    job_id: str
    round: int
    package_digest: bytes


NoiseFor = Callable[[Question], RandomBytes]
"""Where a device's chance for the answer to one question comes from."""


def noise_from(key: NoiseKey) -> NoiseFor:
    """A device's own: derived from `key`."""
    return lambda question: DerivedRandom(question_key(key, question))


def question_key(key: NoiseKey, question: Question) -> bytes:
    """The key, 32 bytes, of all chance in the answer to one question."""
    message = labels.context(
        labels.NOISE_QUESTION,
        question.dataset.encode(),
        question.job_id.encode(),
        question.round.to_bytes(8, "big"),
        question.package_digest,
    )
    return hmac.digest(key.to_bytes(), message, "sha256")


class DerivedRandom(SampleBytes):
    """All chance in one answer, from its key (32 bytes): samples by a call, noise from `bound`."""

    def __init__(self, question_key: bytes) -> None:
        if len(question_key) != KEY_BYTES:
            raise PrivacyError(f"a question's key has {KEY_BYTES} bytes, got {len(question_key)}")
        self._key, self._draws = bytes(question_key), 0
        self._keyed = hmac.new(self._key, digestmod="sha256")  # copied for each draw
        self._samples: _Keystream | None = None  # most answers need none

    def __call__(self, count: int) -> bytes:
        if self._samples is None:
            label = labels.separated(labels.NOISE_SAMPLES)
            self._samples = _Keystream(hmac.digest(self._key, label, "sha256"))
        return self._samples(count)

    def __repr__(self) -> str:
        return "DerivedRandom(hidden)"

    def to_bytes(self) -> bytes:
        return self._key

    def bound(self, law: Event | str, total: NDArray[np.generic]) -> RandomBytes:
        """The stream of the next draw, for noise by `law` on `total`; independent of all others."""
        little = np.ascontiguousarray(total, total.dtype.newbyteorder("<"))
        head = _first_head(law, little.dtype.str, total.shape)
        number = self._draws.to_bytes(_NUMBER_BYTES, "big")
        mac = self._keyed.copy()
        mac.update(head[:_NUMBER_AT] + number + head[_NUMBER_AT + _NUMBER_BYTES :])
        mac.update(little.tobytes())  # its length follows from type and shape
        self._draws += 1
        return _Keystream(mac.digest())


def bound(random_bytes: RandomBytes, law: Event | str, total: NDArray[np.generic]) -> RandomBytes:
    """The source of the noise that `law` states on the exact `total`. `law` names all that the
    noise depends on but its bytes: two laws on one stream would tell of each other."""
    if isinstance(random_bytes, DerivedRandom):
        return random_bytes.bound(law, total)
    return random_bytes


@lru_cache(maxsize=64)  # one event prices many draws
def _first_head(law: Event | str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """What is hashed before the sum in draw 0; in another draw only its number is another."""
    named = law if isinstance(law, str) else json.dumps(to_dict(law), sort_keys=True)
    parts = named.encode(), dtype.encode(), str(shape).encode()
    return labels.context(labels.NOISE_SUM, bytes(_NUMBER_BYTES), *parts)


class _Keystream:
    """ChaCha20: as fast on processors without AES instructions, and in constant time on all."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()

    def __call__(self, count: int) -> bytes:
        return self._cipher.update(bytes(count))
