"""The cloud's links, one for each cell: a slow broker holds up its own cell alone.

With several cells each has a queue; beyond `QUEUE_BYTES` a message is dropped, as on a link that
is down: the machine repeats everything until it is confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from edgeveil.errors import BrokerError
from edgeveil.protocol import effects as fx
from edgeveil.sites.cloud import CloudCell, CloudSite
from edgeveil.transport.link import SERVER_BACKOFF_CAP_S, LinkDown, Topics
from edgeveil.transport.mqtt_link import RuntimeLink, link_settings
from edgeveil.transport.runtime import Runtime

QUEUE_BYTES = 64 << 20

Told = Callable[[str, bool, str], None]
"""(cell, whether its broker is connected, why)."""


class CellLinks:
    def __init__(self, site: CloudSite) -> None:
        self.sessions = {cell.name: _session(site, cell) for cell in site.all_cells}
        self._queues = {name: _Queue(one) for name, one in self.sessions.items()}

    async def attach(self, runtime: Runtime, told: Told) -> None:
        for cell, session in self.sessions.items():

            def state(connected: bool, reason: str, cell: str = cell) -> None:
                told(cell, connected, reason)

            await session.attach(runtime, state)

    async def connect_or_raise(self) -> dict[str, str]:
        """To all brokers at once; why those of some cells cannot be reached, where others can.

        Raises BrokerError where none is there.
        """
        tries = [one.connect_or_raise() for one in self.sessions.values()]
        found = await asyncio.gather(*tries, return_exceptions=True)
        failed = [one for one in found if isinstance(one, BaseException)]
        other = [one for one in failed if not isinstance(one, BrokerError)]
        if other or len(failed) == len(found):
            raise (other or failed)[0]
        by_cell = zip(self.sessions, found, strict=True)
        return {cell: str(error) for cell, error in by_cell if isinstance(error, BrokerError)}

    async def publish(self, to: fx.Address, frame: bytes) -> None:
        """To the proxy of a cell. Raises LinkDown."""
        if not isinstance(to, fx.ProxyAddress):
            raise LinkDown("nobody but proxies is spoken to", where=str(to))
        if len(self.sessions) == 1:
            await self.sessions[to.cell].publish(to, frame)
        else:
            self._queues[to.cell].put(to, frame)

    async def run_forever(self) -> None:
        links = [one.run() for one in self.sessions.values()]
        await asyncio.gather(*links, *(one.run() for one in self._queues.values()))

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self.sessions.values()))


class _Queue:
    def __init__(self, session: RuntimeLink) -> None:
        self._session = session
        self._waiting: asyncio.Queue[tuple[fx.Address, bytes]] = asyncio.Queue()
        self._bytes = 0

    def put(self, to: fx.Address, frame: bytes) -> None:
        """Raises LinkDown where the broker is away, or far behind."""
        if not self._session.connected or self._bytes > QUEUE_BYTES:
            raise LinkDown("the cell's broker is away, or far behind", where=str(to))
        self._bytes += len(frame)
        self._waiting.put_nowait((to, frame))

    async def run(self) -> None:
        while True:
            to, frame = await self._waiting.get()
            self._bytes -= len(frame)
            with suppress(BrokerError):  # said again
                await self._session.publish(to, frame)


def _session(site: CloudSite, cell: CloudCell) -> RuntimeLink:
    topics = Topics(cell.name)
    named = f"cloud-{cell.name}" if cell.name else "cloud"
    return RuntimeLink(
        link_settings(
            cell.broker or site.broker,
            named,
            site.limits.packet_bytes,
            backoff_cap_s=SERVER_BACKOFF_CAP_S,
        ),
        [topics.cloud_in],
        fx.ProxyAddress(cell.name),
        lambda _to: topics.cloud_out,
        topics.sender_of,
    )
