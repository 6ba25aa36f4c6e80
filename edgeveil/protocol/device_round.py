"""The round that a device last heard of: from its manifest to what became of the answer."""

from __future__ import annotations

from dataclasses import replace

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device_cover import Covering
from edgeveil.protocol.device_moment import Moment
from edgeveil.protocol.device_outbox import Outbox, counted
from edgeveil.protocol.device_states import TABLE, State
from edgeveil.protocol.envelope import Signer
from edgeveil.protocol.messages import Ack, Commit, Decline, Exchanged, Manifest
from edgeveil.protocol.pace import Pace
from edgeveil.protocol.package import Package, RoundPackage
from edgeveil.protocol.tasks import (
    Dummies,
    LateRecord,
    Memory,
    Open,
    Opened,
    OutboxPut,
    Outcome,
    Sealed,
    Seen,
    Settings,
    Work,
)


class Round:
    """State, manifest and upload. Two timers: `deadline` and the outbox's `resend`."""

    def __init__(self, signer: Signer, memory: Memory, settings: Settings, pace: Pace) -> None:
        self._signer, self._memory, self._settings = signer, memory, settings
        self.state = TABLE.start
        self.manifest: Manifest | None = None
        self.outbox = Outbox(signer, memory, settings, pace)
        self.cover = Covering()
        self._moment = Moment()

    @property
    def at(self) -> Exchanged | None:
        """The round that the device fetches, works on or has an upload of."""
        item = self.outbox.item
        return self.manifest.at if self.manifest else item.at if item else None

    def connected(self) -> list[fx.Effect]:
        """The link is up (again): what was not acknowledged is sent."""
        self.cover.connected()
        item = self.outbox.item
        if item and self.state is State.IDLE:
            self.state = TABLE.step(self.state, "restored_held" if item.held else "restored")
        return self.outbox.send() if self.state is State.UPLOADING else []

    # --- the manifest ---

    def is_new(self, mark: Seen) -> bool:
        """Whether to take this round up; False while at it, and once it is settled.

        Raises ProtocolError `replayed_round` or `forked_manifest`.
        """
        at, seen = mark.at, self._memory.seen.get(mark.at.job_id)
        if seen is None:
            return True
        if (at.round, at.attempt) < (seen.at.round, seen.at.attempt):
            raise ProtocolError("replayed_round")
        if at == seen.at and mark.manifest_digest != seen.manifest_digest:
            raise ProtocolError("forked_manifest")
        here = self.manifest is not None and self.manifest.at == at
        settled = at == seen.at and seen.settled
        return not (here or settled or self.outbox.is_for(at))

    def begin(self, manifest: Manifest, mark: Seen, now_s: float) -> list[fx.Effect]:
        """Remember the round, drop what is left of the one before, and wait for the package."""
        known = self._memory.seen.get(manifest.at.job_id) == mark
        self.state = TABLE.step(self.state, "manifest")
        self._memory.seen[manifest.at.job_id] = mark
        self.manifest = manifest
        self.cover.heard_of(now_s)
        out: list[fx.Effect] = [] if known else [fx.Store(mark)]
        out += [*self.outbox.drop(), fx.CancelTimer("resend")]
        return [*out, fx.SetTimer("deadline", manifest.deadline_s + manifest.grace_s)]

    def complete(self, manifest: Manifest, data: bytes, now_s: float) -> list[fx.Effect]:
        """The package is here."""
        self.state = TABLE.step(self.state, "complete")
        self.cover.begin(manifest, now_s)
        return [fx.Work(Open(manifest, data))]

    # --- outcomes of the host's work ---

    def fix_moment(self, manifest: Manifest, opened: Opened) -> None:
        """Say when the answer to the package leaves, whatever it will be."""
        if manifest == self.manifest:
            self._moment = self.cover.moment(opened.budget_s, opened.chance)

    def opened(self, manifest: Manifest, package: Package) -> list[fx.Effect]:
        """The package is for this device: consent and work."""
        if manifest.kind != "round" or not isinstance(package, RoundPackage):
            return [*self.not_for_me(manifest), fx.Refuse("malformed_package")]
        if manifest != self.manifest:
            return []
        self.state = TABLE.step(self.state, "opened")
        if self._settings.require_cover and not self.cover.on:
            return self.uncovered(manifest, "policy.require_cover, and the proxy asks for no cover")
        return [fx.Work(Work(manifest, package, self._moment.begun_s, self._moment.allowed_s))]

    def not_for_me(self, manifest: Manifest) -> list[fx.Effect]:
        """Not selected, or not to be opened: nothing to do but to cover those who were."""
        if manifest != self.manifest:
            return []
        if self.cover.on:
            return self._answer_with_dummies(manifest)
        self.state = TABLE.step(self.state, "not_for_me")
        return []

    def declined(self, manifest: Manifest, why: str) -> list[fx.Effect]:
        """Selected, and nothing will be sent; under cover not even that."""
        report = fx.Report("declined", {"round": manifest.at.round, "why": why})
        if manifest != self.manifest:
            return [report]
        if self.cover.on:
            return [report, *self._answer_with_dummies(manifest)]
        self.state = TABLE.step(self.state, "declined")
        settled = replace(self._memory.seen[manifest.at.job_id], settled=True)
        self._memory.seen[manifest.at.job_id] = settled
        note = self._signer.note(Decline(manifest.at))
        return [fx.Store(settled), report, fx.Send(fx.Proxy(), note)]

    def _answer_with_dummies(self, manifest: Manifest) -> list[fx.Effect]:
        self.state = TABLE.step(self.state, "covering")
        return [fx.Work(Dummies(manifest))]

    def uncovered(self, manifest: Manifest, why: str) -> list[fx.Effect]:
        """No dummy can be sent either; a note would say that there was nothing else to send."""
        if manifest == self.manifest:
            self.state = TABLE.step(self.state, "declined")
        return [fx.Report("uncovered", {"round": manifest.at.round, "why": why})]

    def sealed(self, manifest: Manifest, sealed: Sealed, now_s: float) -> list[fx.Effect]:
        """An answer is ready: keep it and send it, at its moment."""
        if manifest != self.manifest:
            return []  # a newer round came while this one was computed
        self.state = TABLE.step(self.state, "sealed")
        at_once = sealed.at_once and not self.cover.on
        return self.outbox.put(manifest.at, sealed, 0.0 if at_once else self._moment.wait_s(now_s))

    # --- what becomes of the answer ---

    def acknowledged(self, ack: Ack) -> list[fx.Effect]:
        """The proxy holds the upload, or never will."""
        item = self.outbox.item
        if item is None or item.upload.blob.digest != ack.blob or self.state is not State.UPLOADING:
            return []
        if ack.status == "held":
            self.state = TABLE.step(self.state, "held")
            return [fx.CancelTimer("resend"), *self.outbox.held()]
        self.state = TABLE.step(self.state, "refused")
        what = {"round": item.at.round, "why": ack.reason or ack.status}
        out = [fx.CancelTimer("resend"), *self.outbox.drop("refused")]
        return out if item.dummy else [*out, fx.Report("upload_refused", what)]

    def committed(self, commit: Commit, marks: bytes) -> list[fx.Effect]:
        """The cloud's record of the round: what it counted."""
        item = self.outbox.item
        if item is None or item.at != commit.at:
            late = self.outbox.late(commit.at)
            return [] if late is None else self._settled(late, marks, late=True)
        self.state = TABLE.step(self.state, "closed")
        return [fx.CancelTimer("resend"), *self._settled(item, marks, late=False)]

    def _settled(self, item: OutboxPut, marks: bytes, *, late: bool) -> list[fx.Effect]:
        found, segments = counted(item, marks), len(item.marks)
        outcome: Outcome = "counted" if found == segments else "missing"
        record: list[fx.Effect] = [fx.Store(LateRecord(item.at, outcome))]
        out = record if late else self.outbox.drop(outcome)
        what = {"round": item.at.round, "segments": segments, "counted": found}
        return out if item.dummy else [*out, fx.Report("counted", what)]

    def job_closed(self, job_id: bytes) -> list[fx.Effect]:
        """The job of this round, if it is the one, has ended."""
        # After a restart the upload may be all that is left of the round.
        if self.at is None or self.at.job_id != job_id:
            return []
        self.state = TABLE.step(self.state, "closed")
        self.manifest = None
        return [*self.outbox.drop(), fx.CancelTimer("resend"), fx.CancelTimer("deadline")]

    # --- timers ---

    def resend(self) -> list[fx.Effect]:
        """The upload was not acknowledged, or its moment has come."""
        return self.outbox.send_again() if self.state is State.UPLOADING else []

    def expired(self) -> list[fx.Effect] | None:
        """The round is over; None where an answer is at work or acknowledged."""
        if not TABLE.allows(self.state, "expired"):
            return None
        self.state = TABLE.step(self.state, "expired")
        return [fx.CancelTimer("resend"), *self.outbox.drop()]
