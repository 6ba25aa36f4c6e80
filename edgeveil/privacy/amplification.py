"""Privacy amplification by shuffling: the clone bound, for pure local DP of whole devices.

**Theorem** (Feldman, McMillan, Talwar 2021, thm 3.1 and 3.2). n devices each send one message by an
ε₀-DP randomiser of their whole data, chosen adaptively, and a trusted party permutes them. For
inputs that differ in one device, the view is post-processing of P = (A + Δ, C − A + 1 − Δ) against
Q = (A + 1 − Δ, C − A + Δ); C ~ Bin(n − 1, e^(−ε₀)), A ~ Bin(C, ½), Δ ~ Bern(e^ε₀/(e^ε₀ + 1)). So it
is (ε, δ)-DP with δ = Σ_c P[C = c]·(P[X ≥ x] − e^ε·Q[X ≥ x]), X the first count and x where its
likelihood ratio passes e^ε; the other direction is the same.

All segments of a device are one message. Of (ε₀, δ₀)-DP randomisers δ grows by
(e^ε + 1)·(1 + e^(−ε₀)/2)·n·δ₀ (thm 3.8), so Gaussian uploads of whole devices gain in large fleets.
The bound does not hold for record-level uploads, nor if the proxy colludes with the cloud.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError

LARGEST_EPSILON = 60.0  # of one upload: above, clones are too rare at any number of devices
_TAIL = 1e-4  # share of δ for clone counts left out of the sum
_ROUNDING = 1e-12  # relative, of the tails of binomial distributions in float64
_STEPS = 60
_MOST_EPSILON = 0.25, 0.5, 1.0, 3.0  # of one round, so that the growth of δ is known beforehand


def clone_epsilon(local_epsilon: float, devices: int, delta: float) -> float:
    """Return ε at `delta` of `devices` shuffled uploads, each `local_epsilon`-DP."""
    if devices < 1 or not 0 < delta < 1 or not local_epsilon >= 0:
        raise PrivacyError("amplification needs a device, an ε >= 0 and a δ in (0, 1)")
    if devices == 1 or not 0 < local_epsilon <= LARGEST_EPSILON:
        return local_epsilon
    counts, chances, left_out = _clones(local_epsilon, devices, delta)
    low, high = 0.0, local_epsilon
    for _ in range(_STEPS):
        middle = (low + high) / 2
        found = clone_delta(middle, local_epsilon, counts, chances) + left_out
        low, high = (low, middle) if found <= delta else (middle, high)
    return high


def clone_delta(
    epsilon: float, local_epsilon: float, counts: NDArray[np.int64], chances: NDArray[np.float64]
) -> float:
    """Return δ(ε) of P against Q, rounded up, for C = `counts` with these `chances`."""
    from scipy.special import betainc  # scipy.stats takes a second and 50 MB more to import

    high = 1 / (1 + math.exp(-local_epsilon))
    # P(x)/Q(x) > e^ε where x/(c + 1) is above `edge`.
    edge = (math.exp(epsilon) * high - (1 - high)) / ((2 * high - 1) * (1 + math.exp(epsilon)))
    least = np.floor(edge * (counts + 1) * (1 - 1e-12)) + 1

    def tail(least: NDArray[np.float64]) -> NDArray[np.float64]:
        inside = np.clip(least, 1, np.maximum(counts, 1))
        found = betainc(inside, counts - inside + 1, 0.5)
        return np.where(least <= 0, 1.0, np.where(least > counts, 0.0, found))

    with_it, without = tail(least - 1), tail(least)
    p = high * with_it + (1 - high) * without
    q = (1 - high) * with_it + high * without
    each = np.maximum(p - math.exp(epsilon) * q, 0) + _ROUNDING * p
    return float(chances @ each)


def composed(epsilon: float, delta: float, times: int, delta_left: float) -> tuple[float, float]:
    """Return the lesser (ε, δ) of basic and advanced composition (Dwork, Rothblum, Vadhan 2010)."""
    plain = times * epsilon
    spread = epsilon * math.sqrt(2 * times * math.log(1 / delta_left))
    advanced = spread + times * epsilon * math.expm1(min(epsilon, LARGEST_EPSILON))
    return (plain, times * delta) if plain <= advanced else (advanced, times * delta + delta_left)


def shuffled_epsilon(local_epsilon: float, devices: int, times: int, delta: float) -> float:
    """Return ε at `delta` of `times` rounds of `devices` or more; half of δ is for composition."""
    one = clone_epsilon(local_epsilon, devices, delta / (2 * times))
    found, _ = composed(one, delta / (2 * times), times, delta / 2)
    return min(found, times * local_epsilon)


def approximate_epsilon(
    local: Callable[[float], float], devices: int, times: int, delta: float
) -> float:
    """Return ε at `delta` of `times` rounds if an upload has ε = `local`(δ₀), infinite beyond 3.

    `local` is for two devices' data, one in place of the other."""
    part = delta / (4 * times)  # of each round: for the clone bound, and for δ₀
    for most in _MOST_EPSILON:
        growth = (1 + math.exp(most)) * 1.5 * devices
        one = clone_epsilon(local(part / growth), devices, part)
        if one <= most:
            return composed(one, 2 * part, times, delta / 2)[0]
    return math.inf


def _clones(
    local_epsilon: float, devices: int, delta: float
) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
    """Return the likely clone counts, their probabilities, and that of all others."""
    from scipy.special import betainc, betaincc

    n, p, tail = devices - 1, math.exp(-local_epsilon), delta * _TAIL
    low = bisect_left(range(n), tail, key=lambda k: float(betaincc(k + 1, n - k, p)))
    high = bisect_left(range(n), -tail, key=lambda k: -float(betainc(k + 1, n - k, p)))
    counts = np.arange(max(low - 1, 0), min(high + 1, n) + 1, dtype=np.int64)
    # P[C = k + 1] is P[C = k]·(n - k)/(k + 1)·p/(1 - p).
    steps = np.log((n - counts[:-1]) / counts[1:]) - math.log(math.expm1(local_epsilon))
    logs = np.append(0.0, np.cumsum(steps))
    chances = np.exp(logs - logs.max())
    return counts, chances / chances.sum(), 2 * tail
