"""Noise on exact integer sums, each with the event that prices it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import GaussianEvent, LaplaceEvent, Unit
from edgeveil.privacy.sampler import (
    LARGEST_SCALE,
    RandomBytes,
    discrete_gaussian,
    discrete_laplace,
    os_random,
)

Int64 = NDArray[np.int64]
Layout = Literal["vector", "symmetric"]

GAUSSIAN_SOURCE = "Dong, Roth, Su 2022, thm 2.7 and cor. 3.3; discrete by Canonne et al. 2020"
LAPLACE_SOURCE = "Dwork et al. 2006; discrete by Ghosh et al. 2012, Canonne et al. 2020"


def gaussian_event(
    what: str,
    sensitivity_steps: int,
    mu: float,
    coordinates: int,
    *,
    grid_bits: int,
    layout: Layout = "vector",
    unit: Unit = "record",
) -> GaussianEvent:
    """The event of a Gaussian release at `mu`, before any record is read.

    σ² is the least even integer with sensitivity/σ <= mu. With `layout="symmetric"` the
    coordinates are the upper triangle (row by row) of a symmetric matrix and the sensitivity is
    its Frobenius norm: off-diagonals get σ²/2 (`docs/privacy.md`, "The quadratic"). Raises
    `PrivacyError` for noise that the sampler does not draw, before anybody relies on it.
    """
    if not (0 < mu < math.inf) or sensitivity_steps <= 0:
        raise PrivacyError(f"{what}: needs mu > 0 and a sensitivity > 0, got mu = {mu}")
    variance = 2 * math.ceil(Fraction(sensitivity_steps**2) / (2 * Fraction(mu) ** 2))
    if variance > LARGEST_SCALE**2:
        raise _too_much_noise(what, "allow fewer participations, or more epsilon or delta")
    return GaussianEvent(
        what=what,
        unit=unit,
        sensitivity_steps=sensitivity_steps,
        sigma_squared=variance,
        finest_sigma_squared=variance // 2 if layout == "symmetric" else variance,
        coordinates=coordinates,
        grid_bits=grid_bits,
        source=GAUSSIAN_SOURCE,
    )


def gaussian(
    total: Int64, event: GaussianEvent, random_bytes: RandomBytes = os_random
) -> tuple[Int64, GaussianEvent]:
    """`total` (any shape, steps) plus the discrete Gaussian noise that `event` states.

    A symmetric layout expects the flat upper triangle, row by row, diagonal included.
    """
    if total.size != event.coordinates:
        raise PrivacyError(f"{event.what}: {total.size} values, priced as {event.coordinates}")
    random_bytes = bound(random_bytes, event, total)
    if event.finest_sigma_squared == event.sigma_squared:
        return total + discrete_gaussian(event.sigma_squared, total.shape, random_bytes), event
    if 2 * event.finest_sigma_squared != event.sigma_squared:
        raise PrivacyError(f"{event.what}: a symmetric matrix needs σ²/2 off the diagonal")
    noise = discrete_gaussian(event.finest_sigma_squared, total.shape, random_bytes)
    diagonal = diagonal_of_triangle(total.size)
    noise[diagonal] = discrete_gaussian(event.sigma_squared, diagonal.shape, random_bytes)
    return total + noise, event


def diagonal_of_triangle(size: int) -> NDArray[np.int64]:
    """Places of the diagonal in a flat upper triangle of `size` = d(d+1)/2 values."""
    d = (math.isqrt(8 * size + 1) - 1) // 2
    if d * (d + 1) // 2 != size:
        raise PrivacyError(f"{size} values are not the upper triangle of a square matrix")
    rows = np.arange(d, dtype=np.int64)
    return rows * d - rows * (rows - 1) // 2


def laplace(
    total: Int64, event: LaplaceEvent, random_bytes: RandomBytes = os_random
) -> tuple[Int64, LaplaceEvent]:
    """`total` (any shape, steps) plus the discrete Laplace noise that `event` states."""
    if total.size != event.coordinates:
        raise PrivacyError(f"{event.what}: {total.size} values, priced as {event.coordinates}")
    noise = discrete_laplace(scale_of(event), total.shape, bound(random_bytes, event, total))
    return total + noise, event


def scale_of(event: LaplaceEvent) -> Fraction:
    """The exact scale of the event's noise, in steps."""
    return Fraction(event.scale_numerator, event.scale_denominator)


def laplace_event(
    what: str, proven: int, assumed: int, epsilon: float | Fraction, size: int, grid_bits: int
) -> LaplaceEvent:
    """The event of `size` values with noise of scale `assumed`/ε steps, unit record.

    `proven` is the true L1 sensitivity in steps, which sets the price. Raises `PrivacyError` for
    an ε or noise out of range.
    """
    if not 0 < epsilon < math.inf or assumed <= 0:
        raise PrivacyError(f"{what}: epsilon must be positive and finite, got {epsilon}")
    scale = Fraction(assumed) / Fraction(epsilon)
    if scale > LARGEST_SCALE:
        raise _too_much_noise(what, "raise epsilon")
    return LaplaceEvent(
        what=what,
        unit="record",
        sensitivity_steps=proven,
        scale_numerator=scale.numerator,
        scale_denominator=scale.denominator,
        coordinates=size,
        grid_bits=grid_bits,
        source=LAPLACE_SOURCE,
    )


def _too_much_noise(what: str, fix: str) -> PrivacyError:
    bits = LARGEST_SCALE.bit_length() - 1
    return PrivacyError(f"{what}: would need noise of more than 2^{bits} grid steps", fix=fix)
