"""Hosts that open, seal and store in earnest, but learn nothing: an update is a number."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import RosterKept
from edgeveil.protocol.cloud_job import (
    Absorb,
    BatchDropped,
    BatchPart,
    Broadcast,
    CellBroadcasts,
    JobStatus,
    RoundCommit,
    SealJob,
    SealRelease,
    SealRound,
    StartJob,
    TooFewUploads,
)
from edgeveil.protocol.device import (
    FindStanza,
    Installation,
    InstallJob,
    InstallRelease,
    StanzaLook,
)
from edgeveil.protocol.device_round import (
    ComputeAnswer,
    NoAnswer,
    OpenedPackage,
    OpenPackage,
    SealedAnswer,
)
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Commit, ExchangeId, Group, Manifest
from edgeveil.protocol.sealed import (
    JobPackage,
    ReleasePackage,
    RoundPackage,
    Terms,
    decode_package,
    encode_package,
    in_pieces,
    is_listed,
    open_broadcast,
    open_segment,
    seal_broadcast,
    seal_segment,
    segment_mark,
)
from edgeveil.protocol.transfer import describe, part_bytes, whole
from edgeveil_edge.store import DeviceStore
from edgeveil_proxy import role as proxy_role
from edgeveil_proxy.spool import Spool

PACKET_BYTES = 1536  # small, so that models, uploads and batches travel in parts
JOB = b"simulated job.16"
DIGEST = b"d" * 32
GROUPS = (Group("layer0", 1088), Group("layer1", 64))
SMALL_BYTES = 3000  # of a job and of a release
FLOOR = 2


@dataclass(frozen=True)
class Sizes:
    """Of packets, of a round's package, and above which a blob is pulled."""

    packet_bytes: int = PACKET_BYTES
    model_bytes: int = 3000
    push_bytes: int = 16 << 20


RAM = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a thousand runs sync there


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

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()


class DeviceHost(Crashing):
    """Opens and seals in earnest; its update is its number."""

    def __init__(self, number: int, declines: bool, crashes: frozenset[int]) -> None:
        super().__init__(crashes)
        self.number, self.declines = number, declines
        # The moment of a device's hello follows from its key: all runs have the same ones.
        self.identity, self.opening = SigningKey(bytes([number + 1]) * 32), OpeningKey.generate()
        self.id = self.identity.public().fingerprint()
        self.disk = DeviceStore(":memory:")
        self.opened: list[ExchangeId] = []
        self.installed: list[int] = []
        self._membership = b""

    def store(self, item: object) -> None:
        self.disk.store(item)
        self.durable()

    def perform(self, task: object) -> object:
        match task:
            case FindStanza(manifest=manifest, stanzas=stanzas):
                return StanzaLook(is_listed(self.opening, manifest, stanzas))
            case OpenPackage(manifest=manifest, blob=blob):
                found = open_broadcast(self.opening, manifest, blob)
                if found is None:
                    return OpenedPackage(None)
                if manifest.kind == "round":
                    self.opened.append(manifest.at)
                self._membership = found[1]
                return OpenedPackage(decode_package(found[0]))
            case InstallJob(manifest=manifest, package=package):
                self.disk.put_job(manifest.at.job_id, package.job, package.graph)
                return Installation()
            case ComputeAnswer(manifest=manifest):
                return NoAnswer("not today") if self.declines else self._answer(manifest)
            case InstallRelease(manifest=manifest):
                self.installed.append(manifest.sequence)
                self.disk.put_fact("release_sequence", str(manifest.sequence))
                return Installation()
        return fx.WorkFailed("unknown task")

    def _answer(self, manifest: Manifest) -> SealedAnswer:
        tensor = self.number.to_bytes(8, "big")
        sealed = [seal_segment(manifest, g, self._membership, tensor) for g in manifest.groups]
        sizes, marks = map(len, sealed), (segment_mark(self._membership, s) for s in sealed)
        groups = tuple(range(len(sealed)))
        return SealedAnswer(groups, tuple(sizes), b"".join(sealed), tuple(marks))


class ProxyHost(Crashing):
    """The proxy's own spool, in a folder that goes with the host."""

    def __init__(self, crashes: frozenset[int]) -> None:
        super().__init__(crashes)
        self._folder = TemporaryDirectory(prefix="edgeveil-spool-", dir=RAM)
        self.disk = Spool(Path(self._folder.name) / "spool.sqlite")
        self._inner = proxy_role.ProxyHost(self.disk, Random(1).shuffle)

    def store(self, item: object) -> None:
        self._inner.store(item)
        self.durable()

    def perform(self, task: object) -> object:
        return self._inner.perform(task)

    def together(self) -> AbstractContextManager[None]:
        return self._inner.together()


class CloudHost(Crashing):
    """Selects, seals, opens; remembers whose segments each committed round held."""

    def __init__(
        self, selected: int, rounds: int, crashes: frozenset[int], sizes: Sizes | None = None
    ) -> None:
        super().__init__(crashes)
        self._sizes = sizes or Sizes()
        self.rounds, self._count = rounds, selected
        self.keys: list[SealingKey] = []
        self.selected: dict[tuple[int, int], set[bytes]] = {}
        self.committed: dict[int, tuple[int, list[list[int]]]] = {}
        self.status = ""
        self.sequence = 0
        self.foreign = 0  # segments that no selected device made
        self._secrets: dict[tuple[int, int], tuple[OpeningKey, bytes]] = {}
        self._batch = (b"", bytearray())  # digest and what came of it

    def store(self, item: object) -> None:
        match item:
            case RosterKept(keys=keys):
                self.keys = [SealingKey(keys[i : i + 32]) for i in range(0, len(keys), 32)]
            case JobStatus(status=status):
                self.status = self.status or status
            case BatchPart(digest=digest, offset=offset, data=data):
                self._batch = self._batch if self._batch[0] == digest else (digest, bytearray())
                held = self._batch[1]
                held.extend(bytes(max(0, offset + len(data) - len(held))))
                held[offset : offset + len(data)] = data
                return  # of this life alone, as in earnest
            case BatchDropped():
                self._batch = (b"", bytearray())
                return
        self.durable()

    def resume(self) -> StartJob:
        """From the last commit on, with an attempt that was not used before."""
        here = len(self.committed) + 1
        attempt = max((a for r, a in self._secrets if r == here), default=0) + 1
        return StartJob(JOB, here, attempt, self.rounds, retries=1000)

    def perform(self, task: object) -> object:
        match task:
            case SealJob():
                return self._to_all("job", JobPackage(b"{}", bytes(SMALL_BYTES)))
            case SealRelease():
                return self._to_all("release", ReleasePackage("sim", bytes(SMALL_BYTES)))
            case SealRound(exchange=number, attempt=attempt):
                return self._seal_round(ExchangeId(JOB, number, attempt))
            case Absorb(batches={"": batch}):
                return self._absorb(
                    batch.at, batch.counts, whole(batch.blob, bytes(self._batch[1]))
                )
        return fx.WorkFailed("unknown task")

    def _to_all(self, kind: str, package: JobPackage | ReleasePackage) -> CellBroadcasts:
        self.sequence += 1
        at = ExchangeId(JOB, 0, self.sequence)
        terms = Terms(kind, at, self.sequence, DIGEST, kind)  # type: ignore[arg-type]
        plain = encode_package(package)
        manifest, data, _ = seal_broadcast(
            terms, plain, self.keys, part_bytes(self._sizes.packet_bytes)
        )
        return CellBroadcasts({"": Broadcast(manifest, data)})

    def _seal_round(self, at: ExchangeId) -> CellBroadcasts:
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
        package = encode_package(
            RoundPackage("train", at.exchange, False, bytes(self._sizes.model_bytes), b"")
        )
        manifest, data, tag = seal_broadcast(
            terms, package, chosen, part_bytes(self._sizes.packet_bytes)
        )
        if len(chosen) < len(self.keys):
            manifest = in_pieces(manifest, data)
        self._secrets[at.exchange, at.attempt] = (opening, tag)
        self.selected[at.exchange, at.attempt] = {key.to_bytes() for key in chosen}
        return CellBroadcasts({"": Broadcast(manifest, data)})

    def _absorb(
        self, at: ExchangeId, counts: tuple[int, ...], data: bytes
    ) -> RoundCommit | TooFewUploads:
        opening, tag = self._secrets[at.exchange, at.attempt]
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
                accepted.append(segment_mark(tag, sealed))
        assert offset == len(data)
        if min(map(len, found)) < FLOOR:
            return TooFewUploads("too few")
        assert at.exchange not in self.committed
        self.committed[at.exchange] = (at.attempt, found)
        self.durable()
        blob = b"".join(sorted(accepted))
        commit = Commit(at, len(accepted), describe(blob, part_bytes(self._sizes.packet_bytes)))
        return RoundCommit(commit, blob)
