"""Real machines, stores and sealing with hosts that only count, over a link that loses frames
and between processes that end at each of their effects.

What a device uploads is its own number, so that the cloud's host can tell, after decryption,
whose segments a batch holds: that is what the laws of `test_lossy_fleet.py` are about.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey
from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import device as dv
from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import sealed as sl
from edgeveil.protocol.cloud import CloudMachine, RepeatEnd, RosterKept
from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.proxy_rounds import ProxySettings
from edgeveil.protocol.transfer import describe, part_bytes, whole
from edgeveil.transport.memory import LATENCY_S, no_faults
from edgeveil_edge.store import DeviceStore
from edgeveil_proxy import role as proxy_role
from edgeveil_proxy.spool import Spool
from tests.sim.crash_net import CrashNet, Died

PACKET_BYTES = 1536  # small, so that models, uploads and batches travel in parts
JOB = b"simulated job.16"
DIGEST = b"d" * 32
GROUPS = (m.Group("layer0", 1088), m.Group("layer1", 64))
SMALL_BYTES = 3000  # of a job, of a round's model and of a release
FLOOR = 2


RAM = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a thousand runs sync there


class QuietHost:
    def report(self, report):
        pass

    def together(self):
        return nullcontext()


class DeviceHost(QuietHost):
    """Opens and seals in earnest; its update is its number."""

    def __init__(self, number, declines):
        self.number, self.declines = number, declines
        # The moment of a device's hello follows from its key: all runs have the same ones.
        self.identity, self.opening = SigningKey(bytes([number + 1]) * 32), OpeningKey.generate()
        self.id = self.identity.public().fingerprint()
        self.disk = DeviceStore(":memory:")
        self.opened = []
        self.installed = []
        self._membership = b""

    def store(self, item):
        self.disk.store(item)

    def perform(self, task):
        match task:
            case dv.FindStanza(manifest=manifest, stanzas=stanzas):
                return dv.StanzaLook(sl.is_listed(self.opening, manifest, stanzas))
            case dr.OpenPackage(manifest=manifest, blob=blob):
                found = sl.open_broadcast(self.opening, manifest, blob)
                if found is None:
                    return dr.OpenedPackage(None)
                if manifest.kind == "round":
                    self.opened.append(manifest.at)
                self._membership = found[1]
                return dr.OpenedPackage(sl.decode_package(found[0]))
            case dv.InstallJob(manifest=manifest, package=package):
                self.disk.put_job(manifest.at.job_id, package.job, package.graph)
                return dv.Installation()
            case dr.ComputeAnswer(manifest=manifest):
                return dr.NoAnswer("not today") if self.declines else self._answer(manifest)
            case dv.InstallRelease(manifest=manifest):
                self.installed.append(manifest.sequence)
                self.disk.put_fact("release_sequence", str(manifest.sequence))
                return dv.Installation()
        return fx.WorkFailed("unknown task")

    def _answer(self, manifest):
        tensor = self.number.to_bytes(8, "big")
        sealed = [sl.seal_segment(manifest, g, self._membership, tensor) for g in manifest.groups]
        sizes, marks = map(len, sealed), (sl.segment_mark(self._membership, s) for s in sealed)
        groups = tuple(range(len(sealed)))
        return dr.SealedAnswer(groups, tuple(sizes), b"".join(sealed), tuple(marks))


class ProxyHost(QuietHost):
    def __init__(self):
        self._folder = TemporaryDirectory(prefix="edgeveil-spool-", dir=RAM)
        self.disk = Spool(Path(self._folder.name) / "spool.sqlite")
        inner = proxy_role.ProxyHost(self.disk, Random(1).shuffle)
        self.store, self.perform, self.together = inner.store, inner.perform, inner.together


class CloudHost(QuietHost):
    def __init__(self, selected, rounds):
        self.rounds, self._count = rounds, selected
        self.keys = []
        self.selected = {}
        self.committed = {}
        self.status = ""
        self.sequence = 0
        self.foreign = 0  # segments that no selected device made
        self._secrets = {}
        self._batch = (b"", bytearray())  # digest and what came of it

    def store(self, item):
        match item:
            case RosterKept(keys=keys):
                self.keys = [SealingKey(keys[i : i + 32]) for i in range(0, len(keys), 32)]
            case cj.JobStatus(status=status):
                self.status = self.status or status
            case cj.BatchPart(digest=digest, offset=offset, data=data):
                self._batch = self._batch if self._batch[0] == digest else (digest, bytearray())
                held = self._batch[1]
                held.extend(bytes(max(0, offset + len(data) - len(held))))
                held[offset : offset + len(data)] = data
            case cj.BatchDropped():
                self._batch = (b"", bytearray())

    def resume(self):
        """From the last commit on, with an attempt that was not used before."""
        here = len(self.committed) + 1
        attempt = max((a for r, a in self._secrets if r == here), default=0) + 1
        return cj.StartJob(JOB, here, attempt, self.rounds, retries=1000)

    def perform(self, task):
        match task:
            case cj.SealJob():
                return self._to_all("job", sl.JobPackage(b"{}", bytes(SMALL_BYTES)))
            case cj.SealRelease():
                return self._to_all("release", sl.ReleasePackage("sim", bytes(SMALL_BYTES)))
            case cj.SealRound(round=number, attempt=attempt):
                return self._seal_round(m.RoundId(JOB, number, attempt))
            case cj.Absorb(batches={"": batch}):
                return self._absorb(
                    batch.at, batch.counts, whole(batch.blob, bytes(self._batch[1]))
                )
        return fx.WorkFailed("unknown task")

    def _to_all(self, kind, package):
        self.sequence += 1
        at = m.RoundId(JOB, 0, self.sequence)
        terms = sl.Terms(kind, at, self.sequence, DIGEST, kind)
        plain = sl.encode_package(package)
        manifest, data, _ = sl.seal_broadcast(terms, plain, self.keys, part_bytes(PACKET_BYTES))
        return cj.CellBroadcasts({"": cj.Broadcast(manifest, data)})

    def _seal_round(self, at):
        self.sequence += 1
        shift = self.sequence % len(self.keys)
        chosen = (self.keys[shift:] + self.keys[:shift])[: self._count]
        opening = OpeningKey.generate()
        terms = sl.Terms(
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
        package = sl.encode_package(
            sl.RoundPackage("train", at.round, False, bytes(SMALL_BYTES), b"")
        )
        manifest, data, tag = sl.seal_broadcast(terms, package, chosen, part_bytes(PACKET_BYTES))
        if len(chosen) < len(self.keys):
            manifest = sl.in_pieces(manifest, data)
        self._secrets[at.round, at.attempt] = (opening, tag)
        self.selected[at.round, at.attempt] = {key.to_bytes() for key in chosen}
        return cj.CellBroadcasts({"": cj.Broadcast(manifest, data)})

    def _absorb(self, at, counts, data):
        opening, tag = self._secrets[at.round, at.attempt]
        found = []
        accepted, offset = [], 0
        for group, count in zip(GROUPS, counts, strict=True):
            size = group.padded_bytes + m.SEAL_OVERHEAD_BYTES
            found.append([])
            for _ in range(count):
                sealed = data[offset : offset + size]
                offset += size
                plain = sl.open_segment(opening, at, DIGEST, group, tag, sealed)
                if plain is None:
                    self.foreign += 1
                    continue
                found[-1].append(int.from_bytes(plain[:8], "big"))
                accepted.append(sl.segment_mark(tag, sealed))
        assert offset == len(data)
        if min(map(len, found)) < FLOOR:
            return cj.TooFewUploads("too few")
        assert at.round not in self.committed
        self.committed[at.round] = (at.attempt, found)
        blob = b"".join(sorted(accepted))
        commit = m.Commit(at, len(accepted), describe(blob, part_bytes(PACKET_BYTES)))
        return cj.RoundCommit(commit, blob)


class FakeRegistry:
    lineage = "5e" * 16

    def __init__(self, devices):
        self._keys = {d.id: d.identity.public() for d in devices}
        self._roster = b"".join(sorted(d.opening.public().to_bytes() for d in devices))

    def verify_key(self, device):
        return self._keys.get(device)

    def roster_expires_s(self):
        return 0.0

    def roster(self):
        return 1, self._roster

    def admitted(self):
        return list(self._keys)


def fates(tape):
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
    def __init__(
        self,
        tape=b"",
        *,
        devices=5,
        selected=4,
        rounds=2,
        declines=frozenset(),
        deaths=(),
        push_bytes=16 << 20,
    ):
        run = fates(tape)
        self._push_bytes = push_bytes
        self.net = CrashNet(lambda *_: next(run), packet_bytes=PACKET_BYTES)
        self.net.wire, self.net.clean_sessions, self.died = [], False, 0
        self._cloud_key, self._proxy_key = SigningKey.generate(), SigningKey.generate()

        self.devices = [DeviceHost(n, n in declines) for n in range(devices)]
        self.proxy, self.cloud = ProxyHost(), CloudHost(selected, rounds)
        places = [fx.DeviceAddress(host.id) for host in self.devices]
        self.places = [*places, fx.ProxyAddress(), fx.CloudAddress()]
        self.net.deaths = frozenset((self.places[who], number) for who, number in deaths)
        self._registry = FakeRegistry(self.devices)
        self._start()

    def _start(self):
        for host in self.devices:
            self.net.add(fx.DeviceAddress(host.id), self._machine(host), host)
        self.net.add(fx.ProxyAddress(), self._machine(self.proxy), self.proxy)
        self.net.add(fx.CloudAddress(), self._machine(self.cloud), self.cloud)
        for node in self.net.nodes.values():
            self.net.connect(node)

    def _machine(self, host):
        cloud, proxy = self._cloud_key.public(), self._proxy_key.public()
        match host:
            case DeviceHost():
                signer, settings = m.Signer(host.id, host.identity), dr.DeviceSettings(PACKET_BYTES)
                return dv.DeviceMachine(
                    signer, m.PeerKeys.pinned(cloud=cloud, proxy=proxy), host.disk.load(), settings
                )
            case ProxyHost():
                bounds = ProxySettings(
                    PACKET_BYTES, push_bytes=self._push_bytes, min_batch_floor=FLOOR
                )
                signer, memory = m.Signer("proxy", self._proxy_key), host.disk.load()
                return ProxyMachine(
                    signer, m.PeerKeys.pinned(cloud=cloud), self._registry, memory, bounds
                )
        limits = cj.CloudSettings(PACKET_BYTES, push_bytes=self._push_bytes)
        return CloudMachine(
            m.Signer("cloud", self._cloud_key), {"": m.PeerKeys.pinned(proxy=proxy)}, limits
        )

    def run(self, limit_s=20_000.0):
        self.until(lambda: True, limit_s)
        return self.finish(limit_s)

    def until(self, reached, limit_s=20_000.0):
        self._until(lambda: len(self.cloud.keys) == len(self.devices), limit_s)
        self._go_on()
        self._until(reached, limit_s)

    def finish(self, limit_s=20_000.0):
        self._until(lambda: bool(self.cloud.status), limit_s)
        return self.cloud.status

    def force_upload(self, device, membership):
        proxy = self.net.nodes[fx.ProxyAddress()]
        machine = proxy.machine
        assert isinstance(machine, ProxyMachine)
        (collection,) = machine.rounds.collections.values()
        tensor = device.number.to_bytes(8, "big")
        data = b"".join(sl.seal_segment(collection.manifest, g, membership, tensor) for g in GROUPS)
        blob = describe(data, part_bytes(PACKET_BYTES))
        header = m.Upload(collection.manifest.at, tuple(range(len(GROUPS))), blob)
        offer = m.Signer(device.id, device.identity).offer(header, data)
        self.net.post(proxy, fx.MessageReceived(fx.DeviceAddress(device.id), offer))

    def settle(self):
        self.net.faults = no_faults
        for node in self.net.nodes.values():
            self.net.connect(node)
        self._until(lambda: False, self.net.now_s + 300.0)

    def _go_on(self):
        what = RepeatEnd(JOB, self.cloud.status) if self.cloud.status else self.cloud.resume()
        self.net.post(self.net.nodes[fx.CloudAddress()], fx.Command(what))

    def _until(self, reached, limit_s):
        while True:
            try:
                self.net.run(reached, limit_s)
            except Died as death:
                self._restart(death.node)
            else:
                return

    def _restart(self, node):
        self.died += 1
        self.net.forget(node)
        node.machine = self._machine(node.host)
        self.net.connect(node)
        self.net.post(node, fx.Command("started"))
        if node.host is self.cloud and len(self.cloud.keys) == len(self.devices):
            self._go_on()

    # --- what an observer of the wire saw ---

    def acknowledged(self):
        """(device, digest) of everything of a device's that the proxy said it holds."""
        found = set()
        for sender, to, frame in self.net.wire or []:
            if isinstance(sender, fx.ProxyAddress) and isinstance(to, fx.DeviceAddress):
                message = m.decode(frame, PACKET_BYTES)
                body = m.decode_body(message.body) if isinstance(message, m.Note) else None
                if isinstance(body, m.Ack) and body.status == "held":
                    found.add((to.id, body.blob))
        return found
