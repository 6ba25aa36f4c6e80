"""Sizes of vectors of integers mod 2^k, without numpy for code that only checks sizes."""

from __future__ import annotations

from dataclasses import dataclass

from edgeveil.errors import CryptoError

LEAST_BITS, MOST_BITS = 8, 60
UNCHECKED_BITS = 56  # widest without a check of each mask: a wrong sum then passes with chance 2⁻⁹
CHECK_BYTES = 8
NOISE_BITS = 8  # of a ring of correlated noise beyond its update's, where the coefficient acts


@dataclass(frozen=True)
class Ring:
    """Vectors of `count` integers mod 2^`bits`. Raises CryptoError for bits out of bounds."""

    count: int
    bits: int

    def __post_init__(self) -> None:
        if not LEAST_BITS <= self.bits <= MOST_BITS:
            what = f"a ring has {LEAST_BITS} to {MOST_BITS} bits, not {self.bits}"
            raise CryptoError(what, fix="sum fewer devices' values, or smaller ones")

    @property
    def packed_bytes(self) -> int:
        """Bytes of a packed vector: `count`·`bits` bits, each bit plane rounded up."""
        whole, extra_bits = divmod(self.bits, 8)
        return self.count * whole + -(-self.count // 8) * extra_bits

    @property
    def byte_count(self) -> int:
        return self.packed_bytes + CHECK_BYTES
