"""What a device says and hears of releases beside the release itself: its report, the statement.

Theory of operation. Of each release that asks for it the device tells the cloud, once, what became
of it. The report leaves at a moment of the device's own in the first half of the soak time, which
follows from its name and the release alone: neither when it leaves nor that it leaves says how it
went. Devices that could not open the release, or hold another data set, seal a dummy. The host
makes the report at that moment, so that a release that was put in use and has failed since is told
as rolled back; it is said until the cloud has it.

A statement renews or withdraws releases; the host applies it, an older one is refused.
"""

from __future__ import annotations

import hashlib

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device_tasks import (
    ApplyStatement,
    DeviceMemory,
    DeviceSettings,
    ReportDue,
    ReportSettled,
    SealReport,
)
from edgeveil.protocol.messages import (
    FAR_NUMBER,
    Ack,
    Manifest,
    Note,
    ReleaseReport,
    ReleaseStatement,
    Signer,
    encode_inner,
    known_number,
)
from edgeveil.protocol.release_health import wants_reports
from edgeveil.protocol.transfer import Backoff

REPORT_CAP_S = 600.0  # between two tries of a report


class DeviceReleases:
    """One report at most, and the newest statement. One timer, `report`."""

    def __init__(
        self, signer: Signer, memory: DeviceMemory, settings: DeviceSettings, backoff: Backoff
    ) -> None:
        self._signer, self._memory = signer, memory
        self._settings, self._backoff = settings, backoff
        self._note: Note | None = None
        self._tries = 0

    # --- the report ---

    def settled(self, release: Manifest) -> list[fx.Effect]:
        """It is known what became of a release: a report is due, unless it was made."""
        due = self._memory.report_due
        of_same = due is not None and due.data_set == release.data_set
        newest = known_number(due.sequence if due and of_same else self._memory.reported)
        if not wants_reports(release) or release.sequence <= newest:
            return []
        self._memory.report_due, self._note, self._tries = release, None, 0
        return [fx.Persist(ReportDue(release)), self._wait(release)]

    def passed_over(self, release: Manifest) -> list[fx.Effect]:
        """It is for another data set: a dummy is due, unless there is something to tell."""
        return [] if self._memory.report_due else self.settled(release)

    def connected(self) -> list[fx.Effect]:
        """The link is up (again)."""
        due, self._tries = self._memory.report_due, 0
        if due is None:
            return []
        return self.tell() if self._note else [self._wait(due)]

    def tell(self) -> list[fx.Effect]:
        """The timer: have the report made, or say it (again)."""
        due = self._memory.report_due
        if due is None:
            return []
        if self._note is None:
            return [fx.Work(SealReport(due))]
        wait_s = self._backoff.wait_s(self._settings.resend_s, self._tries, REPORT_CAP_S)
        self._tries += 1
        return [fx.Send(fx.ProxyAddress(), self._note), fx.SetTimer("report", wait_s)]

    def sealed(self, release: Manifest, report: bytes) -> list[fx.Effect]:
        """The report is made."""
        if release != self._memory.report_due or self._note is not None:
            return []
        self._note = self._signer.note(ReleaseReport(release.at, report))
        return self.tell()

    def acknowledged(self, ack: Ack) -> list[fx.Effect] | None:
        """The report need not be said again; None if the acknowledgement is of something else."""
        due, note = self._memory.report_due, self._note
        if due is None or note is None:
            return None
        if hashlib.sha256(note.body.payload).digest() != ack.blob:
            return None
        self._memory.report_due, self._memory.reported, self._note = None, due.sequence, None
        return [fx.Persist(ReportSettled(due.sequence)), fx.CancelTimer("report")]

    def _wait(self, release: Manifest) -> fx.Effect:
        seed = hashlib.sha256(self._signer.name.encode() + encode_inner(release)).digest()
        return fx.SetTimer("report", release.deadline_s * int.from_bytes(seed[:6]) / 2**48)

    # --- the statement ---

    def stated(self, said: ReleaseStatement) -> list[fx.Effect]:
        """Have a newer one applied. Raises ProtocolError `replayed_statement` or `far_sequence`."""
        if said.number >= FAR_NUMBER:
            raise ProtocolError("far_sequence")
        if said.number < known_number(self._memory.statement):
            raise ProtocolError("replayed_statement")
        if said.number == self._memory.statement:
            return []
        return [fx.Work(ApplyStatement(said))]

    def applied(self, said: ReleaseStatement, *, left: bool) -> list[fx.Effect]:
        """A statement was applied; `left`: the release that was in use is not any more."""
        self._memory.statement = max(said.number, known_number(self._memory.statement))
        if not left:
            return []
        self._memory.release_package = b""
        return [fx.Report("release_withdrawn", {})]
