"""The bare relay and what stands around it: each runs in a process of its own.

Devices publish uploads at the edge broker, the relay hands each payload to the cloud broker, the
sink there counts bytes. No encryption, no acknowledgement of our own, no disk.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from edgeveil.errors import BrokerError, EdgeVeilError
from edgeveil.transport.dialling import client_context
from edgeveil.transport.link import (
    CLOUD_IN,
    DEVICES_UP,
    BrokerAddress,
    LinkSettings,
    device_down,
    device_up,
)
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil.transport.mqtt_packets import Login, encoded_topic
from edgeveil.transport.process import keep_heap
from edgeveil_lab.load.joining import on_fast_loop
from edgeveil_lab.load.mqtt import Client

READY = "ready"
KEEPALIVE_S = 60
CONNECT_S = 60.0
_DIALS = 64  # connections that are opened at the same time
_LOOK_S = 0.001
_TICK_S = 5.0


@dataclass(frozen=True)
class RawDevice:
    """A device's account at the edge broker; the user name is its id."""

    id: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Crowd:
    """The devices of one generator process and what each sends in a round."""

    devices: Sequence[RawDevice]
    edge: LinkSettings  # where and how; the account in it is not used
    frames: Sequence[bytes] = field(repr=False)
    rounds: int
    qos: int
    processes: int
    credit_bytes: int  # of all generators together, sent and not yet counted by the sink


def relay(edge: LinkSettings, cloud: LinkSettings, pipe: Connection) -> None:
    """Carry every upload from the edge broker to the cloud broker, until ended."""

    async def work() -> None:
        onwards = MqttLink(cloud)

        async def carry(_topic: str, payload: bytes) -> None:
            await onwards.publish(CLOUD_IN, payload)

        incoming = MqttLink(edge, on_message=carry)
        await onwards.connect_or_raise()
        await incoming.subscribe([DEVICES_UP])
        await incoming.connect_or_raise()
        pipe.send(READY)
        await asyncio.gather(onwards.run_forever(), incoming.run_forever())

    _run(lambda: asyncio.run(work()), pipe)


def sink(cloud: LinkSettings, counted: Any, pipe: Connection) -> None:
    """Count the bytes that reach the cloud's side in `counted`, until ended."""

    async def work() -> None:
        def count(_topic: str, payload: bytes) -> None:
            counted.value += len(payload)

        link = MqttLink(cloud, on_message=count)
        await link.subscribe([CLOUD_IN])
        await link.connect_or_raise()
        pipe.send(READY)
        await link.run_forever()

    _run(lambda: asyncio.run(work()), pipe)


def generate(crowd: Crowd, counted: Any, start: Barrier, pipe: Connection) -> None:
    """Connect all devices of `crowd`, then send a round each time `start` opens."""

    async def work() -> int:
        sender = _Sender(crowd, counted)
        await sender.connect()
        ticking = asyncio.create_task(sender.tick())
        pipe.send(READY)
        for _ in range(crowd.rounds):
            await asyncio.to_thread(start.wait)
            await sender.send_round()
        await asyncio.to_thread(start.wait)  # the leader has seen the last round arrive
        ticking.cancel()
        sender.finish()
        return 0

    _run(lambda: on_fast_loop(work()), pipe)  # as the test's own generators


class _Owner:
    """Waits for one client to come up."""

    def __init__(self) -> None:
        self.up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = ""

    def on_up(self) -> None:
        if not self.up.done():
            self.up.set_result(None)

    def on_frame(self, payload: bytes) -> None:
        """Nobody writes to these devices."""

    def on_down(self, reason: str) -> None:
        self.lost = reason
        if not self.up.done():
            self.up.set_exception(BrokerError(f"a device was turned away: {reason}"))


class _Sender:
    def __init__(self, crowd: Crowd, counted: Any) -> None:
        self._crowd, self._counted, self._sent_bytes = crowd, counted, 0
        self._clients: list[tuple[Client, _Owner]] = []
        self._address: BrokerAddress = crowd.edge.address
        self._tls: ssl.SSLContext | None = None
        if self._address.tls:
            edge = crowd.edge
            self._tls = client_context(edge.ca_file, edge.cert_file, edge.key_file)

    async def connect(self) -> None:
        gate = asyncio.Semaphore(_DIALS)
        await asyncio.gather(*(self._connect(device, gate) for device in self._crowd.devices))

    async def _connect(self, device: RawDevice, gate: asyncio.Semaphore) -> None:
        edge = self._crowd.edge
        login = Login(
            client_id=f"{device.id}-raw-{secrets.token_hex(2)}",
            username=device.id,
            password=device.password,
            will=None,
            keepalive_s=KEEPALIVE_S,
            packet_bytes=edge.packet_bytes,
        )
        up, down = encoded_topic(device_up(device.id)), (device_down(device.id),)
        async with gate, asyncio.timeout(CONNECT_S):
            owner = _Owner()
            client = Client(owner, login, edge.protocol, down, up)
            where = (self._address.host, self._address.port)
            await asyncio.get_running_loop().create_connection(
                lambda: client, *where, ssl=self._tls
            )
            await owner.up
        self._clients.append((client, owner))

    async def send_round(self) -> None:
        crowd, size = self._crowd, sum(map(len, self._crowd.frames))
        for client, owner in self._clients:
            while self._sent_bytes * crowd.processes - self._counted.value > crowd.credit_bytes:
                await asyncio.sleep(_LOOK_S)
            for frame in crowd.frames:
                if not client.publish(frame, crowd.qos):
                    raise BrokerError(f"a device lost its connection: {owner.lost}")
            self._sent_bytes += size
            await asyncio.sleep(0)  # let the loop write and read

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = asyncio.get_running_loop().time()
            for client, _ in self._clients:
                client.tick(now_s)

    def finish(self) -> None:
        for client, _ in self._clients:
            client.finish()


def _run(work: Callable[[], object], pipe: Connection) -> None:
    """The life of a part: it says what it failed of, and ends with its starter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the starter ends its parts
    threading.Thread(target=_end_with_starter, daemon=True).start()
    keep_heap()  # as the proxy and the cloud do
    try:
        work()
    except (EdgeVeilError, OSError, TimeoutError, threading.BrokenBarrierError) as error:
        with suppress(OSError):
            pipe.send(str(error) or type(error).__name__)


def _end_with_starter() -> None:
    starter = parent_process()
    if starter is not None:
        starter.join()
        os._exit(1)
