"""`--compare raw`: the same uploads over the same two brokers, by a relay that does nothing else.

What is compared is the way up: from the first upload that a device publishes until everything is
at the cloud's side. Brokers, accounts, topics, packets and link code are those of EdgeVeil's run.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import JobFailed
from edgeveil.protocol.messages import (
    SEAL_OVERHEAD_BYTES,
    ExchangeId,
    Offer,
    Signer,
    Upload,
    encode,
)
from edgeveil.protocol.sealed import padded
from edgeveil.protocol.transfer import FRAME_OVERHEAD_BYTES, describe, part_bytes, parts
from edgeveil.sites.cloud import CloudSite
from edgeveil.sites.proxy import ProxySite
from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import link_settings
from edgeveil_lab.load import raw_parts
from edgeveil_lab.load.processes import Watch
from edgeveil_lab.load.raw_parts import READY, Crowd, RawDevice
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_tools.cli.common import load_as

CREDIT_BYTES = 16 << 20
STALLED_S = 30.0
_LOOK_S = 0.002


@dataclass(frozen=True)
class RawSite:
    """The accounts that the relay and the sink take: the proxy's two, and the cloud's."""

    edge: LinkSettings
    onwards: LinkSettings
    cloud: LinkSettings

    @classmethod
    def load(cls, folder: Path) -> RawSite:
        """From the site files of a proxy and a cloud that do not run now."""
        proxy = load_as(ProxySite, folder / "proxy.yaml")
        cloud = load_as(CloudSite, folder / "cloud.yaml")
        packet_bytes = proxy.limits.packet_bytes
        return cls(
            link_settings(proxy.edge_broker, "relay", packet_bytes),
            link_settings(proxy.cloud_broker, "relay", packet_bytes),
            link_settings(cloud.broker, "sink", cloud.limits.packet_bytes),
        )


def upload_frames(payload_bytes: int, packet_bytes: int) -> list[bytes]:
    """The packets of one upload as a device makes them, of random bytes."""
    data = os.urandom(padded(payload_bytes) + SEAL_OVERHEAD_BYTES)
    blob = describe(data, part_bytes(packet_bytes))
    key = SigningKey.generate()
    at = ExchangeId(os.urandom(16), 1, 1)
    signed = Signer(key.public().fingerprint(), key).header(Upload(at, (0,), blob))
    if len(signed.payload) + len(data) + FRAME_OVERHEAD_BYTES <= packet_bytes:
        return [encode(Offer(signed, data))]
    return [encode(Offer(signed)), *(encode(piece) for piece in parts(blob, data))]


def run_raw(
    site: RawSite,
    devices: Sequence[RawDevice],
    options: LoadOptions,
    rounds: int,
    brokers: Mapping[str, int],
) -> dict[str, Any]:
    """Carry `rounds` uploads of each device; what that took. Blocks until done.

    `brokers` maps a name to the process id of a broker whose use is to be measured. Raises
    JobFailed where a part fails or nothing moves any more.
    """
    frames = upload_frames(options.payload_bytes, site.edge.packet_bytes)
    with _Parts() as parts_:
        counted = parts_.context.Value(ctypes.c_int64, 0, lock=False)
        parts_.start("relay", raw_parts.relay, site.edge, site.onwards)
        parts_.start("sink", raw_parts.sink, site.cloud, counted)
        parts_.await_ready()
        count = min(options.processes, len(devices))
        start = parts_.context.Barrier(count + 1)
        for number in range(count):
            crowd = Crowd(
                devices[number::count], site.edge, frames, rounds, options.qos, count, CREDIT_BYTES
            )
            parts_.start(f"generator-{number + 1}", raw_parts.generate, crowd, counted, start)
        parts_.await_ready()
        watch = Watch()
        watch.add({**parts_.pids, **brokers})
        watch.look()
        before_s = watch.cpu_s()
        seconds = _rounds(parts_, counted, start, rounds, len(devices) * sum(map(len, frames)))
        watch.look()
        used_s = {name: cpu_s - before_s[name] for name, cpu_s in watch.cpu_s().items()}
        peaks = watch.peak_rss_bytes()
    return _figures(frames, len(devices), seconds, used_s, peaks)


def ratio(result: Mapping[str, Any], raw: Mapping[str, Any]) -> float | None:
    """EdgeVeil's MB/s upwards over the bare relay's.

    Both carry the same bytes per upload, so it is the ratio of their uploads a second.
    """
    rounds = [row for row in result["rounds"] if row.get("uploads_per_s")]
    window_s = sum(row["uploads"] / row["uploads_per_s"] for row in rounds)
    if not window_s or not raw["uploads_per_s"]:
        return None
    return float(sum(row["uploads"] for row in rounds) / window_s / raw["uploads_per_s"])


class _Parts:
    """The processes; all are ended at the end, however that comes."""

    def __init__(self) -> None:
        self.context = mp.get_context("spawn")
        self._children: dict[str, tuple[BaseProcess, Connection]] = {}
        self._ready: set[str] = set()

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for child, _pipe in self._children.values():
            child.terminate()
        for child, _pipe in self._children.values():
            child.join(2.0)
            if child.is_alive():
                child.kill()
                child.join()

    @property
    def pids(self) -> dict[str, int]:
        return {name: child.pid or 0 for name, (child, _) in self._children.items()}

    def start(self, name: str, target: Any, *arguments: Any) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        child = self.context.Process(target=target, args=(*arguments, theirs), daemon=True)
        child.start()
        theirs.close()
        self._children[name] = child, ours

    def await_ready(self) -> None:
        """Until all that were started have said so. Raises JobFailed."""
        deadline_s = time.monotonic() + raw_parts.CONNECT_S
        while len(self._ready) < len(self._children):
            self.check(max(0.0, deadline_s - time.monotonic()))
            if time.monotonic() > deadline_s:
                raise JobFailed("the bare relay did not come up", where="--compare raw")

    def check(self, timeout_s: float = 0.0) -> None:
        """Take what the parts say. Raises JobFailed where one has failed or ended."""
        spoken = wait([pipe for _, pipe in self._children.values()], timeout_s)
        for name, (_, pipe) in self._children.items():
            if pipe not in spoken:
                continue
            try:
                said = str(pipe.recv())
            except EOFError:
                said = "it ended"
            if said != READY:
                raise JobFailed(f"{name}: {said}", where="--compare raw")
            self._ready.add(name)


def _rounds(parts_: _Parts, counted: Any, start: Any, rounds: int, round_bytes: int) -> list[float]:
    """Seconds of each round, from its start until the sink has all of it."""
    seconds = []
    for number in range(1, rounds + 1):
        start.wait(raw_parts.CONNECT_S)
        began_s = moved_s = time.monotonic()
        seen = counted.value
        while counted.value < number * round_bytes:
            time.sleep(_LOOK_S)
            parts_.check()
            if counted.value != seen:
                seen, moved_s = counted.value, time.monotonic()
            elif time.monotonic() - moved_s > STALLED_S:
                raise JobFailed(
                    f"nothing arrives any more, {seen} of {number * round_bytes} bytes did",
                    where="--compare raw",
                    fix="run it again with less beside it: the bare relay sends nothing twice",
                )
        seconds.append(time.monotonic() - began_s)
    start.wait(raw_parts.CONNECT_S)
    return seconds


def _figures(
    frames: Sequence[bytes],
    devices: int,
    seconds: Sequence[float],
    used_s: Mapping[str, float],
    peaks: Mapping[str, int | None],
) -> dict[str, Any]:
    uploads, upload_bytes, took_s = devices * len(seconds), sum(map(len, frames)), sum(seconds)
    return {
        "uploads": uploads,
        "upload_bytes": upload_bytes,
        "upload_messages": len(frames),
        "seconds": round(took_s, 3),
        "rounds": [{"uploads": devices, "seconds": round(s, 3)} for s in seconds],
        "uploads_per_s": round(uploads / took_s, 2),
        "mb_per_s": {"up": round(uploads * upload_bytes / took_s / 1e6, 2)},
        "processes": {
            name: {
                "cpu_s": round(cpu_s, 3),
                "cpu_percent": round(100 * cpu_s / took_s, 1),
                "peak_rss_bytes": peaks[name],
            }
            for name, cpu_s in used_s.items()
        },
        "cpu_ms_per_upload": {name: round(1e3 * s / uploads, 3) for name, s in used_s.items()},
    }
