"""`--compare raw`: the same uploads over the same two brokers through a bare relay.

Devices publish at the edge broker, the relay passes each payload on, and a sink at the cloud broker
counts bytes: no encryption, no acknowledgement of ours, no disk."""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

from edgeveil.config.cloud import CloudSite
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import BrokerError, JobFailed
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, RoundId, Signer, Upload, encode, padded
from edgeveil.protocol.transfer import describe, part_bytes, sends
from edgeveil.transport.dialling import client_context
from edgeveil.transport.link import LinkSettings, Topics
from edgeveil.transport.mqtt_link import MqttLink, link_settings
from edgeveil.transport.mqtt_packets import Login, encoded_topic
from edgeveil_lab.load.mqtt import BareClient, Dialler, on_fast_loop
from edgeveil_lab.load.processes import ChildProcesses, ProcessWatch, run_child
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_tools.cli.common import load_as

TOPICS = Topics()

# Relay, sink and generators: each runs in a process of its own.
READY, _WHERE = "ready", "--compare raw"
KEEPALIVE_S = 65_535  # the largest: no pings
CONNECT_S = 60.0
CREDIT_BYTES = 16 << 20  # sent by all generators and not yet counted by the sink
_CREDIT_LOOK_S = 0.001


@dataclass(frozen=True)
class RawDevice:
    """A device's account at the edge broker; the user name is its id."""

    id: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class _RawCrowd:
    devices: Sequence[RawDevice]
    edge: LinkSettings  # its account is not used
    frames: Sequence[bytes] = field(repr=False)
    rounds: int
    qos: int
    processes: int


def relay(edge: LinkSettings, cloud: LinkSettings, pipe: Connection) -> None:
    async def work() -> None:
        onwards = MqttLink(cloud)

        async def carry(_topic: str, payload: bytes) -> None:
            await onwards.publish(TOPICS.cloud_in, payload)

        incoming = MqttLink(edge, on_message=carry)
        await onwards.connect_or_raise()
        incoming.subscribe([TOPICS.devices_up])
        await incoming.connect_or_raise()
        pipe.send(READY)
        await asyncio.gather(onwards.run_forever(), incoming.run_forever())

    run_child(lambda: asyncio.run(work()), pipe)


def sink(cloud: LinkSettings, counted: Any, pipe: Connection) -> None:
    async def work() -> None:
        def count(_topic: str, payload: bytes) -> None:
            counted.value += len(payload)

        link = MqttLink(cloud, on_message=count)
        link.subscribe([TOPICS.cloud_in])
        await link.connect_or_raise()
        pipe.send(READY)
        await link.run_forever()

    run_child(lambda: asyncio.run(work()), pipe)


def generate(crowd: _RawCrowd, counted: Any, start: Barrier, pipe: Connection) -> None:
    """Connect all devices of `crowd`, then send a round each time `start` opens."""

    async def work() -> int:
        edge, address = crowd.edge, crowd.edge.addresses[0]
        tls = client_context(edge.ca_file, edge.cert_file, edge.key_file) if address.tls else None
        dialler = Dialler(address, tls, None)
        peers = [_RawPeer(device, crowd, dialler) for device in crowd.devices]
        await dialler.connect_all(peers)
        async with asyncio.timeout(CONNECT_S):
            for peer in peers:
                await peer.answered.wait()
                if peer.lost:
                    raise BrokerError(f"a device was turned away: {peer.lost}")
        pipe.send(READY)
        size, sent_bytes = sum(map(len, crowd.frames)), 0
        for _ in range(crowd.rounds):
            await asyncio.to_thread(start.wait)
            for peer in peers:
                while sent_bytes * crowd.processes - counted.value > CREDIT_BYTES:
                    await asyncio.sleep(_CREDIT_LOOK_S)
                for frame in crowd.frames:
                    if not peer.sender.publish(frame, crowd.qos):
                        raise BrokerError(f"a device lost its connection: {peer.lost}")
                sent_bytes += size
                await asyncio.sleep(0)  # let the loop write and read
        await asyncio.to_thread(start.wait)  # opens once the last round has arrived
        for peer in peers:
            peer.sender.finish()
        return 0

    run_child(lambda: on_fast_loop(work()), pipe)  # as the test's own generators


class _RawPeer:
    def __init__(self, device: RawDevice, crowd: _RawCrowd, dialler: Dialler) -> None:
        self._device, self._edge, self._dialler = device, crowd.edge, dialler
        self.answered = asyncio.Event()
        self.lost = ""
        self.sender = self.client()

    def connect(self) -> None:
        self._dialler.dial(self)

    def client(self) -> BareClient:
        device, edge = self._device, self._edge
        login = Login(
            client_id=f"{device.id}-raw-{secrets.token_hex(2)}",
            username=device.id,
            password=device.password,
            will=None,
            keepalive_s=KEEPALIVE_S,
            packet_bytes=edge.packet_bytes,
        )
        up, down = encoded_topic(TOPICS.device_up(device.id)), (TOPICS.device_down(device.id),)
        self.sender = BareClient(self, login, edge.protocol, down, up)
        return self.sender

    def on_up(self) -> None:
        self.answered.set()

    def on_frame(self, payload: bytes) -> None: ...

    def on_down(self, reason: str) -> None:
        self.lost = reason
        self.answered.set()


STALLED_S = 30.0
_LOOK_S = 0.002


class _RawSite(NamedTuple):
    edge: LinkSettings
    onwards: LinkSettings
    cloud: LinkSettings


def raw_site(folder: Path) -> _RawSite:
    """Read the accounts from the site files of a stopped proxy and cloud."""
    proxy = load_as(ProxySite, folder / "proxy.yaml")
    cloud = load_as(CloudSite, folder / "cloud.yaml").broker
    links = ((proxy.edge_broker, "relay"), (proxy.cloud_broker, "relay"), (cloud, "sink"))
    return _RawSite(*(link_settings(at, name, proxy.limits.packet_bytes) for at, name in links))


def upload_frames(payload_bytes: int, packet_bytes: int) -> list[bytes]:
    """Return the packets of one upload of random bytes, as a device makes them."""
    data = os.urandom(padded(payload_bytes) + SEAL_OVERHEAD_BYTES)
    blob = describe(data, part_bytes(packet_bytes))
    key = SigningKey.generate()
    at = RoundId(os.urandom(16), 1, 1)
    signed = Signer(key.public().fingerprint(), key).header(Upload(at, (0,), blob))
    packets = sends(fx.ProxyAddress(), signed, blob, data, packet_bytes)
    return [encode(one.message) for one in packets if isinstance(one, fx.Send)]


def run_raw(
    site: _RawSite,
    devices: Sequence[RawDevice],
    options: LoadOptions,
    rounds: int,
    brokers: Mapping[str, int],
) -> dict[str, Any]:
    """Carry `rounds` uploads of each device through the relay; return the measurements.

    `brokers` maps names to process ids to measure. Raises JobFailed if a part fails or stalls."""
    frames = upload_frames(options.payload_bytes, site.edge.packet_bytes)
    children = ChildProcesses(_WHERE)
    try:
        counted = children.context.Value(ctypes.c_int64, 0, lock=False)
        children.start("relay", relay, site.edge, site.onwards)
        children.start("sink", sink, site.cloud, counted)
        _await_ready(children, 2)
        count = min(options.processes, len(devices))
        start = children.context.Barrier(count + 1)
        for number in range(count):
            crowd = _RawCrowd(devices[number::count], site.edge, frames, rounds, options.qos, count)
            children.start(f"generator-{number + 1}", generate, crowd, counted, start)
        _await_ready(children, count)
        watch = ProcessWatch()
        watch.add({**children.pids, **brokers})
        watch.look()
        before_s = watch.cpu_s()
        round_bytes = len(devices) * sum(map(len, frames))
        seconds = _rounds(children, counted, start, rounds, round_bytes)
        watch.look()
        used_s = {name: cpu_s - before_s[name] for name, cpu_s in watch.cpu_s().items()}
        peaks = watch.peak_rss_bytes()
    finally:
        children.end()
    uploads, upload_bytes, took_s = len(devices) * rounds, sum(map(len, frames)), sum(seconds)
    return {
        "uploads": uploads,
        "upload_bytes": upload_bytes,
        "upload_messages": len(frames),
        "seconds": round(took_s, 3),
        "rounds": [{"uploads": len(devices), "seconds": round(s, 3)} for s in seconds],
        "uploads_per_s": round(uploads / took_s, 2),
        "mb_per_s": {"up": round(uploads * upload_bytes / took_s / 1e6, 2)},
        "processes": {
            name: {
                "cpu_s": round(cpu_s, 3),
                "cpu_percent": round(100 * cpu_s / took_s, 1),
                "cpu_ms_per_upload": round(1e3 * cpu_s / uploads, 3),
                "peak_rss_bytes": peaks[name],
            }
            for name, cpu_s in used_s.items()
        },
    }


def ratio(result: Mapping[str, Any], raw: Mapping[str, Any]) -> float | None:
    """Return EdgeVeil's uploads a second over the bare relay's, at equal bytes per upload."""
    rounds = [row for row in result["rounds"] if row.get("uploads_per_s")]
    window_s = sum(row["uploads"] / row["uploads_per_s"] for row in rounds)
    if not window_s or not raw["uploads_per_s"]:
        return None
    return float(sum(row["uploads"] for row in rounds) / window_s / raw["uploads_per_s"])


def _await_ready(children: ChildProcesses, count: int) -> None:
    """Wait for `count` more messages; raises JobFailed after CONNECT_S."""
    deadline_s = time.monotonic() + CONNECT_S
    while count:
        count -= _received(children, max(0.0, deadline_s - time.monotonic()))
        if time.monotonic() > deadline_s:
            raise JobFailed("the bare relay did not start in time", where=_WHERE)


def _received(children: ChildProcesses, timeout_s: float = 0.0) -> int:
    """Return the number of new messages; raises JobFailed if a part has ended."""
    found = list(children.received(timeout_s))
    for name, message in found:
        if message is None:
            raise JobFailed(f"{name} ended by itself", where=_WHERE)
    return len(found)


def _rounds(
    children: ChildProcesses, counted: Any, start: Any, rounds: int, round_bytes: int
) -> list[float]:
    seconds = []
    for number in range(1, rounds + 1):
        start.wait(CONNECT_S)
        began_s = moved_s = time.monotonic()
        seen = counted.value
        while counted.value < number * round_bytes:
            time.sleep(_LOOK_S)
            _received(children)
            if counted.value != seen:
                seen, moved_s = counted.value, time.monotonic()
            elif time.monotonic() - moved_s > STALLED_S:
                what = f"nothing arrives any more, {seen} of {number * round_bytes} bytes did"
                fix = "run it again on an idle machine: the bare relay resends nothing"
                raise JobFailed(what, where=_WHERE, fix=fix)
        seconds.append(time.monotonic() - began_s)
    start.wait(CONNECT_S)
    return seconds
