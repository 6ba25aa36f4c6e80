"""Waits that grow and differ from device to device, so that a fleet does not speak at once."""

from __future__ import annotations

import hashlib


class Pace:
    """One party's waits. Machines have no randomness, so its name and a count spread them."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name.encode(), 0

    def wait_s(self, first_s: float, tries: int, cap_s: float) -> float:
        """`first_s`, doubled for each of `tries`, at most `cap_s`; of that a share in (½, 1]."""
        self._count += 1
        digest = hashlib.sha256(self._name + self._count.to_bytes(8, "big")).digest()
        chance = int.from_bytes(digest[:4], "big") / 2**32
        return min(first_s * 2.0 ** min(tries, 16), cap_s) * (1 - chance / 2)
