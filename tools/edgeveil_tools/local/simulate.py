"""A whole fleet in this process: the machines, hosts, ledgers and frames of a site, in memory.

It differs from a site in two things: chance is seeded, and packages may be sealed otherwise
(`sealing`). Keys come from the operating system all the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from edgeveil.crypto.keys import SigningKey
from edgeveil.data.split import SPLIT_KEY_FILE
from edgeveil.jobs import Job, compile_job
from edgeveil.parts.features import read_backbones
from edgeveil.parts.own_records import held_records
from edgeveil.privacy.derived import NoiseFor
from edgeveil.privacy.ledger import Ledger
from edgeveil.privacy.sampler import RandomBytes, SeededRandom
from edgeveil.protocol import effects as fx
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.cloud import CloudMachine
from edgeveil.protocol.cloud_tasks import CloudSettings, StartJob
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.device_tasks import DeviceSettings
from edgeveil.protocol.messages import Signer
from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.proxy_tasks import ProxySettings
from edgeveil.protocol.sealed import Sealing
from edgeveil.protocol.transfer import part_bytes
from edgeveil.selection import SELECTIONS
from edgeveil.sites.data import DataSource
from edgeveil.sites.edge import EdgeSite
from edgeveil.transport.memory import Faults, MemoryNet, Node, no_faults
from edgeveil_cloud.host import CloudHost, wire_id
from edgeveil_cloud.recording import Recorder
from edgeveil_cloud.sealing import Limits
from edgeveil_cloud.store import Store
from edgeveil_edge.host import DeviceHost
from edgeveil_edge.identity import Identity
from edgeveil_edge.store import DeviceStore
from edgeveil_proxy.host import ProxyHost
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_proxy.spool import Spool
from edgeveil_tools.site.site_plan import SitePlan

PACKET_BYTES = 1 << 26
_NO_LIMIT = 1 << 40


class Seeds:
    """Everything that chance decides in a simulation, from one number: a run repeats exactly.

    Nothing of it is private: who knows the seed can take all noise away.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._selection = Random(self._number("selection"))  # noqa: S311 - seeded on purpose
        self.shuffle = Random(self._number("shuffle")).shuffle  # noqa: S311

    def noise(self, device: int) -> RandomBytes:
        """The noise of device `device`, from 1: a stream that goes on from exchange to exchange."""
        return SeededRandom(self._number(f"noise/{device}"))

    def draws(self) -> RandomBytes:
        """What the cloud's aggregation rules draw from."""
        return SeededRandom(self._number("aggregation"))

    def split_key(self, device: int) -> bytes:
        """What places a device's records in its two halves, 32 bytes."""
        return self._digest(f"split/{device}")

    def choose(self, devices: Sequence[bytes], count: int) -> list[bytes]:
        """So many of the devices, which must stand in an order of their own."""
        return SELECTIONS["uniform"](devices, count, self._selection)

    def _number(self, what: str) -> int:
        return int.from_bytes(self._digest(what)[:16], "big")

    def _digest(self, what: str) -> bytes:
        return hashlib.sha256(f"edgeveil/v1/simulation/{self._seed}/{what}".encode()).digest()


@dataclass
class Box:
    """One device of the fleet, with what its owner can look at."""

    id: str
    site: EdgeSite
    host: DeviceHost
    ledger: Ledger
    node: Node
    store: DeviceStore


class MemoryFleet:
    """The devices of `plan`, one proxy, one cloud, in virtual time; `plan.seed` seeds it all.

    Stores and ledgers are files below the plan's folder. `say` hears what owners are told.
    """

    transport = MemoryNet

    def __init__(
        self,
        plan: SitePlan,
        *,
        sealing: Sealing = real_sealing,
        faults: Faults = no_faults,
        packet_bytes: int = PACKET_BYTES,
        executor: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.plan, self._sealing, self._say = plan, sealing, say
        self._packet_bytes, self._seeds = packet_bytes, Seeds(plan.seed)
        self.net = self.transport(faults, packet_bytes=packet_bytes, executor=executor)
        self._cloud_key, self._proxy_key = SigningKey.generate(), SigningKey.generate()
        folder = plan.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.registry = Registry(folder / REGISTRY_FILE)
        self._order: dict[bytes, int] = {}  # public sealing key -> number of the device
        self._clock, self._interrupted = clock, False
        self.boxes = [self._box(number) for number in range(1, plan.devices + 1)]
        self._start_proxy()
        self._start_cloud()
        for node in self.net.nodes.values():
            self.net.connect(node)

    def enrolled(self) -> bool:
        """The cloud knows every admitted key."""
        return len(self.store.enrolled()) == len(self.boxes)

    def submit(self, job: Job) -> str:
        """Queue and start a job once the roster is there; its id."""
        self.net.run(self.enrolled)
        for graph in read_backbones(job.features).values():
            self.store.put_backbone(graph)
        entry = self.store.submit_job(job.job, job.canonical(), job.digest())
        self._start(entry.id, job)
        return entry.id

    def resume(self, job_id: str, job: Job) -> None:
        """Let a paused job go on."""
        self.store.resume(job_id)
        self._start(job_id, job)

    def interrupt(self) -> None:
        """End the devices' work under way, in whatever threads, at the next thing they draw."""
        self._interrupted = True

    def close(self) -> None:
        """Close all files."""
        for box in self.boxes:
            box.store.close()
            box.ledger.close()
        self.spool.close()
        self.registry.close()
        self.store.close()

    def _start(self, job_id: str, job: Job) -> None:
        self.store.set_status(job_id, "running")
        last = self.store.last_commit(job_id)
        index, rounds = (last.index if last else 0) + 1, len(compile_job(job).exchanges)
        attempt = self.store.next_attempt(job_id, index)
        start = StartJob(wire_id(job_id), index, attempt, rounds, job.round.retries)
        self.net.post(self.cloud_node, fx.Command(start))

    def _box(self, number: int) -> Box:
        state_dir = self.plan.edge_state(number)
        settings = {**self.plan.edge(number, "nobody")["edge"], "state_dir": str(state_dir)}
        site = EdgeSite.model_validate_json(json.dumps(settings))
        _keep_split_key(state_dir, self._seeds.split_key(number))
        identity = Identity.load_or_create(state_dir)
        self.registry.admit(identity.enrolment())
        self._order[identity.opening.public().to_bytes()] = number
        store = DeviceStore(state_dir / "device.sqlite")
        ledger = Ledger(state_dir / "ledger.sqlite", site.data.name)
        host = DeviceHost(
            site,
            identity,
            store,
            ledger,
            noise_for=self._noise_for(number),
            say=lambda line: self._say(f"{site.name}: {line}"),
            sealing=self._sealing,
        )
        machine = DeviceMachine(
            Signer(identity.device_id, identity.signing),
            self._cloud_key.public(),
            self._proxy_key.public(),
            store.load(),
            DeviceSettings(
                self._packet_bytes,
                blob_bytes=_NO_LIMIT,
                fetch_bytes=_NO_LIMIT,
                require_cover=site.policy.require_cover,
            ),
        )
        node = self.net.add(fx.DeviceAddress(identity.device_id), machine, host)
        return Box(identity.device_id, site, host, ledger, node, store)

    def _noise_for(self, number: int) -> NoiseFor:
        """One stream for all questions, which goes on from exchange to exchange."""
        draw = self._seeds.noise(number)

        def random_bytes(count: int) -> bytes:
            if self._interrupted:
                raise KeyboardInterrupt
            return draw(count)

        return lambda _question: random_bytes

    def _start_proxy(self) -> None:
        self.spool = Spool(self.plan.folder / "spool.sqlite")
        self.proxy, self.proxy_host = self._proxy(), ProxyHost(self.spool, self._seeds.shuffle)
        self.proxy_node = self.net.add(fx.ProxyAddress(), self.proxy, self.proxy_host)

    def _start_cloud(self) -> None:
        self.store = Store(f"sqlite:///{self.plan.folder / 'cloud.sqlite'}")
        self.cloud_host = self._cloud_host()
        self.cloud = CloudMachine(
            Signer("cloud", self._cloud_key),
            self._proxy_key.public(),
            CloudSettings(self._packet_bytes, blob_bytes=_NO_LIMIT, spool_bytes=_NO_LIMIT),
        )
        self.cloud_node = self.net.add(fx.CloudAddress(), self.cloud, self.cloud_host)

    def _proxy(self) -> ProxyMachine:
        return ProxyMachine(
            Signer("proxy", self._proxy_key),
            self._cloud_key.public(),
            self.registry,
            self.spool.load(),
            ProxySettings(
                packet_bytes=self._packet_bytes,
                blob_bytes=_NO_LIMIT,
                upload_bytes=_NO_LIMIT,
                spool_bytes=_NO_LIMIT,
                cache_bytes=_NO_LIMIT,
                min_batch_floor=self.plan.min_batch_floor,
            ),
        )

    def _cloud_host(self) -> CloudHost:
        test = held_records(DataSource.model_validate_json(json.dumps(self.plan.data())))
        return CloudHost(
            self.store,
            test,
            Limits(part_bytes(self._packet_bytes), _NO_LIMIT, _NO_LIMIT),
            spool_dir=self.plan.folder,
            clock=self._clock,
            sealing=self._sealing,
            choose=self._choose,
            recorder=Recorder(self.plan.record_dir) if self.plan.record_dir else None,
            random_bytes=self._seeds.draws(),
        )

    def _choose(self, keys: Sequence[bytes], count: int) -> list[bytes]:
        # Keys are new in every run: only by the devices' numbers does the same seed ask the same.
        return self._seeds.choose(sorted(keys, key=self._order.__getitem__), count)


def _keep_split_key(state_dir: Path, key: bytes) -> None:
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(state_dir / SPLIT_KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(key)
