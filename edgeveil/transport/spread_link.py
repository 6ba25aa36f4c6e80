"""Several connections to one broker as one `Link`, where one is too narrow.

The first listens, the others speak: a topic is always spoken to over the same one, by a hash of
its name, so what one device hears keeps its order. What devices send is not divided: one wildcard
takes it in, and a shared subscription would scatter the parts of one upload.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

from edgeveil.transport.link import ATTEMPT_S, Link, MessageFilter, MessageHandler, StateHandler


class SpreadLink:
    """A `Link` over two or more, up while all of them are."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.on_state: StateHandler = lambda connected, reason: None
        self._links, self._speakers = list(links), list(links[1:])
        self._up, self._connections = False, 0
        for link in links:
            link.on_state = self._note

    @property
    def on_message(self) -> MessageHandler:
        """What the listening one calls."""
        return self._links[0].on_message

    @on_message.setter
    def on_message(self, handler: MessageHandler) -> None:
        self._links[0].on_message = handler

    @property
    def takes(self) -> MessageFilter:
        """What the listening one asks."""
        return self._links[0].takes

    @takes.setter
    def takes(self, takes: MessageFilter) -> None:
        self._links[0].takes = takes

    @property
    def connected(self) -> bool:
        """Whether all are."""
        return all(link.connected for link in self._links)

    @property
    def connections(self) -> int:
        """How often all were up together."""
        return self._connections

    @property
    def unacknowledged(self) -> int:
        """Messages that the broker has not acknowledged."""
        return sum(link.unacknowledged for link in self._links)

    def max_payload_bytes(self, topic: str) -> int:
        """The largest payload that `publish` takes for this topic now."""
        return self._speaker(topic).max_payload_bytes(topic)

    async def subscribe(self, topics: Sequence[str]) -> None:
        """As `Link`."""
        await self._links[0].subscribe(topics)

    async def publish(self, topic: str, payload: bytes, qos: int = 1) -> None:
        """As `Link`; only its own connection has to be up."""
        await self._speaker(topic).publish(topic, payload, qos)

    async def connect_or_raise(self, timeout_s: float = ATTEMPT_S) -> None:
        """Connect all once, each within the time. Raises BrokerError of the first that fails."""
        for link in self._links:
            await link.connect_or_raise(timeout_s)

    async def run_forever(self) -> None:
        """Keep all up until `close`."""
        await asyncio.gather(*(link.run_forever() for link in self._links))

    def renew(self, reason: str) -> None:
        """The one that listens."""
        self._links[0].renew(reason)

    async def close(self) -> None:
        """End all for good."""
        await asyncio.gather(*(link.close() for link in self._links))

    def _speaker(self, topic: str) -> Link:
        return self._speakers[zlib.crc32(topic.encode("utf-8")) % len(self._speakers)]

    def _note(self, connected: bool, reason: str) -> None:
        """One came or went; the whole is told when it changes, and each reason that it is down."""
        up = self.connected
        if up and not self._up:
            self._connections += 1
        if up or not connected:
            self._up = up
            self.on_state(up, reason)
