"""Rounds of a device: from a manifest to the cloud's record of the segments that it counted.

**Rounds.** Each job has one round at a time, with the states of `DEVICE_STATES`. A new manifest
(`is_new`) ends the job's previous round and is durable before anything of it is opened, so that a
restart refuses the same ones. The time at which an answer is sent (`AnswerWindow`) is fixed when
the package is opened, before a record is read: otherwise it would reveal the duration of the work.
A selected device consents and computes in its turn, or declines. An answer is durable before it is
sent, resent until the proxy acknowledges it, and kept until the commit record. With cover traffic
every device answers every round at a random time, with dummies if needed (`_CoverTraffic`).

**Turns.** Work on records is done for one job at a time. Its duration may depend on records, so a
turn ends at a time that was public before (the limit of work, ledger and seals), and no answer's
time depends on another job's work. Turns are ordered by deadline; work with too little time left is
declined, which depends on the same public times. A turn that read no record ends at once."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.sealed import Package, RoundPackage


@dataclass(frozen=True)
class OpenPackage:
    """Work: try the device's key on the stanzas. Returns `OpenedPackage` or `WorkFailed`."""

    manifest: m.Manifest
    blob: bytes


@dataclass(frozen=True)
class OpenedPackage:
    """Package, or None if no stanza is for this device, and inputs of `AnswerWindow`."""

    package: Package | None
    chance: float = 0.0  # random, in [0, 1)
    budget_s: float = 0.0  # of the job; 0: unknown
    needed_s: float = 0.0  # duration of the job's trial on synthetic records


@dataclass(frozen=True)
class ComputeAnswer:
    """Work: consent, infer, train, price, seal. Returns `SealedAnswer` or `NoAnswer`."""

    manifest: m.Manifest
    package: Package
    begun_s: float = 0.0  # machine time, like `closes_s`
    allowed_s: float = math.inf  # limit of the work on records
    closes_s: float = math.inf  # end of the round
    round_key: bytes = b""  # from the proxy's `RoundKey`, if segments are masked
    proxy_memory: bytes = b""

    @property
    def until_s(self) -> float:
        return self.begun_s + self.allowed_s


@dataclass(frozen=True)
class SealDummies:
    """Work: seal an unpriced dummy upload. Returns `SealedAnswer` or `NoAnswer`."""

    manifest: m.Manifest
    round_key: bytes = b""


@dataclass(frozen=True)
class SealedAnswer:
    """Priced, sealed segments in the order of `groups`, with their `segment_mark`s."""

    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    data: bytes
    marks: tuple[bytes, ...]
    dummy: bool = False
    at_once: bool = False  # independent of records, so it need not wait for its time
    encrypted_state: bytes = b""  # for the upload's header
    seed: bytes = b""  # of the masks, sealed to the proxy


@dataclass(frozen=True)
class NoAnswer:
    """Refusal to answer: `why` is for the owner, `cause` (of `DECLINE_CAUSES`) for the proxy."""

    why: str
    cause: str = "fit"


@dataclass(frozen=True)
class ManifestMark:
    """Newest manifest of a job, to refuse older and forked ones; `settled`: finished."""

    at: m.RoundId
    manifest_digest: bytes
    settled: bool = False


@dataclass(frozen=True)
class OutboxPut:
    """Sealed upload with its segments' marks; `held`: acknowledged by the proxy."""

    at: m.RoundId
    header: m.Envelope
    upload: m.Upload
    marks: tuple[bytes, ...]
    data: bytes
    dummy: bool = False
    held: bool = False


@dataclass(frozen=True)
class OutboxHeld:
    at: m.RoundId


Outcome = Literal["counted", "partial", "missing", "refused", "dropped"]


@dataclass(frozen=True)
class OutboxDrop:
    """Removal of an upload; `counted`, `partial`, `missing`: its segments in the commit record."""

    at: m.RoundId
    outcome: Outcome


@dataclass(frozen=True)
class LateRecord:
    """Outcome of an upload that the next round's had already replaced."""

    at: m.RoundId
    outcome: Outcome


@dataclass
class DeviceMemory:
    """State that survives a restart, loaded by the host, which applies `Persist` items to it."""

    seen: dict[bytes, ManifestMark] = field(default_factory=dict)
    jobs: dict[bytes, None] = field(default_factory=dict)  # known, oldest first
    closed: dict[bytes, None] = field(default_factory=dict)  # oldest first
    release_sequence: int = -1
    release_package: bytes = b""  # digest of the package in use
    statement: int = -1  # number of the newest one on releases
    report_due: m.Manifest | None = None
    reported: int = -1  # sequence of the last reported release
    epoch: int = 0  # of the cloud's keys that issued these numbers
    uploads: dict[bytes, OutboxPut] = field(default_factory=dict)  # by job
    new_sealing: m.NewSealingKey | None = None  # not known to the proxy yet
    answered: int = -1  # number of the newest answer or dummy; -1: not counted


@dataclass(frozen=True)
class DeviceSettings:
    packet_bytes: int = 65536
    blob_bytes: int = 256 << 20
    fetch_bytes: int = 512 << 20
    jobs: int = 32
    repair_s: float = 1.0
    resend_s: float = 5.0
    waits_cap_s: float = 30.0
    require_cover: bool = False  # owner's choice: answer only with cover traffic
    blob_urls: tuple[str, ...] = ()  # allowed URL prefixes for fetching and storing blobs


# Shares of the available time: work ends at the first; until the second the answer, complete or cut
# short, is priced and sealed. Sending is spread randomly over what remains, so that a fleet's
# uploads do not arrive at once.
WORK_SHARE, LEAVE_SHARE = 3 / 4, 7 / 8
LEAST_WORK_S = 0.001  # minimum of a turn
BUSY = "the box computes for other jobs for too long"


@dataclass(frozen=True)
class Moment:
    """Machine times: work takes `allowed_s` from `begun_s`; its result is sent at `leaves_s`."""

    begun_s: float = 0.0
    allowed_s: float = math.inf
    leaves_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self.leaves_s - now_s)


@dataclass(frozen=True)
class AnswerWindow:
    """Inputs of an answer's time, all known before a record is read."""

    begun_s: float = 0.0  # receipt of the package
    budget_s: float = 0.0  # of the job; 0: unknown
    cover_s: float = 0.0  # window of cover traffic; 0: none
    chance: float = 0.0  # random, in [0, 1)
    closes_s: float = math.inf  # end of the round
    needed_s: float = 0.0  # duration of the job's trial on synthetic records

    def moment(self, start_s: float) -> Moment:
        """Return the times of an answer whose work begins at `start_s`, not before `begun_s`.

        With cover traffic all answers and dummies are sent in the second half of the window, so its
        first half limits the work; without it the times shift with `start_s`."""
        if self.cover_s:
            half_s = self.cover_s / 2
            least_s = min(self.budget_s or half_s, half_s)
            until_s = min(start_s + least_s * WORK_SHARE, self.begun_s + half_s * WORK_SHARE)
            leaves_s = self.begun_s + half_s + self.chance * half_s
            return Moment(start_s, max(0.0, until_s - start_s), leaves_s)
        if not self.budget_s:
            return Moment(start_s, math.inf, start_s)
        span_s = max(0.0, min(self.budget_s, self.closes_s - start_s))
        leaves = LEAVE_SHARE + self.chance * (1 - LEAVE_SHARE)
        return Moment(start_s, span_s * WORK_SHARE, start_s + span_s * leaves)

    @property
    def due_s(self) -> float:
        return self.begun_s + self.cover_s / 2 * WORK_SHARE if self.cover_s else self.closes_s


class _CoverTraffic:
    """Cover traffic as last requested by the proxy, which repeats its request after each hello.

    No message ends it, since an old one could be replayed: it ends with the first round on a new
    link without a request."""

    def __init__(self) -> None:
        self._window_s = self._span_s = self._begun_s = self._offered_s = 0.0
        self._requested = False  # on this link

    @property
    def on(self) -> bool:
        return self._window_s > 0

    def connected(self) -> None:
        """Expire a request of the previous link after its round."""
        self._requested = False

    def request(self, cover: m.Cover) -> None:
        self._window_s, self._requested = cover.window_s, True

    def offered(self, now_s: float) -> None:
        self._offered_s = now_s
        if not self._requested:
            self._window_s = 0.0

    def begin(self, manifest: m.Manifest, now_s: float) -> None:
        """Open the window, of at most half of the round's remaining time."""
        left_s = max(0.0, manifest.deadline_s - (now_s - self._offered_s))
        self._begun_s, self._span_s = now_s, min(self._window_s, left_s / 2)

    def window(self, manifest: m.Manifest, opened: OpenedPackage) -> AnswerWindow:
        closes_s = self._offered_s + manifest.deadline_s
        budget_s, chance, needed_s = opened.budget_s, opened.chance, opened.needed_s
        return AnswerWindow(self._begun_s, budget_s, self._span_s, chance, closes_s, needed_s)


class DeviceState(Enum):
    IDLE = "idle"
    FETCHING = "fetching"
    OPENING = "opening"
    WORKING = "working"
    UPLOADING = "uploading"
    ANSWERED = "answered"


_S = DeviceState
DEVICE_STATES = fx.StateTable(
    _S.IDLE,
    {(state, "manifest"): _S.FETCHING for state in DeviceState}
    | {(state, "closed"): _S.IDLE for state in DeviceState}
    | {
        (_S.FETCHING, "complete"): _S.OPENING,
        (_S.FETCHING, "not_for_me"): _S.IDLE,
        (_S.OPENING, "not_for_me"): _S.IDLE,
        (_S.OPENING, "opened"): _S.WORKING,
        (_S.OPENING, "covering"): _S.WORKING,
        (_S.WORKING, "covering"): _S.WORKING,
        (_S.WORKING, "declined"): _S.IDLE,
        (_S.WORKING, "sealed"): _S.UPLOADING,
        (_S.IDLE, "restored"): _S.UPLOADING,
        (_S.IDLE, "restored_held"): _S.ANSWERED,
        (_S.UPLOADING, "held"): _S.ANSWERED,
        (_S.UPLOADING, "refused"): _S.IDLE,
        (_S.UPLOADING, "expired"): _S.IDLE,
        (_S.FETCHING, "expired"): _S.IDLE,
    },
)

# Maximum inline upload: a fleet answers at once, and a broker drops messages that it cannot queue.
INLINE_PACKET_BYTES = 16384


def timer_name(kind: str, job_id: bytes) -> str:
    return f"{kind}/{job_id.hex()}"


@dataclass(frozen=True)
class DeviceContext:
    """State shared by the parts of a device's machine; `round_keys` are the proxy's."""

    signer: m.Signer
    memory: DeviceMemory
    settings: DeviceSettings
    backoff: tr.Backoff
    round_keys: dict[bytes, m.RoundKey] = field(default_factory=dict)

    def round_key(self, manifest: m.Manifest) -> m.RoundKey | None:
        known = self.round_keys.get(manifest.at.job_id)
        return known if known is not None and known.at == manifest.at else None


class DeviceRound:
    """Round of a job, with timers `deadline` and `resend`; uploads are in `memory.uploads`."""

    def __init__(self, job_id: bytes, context: DeviceContext, cover: _CoverTraffic) -> None:
        self.job_id, self.cover, self._context = job_id, cover, context
        self._memory, self._settings = context.memory, context.settings
        self.state = DEVICE_STATES.start
        self.manifest: m.Manifest | None = None
        self._window, self._moment = AnswerWindow(), Moment()
        self._package: RoundPackage | None = None  # waiting for its turn
        self._resend, self._resends = timer_name("resend", job_id), 0
        self._deadline = timer_name("deadline", job_id)
        self._waiting: tuple[m.RoundId, SealedAnswer] | None = None  # until its time
        self._last: OutboxPut | None = None  # replaced by a newer round's; without its data
        self.store_put = tr.StorePut(context.signer, fx.ProxyAddress(), context.settings.blob_urls)

    @property
    def item(self) -> OutboxPut | None:
        return self._memory.uploads.get(self.job_id)

    @property
    def at(self) -> m.RoundId | None:
        item = self.item
        return self.manifest.at if self.manifest else item.at if item else None

    @property
    def is_over(self) -> bool:
        return self.state is DeviceState.IDLE and self.item is None

    @property
    def under_way(self) -> bool:
        """Whether the round awaits something of the device, until the proxy holds its answer."""
        return self.state not in (DeviceState.IDLE, DeviceState.ANSWERED)

    def connected(self) -> fx.Effects:
        self.cover.connected()
        item = self.item
        if item and self.state is DeviceState.IDLE:
            self._step("restored_held" if item.held else "restored")
        return self.offer_again()

    def offer_again(self) -> fx.Effects:
        return self._send() if self.state is DeviceState.UPLOADING else []

    def _step(self, happened: str) -> None:
        self.state = DEVICE_STATES.step(self.state, happened)

    def is_new(self, mark: ManifestMark) -> bool:
        """Return whether to take up a round. Raises `replayed_round` or `forked_manifest`."""
        at, seen, item = mark.at, self._memory.seen.get(mark.at.job_id), self.item
        if seen is None:
            return True
        if (at.round, at.attempt) < (seen.at.round, seen.at.attempt):
            raise ProtocolError("replayed_round")
        if at == seen.at and mark.manifest_digest != seen.manifest_digest:
            raise ProtocolError("forked_manifest")
        here = (self.manifest and self.manifest.at == at) or (item and item.at == at)
        return not here and not (at == seen.at and seen.settled)

    def begin(self, manifest: m.Manifest, mark: ManifestMark, now_s: float) -> fx.Effects:
        known = self._memory.seen.get(manifest.at.job_id) == mark
        self._step("manifest")
        self._memory.seen[manifest.at.job_id] = mark
        self.manifest, self._package = manifest, None
        self.cover.offered(now_s)
        out: fx.Effects = [] if known else [fx.Persist(mark)]
        out += [*self._drop(), fx.CancelTimer(self._resend)]
        return [*out, fx.SetTimer(self._deadline, manifest.deadline_s + manifest.grace_s)]

    def complete(self, manifest: m.Manifest, data: bytes, now_s: float) -> fx.Effects:
        self._step("complete")
        self.cover.begin(manifest, now_s)
        return [fx.Work(OpenPackage(manifest, data))]

    def fix_window(self, manifest: m.Manifest, opened: OpenedPackage) -> None:
        """Fix the answer's time before a record is read."""
        if manifest == self.manifest:
            self._window = self.cover.window(manifest, opened)
            self._moment = self._window.moment(self._window.begun_s)

    def opened(self, manifest: m.Manifest, package: Package) -> fx.Effects:
        if manifest.kind != "round" or not isinstance(package, RoundPackage):
            return [*self.not_for_me(manifest), fx.Refuse("malformed_package")]
        if manifest != self.manifest:
            return []
        self._step("opened")
        if self._settings.require_cover and not self.cover.on:
            return self.uncovered(
                manifest, "policy.require_cover is set, and the proxy sends no cover traffic"
            )
        self._package = package
        return []

    @property
    def due_s(self) -> float | None:
        """Latest end of the waiting work on records; None without any."""
        return None if self._package is None else self._window.due_s

    def has_time(self, free_s: float) -> bool:
        """Return whether work that begins at `free_s` has enough time."""
        window = self._window
        if free_s <= window.begun_s:
            return True  # the job's own trial decides
        return window.moment(free_s).allowed_s >= max(window.needed_s, LEAST_WORK_S)

    def begin_work(self, free_s: float) -> ComputeAnswer:
        manifest, package, self._package = self.manifest, self._package, None
        if manifest is None or package is None:
            raise ProtocolError("no_work_waits")
        self._moment = found = self._window.moment(max(free_s, self._window.begun_s))
        closes_s = self._window.closes_s
        task = ComputeAnswer(manifest, package, found.begun_s, found.allowed_s, closes_s)
        key = self._context.round_key(manifest)
        return task if key is None else replace(task, round_key=key.key, proxy_memory=key.memory)

    def out_of_time(self) -> fx.Effects:
        """Decline for lack of time, which depends on public times only."""
        manifest, self._package = self.manifest, None
        return [] if manifest is None else self.declined(manifest, BUSY, "conditions")

    def not_for_me(self, manifest: m.Manifest) -> fx.Effects:
        """End the round of a device that is not selected; send dummies under cover."""
        if manifest != self.manifest:
            return []
        if self.cover.on:
            return self._answer_with_dummies(manifest)
        self._step("not_for_me")
        return []

    def declined(self, manifest: m.Manifest, why: str, cause: str) -> fx.Effects:
        """Decline as a selected device; under cover send dummies instead of a note."""
        data = {**place(manifest.at), "cause": cause, "why": why}
        report = fx.Report("declined", data, manifest.at)
        if manifest != self.manifest:
            return [report]
        if self.cover.on:
            return [report, *self._answer_with_dummies(manifest)]
        self._step("declined")
        settled = replace(self._memory.seen[manifest.at.job_id], settled=True)
        self._memory.seen[manifest.at.job_id] = settled
        note = self._context.signer.note(m.Decline(manifest.at, cause))
        return [fx.Persist(settled), report, fx.Send(fx.ProxyAddress(), note)]

    def _answer_with_dummies(self, manifest: m.Manifest) -> fx.Effects:
        self._step("covering")
        key = self._context.round_key(manifest)
        return [fx.Work(SealDummies(manifest, b"" if key is None else key.key))]

    def uncovered(self, manifest: m.Manifest, why: str) -> fx.Effects:
        """Report a missing dummy; a note would reveal that there was no other answer."""
        if manifest == self.manifest:
            self._step("declined")
        return [fx.Report("uncovered", {**place(manifest.at), "why": why})]

    def answered(
        self, manifest: m.Manifest, answer: object, now_s: float, *, dummies: bool = False
    ) -> fx.Effects:
        if isinstance(answer, SealedAnswer):
            return self.sealed(manifest, answer, now_s)
        match answer:
            case NoAnswer(why=why, cause=cause):
                pass
            case fx.WorkFailed(reason=why):
                cause = "fault"
            case _:
                return []
        return self.uncovered(manifest, why) if dummies else self.declined(manifest, why, cause)

    def sealed(self, manifest: m.Manifest, sealed: SealedAnswer, now_s: float) -> fx.Effects:
        """Send an answer at its time, kept in memory until then.

        On disk, a dummy would survive a restart in which an answer still being computed is lost."""
        if manifest != self.manifest:
            return []  # replaced by a newer round meanwhile
        self._step("sealed")
        at_once = sealed.at_once and not self.cover.on
        wait_s = 0.0 if at_once else self._moment.wait_s(now_s)
        if wait_s > 0:
            self._waiting = manifest.at, sealed
            return [fx.SetTimer(self._resend, wait_s)]
        return self._put(manifest.at, sealed)

    def _put(self, at: m.RoundId, sealed: SealedAnswer) -> fx.Effects:
        self._waiting, memory, signer = None, self._memory, self._context.signer
        blob = tr.describe(sealed.data, tr.part_bytes(self._settings.packet_bytes))
        memory.answered += memory.answered >= 0
        number = max(0, memory.answered)
        upload = m.Upload(at, sealed.groups, blob, number, sealed.encrypted_state, sealed.seed)
        signed = signer.header(upload)
        item = OutboxPut(at, signed, upload, sealed.marks, sealed.data, sealed.dummy)
        memory.uploads[self.job_id], self._resends = item, 0
        return [fx.Persist(item), *self._send()]

    def _send(self) -> fx.Effects:
        """Offer the upload, inline if it is small; the proxy requests parts otherwise."""
        item, settings = self.item, self._settings
        if item is None:
            return []
        wait_s = self._context.backoff.wait_s(
            settings.resend_s, self._resends, settings.waits_cap_s
        )
        to, blob = fx.ProxyAddress(), item.upload.blob
        whole_bytes = min(settings.packet_bytes, INLINE_PACKET_BYTES)
        out_of_band = self.store_put.takes(blob)
        packets = tr.sends(
            to, item.header, blob, item.data, whole_bytes, push=False, out_of_band=out_of_band
        )
        return [*packets, fx.SetTimer(self._resend, wait_s)]

    def resend(self) -> fx.Effects:
        if self.state is not DeviceState.UPLOADING:
            return []
        if self._waiting is not None:
            return self._put(*self._waiting)
        if self.store_put.in_progress:
            return [fx.SetTimer(self._resend, self._settings.resend_s)]
        self._resends += 1
        return self._send()

    def begin_put(self, at: m.BlobAt) -> fx.Effects:
        """Put the upload at the proxy's URL. Raises ProtocolError `foreign_url`."""
        item = self.item
        if item is None or item.held:
            return []
        return self.store_put.begin(at, item.upload.blob, item.data)

    def end_put(self, task: tr.PutOutOfBand, result: object) -> fx.Effects:
        """Wait for the proxy to take the stored upload, or offer it again."""
        stored, out = self.store_put.end(task, result)
        item = self.item
        if item is None or item.upload.blob.digest != task.blob.digest or item.held:
            return []
        return out if stored else [*out, *self.resend()]

    def acknowledged(self, ack: m.Ack) -> fx.Effects:
        item = self.item
        if item is None or self.state is not DeviceState.UPLOADING:
            return []
        stop = fx.CancelTimer(self._resend)
        if ack.status == "held":
            self._step("held")
            self._memory.uploads[self.job_id] = replace(item, held=True)
            return [stop, *([] if item.held else [fx.Persist(OutboxHeld(item.at))])]
        self._step("refused")
        data = {**place(item.at), "why": ack.reason or ack.status}
        # Only a refusal proves that it was never taken: an earlier acknowledgement may be lost.
        out = [stop, *self._drop("refused" if ack.status == "refused" else "dropped")]
        return out if item.dummy else [*out, fx.Report("upload_refused", data)]

    def awaited(self, at: m.RoundId) -> OutboxPut | None:
        return next((one for one in (self.item, self._last) if one and one.at == at), None)

    def committed(self, commit: m.Commit, marks: bytes) -> fx.Effects:
        item, late = self.item, self._last
        current = item is not None and item.at == commit.at
        if current:
            self._step("closed")
        elif late is not None and late.at == commit.at:
            item, self._last = late, None
        else:
            return []
        if item is None:
            return []
        found, segments = counted(item, marks), len(item.marks)
        outcome: Outcome = "counted" if found == segments else "partial" if found else "missing"
        out: fx.Effects = [fx.Persist(LateRecord(item.at, outcome))]
        if current:
            out = [fx.CancelTimer(self._resend), *self._drop(outcome)]
        data = {**place(item.at), "segments": segments, "counted": found}
        return out if item.dummy else [*out, fx.Report("counted", data)]

    def _drop(self, outcome: Outcome = "dropped") -> fx.Effects:
        self._waiting = None
        item = self._memory.uploads.pop(self.job_id, None)
        if item is None:
            return []
        if outcome == "dropped":  # the commit record may still arrive
            self._last = replace(item, data=b"")
        at, seen = item.at, self._memory.seen.get(self.job_id)
        if seen is not None and seen.at == at:
            self._memory.seen[self.job_id] = replace(seen, settled=True)
        return [fx.Persist(OutboxDrop(at, outcome))]

    def job_closed(self) -> fx.Effects:
        self._step("closed")
        self.manifest = self._package = None
        timers = [fx.CancelTimer(self._resend), fx.CancelTimer(self._deadline)]
        return [*self._drop(), *timers]

    def expired(self) -> fx.Effects | None:
        """End the round; returns None if an answer is in progress or acknowledged."""
        if not DEVICE_STATES.allows(self.state, "expired"):
            return None
        self._step("expired")
        return [fx.CancelTimer(self._resend), *self._drop()]


def place(at: m.RoundId) -> dict[str, object]:
    return {"job": m.short_name(at.job_id), "round": at.round}


def counted(item: OutboxPut, marks: bytes) -> int:
    """Return how many of an upload's segments are in a commit record's sorted marks."""

    def mark_at(place: int) -> bytes:
        return marks[place * 32 : (place + 1) * 32]

    places = range(len(marks) // 32)
    return sum(mark_at(bisect_left(places, mark, key=mark_at)) == mark for mark in item.marks)


TURN = "turn"
TURN_SHARE = LEAVE_SHARE / WORK_SHARE  # multiple of the time for work


class DeviceRounds:
    """Rounds by job and their turns, with one further timer `turn`."""

    def __init__(self, context: DeviceContext) -> None:
        self.context, self._cover = context, _CoverTraffic()
        self._rounds: dict[bytes, DeviceRound] = {}
        self.last: DeviceRound | None = None  # most recently active
        self._at_work: ComputeAnswer | None = None
        self._free_s = -math.inf  # end of its turn
        for job_id in context.memory.uploads:
            self._begin(job_id)

    def __iter__(self) -> Iterator[DeviceRound]:
        return iter(list(self._rounds.values()))

    def of(self, job_id: bytes) -> DeviceRound | None:
        found = self._rounds.get(job_id)
        self.last = found or self.last
        return found

    def with_upload(self, digest: bytes) -> DeviceRound | None:
        for round_ in self:
            if (item := round_.item) is not None and item.upload.blob.digest == digest:
                return self.of(round_.job_id)
        return None

    def take_up(self, job_id: bytes) -> DeviceRound:
        """Return the job's round, new if needed. Raises ProtocolError `too_many_rounds`."""
        if found := self.of(job_id):
            return found
        if len(self._rounds) >= self.context.settings.jobs:
            over = [round_.job_id for round_ in self if round_.is_over]
            if not over:
                raise ProtocolError("too_many_rounds")
            del self._rounds[over[0]]
        return self._begin(job_id)

    def _begin(self, job_id: bytes) -> DeviceRound:
        made = DeviceRound(job_id, self.context, copy(self._cover))
        self._rounds[job_id] = self.last = made
        return made

    @property
    def under_way(self) -> bool:
        return any(round_.under_way for round_ in self)

    def connected(self) -> fx.Effects:
        self._cover.connected()
        return [effect for round_ in self for effect in round_.connected()]

    def request_cover(self, cover: m.Cover) -> None:
        for one in (self._cover, *(round_.cover for round_ in self)):
            one.request(cover)

    def set_round_key(self, key: m.RoundKey) -> None:
        keys = self.context.round_keys
        keys.pop(key.at.job_id, None)
        keys[key.at.job_id] = key
        while len(keys) > self.context.settings.jobs:
            del keys[next(iter(keys))]

    def opened(self, manifest: m.Manifest, package: Package, now_s: float) -> fx.Effects:
        round_ = self.of(manifest.at.job_id)
        if round_ is None:
            return []
        out = round_.opened(manifest, package)
        before = self._at_work
        if self._free_s == math.inf and before and before.manifest.at.job_id == round_.job_id:
            self._free_s = now_s  # an unlimited turn ends with its round
        return out + self.next_turn(now_s)

    def worked(self, task: ComputeAnswer, result: object, now_s: float) -> fx.Effects:
        """End a turn, after the round has taken the work's result."""
        if self._at_work is None or task.manifest != self._at_work.manifest:
            return []
        unread = not isinstance(result, SealedAnswer) or result.at_once
        if unread or self._free_s == math.inf:
            self._free_s = now_s
        return self.next_turn(now_s)

    def next_turn(self, now_s: float) -> fx.Effects:
        """Begin the waiting work with the earliest deadline if the device is free."""
        if self._free_s == math.inf:
            return []
        waiting = [(due_s, one) for one in self if (due_s := one.due_s) is not None]
        waiting.sort(key=lambda pair: pair[0])
        late = [one for _, one in waiting if not one.has_time(self._free_s)]
        waits = [one for _, one in waiting if one not in late]
        out = [effect for one in late for effect in one.out_of_time()]
        if waits and self._free_s <= now_s:
            task = waits.pop(0).begin_work(self._free_s)
            self._at_work, self._free_s = task, task.begun_s + task.allowed_s * TURN_SHARE
            out.append(fx.Work(task))
        if waits and self._free_s < math.inf:  # otherwise the end of the work starts the next turn
            out.append(fx.SetTimer(TURN, max(0.0, self._free_s - now_s)))
        return out
