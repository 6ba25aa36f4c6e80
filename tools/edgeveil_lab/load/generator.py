"""A generator process, which plays a share of the fleet on its leader's commands."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from edgeveil.config.addresses import BrokerAddress
from edgeveil.crypto.keys import VerifyKey
from edgeveil.protocol.device_round import ComputeAnswer
from edgeveil.protocol.messages import PeerKeys, RoundId
from edgeveil.transport.dialling import client_context
from edgeveil.transport.link import Topics
from edgeveil_lab.load.counters import GeneratorLoad
from edgeveil_lab.load.device import LoadDevice, SharedVerifyKey, SharedWork
from edgeveil_lab.load.mqtt import Dialler, on_fast_loop, raise_files_limit
from edgeveil_lab.load.processes import run_child
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.sites import FleetMember, TargetCell


@dataclass(frozen=True)
class FleetShare:
    of: int
    options: LoadOptions
    members: Sequence[FleetMember] = field(repr=False)
    cell: str
    where: TargetCell


@dataclass(frozen=True)
class GeneratorReport:
    """A report once a second: state (ready, connecting, connected, done) and all counts."""

    state: str
    counters: dict[str, Any]
    load: GeneratorLoad


_SLICE_S = 0.01  # per turn, so that sockets are served in between
_QUIET_S = 0.1  # without new work, after which all devices count as sealed


class Turns:
    """Tasks in order of arrival; answers are sent once all devices have sealed.

    Real devices seal in parallel: otherwise uploads/s would measure one generator's sealing."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[LoadDevice, object]] = deque()
        self._sealed: deque[Callable[[], None]] = deque()
        self._quiet: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        return bool(self._tasks or self._sealed)

    def add(self, device: LoadDevice, task: object) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if not self._tasks:
            asyncio.get_running_loop().call_soon(self._work)
        self._tasks.append((device, task))

    def _work(self) -> None:
        end_s = time.perf_counter() + _SLICE_S
        while self._tasks and time.perf_counter() < end_s:
            device, task = self._tasks[0]
            deliver = device.perform(task)
            if isinstance(task, ComputeAnswer):
                self._sealed.append(deliver)
            else:
                deliver()
            self._tasks.popleft()
        loop = asyncio.get_running_loop()
        if self._tasks:
            loop.call_soon(self._work)
        elif self._sealed:
            self._quiet = loop.call_later(_QUIET_S, self._answer)

    def _answer(self) -> None:
        self._quiet = None
        end_s = time.perf_counter() + _SLICE_S
        while self._sealed and time.perf_counter() < end_s:
            self._sealed.popleft()()
        if self._sealed:
            asyncio.get_running_loop().call_soon(self._answer)


TICK_S = 1.0
_LOOK_S = 0.05
_GOODBYE_S = 1.0
_AWAY_S = 1.0  # a device that drops does so within this time of its answer


class Generator:
    def __init__(self, share: FleetShare) -> None:
        self.options = options = share.options
        self.shared = SharedWork(options.packet_bytes, options.payload_bytes)
        self.load = GeneratorLoad()
        self._turns = Turns()
        self._at: RoundId | None = None  # the newest round, its start, devices that began it
        self._start_s, self._begun = float("-inf"), 0
        where = share.where
        address, rate = BrokerAddress.parse(where.broker), options.rate_per_s
        tls = client_context(where.ca, options.cert, options.key) if address.tls else None
        self.dialler = Dialler(address, tls, rate and rate / share.of)
        self.keys = PeerKeys.pinned(
            cloud=SharedVerifyKey(where.cloud_key), proxy=VerifyKey(where.proxy_key)
        )
        self.password, self.topics = where.password, Topics(share.cell)
        self.devices = [LoadDevice(self, member) for member in share.members]
        # Scanning tens of thousands of long-lived objects repeatedly would take a whole core.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        next_tick_s, counted = loop.time() + TICK_S, False
        while True:
            await asyncio.sleep(_LOOK_S)
            under_way = self._turns.busy or self.shared.counters.pending
            self.load.look(counts=self.shared.counters.offering and (under_way or counted))
            counted = self.shared.counters.offering and under_way
            if (now_s := loop.time()) >= next_tick_s:
                next_tick_s = now_s + TICK_S
                for device in self.devices:
                    device.tick(now_s)

    async def leave(self) -> None:
        await self.dialler.stop()
        for device in self.devices:
            device.add_bytes()
            device.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                while any(device.connected for device in self.devices):
                    await asyncio.sleep(_LOOK_S)

    def queue(self, device: LoadDevice, task: object) -> None:
        """Schedule a task; answers wait for the interval, and devices drop out by the options."""
        loop, options, chance = asyncio.get_running_loop(), self.options, self.shared.chance
        if not isinstance(task, ComputeAnswer):
            self._turns.add(device, task)
            return
        if task.manifest.at != self._at:
            self._at, self._begun = task.manifest.at, 0
            self._start_s = max(loop.time(), self._start_s + options.interval_s)
        self._begun += 1
        wait_s = max(0.0, self._start_s - loop.time())
        loop.call_later(wait_s, self._turns.add, device, task)
        if chance.random() < options.drop:
            loop.call_later(wait_s + chance.uniform(0, _AWAY_S), device.cut)
        if options.reconnect_storm and self._begun == max(1, len(self.devices) // 2):
            for one in self.devices:
                loop.call_later(wait_s, one.cut)


REPORT_S = 1.0
_ASK_S = 0.2


def generate(share: FleetShare, pipe: Connection) -> None:
    async def work() -> int:
        raise_files_limit()
        generator = Generator(share)

        def report(state: str) -> None:
            counted = generator.shared.counters.snapshot()
            pipe.send(GeneratorReport(state, counted, generator.load))

        await generator.dialler.resolve()
        keeping = asyncio.create_task(generator.run())
        connecting: asyncio.Task[None] | None = None
        while True:
            state = "ready"
            if connecting is not None:
                up = generator.shared.counters.connected >= len(generator.devices)
                state = "connected" if up else "connecting"
            report(state)
            command = pipe.recv() if pipe.poll() else ""
            if command == "connect":
                connecting = asyncio.create_task(generator.dialler.connect_all(generator.devices))
            elif command == "stop":
                break
            await asyncio.sleep(_ASK_S if connecting is None else REPORT_S)
        if connecting is not None:
            connecting.cancel()
        await generator.leave()
        report("done")
        keeping.cancel()
        return 0

    run_child(lambda: on_fast_loop(work()), pipe)
