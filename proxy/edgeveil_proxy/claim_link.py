"""The desk of one-time claims on a connection of its own: what comes over it holds up no round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from edgeveil.claim import claimed_key_id
from edgeveil.crypto.authorities import Authority
from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import BrokerError
from edgeveil.protocol.effects import DeviceAddress
from edgeveil.sites.proxy import ClaimDeskSettings, ProxySite
from edgeveil.transport.link import Topics
from edgeveil.transport.mqtt_link import MqttLink, link_settings
from edgeveil_proxy.claims import CLAIMS_FILE, ClaimBook, ClaimDesk
from edgeveil_proxy.registry import REGISTRY_FILE, Registry

LOOK_S = 1.0


class ClaimLink:
    """Reads requests from the edge broker, one at a time, and answers them.

    The registry is opened once more: the desk works in a thread, as an operator's command does
    beside a running proxy. `signer` gives the proxy's key of the moment. `refused(sender, reason)`
    is called for what a device sends beyond its rate, on the topic that is its own.
    """

    def __init__(
        self,
        site: ProxySite,
        settings: ClaimDeskSettings,
        signer: Callable[[], SigningKey],
        refused: Callable[[DeviceAddress, str], None],
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
        )
        self._refused, self._turn = refused, asyncio.Lock()
        self._topics = topics = Topics(site.cell)
        link = link_settings(
            site.edge_broker, f"{topics.proxy_id}-claims", site.limits.packet_bytes
        )
        # An access list of the version before does not know those with a sender.
        named = frozenset((topics.any_renewal, topics.any_claim))
        self._link = MqttLink(replace(link, optional_topics=named), on_message=self._answer)
        self._link.takes = self._takes

    def _takes(self, topic: str, payload: bytes) -> bool:
        sender = self._topics.claimant_of(topic)
        if self._desk.takes(sender or claimed_key_id(payload), payload):
            return True
        if topic == self._topics.renewal(sender):
            self._refused(DeviceAddress(sender), "rate")
        return False

    async def _answer(self, topic: str, payload: bytes) -> None:
        sender = self._topics.claimant_of(topic) or claimed_key_id(payload)
        async with self._turn:
            answer = await asyncio.to_thread(self._desk.answer, sender, payload)
        if answer is not None:
            with suppress(BrokerError):  # it is asked again
                await self._link.publish(self._topics.claims_down, answer)

    async def run(self) -> None:
        topics = self._topics
        await self._link.subscribe([topics.any_renewal, topics.any_claim, topics.claims_of_before])
        await asyncio.gather(self._link.run_forever(), self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            async with self._turn:
                await asyncio.to_thread(self._desk.look)

    async def close(self) -> None:
        await self._link.close()
        self._book.close()
        self._registry.close()

    def counts(self) -> dict[str, int]:
        """Requests since the start, by what became of them."""
        desk = self._desk
        return {"admitted": desk.admitted, "refused": desk.refused, "dropped": desk.dropped}

    def dropped(self) -> list[dict[str, Any]]:
        """Whose requests were dropped, the most first: for who is on this machine."""
        return self._desk.dropped_by_sender()
