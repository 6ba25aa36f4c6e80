"""The proxy's path alone, in this process: signed uploads in, acknowledged and durable, out."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import (
    SEAL_OVERHEAD_BYTES,
    ExchangeId,
    Group,
    Manifest,
    Need,
    Offer,
    Signer,
    Upload,
    decode,
    encode,
)
from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.proxy_tasks import ProxySettings
from edgeveil.protocol.transfer import describe, part, part_bytes
from edgeveil.transport.runtime import Runtime
from edgeveil_proxy.role import ProxyHost
from edgeveil_proxy.spool import Spool

PACKET_BYTES = 65536
UPLOAD_BYTES = 65536  # two packets
_AT = ExchangeId(b"benchmark of 16.", 1, 1)
_MODEL = b"model"


class _Fleet:
    """Devices with signed offers; what they are asked for is ready."""

    def __init__(self, devices: int) -> None:
        data = secrets.token_bytes(UPLOAD_BYTES)
        self.blob = describe(data, part_bytes(PACKET_BYTES))
        self.pieces = [encode(part(self.blob, data, i)) for i in range(self.blob.parts)]
        self._keys: dict[str, VerifyKey] = {}
        self.offers: dict[str, bytes] = {}
        for _ in range(devices):
            key = SigningKey.generate()
            name = key.public().fingerprint()
            self._keys[name] = key.public()
            self.offers[name] = encode(Signer(name, key).offer(Upload(_AT, (0,), self.blob)))

    def verify_key(self, device: str) -> VerifyKey | None:
        return self._keys.get(device)

    def roster(self) -> tuple[int, bytes]:
        return 1, b""


class _Run:
    """One round: from the first offer until the batch is offered to the cloud."""

    def __init__(self, fleet: _Fleet, folder: Path) -> None:
        cloud = SigningKey.generate()
        self._cloud, self._fleet = Signer("cloud", cloud), fleet
        self._spool = Spool(folder / "spool.sqlite")
        machine = ProxyMachine(
            Signer("proxy", SigningKey.generate()),
            cloud.public(),
            fleet,
            self._spool.load(),
            ProxySettings(PACKET_BYTES),
        )
        host = ProxyHost(self._spool, secrets.SystemRandom().shuffle)
        log = logging.getLogger("edgeveil.bench")
        self._runtime = Runtime(machine, host, self._publish, None, log, PACKET_BYTES)
        self._asked: asyncio.Queue[fx.DeviceAddress] = asyncio.Queue()
        self._open, self._over = asyncio.Event(), asyncio.Event()

    async def _publish(self, to: fx.Address, frame: bytes) -> None:
        if isinstance(to, fx.AllDevices):
            self._open.set()
        elif isinstance(to, fx.DeviceAddress) and isinstance(decode(frame, PACKET_BYTES), Need):
            self._asked.put_nowait(to)
        elif isinstance(to, fx.CloudAddress) and isinstance(decode(frame, PACKET_BYTES), Offer):
            self._over.set()

    async def _offer(self) -> None:
        for name, frame in self._fleet.offers.items():
            await self._runtime.receive(fx.DeviceAddress(name), frame)

    async def _answer(self) -> None:
        while True:
            device = await self._asked.get()
            for frame in self._fleet.pieces:
                await self._runtime.receive(device, frame)

    async def seconds(self) -> float:
        """How long it took."""
        count = len(self._fleet.offers)
        groups = (Group("head.weight", UPLOAD_BYTES - SEAL_OVERHEAD_BYTES),)
        offer = self._cloud.offer(_manifest(groups, count), _MODEL)
        tasks = [asyncio.create_task(self._runtime.run()), asyncio.create_task(self._answer())]
        await self._runtime.receive(fx.CloudAddress(), encode(offer))
        await self._open.wait()
        start = time.perf_counter()
        await self._offer()
        await self._over.wait()
        elapsed = time.perf_counter() - start
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._spool.close()
        return elapsed


def _manifest(groups: tuple[Group, ...], count: int) -> Manifest:
    return Manifest(
        kind="round",
        at=_AT,
        sequence=1,
        job_digest=bytes(32),
        phase="train",
        selected=count,
        min_batch=3,
        quorum=count,
        deadline_s=600.0,
        grace_s=1.0,
        groups=groups,
        stanza_bytes=0,
        package_digest=bytes(32),
        package_bytes=1,
        commitment=bytes(32),
        cloud_key=bytes(32),
        blob=describe(_MODEL, part_bytes(PACKET_BYTES)),
    )


def proxied_uploads_per_s(devices: int = 2000) -> float:
    """Uploads of 64 KiB a second through decoding, machine, spool, and the round's shuffle."""
    with TemporaryDirectory(prefix="edgeveil-bench-") as folder:
        return devices / asyncio.run(_Run(_Fleet(devices), Path(folder)).seconds())
