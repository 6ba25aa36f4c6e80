"""Rounds at the proxy: collect one upload per device, hand over one shuffled batch.

**States.** A round's broadcast opens a `Collection` with the states of `COLLECTION_STATES`. Each
admitted device uploads once or declines; both are final. A round ends when all selected devices
have answered, at the deadline, or after the grace period that follows the quorum, and never with
fewer uploads than the floor: the larger of the job's minimum and this proxy's. With cover traffic
the proxy waits for all connected devices (`due`). Where all devices must answer, a round with its
quorum does not wait for devices that missed several rounds in a row (`_Attendance`, `stalled`).

**Hand-over.** Below the floor a round is `short`: ciphertexts are deleted and the cloud gets counts
only. Otherwise the host shuffles every group independently. Once the batch is durable, the link to
its uploads is deleted: the proxy keeps which devices answered, but no slot, digest or time. The
batch is offered until the cloud holds it; a masked batch is kept even if the cloud has no use for
it, since a paused job may already hold its sums. A newer round, the commit or the job's end drops a
round permanently.

**Streams.** Masked uploads are sent to the cloud in chunks while the round is open: the host
appends each chunk, in random order, to the round's stream, of which the cloud requests parts. The
batch begins with the stream and is verified as usual, so a lost stream costs only time. The cloud
learns the chunk of an upload; therefore every chunk, including the last, has at least as many
uploads as this proxy's floor. Streams are not durable.

**Mask sums** (`ProxyMasks`). Devices seal their mask seeds to the proxy's key of the round. The
cloud, which sees only masked integers, names the uploads that it counts and gets the sum of their
masks. Two choices would reveal their difference, so the choice is durable before the first sum is
sent, a repeated request gets the same answer, and any other is refused permanently, even after the
job's end: restarted under its name, a job would bring the same integers again. A choice below the
floor is refused, as is a round of several sets unless each has this proxy's floor. Before its
choice the cloud requests the check of each mask, to exclude uploads that do not fit their seed.
Only the factors to which the manifest commits are accepted: devices used them for their own checks,
so for an honest device the cloud can compute the same value itself.

**Correlated noise.** Of the last masked group, the sum of a round's noise, no sum is ever sent:
cloud and proxy each keep their half. If the cloud's request names the round before, the proxy
subtracts that noise's share from the masks' sums, after rounding its half down by itself, since the
low bits would show the noise. The coefficient is the manifest's, equal in all rounds of a job; a
training round is unmasked once, and a half is deleted once the next round is over. A lost half
leaves that share out, which costs accuracy and no privacy."""

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

from edgeveil.crypto.keys import KEY_BYTES, CheckKey, MaskSeed, OpeningKey, VerifyKey
from edgeveil.crypto.ring import UNCHECKED_BITS
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.sealed import (
    MaskedVector,
    check_factors,
    chosen_of,
    dealt,
    masked_vectors,
    noise_vector,
)


@dataclass(frozen=True)
class KeptBroadcast:
    """Broadcast stored for late devices; `key` opens the seeds of a masked round."""

    signed: m.Envelope
    header: m.BroadcastHeader
    data: tr.Data
    key: OpeningKey | None = None


@dataclass(frozen=True)
class HeldUpload:
    """Complete upload; once the batch is made, `digest` is empty and `slot` is -1."""

    groups: tuple[int, ...]
    digest: bytes
    slot: int
    seed: MaskSeed | None = None


@dataclass(frozen=True)
class UploadKept:
    """Upload to store before it is acknowledged; `number` is the device's answer count."""

    at: m.RoundId
    device: str
    held: HeldUpload
    number: int = 0
    encrypted_state: bytes = b""


@dataclass(frozen=True)
class UploadsDropped:
    """End of a short round: keep the devices that answered, delete all ciphertext."""

    at: m.RoundId


@dataclass(frozen=True)
class BatchKept:
    """Shuffled batch with its mask `seeds` in batch order; its uploads are deleted."""

    at: m.RoundId
    signed: m.Envelope
    batch: m.Batch
    data: tr.Data
    seeds: tuple[MaskSeed, ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()  # (offset, size) in the round's file, or its own file


@dataclass(frozen=True)
class BatchDelivered:
    at: m.RoundId


@dataclass(frozen=True)
class RoundUnmasked:
    """The only choice for which a round is unmasked, durable before any sum is sent."""

    at: m.RoundId
    question: bytes


@dataclass(frozen=True)
class NoiseHalf:
    """This proxy's half of the noise of a round unmasked by `question`, which nobody else gets.

    Durable before the round's answer is sent; deleted once a later round is dropped."""

    at: m.RoundId
    correlated: m.CorrelatedNoise
    question: bytes
    half: bytes = field(repr=False)


@dataclass(frozen=True)
class RoundDropped:
    """End of a round: delete all but its manifest, never open it again."""

    at: m.RoundId


@dataclass
class ProxyMemory:
    """State that survives a restart, loaded by the host and changed by `Persist` effects."""

    kept: dict[bytes, KeptBroadcast] = field(default_factory=dict)  # by blob digest, oldest first
    uploads: list[UploadKept] = field(default_factory=list)
    batches: dict[m.RoundId, BatchKept] = field(default_factory=dict)
    delivered: set[m.RoundId] = field(default_factory=set)
    ended: dict[bytes, m.Note] = field(default_factory=dict)
    statement: m.Note | None = None  # on releases
    answered: dict[str, int] = field(default_factory=dict)  # newest answer's number, by device
    earlier: dict[str, int] = field(default_factory=dict)  # `knows` of earlier versions, by device
    unmasked: dict[tuple[bytes, int], RoundUnmasked] = field(default_factory=dict)  # by round
    halves: dict[tuple[bytes, int], NoiseHalf] = field(default_factory=dict)  # by round
    summed: set[bytes] = field(default_factory=set)  # jobs ended or restored: never unmasked
    name: bytes = b""  # differs after this memory was lost or restored from a backup

    def round_key(self, at: m.RoundId) -> OpeningKey | None:
        keys = (kept.key for kept in self.kept.values() if kept.header.at == at)
        return next((key for key in keys if key is not None), None)


@dataclass(frozen=True)
class ProxySettings:
    packet_bytes: int = 65536
    blob_bytes: int = 256 << 20
    push_bytes: int = 16 << 20  # larger blobs are pulled, with bounded credit
    need_repeat_s: float = 10.0  # minimum before a part is sent again to a device
    want_repeat_s: float = 0.25  # minimum before a job is sent again to a device
    upload_bytes: int = 64 << 20
    spool_bytes: int = 1 << 30
    cache_bytes: int = 1 << 30
    credit_bytes: int = 16 << 20
    credit_patience_s: float = 5.0  # unused grants are then revoked
    hellos_per_s: float = 500.0
    min_batch_floor: int = 3
    lot_bytes: int = 1 << 20  # minimum chunk of masked uploads in a stream
    repair_s: float = 1.0
    resend_s: float = 3.0
    waits_cap_s: float = 300.0  # maximum wait between repeated shortfalls
    ended_kept: int = 16
    releases_kept: int = 16  # newest of that many data sets, if the cache has room
    hello_spread_s: float = 0.5  # minimum spread of hellos after a (re)start
    cover_window_s: float = 0.0  # 0: no cover traffic
    roster_again_s: float = 6 * 3600.0  # interval of signing the roster again
    stalled_rounds: int = 3  # missed in a row before a device is no longer awaited
    out_of_band_bytes: int = 0  # minimum size of a blob that goes out of band; 0: none
    url_valid_s: float = 3600.0  # validity of a URL
    blob_urls: tuple[str, ...] = ()  # allowed URL prefixes of the cloud's store


class DeviceRegistry(Protocol):
    """Identities that this proxy's operator admitted."""

    def verify_key(self, device: str) -> VerifyKey | None: ...

    def roster(self) -> tuple[int, bytes]:
        """Return the epoch and the sorted sealing keys of all devices, 32 bytes each."""

    def admitted(self) -> AnyOf[str]: ...

    @property
    def lineage(self) -> str: ...

    def roster_expires_s(self) -> float: ...


@dataclass
class ProxyContext:
    signer: m.Signer
    keys: m.PeerKeys
    registry: DeviceRegistry
    memory: ProxyMemory
    settings: ProxySettings
    online: set[str] = field(default_factory=set)
    presence_known: bool = False  # `online` is complete: all devices had time for a hello
    reading_trust: int = 0  # received metadata of the root, not verified yet

    @property
    def offline(self) -> set[str] | None:
        """Admitted devices that are not connected; None until all could send a hello."""
        return set(self.registry.admitted()) - self.online if self.presence_known else None

    @property
    def offline_count(self) -> int:
        return -1 if (offline := self.offline) is None else len(offline)

    def is_far(self, number: int) -> bool:
        """Return whether a number (ms since 1970) is a day ahead of this clock."""
        day_on = int(self.registry.roster_expires_s() * 1000)
        return number >= m.FAR_NUMBER or 0 < day_on < number

    def ack(self, to: fx.Address, digest: bytes, status: str, reason: str = "") -> fx.Send:
        return fx.Send(to, self.signer.note(m.Ack(digest, status, reason)))  # type: ignore[arg-type]

    def cover(self, to: fx.Address) -> fx.Effects:
        """Request cover traffic; its end is never sent, as a broker could replay it."""
        return [fx.Send(to, self._cover)] if self._cover else []

    @cached_property
    def _cover(self) -> m.Note | None:
        window_s = self.settings.cover_window_s
        return self.signer.note(m.Cover(window_s)) if window_s > 0 else None


@dataclass(frozen=True)
class ShuffleRound:
    """Work: shuffle the segments of every group. Returns `ShuffledBatch` or `WorkFailed`."""

    at: m.RoundId
    segment_bytes: tuple[int, ...]
    slot_bytes: int  # a slot has the segments of an upload's groups, one after the other
    floor: int  # a smaller group is left out: its few senders would be singled out
    uploads: tuple[tuple[int, tuple[int, ...]], ...]  # (slot, groups)
    keep_order: bool = False
    together: frozenset[int] = frozenset()  # groups in one common order
    streamed: bool = False  # these come first, in the order of the round's stream


@dataclass(frozen=True)
class ShuffledBatch:
    """Result of `ShuffleRound`: `counts[g]` segments of group g."""

    counts: tuple[int, ...]
    digest: bytes
    data: tr.Data
    order: tuple[int, ...] = ()  # of the groups in `together`: indices of the task's uploads
    pieces: tuple[tuple[int, int], ...] = ()  # as in `BatchKept`
    stream: bytes = b""  # name of the stream at the front


@dataclass(frozen=True)
class StreamUploads:
    """Work: append uploads to the stream. Returns `StreamedUploads` or `WorkFailed`."""

    at: m.RoundId
    segment_bytes: tuple[int, ...]
    slot_bytes: int
    uploads: tuple[tuple[int, int, tuple[int, ...]], ...]  # (index, slot, groups)
    together: frozenset[int]
    keep_order: bool = False


@dataclass(frozen=True)
class StreamedUploads:
    """Stream so far; its random `name` changes after a restart."""

    name: bytes
    data: tr.Data


@dataclass(frozen=True)
class SumMasks:
    """Work: sum the masks of each set of seeds. Returns `SummedMasks` or `WorkFailed`."""

    at: m.RoundId
    question: bytes
    vectors: tuple[MaskedVector, ...]
    sets: tuple[tuple[MaskSeed, ...], ...]
    key: CheckKey | None = None  # disclosed: compute the check of each seed's masks instead
    correlated: m.CorrelatedNoise | None = None
    factors: CheckKey | None = None
    before: bytes = field(default=b"", repr=False)  # the half of the round before


@dataclass(frozen=True)
class SummedMasks:
    data: bytes
    half: bytes = field(default=b"", repr=False)


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
    waiting: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)  # in no chunk
    begun: bool = False
    closed: bool = False
    at_work: bool = False
    written: StreamedUploads | None = None


@dataclass
class Collection:
    manifest: m.Manifest
    floor: int  # the larger of the job's and this proxy's minimum
    cover: bool = False
    state: CollectionState = COLLECTION_STATES.start
    uploads: dict[str, HeldUpload] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)  # device -> cause
    slots: dict[str, int] = field(default_factory=dict)
    presence_known: bool = False  # all devices had time for a hello
    due: set[str] = field(default_factory=set)  # devices that must still answer
    stalled: set[str] = field(default_factory=set)  # those of `due` that cost no grace
    shortfalls_sent: int = 0
    streamed: bool = False  # masked uploads were streamed before the round closed
    # Of masked uploads in batch order, in memory only, until the masks are summed.
    senders: tuple[str, ...] = field(default=(), repr=False)
    stream: _Stream | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        groups = self.manifest.groups
        self.segment_bytes = tuple(g.padded_bytes + m.SEAL_OVERHEAD_BYTES for g in groups)
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
        """Return the device's slot in the round's file, the same for repeated uploads."""
        if device not in self.slots:
            self.slots[device] = self._next_slot
            self._next_slot += 1
        return self.slots[device]

    def restore(self, device: str, held: HeldUpload) -> None:
        self.uploads[device] = held
        self.slots[device] = held.slot
        self._next_slot = max(self._next_slot, held.slot + 1)

    def check_form(self, upload: m.Upload) -> None:
        """Raise ProtocolError `wrong_groups`, `wrong_size` or `wrong_seed` for a bad form."""
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
        """Uploads, declines, and declines by `DECLINE_CAUSES` (empty without declines)."""
        given = list(self.declined.values())
        causes = tuple(map(given.count, m.DECLINE_CAUSES)) if given else ()
        return len(self.uploads), len(given), causes

    def connected(self, device: str) -> None:
        known = device in self.uploads or device in self.declined
        if self.presence_known and self.open and not known:
            self.due.add(device)

    def answered(self, device: str) -> None:
        self.due.discard(device)
        self.stalled.discard(device)

    def verdict(self, *, deadline: bool = False, grace_over: bool = False) -> str | None:
        """Return the transition that the counts allow, or None to keep waiting."""
        enough = len(self.uploads) >= self.floor
        answered = self._all_answered()
        quorum = len(self.uploads) >= max(self._quorum(), self.floor)
        all_but_stalled = quorum and self._all_answered(self.stalled & self.due)
        if self.open and ((enough and answered) or all_but_stalled):
            return "all_answered"
        if self.open and enough and deadline:
            return "deadline_with_enough"
        if self.state is CollectionState.GRACE and grace_over:
            return "grace_over"
        # With cover traffic further devices may still connect and answer.
        hopeless = answered and not self.cover
        if self.state is CollectionState.COLLECTING and (deadline or hopeless):
            return "below_floor"
        return "quorum" if quorum and self.state is CollectionState.COLLECTING else None

    def _all_answered(self, but: AbstractSet[str] = frozenset()) -> bool:
        """Return whether all selected devices answered, not counting `but`."""
        if self.cover and not (self.presence_known and self.due <= but):
            return False
        return len(self.uploads) + len(self.declined) + len(but) >= self.manifest.selected

    def _quorum(self) -> float:
        if not self.cover:
            return self.manifest.quorum
        if not self.presence_known:
            return float("inf")
        # Scaled to the connected devices, but not below the job's number: a device that is not
        # connected yet may be selected.
        connected = len(self.uploads) + len(self.declined) + len(self.due)
        share = connected * self.manifest.quorum / max(1, self.manifest.selected)
        return max(self.manifest.quorum, share)

    def forget_ciphertext(self) -> None:
        """Keep only the devices that answered, to recognise repeated uploads."""
        # In a round of one group, a digest would identify the segment in the batch.
        self.uploads = {d: HeldUpload(h.groups, b"", -1) for d, h in self.uploads.items()}
        self.slots.clear()
        self.stream = None


class _Attendance:
    """Number of rounds in a row that each device left unanswered.

    From `stalled_rounds` on, a device is awaited only in every 2nd, 4th, 8th … multiple of it, so
    that slow and returning devices are not excluded."""

    def __init__(self, stalled_rounds: int) -> None:
        self._stalled_rounds = stalled_rounds
        self._missed: dict[str, int] = {}
        self._returned: set[str] = set()  # stalled devices that sent a hello but no answer since

    def waits_for(self, device: str) -> bool:
        times, extra = divmod(self._missed.get(device, 0), self._stalled_rounds)
        return times == 0 or (times > 1 and not extra and not times & (times - 1))

    def missed(self, devices: Iterable[str]) -> None:
        for device in devices:
            self._missed[device] = self._missed.get(device, 0) + 1

    def answered(self, device: str) -> None:
        self._missed.pop(device, None)
        self._returned.discard(device)

    def connected(self, device: str) -> None:
        """Await the device in the next round after a hello, once until it answers."""
        if self._missed.get(device, 0) >= self._stalled_rounds and device not in self._returned:
            self._returned.add(device)
            self._missed[device] = self._stalled_rounds - 1

    def set_aside(self, device: str) -> None:
        """Stop waiting for the device, even after its next hello."""
        self._missed[device] = self._stalled_rounds
        self._returned.add(device)

    def keep(self, admitted: Iterable[str]) -> None:
        known = set(admitted)
        self._missed = {device: n for device, n in self._missed.items() if device in known}
        self._returned &= known


ANSWER_OUTCOMES = ("uploaded", *m.DECLINE_CAUSES, "declined", "absent", "late", "refused")
"""Outcomes of answers in `edgeveil_answers_total`. `declined` gave no cause; `late` arrived after
the round ended (its device also counts as absent); `refused` had an invalid form."""


def answer_report(outcome: str, count: int = 1) -> fx.Report:
    return fx.Report("answer", {"outcome": outcome, "count": count})


_TIMERS = ("deadline", "grace", "shuffle", "handover", "short")


def _timer(kind: str, at: m.RoundId) -> str:
    return f"{kind}:{at.job_id.hex()}:{at.round}:{at.attempt}"


def _set(kind: str, at: m.RoundId, delay_s: float) -> fx.SetTimer:
    return fx.SetTimer(_timer(kind, at), delay_s)


class ProxyRounds:
    """Newest rounds of each job; `uploads_ended` is called when one closes."""

    def __init__(self, context: ProxyContext) -> None:
        self._context, memory = context, context.memory
        self.collections: dict[m.RoundId, Collection] = {}
        self.attendance = _Attendance(context.settings.stalled_rounds)
        self.uploads_ended: Callable[[m.RoundId], None] = lambda _at: None
        self._puts: dict[m.RoundId, tr.StorePut] = {}  # of batches
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
            if upload.held.slot < 0 and collection.open:  # short: no batch was made
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

    def resume(self) -> fx.Effects:
        out: fx.Effects = []
        for at, collection in self.collections.items():
            if collection.open:
                out.append(_set("deadline", at, collection.manifest.deadline_s))
                out += self.stream(collection, enumerate(collection.uploads.values()))
                out += self.advance(collection)
        return out + self.report_short()

    def begin(self, manifest: m.Manifest) -> fx.Effects:
        collection = self.collections[manifest.at] = self._collection(manifest)
        admitted = self._context.registry.admitted()
        if collection.cover and self._context.presence_known:
            self._wait_for_all(collection)
        elif not collection.cover and manifest.selected >= len(admitted):
            collection.due.update(admitted)
            self._mark_stalled(collection)
        data = {"round": manifest.at.round, "phase": manifest.phase}
        report = fx.Report("round_open", data, manifest.at)
        cover = self._context.cover(fx.AllDevices())
        return [_set("deadline", manifest.at, manifest.deadline_s), report, *cover]

    def on_presence_known(self) -> fx.Effects:
        """Determine which devices to await, now that all could send a hello."""
        out: fx.Effects = []
        for collection in self.collections.values():
            if collection.cover and collection.open and not collection.presence_known:
                self._wait_for_all(collection)
                out += self.advance(collection)
        return out

    def _wait_for_all(self, collection: Collection) -> None:
        collection.presence_known = True
        collection.stalled.clear()  # set before presence was known
        for device in self._context.online:
            collection.connected(device)
        self._mark_stalled(collection)

    def _mark_stalled(self, collection: Collection) -> None:
        collection.stalled |= {d for d in collection.due if not self.attendance.waits_for(d)}

    def set_aside(self, device: str) -> fx.Effects:
        """Stop waiting for a device whose messages are dropped for a while."""
        self.attendance.set_aside(device)
        out: fx.Effects = []
        for collection in self.collections.values():
            if collection.open:
                collection.stalled.add(device)
                out += self.advance(collection)
        return out

    def fits(self, manifest: m.Manifest) -> bool:
        """Return whether the spool can hold an upload of every connected device."""
        collection, settings = self._collection(manifest), self._context.settings
        promised_bytes = len(self._context.online) * collection.slot_bytes
        return not collection.cover or promised_bytes <= settings.spool_bytes

    def newest(self, job_id: bytes) -> tuple[int, int]:
        """Return (round, attempt) of a job's newest round, by default (-1, -1)."""
        found = [(at.round, at.attempt) for at in self.collections if at.job_id == job_id]
        return max(found, default=(-1, -1))

    def drop_job(self, job_id: bytes) -> fx.Effects:
        out: fx.Effects = []
        for at in [at for at in self.collections if at.job_id == job_id]:
            out += self.drop(at)
            del self.collections[at]
            self._context.memory.delivered.discard(at)
        return out

    def drop(self, at: m.RoundId) -> fx.Effects:
        self._context.memory.batches.pop(at, None)
        self._puts.pop(at, None)
        memory = self._context.memory
        own = memory.halves.get((at.job_id, at.round))
        if own is not None and own.at == at:  # the noise before is used up
            for key in [key for key in memory.halves if key[0] == at.job_id and key[1] < at.round]:
                del memory.halves[key]
        collection = self.collections.get(at)
        if collection:
            self.uploads_ended(at)
            self._context.memory.delivered.add(at)  # stays closed after a restart
            collection.forget_ciphertext()
            collection.senders = ()
            collection.step("dropped")
        timers = [fx.CancelTimer(_timer(kind, at)) for kind in _TIMERS]
        return [fx.Persist(RoundDropped(at)), *timers]

    def stream(
        self, collection: Collection, uploads: Iterable[tuple[int, HeldUpload]]
    ) -> fx.Effects:
        masked = [(i, held.slot, held.groups) for i, held in uploads if held.seed is not None]
        if not masked:
            return []
        stream = collection.stream = collection.stream or _Stream()
        stream.waiting += masked
        return self._deal(collection, stream)

    def _deal(self, collection: Collection, stream: _Stream) -> fx.Effects:
        settings, manifest = self._context.settings, collection.manifest
        least = settings.min_batch_floor
        count = len(stream.waiting) - least
        masked_bytes = sum(collection.segment_bytes[group] for group in collection.masked)
        enough = count >= least and count * masked_bytes >= settings.lot_bytes
        if stream.at_work or not enough:
            return []
        stream.begun = stream.at_work = True
        chunk, stream.waiting = stream.waiting[:count], stream.waiting[count:]
        task = StreamUploads(
            manifest.at,
            collection.segment_bytes,
            collection.slot_bytes,
            tuple(chunk),
            collection.masked,
            keep_order=not manifest.shuffled,
        )
        return [fx.Work(task, task.at)]

    def streamed(self, task: StreamUploads, result: object) -> fx.Effects:
        """Announce the chunk that the host appended, or retry it with a later one."""
        collection = self.collections.get(task.at)
        stream = collection.stream if collection else None
        if stream is None or stream.closed or collection is None:  # sent with the batch
            return []
        stream.at_work = False
        if not isinstance(result, StreamedUploads):  # sent with a later chunk or the batch
            stream.waiting[:0] = task.uploads
            return [fx.Report("stream_failed", {"round": task.at.round}, task.at)]
        stream.written = result
        out: fx.Effects = []
        if (blob := self._whole_parts(result)).size_bytes:
            note = self._context.signer.note(m.Arrived(task.at, blob))
            out.append(fx.Send(fx.CloudAddress(), note))
        return out + self._deal(collection, stream)

    def _whole_parts(self, written: StreamedUploads) -> m.Blob:
        each = tr.part_bytes(self._context.settings.packet_bytes)
        return m.Blob(written.name, len(written.data) // each * each, each)

    def advance(self, collection: Collection, **timer: bool) -> fx.Effects:
        verdict = collection.verdict(**timer)
        if verdict is None:
            return []
        collection.step(verdict)
        at = collection.manifest.at
        if collection.state is CollectionState.GRACE:
            # With cover traffic answers are due at random times until the window ends.
            grace_s = collection.manifest.grace_s + self._context.settings.cover_window_s
            return [_set("grace", at, grace_s)]
        self.uploads_ended(at)
        silent = collection.manifest.selected - len(collection.uploads) - len(collection.declined)
        absent = [answer_report("absent", silent)] if silent > 0 else []
        if collection.state is not CollectionState.SHORT:
            # A short round is evidence about the fleet, not about single devices.
            self.attendance.missed(collection.due)
            return [*absent, self._shuffle(collection)]
        collection.forget_ciphertext()  # the cloud can only repeat the round
        return [*absent, fx.Persist(UploadsDropped(at)), *self._short(at)]

    def _shuffle(self, collection: Collection) -> fx.Effect:
        uploads = tuple((held.slot, held.groups) for held in collection.uploads.values())
        if stream := collection.stream:  # parts may be requested until the batch exists
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

    def shuffled(self, task: ShuffleRound, result: object) -> fx.Effects:
        """Sign the durable batch, forget its senders and hand it over."""
        at, context = task.at, self._context
        memory, settings = context.memory, context.settings
        collection = self.collections.get(at)
        if collection is None or collection.state is not CollectionState.SHUFFLING:
            # The round was dropped meanwhile, perhaps before this file existed.
            return [] if at in memory.batches else [fx.Persist(RoundDropped(at))]
        if not isinstance(result, ShuffledBatch):  # e.g. a full disk: retry
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

    def report_all(self) -> fx.Effects:
        """Offer every batch that the cloud does not hold, and report every shortfall."""
        batches = [effect for at in self._context.memory.batches for effect in self._hand_over(at)]
        return batches + self.report_short()

    def report_short(self) -> fx.Effects:
        known = self.collections.items()
        short = [at for at, collection in known if collection.state is CollectionState.SHORT]
        return [effect for at in short for effect in self._short(at)]

    def _hand_over(self, at: m.RoundId, *, push: bool = True) -> fx.Effects:
        kept = self._context.memory.batches.get(at)
        if kept is None:
            return []
        limit, blob = self._context.settings, kept.batch.blob
        packets = tr.sends(
            fx.CloudAddress(),
            self._context.signer.header(kept.batch),  # with the current key
            blob,
            kept.data,
            limit.packet_bytes,
            # The cloud already has most of a streamed batch and requests the remainder.
            push=push and blob.size_bytes <= limit.push_bytes and not kept.batch.stream,
            out_of_band=self._put(at).takes(blob) and not kept.batch.stream,
        )
        return [*packets, _set("handover", at, limit.resend_s)]

    def _put(self, at: m.RoundId) -> tr.StorePut:
        urls = self._context.settings.blob_urls
        new = tr.StorePut(self._context.signer, fx.CloudAddress(), urls)
        return self._puts.setdefault(at, new)

    def begin_put(self, target: m.BlobAt) -> fx.Effects:
        """Put a batch at the cloud's URL. Raises ProtocolError `foreign_url`."""
        kept = self._batch(target.blob)
        return self._put(kept.at).begin(target, kept.batch.blob, kept.data) if kept else []

    def _batch(self, digest: bytes) -> BatchKept | None:
        batches = self._context.memory.batches.values()
        return next((kept for kept in batches if kept.batch.blob.digest == digest), None)

    def end_put(self, task: tr.PutOutOfBand, result: object) -> fx.Effects:
        if (kept := self._batch(task.blob.digest)) is None:
            return []
        stored, out = self._put(kept.at).end(task, result)
        return out if stored else [*out, *self._hand_over(kept.at, push=False)]

    def _short(self, at: m.RoundId) -> fx.Effects:
        collection, settings = self.collections[at], self._context.settings
        doublings = min(collection.shortfalls_sent, 16)
        wait_s = min(settings.resend_s * 2.0**doublings, settings.waits_cap_s)
        collection.shortfalls_sent += 1
        shortfall = m.Shortfall(at, *collection.counts, self._context.offline_count)
        sent = fx.Send(fx.CloudAddress(), self._context.signer.note(shortfall))
        return [sent, _set("short", at, wait_s)]

    def need(self, need: m.Need) -> fx.Effects:
        for kept in self._context.memory.batches.values():
            if need.blob in (kept.batch.blob.digest, kept.batch.stream):
                blob = structs.replace(kept.batch.blob, digest=need.blob)
                return tr.answer_need(fx.CloudAddress(), need, blob, kept.data)
        for collection in self.collections.values():
            written = collection.stream.written if collection.stream else None
            if written is not None and written.name == need.blob:
                blob = self._whole_parts(written)
                return tr.answer_need(fx.CloudAddress(), need, blob, written.data)
        raise ProtocolError("unknown_blob")

    def delivered(self, ack: m.Ack) -> fx.Effects:
        """Delete a batch that the cloud holds; keep a masked one if the ack is `closed`."""
        if (kept := self._batch(ack.blob)) is None:
            return []
        at, memory = kept.at, self._context.memory
        stop = fx.CancelTimer(_timer("handover", at))
        if ack.status == "closed" and kept.seeds:
            return [stop]
        del memory.batches[at]
        self._puts.pop(at, None)
        memory.delivered.add(at)
        if at in self.collections:
            self.collections[at].step("held_by_cloud")
            self.collections[at].senders = ()
        return [fx.Persist(BatchDelivered(at)), stop]

    def timer(self, name: str) -> fx.Effects:
        kind, job, round, attempt = name.split(":")
        at = m.RoundId(bytes.fromhex(job), int(round), int(attempt))
        collection = self.collections.get(at)
        if collection is None:
            return []
        match kind, collection.state:
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


MISFIT = "misfit"  # upload that does not fit its mask or round, as the cloud reports


class ProxyMasks:
    """Answers to the cloud's requests about the masks of batches being handed over."""

    def __init__(self, context: ProxyContext, rounds: ProxyRounds) -> None:
        self._context, self._rounds = context, rounds
        self._at_work = b""  # digest of the request that the host works on
        self._ready: tuple[m.MaskSums, bytes] | None = None  # the newest answer

    def asked(self, request: m.Unmask | m.CheckMasks, signed: m.Envelope) -> fx.Effects:
        question = hashlib.sha256(signed.payload).digest()
        try:
            task = self._task(request, question)
        except ProtocolError as error:
            refusal = self._context.ack(fx.CloudAddress(), question, "refused", error.reason)
            return [fx.Refuse(error.reason), refusal]
        key, memory = (request.at.job_id, request.at.round), self._context.memory
        out: fx.Effects = []
        if isinstance(request, m.Unmask) and key not in memory.unmasked:
            memory.unmasked[key] = RoundUnmasked(request.at, question)
            out.append(fx.Persist(memory.unmasked[key]))
        if self._ready is not None and self._ready[0].question == question:
            return [*out, *self._offer(*self._ready)]
        if self._at_work == question:
            return out
        self._at_work = question
        return [*out, fx.Work(task)]

    def _task(self, request: m.Unmask | m.CheckMasks, question: bytes) -> SumMasks:
        """Return the work for a request. Raises ProtocolError with the refusal's reason."""
        memory, at = self._context.memory, request.at
        collection, batch = self._rounds.collections.get(at), memory.batches.get(at)
        known = memory.unmasked.get((at.job_id, at.round))
        repeated = known is not None and known.question == question
        same = isinstance(request, m.CheckMasks) or repeated
        if known is not None and (known.at != at or not same):
            raise ProtocolError("unmasked_already")
        handing_over = collection and collection.state is CollectionState.HANDING_OVER
        if collection is None or batch is None or not handing_over:
            raise ProtocolError("unknown_round")
        if batch.batch.blob.digest != request.batch or not batch.seeds:
            raise ProtocolError("unknown_batch")
        manifest = collection.manifest
        vectors = masked_vectors(manifest.at, manifest.groups, manifest.masked)
        if isinstance(request, m.CheckMasks):
            check_factors(manifest, key := CheckKey(request.key))
            return SumMasks(at, question, vectors, (batch.seeds,), key)
        chosen = chosen_of(request.chosen, len(batch.seeds))
        sets = dealt(chosen, manifest.sets)
        if min(map(len, sets)) < collection.floor // len(sets) or len(chosen) < collection.floor:
            raise ProtocolError("choice_below_floor")
        seeds = tuple(tuple(batch.seeds[index] for index in members) for members in sets)
        if manifest.correlated is None:
            return SumMasks(at, question, vectors, seeds)
        if len(request.key) != KEY_BYTES:
            raise ProtocolError("wrong_factors")
        check_factors(manifest, factors := CheckKey(request.key))
        before, number = self._newest_half(at.job_id, at.round), manifest.correlated.number - 1
        known_half = before is not None and before.question == request.before
        half = b""
        if before is not None and known_half and before.correlated.number == number:
            half = before.half
        noise = manifest.correlated
        return SumMasks(
            at, question, vectors, seeds, correlated=noise, factors=factors, before=half
        )

    def _newest_half(self, job_id: bytes, below: int) -> NoiseHalf | None:
        """Return this proxy's half of the job's newest round before index `below`."""
        halves = self._context.memory.halves
        found = [key for key in halves if key[0] == job_id and key[1] < below]
        return halves[max(found)] if found else None

    def misfits(self, report: m.Misfits) -> fx.Effects:
        """Name the senders of misfits, once. Raises ProtocolError `malformed_choice`."""
        collection = self._rounds.collections.get(report.at)
        batch = self._context.memory.batches.get(report.at)
        if collection is None or batch is None or batch.batch.blob.digest != report.batch:
            return []
        senders = collection.senders  # unknown after a restart
        places = chosen_of(report.places, len(senders)) if senders else []
        collection.senders = ()
        return [fx.Refuse(MISFIT, fx.DeviceAddress(senders[place])) for place in places]

    def summed(self, task: SumMasks, result: object) -> fx.Effects:
        self._at_work = b""
        if not isinstance(result, SummedMasks):  # the cloud repeats its request
            return [fx.Report("masks_not_summed", {"round": task.at.round})]
        if task.at not in self._rounds.collections:  # its job or attempt has ended meanwhile
            return []
        kept: fx.Effects = []
        if task.correlated is not None:
            half = NoiseHalf(task.at, task.correlated, task.question, result.half)
            self._context.memory.halves[task.at.job_id, task.at.round] = half
            kept = [fx.Persist(half)]
        blob = tr.describe(result.data, tr.part_bytes(self._context.settings.packet_bytes))
        self._ready = (m.MaskSums(task.at, task.question, blob), result.data)
        data = {"round": task.at.round, "uploads": sum(map(len, task.sets))}
        report = fx.Report("masks_checked" if task.key else "unmasked", data)
        return [*kept, report, *self._offer(*self._ready)]

    def _offer(self, sums: m.MaskSums, data: bytes) -> fx.Effects:
        settings = self._context.settings
        signed = self._context.signer.header(sums)
        push = len(data) <= settings.push_bytes
        return tr.sends(
            fx.CloudAddress(), signed, sums.blob, data, settings.packet_bytes, push=push
        )

    def need(self, need: m.Need) -> fx.Effects | None:
        """Send parts of the sums; returns None if another blob is requested."""
        if self._ready is None or self._ready[0].blob.digest != need.blob:
            return None
        return tr.answer_need(fx.CloudAddress(), need, self._ready[0].blob, self._ready[1])

    def why_not(self, header: m.Manifest) -> str:
        """Return the reason to refuse a round's broadcast, or ""."""
        memory, at = self._context.memory, header.at
        known = memory.unmasked.get((at.job_id, at.round))
        ended = bool(header.masked) and at.job_id in memory.summed
        if ended or (known is not None and known.at != at):
            return "unmasked_already"
        noise = header.correlated
        try:
            found = masked_vectors(header.at, header.groups, header.masked)
            if not header.check and any(one.ring.bits > UNCHECKED_BITS for one in found):
                return "malformed_masks"
            if noise is not None:
                noise_vector(header)
        except ProtocolError as error:
            return error.reason
        before = self._newest_half(at.job_id, at.round)
        if noise is not None and before is not None:
            again = noise.number <= before.correlated.number
            if again or noise.job != before.correlated.job:
                return "other_noise"
        if noise is not None and noise.number > noise.rounds:
            return "other_noise"
        floor = self._context.settings.min_batch_floor
        small = header.sets > 1 and header.min_batch < header.sets * floor
        return "sets_below_floor" if small else ""

    def acknowledged(self, ack: m.Ack) -> bool:
        """Drop the sums if the cloud acknowledges them; returns whether it does."""
        ready = self._ready
        if ready is None or ready[0].blob.digest != ack.blob:
            return False
        at, self._ready = ready[0].at, None
        collection = self._rounds.collections.get(at)
        if collection is not None and (at.job_id, at.round) in self._context.memory.unmasked:
            collection.senders = ()  # no report on single uploads follows the sums
        return True
