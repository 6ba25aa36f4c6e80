"""The round of a job that a device last heard of: from its manifest to what became of the answer.

Theory of operation. Of each job one round at a time, in the states of `DEVICE_STATES`; those of
different jobs know nothing of each other (`device_rounds.py`). A manifest that is new
(`is_new`: neither older than what was seen of its job, nor a second text of the same, nor settled)
ends whatever round of the job was there, from any state, and is on disk before anything of it is
opened, so that a restart refuses what was refused before. Where not everybody is selected the
stanzas come first, and who finds none is done. When the package is complete the host opens it; from
that moment, and before a record of its is read, it is fixed when an answer leaves (`Moment`): a
moment that followed from the work would show how long that took, and so tell about the records. Who
is not selected is done; who is, consents and computes when its turn has come, or declines. Outcomes
of work for a manifest that is not the one at hand any more are dropped.

An answer is on disk before it is sent, sent until the proxy acknowledges it, and kept until the
cloud's record of the round says whether it was counted (`Outbox`). Under cover traffic nobody is
done early: whoever has nothing to say answers with dummies, and all leave at a moment of chance
(`CoverTraffic`). The deadline ends a round that is still being fetched or sent; one that the proxy
holds waits for its record, or for the next round.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import Enum

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.beside import LayingDown, PutBeside
from edgeveil.protocol.device_tasks import (
    ComputeAnswer,
    DeviceMemory,
    DeviceSettings,
    LateRecord,
    ManifestMark,
    OpenedPackage,
    OpenPackage,
    OutboxDrop,
    OutboxHeld,
    OutboxPut,
    Outcome,
    SealDummies,
    SealedAnswer,
)
from edgeveil.protocol.effects import StateTable
from edgeveil.protocol.messages import (
    Ack,
    BlobAt,
    Commit,
    Cover,
    Decline,
    ExchangeId,
    Manifest,
    Need,
    RoundKey,
    Signer,
    Upload,
    short_name,
)
from edgeveil.protocol.sealed import Package, RoundPackage
from edgeveil.protocol.transfer import Backoff, answer_need, describe, part_bytes, sends


class DeviceState(Enum):
    """Where a device stands in the round it last heard of."""

    IDLE = "idle"
    FETCHING = "fetching"
    OPENING = "opening"
    WORKING = "working"
    UPLOADING = "uploading"
    ANSWERED = "answered"


_S = DeviceState
DEVICE_STATES = StateTable(
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


def timer_name(what: str, job_id: bytes) -> str:
    """The name of a job's own timer."""
    return f"{what}/{job_id.hex()}"


class RoundKeys:
    """The proxy's keys of rounds that it will offer next, each job's newest, of so many jobs."""

    def __init__(self, jobs: int) -> None:
        self._jobs, self._keys = jobs, dict[bytes, RoundKey]()

    def told(self, key: RoundKey) -> None:
        """The proxy's key of a round that it will offer next."""
        self._keys.pop(key.at.job_id, None)
        self._keys[key.at.job_id] = key
        while len(self._keys) > self._jobs:
            del self._keys[next(iter(self._keys))]

    def of(self, manifest: Manifest) -> RoundKey | None:
        """The key of this round, if it was told."""
        known = self._keys.get(manifest.at.job_id)
        return known if known is not None and known.at == manifest.at else None

    def check(self, manifest: Manifest) -> None:
        """Raise ProtocolError `no_round_key` for a masked round whose key was not told."""
        if manifest.masked and not self.of(manifest):
            raise ProtocolError("no_round_key")


class DeviceRound:
    """State, manifest and upload of a job's round.

    Two timers of the job's own (`timer_name`): `deadline` and the outbox's `resend`.
    """

    def __init__(
        self,
        job_id: bytes,
        signer: Signer,
        memory: DeviceMemory,
        settings: DeviceSettings,
        backoff: Backoff,
        cover: CoverTraffic,
        keys: RoundKeys,
    ) -> None:
        self.job_id = job_id
        self._signer, self._memory, self._settings = signer, memory, settings
        self.state = DEVICE_STATES.start
        self.manifest: Manifest | None = None
        self.outbox = Outbox(job_id, signer, memory, settings, backoff)
        self.cover, self._round_keys = cover, keys
        self._window = AnswerWindow()
        self._moment = Moment()
        self._package: RoundPackage | None = None  # that waits for its turn
        self._deadline = timer_name("deadline", job_id)

    @property
    def at(self) -> ExchangeId | None:
        """The round that the device fetches, works on or has an upload of."""
        item = self.outbox.item
        return self.manifest.at if self.manifest else item.at if item else None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it."""
        return self.state is DeviceState.IDLE and self.outbox.item is None

    @property
    def under_way(self) -> bool:
        """Whether the device still owes this round something: until the proxy holds its answer."""
        return self.state not in (DeviceState.IDLE, DeviceState.ANSWERED)

    def connected(self) -> list[fx.Effect]:
        """The link is up (again): what was not acknowledged is sent."""
        self.cover.connected()
        item = self.outbox.item
        if item and self.state is DeviceState.IDLE:
            self._step("restored_held" if item.held else "restored")
        return self.offer_again()

    def offer_again(self) -> list[fx.Effect]:
        """The proxy may have missed the upload: it, or the link, was away."""
        return self.outbox.send() if self.state is DeviceState.UPLOADING else []

    def _step(self, happened: str) -> None:
        self.state = DEVICE_STATES.step(self.state, happened)

    # --- the manifest ---

    def is_new(self, mark: ManifestMark) -> bool:
        """Whether to take this round up; False while at it, and once it is settled.

        Raises ProtocolError `replayed_round` or `forked_manifest`.
        """
        at, seen = mark.at, self._memory.seen.get(mark.at.job_id)
        if seen is None:
            return True
        if (at.exchange, at.attempt) < (seen.at.exchange, seen.at.attempt):
            raise ProtocolError("replayed_round")
        if at == seen.at and mark.manifest_digest != seen.manifest_digest:
            raise ProtocolError("forked_manifest")
        here = self.manifest is not None and self.manifest.at == at
        settled = at == seen.at and seen.settled
        return not (here or settled or self.outbox.is_for(at))

    def begin(self, manifest: Manifest, mark: ManifestMark, now_s: float) -> list[fx.Effect]:
        """Remember the round, drop what is left of the one before, and wait for the package."""
        known = self._memory.seen.get(manifest.at.job_id) == mark
        self._step("manifest")
        self._memory.seen[manifest.at.job_id] = mark
        self.manifest, self._package = manifest, None
        self.cover.heard_of(now_s)
        out: list[fx.Effect] = [] if known else [fx.Persist(mark)]
        out += [*self.outbox.drop(), fx.CancelTimer(self.outbox.timer)]
        return [*out, fx.SetTimer(self._deadline, manifest.deadline_s + manifest.grace_s)]

    def complete(self, manifest: Manifest, data: bytes, now_s: float) -> list[fx.Effect]:
        """The package is here."""
        self._step("complete")
        self.cover.begin(manifest, now_s)
        return [fx.Work(OpenPackage(manifest, data))]

    # --- outcomes of the host's work ---

    def fix_window(self, manifest: Manifest, opened: OpenedPackage) -> None:
        """Say what the moment of the answer to the package follows from, whatever it will be."""
        if manifest == self.manifest:
            self._window = self.cover.window(manifest, opened)
            self._moment = self._window.moment(self._window.begun_s)

    def opened(self, manifest: Manifest, package: Package) -> list[fx.Effect]:
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

    # --- its turn ---

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
        """Consent and work, from the package's coming on, or from when the box is free."""
        manifest, package, self._package = self.manifest, self._package, None
        if manifest is None or package is None:
            raise ProtocolError("no_work_waits")
        self._moment = found = self._window.moment(max(free_s, self._window.begun_s))
        closes_s = self._window.closes_s
        task = ComputeAnswer(manifest, package, found.begun_s, found.allowed_s, closes_s)
        told = self._round_keys.of(manifest)
        if told is not None:
            task = replace(task, round_key=told.key, proxy_memory=told.memory)
        return task

    def out_of_time(self) -> list[fx.Effect]:
        """Others' work leaves too little time: what follows from public moments alone."""
        manifest, self._package = self.manifest, None
        return [] if manifest is None else self.declined(manifest, BUSY, "conditions")

    def not_for_me(self, manifest: Manifest) -> list[fx.Effect]:
        """Not selected, or not to be opened: nothing to do but to cover those who were."""
        if manifest != self.manifest:
            return []
        if self.cover.on:
            return self._answer_with_dummies(manifest)
        self._step("not_for_me")
        return []

    def declined(self, manifest: Manifest, why: str, cause: str) -> list[fx.Effect]:
        """Selected, and nothing will be sent; under cover not even that."""
        told = {**place(manifest.at), "cause": cause, "why": why}
        report = fx.Report("declined", told, manifest.at)
        if manifest != self.manifest:
            return [report]
        if self.cover.on:
            return [report, *self._answer_with_dummies(manifest)]
        self._step("declined")
        settled = replace(self._memory.seen[manifest.at.job_id], settled=True)
        self._memory.seen[manifest.at.job_id] = settled
        note = self._signer.note(Decline(manifest.at, cause))
        return [fx.Persist(settled), report, fx.Send(fx.ProxyAddress(), note)]

    def _answer_with_dummies(self, manifest: Manifest) -> list[fx.Effect]:
        self._step("covering")
        told = self._round_keys.of(manifest)
        return [fx.Work(SealDummies(manifest, b"" if told is None else told.key))]

    def uncovered(self, manifest: Manifest, why: str) -> list[fx.Effect]:
        """No dummy can be sent either; a note would say that there was nothing else to send."""
        if manifest == self.manifest:
            self._step("declined")
        return [fx.Report("uncovered", {**place(manifest.at), "why": why})]

    def sealed(self, manifest: Manifest, sealed: SealedAnswer, now_s: float) -> list[fx.Effect]:
        """An answer is ready: keep it and send it, at its moment."""
        if manifest != self.manifest:
            return []  # a newer round came while this one was computed
        self._step("sealed")
        at_once = sealed.at_once and not self.cover.on
        return self.outbox.put(manifest.at, sealed, 0.0 if at_once else self._moment.wait_s(now_s))

    # --- what becomes of the answer ---

    def acknowledged(self, ack: Ack) -> list[fx.Effect]:
        """The proxy holds the upload, or never will."""
        item = self.outbox.item
        if item is None or self.state is not DeviceState.UPLOADING:
            return []
        if ack.status == "held":
            self._step("held")
            return [fx.CancelTimer(self.outbox.timer), *self.outbox.held()]
        self._step("refused")
        what = {**place(item.at), "why": ack.reason or ack.status}
        # Only a refusal says that it was never taken: its acknowledgement may have been lost.
        outcome: Outcome = "refused" if ack.status == "refused" else "dropped"
        out = [fx.CancelTimer(self.outbox.timer), *self.outbox.drop(outcome)]
        return out if item.dummy else [*out, fx.Report("upload_refused", what)]

    def committed(self, commit: Commit, marks: bytes) -> list[fx.Effect]:
        """The cloud's record of the round: what it counted."""
        item = self.outbox.item
        if item is None or item.at != commit.at:
            late = self.outbox.late(commit.at)
            return [] if late is None else self._settled(late, marks, late=True)
        self._step("closed")
        return [fx.CancelTimer(self.outbox.timer), *self._settled(item, marks, late=False)]

    def _settled(self, item: OutboxPut, marks: bytes, *, late: bool) -> list[fx.Effect]:
        found, segments = counted(item, marks), len(item.marks)
        outcome: Outcome = "counted" if found == segments else "partial" if found else "missing"
        record: list[fx.Effect] = [fx.Persist(LateRecord(item.at, outcome))]
        out = record if late else self.outbox.drop(outcome)
        what = {**place(item.at), "segments": segments, "counted": found}
        return out if item.dummy else [*out, fx.Report("counted", what)]

    def job_closed(self) -> list[fx.Effect]:
        """The job has ended."""
        self._step("closed")
        self.manifest = self._package = None
        return [
            *self.outbox.drop(),
            fx.CancelTimer(self.outbox.timer),
            fx.CancelTimer(self._deadline),
        ]

    # --- timers ---

    def resend(self) -> list[fx.Effect]:
        """The upload was not acknowledged, or its moment has come."""
        return self.outbox.send_again() if self.state is DeviceState.UPLOADING else []

    def expired(self) -> list[fx.Effect] | None:
        """The round is over; None where an answer is at work or acknowledged."""
        if not DEVICE_STATES.allows(self.state, "expired"):
            return None
        self._step("expired")
        return [fx.CancelTimer(self.outbox.timer), *self.outbox.drop()]


def place(at: ExchangeId) -> dict[str, object]:
    """What a report on a round says of it: its job's short name, and its number."""
    return {"job": short_name(at.job_id), "round": at.exchange}


# --- when an answer leaves ------------------------------------------------------------------

# Of the time there is. Between the two an answer is put into the ledger and sealed, also one that
# is there only because the work was ended; what comes after is for leaving, spread by chance, so
# that a fleet's uploads do not come all at once.
WORK_SHARE, LEAVE_SHARE = 3 / 4, 7 / 8


LEAST_WORK_S = 0.001  # a turn of no time is none
BUSY = "the box computes for other jobs for too long"


@dataclass(frozen=True)
class Moment:
    """Of one answer, in the machine's time: work may take `allowed_s` from `begun_s` on, and what
    there is then leaves at `leaves_s`. Without a budget both are free."""

    begun_s: float = 0.0
    allowed_s: float = math.inf
    leaves_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        """Seconds until it leaves."""
        return max(0.0, self.leaves_s - now_s)


@dataclass(frozen=True)
class AnswerWindow:
    """What the moment of an answer follows from, all of it there before a record is read.

    The package came at `begun_s`. `budget_s` is the job's (0: a job that is not known here),
    `cover_s` the window of cover traffic (0: there is none), `chance` a draw from [0, 1). The round
    closes at `closes_s`, and an answer takes this box `needed_s` on made-up records.
    """

    begun_s: float = 0.0
    budget_s: float = 0.0
    cover_s: float = 0.0
    chance: float = 0.0
    closes_s: float = math.inf
    needed_s: float = 0.0

    def moment(self, start_s: float) -> Moment:
        """The moment of an answer whose work begins at `start_s`, not before `begun_s`.

        Under cover all answers and dummies leave in the window's second half, so its first half is
        all there is for work, whenever it begins; without it the moment moves with the beginning.
        """
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
        """When work on records must have ended at the latest."""
        return self.begun_s + self.cover_s / 2 * WORK_SHARE if self.cover_s else self.closes_s


class CoverTraffic:
    """Cover traffic, as the proxy asked for it last; each round begins with a copy.

    Nothing is kept: the proxy says so after each hello and before each round.

    No message ends it, since an old one could be played again: it ends with the first round that
    comes on a new link without being asked for again there.
    """

    def __init__(self) -> None:
        self._window_s = self._span_s = self._begun_s = self._heard_s = 0.0
        self._said = False  # on this link

    @property
    def on(self) -> bool:
        """Every round is answered, by dummies where there is nothing to say."""
        return self._window_s > 0

    def connected(self) -> None:
        """The link is new: what was asked for on the old one goes no further than its round."""
        self._said = False

    def asked(self, cover: Cover) -> None:
        """From now on, uploads leave within this window."""
        self._window_s, self._said = cover.window_s, True

    def heard_of(self, now_s: float) -> None:
        """A round's manifest is here."""
        self._heard_s = now_s
        if not self._said:
            self._window_s = 0.0

    def begin(self, manifest: Manifest, now_s: float) -> None:
        """The package is here: the window opens, of at most half of what is left of the round."""
        left_s = max(0.0, manifest.deadline_s - (now_s - self._heard_s))
        self._begun_s, self._span_s = now_s, min(self._window_s, left_s / 2)

    def window(self, manifest: Manifest, opened: OpenedPackage) -> AnswerWindow:
        """What the moment of an answer to the package at hand follows from."""
        return AnswerWindow(
            self._begun_s,
            opened.budget_s,
            self._span_s,
            opened.chance,
            self._heard_s + manifest.deadline_s,
            opened.needed_s,
        )


# --- the upload ------------------------------------------------------------------------------

# A fleet answers all at once, and a broker drops what it cannot queue: larger uploads wait until
# the proxy asks, so that thousands of devices need no more than this each at the broker.
INLINE_PACKET_BYTES = 16384


class Outbox:
    """A job's one upload: sends what `memory.uploads` holds of it.

    Changes it together with the `Persist` that says so.
    """

    def __init__(
        self,
        job_id: bytes,
        signer: Signer,
        memory: DeviceMemory,
        settings: DeviceSettings,
        backoff: Backoff,
    ) -> None:
        self._job_id, self.timer = job_id, timer_name("resend", job_id)
        self._signer, self._memory, self._settings = signer, memory, settings
        self._backoff, self._resends = backoff, 0
        self._waiting: tuple[ExchangeId, SealedAnswer] | None = None  # until its moment under cover
        self._last: OutboxPut | None = None
        self._beside = LayingDown(signer, fx.ProxyAddress(), settings.blob_urls)

    @property
    def item(self) -> OutboxPut | None:
        """The upload, if there is one."""
        return self._memory.uploads.get(self._job_id)

    def is_for(self, at: ExchangeId) -> bool:
        """Whether the upload is this round's."""
        return self.item is not None and self.item.at == at

    def put(self, at: ExchangeId, sealed: SealedAnswer, after_s: float = 0.0) -> list[fx.Effect]:
        """Store a sealed answer, then send it; both `after_s` seconds later where cover asks so.

        Until then it is nowhere but in memory: a dummy is ready at once, and on disk it would
        outlive a restart where an answer that is still computed does not.
        """
        if after_s > 0:
            self._waiting = at, sealed
            return [fx.SetTimer(self.timer, after_s)]
        self._waiting = None
        blob = describe(sealed.data, part_bytes(self._settings.packet_bytes))
        self._memory.answered += self._memory.answered >= 0
        number = max(0, self._memory.answered)
        upload = Upload(at, sealed.groups, blob, number, sealed.deposit, sealed.seed)
        header = self._signer.header(upload)
        item = OutboxPut(at, header, upload, sealed.marks, sealed.data, sealed.dummy)
        self._memory.uploads[self._job_id], self._resends = item, 0
        return [fx.Persist(item), *self.send()]

    def send(self) -> list[fx.Effect]:
        """Offer the upload, whole if it is small, and set the time of the next offer.

        The proxy asks for the parts of a larger one when it has room for them.
        """
        item, settings = self.item, self._settings
        if item is None:
            return []
        wait_s = self._backoff.wait_s(settings.resend_s, self._resends, settings.waits_cap_s)
        to, blob = fx.ProxyAddress(), item.upload.blob
        whole_bytes = min(settings.packet_bytes, INLINE_PACKET_BYTES)
        beside = self._beside.takes(blob)
        packets = sends(to, item.header, blob, item.data, whole_bytes, push=False, beside=beside)
        return [*packets, fx.SetTimer(self.timer, wait_s)]

    def lay_down(self, at: BlobAt) -> list[fx.Effect]:
        """The proxy says where to put the upload. Raises ProtocolError `foreign_url`."""
        item = self.item
        if item is None or item.held:
            return []
        return self._beside.lay_down(at, item.upload.blob, item.data)

    @property
    def carried(self) -> bytes:
        """The digest of what is on its way beside the broker; empty: nothing is."""
        return self._beside.carried

    def laid_down(self, task: PutBeside, result: object) -> list[fx.Effect]:
        """The upload lies where the proxy said, or could not be put there: it is offered again."""
        lies, out = self._beside.laid_down(task, result)
        item = self.item
        if item is None or item.upload.blob.digest != task.blob.digest or item.held:
            return []
        return out if lies else [*out, *self.send_again()]

    def send_again(self) -> list[fx.Effect]:
        """What waits for its moment; or the same once more, and the next time later."""
        if self._waiting is not None:
            return self.put(*self._waiting)
        if self._beside.carried:  # it is on its way beside the broker
            return [fx.SetTimer(self.timer, self._settings.resend_s)]
        self._resends += 1
        return self.send()

    def need(self, need: Need) -> list[fx.Effect]:
        """Parts that the proxy asks for; raises ProtocolError `bad_index`."""
        item = self.item
        if item is None:
            return []
        return answer_need(fx.ProxyAddress(), need, item.upload.blob, item.data)

    def awaited(self, at: ExchangeId) -> OutboxPut | None:
        """The upload that a commit record of this round says something about."""
        return next((one for one in (self.item, self._last) if one and one.at == at), None)

    def late(self, at: ExchangeId) -> OutboxPut | None:
        """The upload that a newer round displaced, if it was this round's; once."""
        if self._last is None or self._last.at != at:
            return None
        item, self._last = self._last, None
        return item

    def held(self) -> list[fx.Effect]:
        """The proxy acknowledged the upload: it is kept until it was counted."""
        if self.item is None or self.item.held:
            return []
        self._memory.uploads[self._job_id] = replace(self.item, held=True)
        return [fx.Persist(OutboxHeld(self.item.at))]

    def drop(self, outcome: Outcome = "dropped") -> list[fx.Effect]:
        """The upload is not needed any more, and its attempt is not taken up again."""
        self._waiting = None
        item = self._memory.uploads.pop(self._job_id, None)
        if item is None:
            return []
        if outcome == "dropped":  # the round's record may still say what became of it
            self._last = replace(item, data=b"")
        at = item.at
        seen = self._memory.seen.get(at.job_id)
        if seen is not None and seen.at == at:
            self._memory.seen[at.job_id] = replace(seen, settled=True)
        return [fx.Persist(OutboxDrop(at, outcome))]


def counted(item: OutboxPut, marks: bytes) -> int:
    """How many of an upload's segments stand in a commit record: sorted marks, 32 bytes each."""

    def mark_at(place: int) -> bytes:
        return marks[place * 32 : (place + 1) * 32]

    places = range(len(marks) // 32)
    return sum(mark_at(bisect_left(places, mark, key=mark_at)) == mark for mark in item.marks)
