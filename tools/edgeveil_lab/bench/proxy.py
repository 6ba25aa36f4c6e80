"""The proxy's path alone, in this process: signed uploads in, acknowledged and durable, out."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
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
from edgeveil.protocol.transfer import describe, part, part_bytes
from edgeveil.sites.proxy import ProxySite
from edgeveil.transport.process import make_signing_key
from edgeveil.transport.runtime import Runtime
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_proxy.role import ProxyRole, build

PACKET_BYTES = 65536
UPLOAD_BYTES = 65536  # two packets
_AT = ExchangeId(b"benchmark of 16.", 1, 1)
_MODEL = b"model"


class _Devices:
    """Devices with signed offers; what they are asked for is ready."""

    def __init__(self, count: int) -> None:
        data = secrets.token_bytes(UPLOAD_BYTES)
        self.blob = describe(data, part_bytes(PACKET_BYTES))
        self.pieces = [encode(part(self.blob, data, i)) for i in range(self.blob.parts)]
        self.enrolments: list[Enrolment] = []
        self.offers: dict[str, bytes] = {}
        for _ in range(count):
            key = SigningKey.generate()
            name = key.public().fingerprint()
            self.enrolments.append(Enrolment.make(key, OpeningKey.generate()))
            self.offers[name] = encode(Signer(name, key).offer(Upload(_AT, (0,), self.blob)))


class _Round:
    """One round: from the first offer until the batch is offered to the cloud."""

    def __init__(self, devices: _Devices, folder: Path) -> None:
        cloud = SigningKey.generate()
        cloud.public().save(folder / "cloud.pub")
        self._cloud, self._fleet = Signer("cloud", cloud), devices
        registry = Registry(folder / REGISTRY_FILE)
        registry.admit_many(devices.enrolments)
        registry.close()
        broker = {"url": "mqtt://127.0.0.1:1"}  # nobody asks for it
        site = ProxySite.model_validate(
            {
                "edge_broker": broker,
                "cloud_broker": broker,
                "state_dir": folder,
                "cloud_key_file": folder / "cloud.pub",
                "limits": {"packet_bytes": PACKET_BYTES},
            }
        )
        self._runtime: Runtime
        make_signing_key(folder, "proxy")
        self._proxy = build(site, link=self._join)
        self._asked: asyncio.Queue[fx.DeviceAddress] = asyncio.Queue()
        self._open, self._over = asyncio.Event(), asyncio.Event()

    def _join(self, proxy: ProxyRole) -> Runtime:
        log = logging.getLogger("edgeveil.bench")
        self._runtime = Runtime(proxy.machine, proxy.host, self._publish, None, log, PACKET_BYTES)
        return self._runtime

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
        self._proxy.close()
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
        return devices / asyncio.run(_Round(_Devices(devices), Path(folder)).seconds())
