"""Reload of trust documents in a running cloud or proxy, and warnings before they expire."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from edgeveil.transport.metrics import gauge
from edgeveil.trust.bundle import StoredTrust

TRUST_LOOK_S = 1.0
_WARN_EVERY_S = 86400.0


class _TrustingRole(Protocol):
    """A cloud or a proxy; `not_delegated` is the reason why its own key is not trusted, or ""."""

    not_delegated: str

    def refresh_trust(self) -> None: ...


class TrustWatch(Collector):
    """Polls `trust_file` of a running cloud or proxy, and logs what expires soon."""

    def __init__(self, role: _TrustingRole, trust: StoredTrust, log: logging.Logger) -> None:
        self._role, self._trust, self._log = role, trust, log
        self._warned_s, self._logged = -math.inf, ""

    def healthy(self) -> bool:
        """Return whether this process's key is trusted by present, unexpired trust documents."""
        return not (self._role.not_delegated or self._trust.problem)

    def warnings(self) -> list[str]:
        return [self._trust.warning] if self._trust.warning else []

    def look(self) -> None:
        """Reload `trust_file` if it changed, and log a new problem or warning."""
        if self._trust.look():
            self._role.refresh_trust()
        trust, now_s = self._trust, time.monotonic()
        reason = self._role.not_delegated or trust.problem or trust.complaint or trust.warning
        if reason and (reason != self._logged or now_s - self._warned_s > _WARN_EVERY_S):
            self._log.warning("trust", extra={"reason": reason})
            self._warned_s = now_s
        self._logged = reason

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(TRUST_LOOK_S)

    def collect(self) -> Iterator[Metric]:
        left = {what: at.timestamp() for what, at in self._trust.expires.items()}
        text = "When trust metadata ends, in seconds since 1970."
        yield gauge("trust_expires_timestamp_seconds", text, left, "document")
