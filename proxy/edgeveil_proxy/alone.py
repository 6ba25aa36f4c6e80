"""One proxy in a cell: two of them at one broker hear of each other, and one ends.

Each has a registry and a spool of its own, so two would split the uploads of a round between them,
and after a restored backup could unmask one round for two sets. A process says that it runs,
signed, whenever its link comes up, on a topic of the cell's proxy alone; who hears another's word
ends. Where a broker does not allow that topic, nothing is heard, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress

from edgeveil.crypto.keys import SIGNATURE_BYTES, SigningKey, sign, verify
from edgeveil.crypto.labels import PROXY_RUNS
from edgeveil.errors import BrokerError, UsageError
from edgeveil.sites.proxy import ProxySite
from edgeveil.transport.link import Topics
from edgeveil.transport.mqtt_link import MqttLink, link_settings

LOG = logging.getLogger("edgeveil.proxy")
_NONCE_BYTES = 16


class AloneInCell:
    """Watches over a connection of its own to the edge broker. `signer` gives the proxy's key."""

    def __init__(self, site: ProxySite, signer: Callable[[], SigningKey]) -> None:
        topics = Topics(site.cell)
        self._topic, self._cell, self._signer = topics.proxies, site.cell, signer
        self._own, self._other = secrets.token_bytes(_NONCE_BYTES), asyncio.Event()
        self._up, self._refused = asyncio.Event(), ""
        settings = link_settings(
            site.edge_broker, f"{topics.proxy_id}-alone", site.limits.packet_bytes
        )
        self._link = MqttLink(settings, on_message=self._heard, on_state=self._stands)

    async def run(self) -> None:
        """Until cancelled. Raises UsageError where another process is this cell's proxy too, and
        what the connection's work ends with."""
        await self._link.subscribe([self._topic])
        tasks = [
            asyncio.ensure_future(one)
            for one in (self._link.run_forever(), self._tell(), self._other.wait())
        ]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if self._other.is_set():
            named = f"cell '{self._cell}'" if self._cell else "this fleet"
            raise UsageError(
                f"another process runs as the proxy of {named}, at the same broker",
                where=self._topic,
                fix="stop one of the two: there is one proxy in a cell, and no standby beside it"
                " (docs/operations.md, When a proxy is lost)",
            )
        for task in ended:
            task.result()  # nobody watches any more: its error ends the process

    async def close(self) -> None:
        await self._link.close()

    async def _tell(self) -> None:
        while True:
            await self._up.wait()
            self._up.clear()
            signature = sign(self._signer(), PROXY_RUNS, self._own)
            with suppress(BrokerError):  # the next connection says it again
                await self._link.publish(self._topic, self._own + signature)

    def _heard(self, _topic: str, payload: bytes) -> None:
        nonce, signature = payload[:_NONCE_BYTES], payload[_NONCE_BYTES:]
        if nonce == self._own or len(payload) != _NONCE_BYTES + SIGNATURE_BYTES:
            return
        if verify(self._signer().public(), PROXY_RUNS, nonce, signature):
            self._other.set()

    def _stands(self, connected: bool, reason: str) -> None:
        if connected:
            self._up.set()
        elif "refuses the subscription" in reason and reason != self._refused:
            self._refused = reason
            LOG.warning("another_proxy_would_not_be_heard", extra={"reason": reason})
