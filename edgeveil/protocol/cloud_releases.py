"""Releases beside the job that runs: one sealed again, devices' reports, the cloud's statement.

Theory of operation. A job ends with its first release broadcast; what follows (the rest of the
devices after a canary, devices that were admitted later) is decided by the process, from what its
store holds, and comes as `PublishRelease`. It is sealed by the host and offered until the proxy
holds it, in any state of the running job; where the proxy refuses it, as when a newer release has
come meanwhile, it is dropped, and the process decides anew. Reports are acknowledged once they are
counted durably. The newest statement is said until the proxy confirms it.
"""

from __future__ import annotations

import hashlib

from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_outgoing import OutgoingBroadcast
from edgeveil.protocol.cloud_tasks import (
    Broadcast,
    CloudSettings,
    CountReports,
    PublishRelease,
    ReleaseHeld,
    ReportsCounted,
    SealPublication,
    timer_name,
)
from edgeveil.protocol.messages import (
    Ack,
    Need,
    Note,
    ReleaseReports,
    ReleaseStatement,
    Signer,
)


class CloudReleases:
    """At most one publication under way, and one statement. Timers `release`, `statement`."""

    def __init__(self, signer: Signer, releases: Signer, settings: CloudSettings) -> None:
        self._signer, self._releases, self._settings = signer, releases, settings
        self._out = OutgoingBroadcast(signer, releases, settings, timer_name("release"))
        self._asked: PublishRelease | None = None
        self._statement: tuple[ReleaseStatement, Note] | None = None
        self._wait_s = settings.resend_s

    @property
    def publishing(self) -> bool:
        """Whether a release is being sealed, or offered."""
        return self._asked is not None

    # --- publications ---

    def publish(self, asked: PublishRelease) -> list[fx.Effect]:
        """Have a release sealed for all; nothing while another one is under way."""
        if self._asked is not None:
            return []
        self._asked = asked
        return [fx.Work(SealPublication(asked.job_id))]

    def sealed(self, task: SealPublication, result: object) -> list[fx.Effect]:
        """Offer what was sealed; what cannot be sealed now is asked for again."""
        if self._asked is None or self._asked.job_id != task.job_id:
            return []
        if not isinstance(result, Broadcast):
            self._asked = None
            why = getattr(result, "reason", "")
            return [fx.Report("release_waits", {"why": why})]
        what = {"selected": result.manifest.selected}
        return [
            fx.Report("release_published", what),
            *self._out.offer(result.manifest, result.data),
        ]

    def answer(self, need: Need) -> list[fx.Effect] | None:
        """The parts asked for; None where they are of no publication."""
        return self._out.answer(need) if self._out.is_blob(need.blob) else None

    def send(self) -> list[fx.Effect]:
        """Say all that is not confirmed (again)."""
        return [*self._out.send(), *self.tell()]

    def resend(self) -> list[fx.Effect]:
        """The timer `release`."""
        return self._out.send()

    # --- reports ---

    def reports(self, told: ReleaseReports, note: bytes) -> list[fx.Effect]:
        """Have them opened and counted; `note` is the digest to acknowledge."""
        return [fx.Work(CountReports(told.at, told.sealed, note))]

    def counted(self, task: CountReports, result: object) -> list[fx.Effect]:
        """They are durable; what could not be counted the proxy says again."""
        if not isinstance(result, ReportsCounted):
            return []
        return [fx.Send(fx.ProxyAddress(), self._signer.note(Ack(task.note, "held")))]

    # --- the statement ---

    def state(self, said: ReleaseStatement) -> list[fx.Effect]:
        """Say this one from now on."""
        self._statement = said, self._releases.note(said)
        self._wait_s = self._settings.resend_s
        return self.tell()

    def tell(self) -> list[fx.Effect]:
        """The timer `statement`: say it (again), ever more rarely, until it is confirmed."""
        if self._statement is None:
            return []
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, self._settings.close_cap_s)
        note = self._statement[1]
        return [fx.Send(fx.ProxyAddress(), note), fx.SetTimer(timer_name("statement"), wait_s)]

    def sign_anew(self) -> list[fx.Effect]:
        """The keys have changed."""
        return [*self._out.send(), *(self.state(self._statement[0]) if self._statement else [])]

    # --- the proxy's word ---

    def confirmed(self, ack: Ack) -> list[fx.Effect] | None:
        """The proxy has the publication, or the statement; None if it is about something else."""
        if self._statement is not None:
            digest = hashlib.sha256(self._statement[1].body.payload).digest()
            if digest == ack.blob:
                self._statement = None
                return [fx.CancelTimer(timer_name("statement"))]
        if not self._out.is_blob(ack.blob):
            return None
        sequence = self._out.sequence
        self._out.drop()
        self._asked = None
        out: list[fx.Effect] = [fx.CancelTimer(timer_name("release"))]
        if ack.status == "held":
            return [fx.Persist(ReleaseHeld(sequence)), *out]
        return [*out, fx.Report("release_refused", {"why": ack.reason})]
