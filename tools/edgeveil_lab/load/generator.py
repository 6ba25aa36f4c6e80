"""One generator process: its share of the devices, on one event loop."""

from __future__ import annotations

import asyncio
import gc
import ssl
from contextlib import suppress

from edgeveil.crypto.keys import VerifyKey
from edgeveil.protocol.device_tasks import ComputeAnswer
from edgeveil.protocol.messages import ExchangeId
from edgeveil.transport.dialling import client_context
from edgeveil.transport.link import BrokerAddress
from edgeveil_lab.load.device import LoadDevice, Setup
from edgeveil_lab.load.dialler import Dialler
from edgeveil_lab.load.options import LoadOptions
from edgeveil_lab.load.shared import Shared, SharedVerifyKey
from edgeveil_lab.load.strain import Meter
from edgeveil_lab.load.turns import Turns
from edgeveil_lab.load.wire import Share

TICK_S = 1.0
_LAG_S = 0.05
_GOODBYE_S = 1.0
_AWAY_S = 1.0  # a device that drops does so within this time of its answer


class Generator:
    """Plays a share. All of it runs on one loop; `busy_s` is the processor time of it."""

    def __init__(self, share: Share, options: LoadOptions, offset_s: float) -> None:
        self.options = options
        self.shared = Shared(options.packet_bytes, options.payload_bytes, offset_s)
        self.meter = Meter()
        self._turns = Turns()
        self._starts: dict[tuple[int, int], float] = {}
        self._begun: dict[tuple[int, int], int] = {}
        self._last_start_s = float("-inf")
        address = BrokerAddress.parse(share.broker)
        self.dialler = Dialler(address, _context(address, options), _rate(options, share.of))
        setup = Setup(
            cloud_key=SharedVerifyKey(share.cloud_key),
            proxy_key=VerifyKey(share.proxy_key),
            protocol=options.protocol,
            qos=options.qos,
            packet_bytes=options.packet_bytes,
            user=options.user,
            password=share.password,
            dial=self.dialler.dial,
            queue=self._queue,
        )
        slow = round(options.slow * len(share.members))
        self.devices = [
            LoadDevice(setup, self.shared, m, options.slow_bytes_per_s if i < slow else 0)
            for i, m in enumerate(share.members)
        ]
        # Tens of thousands of lasting objects: looking through them again and again takes a core.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)

    async def run(self) -> None:
        """Keep connections alive and look how late the loop is, until cancelled."""
        loop = asyncio.get_running_loop()
        next_tick_s, counted = loop.time() + TICK_S, False
        while True:
            due_s = loop.time() + _LAG_S
            await asyncio.sleep(_LAG_S)
            now_s = loop.time()
            under_way = self._turns.busy or self.shared.tally.pending
            counts = self.shared.tally.offering and (under_way or counted)
            self.meter.look(now_s - due_s, _LAG_S, counts=counts)
            counted = self.shared.tally.offering and under_way
            if now_s >= next_tick_s:
                next_tick_s = now_s + TICK_S
                for device in self.devices:
                    device.tick(now_s)

    async def leave(self) -> None:
        """All devices say good-bye."""
        await self.dialler.stop()
        for device in self.devices:
            device.add_bytes()
            device.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                while any(device.connected for device in self.devices):
                    await asyncio.sleep(_LAG_S)

    # --- work, in turn ---

    def _queue(self, device: LoadDevice, task: object) -> None:
        wait_s = 0.0
        if isinstance(task, ComputeAnswer):
            wait_s = self._wait_s(task.manifest.at)
            self._trouble(device, task.manifest.at, wait_s)
        if wait_s > 0:
            asyncio.get_running_loop().call_later(wait_s, self._turns.add, device, task)
        else:
            self._turns.add(device, task)

    # --- pauses and trouble ---

    def _wait_s(self, at: ExchangeId) -> float:
        """How long this round's answers wait, so that rounds keep their interval."""
        now_s, key = asyncio.get_running_loop().time(), (at.exchange, at.attempt)
        if key not in self._starts:
            start_s = max(now_s, self._last_start_s + self.options.interval_s)
            self._starts = {key: start_s}
            self._last_start_s = start_s
        return self._starts[key] - now_s

    def _trouble(self, device: LoadDevice, at: ExchangeId, wait_s: float) -> None:
        """Some devices drop; in a storm all do, once half of them are at work."""
        loop, chance = asyncio.get_running_loop(), self.shared.chance
        if chance.random() < self.options.drop:
            loop.call_later(wait_s + chance.uniform(0, _AWAY_S), device.cut)
        key = (at.exchange, at.attempt)
        self._begun = {key: self._begun.get(key, 0) + 1}
        if self.options.reconnect_storm and self._begun[key] == max(1, len(self.devices) // 2):
            loop.call_later(wait_s, self._cut_all)

    def _cut_all(self) -> None:
        for device in self.devices:
            device.cut()


def _rate(options: LoadOptions, generators: int) -> float | None:
    """Connections a second of one generator."""
    if options.ramp_s:
        return options.devices / options.ramp_s / generators
    return options.rate_per_s / generators if options.rate_per_s else None


def _context(address: BrokerAddress, options: LoadOptions) -> ssl.SSLContext | None:
    if not address.tls:
        return None
    files = (options.ca, options.cert, options.key)
    return client_context(*(str(path) if path else None for path in files))
