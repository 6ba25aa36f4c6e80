"""A seeded order that is the same on every machine and with every library version."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from numpy.typing import NDArray


def public_order(count: int, seed: int, label: str) -> NDArray[np.int64]:
    """A permutation of `range(count)`, shape (count,), sorted by SHA-256(label, seed, index).

    Public and reproducible, so it is fit for demonstrations and partitions and never for noise
    or selection. numpy may change its random streams between versions; a hash does not.
    """
    prefix = f"edgeveil/v1/{label}/{seed}/".encode()
    digests = [sha256(prefix + str(index).encode()).digest() for index in range(count)]
    return np.array(sorted(range(count), key=digests.__getitem__), dtype=np.int64)


def public_chance(seed: int, label: str) -> np.random.RandomState:
    """Seeded chance of one label, for demonstrations and partitions and never for noise that hides.

    numpy has frozen the streams of this generator, and of no newer one.
    """
    digest = sha256(f"edgeveil/v1/{label}/{seed}".encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, dtype="<u4"))
