"""Poisson samples of records, and the noise of a whole job of sampled steps.

Each record is in a step's sample with a public probability, by its own random bits. That is
secret, and new in every step; what it earns is in `docs/privacy.md`, "Sampled Gaussian".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import epsilon, mu_for
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import SampledGaussianEvent
from edgeveil.privacy.sampler import LARGEST_SCALE, RandomBytes, discrete_gaussian, os_random

Int64 = NDArray[np.int64]

SOURCE = (
    "Abadi et al. 2016; Zhu, Dong, Wang 2022, thm 11; Mironov, Talwar, Zhang 2019; discrete by "
    "Canonne et al. 2020"
)
TIGHT = 1.0 + 2.0**-9  # the noise found is at most so much above the least
LARGEST_MULTIPLIER = LARGEST_SCALE >> 30


@dataclass(frozen=True)
class Steps:
    """Public facts of one exchange: `steps` sums of `coordinates` values over Poisson samples.

    One record changes a sum by at most `sensitivity_steps` in L2.
    """

    what: str
    sampling_probability: float
    steps: int
    sensitivity_steps: int
    coordinates: int
    grid_bits: int

    def event(self, multiplier: float) -> SampledGaussianEvent:
        """Noise of σ = `multiplier` sensitivities in every step."""
        return SampledGaussianEvent(
            what=self.what,
            unit="record",
            sensitivity_steps=self.sensitivity_steps,
            sigma_squared=math.ceil((Fraction(multiplier) * self.sensitivity_steps) ** 2),
            sampling_probability=self.sampling_probability,
            steps=self.steps,
            coordinates=self.coordinates,
            grid_bits=self.grid_bits,
            source=SOURCE,
        )


def poisson_sample(
    count: int, probability: float, random_bytes: RandomBytes = os_random
) -> NDArray[np.int64]:
    """Indices below `count`, each with chance ⌊probability·2⁶⁴⌋/2⁶⁴, never more than asked."""
    threshold = int(Fraction(probability) * 2**64)
    if threshold >> 64:
        return np.arange(count, dtype=np.int64)
    words = np.frombuffer(random_bytes(8 * count), dtype="<u8", count=count)
    return np.flatnonzero(words < np.uint64(threshold)).astype(np.int64)


def noised_step(
    total: Int64, event: SampledGaussianEvent, random_bytes: RandomBytes = os_random
) -> Int64:
    """The exact sum (coordinates,) of one sample, in steps, plus the noise that `event` states."""
    if total.size != event.coordinates:
        raise PrivacyError(f"{event.what}: {total.size} values, priced as {event.coordinates}")
    source = bound(random_bytes, event, total)
    return total + discrete_gaussian(event.sigma_squared, total.shape, source)


@lru_cache(maxsize=64)
def calibrated(
    steps: Steps, participations: int, epsilon_: float, delta: float
) -> SampledGaussianEvent:
    """The event of one exchange of which `participations` together are (ε, δ)-DP, nearly tight.

    Where the library of loss distributions is missing, log moments ask for some percent more
    noise. Raises `PrivacyError` where the grid is too coarse, or the sampler draws no such noise.
    """

    def fits(multiplier: float) -> bool:
        event = steps.event(multiplier)
        whole = replace(event, steps=event.steps * participations)
        try:
            return epsilon([whole], delta).epsilon <= epsilon_
        except PrivacyError:
            return False

    # Without sampling this much is enough, but for the discreteness of the noise.
    high = math.sqrt(steps.steps * participations) / mu_for(epsilon_, delta)
    high = min(max(high, 2.0**-8), LARGEST_MULTIPLIER / 2)
    while not fits(high):
        high *= 2
        if high > LARGEST_MULTIPLIER:
            raise PrivacyError(
                f"{steps.what}: no noise that can be drawn on this grid meets ε = {epsilon_:g}, "
                f"δ = {delta:g}",
                where="privacy.epsilon",
                fix="sample fewer records a step, take fewer steps, or raise epsilon or delta",
            )
    low = high / 2
    while low > 2.0**-10 and fits(low):
        low, high = low / 2, low
    while high > low * TIGHT:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return steps.event(high)
