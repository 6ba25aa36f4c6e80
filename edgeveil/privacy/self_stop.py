"""δ at a fixed ε by the moments accountant, and how far a job may go before it passes a threshold.

Moments accountant (Abadi et al. 2016, thm 2): the log moments α of all releases (`moments`) add
up, and they are (ε, δ)-DP together for δ = min over λ of exp(α(λ) - λε).

Prices do not depend on data, so neither does the stop: everybody knows it when the job is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import Event
from edgeveil.privacy.figures import ROUND_UP
from edgeveil.privacy.moments import NO_MOMENTS, ORDERS, Moments, added, log_moments


class MomentsAccountant:
    """The log moments of all releases so far."""

    def __init__(self) -> None:
        self._moments: Moments = NO_MOMENTS

    def add(self, events: Iterable[Event]) -> None:
        """Count further releases. Raises `PrivacyError` for one without a proven bound."""
        for event in events:
            bounds = log_moments(event)
            if bounds is None:
                raise PrivacyError(
                    f"'{event.what}' has no proven bound, so no δ can be tracked",
                    where="privacy.stop",
                    fix="leave privacy.stop out, or use a method with a proven guarantee",
                )
            self._moments = added([self._moments, bounds])

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
