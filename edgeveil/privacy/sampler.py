"""Exact integer noise: discrete Laplace and discrete Gaussian, vectorised.

Both follow Canonne, Kamath and Steinke (2020). A uniform U is compared with exp(-γ): 64 random bits
against a float64 value, accepted only outside a proven error margin (`docs/privacy.md`, "Exact
sampling"). The few remaining cases are decided by `LazyUniform` with further bits of the *same* U
in integer arithmetic, so the distribution is exact.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError

RandomBytes = Callable[[int], bytes]
"""Returns `count` new bytes per call."""
Int64 = NDArray[np.int64]

CHUNK = 1 << 16
BOX_CHUNK = 1 << 13  # whose arrays stay in a processor's cache
BOX_BITS = 15
BOXES = 1 << BOX_BITS  # of equal area over a Gaussian's curve
BOX_REACH = 40  # in σ; exp(-40²/2) is below 2^-1100
LARGEST_SCALE = 1 << 40
# Bounds on the float64 error of the fast path; derived in docs/privacy.md.
LOG_MARGIN = 2.0**-49  # relative to t + y, for y = -t·ln U
ACCEPT_MARGIN = 2.0**-46  # absolute, for exp(-γ)
SMALLEST_FAST = np.uint64(1 << 52)  # below it, 64 bits determine ln U too coarsely
GUARD_BITS = 64
MOST_BITS = 64 + 1024  # of one uniform number; reached with probability below 2^-1000

EXPANDED = 1 << 10  # bytes; fewer come from the operating system itself


def keystream(key: bytes) -> RandomBytes:
    """Return ChaCha20's: fast without AES instructions, and constant-time everywhere."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda count: cipher.update(bytes(count))


def os_random(count: int) -> bytes:
    return os.urandom(count) if count < EXPANDED else keystream(os.urandom(32))(count)


class SampleBytes:
    """A source of secret samples (`derived.py`), from which no noise may be drawn."""


class SeededRandom:
    """Reproducible bytes (numpy PCG64) for simulations and tests only: not a CSPRNG."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def __call__(self, count: int) -> bytes:
        return self._generator.bytes(count)


def discrete_laplace(
    scale: Fraction | int, shape: tuple[int, ...], random_bytes: RandomBytes = os_random
) -> Int64:
    """Draw int64 with P(x) ∝ exp(-|x|/scale). Raises PrivacyError unless 0 < scale <= 2**40."""
    t = Fraction(scale)
    if not 0 < t <= LARGEST_SCALE:
        raise PrivacyError(f"scale must be in (0, 2^40] steps, got {t}")
    _check_source(random_bytes)
    return _collect(shape, 1.6, lambda count: _laplace_candidates(t, count, random_bytes))


def discrete_gaussian(
    sigma_squared: Fraction | int, shape: tuple[int, ...], random_bytes: RandomBytes = os_random
) -> Int64:
    """Draw int64 with P(x) ∝ exp(-x²/2σ²). Raises PrivacyError unless 0 < σ² <= 2**80."""
    law = _gaussian_law(sigma_squared)
    _check_source(random_bytes)

    def candidates(count: int) -> Int64:
        noise = _laplace_candidates(law[1], count, random_bytes)
        accepted: Int64 = noise[_accept(noise, law, random_bytes)]
        return accepted

    return _collect(shape, 1.4, candidates)


def boxed_gaussian(
    sigma_squared: Fraction | int, shape: tuple[int, ...], random_bytes: RandomBytes = os_random
) -> Int64:
    """Draw as `discrete_gaussian` does, many values five times as fast, by other bits.

    A uniform integer of a uniform box is kept if a uniform height in the box is below the curve."""
    variance = _gaussian_law(sigma_squared)[0]
    _check_source(random_bytes)
    starts, rows, sure, width, scale = _boxes(variance)

    def draw(count: int) -> Int64:
        words = _uint64s(count, random_bytes).view(np.int64)
        box = words & (BOXES - 1)
        found: Int64 = starts[box] + ((words >> BOX_BITS) & (width - 1))
        crossed = (box >= sure).nonzero()[0]
        row, heights = rows[box[crossed]], _uint64s(len(crossed), random_bytes)
        squared = np.square(found[crossed].astype(np.float64))
        excess = (row + heights * 2.0**-64) / scale - np.exp(squared * (-0.5 / float(variance)))
        for i in (np.abs(excess) <= ACCEPT_MARGIN).nonzero()[0]:
            height = LazyUniform(int(row[i]) << 64 | int(heights[i]), 64, random_bytes, scale)
            gamma = int(found[crossed[i]]) ** 2 / (2 * variance)
            excess[i] = -1.0 if height.less_than_exp(gamma) else 1.0
        return np.delete(found, crossed[excess >= 0])

    return _collect(shape, 1.1, draw, BOX_CHUNK)


@lru_cache(maxsize=8)
def _boxes(variance: Fraction) -> tuple[Int64, Int64, int, int, int]:
    """Return (starts, rows, sure, width, scale) of boxes that cover exp(-x²/2σ²).

    Box i holds `width` integers x from starts[i] and heights from rows[i] to rows[i] + 1, in units
    of 1/`scale`; the first `sure` lie wholly below the curve."""
    width = 1 << max(0, math.frexp(math.sqrt(variance))[1] - 5)  # a 16th to a 32nd of σ, or 1
    reach = math.ceil(BOX_REACH * math.sqrt(variance) / width)
    starts = np.arange(-reach, reach, dtype=np.int64) * width
    squared = np.square(np.array([starts, starts + (width - 1)], np.float64))
    low, high = np.sort(np.exp(squared * (-0.5 / float(variance))), axis=0)
    scale = int((BOXES - len(starts)) / high.sum())
    counts = np.minimum(scale, np.floor(scale * (high + ACCEPT_MARGIN)) + 1).astype(np.int64)
    counts[-1] += BOXES - counts.sum()
    rows = np.arange(BOXES) - np.repeat(np.cumsum(counts) - counts, counts)
    crossed = rows >= np.repeat(np.floor(scale * (low - ACCEPT_MARGIN)), counts)
    order = np.argsort(crossed, kind="stable")
    return np.repeat(starts, counts)[order], rows[order], int((~crossed).sum()), width, scale


@lru_cache(maxsize=64)  # one variance serves many small draws
def _gaussian_law(sigma_squared: Fraction | int) -> tuple[Fraction, Fraction, float, float]:
    """Return (variance, proposal scale, peak, fall): x is kept with exp(`fall`·(|x| - peak)²)."""
    variance = Fraction(sigma_squared)
    if not 0 < variance <= LARGEST_SCALE**2:
        raise PrivacyError(f"sigma² must be in (0, 2^80] steps², got {variance}")
    scale = Fraction(math.isqrt(int(variance)) + 1)
    return variance, scale, float(variance / scale), -0.5 / float(variance)


def _check_source(random_bytes: RandomBytes) -> None:
    if isinstance(random_bytes, SampleBytes):
        raise PrivacyError("noise must be bound to the sum", fix="draw it by `derived.bound`")


def _collect(
    shape: tuple[int, ...], surplus: float, draw: Callable[[int], Int64], chunk: int = CHUNK
) -> Int64:
    need = math.prod(shape)
    parts: list[Int64] = []
    while need > 0:
        part = draw(min(chunk, int(need * surplus) + 16))[:need]
        parts.append(part)
        need -= len(part)
    flat = np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else np.empty(0, np.int64)
    return flat.reshape(shape)


# Small draws are frequent, and numpy's cost per call dominates them: so the functions below make
# few calls, and none that numpy implements in Python.


def _uint64s(count: int, random_bytes: RandomBytes) -> NDArray[np.uint64]:
    return np.frombuffer(random_bytes(8 * count), dtype="<u8", count=count)


def _laplace_candidates(t: Fraction, count: int, random_bytes: RandomBytes) -> Int64:
    """Return at most `count` discrete Laplace draws: a signed geometric without "minus zero"."""
    magnitude = _geometric(t, count, random_bytes)
    bits = np.frombuffer(random_bytes(-(-count // 8)), dtype=np.uint8)
    negative = np.unpackbits(bits, count=count).view(np.bool_)
    signed: Int64 = np.where(negative, -magnitude, magnitude)
    minus_zero = negative > magnitude  # True > 0 alone
    return signed[~minus_zero] if np.count_nonzero(minus_zero) else signed


def _geometric(t: Fraction, count: int, random_bytes: RandomBytes) -> Int64:
    words = _uint64s(count, random_bytes)
    scale = float(t)
    # The clip keeps ln finite; clipped values lie below SMALLEST_FAST and are decided exactly.
    uniform = np.maximum(words, np.uint64(1)).astype(np.float64) * 2.0**-64
    y = np.log(uniform) * -scale
    margin = (y + scale) * LOG_MARGIN
    undecided = (np.floor(y - margin) != np.floor(y + margin)) | (words < SMALLEST_FAST)
    result = np.floor(y).astype(np.int64)
    for i in undecided.nonzero()[0]:
        result[i] = LazyUniform(int(words[i]), 64, random_bytes).geometric(t)
    return result


def _accept(
    noise: Int64, law: tuple[Fraction, Fraction, float, float], random_bytes: RandomBytes
) -> NDArray[np.bool_]:
    (variance, scale, peak, fall), words = law, _uint64s(len(noise), random_bytes)
    gap = np.abs(noise).astype(np.float64) - peak
    chance = np.exp(gap * gap * fall)
    excess = words.astype(np.float64) * 2.0**-64 - chance
    accepted: NDArray[np.bool_] = excess < 0
    for i in (np.abs(excess) <= ACCEPT_MARGIN).nonzero()[0]:
        exact_gap = abs(int(noise[i])) - variance / scale
        gamma = exact_gap**2 / (2 * variance)
        accepted[i] = LazyUniform(int(words[i]), 64, random_bytes).less_than_exp(gamma)
    return accepted


def too_much_noise(what: str, fix: str) -> PrivacyError:
    bits = LARGEST_SCALE.bit_length() - 1
    return PrivacyError(f"{what}: would need noise of more than 2^{bits} grid steps", fix=fix)


class LazyUniform:
    """A uniform number in units of 1/`scale`: `count` known bits past the point, more on demand."""

    def __init__(self, bits: int, count: int, random_bytes: RandomBytes, scale: int = 1) -> None:
        self._bits, self._count, self._random_bytes, self._scale = bits, count, random_bytes, scale

    def _extend(self) -> None:
        self._bits = (self._bits << 64) | int.from_bytes(self._random_bytes(8), "little")
        self._count += 64

    def less_than_exp(self, gamma: Fraction) -> bool:
        if gamma <= 0:
            return True
        while True:
            low, high = (self._scale * end for end in exp_bracket(gamma, self._count))
            if self._bits + 1 <= low:
                return True
            if self._bits >= high or self._count >= MOST_BITS:
                return False
            self._extend()

    def geometric(self, t: Fraction) -> int:
        """Return floor(-t·ln U): a float64 guess, then doubling steps outward, then bisection."""
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
        return round(-float(t) * (math.log(self._bits) - self._count * math.log(2)))


def exp_bracket(gamma: Fraction, bits: int) -> tuple[int, int]:
    """Return integers low <= exp(-gamma)·2**bits <= high, high - low <= 2, for gamma >= 0."""
    precision = bits + GUARD_BITS
    whole, rest = divmod(gamma, 1)
    low, high = _exp_below_one(rest, precision)
    low_e, high_e = _power(*_exp_below_one(Fraction(1), precision), int(whole), precision)
    low, high = low * low_e >> precision, -(-high * high_e >> precision)
    return low >> GUARD_BITS, -(-high >> GUARD_BITS)


@lru_cache(maxsize=16)  # of 1, above all
def _exp_below_one(r: Fraction, precision: int) -> tuple[int, int]:
    """Bracket exp(-r)·2**precision for 0 <= r <= 1 by the alternating Taylor series."""
    one = 1 << precision
    fixed = int(r * one)
    term, total, k = one, one, 0
    while term:
        k += 1
        term = (term * fixed >> precision) // k
        total += term if k % 2 == 0 else -term
    # Each of the rounded terms is off by less than 3 units, and the tail is below 4.
    slack = 4 * (k + 2)
    return max(0, total - slack), min(one, total + slack)


def _power(low: int, high: int, exponent: int, precision: int) -> tuple[int, int]:
    result_low = result_high = 1 << precision
    while exponent:
        if exponent & 1:
            result_low = result_low * low >> precision
            result_high = -(-result_high * high >> precision)
        low, high = low * low >> precision, -(-high * high >> precision)
        exponent >>= 1
    return result_low, result_high
