"""The proxy's rounds: uploads of each device come in, one shuffled batch goes out.

Theory of operation. A round's broadcast, once the proxy holds it, opens a `Collection`, whose
states are `COLLECTION_STATES` and whose guards are `check_form` (what an upload must be) and
`verdict` (what the counts mean). Each admitted device gives one upload, or declines; both are
final. An upload is pulled part by part to its slot of the round's file, and is durable before it is
acknowledged and counted. The round is over when all who were selected have answered, at the
deadline, or a grace after the quorum; never with fewer uploads than the floor, the larger of the
job's and this proxy's own. With cover traffic everybody answers, so those are waited for who are
there (`pending`).

Where all have to answer, because all who are admitted were selected or by cover traffic, the proxy
knows who does not, and `Attendance` counts it. Such a round, once it has its quorum, does not wait
for those who let several in a row pass (`aside`). Where some were selected the proxy cannot know
whom, and waits for the number alone.

A round below the floor is `short`: its ciphertexts are forgotten and the cloud is told counts,
again and again, since it can only begin anew. Else the host shuffles every group by itself. When
the batch is durable it is forgotten whose uploads it came from: who answered stays known, so that a
repeat is recognised, but no place, no digest and no time. Of a round under masks the senders by
their places stay in memory until the masks are summed (`Misfits`). The batch is offered until the
cloud holds it, which it does when the round is committed. One under masks stays even where the
cloud says that it has no use for it: a job that is paused may have its sums already. A newer round
of the job, its commit or its end drops a round from any state, and a dropped round stays closed,
after a restart too.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from msgspec import structs

from edgeveil.crypto.keys import MaskSeed
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.effects import StateTable
from edgeveil.protocol.messages import (
    DECLINE_CAUSES,
    SEAL_OVERHEAD_BYTES,
    Ack,
    Batch,
    Blob,
    BlobAt,
    BlobPart,
    BlobPut,
    Decline,
    ExchangeId,
    Manifest,
    Need,
    Offer,
    Shortfall,
    Upload,
    verified_header,
)
from edgeveil.protocol.proxy_arrivals import UploadArrival, UploadArrivals
from edgeveil.protocol.proxy_stream import RoundStreams
from edgeveil.protocol.proxy_tasks import (
    BatchDelivered,
    BatchKept,
    HeldUpload,
    ProxyContext,
    RoundDropped,
    ShuffledBatch,
    ShuffleRound,
    StreamUploads,
    TakePut,
    UploadKept,
    UploadPart,
    UploadsDropped,
)
from edgeveil.protocol.sealed import open_seed
from edgeveil.protocol.transfer import (
    GrantPut,
    LayingDown,
    PutBeside,
    PutGrants,
    PutTaken,
    answer_need,
    check_claim,
    check_parts_fit,
    part_bytes,
    sends,
    whole,
    why_not,
)


class CollectionState(Enum):
    """Where the proxy stands in one round."""

    COLLECTING = "collecting"
    GRACE = "grace"
    SHUFFLING = "shuffling"
    HANDING_OVER = "handing_over"
    SHORT = "short"
    DELIVERED = "delivered"


_S = CollectionState
COLLECTION_STATES = StateTable(
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
class Collection:
    """Uploads of one round. `floor` is the larger of the job's and this proxy's minimum.

    `senders`, of the masked uploads in their batch's order, stay in memory alone until the masks of
    the batch are summed: the cloud may say which do not fit.

    `pending`, with cover traffic: the devices that are there and have not answered; None while
    that is not known, since not all have had their time to say hello. `due` are those who
    have to answer and have not, as far as they are known; `aside` those of them who cost no grace.
    """

    manifest: Manifest
    floor: int
    cover: bool = False
    state: CollectionState = COLLECTION_STATES.start
    uploads: dict[str, HeldUpload] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)  # device -> cause
    slots: dict[str, int] = field(default_factory=dict)
    pending: set[str] | None = None
    due: set[str] = field(default_factory=set)
    aside: set[str] = field(default_factory=set)
    told: int = 0  # how often a shortfall was
    streamed: bool = False  # its masked uploads began to go on before it closed
    senders: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        sealed = (group.padded_bytes + SEAL_OVERHEAD_BYTES for group in self.manifest.groups)
        self.segment_bytes = tuple(sealed)
        self.slot_bytes = sum(self.segment_bytes)
        self.masked = frozenset(one.group for one in self.manifest.masked)
        self._next_slot = 0

    @property
    def masked_bytes(self) -> int:
        """Of the masked segments of one upload."""
        return sum(self.segment_bytes[group] for group in self.masked)

    @property
    def open(self) -> bool:
        """Uploads are still taken."""
        return self.state in (CollectionState.COLLECTING, CollectionState.GRACE)

    @property
    def spooled_bytes(self) -> int:
        """Disk that uploads take, or were promised when they began to come."""
        return len(self.slots) * self.slot_bytes

    def slot(self, device: str) -> int:
        """The device's place in the round's file: one, however often it begins anew."""
        if device not in self.slots:
            self.slots[device] = self._next_slot
            self._next_slot += 1
        return self.slots[device]

    def restore(self, device: str, held: HeldUpload) -> None:
        """An upload that is on the disk already."""
        self.uploads[device] = held
        self.slots[device] = held.slot
        self._next_slot = max(self._next_slot, held.slot + 1)

    def check_form(self, upload: Upload) -> None:
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
        """Move on, or raise and change nothing."""
        self.state = COLLECTION_STATES.step(self.state, happened)

    def hold(self, device: str, held: HeldUpload) -> None:
        """The device's upload is here."""
        self.uploads[device] = held
        self._answered(device)

    def decline(self, device: str, cause: str) -> None:
        """The device will not upload."""
        self.declined[device] = cause
        self._answered(device)

    @property
    def causes(self) -> tuple[int, ...]:
        """Number of declines by `DECLINE_CAUSES`; () without any decline."""
        given = list(self.declined.values())
        return tuple(map(given.count, DECLINE_CAUSES)) if given else ()

    def came(self, device: str) -> None:
        """With cover traffic a device that is there is waited for."""
        known = device in self.uploads or device in self.declined
        if self.pending is not None and self.open and not known:
            self.pending.add(device)
            self.due.add(device)

    def left(self, device: str) -> None:
        """With cover traffic a device that is gone is not waited for any more."""
        if self.pending is not None:
            self._answered(device)

    def set_aside(self, device: str) -> None:
        """The quorum is enough, as far as this device goes."""
        if device in self.due:
            self.aside.add(device)

    def _answered(self, device: str) -> None:
        if self.pending is not None:
            self.pending.discard(device)
        self.due.discard(device)
        self.aside.discard(device)

    def verdict(self, *, deadline: bool = False, grace_over: bool = False) -> str | None:
        """What the counts mean now: the transition to take, or None to keep waiting."""
        enough = len(self.uploads) >= self.floor
        answered = self._all_answered()
        quorum = len(self.uploads) >= max(self._quorum(), self.floor)
        if self.open and ((enough and answered) or (quorum and self._all_answered(self.aside))):
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
        if self.cover and (self.pending is None or not self.pending.issubset(but)):
            return False
        return len(self.uploads) + len(self.declined) + len(but) >= self.manifest.selected

    def _quorum(self) -> float:
        """With cover traffic, the job's share of the selected is one of all who are there.

        Never less than the job's number: who is not there yet may be among the selected.
        """
        if not self.cover:
            return self.manifest.quorum
        if self.pending is None:
            return float("inf")
        there = len(self.uploads) + len(self.declined) + len(self.pending)
        share = there * self.manifest.quorum / max(1, self.manifest.selected)
        return max(self.manifest.quorum, share)

    def forget_ciphertext(self) -> None:
        """Keep who answered, so that a repeated upload is still known. Its place is gone, and its
        digest: of a single group it would name the segment in the batch.
        """
        self.uploads = {d: HeldUpload(h.groups, b"", -1) for d, h in self.uploads.items()}
        self.slots.clear()


class Attendance:
    """Rounds in a row that devices left unanswered, of those that they had to answer.

    From `stalled_rounds` on, a device is not waited for, but in every 2nd, 4th, 8th … time as many:
    one that is only slower than the others must not be shut out by rounds that have become short.
    Nor is one that was away and has come again: its first answer would be paid for in vain.
    """

    def __init__(self, stalled_rounds: int) -> None:
        self._stalled_rounds = stalled_rounds
        self._missed: dict[str, int] = {}
        self._came: set[str] = set()  # of those not waited for, and gave nothing since

    def waits_for(self, device: str) -> bool:
        """Whether a round that has its quorum waits for this device."""
        times, rest = divmod(self._missed.get(device, 0), self._stalled_rounds)
        return times == 0 or (times > 1 and not rest and not times & (times - 1))

    def missed(self, devices: Iterable[str]) -> None:
        """A round went by without these, who had to answer it."""
        for device in devices:
            self._missed[device] = self._missed.get(device, 0) + 1

    def answered(self, device: str) -> None:
        """The device gave what it had to."""
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
        """Forget all others."""
        known = set(admitted)
        self._missed = {device: n for device, n in self._missed.items() if device in known}
        self._came &= known


_TIMERS = ("deadline", "grace", "shuffle", "handover", "short")


class ProxyRounds:
    """All rounds that the proxy knows, newest of each job."""

    def __init__(self, context: ProxyContext) -> None:
        self._context = context
        self.collections: dict[ExchangeId, Collection] = {}
        settings = context.settings
        self.arrivals = UploadArrivals(settings.credit_bytes, settings.credit_patience_s)
        self.attendance = Attendance(settings.stalled_rounds)
        self.streams = RoundStreams(context)
        self.grants = PutGrants[UploadArrival](
            context.signer, settings.beside_bytes, settings.beside_s
        )
        self._laying: dict[ExchangeId, LayingDown] = {}  # of batches
        self._restore()

    def _restore(self) -> None:
        for kept in self._context.memory.kept.values():
            if isinstance(kept.header, Manifest) and kept.header.kind == "round":
                collection = self._collection(kept.header)
                at = kept.header.at
                if at in self._context.memory.delivered:
                    collection.state = CollectionState.DELIVERED
                elif at in self._context.memory.batches:
                    collection.state = CollectionState.HANDING_OVER
                self.collections[at] = collection
        for upload in self._context.memory.uploads:
            collection = self.collections[upload.at]
            collection.restore(upload.device, upload.held)
            if upload.held.slot < 0 and collection.open:  # no batch was made of it
                collection.state = CollectionState.SHORT
        self._context.memory.uploads.clear()
        for collection in self.collections.values():
            if not collection.open:
                collection.forget_ciphertext()

    def _collection(self, manifest: Manifest) -> Collection:
        settings = self._context.settings
        floor = max(manifest.min_batch, settings.min_batch_floor, 1)
        return Collection(manifest, floor, settings.cover_window_s > 0)

    @property
    def spooled_bytes(self) -> int:
        """Disk taken by uploads and batches, or promised to uploads under way."""
        uploads = sum(collection.spooled_bytes for collection in self.collections.values())
        return uploads + sum(len(kept.data) for kept in self._context.memory.batches.values())

    @property
    def open(self) -> list[ExchangeId]:
        """Rounds that take uploads."""
        return [at for at, collection in self.collections.items() if collection.open]

    def resume(self) -> list[fx.Effect]:
        """Timers of rounds that were open when the process ended, and what was due then."""
        out: list[fx.Effect] = []
        for at, collection in self.collections.items():
            if collection.open:
                out.append(_set("deadline", at, collection.manifest.deadline_s))
                out += self.streams.resume(collection)
                out += self.advance(collection)
        return out + self.report_short()

    def begin(self, manifest: Manifest) -> list[fx.Effect]:
        """Open a round for uploads."""
        collection = self.collections[manifest.at] = self._collection(manifest)
        admitted = self._context.registry.admitted()
        if collection.cover and self._context.all_came:
            self._wait_for_all(collection)
        elif not collection.cover and manifest.selected >= len(admitted):
            collection.due.update(admitted)
            self._set_aside_stalled(collection)
        what = {"round": manifest.at.exchange, "phase": manifest.phase}
        report = fx.Report("round_open", what, manifest.at)
        asked = self._context.cover(fx.AllDevices())
        return [_set("deadline", manifest.at, manifest.deadline_s), report, *asked]

    def all_came(self) -> list[fx.Effect]:
        """It is known who is there: with cover traffic, whom to wait for."""
        out: list[fx.Effect] = []
        for collection in self.collections.values():
            if collection.cover and collection.open and collection.pending is None:
                self._wait_for_all(collection)
                out += self.advance(collection)
        return out

    def _wait_for_all(self, collection: Collection) -> None:
        collection.pending = set()
        for device in self._context.online:
            collection.came(device)
        self._set_aside_stalled(collection)

    def _set_aside_stalled(self, collection: Collection) -> None:
        stalled = {d for d in collection.due if not self.attendance.waits_for(d)}
        collection.aside |= stalled

    def set_aside(self, device: str) -> list[fx.Effect]:
        """The device's messages are dropped for a while: no round with its quorum waits for it."""
        self.attendance.set_aside(device)
        out: list[fx.Effect] = []
        for collection in self.collections.values():
            if collection.open:
                collection.set_aside(device)
                out += self.advance(collection)
        return out

    def fits(self, manifest: Manifest) -> bool:
        """Whether the spool can take an upload of each who is there, where all will send one."""
        collection, settings = self._collection(manifest), self._context.settings
        promised_bytes = len(self._context.online) * collection.slot_bytes
        return not collection.cover or promised_bytes <= settings.spool_bytes

    def newest(self, job_id: bytes) -> tuple[int, int]:
        """(exchange, attempt) of a job's newest round; (-1, -1) if it has none."""
        found = [(at.exchange, at.attempt) for at in self.collections if at.job_id == job_id]
        return max(found, default=(-1, -1))

    def drop_job(self, job_id: bytes) -> list[fx.Effect]:
        """End and forget every round of a job."""
        out: list[fx.Effect] = []
        for at in [at for at in self.collections if at.job_id == job_id]:
            out += self.drop(at)
            del self.collections[at]
            self._context.memory.delivered.discard(at)
        return out

    def drop(self, at: ExchangeId) -> list[fx.Effect]:
        """End a round: its uploads and its batch are of no use any more."""
        self._context.memory.batches.pop(at, None)
        self._laying.pop(at, None)
        collection = self.collections.get(at)
        self.streams.end(at)
        if collection:
            self._end_arrivals(at)
            self._context.memory.delivered.add(at)  # so that it stays closed after a restart
            collection.forget_ciphertext()
            collection.senders = ()
            collection.step("dropped")
        timers = [_cancel(what, at) for what in _TIMERS]
        return [fx.Persist(RoundDropped(at)), *timers]

    def _end_arrivals(self, at: ExchangeId) -> None:
        self.arrivals.end(at)
        self.grants.end(at.job_id)

    # --- closing a round ---

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
        self._end_arrivals(at)
        silent = collection.manifest.selected - len(collection.uploads) - len(collection.declined)
        absent = [_outcome("absent", silent)] if silent > 0 else []
        if collection.state is not CollectionState.SHORT:
            # A round that was short tells of the fleet, not of single devices.
            self.attendance.missed(collection.due)
            return [*absent, self._shuffle(collection)]
        self.streams.end(at)
        collection.forget_ciphertext()  # the cloud can only begin anew
        return [*absent, fx.Persist(UploadsDropped(at)), *self._short(at)]

    def _shuffle(self, collection: Collection) -> fx.Effect:
        uploads = tuple((held.slot, held.groups) for held in collection.uploads.values())
        collection.streamed |= self.streams.close(collection.manifest.at)
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

    def streamed(self, task: StreamUploads, result: object) -> list[fx.Effect]:
        """More uploads are in a round's stream."""
        return self.streams.done(self.collections.get(task.at), task, result)

    def shuffled(self, task: ShuffleRound, result: object) -> list[fx.Effect]:
        """The batch is on the disk: sign it, forget whose uploads it came from, hand it over."""
        at, memory, settings = task.at, self._context.memory, self._context.settings
        collection = self.collections.get(at)
        if collection is None or collection.state is not CollectionState.SHUFFLING:
            # Its round went meanwhile, and this file was perhaps not there yet to be dropped.
            return [] if at in memory.batches else [fx.Persist(RoundDropped(at))]
        if not isinstance(result, ShuffledBatch):  # perhaps the disk is full: try until it is not
            failed = fx.Report("shuffle_failed", {"round": at.exchange}, at)
            return [failed, _set("shuffle", at, settings.resend_s)]
        blob = Blob(result.digest, len(result.data), part_bytes(settings.packet_bytes))
        answers = (len(collection.uploads), len(collection.declined))
        batch = Batch(
            at,
            *answers,
            result.counts,
            blob,
            result.stream,
            collection.causes,
            self._context.offline_count,
        )
        held = list(collection.uploads.items())
        masked = [held[place] for place in result.order if held[place][1].seed is not None]
        seeds = tuple(one.seed for _, one in masked if one.seed is not None)
        signed = self._context.signer.header(batch)
        kept = BatchKept(at, signed, batch, result.data, seeds, result.pieces)
        collection.step("shuffled")
        self.streams.end(at)
        collection.forget_ciphertext()
        collection.senders = tuple(device for device, _ in masked)
        memory.batches[at] = kept
        return [fx.Persist(kept), *self._hand_over(at)]

    def report_all(self) -> list[fx.Effect]:
        """Offer every batch that the cloud does not hold yet, and tell every shortfall."""
        batches = [effect for at in self._context.memory.batches for effect in self._hand_over(at)]
        return batches + self.report_short()

    def report_short(self) -> list[fx.Effect]:
        """Tell every shortfall."""
        known = self.collections.items()
        short = [at for at, collection in known if collection.state is CollectionState.SHORT]
        return [effect for at in short for effect in self._short(at)]

    def _hand_over(self, at: ExchangeId, *, push: bool = True) -> list[fx.Effect]:
        """Offer the batch; the cloud asks for parts that did not come with the first offer."""
        kept = self._context.memory.batches.get(at)
        if kept is None:
            return []
        limit, blob = self._context.settings, kept.batch.blob
        # What has a stream is there already, for the most part: the cloud asks for the rest.
        push = push and blob.size_bytes <= limit.push_bytes and not kept.batch.stream
        beside = self._laid(at).takes(blob) and not kept.batch.stream
        packets = sends(
            fx.CloudAddress(),
            self._context.signer.header(kept.batch),  # with the key of the day
            blob,
            kept.data,
            limit.packet_bytes,
            push=push,
            beside=beside,
        )
        return [*packets, _set("handover", at, limit.resend_s)]

    def _laid(self, at: ExchangeId) -> LayingDown:
        urls = self._context.settings.blob_urls
        new = LayingDown(self._context.signer, fx.CloudAddress(), urls)
        return self._laying.setdefault(at, new)

    def lay_down(self, told: BlobAt) -> list[fx.Effect]:
        """The cloud says where to put a batch. Raises ProtocolError `foreign_url`."""
        for at, kept in self._context.memory.batches.items():
            if kept.batch.blob.digest == told.blob:
                return self._laid(at).lay_down(told, kept.batch.blob, kept.data)
        return []

    def laid_down(self, task: PutBeside, result: object) -> list[fx.Effect]:
        """A batch lies where the cloud said, or could not be put there: it is offered again."""
        for at, kept in self._context.memory.batches.items():
            if kept.batch.blob.digest == task.blob.digest:
                lies, out = self._laid(at).laid_down(task, result)
                return out if lies else [*out, *self._hand_over(at, push=False)]
        return []

    def _short(self, at: ExchangeId) -> list[fx.Effect]:
        """Tell it, and again later: the longer the cloud has no use for it, the later."""
        collection, settings = self.collections[at], self._context.settings
        wait_s = min(settings.resend_s * 2.0 ** min(collection.told, 16), settings.waits_cap_s)
        collection.told += 1
        answers = (len(collection.uploads), len(collection.declined))
        note = Shortfall(at, *answers, collection.causes, self._context.offline_count)
        told = fx.Send(fx.CloudAddress(), self._context.signer.note(note))
        return [told, _set("short", at, wait_s)]

    def need(self, need: Need) -> list[fx.Effect]:
        """The cloud asks for parts of a batch, or of what will be the front of one."""
        for kept in self._context.memory.batches.values():
            if need.blob in (kept.batch.blob.digest, kept.batch.stream):
                blob = structs.replace(kept.batch.blob, digest=need.blob)
                return answer_need(fx.CloudAddress(), need, blob, kept.data)
        streamed = self.streams.need(need)
        if streamed is None:
            raise ProtocolError("unknown_blob")
        return streamed

    def delivered(self, ack: Ack) -> list[fx.Effect]:
        """The cloud holds a batch, or has no use for it.

        A cloud that is about another job has no use for a batch by itself, but may have kept what
        is under its masks: their seeds stay until the job goes on or ends.
        """
        memory = self._context.memory
        for at, kept in memory.batches.items():
            if kept.batch.blob.digest == ack.blob:
                if ack.status == "closed" and kept.seeds:
                    return [_cancel("handover", at)]
                del memory.batches[at]
                self._laying.pop(at, None)
                memory.delivered.add(at)
                if at in self.collections:
                    self.collections[at].step("held_by_cloud")
                    self.collections[at].senders = ()
                return [fx.Persist(BatchDelivered(at)), _cancel("handover", at)]
        return []

    def timer(self, name: str) -> list[fx.Effect]:
        """One of a round's timers ran out; its state decides whether that still means anything."""
        what, job, exchange, attempt = name.split(":")
        at = ExchangeId(bytes.fromhex(job), int(exchange), int(attempt))
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


ANSWER_OUTCOMES = ("uploaded", *DECLINE_CAUSES, "declined", "absent", "late", "refused")
"""What a device's answer to a round can come to, as counted by `edgeveil_answers_total`.

`declined` named no cause. `absent` counts the selected who said nothing until the round was over,
`late` the uploads that came after it (of devices already counted as absent), `refused` those that
were not what the round asks for.
"""


def _outcome(outcome: str, count: int = 1) -> fx.Report:
    return fx.Report("answer", {"outcome": outcome, "count": count})


def _timer(what: str, at: ExchangeId) -> str:
    return f"{what}:{at.job_id.hex()}:{at.exchange}:{at.attempt}"


def _set(what: str, at: ExchangeId, delay_s: float) -> fx.SetTimer:
    return fx.SetTimer(_timer(what, at), delay_s)


def _cancel(what: str, at: ExchangeId) -> fx.CancelTimer:
    return fx.CancelTimer(_timer(what, at))


class ProxyUploads:
    """What devices answer: one complete, well-formed upload each into an open round."""

    def __init__(self, context: ProxyContext, rounds: ProxyRounds) -> None:
        self._context, self._rounds = context, rounds

    def offer(self, device: str, offer: Offer, now_s: float) -> list[fx.Effect]:
        """A device offers its upload, perhaps with the whole blob inside."""
        arrival = self._rounds.arrivals.get(device)
        if arrival is not None and arrival.signed == offer.header and not offer.data:
            return self._rounds.arrivals.offered(device, arrival, now_s)
        key = self._context.registry.verify_key(device)
        header = verified_header(offer.header, device, key)
        if not isinstance(header, Upload):
            raise ProtocolError("unexpected_header")
        digest = header.blob.digest
        collection = self._rounds.collections.get(header.at)
        held = collection.uploads.get(device) if collection else None
        if held is not None:
            if held.digest in (digest, b""):  # after the batch it is enough that it answered
                return [fx.Send(fx.DeviceAddress(device), self._context.ack(digest, "held"))]
            return self._refuse(device, digest, "duplicate", "duplicate_upload")
        if collection is None or not self._takes(collection, device):
            return self._refuse(device, digest, "closed", "closed_round")
        try:
            seed = self._check(collection, device, header)
        except ProtocolError as error:
            return self._refuse(device, digest, "refused", error.reason)
        self._check_room(collection, device)
        return self._begin(collection, device, offer, header, seed, now_s)

    def _seed(self, collection: Collection, device: str, header: Upload) -> MaskSeed | None:
        """What the upload's masks are made of. Raises ProtocolError `bad_seed`."""
        if not header.seed:
            return None
        key = self._context.memory.round_key(header.at)
        if key is None:
            raise ProtocolError("bad_seed")
        return open_seed(key, collection.manifest, device, header.seed)

    def _check(self, collection: Collection, device: str, header: Upload) -> MaskSeed | None:
        collection.check_form(header)
        settings = self._context.settings
        check_claim(header.blob, settings.upload_bytes)
        check_parts_fit(header.blob, settings.packet_bytes)
        return self._seed(collection, device, header)  # one that does not open is told at once

    def _check_room(self, collection: Collection, device: str) -> None:
        """Raise ProtocolError `spool_full`. Nothing is said to the device: it offers again later,
        when an earlier round's batch may be gone.
        """
        more_bytes = 0 if device in collection.slots else collection.slot_bytes
        if self._rounds.spooled_bytes + more_bytes > self._context.settings.spool_bytes:
            raise ProtocolError("spool_full")

    def _begin(
        self,
        collection: Collection,
        device: str,
        offer: Offer,
        header: Upload,
        seed: MaskSeed | None,
        now_s: float,
    ) -> list[fx.Effect]:
        data = whole(header.blob, offer.data) if offer.data else b""
        arrivals, arrival = self._rounds.arrivals, UploadArrival(offer.header, header, seed)
        grants, job_id, who = self._rounds.grants, header.at.job_id, fx.DeviceAddress(device)
        if offer.beside and grants.takes(who, header.blob, now_s):
            under_way = arrivals.get(device)
            if under_way is not None and under_way.header.at.job_id == job_id:
                arrivals.forget(device)
            collection.slot(device)  # its room on the disk is promised
            return grants.offered(who, job_id, header.blob, arrival, now_s)
        grants.forget(who, job_id)
        if not data:
            return arrivals.begin(device, arrival, now_s)
        arrivals.forget(device)
        put = self._put(collection, device, 0, data)
        return [put, *self._hold(collection, device, arrival), *arrivals.deal(now_s)]

    # --- beside the broker ---

    def may_be_put(self, task: GrantPut, result: object) -> list[fx.Effect]:
        """The store has a place for an upload."""
        return self._rounds.grants.granted(task, result)

    def is_put(self, device: str, put: BlobPut) -> list[fx.Effect]:
        """A device says that its upload lies in the store: take it from there."""
        grant = self._rounds.grants.get(fx.DeviceAddress(device), put.blob)
        if grant is None or grant.taking or not grant.name:
            return []
        at = grant.arrival.header.at
        collection = self._rounds.collections.get(at)
        if collection is None or not self._takes(collection, device):
            return self._refuse(device, put.blob, "closed", "closed_round")
        grant.taking = True
        offset = collection.slot(device) * collection.slot_bytes
        return [fx.Work(TakePut(at, device, grant.blob, grant.name, offset))]

    def taken(self, task: TakePut, result: object) -> list[fx.Effect]:
        """An upload is in its place, or what was put there was not it: it is offered again."""
        grants, who = self._rounds.grants, fx.DeviceAddress(task.device)
        grant = grants.get(who, task.blob.digest)
        collection = self._rounds.collections.get(task.at)
        if collection is None or collection.state is CollectionState.DELIVERED:
            return [fx.Persist(RoundDropped(task.at))]  # its file was perhaps made anew
        if grant is None or grant.arrival.header.at != task.at:
            return []
        grants.forget(who, task.at.job_id)
        if not isinstance(result, PutTaken):
            return [fx.Refuse(f"beside_{why_not(result)}")]
        if not self._takes(collection, task.device) or task.device in collection.uploads:
            return self._refuse(task.device, task.blob.digest, "closed", "closed_round")
        return self._hold(collection, task.device, grant.arrival)

    @staticmethod
    def _takes(collection: Collection, device: str) -> bool:
        return collection.open and device not in collection.declined

    def _refuse(self, device: str, digest: bytes, status: str, reason: str) -> list[fx.Effect]:
        outcome = {"closed": "late", "refused": "refused"}.get(status)  # a duplicate is no answer
        return [
            fx.Refuse(reason),
            *([_outcome(outcome)] if outcome else []),
            fx.Send(fx.DeviceAddress(device), self._context.ack(digest, status, reason)),
        ]

    def part(self, device: str, part: BlobPart, now_s: float) -> list[fx.Effect]:
        """A part of a device's upload; whatever it was asked for, only the next one counts.

        The first one takes the upload's room on the disk: an offer alone takes none.
        """
        arrivals = self._rounds.arrivals
        arrival = arrivals.get(device)
        if arrival is None or arrival.header.blob.digest != part.blob:
            raise ProtocolError("unknown_blob")
        place = arrivals.take(device, arrival, part, now_s)
        if place is None:
            return [fx.Refuse("out_of_turn"), *arrivals.came(device, arrival, part, now_s)]
        collection = self._rounds.collections[arrival.header.at]
        try:
            self._check_room(collection, device)
        except ProtocolError as error:
            arrivals.forget(device)
            return [fx.Refuse(error.reason), *arrivals.deal(now_s)]
        put = self._put(collection, device, place, part.data)
        if not arrival.complete:
            return [put, *arrivals.came(device, arrival, part, now_s)]
        if not arrival.intact:
            return [put, fx.Refuse("bad_digest"), *arrivals.again(device, arrival, now_s)]
        arrivals.forget(device)
        done = self._hold(collection, device, arrival)
        return [put, *done, *arrivals.deal(now_s)]

    @staticmethod
    def _put(collection: Collection, device: str, place: int, data: bytes) -> fx.Persist:
        offset = collection.slot(device) * collection.slot_bytes + place
        return fx.Persist(UploadPart(collection.manifest.at, offset, data))

    def _hold(self, collection: Collection, device: str, arrival: UploadArrival) -> list[fx.Effect]:
        """A complete upload: durable first, then acknowledged, then counted."""
        slot, header = collection.slots[device], arrival.header
        held = HeldUpload(header.groups, header.blob.digest, slot, arrival.seed)
        collection.hold(device, held)
        self._rounds.attendance.answered(device)
        answered = self._context.memory.answered
        if header.number > answered.get(device, header.number):
            answered[device] = header.number
        return [
            fx.Persist(UploadKept(header.at, device, held, header.number, header.deposit)),
            fx.Send(fx.DeviceAddress(device), self._context.ack(held.digest, "held")),
            self._answered(collection),
            *self._rounds.streams.held(collection, len(collection.uploads) - 1, held),
            *self._rounds.advance(collection),
        ]

    def decline(self, device: str, decline: Decline, now_s: float) -> list[fx.Effect]:
        """A device says that it will not upload; final."""
        collection = self._rounds.collections.get(decline.at)
        if collection is None or not collection.open or device in collection.uploads:
            raise ProtocolError("closed_round")
        collection.decline(device, decline.cause)
        self._rounds.attendance.answered(device)
        self._rounds.arrivals.forget(device)
        more = self._rounds.advance(collection)
        said = _outcome(decline.cause if decline.cause in DECLINE_CAUSES else "declined")
        return [said, self._answered(collection), *more, *self._rounds.arrivals.deal(now_s)]

    def came(self, device: str, now_s: float) -> list[fx.Effect]:
        """A device is there (again): with cover traffic it will answer every open round."""
        self._rounds.attendance.came(device)
        for collection in self._rounds.collections.values():
            collection.came(device)
            if self._rounds.attendance.waits_for(device):
                collection.aside.discard(device)
            else:
                collection.set_aside(device)
        return self._rounds.arrivals.reconnected(device, now_s)

    def left(self, device: str) -> list[fx.Effect]:
        """A device is gone: nobody waits for it."""
        out: list[fx.Effect] = []
        for collection in self._rounds.collections.values():
            collection.left(device)
            if collection.cover:
                out += self._rounds.advance(collection)
        return out

    @staticmethod
    def _answered(collection: Collection) -> fx.Effect:
        counts = {
            "round": collection.manifest.at.exchange,
            "uploads": len(collection.uploads),
            "declined": len(collection.declined),
            "causes": dict(zip(DECLINE_CAUSES, collection.causes, strict=False)),
            "selected": collection.manifest.selected,
        }
        return fx.Report("answered", counts, collection.manifest.at)
