"""A whole fleet in this process, in virtual time.

Cloud, proxy and devices are made by their roles' own `build`, with real stores and ledgers; frames
go through `MemoryNet`. Randomness is seeded; `PlainSealing` may replace the encryption.

    fleet = MemoryFleet(folder, device_sites(6), test_data=DIGITS)
    job = fleet.submit(load_job(path))
    assert fleet.finish(job) == "completed"
"""

import time

from edgeveil.config.cloud import CloudSite
from edgeveil.config.proxy import ProxySite
from edgeveil.data.split import SPLIT_KEY_FILE
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.protocol import sealed as real_sealing
from edgeveil.storage import write_durably
from edgeveil.testing import NOWHERE, SimulationSeeds
from edgeveil.transport.memory import MemoryNet, no_faults
from edgeveil.transport.process import make_signing_key
from edgeveil_cloud.role import CloudChance
from edgeveil_cloud.role import build as build_cloud
from edgeveil_edge.host import DeviceChance
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.role import build as build_device
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_proxy.role import build as build_proxy

PACKET_BYTES = 1 << 26
_NO_LIMIT = 1 << 40


class MemoryFleet:
    """`devices`, one proxy and one cloud in virtual time; `seed` decides all randomness.

    Files are in `folder`/state: `cloud`, `proxy`, `edge-N`. `cloud` and `proxy` are further keys of
    their site files, `faults` the fate of each frame; `clock` times the cloud's reports, `say`
    receives the owners' messages."""

    def __init__(
        self,
        folder,
        devices,
        *,
        test_data=None,
        seed=7,
        sealing=real_sealing,
        faults=no_faults,
        packet_bytes=PACKET_BYTES,
        clock=time.monotonic,
        on_message=lambda _line: None,
        cloud=None,
        proxy=None,
        transport=MemoryNet,
    ):
        self.folder, self._sealing, self._say, self._clock = folder, sealing, on_message, clock
        self._seeds = SimulationSeeds(seed)
        self.net = transport(faults, packet_bytes=packet_bytes)
        states = {name: folder / "state" / name for name in ("cloud", "proxy")}
        for name, state_dir in states.items():
            make_signing_key(state_dir, name)  # the others read its public half
        keys = {f"{name}_key_file": states[name] / f"{name}.pub" for name in states}
        room = {"packet_bytes": packet_bytes, "blob_bytes": _NO_LIMIT}

        def site(kind, further, own, **limits):
            bounds = {**room, **limits, **(further or {}).get("limits", {})}
            return kind.model_validate({**own, **(further or {}), "limits": bounds})

        own = {"broker": NOWHERE, "state_dir": states["cloud"], "test_data": test_data}
        own["proxy_key_file"] = keys["proxy_key_file"]
        self._cloud_site = site(CloudSite, cloud, own, spool_bytes=_NO_LIMIT)
        own = {"edge_broker": NOWHERE, "cloud_broker": NOWHERE, "state_dir": states["proxy"]}
        own["cloud_key_file"] = keys["cloud_key_file"]
        more = dict.fromkeys(("spool_bytes", "upload_bytes", "cache_bytes"), _NO_LIMIT)
        self._proxy_site = site(ProxySite, proxy, own, **more)
        room = {**room, "fetch_bytes": _NO_LIMIT}
        self._device_sites = [
            one.model_copy(
                update={
                    **keys,
                    "state_dir": folder / "state" / f"edge-{number}",
                    "limits": one.limits.model_copy(update=room),
                }
            )
            for number, one in enumerate(devices, start=1)
        ]
        self._order = {}  # public sealing key -> number of the device
        self.devices = [self.start_device(n) for n in range(1, len(devices) + 1)]
        self._admit()
        self.start_proxy()
        self.start_cloud()
        for node in self.net.nodes.values():
            self.net.connect(node)

    # --- jobs ---

    @property
    def store(self):
        return self.cloud.store

    def enrolled(self):
        return len(self.store.enrolled()) == len(self.devices)

    def submit(self, job):
        self.net.run(self.enrolled)
        for graph in read_artifacts(job).values():
            self.store.put_backbone(graph)
        entry = self.store.submit_job(job.job, job.canonical(), job.digest(), priority=job.priority)
        self.cloud.control.start(entry)
        return entry.id

    def resume(self, job_id):
        self.cloud.control.start(self.store.resume(job_id))

    def finish(self, job_id, limit_s=3600.0):
        """Run until the job ends or pauses, or for `limit_s` virtual seconds; return its status."""
        self.net.run(lambda: self.settled(job_id), self.net.now_s + limit_s)
        return self.store.job(job_id).status

    def settled(self, job_id):
        """Return whether the job makes no more progress by itself."""
        entry = self.store.job(job_id)
        return entry.ended or entry.status == "paused"

    def close(self):
        for party in (*self.devices, self.proxy, self.cloud):
            party.close()

    # --- the parties; each may be started anew, as after the end of its process ---

    def start_device(self, number):
        """Start device `number` (from 1) with the content of its folder."""
        # Answers are sent in the order of the devices' numbers, so that runs repeat exactly.
        site, everybody = self._device_sites[number - 1], len(self._device_sites)
        site.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = self._seeds.split_key(number)
        write_durably(site.state_dir / SPLIT_KEY_FILE, key, mode=0o600)
        DeviceIdentity.load_or_create(site.state_dir)
        draw = self._seeds.noise(number)  # one stream for all rounds
        device = build_device(
            site,
            random=DeviceChance(lambda _question: draw, lambda: number / (1 + everybody)),
            link=self._join,
            sealing=self._sealing,
            on_message=lambda line: self._say(f"{site.name}: {line}"),
        )
        self._order[device.identity.opening.public().to_bytes()] = number
        return device

    def start_proxy(self):
        shuffle = self._seeds.shuffle
        self.proxy = build_proxy(
            self._proxy_site, clock=self._clock, random=shuffle, link=self._join
        )

    def start_cloud(self):
        self.cloud = build_cloud(
            self._cloud_site,
            clock=self._clock,
            random=CloudChance(self._choose, self._seeds.draws()),
            link=self._join,
            sealing=self._sealing,
        )

    def _admit(self):
        registry = Registry(self._proxy_site.state_dir / REGISTRY_FILE)
        registry.admit_many(device.identity.enrolment() for device in self.devices)
        registry.close()

    def _join(self, role):
        return self.net.add(role.address, role.machine, role.host)

    def _choose(self, keys, count):
        # Keys are new in every run, so the seed selects devices by their numbers.
        return self._seeds.choose(sorted(keys, key=self._order.__getitem__), count)
