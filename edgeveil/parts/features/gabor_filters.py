"""Gabor wavelets with whole taps, and their modulus over images in whole levels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
LEVELS = 255
TAP_STEPS = 1 << 12
ASPECT = 0.49  # the envelope is longer across the wave
RUN = 4  # neighbouring outputs of one row that share a patch: fewer copies, somewhat more products


@dataclass(frozen=True, eq=False)
class Filters:
    """Wavelets of one scale: even and odd parts (orientations, side, side), in steps of 2**-12.

    A wavelet of unit norm with at most 15² taps has an L1 norm of at most 15, so a sum over an
    image in 255 levels stays below 15 * 2**12 * 255 + rounding < 2**24: float32 holds every
    partial sum exactly.
    """

    radius: int
    even: Float32
    odd: Float32
    banded: Float32
    """(side * (side + RUN - 1), 2 * orientations * RUN): the filters at RUN places beside."""


@lru_cache(maxsize=8)
def filters(orientations: int, scales: int) -> tuple[Filters, ...]:
    """One bank for each scale: wavelengths 4, 8, 16 on windows of side 7, 11, 15."""
    return tuple(_bank(orientations, 3 + 2 * k, 4.0 * 2**k, 1.6 * 2**k) for k in range(scales))


def modulus(padded: Float32, bank: Filters) -> Float32:
    """|image * wavelet| (n, orientations, rows, columns) of whole images (n, rows, columns).

    Sums are exact; squares, sum and root of two integers are correctly rounded one by one, so a
    value depends on its own window alone. Images end in zeros outside.
    """
    n, rows, columns = padded.shape
    side, run = 2 * bank.radius + 1, -(-columns // RUN) * RUN
    wide = np.zeros((n, rows + side - 1, run + side - 1), np.float32)
    wide[:, bank.radius : bank.radius + rows, bank.radius : bank.radius + columns] = padded
    patches = sliding_window_view(wide, (side, side + RUN - 1), axis=(1, 2))[:, :, ::RUN]
    waves = patches.reshape(-1, bank.banded.shape[0]) @ bank.banded
    parts = waves.reshape(n, rows, run // RUN, 2, -1, RUN)
    squares = parts[:, :, :, 0] * parts[:, :, :, 0] + parts[:, :, :, 1] * parts[:, :, :, 1]
    found = np.sqrt(squares).transpose(0, 3, 1, 2, 4).reshape(n, -1, rows, run)
    return np.asarray(found[..., :columns], dtype=np.float32)


def _bank(orientations: int, radius: int, wavelength: float, width: float) -> Filters:
    side = 2 * radius + 1
    even = np.zeros((orientations, side, side))
    odd = np.zeros_like(even)
    for k in range(orientations):
        even[k], odd[k] = _wavelet(math.pi * k / orientations, radius, wavelength, width)
    even, odd = np.rint(even * TAP_STEPS), np.rint(odd * TAP_STEPS)
    banded = np.zeros((side, side + RUN - 1, 2, orientations, RUN))
    for shift in range(RUN):
        banded[:, shift : shift + side, 0, :, shift] = even.transpose(1, 2, 0)
        banded[:, shift : shift + side, 1, :, shift] = odd.transpose(1, 2, 0)
    flat = banded.reshape(side * (side + RUN - 1), -1)
    return Filters(radius, *(a.astype(np.float32) for a in (even, odd, flat)))


def _wavelet(angle: float, radius: int, wavelength: float, width: float) -> tuple[Float64, Float64]:
    """Even and odd part (side, side) at unit norm together, the even part without a mean."""
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(np.float64)
    along = x * math.cos(angle) + y * math.sin(angle)
    across = y * math.cos(angle) - x * math.sin(angle)
    envelope = np.exp(-(along**2 + ASPECT * across**2) / (2 * width**2))
    even = envelope * np.cos(2 * math.pi * along / wavelength)
    odd = envelope * np.sin(2 * math.pi * along / wavelength)
    even -= envelope * even.sum() / envelope.sum()
    norm = math.sqrt((even**2 + odd**2).sum())
    return np.asarray(even / norm), np.asarray(odd / norm)
