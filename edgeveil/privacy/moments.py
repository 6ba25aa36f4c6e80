"""Log moments of the privacy loss: additive bounds that need no library.

α(λ), λ times the Rényi divergence of order λ + 1, adds up over adaptive releases (Abadi et al.
2016, thm 2.1; Mironov 2017). Upper bounds for one release:

- Gaussian: λ(λ + 1)·μ²/2, also of the discrete noise (Canonne, Kamath and Steinke 2020);
- pure ε₀: min(λε₀, λ(λ + 1)·ε₀²/2) (Bun and Steinke 2016);
- a sampled Gaussian step: for whole λ the sum of Mironov, Talwar and Zhang (2019), both ways
  (`docs/privacy.md`, "Sampled Gaussian"); between whole λ the chord.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from edgeveil.privacy.events import Event, GaussianEvent, PoissonSampled, PureEvent, as_summed

ROUND_UP = 1.0 + 1e-9  # covers the float64 rounding of a computed ε or δ
# λ from 1/4 to 960, eight to each doubling; exact in float64.
ORDERS = tuple(math.ldexp(k, j - 5) for j in range(12) for k in range(8, 16))
Moments = Sequence[float]  # at ORDERS

_LOG_FACTORIAL = np.array([math.lgamma(k + 1) for k in range(int(ORDERS[-1]) + 2)])
_TINY = 1e-300
NO_MOMENTS: Moments = (0.0,) * len(ORDERS)


def log_moments(event: Event) -> Moments | None:
    """Return bounds on an event's log moments at `ORDERS`; None if nothing is proven."""
    event = as_summed(event)
    if isinstance(event, GaussianEvent):
        return gaussian_moments(event.mu)
    if isinstance(event, PoissonSampled):
        return times(sampled_moments(event.sampling_probability, event.event.mu), event.steps)
    if isinstance(event, PureEvent):
        return pure_moments(math.nextafter(float(event.epsilon), math.inf))
    return None


def gaussian_moments(mu: float) -> Moments:
    return tuple(order * (order + 1) * mu**2 / 2 for order in ORDERS)


def pure_moments(epsilon: float) -> Moments:
    return tuple(min(order * epsilon, order * (order + 1) * epsilon**2 / 2) for order in ORDERS)


@lru_cache(maxsize=256)
def sampled_moments(probability: float, mu: float) -> Moments:
    """Return the moments of one step: records sampled with `probability`, noise μ-GDP unsampled."""
    if probability == 1:
        return gaussian_moments(mu)
    return tuple(_chord(probability, mu, order) for order in ORDERS)


def most_taken(probability: float, steps: int, chance: float) -> int:
    """Return k such that a record is in more than k of `steps` samples with at most `chance`."""
    tail = 0.0
    for k in range(steps, 0, -1):
        ways = math.lgamma(steps + 1) - math.lgamma(k + 1) - math.lgamma(steps - k + 1)
        left = (steps - k) * math.log1p(-probability)
        tail += math.exp(ways + k * math.log(probability) + left)
        if tail * 1.001 > chance:  # far more than the rounding of `lgamma`
            return k
    return 0


def times(moments: Moments, count: int) -> Moments:
    return tuple(count * moment for moment in moments)


def added(parts: Iterable[Moments]) -> Moments:
    return tuple(math.fsum(column) for column in zip(NO_MOMENTS, *parts, strict=True))


def delta_at(epsilon: float, moments: Moments) -> float:
    """Return δ(ε) ≤ 1, rounded up (Canonne, Kamath, Steinke 2020, prop. 12)."""
    least = min(
        moment - order * epsilon + order * math.log(order / (order + 1)) - math.log1p(order)
        for order, moment in zip(ORDERS, moments, strict=True)
    )
    return math.exp(least) * ROUND_UP if least < 0 else 1.0


def _chord(probability: float, mu: float, order: float) -> float:
    low = math.floor(order)
    share = order - low
    above = _whole(probability, mu, low + 1) if share else 0.0
    return (1 - share) * _whole(probability, mu, low) + share * above


def _whole(probability: float, mu: float, order: int) -> float:
    """Return ln Σ_k C(n, k)(1 − q)^(n−k) q^k e^(k(k−1)μ²/2), n = order + 1, rounded up; q < 1."""
    n = order + 1
    if n < 2 or mu == 0:
        return 0.0
    k = np.arange(2, n + 1, dtype=np.float64)
    x = k * (k - 1) * (mu * mu / 2)
    if not np.isfinite(x[-1]):
        return math.inf
    # Without the exponentials the sum is 1, so ln(1 + Σ …·(e^x − 1)) loses no digit.
    ways = _LOG_FACTORIAL[n] - _LOG_FACTORIAL[2 : n + 1] - _LOG_FACTORIAL[n - 2 :: -1]
    chance = ways + (n - k) * math.log1p(-probability) + k * math.log(probability)
    logs = chance + x + np.log(-np.expm1(-np.maximum(x, _TINY)))
    largest = float(logs.max())
    tail = largest + math.log(math.fsum(np.exp(logs - largest).tolist()))
    return max(tail, 0.0) * ROUND_UP + math.log1p(math.exp(-abs(tail))) * ROUND_UP
