"""Composition over a data set's life: the least limit ε at which a privacy filter admits its jobs.

A *filter* admits a job by what was admitted before, so whoever chooses the next one may have seen
all releases (Rogers et al. 2016). It holds a life to one of several *regions*. Fewer releases stay
in their region, so each path of releases ends in one, and the regions' shares of δ add up:

- pure ε: Σ ε; takes no δ;
- Gaussian and pure ε: Σ μ² (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2022);
- all that is proven: the sum of log moments at one order, for each of `FILTER_ORDERS` (Feldman and
  Zrnic 2021).

`docs/privacy.md`, "Composition over a life", has the proofs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from statistics import NormalDist

from edgeveil.privacy.accountant import LARGEST_EPSILON, gaussian_delta, least_epsilon
from edgeveil.privacy.events import Event, GaussianEvent, PoissonSampled, PureEvent
from edgeveil.privacy.moments import ORDERS, ROUND_UP, added, log_moments, times

# Shares of δ, fixed before any release; what is left covers `GRID_EPSILON` and the tails of noise.
GAUSSIAN_SHARE, MOMENTS_SHARE = 0.95, 0.049
FILTER_ORDERS = ORDERS[::8]  # λ = 1/4, 1/2, 1, …, 512, each with an equal part of `MOMENTS_SHARE`
# What discrete noise may cost in place of Gaussian noise: 2⁻¹⁰ of ε for Σ coordinates/σ² <= 2⁻²⁰.
GRID_EPSILON, MOST_GRID = 2.0**-10, 2.0**-20


def least_limit(events: Iterable[Event] | Mapping[Event, int], delta: float) -> tuple[float, float]:
    """Return the least limit (ε, δ) that admits `events` of one unit, δ = `delta`, or 0 if pure.

    ε is infinite if no region holds them, for instance because one has no proof."""
    counts = Counter(events)
    pure = sum((e.epsilon * n for e, n in counts.items() if isinstance(e, PureEvent)), Fraction(0))
    found = [(math.inf, delta)]
    if all(isinstance(event, PureEvent) for event in counts):
        found.append((math.nextafter(float(pure), math.inf) if pure else 0.0, 0.0))
    if delta > 0:
        found.append((_by_gaussians(counts, GAUSSIAN_SHARE * delta), delta))
        found.append((_by_moments(counts, MOMENTS_SHARE * delta / len(FILTER_ORDERS)), delta))
    return min(found)


def pure_mu(epsilon: Fraction) -> float:
    """Return μ, rounded up, whose pair of Gaussians dominates every pure ε release."""
    value = math.nextafter(float(epsilon), math.inf)
    if value > LARGEST_EPSILON:
        return math.inf
    return -2 * NormalDist().inv_cdf(1 / (1 + math.exp(value))) * ROUND_UP + 1e-15


def _by_gaussians(counts: Mapping[Event, int], delta: float) -> float:
    squares, grid = 0.0, 0.0
    for event, count in counts.items():
        if isinstance(event, PoissonSampled) and event.sampling_probability == 1:
            count *= event.steps
            event = event.event
        if isinstance(event, GaussianEvent):
            squares += count * event.mu**2
            grid += count * event.coordinates / event.finest_sigma_squared
        elif isinstance(event, PureEvent):
            squares += count * pure_mu(event.epsilon) ** 2
        else:
            return math.inf
    if grid > MOST_GRID or squares == math.inf:
        return math.inf
    mu = math.sqrt(squares) * ROUND_UP
    return least_epsilon(lambda e: gaussian_delta(e, mu), 0.0, delta) + GRID_EPSILON


def _by_moments(counts: Mapping[Event, int], delta: float) -> float:
    known = [(log_moments(event), count) for event, count in counts.items()]
    parts = [times(moments, count) for moments, count in known if moments is not None]
    if len(parts) < len(known):
        return math.inf
    orders = dict(zip(ORDERS, added(parts), strict=True))
    return min(_epsilon_at(order, orders[order], delta) for order in FILTER_ORDERS)


def _epsilon_at(order: float, moment: float, delta: float) -> float:
    """Return the least ε >= 0 by one log moment (Canonne, Kamath, Steinke 2020, prop. 12)."""
    loss = moment + order * math.log(order / (order + 1)) - math.log1p(order) - math.log(delta)
    return max(0.0, loss / order) * ROUND_UP
