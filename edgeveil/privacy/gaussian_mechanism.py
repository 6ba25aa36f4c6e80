"""Gaussian noise on exact integer sums: of records, of a device's update, of Poisson samples.

σ² ≥ (sensitivity/μ)² steps² hides one unit with Gaussian DP of parameter μ (Dong, Roth and Su 2022,
thm 2.7; discrete: Canonne, Kamath and Steinke 2020). One record moves a sum by the clip norm at
most; a device's whole update is clipped, and its neighbour is 0 (`docs/privacy.md`, "A whole
update"); a Poisson sample is secret and new in every step ("Sampled Gaussian").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import discreteness_tv, epsilon, mu_for
from edgeveil.privacy.correlation import Correlation
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import (
    CorrelatedGaussian,
    GaussianEvent,
    NoisyEvent,
    PoissonSampled,
    SharedGaussian,
    Unit,
    noise_of,
    with_noise,
)
from edgeveil.privacy.grid import SHRINK
from edgeveil.privacy.sampler import (
    LARGEST_SCALE,
    RandomBytes,
    boxed_gaussian,
    discrete_gaussian,
    os_random,
    too_much_noise,
)

Int64 = NDArray[np.int64]
Layout = Literal["vector", "symmetric"]
E = TypeVar("E", bound=NoisyEvent)
G = TypeVar("G", bound=GaussianEvent | SharedGaussian)

GAUSSIAN_SOURCE = "Dong, Roth, Su 2022, thm 2.7 and cor. 3.3; discrete by Canonne et al. 2020"
SAMPLED_SOURCE = (
    "Abadi et al. 2016; Zhu, Dong, Wang 2022, thm 11; Mironov, Talwar, Zhang 2019; discrete by "
    "Canonne et al. 2020"
)
CORRELATED_SOURCE = (
    f"{GAUSSIAN_SOURCE}; correlated: Choquette-Choo et al. 2023, thm 2.1; Kalinin, Lampert 2024"
)
TIGHT = 1.0 + 2.0**-9  # most ratio of the calibrated noise to the least sufficient one
LARGEST_MULTIPLIER = LARGEST_SCALE >> 30
# Bits of values in steps:
LEAST_SHARE_BITS = 10  # least σ of one device's part in shared noise
CLIP_STEPS_BITS = 30  # largest clip norm C: squares of norms then fit 64 bits
SIGMA_BITS = 37  # about σ: fine enough for the price, and within the sampler's range
COUNTS_SIGMA_BITS = 22  # least σ of counts; each cell of a sum grows by as many bits
SUMMED_SIGMA_BITS = 24  # σ where each bit of a sum costs: the precision of a float32


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
    """Return the event of a Gaussian release at `mu`: the least even σ² with sensitivity/σ <= mu.

    `layout="symmetric"`: coordinates are the upper triangle, row by row, the sensitivity is the
    Frobenius norm, and off-diagonals get σ²/2. Raises `PrivacyError` beyond the sampler's range."""
    if not (0 < mu < math.inf) or sensitivity_steps <= 0:
        raise PrivacyError(f"{what}: needs mu > 0 and a sensitivity > 0, got mu = {mu}")
    variance = 2 * math.ceil(Fraction(sensitivity_steps**2) / (2 * Fraction(mu) ** 2))
    if variance > LARGEST_SCALE**2:
        raise too_much_noise(what, "allow fewer participations, or more epsilon or delta")
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


def hiding(event: GaussianEvent, unit: Unit) -> GaussianEvent:
    """Return the event of a sum in which each `unit`, and each record of it, moves no more."""
    same = event.sensitivity_steps if unit == "device" else 0
    return replace(event, unit=unit, record_sensitivity_steps=same)


def shared_gaussian(event: E, honest: int) -> E | SharedGaussian:
    """Return a release whose noise `honest` devices share in equal parts; 0: unchanged."""
    if not honest:
        return event
    one = noise_of(event)
    part = 2 * math.ceil(Fraction(one.sigma_squared, 2 * honest))
    symmetric = one.finest_sigma_squared != one.sigma_squared
    finest = part // 2 if symmetric else part
    if finest < 1 << 2 * LEAST_SHARE_BITS:
        what = f"{event.what}: noise of {math.sqrt(finest):.3g} steps each is too coarse to add up"
        fix = "lower epsilon, or round.min_batch"
        raise PrivacyError(what, where="privacy.epsilon", fix=fix)
    source = f"{event.source}; shared: Kairouz, Liu, Steinke 2021, cor. 12"
    own = with_noise(event, sigma_squared=part, finest_sigma_squared=finest, source=source)
    return SharedGaussian(own=own, honest=honest)


def gaussian(
    total: Int64, event: GaussianEvent, random_bytes: RandomBytes = os_random
) -> tuple[Int64, GaussianEvent]:
    """Return `total` (any shape, steps; symmetric: flat upper triangle) plus the event's noise."""
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
    """Return the diagonal's indices in a flat upper triangle of `size` = d(d+1)/2 values."""
    d = (math.isqrt(8 * size + 1) - 1) // 2
    if d * (d + 1) // 2 != size:
        raise PrivacyError(f"{size} values are not the upper triangle of a square matrix")
    rows = np.arange(d, dtype=np.int64)
    return rows * d - rows * (rows - 1) // 2


def update_event(
    what: str,
    clip_norm: float,
    coordinates: int,
    epsilon_: float,
    delta: float,
    times: int,
    sigma_bits: int = SIGMA_BITS,
) -> GaussianEvent:
    """Return the event of an update of norm <= `clip_norm`; `times` of them are (ε, δ)-DP."""

    def of(mu: float) -> GaussianEvent:
        size = min(CLIP_STEPS_BITS, sigma_bits + math.floor(math.log2(mu)))
        bits = size - math.ceil(math.log2(clip_norm))
        steps = int(clip_norm * 2.0**bits)
        return gaussian_event(what, steps, mu, coordinates, grid_bits=bits, unit="device")

    return meeting(of, epsilon_, delta, times)


def correlated_event(
    what: str,
    clip_norm: float,
    coordinates: int,
    epsilon_: float,
    delta: float,
    correlation: Correlation,
    honest: int,
    local_share: float = 0.0,
) -> CorrelatedGaussian:
    """Return the event of a device's update, part of rounds that are (ε, δ)-DP all together.

    `local_share`: noise that is never taken back, as a share of the other noise's variance.
    Raises `PrivacyError` if no noise meets (ε, δ)."""
    times, k = correlation.rounds, correlation.participations
    # Discreteness may use an eighth of δ.
    finest = (1 + math.exp(min(epsilon_, 64.0))) * coordinates * times / (2 * delta)
    sigma_bits = max(SUMMED_SIGMA_BITS, math.ceil(math.log2(finest) / 2))

    def of(mu: float) -> CorrelatedGaussian:
        norm = math.sqrt(correlation.squared_sensitivity / 2**64 / k)
        size = min(CLIP_STEPS_BITS, sigma_bits + math.floor(math.log2(mu / norm)))
        bits = size - math.ceil(math.log2(clip_norm))
        clip_steps = int(clip_norm * 2.0**bits)
        steps = correlation.sensitivity_steps(clip_steps, coordinates)
        summed = gaussian_event(what, steps, mu, coordinates, grid_bits=bits, unit="device")
        own = replace(summed, sensitivity_steps=clip_steps, source=CORRELATED_SOURCE)
        part = noise_of(shared_gaussian(own, honest))
        local = math.ceil(Fraction(local_share) * part.sigma_squared)
        return CorrelatedGaussian(
            own=part, honest=honest, correlation=correlation, local_sigma_squared=local
        )

    return meeting(of, epsilon_, delta, k)


def counts_event(
    what: str,
    sensitivity_squared: int,
    coordinates: int,
    epsilon_: float,
    delta: float,
    times: int,
    honest: int = 0,
    fine_bits: int = 0,
    unit: Unit = "record",
) -> GaussianEvent | SharedGaussian:
    """Return the event of integer counts in steps of 2**-fine_bits; `times` are (ε, δ)-DP.

    `sensitivity_squared` bounds the sum of squares that one `unit` adds. `honest` devices share the
    noise; default 0: each adds all. Raises `PrivacyError` if no noise meets (ε, δ)."""
    # Discreteness may use a hundredth of δ; each part has only its share of the variance.
    finest = (1 + math.exp(min(epsilon_, 64.0))) * coordinates * times / (0.16 * delta)
    least = max(COUNTS_SIGMA_BITS, min(SIGMA_BITS, math.ceil(math.log2(finest) / 2)))
    widest = math.isqrt(LARGEST_SCALE**2 // sensitivity_squared).bit_length() - 1
    sigma_bits = min(widest + fine_bits, least + (honest.bit_length() + 1) // 2)

    def of(mu: float) -> GaussianEvent:
        bits = max(0, sigma_bits + math.floor(math.log2(mu)) - fine_bits)
        steps = math.isqrt((sensitivity_squared << 2 * bits) - 1) + 1
        if unit != "record":  # of a unit's mean, rounded; a record of it moves that by no more
            steps += math.isqrt(coordinates) + 1
        event = gaussian_event(what, steps, mu, coordinates, grid_bits=bits)
        return replace(hiding(event, unit), purpose="infer")

    return shared_gaussian(meeting(of, epsilon_, delta, times), honest)


def meeting(of: Callable[[float], G], epsilon_: float, delta: float, times: int) -> G:
    reserve = 0.0
    for _ in range(8):
        if reserve >= delta:
            break
        event = of(mu_for(epsilon_, delta - reserve) / math.sqrt(times))
        one = event.together if isinstance(event, SharedGaussian) else event
        slack = (1 + math.exp(epsilon_)) * times * discreteness_tv(one)
        with suppress(PrivacyError):  # the discreteness of the noise may use up δ alone
            if epsilon([event] * times, delta).epsilon <= epsilon_:
                return event
        reserve = 1.1 * slack + 1e-6 * delta
    what = f"the noise grid is too coarse for ε = {epsilon_:g}, δ = {delta:g}"
    raise PrivacyError(what, where="privacy.epsilon", fix="lower epsilon or raise delta")


def clipped_steps(values: NDArray[np.float64], steps: int, grid_bits: int) -> NDArray[np.int64]:
    """Clip `values` (d,) to L2 norm `steps`·2**-grid_bits, toward zero; 0 if not finite."""
    nothing = np.zeros(values.shape, np.int64)
    largest = float(np.abs(values).max(initial=0.0))
    if not 0 < largest < math.inf:
        return nothing
    unit = values / largest
    limit = steps * 2.0**-grid_bits * SHRINK
    norm = math.sqrt(float(unit @ unit)) * largest
    factor = min(1.0, limit / norm)
    whole = np.trunc(values * factor * 2.0**grid_bits).astype(np.int64)
    # All squares together are near steps² <= 2^60, so their sum is exact.
    within = int((whole * whole).sum()) <= steps * steps
    return whole if within else np.zeros_like(whole)


def sampled_gaussian_event(
    what: str,
    sampling_probability: float,
    steps: int,
    sensitivity_steps: int,
    coordinates: int,
    *,
    grid_bits: int,
    noise_multiplier: float = 1.0,
) -> PoissonSampled:
    """Return the event of `steps` sums over Poisson samples, by `noise_multiplier`."""
    variance = _variance(sensitivity_steps, noise_multiplier)
    event = GaussianEvent(
        what=what,
        unit="record",
        sensitivity_steps=sensitivity_steps,
        sigma_squared=variance,
        finest_sigma_squared=variance,
        coordinates=coordinates,
        grid_bits=grid_bits,
        source=SAMPLED_SOURCE,
    )
    return PoissonSampled(event=event, sampling_probability=sampling_probability, steps=steps)


def _variance(sensitivity_steps: int, noise_multiplier: float) -> int:
    return math.ceil((Fraction(noise_multiplier) * sensitivity_steps) ** 2)


def poisson_sample(
    count: int, probability: float, random_bytes: RandomBytes = os_random
) -> NDArray[np.int64]:
    """Return indices below `count`, each with probability ⌊probability·2⁶⁴⌋/2⁶⁴."""
    threshold = int(Fraction(probability) * 2**64)
    if threshold >> 64:
        return np.arange(count, dtype=np.int64)
    words = np.frombuffer(random_bytes(8 * count), dtype="<u8", count=count)
    return np.flatnonzero(words < np.uint64(threshold)).astype(np.int64)


def noised_step(
    total: Int64, event: PoissonSampled, random_bytes: RandomBytes = os_random
) -> Int64:
    """Return the exact sum (coordinates,) of one sample plus the noise of one step."""
    one = event.event
    if total.size != one.coordinates:
        raise PrivacyError(f"{one.what}: {total.size} values, priced as {one.coordinates}")
    source = bound(random_bytes, event, total)
    return total + boxed_gaussian(one.sigma_squared, total.shape, source)


@lru_cache(maxsize=64)
def calibrated(
    sampled: PoissonSampled, participations: int, epsilon_: float, delta: float
) -> PoissonSampled:
    """Return `sampled` with nearly minimal noise: `participations` of them are (ε, δ)-DP."""

    def noised(multiplier: float) -> PoissonSampled:
        variance = _variance(sampled.event.sensitivity_steps, multiplier)
        one = replace(sampled.event, sigma_squared=variance, finest_sigma_squared=variance)
        return replace(sampled, event=one)

    def fits(multiplier: float) -> bool:
        whole = replace(noised(multiplier), steps=sampled.steps * participations)
        try:
            return epsilon([whole], delta).epsilon <= epsilon_
        except PrivacyError:
            return False

    # Sufficient without sampling, apart from the discreteness of the noise.
    high = math.sqrt(sampled.steps * participations) / mu_for(epsilon_, delta)
    high = min(max(high, 2.0**-8), LARGEST_MULTIPLIER / 2)
    while not fits(high):
        high *= 2
        if high > LARGEST_MULTIPLIER:
            what = f"{sampled.what}: no noise that can be drawn on this grid meets"
            fix = "sample fewer records per step, set fewer steps, or raise epsilon or delta"
            what = f"{what} ε = {epsilon_:g}, δ = {delta:g}"
            raise PrivacyError(what, where="privacy.epsilon", fix=fix)
    low = high / 2
    while low > 2.0**-10 and fits(low):
        low, high = low / 2, low
    while high > low * TIGHT:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return noised(high)
