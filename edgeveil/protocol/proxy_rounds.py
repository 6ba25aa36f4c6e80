"""The proxy's rounds: uploads of each device come in, one shuffled batch goes out.

Theory of operation. A round's broadcast opens a `Collection`, whose states are `COLLECTION_STATES`
and whose guards are `check_form` and `verdict`. Each admitted device gives one upload, or declines;
both are final. The round is over when all who were selected have answered, at the deadline, or a
grace after the quorum; never with fewer uploads than the floor, the larger of the job's and this
proxy's own. With cover traffic those who are there are waited for (`due`). Where all have to
answer, `Attendance` counts who does not: a round with its quorum does not wait for those who let
several in a row pass (`aside`). Where some were selected the proxy waits for the number alone.

A round below the floor is `short`: its ciphertexts are forgotten and the cloud gets counts. Else
the host shuffles every group by itself. When the batch is durable it is forgotten whose uploads it
came from: who answered stays known, but no place, no digest and no time. Of a round under masks the
senders stay in memory until the masks are summed (`Misfits`). The batch is offered until the cloud
holds it. One under masks stays even where the cloud has no use for it: a paused job may have its
sums already. A newer round of the job, its commit or its end drops a round from any state, and it
stays closed, after a restart too.

**Masked uploads go on to the cloud while their round is open.** Held uploads are dealt in lots: the
host puts a lot's masked segments, in an order of its own, behind those of the lots before, in the
round's stream; the cloud is told its length (`Arrived`) and asks for parts. The batch begins with
the stream and is asked for and checked as every batch: what is lost of a stream costs time alone.
Of an upload the cloud learns in which lot it came, so a lot has at least as many uploads as this
proxy's own floor, the last one too. Nothing of it is durable.

**Masks are summed over one choice of uploads, once for each round** (`ProxyMasks`). Devices seal
the seeds of their masks to the proxy's key of the round. The cloud, which sees only masked numbers,
names the uploads that it counts, and gets the sum of their masks. The difference between the sums
of two choices would show what stands in one and not in the other, so the choice is durable before
the first sum leaves, the same question gets the same answer, and another question or attempt is
refused for ever. Of a job that has ended the proxy never forgets that it was unmasked: begun once
more under its old name, it would bring the same numbers again. A choice below the round's floor is
refused, and a round of several sets unless every set has the proxy's own floor.

Before its choice the cloud asks for the check of each upload's mask, to leave out those that do not
fit their seed. Only the factors are taken to which the round's manifest commits: those of the
devices' own checks, from which the cloud can compute the same number where a device is honest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from collections.abc import Collection as AnyOf
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Protocol

from msgspec import structs

from edgeveil.crypto.keys import CheckKey, MaskSeed, OpeningKey, VerifyKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.sealed import MaskedVector, check_factors, chosen_of, dealt, masked_vectors


@dataclass(frozen=True)
class KeptBroadcast:
    """A broadcast that late devices may still ask for; `key` opens the seeds of a masked round."""

    signed: m.Envelope
    header: m.BroadcastHeader
    data: tr.Data
    key: OpeningKey | None = None


@dataclass(frozen=True)
class HeldUpload:
    """A device's complete upload. Once the batch is made, `digest` is empty and `slot` is -1."""

    groups: tuple[int, ...]
    digest: bytes
    slot: int
    seed: MaskSeed | None = None


@dataclass(frozen=True)
class UploadKept:
    """An upload, durable before it is acknowledged; `number` as the device counts its answers."""

    at: m.RoundId
    device: str
    held: HeldUpload
    number: int = 0
    deposit: bytes = b""


@dataclass(frozen=True)
class UploadsDropped:
    """A round was short: who answered stays known, and it opens no more; no ciphertext stays."""

    at: m.RoundId


@dataclass(frozen=True)
class BatchKept:
    """A shuffled batch, with its masks' `seeds` in its order. `pieces`: its (place, size) in the
    round's file; without any it has a file of its own. The uploads it came from are forgotten."""

    at: m.RoundId
    signed: m.Envelope
    batch: m.Batch
    data: tr.Data
    seeds: tuple[MaskSeed, ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class BatchDelivered:
    at: m.RoundId


@dataclass(frozen=True)
class RoundUnmasked:
    """The one choice for which this round is unmasked, durable before a sum of masks leaves."""

    at: m.RoundId
    question: bytes


@dataclass(frozen=True)
class RoundDropped:
    """Everything of this round but its manifest may go; it opens no more, after a restart too."""

    at: m.RoundId


@dataclass
class ProxyMemory:
    """What survives a restart; the host loads it, the machine changes it with `Persist` effects."""

    kept: dict[bytes, KeptBroadcast] = field(default_factory=dict)  # by blob digest, oldest first
    uploads: list[UploadKept] = field(default_factory=list)
    batches: dict[m.RoundId, BatchKept] = field(default_factory=dict)
    delivered: set[m.RoundId] = field(default_factory=set)
    ended: dict[bytes, m.Note] = field(default_factory=dict)
    statement: m.Note | None = None  # on releases
    answered: dict[str, int] = field(default_factory=dict)  # by device, its newest answer's number
    earlier: dict[str, int] = field(default_factory=dict)  # of earlier versions, by device: `knows`
    unmasked: dict[tuple[bytes, int], RoundUnmasked] = field(default_factory=dict)  # by round
    summed: set[bytes] = field(default_factory=set)  # jobs never to be unmasked (again)
    name: bytes = b""  # another one where all this was lost, or put back from a backup

    def round_key(self, at: m.RoundId) -> OpeningKey | None:
        keys = (kept.key for kept in self.kept.values() if kept.header.at == at)
        return next((key for key in keys if key is not None), None)


@dataclass(frozen=True)
class ProxySettings:
    packet_bytes: int = 65536
    blob_bytes: int = 256 << 20
    push_bytes: int = 16 << 20  # larger blobs are pulled, with bounded credit
    need_repeat_s: float = 10.0  # a part sent to a device is not sent to it again so soon
    want_repeat_s: float = 0.25  # nor is a job, which is much for a small question
    upload_bytes: int = 64 << 20
    spool_bytes: int = 1 << 30
    cache_bytes: int = 1 << 30
    credit_bytes: int = 16 << 20
    credit_patience_s: float = 5.0  # a grant that brings nothing for so long is taken back
    hellos_per_s: float = 500.0
    min_batch_floor: int = 3
    lot_bytes: int = 1 << 20  # of masked uploads that go on together while their round is open
    repair_s: float = 1.0
    resend_s: float = 3.0
    waits_cap_s: float = 300.0  # to which the waits between repeated shortfalls grow
    ended_kept: int = 16
    releases_kept: int = 16  # the newest of so many data sets, as far as the cache has room
    hello_spread_s: float = 0.5  # over which devices come when the proxy (re)starts, at least
    cover_window_s: float = 0.0  # 0: no cover traffic
    roster_again_s: float = 6 * 3600.0  # a roster is signed anew long before it is stale
    stalled_rounds: int = 3  # left unanswered in a row, before a device is waited for no more
    beside_bytes: int = 0  # of blobs from this size on devices are told where they lie; 0: of none
    beside_s: float = 3600.0  # for so long a URL is good
    blob_urls: tuple[str, ...] = ()  # prefixes of URLs of the cloud's store


class DeviceRegistry(Protocol):
    """The identities that this proxy's operator admitted."""

    def verify_key(self, device: str) -> VerifyKey | None: ...

    def roster(self) -> tuple[int, bytes]:
        """Epoch and the sealing keys of all admitted devices, sorted, 32 bytes each."""

    def admitted(self) -> AnyOf[str]: ...

    @property
    def lineage(self) -> str: ...

    def roster_expires_s(self) -> float: ...


@dataclass
class ProxyContext:
    """What the parts of the proxy's machine share."""

    signer: m.Signer
    keys: m.PeerKeys
    registry: DeviceRegistry
    memory: ProxyMemory
    settings: ProxySettings
    online: set[str] = field(default_factory=set)
    all_came: bool = False  # `online` is complete: devices had their time to say hello
    reading_trust: int = 0  # metadata of the root that came and is not read yet

    @property
    def offline(self) -> set[str] | None:
        """Admitted devices that are not connected; None while they may be about to come."""
        return set(self.registry.admitted()) - self.online if self.all_came else None

    @property
    def offline_count(self) -> int:
        return -1 if (offline := self.offline) is None else len(offline)

    def is_far(self, number: int) -> bool:
        """Whether a number (ms since 1970) is a day ahead of this clock."""
        day_on = int(self.registry.roster_expires_s() * 1000)
        return number >= m.FAR_NUMBER or 0 < day_on < number

    def ack(self, to: fx.Address, digest: bytes, status: str, reason: str = "") -> fx.Send:
        return fx.Send(to, self.signer.note(m.Ack(digest, status, reason)))  # type: ignore[arg-type]

    def cover(self, to: fx.Address) -> list[fx.Effect]:
        """Ask for cover traffic, or say nothing: a broker could replay its end."""
        return [fx.Send(to, self._cover)] if self._cover else []

    @cached_property
    def _cover(self) -> m.Note | None:
        window_s = self.settings.cover_window_s
        return self.signer.note(m.Cover(window_s)) if window_s > 0 else None


@dataclass(frozen=True)
class ShuffleRound:
    """Write every group's segments in an order of its own. Result `ShuffledBatch` or `WorkFailed`.
    `uploads` are (slot, groups): a slot of `slot_bytes` holds the segments of these groups one
    after the other. A group with fewer segments than `floor` is left out: its few senders would
    stand alone. The groups `together`, of which an upload has all or none, share one order.
    `streamed`: these stand in the round's stream, or follow there, and that comes first."""

    at: m.RoundId
    segment_bytes: tuple[int, ...]
    slot_bytes: int
    floor: int
    uploads: tuple[tuple[int, tuple[int, ...]], ...]
    keep_order: bool = False
    together: frozenset[int] = frozenset()
    streamed: bool = False


@dataclass(frozen=True)
class ShuffledBatch:
    """`counts[g]` segments of group g; `order` of the groups that stay together, as indices of the
    task's uploads; `pieces` as in `BatchKept`; `stream`, the name of what it begins with."""

    counts: tuple[int, ...]
    digest: bytes
    data: tr.Data
    order: tuple[int, ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()
    stream: bytes = b""


@dataclass(frozen=True)
class StreamUploads:
    """Add (index, slot, groups) to the stream. Result `StreamedUploads` or `WorkFailed`."""

    at: m.RoundId
    segment_bytes: tuple[int, ...]
    slot_bytes: int
    uploads: tuple[tuple[int, int, tuple[int, ...]], ...]
    together: frozenset[int]
    keep_order: bool = False


@dataclass(frozen=True)
class StreamedUploads:
    """The stream so far. Its `name` is random, and another one after a restart."""

    name: bytes
    data: tr.Data


@dataclass(frozen=True)
class SumMasks:
    """Add up the masks of each set of seeds; with a disclosed `key`, compute the check of each
    seed's masks instead. Result `SummedMasks` or `WorkFailed`."""

    at: m.RoundId
    question: bytes
    vectors: tuple[MaskedVector, ...]
    sets: tuple[tuple[MaskSeed, ...], ...]
    key: CheckKey | None = None


@dataclass(frozen=True)
class SummedMasks:
    """The sums, or the checks, as `MaskSums` has them."""

    data: bytes


class CollectionState(Enum):
    COLLECTING = "collecting"
    GRACE = "grace"
    SHUFFLING = "shuffling"
    HANDING_OVER = "handing_over"
    SHORT = "short"
    DELIVERED = "delivered"


_S = CollectionState
COLLECTION_STATES = fx.StateTable(
    _S.COLLECTING,
    {(state, "dropped"): _S.DELIVERED for state in CollectionState}
    | {
        (_S.COLLECTING, "quorum"): _S.GRACE,
        (_S.COLLECTING, "all_answered"): _S.SHUFFLING,
        (_S.GRACE, "all_answered"): _S.SHUFFLING,
        (_S.GRACE, "grace_over"): _S.SHUFFLING,
        (_S.COLLECTING, "deadline_with_enough"): _S.SHUFFLING,
        (_S.GRACE, "deadline_with_enough"): _S.SHUFFLING,
        (_S.COLLECTING, "below_floor"): _S.SHORT,
        (_S.SHUFFLING, "shuffled"): _S.HANDING_OVER,
        (_S.HANDING_OVER, "held_by_cloud"): _S.DELIVERED,
    },
)


@dataclass
class _Stream:
    # held uploads that are in no lot yet, as `StreamUploads` has them
    waiting: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    begun: bool = False
    closed: bool = False
    at_work: bool = False
    there: StreamedUploads | None = None


@dataclass
class Collection:
    """Uploads of one round. `floor`: the larger of the job's and this proxy's minimum. `senders` of
    masked uploads, in their batch's order, stay in memory alone until the masks are summed. `due`:
    devices that have to answer and have not; with cover traffic those who are there, once all have
    had their time to say hello (`all_came`). `aside`: those of them who cost no grace."""

    manifest: m.Manifest
    floor: int
    cover: bool = False
    state: CollectionState = COLLECTION_STATES.start
    uploads: dict[str, HeldUpload] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)  # device -> cause
    slots: dict[str, int] = field(default_factory=dict)
    all_came: bool = False
    due: set[str] = field(default_factory=set)
    aside: set[str] = field(default_factory=set)
    told: int = 0  # how often a shortfall was
    streamed: bool = False  # its masked uploads began to go on before it closed
    senders: tuple[str, ...] = field(default=(), repr=False)
    stream: _Stream | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        sealed = (group.padded_bytes + m.SEAL_OVERHEAD_BYTES for group in self.manifest.groups)
        self.segment_bytes = tuple(sealed)
        self.slot_bytes = sum(self.segment_bytes)
        self.masked = frozenset(one.group for one in self.manifest.masked)
        self._next_slot = 0

    @property
    def open(self) -> bool:
        return self.state in (CollectionState.COLLECTING, CollectionState.GRACE)

    @property
    def spooled_bytes(self) -> int:
        return len(self.slots) * self.slot_bytes

    def slot(self, device: str) -> int:
        """The device's place in the round's file: one, however often it begins anew."""
        if device not in self.slots:
            self.slots[device] = self._next_slot
            self._next_slot += 1
        return self.slots[device]

    def restore(self, device: str, held: HeldUpload) -> None:
        self.uploads[device] = held
        self.slots[device] = held.slot
        self._next_slot = max(self._next_slot, held.slot + 1)

    def check_form(self, upload: m.Upload) -> None:
        """Raise `wrong_groups` or `wrong_size` unless it is exactly what the manifest allows."""
        groups, known = upload.groups, self.manifest.groups
        if list(groups) != sorted(set(groups)) or groups[-1] >= len(known):
            raise ProtocolError("wrong_groups")
        if upload.blob.size_bytes != sum(self.segment_bytes[g] for g in groups):
            raise ProtocolError("wrong_size")
        masked = self.masked.intersection(groups)
        if masked and masked != self.masked:
            raise ProtocolError("wrong_groups")
        if bool(masked) != bool(upload.seed):
            raise ProtocolError("wrong_seed")

    def step(self, happened: str) -> None:
        self.state = COLLECTION_STATES.step(self.state, happened)

    @property
    def counts(self) -> tuple[int, int, tuple[int, ...]]:
        """Uploads, declines, and declines by `DECLINE_CAUSES`, () without any."""
        given = list(self.declined.values())
        causes = tuple(map(given.count, m.DECLINE_CAUSES)) if given else ()
        return len(self.uploads), len(given), causes

    def came(self, device: str) -> None:
        known = device in self.uploads or device in self.declined
        if self.all_came and self.open and not known:
            self.due.add(device)

    def answered(self, device: str) -> None:
        self.due.discard(device)
        self.aside.discard(device)

    def verdict(self, *, deadline: bool = False, grace_over: bool = False) -> str | None:
        """What the counts mean now: the transition to take, or None to keep waiting."""
        enough = len(self.uploads) >= self.floor
        answered = self._all_answered()
        quorum = len(self.uploads) >= max(self._quorum(), self.floor)
        all_but_aside = quorum and self._all_answered(self.aside & self.due)
        if self.open and ((enough and answered) or all_but_aside):
            return "all_answered"
        if self.open and enough and deadline:
            return "deadline_with_enough"
        if self.state is CollectionState.GRACE and grace_over:
            return "grace_over"
        # With cover traffic those who are not there yet may still come.
        hopeless = answered and not self.cover
        if self.state is CollectionState.COLLECTING and (deadline or hopeless):
            return "below_floor"
        return "quorum" if quorum and self.state is CollectionState.COLLECTING else None

    def _all_answered(self, but: AbstractSet[str] = frozenset()) -> bool:
        """All who were selected have, `but` these."""
        if self.cover and not (self.all_came and self.due <= but):
            return False
        return len(self.uploads) + len(self.declined) + len(but) >= self.manifest.selected

    def _quorum(self) -> float:
        """With cover traffic, the job's share of the selected is one of all who are there, but
        never less than the job's number: who is not there yet may be among the selected."""
        if not self.cover:
            return self.manifest.quorum
        if not self.all_came:
            return float("inf")
        there = len(self.uploads) + len(self.declined) + len(self.due)
        share = there * self.manifest.quorum / max(1, self.manifest.selected)
        return max(self.manifest.quorum, share)

    def forget_ciphertext(self) -> None:
        """Keep who answered, so that a repeated upload is still known. Its place goes, and its
        digest: of a single group it would name the segment in the batch."""
        self.uploads = {d: HeldUpload(h.groups, b"", -1) for d, h in self.uploads.items()}
        self.slots.clear()
        self.stream = None


class Attendance:
    """Rounds in a row that devices left unanswered. From `stalled_rounds` on a device is waited for
    only in every 2nd, 4th, 8th … time as many: one that is slower, or has come again, is not shut
    out."""

    def __init__(self, stalled_rounds: int) -> None:
        self._stalled_rounds = stalled_rounds
        self._missed: dict[str, int] = {}
        self._came: set[str] = set()  # of those not waited for, and gave nothing since

    def waits_for(self, device: str) -> bool:
        times, rest = divmod(self._missed.get(device, 0), self._stalled_rounds)
        return times == 0 or (times > 1 and not rest and not times & (times - 1))

    def missed(self, devices: Iterable[str]) -> None:
        for device in devices:
            self._missed[device] = self._missed.get(device, 0) + 1

    def answered(self, device: str) -> None:
        self._missed.pop(device, None)
        self._came.discard(device)

    def came(self, device: str) -> None:
        """It said hello: the next round waits for it, once until it answers."""
        if self._missed.get(device, 0) >= self._stalled_rounds and device not in self._came:
            self._came.add(device)
            self._missed[device] = self._stalled_rounds - 1

    def set_aside(self, device: str) -> None:
        """It is not waited for from now on, nor for its hello."""
        self._missed[device] = self._stalled_rounds
        self._came.add(device)

    def keep(self, admitted: Iterable[str]) -> None:
        known = set(admitted)
        self._missed = {device: n for device, n in self._missed.items() if device in known}
        self._came &= known


ANSWER_OUTCOMES = ("uploaded", *m.DECLINE_CAUSES, "declined", "absent", "late", "refused")
"""Of an answer, as `edgeveil_answers_total` counts it. `declined` named no cause; `late` came after
the round was over (its device counts as absent too); `refused` had another form."""


def answer_report(outcome: str, count: int = 1) -> fx.Report:
    return fx.Report("answer", {"outcome": outcome, "count": count})


_TIMERS = ("deadline", "grace", "shuffle", "handover", "short")


def _timer(what: str, at: m.RoundId) -> str:
    return f"{what}:{at.job_id.hex()}:{at.round}:{at.attempt}"


def _set(what: str, at: m.RoundId, delay_s: float) -> fx.SetTimer:
    return fx.SetTimer(_timer(what, at), delay_s)


class ProxyRounds:
    """The newest rounds of each job. `uploads_ended` is called as one closes."""

    def __init__(self, context: ProxyContext) -> None:
        self._context, memory = context, context.memory
        self.collections: dict[m.RoundId, Collection] = {}
        self.attendance = Attendance(context.settings.stalled_rounds)
        self.uploads_ended: Callable[[m.RoundId], None] = lambda _at: None
        self._laying: dict[m.RoundId, tr.LayingDown] = {}  # of batches
        for kept in memory.kept.values():
            if isinstance(kept.header, m.Manifest) and kept.header.kind == "round":
                collection, at = self._collection(kept.header), kept.header.at
                if at in memory.delivered:
                    collection.state = CollectionState.DELIVERED
                elif at in memory.batches:
                    collection.state = CollectionState.HANDING_OVER
                self.collections[at] = collection
        for upload in memory.uploads:
            collection = self.collections[upload.at]
            collection.restore(upload.device, upload.held)
            if upload.held.slot < 0 and collection.open:  # no batch was made of it
                collection.state = CollectionState.SHORT
        memory.uploads.clear()
        for collection in self.collections.values():
            if not collection.open:
                collection.forget_ciphertext()

    def _collection(self, manifest: m.Manifest) -> Collection:
        settings = self._context.settings
        floor = max(manifest.min_batch, settings.min_batch_floor, 1)
        return Collection(manifest, floor, settings.cover_window_s > 0)

    @property
    def spooled_bytes(self) -> int:
        uploads = sum(collection.spooled_bytes for collection in self.collections.values())
        return uploads + sum(len(kept.data) for kept in self._context.memory.batches.values())

    @property
    def open(self) -> list[m.RoundId]:
        return [at for at, collection in self.collections.items() if collection.open]

    def resume(self) -> list[fx.Effect]:
        out: list[fx.Effect] = []
        for at, collection in self.collections.items():
            if collection.open:
                out.append(_set("deadline", at, collection.manifest.deadline_s))
                out += self.stream(collection, enumerate(collection.uploads.values()))
                out += self.advance(collection)
        return out + self.report_short()

    def begin(self, manifest: m.Manifest) -> list[fx.Effect]:
        collection = self.collections[manifest.at] = self._collection(manifest)
        admitted = self._context.registry.admitted()
        if collection.cover and self._context.all_came:
            self._wait_for_all(collection)
        elif not collection.cover and manifest.selected >= len(admitted):
            collection.due.update(admitted)
            self._set_aside_stalled(collection)
        what = {"round": manifest.at.round, "phase": manifest.phase}
        report = fx.Report("round_open", what, manifest.at)
        asked = self._context.cover(fx.AllDevices())
        return [_set("deadline", manifest.at, manifest.deadline_s), report, *asked]

    def all_came(self) -> list[fx.Effect]:
        """It is known who is there: with cover traffic, whom to wait for."""
        out: list[fx.Effect] = []
        for collection in self.collections.values():
            if collection.cover and collection.open and not collection.all_came:
                self._wait_for_all(collection)
                out += self.advance(collection)
        return out

    def _wait_for_all(self, collection: Collection) -> None:
        collection.all_came = True
        collection.aside.clear()  # of before it was known whom to wait for
        for device in self._context.online:
            collection.came(device)
        self._set_aside_stalled(collection)

    def _set_aside_stalled(self, collection: Collection) -> None:
        collection.aside |= {d for d in collection.due if not self.attendance.waits_for(d)}

    def set_aside(self, device: str) -> list[fx.Effect]:
        """The device's messages are dropped for a while: no round with its quorum waits for it."""
        self.attendance.set_aside(device)
        out: list[fx.Effect] = []
        for collection in self.collections.values():
            if collection.open:
                collection.aside.add(device)
                out += self.advance(collection)
        return out

    def fits(self, manifest: m.Manifest) -> bool:
        """Whether the spool can take an upload of each who is there, where all will send one."""
        collection, settings = self._collection(manifest), self._context.settings
        promised_bytes = len(self._context.online) * collection.slot_bytes
        return not collection.cover or promised_bytes <= settings.spool_bytes

    def newest(self, job_id: bytes) -> tuple[int, int]:
        """(round, attempt) of a job's newest round; (-1, -1) if it has none."""
        found = [(at.round, at.attempt) for at in self.collections if at.job_id == job_id]
        return max(found, default=(-1, -1))

    def drop_job(self, job_id: bytes) -> list[fx.Effect]:
        out: list[fx.Effect] = []
        for at in [at for at in self.collections if at.job_id == job_id]:
            out += self.drop(at)
            del self.collections[at]
            self._context.memory.delivered.discard(at)
        return out

    def drop(self, at: m.RoundId) -> list[fx.Effect]:
        """End a round: its uploads and its batch are of no use any more."""
        self._context.memory.batches.pop(at, None)
        self._laying.pop(at, None)
        collection = self.collections.get(at)
        if collection:
            self.uploads_ended(at)
            self._context.memory.delivered.add(at)  # so that it stays closed after a restart
            collection.forget_ciphertext()
            collection.senders = ()
            collection.step("dropped")
        timers = [fx.CancelTimer(_timer(what, at)) for what in _TIMERS]
        return [fx.Persist(RoundDropped(at)), *timers]

    def stream(
        self, collection: Collection, uploads: Iterable[tuple[int, HeldUpload]]
    ) -> list[fx.Effect]:
        masked = [(i, held.slot, held.groups) for i, held in uploads if held.seed is not None]
        if not masked:
            return []
        stream = collection.stream = collection.stream or _Stream()
        stream.waiting += masked
        return self._deal(collection, stream)

    def _deal(self, collection: Collection, stream: _Stream) -> list[fx.Effect]:
        settings, manifest = self._context.settings, collection.manifest
        least = settings.min_batch_floor
        count = len(stream.waiting) - least
        masked_bytes = sum(collection.segment_bytes[group] for group in collection.masked)
        enough = count >= least and count * masked_bytes >= settings.lot_bytes
        if stream.at_work or not enough:
            return []
        stream.begun = stream.at_work = True
        lot, stream.waiting = stream.waiting[:count], stream.waiting[count:]
        task = StreamUploads(
            manifest.at,
            collection.segment_bytes,
            collection.slot_bytes,
            tuple(lot),
            collection.masked,
            keep_order=not manifest.shuffled,
        )
        return [fx.Work(task, task.at)]

    def streamed(self, task: StreamUploads, result: object) -> list[fx.Effect]:
        """A lot is in the round's stream, or could not be put there."""
        collection = self.collections.get(task.at)
        stream = collection.stream if collection else None
        if stream is None or stream.closed or collection is None:  # it comes with the batch
            return []
        stream.at_work = False
        if not isinstance(result, StreamedUploads):  # they come with a later lot, or the batch
            stream.waiting[:0] = task.uploads
            return [fx.Report("stream_failed", {"round": task.at.round}, task.at)]
        stream.there = result
        out: list[fx.Effect] = []
        if (blob := self._whole_parts(result)).size_bytes:
            note = self._context.signer.note(m.Arrived(task.at, blob))
            out.append(fx.Send(fx.CloudAddress(), note))
        return out + self._deal(collection, stream)

    def _whole_parts(self, there: StreamedUploads) -> m.Blob:
        each = tr.part_bytes(self._context.settings.packet_bytes)
        return m.Blob(there.name, len(there.data) // each * each, each)

    def advance(self, collection: Collection, **why: bool) -> list[fx.Effect]:
        """What follows from the answers so far, or from a timer."""
        verdict = collection.verdict(**why)
        if verdict is None:
            return []
        collection.step(verdict)
        at = collection.manifest.at
        if collection.state is CollectionState.GRACE:
            # With cover traffic the moment is chance: nobody is late before the window is over.
            grace_s = collection.manifest.grace_s + self._context.settings.cover_window_s
            return [_set("grace", at, grace_s)]
        self.uploads_ended(at)
        silent = collection.manifest.selected - len(collection.uploads) - len(collection.declined)
        absent = [answer_report("absent", silent)] if silent > 0 else []
        if collection.state is not CollectionState.SHORT:
            # A round that was short tells of the fleet, not of single devices.
            self.attendance.missed(collection.due)
            return [*absent, self._shuffle(collection)]
        collection.forget_ciphertext()  # the cloud can only begin anew
        return [*absent, fx.Persist(UploadsDropped(at)), *self._short(at)]

    def _shuffle(self, collection: Collection) -> fx.Effect:
        uploads = tuple((held.slot, held.groups) for held in collection.uploads.values())
        if stream := collection.stream:  # its parts may be asked for until the batch is there
            stream.closed = True
            collection.streamed |= stream.begun
        task = ShuffleRound(
            collection.manifest.at,
            collection.segment_bytes,
            collection.slot_bytes,
            collection.floor,
            uploads,
            keep_order=not collection.manifest.shuffled,
            together=collection.masked,
            streamed=collection.streamed,
        )
        return fx.Work(task, task.at)

    def shuffled(self, task: ShuffleRound, result: object) -> list[fx.Effect]:
        """The batch is on the disk: sign it, forget whose uploads it came from, hand it over."""
        at, context = task.at, self._context
        memory, settings = context.memory, context.settings
        collection = self.collections.get(at)
        if collection is None or collection.state is not CollectionState.SHUFFLING:
            # Its round went meanwhile, and this file was perhaps not there yet to be dropped.
            return [] if at in memory.batches else [fx.Persist(RoundDropped(at))]
        if not isinstance(result, ShuffledBatch):  # perhaps the disk is full: try until it is not
            failed = fx.Report("shuffle_failed", {"round": at.round}, at)
            return [failed, _set("shuffle", at, settings.resend_s)]
        blob = m.Blob(result.digest, len(result.data), tr.part_bytes(settings.packet_bytes))
        uploads, declined, causes = collection.counts
        batch = m.Batch(
            at, uploads, declined, result.counts, blob, result.stream, causes, context.offline_count
        )
        held = list(collection.uploads.items())
        masked = [held[place] for place in result.order if held[place][1].seed is not None]
        seeds = tuple(one.seed for _, one in masked if one.seed is not None)
        signed = context.signer.header(batch)
        kept = BatchKept(at, signed, batch, result.data, seeds, result.pieces)
        collection.step("shuffled")
        collection.forget_ciphertext()
        collection.senders = tuple(device for device, _ in masked)
        memory.batches[at] = kept
        return [fx.Persist(kept), *self._hand_over(at)]

    def report_all(self) -> list[fx.Effect]:
        """Offer every batch that the cloud does not hold yet, and report every shortfall."""
        batches = [effect for at in self._context.memory.batches for effect in self._hand_over(at)]
        return batches + self.report_short()

    def report_short(self) -> list[fx.Effect]:
        known = self.collections.items()
        short = [at for at, collection in known if collection.state is CollectionState.SHORT]
        return [effect for at in short for effect in self._short(at)]

    def _hand_over(self, at: m.RoundId, *, push: bool = True) -> list[fx.Effect]:
        kept = self._context.memory.batches.get(at)
        if kept is None:
            return []
        limit, blob = self._context.settings, kept.batch.blob
        packets = tr.sends(
            fx.CloudAddress(),
            self._context.signer.header(kept.batch),  # with the key of the day
            blob,
            kept.data,
            limit.packet_bytes,
            # What has a stream is there already, for the most part: the cloud asks for the rest.
            push=push and blob.size_bytes <= limit.push_bytes and not kept.batch.stream,
            beside=self._laid(at).takes(blob) and not kept.batch.stream,
        )
        return [*packets, _set("handover", at, limit.resend_s)]

    def _laid(self, at: m.RoundId) -> tr.LayingDown:
        urls = self._context.settings.blob_urls
        new = tr.LayingDown(self._context.signer, fx.CloudAddress(), urls)
        return self._laying.setdefault(at, new)

    def lay_down(self, told: m.BlobAt) -> list[fx.Effect]:
        """The cloud says where to put a batch. Raises ProtocolError `foreign_url`."""
        kept = self._batch(told.blob)
        return self._laid(kept.at).lay_down(told, kept.batch.blob, kept.data) if kept else []

    def _batch(self, digest: bytes) -> BatchKept | None:
        batches = self._context.memory.batches.values()
        return next((kept for kept in batches if kept.batch.blob.digest == digest), None)

    def laid_down(self, task: tr.PutBeside, result: object) -> list[fx.Effect]:
        if (kept := self._batch(task.blob.digest)) is None:
            return []
        lies, out = self._laid(kept.at).laid_down(task, result)
        return out if lies else [*out, *self._hand_over(kept.at, push=False)]

    def _short(self, at: m.RoundId) -> list[fx.Effect]:
        collection, settings = self.collections[at], self._context.settings
        wait_s = min(settings.resend_s * 2.0 ** min(collection.told, 16), settings.waits_cap_s)
        collection.told += 1
        note = m.Shortfall(at, *collection.counts, self._context.offline_count)
        told = fx.Send(fx.CloudAddress(), self._context.signer.note(note))
        return [told, _set("short", at, wait_s)]

    def need(self, need: m.Need) -> list[fx.Effect]:
        for kept in self._context.memory.batches.values():
            if need.blob in (kept.batch.blob.digest, kept.batch.stream):
                blob = structs.replace(kept.batch.blob, digest=need.blob)
                return tr.answer_need(fx.CloudAddress(), need, blob, kept.data)
        for collection in self.collections.values():
            there = collection.stream.there if collection.stream else None
            if there is not None and there.name == need.blob:
                return tr.answer_need(fx.CloudAddress(), need, self._whole_parts(there), there.data)
        raise ProtocolError("unknown_blob")

    def delivered(self, ack: m.Ack) -> list[fx.Effect]:
        """The cloud holds it, or (`closed`) has no use for it: then seeds stay."""
        if (kept := self._batch(ack.blob)) is None:
            return []
        at, memory, stop = (
            kept.at,
            self._context.memory,
            fx.CancelTimer(_timer("handover", kept.at)),
        )
        if ack.status == "closed" and kept.seeds:
            return [stop]
        del memory.batches[at]
        self._laying.pop(at, None)
        memory.delivered.add(at)
        if at in self.collections:
            self.collections[at].step("held_by_cloud")
            self.collections[at].senders = ()
        return [fx.Persist(BatchDelivered(at)), stop]

    def timer(self, name: str) -> list[fx.Effect]:
        """One of a round's timers ran out; its state decides whether that still means anything."""
        what, job, round, attempt = name.split(":")
        at = m.RoundId(bytes.fromhex(job), int(round), int(attempt))
        collection = self.collections.get(at)
        if collection is None:
            return []
        match what, collection.state:
            case "shuffle", CollectionState.SHUFFLING:
                return [self._shuffle(collection)]
            case "handover", CollectionState.HANDING_OVER:
                return self._hand_over(at, push=False)
            case "short", CollectionState.SHORT:
                return self._short(at)
            case "deadline", CollectionState.COLLECTING | CollectionState.GRACE:
                return self.advance(collection, deadline=True)
            case "grace", CollectionState.GRACE:
                return self.advance(collection, grace_over=True)
        return []


MISFIT = "misfit"  # an upload that does not fit its mask, or its round, by the cloud's word


class ProxyMasks:
    """Answers the cloud's questions about the masks of batches that are handed over."""

    def __init__(self, context: ProxyContext, rounds: ProxyRounds) -> None:
        self._context, self._rounds = context, rounds
        self._at_work = b""  # the question whose masks are being added up, or checked
        self._ready: tuple[m.MaskSums, bytes] | None = None  # the newest answer

    def asked(self, asked: m.Unmask | m.CheckMasks, signed: m.Envelope) -> list[fx.Effect]:
        question = hashlib.sha256(signed.payload).digest()
        try:
            task = self._task(asked, question)
        except ProtocolError as error:
            told = self._context.ack(fx.CloudAddress(), question, "refused", error.reason)
            return [fx.Refuse(error.reason), told]
        key, memory = (asked.at.job_id, asked.at.round), self._context.memory
        out: list[fx.Effect] = []
        if isinstance(asked, m.Unmask) and key not in memory.unmasked:
            memory.unmasked[key] = RoundUnmasked(asked.at, question)
            out.append(fx.Persist(memory.unmasked[key]))
        if self._ready is not None and self._ready[0].question == question:
            return [*out, *self._offer(*self._ready)]
        if self._at_work == question:
            return out
        self._at_work = question
        return [*out, fx.Work(task)]

    def _task(self, asked: m.Unmask | m.CheckMasks, question: bytes) -> SumMasks:
        """What is to be computed. Raises ProtocolError: why the question is not answered."""
        memory, at = self._context.memory, asked.at
        collection, batch = self._rounds.collections.get(at), memory.batches.get(at)
        known = memory.unmasked.get((at.job_id, at.round))
        same = isinstance(asked, m.CheckMasks) or (known is not None and known.question == question)
        if known is not None and (known.at != at or not same):
            raise ProtocolError("unmasked_already")
        handing_over = collection and collection.state is CollectionState.HANDING_OVER
        if collection is None or batch is None or not handing_over:
            raise ProtocolError("unknown_round")
        if batch.batch.blob.digest != asked.batch or not batch.seeds:
            raise ProtocolError("unknown_batch")
        manifest = collection.manifest
        vectors = masked_vectors(manifest.at, manifest.groups, manifest.masked)
        if isinstance(asked, m.CheckMasks):
            check_factors(manifest, key := CheckKey(asked.key))
            return SumMasks(at, question, vectors, (batch.seeds,), key)
        chosen = chosen_of(asked.chosen, len(batch.seeds))
        sets = dealt(chosen, manifest.sets)
        if min(map(len, sets)) < collection.floor // len(sets) or len(chosen) < collection.floor:
            raise ProtocolError("choice_below_floor")
        seeds = tuple(tuple(batch.seeds[index] for index in members) for members in sets)
        return SumMasks(at, question, vectors, seeds)

    def misfits(self, said: m.Misfits) -> list[fx.Effect]:
        """Name the senders of misfits, once. Raises ProtocolError `malformed_choice`."""
        collection = self._rounds.collections.get(said.at)
        batch = self._context.memory.batches.get(said.at)
        if collection is None or batch is None or batch.batch.blob.digest != said.batch:
            return []
        senders, collection.senders = collection.senders, ()
        places = chosen_of(said.places, len(senders)) if senders else []  # an earlier process knew
        return [fx.Refuse(MISFIT, fx.DeviceAddress(senders[place])) for place in places]

    def summed(self, task: SumMasks, result: object) -> list[fx.Effect]:
        self._at_work = b""
        if not isinstance(result, SummedMasks):  # the cloud will ask again
            return [fx.Report("masks_not_summed", {"round": task.at.round})]
        blob = tr.describe(result.data, tr.part_bytes(self._context.settings.packet_bytes))
        self._ready = (m.MaskSums(task.at, task.question, blob), result.data)
        what = {"round": task.at.round, "uploads": sum(map(len, task.sets))}
        report = fx.Report("masks_checked" if task.key else "unmasked", what)
        return [report, *self._offer(*self._ready)]

    def _offer(self, sums: m.MaskSums, data: bytes) -> list[fx.Effect]:
        settings = self._context.settings
        signed = self._context.signer.header(sums)
        push = len(data) <= settings.push_bytes
        return tr.sends(
            fx.CloudAddress(), signed, sums.blob, data, settings.packet_bytes, push=push
        )

    def need(self, need: m.Need) -> list[fx.Effect] | None:
        """The cloud asks for parts of the sums; None if it is for something else."""
        if self._ready is None or self._ready[0].blob.digest != need.blob:
            return None
        return tr.answer_need(fx.CloudAddress(), need, self._ready[0].blob, self._ready[1])

    def why_not(self, header: m.Manifest) -> str:
        """The reason to refuse a round's broadcast, or ""."""
        memory, at = self._context.memory, header.at
        known = memory.unmasked.get((at.job_id, at.round))
        over = bool(header.masked) and at.job_id in memory.summed
        if over or (known is not None and known.at != at):
            return "unmasked_already"
        try:
            masked_vectors(header.at, header.groups, header.masked)
        except ProtocolError as error:
            return error.reason
        floor = self._context.settings.min_batch_floor
        small = header.sets > 1 and header.min_batch < header.sets * floor
        return "sets_below_floor" if small else ""

    def acknowledged(self, ack: m.Ack) -> bool:
        """Whether the cloud says that it has the sums: they are of no use any more."""
        ready = self._ready
        if ready is None or ready[0].blob.digest != ack.blob:
            return False
        at, self._ready = ready[0].at, None
        collection = self._rounds.collections.get(at)
        if collection is not None and (at.job_id, at.round) in self._context.memory.unmasked:
            collection.senders = ()  # the sums are there: nothing more is said of single uploads
        return True
