"""A whole fleet in this process, in virtual time: for tests, benches and plug-ins.

Cloud, proxy and devices are made by their roles' own `build`, with real stores and ledgers; frames
go through `MemoryNet`. Chance is seeded, and packages may be sealed otherwise (`PlainSealing`).

    fleet = MemoryFleet(folder, device_sites(6), test_data=DIGITS)
    job = fleet.submit(load_job(path))
    assert fleet.finish(job) == "completed"
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from edgeveil.config.cloud import CloudSite
from edgeveil.config.data import DataSource, Partition
from edgeveil.config.edge import EdgeSite
from edgeveil.config.policy import Policy
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import OpeningKey, SealingKey
from edgeveil.data.split import SPLIT_KEY_FILE
from edgeveil.jobs import Job
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.privacy.derived import NoiseFor
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Group, Manifest, RoundId
from edgeveil.protocol.sealed import Plaintext, Sealing, Terms, filled
from edgeveil.selection import uniform
from edgeveil.storage import write_durably
from edgeveil.transport.memory import Faults, MemoryNet, Node, no_faults
from edgeveil.transport.process import make_signing_key

if TYPE_CHECKING:
    from edgeveil_cloud.role import CloudRole
    from edgeveil_cloud.store import Store
    from edgeveil_edge.role import DeviceRole
    from edgeveil_proxy.role import ProxyRole

DIGITS = DataSource(name="digits", source="digits")
PACKET_BYTES = 1 << 26
_NO_LIMIT = 1 << 40

S = TypeVar("S", CloudSite, ProxySite, EdgeSite)
_NOWHERE = {"url": "mqtt://127.0.0.1:1"}  # a broker that nobody asks for


def device_sites(
    devices: int,
    source: DataSource = DIGITS,
    *,
    infer_only: int = 0,
    partition: Partition | None = None,
    classes: int | None = None,
    policy: Policy | None = None,
    seed: int = 7,
) -> list[EdgeSite]:
    """Site files of so many devices, of which the last `infer_only` evaluate alone. Device k (from
    1) takes share k - 1 of `source`, dealt as `partition` says by `seed`; `classes`: how many a
    source of one's own has."""
    keys = {"cloud_key_file": Path("cloud.pub"), "proxy_key_file": Path("proxy.pub")}
    share: dict[str, Any] = {"devices": devices, "seed": seed, "classes": classes}
    share["partition"] = partition or Partition()
    data = source.model_dump(exclude_none=True)
    return [
        _site(
            EdgeSite,
            {
                **keys,
                "broker": _NOWHERE,
                "name": f"box-{number}",
                "policy": (policy or Policy()).model_copy(),  # each owner's own
                "role": "infer" if number > devices - infer_only else "train",
                "data": {**data, "shard": {**share, "index": number - 1}},
            },
        )
        for number in range(1, devices + 1)
    ]


class SimulationSeeds:
    """Everything that chance decides in a simulation, from one number. Nothing of it is private."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._selection = Random(self._number("selection"))  # noqa: S311 - seeded on purpose
        self.shuffle = Random(self._number("shuffle")).shuffle  # noqa: S311

    def noise(self, device: int) -> SeededRandom:
        """The noise of device `device`, from 1: a stream that goes on from round to round."""
        return SeededRandom(self._number(f"noise/{device}"))

    def draws(self) -> SeededRandom:
        """What the cloud's aggregation rules draw from."""
        return SeededRandom(self._number("aggregation"))

    def split_key(self, device: int) -> bytes:
        """What places a device's records in its two halves, 32 bytes."""
        return self._digest(f"split/{device}")

    def choose(self, devices: Sequence[bytes], count: int) -> list[bytes]:
        """So many of the devices, which must stand in an order of their own."""
        return uniform(devices, count, self._selection)

    def _number(self, what: str) -> int:
        return int.from_bytes(self._digest(what)[:16], "big")

    def _digest(self, what: str) -> bytes:
        return hashlib.sha256(f"edgeveil/v1/simulation/{self._seed}/{what}".encode()).digest()


class MemoryFleet:
    """`devices`, one proxy and one cloud in virtual time; `seed` decides all that chance does.

    Files lie in `folder`/state: `cloud`, `proxy`, `edge-N`. `cloud` and `proxy` are further keys of
    their site files, `faults` the fate of each frame; `clock` times what the cloud reports, `say`
    gets what owners are told.
    """

    cloud: CloudRole
    proxy: ProxyRole
    net: MemoryNet

    def __init__(
        self,
        folder: Path,
        devices: Sequence[EdgeSite],
        *,
        test_data: DataSource | None = None,
        seed: int = 7,
        sealing: Sealing = real_sealing,
        faults: Faults = no_faults,
        packet_bytes: int = PACKET_BYTES,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda _line: None,
        cloud: Mapping[str, Any] | None = None,
        proxy: Mapping[str, Any] | None = None,
        transport: type[MemoryNet] = MemoryNet,
    ) -> None:
        self.folder, self._sealing, self._say, self._clock = folder, sealing, say, clock
        self._seeds = SimulationSeeds(seed)
        self.net = transport(faults, packet_bytes=packet_bytes)
        states = {name: folder / "state" / name for name in ("cloud", "proxy")}
        for name, state_dir in states.items():
            make_signing_key(state_dir, name)  # the others read its public half
        keys = {f"{name}_key_file": states[name] / f"{name}.pub" for name in states}
        limits = {"packet_bytes": packet_bytes, "blob_bytes": _NO_LIMIT, "spool_bytes": _NO_LIMIT}
        own = {"broker": _NOWHERE, "state_dir": states["cloud"], "test_data": test_data}
        own["proxy_key_file"] = keys["proxy_key_file"]
        self._cloud_site = _site(CloudSite, own, cloud, limits)
        own = {"edge_broker": _NOWHERE, "cloud_broker": _NOWHERE, "state_dir": states["proxy"]}
        own["cloud_key_file"] = keys["cloud_key_file"]
        limits |= {"upload_bytes": _NO_LIMIT, "cache_bytes": _NO_LIMIT}
        self._proxy_site = _site(ProxySite, own, proxy, limits)
        room = {"packet_bytes": packet_bytes, "blob_bytes": _NO_LIMIT, "fetch_bytes": _NO_LIMIT}
        self._device_sites = [
            site.model_copy(
                update={
                    **keys,
                    "state_dir": folder / "state" / f"edge-{number}",
                    "limits": site.limits.model_copy(update=room),
                }
            )
            for number, site in enumerate(devices, start=1)
        ]
        self._order: dict[bytes, int] = {}  # public sealing key -> number of the device
        self.devices = [self.start_device(n) for n in range(1, len(devices) + 1)]
        self._admit()
        self.start_proxy()
        self.start_cloud()
        for node in self.net.nodes.values():
            self.net.connect(node)

    # --- jobs ---

    @property
    def store(self) -> Store:
        """The cloud's."""
        return self.cloud.store

    def enrolled(self) -> bool:
        """The cloud knows every admitted key."""
        return len(self.store.enrolled()) == len(self.devices)

    def submit(self, job: Job) -> str:
        """Queue and start a job once the roster is there; its id."""
        self.net.run(self.enrolled)
        for graph in read_artifacts(job).values():
            self.store.put_backbone(graph)
        entry = self.store.submit_job(job.job, job.canonical(), job.digest(), priority=job.priority)
        self.cloud.control.start(entry)
        return entry.id

    def resume(self, job_id: str) -> None:
        """Let a paused job go on."""
        self.cloud.control.start(self.store.resume(job_id))

    def finish(self, job_id: str, limit_s: float = 3600.0) -> str:
        """Run until the job has ended or paused, `limit_s` virtual seconds at most; its status."""
        self.net.run(lambda: self.settled(job_id), self.net.now_s + limit_s)
        return self.store.job(job_id).status

    def settled(self, job_id: str) -> bool:
        """Nothing more happens to the job by itself."""
        entry = self.store.job(job_id)
        return entry.ended or entry.status == "paused"

    def close(self) -> None:
        """Close all files."""
        for device in self.devices:
            device.close()
        self.proxy.close()
        self.cloud.close()

    # --- the parties; each may be started anew, as after the end of its process ---

    def start_device(self, number: int) -> DeviceRole:
        """Device `number`, from 1, with what its folder holds."""
        from edgeveil_edge.host import DeviceChance
        from edgeveil_edge.identity import DeviceIdentity
        from edgeveil_edge.role import build

        # Answers leave in the order of the numbers: whatever looks at their order repeats exactly.
        site, everybody = self._device_sites[number - 1], len(self._device_sites)
        site.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = self._seeds.split_key(number)
        write_durably(site.state_dir / SPLIT_KEY_FILE, key, mode=0o600)
        DeviceIdentity.load_or_create(site.state_dir)
        device = build(
            site,
            random=DeviceChance(self._noise_for(number), lambda: number / (1 + everybody)),
            link=self._join,
            sealing=self._sealing,
            say=lambda line: self._say(f"{site.name}: {line}"),
        )
        self._order[device.identity.opening.public().to_bytes()] = number
        return device

    def start_proxy(self) -> None:
        """The proxy, with what its folder holds."""
        from edgeveil_proxy.role import build

        self.proxy = build(
            self._proxy_site, clock=self._clock, random=self._seeds.shuffle, link=self._join
        )

    def start_cloud(self) -> None:
        """The cloud, with what its store holds."""
        from edgeveil_cloud.role import CloudChance, build

        self.cloud = build(
            self._cloud_site,
            clock=self._clock,
            random=CloudChance(self._choose, self._seeds.draws()),
            link=self._join,
            sealing=self._sealing,
        )

    def _join(self, role: CloudRole | ProxyRole | DeviceRole) -> Node:
        return self.net.add(role.address, role.machine, role.host)

    def _admit(self) -> None:
        from edgeveil_proxy.registry import REGISTRY_FILE, Registry

        registry = Registry(self._proxy_site.state_dir / REGISTRY_FILE)
        registry.admit_many(device.identity.enrolment() for device in self.devices)
        registry.close()

    def _noise_for(self, number: int) -> NoiseFor:
        """One stream for all questions, which goes on from round to round."""
        draw = self._seeds.noise(number)
        return lambda _question: draw

    def _choose(self, keys: Sequence[bytes], count: int) -> list[bytes]:
        # Keys are new in every run: only by the devices' numbers does the same seed ask the same.
        return self._seeds.choose(sorted(keys, key=self._order.__getitem__), count)


def _site(
    kind: type[S],
    settings: Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
    limits: Mapping[str, int] | None = None,
) -> S:
    further = dict(changes or {})
    bounds = {**(limits or {}), **further.pop("limits", {})}
    return kind.model_validate({**settings, **further, "limits": bounds})


# --- packages that are not encrypted ---

KEY_BYTES = 32
_TAG = b"edgeveil/v1/simulation/not-encrypted"


class PlainSealing:
    """Packages and segments of the same sizes and rules as real ones
    (`edgeveil.protocol.sealed.Sealing`), nothing encrypted. No configuration can ask for it, and
    what it makes opens nowhere else."""

    def seal_broadcast(
        self,
        terms: Terms,
        package: Plaintext,
        recipients: Sequence[SealingKey],
        part_bytes: int,
        *,
        bucketed: bool = False,
    ) -> tuple[Manifest, bytes, bytes]:
        """The manifest; recipients and package; the membership tag. In one bucket."""
        front = self.front(recipients)
        data = b"".join((front, package))
        manifest = terms.manifest(
            package,
            data,
            selected=len(recipients),
            stanza_bytes=len(front),
            commitment=bytes(32),
            part_bytes=part_bytes,
        )
        return manifest, data, self.membership(manifest)

    def front(self, recipients: Sequence[SealingKey]) -> bytes:
        """The recipients' keys, in place of stanzas."""
        return b"".join(key.to_bytes() for key in recipients)

    def open_broadcast(
        self, key: OpeningKey, manifest: Manifest, data: bytes
    ) -> tuple[bytes, bytes] | None:
        """(package, membership tag) for one that is listed, None for anybody else."""
        if not self.is_listed(key, manifest, data):
            return None
        return data[manifest.stanza_bytes :], self.membership(manifest)

    def membership(self, manifest: Manifest) -> bytes:
        """The tag of a broadcast, which anybody can tell."""
        return hashlib.sha256(_TAG + manifest.cloud_key + manifest.package_digest).digest()

    def is_listed(self, key: OpeningKey, manifest: Manifest, stanzas: bytes) -> bool:
        """Whether the key stands among those that a broadcast is for."""
        own = key.public().to_bytes()
        starts = range(0, manifest.stanza_bytes, KEY_BYTES)
        return any(stanzas[start : start + KEY_BYTES] == own for start in starts)

    def seal_segment(
        self, manifest: Manifest, group: Group, membership: bytes, tensor: Plaintext
    ) -> bytes:
        """As many bytes as a sealed segment has: tag, chance (equal tensors differ), tensor."""
        tag = _segment_tag(manifest.at, manifest.job_digest, group, membership)
        head = tag + os.urandom(SEAL_OVERHEAD_BYTES - len(tag))
        return b"".join((head, filled(tensor, group.padded_bytes)))

    def open_segment(
        self,
        key: OpeningKey,
        at: RoundId,
        job_digest: bytes,
        group: Group,
        membership: bytes,
        sealed: bytes,
    ) -> bytes | None:
        """The padded tensor; None if it was not made for this very round."""
        tag = _segment_tag(at, job_digest, group, membership)
        fits = len(sealed) == SEAL_OVERHEAD_BYTES + group.padded_bytes
        return sealed[SEAL_OVERHEAD_BYTES:] if fits and sealed.startswith(tag) else None


def _segment_tag(at: RoundId, job_digest: bytes, group: Group, membership: bytes) -> bytes:
    bound = at.job_id + at.numbers + job_digest + membership + group.name.encode()
    return hashlib.sha256(_TAG + bound).digest()
