"""The round that a device last heard of: from its manifest to what became of the answer.

Theory of operation. One round at a time, in the states of `DEVICE_STATES`. A manifest that is new
(`is_new`: neither older than what was seen of its job, nor a second text of the same, nor settled)
ends whatever round was there, from any state, and is on disk before anything of it is opened, so
that a restart refuses what was refused before. Where not everybody is selected the stanzas come
first, and who finds none is done. When the package is complete the host opens it; from
that moment, and before a record is read, it is fixed when an answer leaves (`Moment`): a moment
that followed from the work would show how long that took, and so tell about the records. Who is not
selected is done; who is, consents and computes, or declines. Outcomes of work for a manifest that
is not the one at hand any more are dropped.

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


class DeviceRound:
    """State, manifest and upload. Two timers: `deadline` and the outbox's `resend`."""

    def __init__(
        self, signer: Signer, memory: DeviceMemory, settings: DeviceSettings, backoff: Backoff
    ) -> None:
        self._signer, self._memory, self._settings = signer, memory, settings
        self.state = DEVICE_STATES.start
        self.manifest: Manifest | None = None
        self.outbox = Outbox(signer, memory, settings, backoff)
        self.cover = CoverTraffic()
        self._moment = Moment()
        self._round_keys: dict[bytes, RoundKey] = {}  # of the proxy's, each job's newest

    @property
    def at(self) -> ExchangeId | None:
        """The round that the device fetches, works on or has an upload of."""
        item = self.outbox.item
        return self.manifest.at if self.manifest else item.at if item else None

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

    def told_key(self, key: RoundKey) -> None:
        """The proxy's key of a round that it will offer next."""
        self._round_keys.pop(key.at.job_id, None)
        self._round_keys[key.at.job_id] = key
        while len(self._round_keys) > self._settings.jobs:
            del self._round_keys[next(iter(self._round_keys))]

    def _round_key(self, manifest: Manifest) -> RoundKey | None:
        known = self._round_keys.get(manifest.at.job_id)
        return known if known is not None and known.at == manifest.at else None

    def check_key(self, manifest: Manifest) -> None:
        """Raise ProtocolError `no_round_key` for a masked round whose key was not told."""
        if manifest.masked and not self._round_key(manifest):
            raise ProtocolError("no_round_key")

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
        self.manifest = manifest
        self.cover.heard_of(now_s)
        out: list[fx.Effect] = [] if known else [fx.Persist(mark)]
        out += [*self.outbox.drop(), fx.CancelTimer("resend")]
        return [*out, fx.SetTimer("deadline", manifest.deadline_s + manifest.grace_s)]

    def complete(self, manifest: Manifest, data: bytes, now_s: float) -> list[fx.Effect]:
        """The package is here."""
        self._step("complete")
        self.cover.begin(manifest, now_s)
        return [fx.Work(OpenPackage(manifest, data))]

    # --- outcomes of the host's work ---

    def fix_moment(self, manifest: Manifest, opened: OpenedPackage) -> None:
        """Say when the answer to the package leaves, whatever it will be."""
        if manifest == self.manifest:
            self._moment = self.cover.moment(opened.budget_s, opened.chance)

    def opened(self, manifest: Manifest, package: Package) -> list[fx.Effect]:
        """The package is for this device: consent and work."""
        if manifest.kind != "round" or not isinstance(package, RoundPackage):
            return [*self.not_for_me(manifest), fx.Refuse("malformed_package")]
        if manifest != self.manifest:
            return []
        self._step("opened")
        if self._settings.require_cover and not self.cover.on:
            return self.uncovered(manifest, "policy.require_cover, and the proxy asks for no cover")
        begun_s, allowed_s = self._moment.begun_s, self._moment.allowed_s
        task = ComputeAnswer(manifest, package, begun_s, allowed_s)
        told = self._round_key(manifest)
        if told is not None:
            task = replace(task, round_key=told.key, proxy_memory=told.memory)
        return [fx.Work(task)]

    def not_for_me(self, manifest: Manifest) -> list[fx.Effect]:
        """Not selected, or not to be opened: nothing to do but to cover those who were."""
        if manifest != self.manifest:
            return []
        if self.cover.on:
            return self._answer_with_dummies(manifest)
        self._step("not_for_me")
        return []

    def declined(self, manifest: Manifest, why: str) -> list[fx.Effect]:
        """Selected, and nothing will be sent; under cover not even that."""
        report = fx.Report("declined", {"round": manifest.at.exchange, "why": why})
        if manifest != self.manifest:
            return [report]
        if self.cover.on:
            return [report, *self._answer_with_dummies(manifest)]
        self._step("declined")
        settled = replace(self._memory.seen[manifest.at.job_id], settled=True)
        self._memory.seen[manifest.at.job_id] = settled
        note = self._signer.note(Decline(manifest.at))
        return [fx.Persist(settled), report, fx.Send(fx.ProxyAddress(), note)]

    def _answer_with_dummies(self, manifest: Manifest) -> list[fx.Effect]:
        self._step("covering")
        told = self._round_key(manifest)
        return [fx.Work(SealDummies(manifest, b"" if told is None else told.key))]

    def uncovered(self, manifest: Manifest, why: str) -> list[fx.Effect]:
        """No dummy can be sent either; a note would say that there was nothing else to send."""
        if manifest == self.manifest:
            self._step("declined")
        return [fx.Report("uncovered", {"round": manifest.at.exchange, "why": why})]

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
        if item is None or item.upload.blob.digest != ack.blob:
            return []
        if self.state is not DeviceState.UPLOADING:
            return []
        if ack.status == "held":
            self._step("held")
            return [fx.CancelTimer("resend"), *self.outbox.held()]
        self._step("refused")
        what = {"round": item.at.exchange, "why": ack.reason or ack.status}
        out = [fx.CancelTimer("resend"), *self.outbox.drop("refused")]
        return out if item.dummy else [*out, fx.Report("upload_refused", what)]

    def committed(self, commit: Commit, marks: bytes) -> list[fx.Effect]:
        """The cloud's record of the round: what it counted."""
        item = self.outbox.item
        if item is None or item.at != commit.at:
            late = self.outbox.late(commit.at)
            return [] if late is None else self._settled(late, marks, late=True)
        self._step("closed")
        return [fx.CancelTimer("resend"), *self._settled(item, marks, late=False)]

    def _settled(self, item: OutboxPut, marks: bytes, *, late: bool) -> list[fx.Effect]:
        found, segments = counted(item, marks), len(item.marks)
        outcome: Outcome = "counted" if found == segments else "missing"
        record: list[fx.Effect] = [fx.Persist(LateRecord(item.at, outcome))]
        out = record if late else self.outbox.drop(outcome)
        what = {"round": item.at.exchange, "segments": segments, "counted": found}
        return out if item.dummy else [*out, fx.Report("counted", what)]

    def job_closed(self, job_id: bytes) -> list[fx.Effect]:
        """The job of this round, if it is the one, has ended."""
        # After a restart the upload may be all that is left of the round.
        if self.at is None or self.at.job_id != job_id:
            return []
        self._step("closed")
        self.manifest = None
        return [*self.outbox.drop(), fx.CancelTimer("resend"), fx.CancelTimer("deadline")]

    # --- timers ---

    def resend(self) -> list[fx.Effect]:
        """The upload was not acknowledged, or its moment has come."""
        return self.outbox.send_again() if self.state is DeviceState.UPLOADING else []

    def expired(self) -> list[fx.Effect] | None:
        """The round is over; None where an answer is at work or acknowledged."""
        if not DEVICE_STATES.allows(self.state, "expired"):
            return None
        self._step("expired")
        return [fx.CancelTimer("resend"), *self.outbox.drop()]


# --- when an answer leaves ------------------------------------------------------------------

# Of the time there is. Between the two an answer is put into the ledger and sealed, also one that
# is there only because the work was ended; what comes after is for leaving, spread by chance, so
# that a fleet's uploads do not come all at once.
WORK_SHARE, LEAVE_SHARE = 3 / 4, 7 / 8


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


def moment(begun_s: float, budget_s: float, cover_s: float, chance: float) -> Moment:
    """The moment of an answer to a package that came at `begun_s`.

    `budget_s` is the job's (0: a job that is not known here), `cover_s` the window of cover traffic
    (0: there is none), `chance` a draw from [0, 1). Under cover all answers and dummies leave in
    the window's second half, so its first half is all there is for work.
    """
    if cover_s:
        half_s = cover_s / 2
        allowed_s = min(budget_s or half_s, half_s) * WORK_SHARE
        return Moment(begun_s, allowed_s, begun_s + half_s + chance * half_s)
    if not budget_s:
        return Moment(begun_s, math.inf, begun_s)
    leaves = LEAVE_SHARE + chance * (1 - LEAVE_SHARE)
    return Moment(begun_s, budget_s * WORK_SHARE, begun_s + budget_s * leaves)


class CoverTraffic:
    """Cover traffic, as the proxy asked for it last.

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

    def moment(self, budget_s: float, chance: float) -> Moment:
        """When an answer to the package at hand leaves, also where there is no cover."""
        return moment(self._begun_s, budget_s, self._span_s, chance)


# --- the upload ------------------------------------------------------------------------------

# A fleet answers all at once, and a broker drops what it cannot queue: larger uploads wait until
# the proxy asks, so that thousands of devices need no more than this each at the broker.
INLINE_PACKET_BYTES = 16384


class Outbox:
    """A device's one upload: sends what `memory.outbox` holds.

    Changes it together with the `Persist` that says so.
    """

    def __init__(
        self, signer: Signer, memory: DeviceMemory, settings: DeviceSettings, backoff: Backoff
    ) -> None:
        self._signer, self._memory, self._settings = signer, memory, settings
        self._backoff, self._resends = backoff, 0
        self._waiting: tuple[ExchangeId, SealedAnswer] | None = None  # until its moment under cover
        self._last: OutboxPut | None = None
        self._beside = LayingDown(signer, fx.ProxyAddress(), settings.blob_urls)

    @property
    def item(self) -> OutboxPut | None:
        """The upload, if there is one."""
        return self._memory.outbox

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
            return [fx.SetTimer("resend", after_s)]
        self._waiting = None
        blob = describe(sealed.data, part_bytes(self._settings.packet_bytes))
        self._memory.answered += self._memory.answered >= 0
        number = max(0, self._memory.answered)
        upload = Upload(at, sealed.groups, blob, number, sealed.deposit, sealed.seed)
        header = self._signer.header(upload)
        item = OutboxPut(at, header, upload, sealed.marks, sealed.data, sealed.dummy)
        self._memory.outbox, self._resends = item, 0
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
        return [*packets, fx.SetTimer("resend", wait_s)]

    def lay_down(self, at: BlobAt) -> list[fx.Effect]:
        """The proxy says where to put the upload. Raises ProtocolError `foreign_url`."""
        item = self.item
        if item is None or item.held:
            return []
        return self._beside.lay_down(at, item.upload.blob, item.data)

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
            return [fx.SetTimer("resend", self._settings.resend_s)]
        self._resends += 1
        return self.send()

    def need(self, need: Need) -> list[fx.Effect]:
        """Parts that the proxy asks for; raises ProtocolError `bad_index`."""
        item = self.item
        if item is None or item.upload.blob.digest != need.blob:
            return []
        return answer_need(fx.ProxyAddress(), need, item.upload.blob, item.data)

    def awaits(self, at: ExchangeId) -> bool:
        """Whether a commit record of this round says something about an upload."""
        return self.is_for(at) or (self._last is not None and self._last.at == at)

    def late(self, at: ExchangeId) -> OutboxPut | None:
        """The acknowledged upload that a newer round displaced, if it was this round's; once."""
        if self._last is None or self._last.at != at:
            return None
        item, self._last = self._last, None
        return item

    def held(self) -> list[fx.Effect]:
        """The proxy acknowledged the upload: it is kept until it was counted."""
        if self.item is None or self.item.held:
            return []
        self._memory.outbox = replace(self.item, held=True)
        return [fx.Persist(OutboxHeld(self.item.at))]

    def drop(self, outcome: Outcome = "dropped") -> list[fx.Effect]:
        """The upload is not needed any more, and its attempt is not taken up again."""
        self._waiting = None
        if self.item is None:
            return []
        if self.item.held and outcome == "dropped":
            self._last = replace(self.item, data=b"")
        at, self._memory.outbox = self.item.at, None
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
