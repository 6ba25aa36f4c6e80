"""Exact comparison of a uniform number with exp(-γ), by bits and integer brackets."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

GUARD_BITS = 64
MOST_BITS = 64 + 1024  # of one uniform number; it gets there with a chance below 2^-1000


class LazyUniform:
    """A uniform number in [0, 1), known to `count` leading bits and extended on demand.

    With `MOST_BITS` nothing is drawn any more: what they leave open counts as not less, and zeros
    alone as 2**-MOST_BITS. So every method ends, whatever the bits are.
    """

    def __init__(self, bits: int, count: int, random_bytes: Callable[[int], bytes]) -> None:
        self._bits, self._count, self._random_bytes = bits, count, random_bytes

    def _extend(self) -> None:
        self._bits = (self._bits << 64) | int.from_bytes(self._random_bytes(8), "little")
        self._count += 64

    def less_than_exp(self, gamma: Fraction) -> bool:
        """Whether U < exp(-gamma), for gamma >= 0."""
        if gamma <= 0:
            return True
        while True:
            low, high = exp_bracket(gamma, self._count)
            if self._bits + 1 <= low:
                return True
            if self._bits >= high or self._count >= MOST_BITS:
                return False
            self._extend()

    def geometric(self, t: Fraction) -> int:
        """floor(-t·ln U): the largest x with U < exp(-x/t) (ties have probability 0).

        From a guess in float64 outward in doubling steps, then by halves: some 2·log₂(1100·t)
        comparisons at most, and as many again when further bits are drawn, for a new guess.
        """
        while self._bits == 0 and self._count < MOST_BITS:
            self._extend()
        self._bits = max(1, self._bits)
        low, high = 0, (self._count * t.numerator) // t.denominator + 1  # U >= 2^-count
        x, step, rose, fell = self._near(t), 1, False, False
        while high - low > 1:
            x, known = min(max(x, low + 1), high - 1), self._count
            if self.less_than_exp(x / t):
                low, rose = x, True
            else:
                high, fell = x, True
            if self._count > known:
                x, step, rose, fell = self._near(t), 1, False, False
            elif rose and fell:
                x = (low + high) // 2
            else:
                x, step = (x + step if rose else x - step), 2 * step
        return low

    def _near(self, t: Fraction) -> int:
        """-t·ln U for the least U that the bits allow, in float64."""
        return round(-float(t) * (math.log(self._bits) - self._count * math.log(2)))


def exp_bracket(gamma: Fraction, bits: int) -> tuple[int, int]:
    """Integers with low <= exp(-gamma)·2**bits <= high and high - low <= 2, for gamma >= 0."""
    precision = bits + GUARD_BITS
    whole, rest = divmod(gamma, 1)
    low, high = _exp_below_one(rest, precision)
    low_e, high_e = _power(*_inverse_e(precision), int(whole), precision)
    low, high = low * low_e >> precision, -(-high * high_e >> precision)
    return low >> GUARD_BITS, -(-high >> GUARD_BITS)


@lru_cache(maxsize=16)
def _inverse_e(precision: int) -> tuple[int, int]:
    return _exp_below_one(Fraction(1), precision)


def _exp_below_one(r: Fraction, precision: int) -> tuple[int, int]:
    """Bracket of exp(-r)·2**precision for 0 <= r <= 1, by the alternating Taylor series.

    With r and each term rounded down, a term is off by less than 3 units: the rounding of r
    adds at most one to what the previous term carries, over k >= 1, and the two shifts one
    each. The tail is below the first term that rounds to zero, hence below 4 units.
    """
    one = 1 << precision
    fixed = int(r * one)
    term, total, k = one, one, 0
    while term:
        k += 1
        term = (term * fixed >> precision) // k
        total += term if k % 2 == 0 else -term
    slack = 4 * (k + 2)
    return max(0, total - slack), min(one, total + slack)


def _power(low: int, high: int, exponent: int, precision: int) -> tuple[int, int]:
    """Bracket of (value)**exponent by repeated squaring, rounding outward."""
    result_low = result_high = 1 << precision
    while exponent:
        if exponent & 1:
            result_low = result_low * low >> precision
            result_high = -(-result_high * high >> precision)
        low, high = low * low >> precision, -(-high * high >> precision)
        exponent >>= 1
    return result_low, result_high
