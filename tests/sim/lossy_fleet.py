"""Real machines, stores and sealing with hosts that only count, over a link that loses frames.

What a device uploads is its own number, so that the cloud's host can tell, after decryption,
whose segments a batch holds: that is what the laws of `test_lossy_fleet.py` are about.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from edge_client.store import DeviceStore
from fl_core.crypto.keys import OpeningKey, SealingKey, SigningKey, VerifyKey
from fl_core.protocol import effects as fx
from fl_core.protocol.blob import describe
from fl_core.protocol.cloud import CloudMachine
from fl_core.protocol.cloud_tasks import (
    Absorb,
    Absorbed,
    Broadcast,
    CloudSettings,
    Ended,
    JobStatus,
    RosterKept,
    SealJob,
    SealRelease,
    SealRound,
    Start,
    TooFew,
)
from fl_core.protocol.codec import decode, decode_body
from fl_core.protocol.device import DeviceMachine, Settings
from fl_core.protocol.envelope import Signer
from fl_core.protocol.messages import (
    SEAL_OVERHEAD_BYTES,
    Ack,
    Commit,
    Exchanged,
    Group,
    Manifest,
    Note,
    Upload,
)
from fl_core.protocol.package import (
    JobPackage,
    ReleasePackage,
    RoundPackage,
    decode_package,
    encode_package,
)
from fl_core.protocol.proxy import ProxyMachine
from fl_core.protocol.proxy_tasks import ProxySettings
from fl_core.protocol.sealed import (
    Terms,
    open_broadcast,
    open_segment,
    seal_broadcast,
    seal_segment,
)
from fl_core.protocol.tasks import Declined, Install, Learn, Learned, Open, Opened, Sealed, Work
from fl_core.protocol.transfer import part_bytes
from fl_core.transport.memory import LATENCY_S, MemoryNet, Node, no_faults
from proxy.spool import Spool

PACKET_BYTES = 1536  # small, so that models, uploads and batches travel in parts
JOB = b"simulated job.16"
DIGEST = b"d" * 32
GROUPS = (Group("layer0", 640), Group("layer1", 64))
MODEL_BYTES = 3000
FLOOR = 2


class Crash(BaseException):
    """The process ends here; what it stored stays. (No Exception: the runtime catches those.)"""

    def __init__(self, host: Crashing) -> None:
        self.host = host


class Crashing:
    """Counts what is made durable, and ends the process right after the stores it is told to."""

    def __init__(self, crashes: frozenset[int]) -> None:
        self._crashes, self._stores = crashes, 0

    def durable(self) -> None:
        self._stores += 1
        if self._stores in self._crashes:
            raise Crash(self)

    def report(self, report: fx.Report) -> None:
        pass


class DeviceHost(Crashing):
    """Opens and seals in earnest; its update is its number."""

    def __init__(self, number: int, declines: bool, crashes: frozenset[int]) -> None:
        super().__init__(crashes)
        self.number, self.declines = number, declines
        self.identity, self.opening = SigningKey.generate(), OpeningKey.generate()
        self.id = self.identity.public().fingerprint()
        self.disk = DeviceStore(":memory:")
        self.opened: list[Exchanged] = []
        self.installed: list[int] = []
        self._membership = b""

    def store(self, item: object) -> None:
        self.disk.store(item)
        self.durable()

    def perform(self, task: object) -> object:
        match task:
            case Open(manifest=manifest, blob=blob):
                found = open_broadcast(self.opening, manifest, blob)
                if found is None:
                    return Opened(None)
                if manifest.kind == "round":
                    self.opened.append(manifest.at)
                self._membership = found[1]
                return Opened(decode_package(found[0]))
            case Learn(manifest=manifest, package=package):
                self.disk.put_job(manifest.at.job_id, package.job, package.graph)
                return Learned()
            case Work(manifest=manifest):
                return Declined("not today") if self.declines else self._answer(manifest)
            case Install(manifest=manifest):
                self.installed.append(manifest.sequence)
                self.disk.put_fact("release_sequence", str(manifest.sequence))
                return Learned()
        return fx.Failed("unknown task")

    def _answer(self, manifest: Manifest) -> Sealed:
        tensor = self.number.to_bytes(8, "big")
        sealed = [seal_segment(manifest, g, self._membership, tensor) for g in manifest.groups]
        return Sealed(tuple(range(len(sealed))), tuple(map(len, sealed)), b"".join(sealed))


class ProxyHost(Crashing):
    """The proxy's own spool."""

    def __init__(self, crashes: frozenset[int]) -> None:
        super().__init__(crashes)
        self.disk = Spool(Path(":memory:"))

    def store(self, item: object) -> None:
        self.disk.store(item)
        self.durable()

    def perform(self, task: object) -> object:
        return fx.Failed("no_work_here")


class CloudHost(Crashing):
    """Selects, seals, opens; remembers whose segments each committed round held."""

    def __init__(self, selected: int, rounds: int, crashes: frozenset[int]) -> None:
        super().__init__(crashes)
        self.rounds, self._count = rounds, selected
        self.keys: list[SealingKey] = []
        self.selected: dict[tuple[int, int], set[bytes]] = {}
        self.committed: dict[int, tuple[int, list[list[int]]]] = {}
        self.status = ""
        self.sequence = 0
        self.foreign = 0  # segments that no selected device made
        self._secrets: dict[tuple[int, int], tuple[OpeningKey, bytes]] = {}

    def store(self, item: object) -> None:
        match item:
            case RosterKept(keys=keys):
                self.keys = [SealingKey(keys[i : i + 32]) for i in range(0, len(keys), 32)]
            case JobStatus(status=status):
                self.status = self.status or status
        self.durable()

    def resume(self) -> Start:
        """From the last commit on, with an attempt that was not used before."""
        here = len(self.committed) + 1
        attempt = max((a for r, a in self._secrets if r == here), default=0) + 1
        return Start(JOB, here, attempt, self.rounds, retries=1000)

    def perform(self, task: object) -> object:
        match task:
            case SealJob():
                return self._to_all("job", JobPackage(b"{}", bytes(MODEL_BYTES)))
            case SealRelease():
                return self._to_all("release", ReleasePackage("sim", bytes(MODEL_BYTES)))
            case SealRound(round=number, attempt=attempt):
                return self._seal_round(Exchanged(JOB, number, attempt))
            case Absorb(batch=batch, data=data):
                return self._absorb(batch.at, batch.counts, data)
        return fx.Failed("unknown task")

    def _to_all(self, kind: str, package: JobPackage | ReleasePackage) -> Broadcast:
        self.sequence += 1
        at = Exchanged(JOB, 0, self.sequence)
        terms = Terms(kind, at, self.sequence, DIGEST, kind)  # type: ignore[arg-type]
        plain = encode_package(package)
        manifest, data, _ = seal_broadcast(terms, plain, self.keys, part_bytes(PACKET_BYTES))
        return Broadcast(manifest, data)

    def _seal_round(self, at: Exchanged) -> Broadcast:
        self.sequence += 1
        shift = self.sequence % len(self.keys)
        chosen = (self.keys[shift:] + self.keys[:shift])[: self._count]
        opening = OpeningKey.generate()
        terms = Terms(
            kind="round",
            at=at,
            sequence=self.sequence,
            job_digest=DIGEST,
            phase="train",
            min_batch=FLOOR,
            quorum=self._count - 1,
            deadline_s=20.0,
            grace_s=2.0,
            groups=GROUPS,
            cloud_key=opening.public().to_bytes(),
        )
        package = encode_package(RoundPackage("train", at.round, False, bytes(MODEL_BYTES), b""))
        manifest, data, tag = seal_broadcast(terms, package, chosen, part_bytes(PACKET_BYTES))
        self._secrets[at.round, at.attempt] = (opening, tag)
        self.selected[at.round, at.attempt] = {key.to_bytes() for key in chosen}
        return Broadcast(manifest, data)

    def _absorb(self, at: Exchanged, counts: tuple[int, ...], data: bytes) -> Absorbed | TooFew:
        opening, tag = self._secrets[at.round, at.attempt]
        found: list[list[int]] = []
        accepted, offset = [], 0
        for group, count in zip(GROUPS, counts, strict=True):
            size = group.padded_bytes + SEAL_OVERHEAD_BYTES
            found.append([])
            for _ in range(count):
                sealed = data[offset : offset + size]
                offset += size
                plain = open_segment(opening, at, DIGEST, group, tag, sealed)
                if plain is None:
                    self.foreign += 1
                    continue
                found[-1].append(int.from_bytes(plain[:8], "big"))
                accepted.append(hashlib.sha256(sealed).digest())
        assert offset == len(data)
        if min(map(len, found)) < FLOOR:
            return TooFew("too few")
        assert at.round not in self.committed
        self.committed[at.round] = (at.attempt, found)
        self.durable()
        blob = b"".join(sorted(accepted))
        commit = Commit(at, len(accepted), describe(blob, part_bytes(PACKET_BYTES)))
        return Absorbed(commit, blob)


class FakeRegistry:
    """What the operator admitted."""

    def __init__(self, devices: list[DeviceHost]) -> None:
        self._keys = {d.id: d.identity.public() for d in devices}
        sealing = sorted(d.opening.public().to_bytes() for d in devices)
        self._roster = b"".join(sealing)

    def verify_key(self, device: str) -> VerifyKey | None:
        return self._keys.get(device)

    def roster(self) -> tuple[int, bytes]:
        return 1, self._roster


def fates(tape: bytes) -> Iterator[list[float]]:
    """What becomes of one frame after the other; when the tape is over, nothing is lost."""
    for byte in tape:
        if byte < 128:
            yield [LATENCY_S]
        elif byte < 176:
            yield []
        elif byte < 208:
            yield [LATENCY_S, (byte - 170) / 4]
        else:
            yield [(byte - 200) / 8]
    while True:
        yield [LATENCY_S]


class LossyFleet:
    """`devices` boxes, of which `selected` are asked each round, one proxy, one cloud."""

    def __init__(
        self,
        tape: bytes = b"",
        *,
        devices: int = 5,
        selected: int = 4,
        rounds: int = 2,
        declines: frozenset[int] = frozenset(),
        crashes: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        run = fates(tape)
        self.net = MemoryNet(lambda *_: next(run), packet_bytes=PACKET_BYTES)
        self.net.wire = []
        self._cloud_key, self._proxy_key = SigningKey.generate(), SigningKey.generate()

        def of(who: int) -> frozenset[int]:
            return frozenset(store for place, store in crashes if place == who)

        self.devices = [DeviceHost(n, n in declines, of(n)) for n in range(devices)]
        self.proxy, self.cloud = ProxyHost(of(devices)), CloudHost(selected, rounds, of(-1))
        self._registry = FakeRegistry(self.devices)
        self._start()

    def _start(self) -> None:
        for host in self.devices:
            self.net.add(fx.Device(host.id), self._machine(host), host)
        self.net.add(fx.Proxy(), self._machine(self.proxy), self.proxy)
        self.net.add(fx.Cloud(), self._machine(self.cloud), self.cloud)
        for node in self.net.nodes.values():
            self.net.connect(node)

    def _machine(self, host: Crashing) -> fx.Machine:
        """A machine as its process would make it, from what is on disk."""
        cloud, proxy = self._cloud_key.public(), self._proxy_key.public()
        match host:
            case DeviceHost():
                signer, settings = Signer(host.id, host.identity), Settings(PACKET_BYTES)
                return DeviceMachine(signer, cloud, proxy, host.disk.load(), settings)
            case ProxyHost():
                bounds = ProxySettings(PACKET_BYTES, min_batch_floor=FLOOR)
                signer, memory = Signer("proxy", self._proxy_key), host.disk.load()
                shuffle = Random(1).shuffle
                return ProxyMachine(signer, cloud, self._registry, shuffle, memory, bounds)
        return CloudMachine(Signer("cloud", self._cloud_key), proxy, CloudSettings(PACKET_BYTES))

    def run(self, limit_s: float = 20_000.0) -> str:
        """Run the job to its end; processes that crash are started again. The job's status."""
        self.until(lambda: True, limit_s)
        return self.finish(limit_s)

    def until(self, reached: Callable[[], bool], limit_s: float = 20_000.0) -> None:
        """Start the job once the roster is there, and run on until something holds."""
        self._until(lambda: len(self.cloud.keys) == len(self.devices), limit_s)
        self._go_on()
        self._until(reached, limit_s)

    def finish(self, limit_s: float = 20_000.0) -> str:
        """Run a started job to its end; its status."""
        self._until(lambda: bool(self.cloud.status), limit_s)
        return self.cloud.status

    def force_upload(self, device: DeviceHost, membership: bytes) -> None:
        """An upload of a device that was not asked, in due form but for the membership tag."""
        proxy = self.net.nodes[fx.Proxy()]
        machine = proxy.machine
        assert isinstance(machine, ProxyMachine)
        (collection,) = machine.rounds.by_key.values()
        tensor = device.number.to_bytes(8, "big")
        data = b"".join(seal_segment(collection.manifest, g, membership, tensor) for g in GROUPS)
        blob = describe(data, part_bytes(PACKET_BYTES))
        header = Upload(collection.manifest.at, tuple(range(len(GROUPS))), blob)
        offer = Signer(device.id, device.identity).offer(header, data)
        self.net.post(proxy, fx.Received(fx.Device(device.id), offer))

    def settle(self) -> None:
        """The losses stop, all connect again, and everything that is on its way arrives."""
        self.net.faults = no_faults
        for node in self.net.nodes.values():
            self.net.connect(node)
        self._until(lambda: False, self.net.now_s + 300.0)

    def _go_on(self) -> None:
        what = Ended(JOB, self.cloud.status) if self.cloud.status else self.cloud.resume()
        self.net.post(self.net.nodes[fx.Cloud()], fx.Command(what))

    def _until(self, reached: Callable[[], bool], limit_s: float) -> None:
        while True:
            try:
                self.net.run(reached, limit_s)
            except Crash as crash:
                self._restart(crash.host)
            else:
                return

    def _restart(self, host: Crashing) -> None:
        (node,) = [n for n in self.net.nodes.values() if n.host is host]
        node.machine = self._machine(host)
        node.timers.clear()
        self.net._queue = [e for e in self.net._queue if not self._lost_with(node, e[2], e[3])]
        heapq.heapify(self.net._queue)
        self.net.connect(node)
        self.net.post(node, fx.Command("started"))
        known = len(self.cloud.keys) == len(self.devices)
        if host is self.cloud and known:
            self._go_on()

    @staticmethod
    def _lost_with(node: Node, place: Node, event: fx.Event) -> bool:
        """Work in progress and commands die with their process; frames wait at the broker."""
        return place is node and isinstance(event, fx.Done | fx.Command)

    # --- what an observer of the wire saw ---

    def acknowledged(self) -> set[tuple[str, bytes]]:
        """(device, digest) of everything of a device's that the proxy said it holds."""
        found = set()
        for sender, to, frame in self.net.wire or []:
            if isinstance(sender, fx.Proxy) and isinstance(to, fx.Device):
                message = decode(frame, PACKET_BYTES)
                body = decode_body(message.body) if isinstance(message, Note) else None
                if isinstance(body, Ack) and body.status == "held":
                    found.add((to.id, body.blob))
        return found
