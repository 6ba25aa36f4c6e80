"""The rounds of a device: from a manifest to the cloud's record of what it counted.

Theory of operation. Each job has one round at a time, in the states of `DEVICE_STATES`. A new
manifest (`is_new`) ends the job's round before it, and is durable before anything of it is opened,
so that a restart refuses what was refused before. When the package is opened, before a record is
read, the moment is fixed at which an answer leaves (`AnswerWindow`): a moment that depended on the
work would show how long that took. A selected device consents and computes in its turn, or
declines. An answer is durable before it is sent, sent until the proxy acknowledges it, and kept
until the round's record tells whether it was counted. Under cover traffic every device answers
every round, with dummies where it has no answer, at a random moment (`CoverTraffic`).

Work on records is done one job at a time, in *turns*. How long work takes may tell about records,
so a turn ends at a moment that was public before: the end of what work, ledger and seals may take.
So the moment of an answer never follows from how long another job's work took. Turns go by the
earliest deadline; work with too little time left is declined, which follows from the same public
moments. A turn that read no record ends at once."""

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
    """Try the device's key on the stanzas; result `OpenedPackage` or `WorkFailed`."""

    manifest: m.Manifest
    blob: bytes


@dataclass(frozen=True)
class OpenedPackage:
    """The package; None if no stanza was for this device. `chance` in [0, 1), the job's `budget_s`
    (0: not known) and the duration of its trial on made-up records (`needed_s`) fix the moment of
    the answer before any record is read."""

    package: Package | None
    chance: float = 0.0
    budget_s: float = 0.0
    needed_s: float = 0.0


@dataclass(frozen=True)
class ComputeAnswer:
    """Consent, infer, train, price, seal; result `SealedAnswer` or `NoAnswer`. Work on records ends
    `allowed_s` after `begun_s` (machine time); nobody waits for an answer after `closes_s`.
    `round_key` and `proxy_memory` are the proxy's (`RoundKey`), where segments are masked."""

    manifest: m.Manifest
    package: Package
    begun_s: float = 0.0
    allowed_s: float = math.inf
    closes_s: float = math.inf
    round_key: bytes = b""
    proxy_memory: bytes = b""

    @property
    def until_s(self) -> float:
        return self.begun_s + self.allowed_s


@dataclass(frozen=True)
class SealDummies:
    """Seal a dummy upload, of which no ledger knows. Result `SealedAnswer` or `NoAnswer`."""

    manifest: m.Manifest
    round_key: bytes = b""


@dataclass(frozen=True)
class SealedAnswer:
    """The priced, sealed segments, in the order of `groups`, each with its mark (`segment_mark`).
    `at_once`: no record had a part in it, so it need not wait for its moment. `deposit` is for the
    upload's header; `seed`, sealed to the proxy, that of the masks."""

    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    data: bytes
    marks: tuple[bytes, ...]
    dummy: bool = False
    at_once: bool = False
    deposit: bytes = b""
    seed: bytes = b""


@dataclass(frozen=True)
class NoAnswer:
    """Nothing will be sent. `why` is for the owner, `cause` (of `DECLINE_CAUSES`) for the proxy."""

    why: str
    cause: str = "fit"


@dataclass(frozen=True)
class ManifestMark:
    """The newest manifest of a job, to refuse older or forked ones. `settled`: done with."""

    at: m.RoundId
    manifest_digest: bytes
    settled: bool = False


@dataclass(frozen=True)
class OutboxPut:
    """A sealed upload with its segments' marks; `held`: the proxy acknowledged it."""

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
    """The upload is not needed any more, its attempt is settled. `counted`, `partial`, `missing`:
    the round's record names all of its segments, some, or none."""

    at: m.RoundId
    outcome: Outcome


@dataclass(frozen=True)
class LateRecord:
    """The record of a round whose upload gave its place to the next one's."""

    at: m.RoundId
    outcome: Outcome


@dataclass
class DeviceMemory:
    """What survives a restart; the host loads it and applies the `Persist` items to it."""

    seen: dict[bytes, ManifestMark] = field(default_factory=dict)
    jobs: dict[bytes, None] = field(default_factory=dict)  # known, the oldest first
    closed: dict[bytes, None] = field(default_factory=dict)  # the oldest first
    release_sequence: int = -1
    release_package: bytes = b""  # digest of the package in use
    statement: int = -1  # the number of the newest one on releases
    report_due: m.Manifest | None = None
    reported: int = -1  # the sequence of the release that was reported on last
    epoch: int = 0  # of the cloud's keys, in which these numbers were said
    uploads: dict[bytes, OutboxPut] = field(default_factory=dict)  # by job
    new_sealing: m.NewSealingKey | None = None  # that the proxy does not know yet
    answered: int = -1  # the number of the newest answer, dummies among them; -1: none is counted


@dataclass(frozen=True)
class DeviceSettings:
    packet_bytes: int = 65536
    blob_bytes: int = 256 << 20
    fetch_bytes: int = 512 << 20
    jobs: int = 32
    repair_s: float = 1.0
    resend_s: float = 5.0
    waits_cap_s: float = 30.0
    require_cover: bool = False  # the owner's choice: without cover traffic nothing is answered
    blob_urls: tuple[str, ...] = ()  # prefixes of URLs that blobs may be had from, or put to


# Of the time there is. Between the two an answer is put into the ledger and sealed, also one that
# is there only because the work was ended; what comes after is for leaving, spread by chance, so
# that a fleet's uploads do not come all at once.
WORK_SHARE, LEAVE_SHARE = 3 / 4, 7 / 8
LEAST_WORK_S = 0.001  # a turn of no time is none
BUSY = "the box computes for other jobs for too long"


@dataclass(frozen=True)
class Moment:
    """Machine time: work takes `allowed_s` from `begun_s` on; its result leaves at `leaves_s`."""

    begun_s: float = 0.0
    allowed_s: float = math.inf
    leaves_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self.leaves_s - now_s)


@dataclass(frozen=True)
class AnswerWindow:
    """What the moment of an answer follows from, all known before a record is read: when the
    package came, the job's budget (0: unknown), the window of cover traffic (0: none), `chance` in
    [0, 1), when the round closes, and how long an answer takes here on made-up records."""

    begun_s: float = 0.0
    budget_s: float = 0.0
    cover_s: float = 0.0
    chance: float = 0.0
    closes_s: float = math.inf
    needed_s: float = 0.0

    def moment(self, start_s: float) -> Moment:
        """The moment of an answer whose work begins at `start_s`, not before `begun_s`. Under cover
        all answers and dummies leave in the window's second half, so its first half is all there is
        for work, whenever it begins; without cover the moment moves with the beginning."""
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


class CoverTraffic:
    """Cover traffic, as the proxy asked for it last. It is not kept: the proxy asks after each
    hello. No message ends it, since an old one could be played again: it ends with the first round
    on a new link on which it was not asked for again."""

    def __init__(self) -> None:
        self._window_s = self._span_s = self._begun_s = self._heard_s = 0.0
        self._said = False  # on this link

    @property
    def on(self) -> bool:
        return self._window_s > 0

    def connected(self) -> None:
        """The link is new: what was asked for on the old one goes no further than its round."""
        self._said = False

    def asked(self, cover: m.Cover) -> None:
        self._window_s, self._said = cover.window_s, True

    def heard_of(self, now_s: float) -> None:
        self._heard_s = now_s
        if not self._said:
            self._window_s = 0.0

    def begin(self, manifest: m.Manifest, now_s: float) -> None:
        """The package is here: the window opens, of at most half of what is left of the round."""
        left_s = max(0.0, manifest.deadline_s - (now_s - self._heard_s))
        self._begun_s, self._span_s = now_s, min(self._window_s, left_s / 2)

    def window(self, manifest: m.Manifest, opened: OpenedPackage) -> AnswerWindow:
        closes_s = self._heard_s + manifest.deadline_s
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

# A fleet answers all at once, and a broker drops what it cannot queue: larger uploads wait until
# the proxy asks, so that thousands of devices need no more than this each at the broker.
INLINE_PACKET_BYTES = 16384


def timer_name(what: str, job_id: bytes) -> str:
    return f"{what}/{job_id.hex()}"


@dataclass(frozen=True)
class DeviceContext:
    """What the parts of a device's machine share. `round_keys`: the proxy's newest, by job."""

    signer: m.Signer
    memory: DeviceMemory
    settings: DeviceSettings
    backoff: tr.Backoff
    round_keys: dict[bytes, m.RoundKey] = field(default_factory=dict)

    def round_key(self, manifest: m.Manifest) -> m.RoundKey | None:
        known = self.round_keys.get(manifest.at.job_id)
        return known if known is not None and known.at == manifest.at else None


class DeviceRound:
    """A job's round; `memory.uploads` keeps its upload. Timers `deadline` and `resend`."""

    def __init__(self, job_id: bytes, context: DeviceContext, cover: CoverTraffic) -> None:
        self.job_id, self.cover, self._context = job_id, cover, context
        self._memory, self._settings = context.memory, context.settings
        self.state = DEVICE_STATES.start
        self.manifest: m.Manifest | None = None
        self._window, self._moment = AnswerWindow(), Moment()
        self._package: RoundPackage | None = None  # that waits for its turn
        self._resend, self._resends = timer_name("resend", job_id), 0
        self._deadline = timer_name("deadline", job_id)
        self._waiting: tuple[m.RoundId, SealedAnswer] | None = None  # until its moment
        self._last: OutboxPut | None = None  # gave its place to a newer round's, without its data
        self.beside = tr.LayingDown(context.signer, fx.ProxyAddress(), context.settings.blob_urls)

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
        """Whether the device still owes this round something: until the proxy holds its answer."""
        return self.state not in (DeviceState.IDLE, DeviceState.ANSWERED)

    def connected(self) -> list[fx.Effect]:
        """The link is up (again): send what was not acknowledged."""
        self.cover.connected()
        item = self.item
        if item and self.state is DeviceState.IDLE:
            self._step("restored_held" if item.held else "restored")
        return self.offer_again()

    def offer_again(self) -> list[fx.Effect]:
        """The proxy may have missed the upload: it, or the link, was away."""
        return self._send() if self.state is DeviceState.UPLOADING else []

    def _step(self, happened: str) -> None:
        self.state = DEVICE_STATES.step(self.state, happened)

    def is_new(self, mark: ManifestMark) -> bool:
        """Whether to take it up. Raises `replayed_round` or `forked_manifest`."""
        at, seen, item = mark.at, self._memory.seen.get(mark.at.job_id), self.item
        if seen is None:
            return True
        if (at.round, at.attempt) < (seen.at.round, seen.at.attempt):
            raise ProtocolError("replayed_round")
        if at == seen.at and mark.manifest_digest != seen.manifest_digest:
            raise ProtocolError("forked_manifest")
        here = (self.manifest and self.manifest.at == at) or (item and item.at == at)
        return not here and not (at == seen.at and seen.settled)

    def begin(self, manifest: m.Manifest, mark: ManifestMark, now_s: float) -> list[fx.Effect]:
        known = self._memory.seen.get(manifest.at.job_id) == mark
        self._step("manifest")
        self._memory.seen[manifest.at.job_id] = mark
        self.manifest, self._package = manifest, None
        self.cover.heard_of(now_s)
        out: list[fx.Effect] = [] if known else [fx.Persist(mark)]
        out += [*self._drop(), fx.CancelTimer(self._resend)]
        return [*out, fx.SetTimer(self._deadline, manifest.deadline_s + manifest.grace_s)]

    def complete(self, manifest: m.Manifest, data: bytes, now_s: float) -> list[fx.Effect]:
        self._step("complete")
        self.cover.begin(manifest, now_s)
        return [fx.Work(OpenPackage(manifest, data))]

    def fix_window(self, manifest: m.Manifest, opened: OpenedPackage) -> None:
        """Fix the moment of the answer, before a record is read and whatever it will be."""
        if manifest == self.manifest:
            self._window = self.cover.window(manifest, opened)
            self._moment = self._window.moment(self._window.begun_s)

    def opened(self, manifest: m.Manifest, package: Package) -> list[fx.Effect]:
        """The package is for this device: consent and work, once its turn has come."""
        if manifest.kind != "round" or not isinstance(package, RoundPackage):
            return [*self.not_for_me(manifest), fx.Refuse("malformed_package")]
        if manifest != self.manifest:
            return []
        self._step("opened")
        if self._settings.require_cover and not self.cover.on:
            return self.uncovered(manifest, "policy.require_cover, and the proxy asks for no cover")
        self._package = package
        return []

    @property
    def due_s(self) -> float | None:
        """When its work on records must have ended at the latest; None where none waits."""
        return None if self._package is None else self._window.due_s

    def has_time(self, free_s: float) -> bool:
        """Whether work that begins then, and not as the package comes, is worth beginning."""
        window = self._window
        if free_s <= window.begun_s:
            return True  # the job's own trial tells
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

    def out_of_time(self) -> list[fx.Effect]:
        """Decline: others' work leaves too little time, which follows from public moments alone."""
        manifest, self._package = self.manifest, None
        return [] if manifest is None else self.declined(manifest, BUSY, "conditions")

    def not_for_me(self, manifest: m.Manifest) -> list[fx.Effect]:
        """Not selected, or not to be opened: nothing to do but to cover those who were."""
        if manifest != self.manifest:
            return []
        if self.cover.on:
            return self._answer_with_dummies(manifest)
        self._step("not_for_me")
        return []

    def declined(self, manifest: m.Manifest, why: str, cause: str) -> list[fx.Effect]:
        """Selected, and nothing will be sent; under cover dummies are sent in place of a note."""
        told = {**place(manifest.at), "cause": cause, "why": why}
        report = fx.Report("declined", told, manifest.at)
        if manifest != self.manifest:
            return [report]
        if self.cover.on:
            return [report, *self._answer_with_dummies(manifest)]
        self._step("declined")
        settled = replace(self._memory.seen[manifest.at.job_id], settled=True)
        self._memory.seen[manifest.at.job_id] = settled
        note = self._context.signer.note(m.Decline(manifest.at, cause))
        return [fx.Persist(settled), report, fx.Send(fx.ProxyAddress(), note)]

    def _answer_with_dummies(self, manifest: m.Manifest) -> list[fx.Effect]:
        self._step("covering")
        key = self._context.round_key(manifest)
        return [fx.Work(SealDummies(manifest, b"" if key is None else key.key))]

    def uncovered(self, manifest: m.Manifest, why: str) -> list[fx.Effect]:
        """No dummy can be sent either; a note would show that there was nothing else to send."""
        if manifest == self.manifest:
            self._step("declined")
        return [fx.Report("uncovered", {**place(manifest.at), "why": why})]

    def answered(
        self, manifest: m.Manifest, answer: object, now_s: float, *, dummies: bool = False
    ) -> list[fx.Effect]:
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

    def sealed(self, manifest: m.Manifest, sealed: SealedAnswer, now_s: float) -> list[fx.Effect]:
        """Keep an answer in memory alone and send it at its moment: a dummy is ready at once, and
        on disk it would outlive a restart where an answer still computed does not."""
        if manifest != self.manifest:
            return []  # a newer round came while this one was computed
        self._step("sealed")
        at_once = sealed.at_once and not self.cover.on
        wait_s = 0.0 if at_once else self._moment.wait_s(now_s)
        if wait_s > 0:
            self._waiting = manifest.at, sealed
            return [fx.SetTimer(self._resend, wait_s)]
        return self._put(manifest.at, sealed)

    def _put(self, at: m.RoundId, sealed: SealedAnswer) -> list[fx.Effect]:
        self._waiting, memory, signer = None, self._memory, self._context.signer
        blob = tr.describe(sealed.data, tr.part_bytes(self._settings.packet_bytes))
        memory.answered += memory.answered >= 0
        number = max(0, memory.answered)
        upload = m.Upload(at, sealed.groups, blob, number, sealed.deposit, sealed.seed)
        signed = signer.header(upload)
        item = OutboxPut(at, signed, upload, sealed.marks, sealed.data, sealed.dummy)
        memory.uploads[self.job_id], self._resends = item, 0
        return [fx.Persist(item), *self._send()]

    def _send(self) -> list[fx.Effect]:
        """Offer the upload, whole if it is small; the proxy asks for parts of a larger one."""
        item, settings = self.item, self._settings
        if item is None:
            return []
        wait_s = self._context.backoff.wait_s(
            settings.resend_s, self._resends, settings.waits_cap_s
        )
        to, blob = fx.ProxyAddress(), item.upload.blob
        whole_bytes = min(settings.packet_bytes, INLINE_PACKET_BYTES)
        beside = self.beside.takes(blob)
        packets = tr.sends(to, item.header, blob, item.data, whole_bytes, push=False, beside=beside)
        return [*packets, fx.SetTimer(self._resend, wait_s)]

    def resend(self) -> list[fx.Effect]:
        if self.state is not DeviceState.UPLOADING:
            return []
        if self._waiting is not None:
            return self._put(*self._waiting)
        if self.beside.carried:  # it is on its way beside the broker
            return [fx.SetTimer(self._resend, self._settings.resend_s)]
        self._resends += 1
        return self._send()

    def lay_down(self, at: m.BlobAt) -> list[fx.Effect]:
        """The proxy says where to put the upload. Raises ProtocolError `foreign_url`."""
        item = self.item
        if item is None or item.held:
            return []
        return self.beside.lay_down(at, item.upload.blob, item.data)

    def laid_down(self, task: tr.PutBeside, result: object) -> list[fx.Effect]:
        """The upload lies where the proxy said, or could not be put there: offer it again."""
        lies, out = self.beside.laid_down(task, result)
        item = self.item
        if item is None or item.upload.blob.digest != task.blob.digest or item.held:
            return []
        return out if lies else [*out, *self.resend()]

    def acknowledged(self, ack: m.Ack) -> list[fx.Effect]:
        item = self.item
        if item is None or self.state is not DeviceState.UPLOADING:
            return []
        stop = fx.CancelTimer(self._resend)
        if ack.status == "held":
            self._step("held")
            self._memory.uploads[self.job_id] = replace(item, held=True)
            return [stop, *([] if item.held else [fx.Persist(OutboxHeld(item.at))])]
        self._step("refused")
        what = {**place(item.at), "why": ack.reason or ack.status}
        # Only a refusal proves that it was never taken: its acknowledgement may have been lost.
        out = [stop, *self._drop("refused" if ack.status == "refused" else "dropped")]
        return out if item.dummy else [*out, fx.Report("upload_refused", what)]

    def awaited(self, at: m.RoundId) -> OutboxPut | None:
        return next((one for one in (self.item, self._last) if one and one.at == at), None)

    def committed(self, commit: m.Commit, marks: bytes) -> list[fx.Effect]:
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
        out: list[fx.Effect] = [fx.Persist(LateRecord(item.at, outcome))]
        if current:
            out = [fx.CancelTimer(self._resend), *self._drop(outcome)]
        what = {**place(item.at), "segments": segments, "counted": found}
        return out if item.dummy else [*out, fx.Report("counted", what)]

    def _drop(self, outcome: Outcome = "dropped") -> list[fx.Effect]:
        """Forget the upload, and do not take its attempt up again."""
        self._waiting = None
        item = self._memory.uploads.pop(self.job_id, None)
        if item is None:
            return []
        if outcome == "dropped":  # the round's record may still tell what became of it
            self._last = replace(item, data=b"")
        at, seen = item.at, self._memory.seen.get(self.job_id)
        if seen is not None and seen.at == at:
            self._memory.seen[self.job_id] = replace(seen, settled=True)
        return [fx.Persist(OutboxDrop(at, outcome))]

    def job_closed(self) -> list[fx.Effect]:
        self._step("closed")
        self.manifest = self._package = None
        timers = [fx.CancelTimer(self._resend), fx.CancelTimer(self._deadline)]
        return [*self._drop(), *timers]

    def expired(self) -> list[fx.Effect] | None:
        """The round is over; None where an answer is at work or acknowledged."""
        if not DEVICE_STATES.allows(self.state, "expired"):
            return None
        self._step("expired")
        return [fx.CancelTimer(self._resend), *self._drop()]


def place(at: m.RoundId) -> dict[str, object]:
    """The short name of the job and the number of the round, for a report."""
    return {"job": m.short_name(at.job_id), "round": at.round}


def counted(item: OutboxPut, marks: bytes) -> int:
    """How many of an upload's segments stand in a commit record: sorted marks, 32 bytes each."""

    def mark_at(place: int) -> bytes:
        return marks[place * 32 : (place + 1) * 32]

    places = range(len(marks) // 32)
    return sum(mark_at(bisect_left(places, mark, key=mark_at)) == mark for mark in item.marks)


TURN = "turn"
TURN_SHARE = LEAVE_SHARE / WORK_SHARE  # of the time for work


class DeviceRounds:
    """The rounds by job, and whose turn it is. One timer beside those of the rounds, `turn`."""

    def __init__(self, context: DeviceContext) -> None:
        self.context, self._cover = context, CoverTraffic()
        self._rounds: dict[bytes, DeviceRound] = {}
        self.last: DeviceRound | None = None  # that something happened to
        self._at_work: ComputeAnswer | None = None
        self._free_s = -math.inf  # when the turn of it ends
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
        """The job's round, made if needed. Raises ProtocolError `too_many_rounds`."""
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

    def connected(self) -> list[fx.Effect]:
        self._cover.connected()
        return [effect for round_ in self for effect in round_.connected()]

    def cover_asked(self, cover: m.Cover) -> None:
        for one in (self._cover, *(round_.cover for round_ in self)):
            one.asked(cover)

    def key_told(self, key: m.RoundKey) -> None:
        keys = self.context.round_keys
        keys.pop(key.at.job_id, None)
        keys[key.at.job_id] = key
        while len(keys) > self.context.settings.jobs:
            del keys[next(iter(keys))]

    def opened(self, manifest: m.Manifest, package: Package, now_s: float) -> list[fx.Effect]:
        """A package is for this device: its work begins now, or when its turn has come."""
        round_ = self.of(manifest.at.job_id)
        if round_ is None:
            return []
        out = round_.opened(manifest, package)
        before = self._at_work
        if self._free_s == math.inf and before and before.manifest.at.job_id == round_.job_id:
            self._free_s = now_s  # a turn without an end ends with its round
        return out + self.next_turn(now_s)

    def worked(self, task: ComputeAnswer, result: object, now_s: float) -> list[fx.Effect]:
        """The host ended a round's work; called after the round has taken the result."""
        if self._at_work is None or task.manifest != self._at_work.manifest:
            return []
        unread = not isinstance(result, SealedAnswer) or result.at_once
        if unread or self._free_s == math.inf:
            self._free_s = now_s
        return self.next_turn(now_s)

    def next_turn(self, now_s: float) -> list[fx.Effect]:
        """If the box is free, begin the work whose time ends first; decline what is too late."""
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
        if waits and self._free_s < math.inf:  # else the host tells when the work has ended
            out.append(fx.SetTimer(TURN, max(0.0, self._free_s - now_s)))
        return out
