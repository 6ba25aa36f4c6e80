"""The desk of one-time claims on a connection of its own: what comes over it holds up no round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from edgeveil.crypto.authorities import Authority
from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import BrokerError
from edgeveil.sites.proxy import ClaimDeskSettings, ProxySite
from edgeveil.transport.link import Topics
from edgeveil.transport.mqtt_link import MqttLink, link_settings
from edgeveil_proxy.claims import CLAIMS_FILE, ClaimBook, ClaimDesk
from edgeveil_proxy.registry import REGISTRY_FILE, Registry


class ClaimLink:
    """Reads requests from the edge broker, one at a time, and answers them.

    The registry is opened once more: the desk works in a thread, as an operator's command does
    beside a running proxy. `signer` gives the proxy's key of the moment.
    """

    def __init__(
        self, site: ProxySite, settings: ClaimDeskSettings, signer: Callable[[], SigningKey]
    ) -> None:
        self._book = ClaimBook(site.state_dir / CLAIMS_FILE)
        self._registry = Registry(site.state_dir / REGISTRY_FILE, limit=site.limits.devices)
        self._desk = ClaimDesk(
            self._book,
            self._registry,
            Authority.load(settings.authority_cert_file, settings.authority_key_file),
            signer,
            certificate_days=settings.certificate_days,
            approved_by_operator=settings.admit == "operator",
            per_minute=settings.per_minute,
        )
        self._topics = topics = Topics(site.cell)
        link = link_settings(
            site.edge_broker, f"{topics.proxy_id}-claims", site.limits.packet_bytes
        )
        self._link = MqttLink(link, on_message=self._answer)

    async def _answer(self, _topic: str, payload: bytes) -> None:
        answer = await asyncio.to_thread(self._desk.answer, payload)
        if answer is not None:
            with suppress(BrokerError):  # it is asked again
                await self._link.publish(self._topics.claims_down, answer)

    async def run(self) -> None:
        """Until cancelled."""
        await self._link.subscribe([self._topics.claims_up])
        await self._link.run_forever()

    async def close(self) -> None:
        """Leave the broker, and close the files."""
        await self._link.close()
        self._book.close()
        self._registry.close()

    def counts(self) -> dict[str, int]:
        """Requests since the start, by what became of them."""
        desk = self._desk
        return {"admitted": desk.admitted, "refused": desk.refused, "dropped": desk.dropped}
