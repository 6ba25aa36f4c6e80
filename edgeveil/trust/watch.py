"""Take newer trust documents in a running cloud or proxy, and warn of their end."""

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
from edgeveil.trust.bundle import HeldTrust

TRUST_LOOK_S = 1.0
_WARN_EVERY_S = 86400.0


class TrustingRole(Protocol):
    """A cloud or a proxy; `not_delegated` says why it cannot speak with its keys, or ""."""

    not_delegated: str

    def take_up_trust(self) -> None: ...


class TrustWatch(Collector):
    """Polls `trust_file` beside a running cloud or proxy, and logs what ends soon."""

    def __init__(self, role: TrustingRole, trust: HeldTrust, log: logging.Logger) -> None:
        self._role, self._trust, self._log = role, trust, log
        self._warned_s, self._said = -math.inf, ""

    def healthy(self) -> bool:
        """Whether others believe this process, and it can tell whom to believe."""
        return not (self._role.not_delegated or self._trust.problem)

    def warnings(self) -> list[str]:
        """What ends soon, for the health page."""
        return [self._trust.warning] if self._trust.warning else []

    def look(self) -> None:
        """Take what lies in `trust_file`, where it changed."""
        if self._trust.look():
            self._role.take_up_trust()
        trust, now_s = self._trust, time.monotonic()
        told = self._role.not_delegated or trust.problem or trust.complaint or trust.warning
        if told and (told != self._said or now_s - self._warned_s > _WARN_EVERY_S):
            self._log.warning("trust", extra={"reason": told})
            self._warned_s = now_s
        self._said = told

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(TRUST_LOOK_S)

    def collect(self) -> Iterator[Metric]:
        """Read at each scrape."""
        left = {what: at.timestamp() for what, at in self._trust.expires.items()}
        text = "When trust metadata ends, in seconds since 1970."
        yield gauge("trust_expires_timestamp_seconds", text, left, "document")
