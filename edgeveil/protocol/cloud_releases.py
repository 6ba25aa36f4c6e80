"""Releases beside the job that runs: one sealed again, devices' reports, the cloud's statement.

Theory of operation. A job ends with its first release broadcast; what follows (the rest of the
devices after a canary, devices that were admitted later) is decided by the process, from what its
store holds, and comes as `PublishRelease`. It is sealed by the host and offered until the proxy
holds it, in any state of the running job; where the proxy refuses it, as when a newer release has
come meanwhile, it is dropped, and the process decides anew. Reports are acknowledged once they are
counted durably. The newest statement is said until the proxy confirms it. Each cell is told by
itself: one that is silent keeps none of the others from what comes next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_outgoing import OutgoingBroadcast
from edgeveil.protocol.cloud_tasks import (
    CellBroadcasts,
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
    """At most one publication under way in each cell, and one statement."""

    def __init__(
        self, cells: Sequence[str], signer: Signer, releases: Signer, settings: CloudSettings
    ) -> None:
        self._signer, self._releases = signer, releases
        self._asked: PublishRelease | None = None  # while it is sealed
        self._cells = {cell: _ReleasesOfCell(cell, signer, releases, settings) for cell in cells}

    def offering(self, cell: str) -> bool:
        """Whether a release is on its way to this cell."""
        asked = self._asked is not None and cell in self._asked.cells
        return asked or self._cells[cell].offering

    # --- publications ---

    def publish(self, asked: PublishRelease) -> list[fx.Effect]:
        """Have a release sealed for the cells; nothing while another one is sealed."""
        if self._asked is not None or any(map(self.offering, asked.cells)):
            return []
        self._asked = asked
        return [fx.Work(SealPublication(asked.job_id, asked.cells))]

    def sealed(self, task: SealPublication, result: object) -> list[fx.Effect]:
        """Offer what was sealed; what cannot be sealed now is asked for again."""
        if self._asked is None or self._asked.job_id != task.job_id:
            return []
        self._asked = None
        if not isinstance(result, CellBroadcasts):
            why = getattr(result, "reason", "")
            return [fx.Report("release_waits", {"why": why})]
        of_it = next(iter(result.by_cell.values())).manifest
        out: list[fx.Effect] = [fx.Report("release_published", {"selected": of_it.selected})]
        for cell, one in result.by_cell.items():
            out += self._cells[cell].out.offer(one.manifest, one.data)
        return out

    def answer(self, cell: str, need: Need, now_s: float) -> list[fx.Effect] | None:
        """The parts asked for; None where they are of no publication."""
        out = self._cells[cell].out
        return out.answer(need, now_s) if out.is_blob(need.blob) else None

    @property
    def outgoing(self) -> list[OutgoingBroadcast]:
        """What each cell is offered."""
        return [cell.out for cell in self._cells.values()]

    def send(self, cell: str) -> list[fx.Effect]:
        """Say all that is not confirmed (again)."""
        return [*self._cells[cell].out.send(), *self._cells[cell].tell()]

    def resend(self, cell: str) -> list[fx.Effect]:
        """The timer `release`."""
        return self._cells[cell].out.send()

    # --- reports ---

    def reports(self, cell: str, told: ReleaseReports, note: bytes) -> list[fx.Effect]:
        """Have them opened and counted; `note` is the digest to acknowledge."""
        return [fx.Work(CountReports(told.at, told.sealed, note, cell))]

    def counted(self, task: CountReports, result: object) -> list[fx.Effect]:
        """They are durable; what could not be counted the proxy says again."""
        if not isinstance(result, ReportsCounted):
            return []
        return [fx.Send(fx.ProxyAddress(task.cell), self._signer.note(Ack(task.note, "held")))]

    # --- the statement ---

    def state(self, said: ReleaseStatement) -> list[fx.Effect]:
        """Say this one from now on."""
        note = self._releases.note(said)
        return [one for cell in self._cells.values() for one in cell.state(said, note)]

    def tell(self, cell: str) -> list[fx.Effect]:
        """The timer `statement`."""
        return self._cells[cell].tell()

    def sign_anew(self) -> list[fx.Effect]:
        """The keys have changed."""
        return [one for cell in self._cells.values() for one in cell.sign_anew()]

    # --- the proxy's word ---

    def confirmed(self, cell: str, ack: Ack) -> list[fx.Effect] | None:
        """The proxy has the publication, or the statement; None if it is about something else."""
        return self._cells[cell].confirmed(ack)


class _ReleasesOfCell:
    """What one cell is told. Timers `release`, `statement`."""

    def __init__(
        self, cell: str, signer: Signer, releases: Signer, settings: CloudSettings
    ) -> None:
        self._proxy, self._releases, self._settings = fx.ProxyAddress(cell), releases, settings
        self._timers = [timer_name(what, cell=cell) for what in ("release", "statement")]
        self.out = OutgoingBroadcast(cell, signer, releases, settings, self._timers[0])
        self._statement: tuple[ReleaseStatement, Note] | None = None
        self._wait_s = settings.resend_s

    @property
    def offering(self) -> bool:
        """Whether a release is offered."""
        return self.out.sequence >= 0

    def state(self, said: ReleaseStatement, note: Note) -> list[fx.Effect]:
        """Say this one from now on."""
        self._statement, self._wait_s = (said, note), self._settings.resend_s
        return self.tell()

    def tell(self) -> list[fx.Effect]:
        """Say it (again), ever more rarely, until it is confirmed."""
        if self._statement is None:
            return []
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, self._settings.close_cap_s)
        note = self._statement[1]
        return [fx.Send(self._proxy, note), fx.SetTimer(self._timers[1], wait_s)]

    def sign_anew(self) -> list[fx.Effect]:
        """The keys have changed."""
        if self._statement is None:
            return self.out.send()
        said = self._statement[0]
        return [*self.out.send(), *self.state(said, self._releases.note(said))]

    def confirmed(self, ack: Ack) -> list[fx.Effect] | None:
        """As `CloudReleases`."""
        if self._statement is not None:
            digest = hashlib.sha256(self._statement[1].body.payload).digest()
            if digest == ack.blob:
                self._statement = None
                return [fx.CancelTimer(self._timers[1])]
        if not self.out.is_blob(ack.blob):
            return None
        sequence = self.out.sequence
        self.out.drop()
        out: list[fx.Effect] = [fx.CancelTimer(self._timers[0])]
        if ack.status == "held":
            return [fx.Persist(ReleaseHeld(sequence, self._proxy.cell)), *out]
        return [*out, fx.Report("release_refused", {"why": ack.reason})]
