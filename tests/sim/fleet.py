"""A whole fleet over the memory transport: real machines, real hosts, real encryption."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from cloud_server.host import CloudHost, wire_id
from cloud_server.store import Store
from edge_client.host import DeviceHost
from edge_client.identity import Identity
from edge_client.store import DeviceStore
from fl_core.config import DeviceData, EdgeSite, Job, Partition, Policy, Shard
from fl_core.config.site_blocks import BrokerLink
from fl_core.crypto.keys import SigningKey
from fl_core.data.device import device_records
from fl_core.data.digits import load_digits_split
from fl_core.plan import JobPlan
from fl_core.privacy.ledger import Ledger
from fl_core.privacy.sampler import SeededRandom
from fl_core.protocol import effects as fx
from fl_core.protocol.cloud import CloudMachine
from fl_core.protocol.cloud_tasks import CloudSettings, Start
from fl_core.protocol.device import DeviceMachine, Settings
from fl_core.protocol.envelope import Signer
from fl_core.protocol.proxy import ProxyMachine
from fl_core.protocol.proxy_tasks import ProxySettings
from fl_core.protocol.transfer import part_bytes
from fl_core.transport.memory import Faults, MemoryNet, Node, no_faults
from proxy.host import ProxyHost
from proxy.registry import Registry
from proxy.spool import Spool

PACKET_BYTES = 16384


@dataclass
class Boxes:
    """One device of the fleet, with what its owner can look at."""

    id: str
    site: EdgeSite
    host: DeviceHost
    ledger: Ledger
    node: Node


class Fleet:
    """`devices` boxes on digits, one proxy, one cloud, in virtual time."""

    def __init__(
        self,
        folder: Path,
        devices: int,
        *,
        faults: Faults = no_faults,
        policy: Policy | None = None,
        infer_only: int = 0,
        floor: int = 3,
        seed: int = 1,
    ) -> None:
        self.net = MemoryNet(faults, packet_bytes=PACKET_BYTES)
        cloud_key, proxy_key = SigningKey.generate(), SigningKey.generate()
        self.proxy_signer = Signer("proxy", proxy_key)
        self.cloud_signer = Signer("cloud", cloud_key)
        self.registry = Registry(folder / "registry.sqlite")
        self.boxes: list[Boxes] = []
        for index in range(devices):
            role = "infer" if index < infer_only else "train"
            site = self._site(folder / f"box-{index}", index, devices, policy or Policy(), role)
            self.boxes.append(self._box(site, cloud_key, proxy_key, seed + index))
        self.spool = Spool(folder / "spool.sqlite")
        self.proxy = ProxyMachine(
            self.proxy_signer,
            cloud_key.public(),
            self.registry,
            Random(seed).shuffle,
            self.spool.load(),
            ProxySettings(packet_bytes=PACKET_BYTES, min_batch_floor=floor),
        )
        self.proxy_node = self.net.add(fx.Proxy(), self.proxy, ProxyHost(self.spool))
        self.store = Store(f"sqlite:///{folder / 'cloud.sqlite'}")
        test = load_digits_split()[1]
        self.cloud_host = CloudHost(
            self.store, test, part_bytes(PACKET_BYTES), clock=lambda: self.net.now_s
        )
        settings = CloudSettings(packet_bytes=PACKET_BYTES)
        self.cloud = CloudMachine(self.cloud_signer, proxy_key.public(), settings)
        self.cloud_node = self.net.add(fx.Cloud(), self.cloud, self.cloud_host)
        for node in self.net.nodes.values():
            self.net.connect(node)

    @staticmethod
    def _site(folder: Path, index: int, devices: int, policy: Policy, role: str) -> EdgeSite:
        shard = Shard(
            devices=devices,
            index=index,
            partition=Partition(kind="n_class", classes_per_device=2),
            seed=7,
        )
        return EdgeSite(
            name=f"secret-name-{index}",
            role=role,
            broker=BrokerLink(url="mqtt://127.0.0.1:1"),
            state_dir=folder,
            cloud_key_file=folder / "cloud.pub",
            proxy_key_file=folder / "proxy.pub",
            data=DeviceData(name="digits", source="digits", shard=shard),
            policy=policy,
        )

    def _box(
        self, site: EdgeSite, cloud_key: SigningKey, proxy_key: SigningKey, seed: int
    ) -> Boxes:
        identity = Identity.load_or_create(site.state_dir)
        self.registry.admit(identity.enrolment())
        store = DeviceStore(site.state_dir / "device.sqlite")
        ledger = Ledger(site.state_dir / "ledger.sqlite", "digits")
        host = DeviceHost(site, identity, store, ledger, noise=SeededRandom(seed), load=_load)
        machine = DeviceMachine(
            Signer(identity.device_id, identity.signing),
            cloud_key.public(),
            proxy_key.public(),
            store.load(),
            Settings(packet_bytes=PACKET_BYTES),
        )
        node = self.net.add(fx.Device(identity.device_id), machine, host)
        return Boxes(identity.device_id, site, host, ledger, node)

    def enrolled(self) -> bool:
        """The cloud knows every admitted key."""
        return len(self.store.enrolled()) == len(self.boxes)

    def submit(self, job: Job) -> str:
        """Queue and start a job once the roster is there."""
        if not self.net.run(self.enrolled):
            raise AssertionError("the roster never reached the cloud")
        entry = self.store.submit_job(job.job, job.canonical(), job.digest())
        self.store.set_status(entry.id, "running")
        rounds = len(JobPlan(job).exchanges)
        start = Start(wire_id(entry.id), 1, 1, rounds, job.round.retries)
        self.net.post(self.cloud_node, fx.Command(start))
        return entry.id

    def finish(self, job_id: str, limit_s: float = 3600.0) -> str:
        """Run until the job has ended; its status."""
        self.net.run(lambda: self.store.job(job_id).ended, self.net.now_s + limit_s)
        return self.store.job(job_id).status


def _load(site: EdgeSite, split_key: bytes, share: float):  # type: ignore[no-untyped-def]
    return device_records(site.data, split_key, evaluation_share=share)


def small_job(**changes: object) -> Job:
    """A short job over digits."""
    plain = {
        "job": "small",
        "data": {
            "source": "digits",
            "classes": 10,
            "input_shape": (64,),
            "nominal_records": 150,
            "evaluation_share": 0.1,
        },
        "features": ({"name": "identity", "input_scale": 16.0, "shift": -0.3},),
        "train": {"method": "fm", "rounds": 3},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "round": {"deadline_s": 20.0, "min_batch": 3, "grace_s": 1.0},
        "encrypt": {"privacy_eval_type": "LAPLACE", "laplace_eval": {"laplace_eval_eps": 20.0}},
        "unsupervised": {"every_rounds": 2, "eval_type": "SILHOUETTE_SCORE"},
    }
    return Job.model_validate({**plain, **changes})
