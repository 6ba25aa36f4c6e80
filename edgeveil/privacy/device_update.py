"""A device's whole update as one unit: clipped, quantised toward zero, with Gaussian noise.

Neighbours: the device with its records, or with none, whose update is 0. A clip to L2 norm C makes
the sensitivity C, whatever happened on the device before (`docs/privacy.md`, "A whole update").
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.privacy.accountant import discreteness_tv, epsilon, mu_for
from edgeveil.privacy.events import GaussianEvent
from edgeveil.privacy.grid import SHRINK
from edgeveil.privacy.mechanisms import gaussian, gaussian_event
from edgeveil.privacy.sampler import RandomBytes, os_random

CLIP_STEPS_BITS = 30  # of C in steps, at most: squares of norms then fit 64 bits
SIGMA_BITS = 37  # of σ in steps, about: fine for the price, and within what the sampler draws


def update_event(
    what: str, clip_norm: float, coordinates: int, epsilon_: float, delta: float, times: int
) -> GaussianEvent:
    """One release of an update of norm at most `clip_norm`; `times` of them are (ε, δ)-DP.

    Part of δ is set aside for the discreteness of the noise, which depends on the noise: a few
    rounds settle it. Raises `PrivacyError` where no noise of the sampler's meets (ε, δ).
    """
    reserve = 0.0
    for _ in range(8):
        if reserve >= delta:
            break
        mu = mu_for(epsilon_, delta - reserve) / math.sqrt(times)
        size = min(CLIP_STEPS_BITS, SIGMA_BITS + math.floor(math.log2(mu)))
        bits = size - math.ceil(math.log2(clip_norm))
        steps = int(clip_norm * 2.0**bits)
        event = gaussian_event(what, steps, mu, coordinates, grid_bits=bits, unit="device")
        slack = (1 + math.exp(epsilon_)) * times * discreteness_tv(event)
        if _costs(event, times, delta) <= epsilon_:
            return event
        reserve = 1.1 * slack + 1e-6 * delta
    raise PrivacyError(
        f"the noise grid is too coarse for ε = {epsilon_:g}, δ = {delta:g}",
        where="privacy.epsilon",
        fix="lower epsilon or raise delta",
    )


def _costs(event: GaussianEvent, times: int, delta: float) -> float:
    """ε of all releases; infinite where the discreteness of the noise uses up δ alone."""
    try:
        return epsilon([event] * times, delta).epsilon
    except PrivacyError:
        return math.inf


def noised_update(
    values: NDArray[np.float64], event: GaussianEvent, random_bytes: RandomBytes = os_random
) -> NDArray[np.float64]:
    """`values` (d,) clipped to the event's norm, on its grid, with its noise."""
    total = clipped_steps(values, event.sensitivity_steps, event.grid_bits)
    noised, _ = gaussian(total, event, random_bytes)
    return np.asarray(noised * 2.0**-event.grid_bits, np.float64)


def clipped_steps(values: NDArray[np.float64], steps: int, grid_bits: int) -> NDArray[np.int64]:
    """`values` (d,) scaled to L2 norm at most `steps`·2**-grid_bits, rounded toward zero to steps.

    The norm is checked again in integers: a vector that failed, and one that is not finite, is 0.
    """
    whole = np.zeros(values.shape, np.int64)
    largest = float(np.abs(values).max(initial=0.0))
    if not 0 < largest < math.inf:
        return whole
    unit = values / largest
    limit = steps * 2.0**-grid_bits * SHRINK
    norm = math.sqrt(float(unit @ unit)) * largest
    factor = min(1.0, limit / norm)
    whole[:] = np.trunc(values * factor * 2.0**grid_bits)
    # All squares together are near steps² <= 2^60, so their sum is exact.
    within = int((whole * whole).sum()) <= steps * steps
    return whole if within else np.zeros_like(whole)
