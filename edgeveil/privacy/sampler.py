"""Exact integer noise: the discrete Laplace and the discrete Gaussian, vectorised.

Both follow Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy"
(2020): a discrete Gaussian is a discrete Laplace thinned by a Bernoulli(exp(-γ)).

Every random decision compares a uniform U with exp(-γ). The fast path compares 64 random
bits with a float64 value and accepts the answer only outside a proven error margin
(`docs/privacy.md`, "Exact sampling"); the rare rest is decided by `LazyUniform`, which draws
further bits of the *same* U and brackets exp(-γ) in integer arithmetic. So the distribution
is exact, not merely close.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.privacy.exact import LazyUniform

RandomBytes = Callable[[int], bytes]
Int64 = NDArray[np.int64]

CHUNK = 1 << 16
LARGEST_SCALE = 1 << 40
# Bounds on the float64 error of the fast path; derived in docs/privacy.md.
LOG_MARGIN = 2.0**-49  # relative to t + y, for y = -t·ln U
ACCEPT_MARGIN = 2.0**-46  # absolute, for exp(-γ)
SMALLEST_FAST = np.uint64(1 << 52)  # below it, 64 bits say too little about ln U

os_random: RandomBytes = os.urandom


class SampleBytes:
    """Bytes that no noise may be drawn from: those of secret samples (`derived.py`)."""


class SeededRandom:
    """Reproducible bytes (numpy PCG64), for simulations and tests only: not a CSPRNG."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def __call__(self, count: int) -> bytes:
        return self._generator.bytes(count)


def discrete_laplace(
    scale: Fraction | int, shape: tuple[int, ...], random_bytes: RandomBytes = os_random
) -> Int64:
    """Independent draws with P(x) ∝ exp(-|x|/scale), in integer steps, int64 of `shape`.

    Raises `PrivacyError` unless 0 < scale <= 2**40 steps.
    """
    t = _checked(Fraction(scale), "scale")
    _check_source(random_bytes)
    return _collect(shape, 1.6, lambda count: _laplace_candidates(t, count, random_bytes))


def discrete_gaussian(
    sigma_squared: Fraction | int, shape: tuple[int, ...], random_bytes: RandomBytes = os_random
) -> Int64:
    """Independent draws with P(x) ∝ exp(-x²/2σ²), in integer steps, int64 of `shape`.

    Raises `PrivacyError` unless 0 < σ² <= 2**80 steps².
    """
    variance = Fraction(sigma_squared)
    if not 0 < variance <= LARGEST_SCALE**2:
        raise PrivacyError(f"sigma² must be in (0, 2^80] steps², got {variance}")
    _check_source(random_bytes)
    t = math.isqrt(int(variance)) + 1

    def candidates(count: int) -> Int64:
        noise = _laplace_candidates(Fraction(t), count, random_bytes)
        accepted: Int64 = noise[_accept(noise, variance, t, random_bytes)]
        return accepted

    return _collect(shape, 1.4, candidates)


def _checked(scale: Fraction, name: str) -> Fraction:
    if not 0 < scale <= LARGEST_SCALE:
        raise PrivacyError(f"{name} must be in (0, 2^40] steps, got {scale}")
    return scale


def _check_source(random_bytes: RandomBytes) -> None:
    if isinstance(random_bytes, SampleBytes):
        raise PrivacyError(
            "derived noise must be bound to the sum it hides", fix="draw it by `derived.bound`"
        )


def _collect(shape: tuple[int, ...], surplus: float, draw: Callable[[int], Int64]) -> Int64:
    """The first `prod(shape)` accepted candidates; candidates are i.i.d., so the cut is fair."""
    need = math.prod(shape)
    parts: list[Int64] = []
    while need > 0:
        part = draw(min(CHUNK, int(need * surplus) + 16))[:need]
        parts.append(part)
        need -= len(part)
    flat = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    return flat.reshape(shape)


def _words(count: int, random_bytes: RandomBytes) -> NDArray[np.uint64]:
    return np.frombuffer(random_bytes(8 * count), dtype="<u8", count=count).astype(np.uint64)


def _laplace_candidates(t: Fraction, count: int, random_bytes: RandomBytes) -> Int64:
    """Discrete Laplace draws, at most `count`: a signed geometric without "minus zero"."""
    magnitude = _geometric(t, count, random_bytes)
    bits = np.frombuffer(random_bytes(-(-count // 8)), dtype=np.uint8)
    negative = np.unpackbits(bits, count=count).astype(bool)
    signed = np.where(negative, -magnitude, magnitude)
    kept: Int64 = signed[~(negative & (magnitude == 0))]
    return kept


def _geometric(t: Fraction, count: int, random_bytes: RandomBytes) -> Int64:
    """floor(-t·ln U) for uniform U: P(X >= x) = exp(-x/t)."""
    words = _words(count, random_bytes)
    scale = float(t)
    # The clip keeps ln finite; what it touches lies below SMALLEST_FAST and is decided exactly.
    uniform = np.maximum(words, np.uint64(1)).astype(np.float64) * 2.0**-64
    y = np.log(uniform) * -scale
    margin = (y + scale) * LOG_MARGIN
    x = np.floor(y)
    undecided = (x != np.floor(y - margin)) | (x != np.floor(y + margin)) | (words < SMALLEST_FAST)
    result = x.astype(np.int64)
    for i in np.flatnonzero(undecided):
        result[i] = LazyUniform(int(words[i]), 64, random_bytes).geometric(t)
    return result


def _accept(
    noise: Int64, variance: Fraction, t: int, random_bytes: RandomBytes
) -> NDArray[np.bool_]:
    """Bernoulli(exp(-γ)) for γ = (|x| - σ²/t)² / 2σ²."""
    words = _words(len(noise), random_bytes)
    gap = np.abs(noise).astype(np.float64) - float(variance / t)
    chance = np.exp(gap * gap * (-0.5 / float(variance)))
    excess = words.astype(np.float64) * 2.0**-64 - chance
    accepted = excess < 0
    for i in np.flatnonzero(np.abs(excess) <= ACCEPT_MARGIN):
        gamma = (abs(int(noise[i])) - variance / t) ** 2 / (2 * variance)
        accepted[i] = LazyUniform(int(words[i]), 64, random_bytes).less_than_exp(gamma)
    return accepted
