"""Refusals, counted by reason and told now and then."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

LOG_EVERY_S = 60.0


class Refusals:
    """Counts refusals by reason and logs each reason at most once a minute."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._log, self._clock = log, clock
        self._said: dict[str, float] = {}

    def add(self, reason: str) -> None:
        """One more refusal for this reason."""
        self.counts[reason] += 1
        now = self._clock()
        if now - self._said.get(reason, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._said[reason] = now
            self._log.warning("refused", extra={"reason": reason, "total": self.counts[reason]})
