"""δ at a fixed ε by the moments accountant, and how far a job may go before it passes a threshold.

Moments accountant (Abadi et al. 2016, thm 2): with α(λ) a bound on the log moment of order λ of
the privacy loss, α adds up over releases, adaptive ones too, and they are (ε, δ)-DP together for
δ = min over λ of exp(α(λ) - λε). One release has at most

- Gaussian: α(λ) = λ(λ + 1)·μ²/2, true of the discrete noise itself (Canonne, Kamath and Steinke
  2020), so nothing is added for the grid;
- pure ε₀: α(λ) = min(λε₀, λ(λ + 1)·ε₀²/2) (Bun and Steinke 2016).

Prices do not depend on data, so neither does the stop: everybody knows it when the job is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from fl_core.errors import PrivacyError
from fl_core.privacy.accountant import ROUND_UP
from fl_core.privacy.events import Event, GaussianEvent, PureEvent

# λ from 1/4 to 960, eight to each doubling; exact in float64.
ORDERS = tuple(math.ldexp(k, j - 5) for j in range(12) for k in range(8, 16))


class MomentsAccountant:
    """The log moments of all releases so far."""

    def __init__(self) -> None:
        self._moments = [0.0] * len(ORDERS)

    def add(self, events: Iterable[Event]) -> None:
        """Count further releases. Raises `PrivacyError` for one without a proven bound."""
        for event in events:
            bounds = _log_moments(event)
            self._moments = [a + b for a, b in zip(self._moments, bounds, strict=True)]

    def delta(self, epsilon: float) -> float:
        """δ of all releases together at `epsilon`, rounded up, at most 1."""
        pairs = zip(ORDERS, self._moments, strict=True)
        least = min(moment - order * epsilon for order, moment in pairs)
        return math.exp(least) * ROUND_UP if least < 0 else 1.0


def exchanges_within(exchanges: Iterable[Iterable[Event]], epsilon: float, threshold: float) -> int:
    """How many exchanges, in order and each given by its events, keep δ(ε) at the threshold.

    Raises `PrivacyError` for an event without a proven bound.
    """
    accountant, count = MomentsAccountant(), 0
    for events in exchanges:
        accountant.add(events)
        if accountant.delta(epsilon) > threshold:
            break
        count += 1
    return count


@lru_cache(maxsize=256)
def _log_moments(event: Event) -> tuple[float, ...]:
    """Bounds on the log moments at `ORDERS`."""
    if isinstance(event, GaussianEvent):
        return tuple(order * (order + 1) * event.mu**2 / 2 for order in ORDERS)
    if isinstance(event, PureEvent):
        e = math.nextafter(float(event.epsilon), math.inf)
        return tuple(min(order * e, order * (order + 1) * e**2 / 2) for order in ORDERS)
    raise PrivacyError(
        f"'{event.what}' has no proven bound, so no δ can be tracked",
        where="privacy.stop",
        fix="leave privacy.stop out, or use a method with a proven guarantee",
    )
