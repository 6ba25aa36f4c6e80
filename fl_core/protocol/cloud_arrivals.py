"""What the proxy hands to the cloud: the roster, and one batch at a time."""

from __future__ import annotations

from fl_core.crypto.keys import KEY_BYTES
from fl_core.errors import ProtocolError
from fl_core.protocol import effects as fx
from fl_core.protocol.cloud_batch import BatchPull
from fl_core.protocol.cloud_tasks import BatchDropped, CloudSettings, RosterKept
from fl_core.protocol.envelope import Signer
from fl_core.protocol.messages import Ack, Batch, Note, Offer, Part, Roster
from fl_core.protocol.transfer import Fetch, check_fetchable, first_data


class Arrivals:
    """Both as far as they are there. The timer `repair` asks for what is missing; `watchdog`,
    which ends a wait for the proxy, starts anew whenever a part of the batch has come.
    """

    def __init__(self, signer: Signer, settings: CloudSettings) -> None:
        self._signer, self._settings = signer, settings
        self._batch: BatchPull | None = None
        self._roster: Fetch | None = None
        self._epoch = -1  # an old roster would bring revoked devices back

    @property
    def whole_batch(self) -> Batch | None:
        """The batch, once every part of it was handed to the host."""
        return self._batch.header if self._batch is not None and self._batch.complete else None

    def check(self, offer: Offer, header: Roster | Batch) -> None:
        """Raise ProtocolError, before anything is changed, unless this can be fetched."""
        if isinstance(header, Batch):
            check_fetchable(offer, header.blob, self._settings.spool_bytes)
            return
        check_fetchable(offer, header.blob, self._settings.blob_bytes)
        if header.blob.size_bytes % KEY_BYTES:
            raise ProtocolError("malformed")
        if header.epoch < self._epoch:
            raise ProtocolError("replayed_roster")

    def batch(self, offer: Offer, header: Batch) -> list[fx.Effect]:
        """The batch of the round under way is offered (again)."""
        new = self._batch is None or self._batch.header != header
        if self._batch is None or new:
            self._batch = BatchPull(header, self._settings.push_bytes)
        out = [*self._batch.offered(offer), self._look_again()]
        return [*out, self._watch()] if new else out

    def roster(self, offer: Offer, header: Roster) -> list[fx.Effect]:
        """A roster is offered (again)."""
        if self._roster is None or self._roster.header != header:
            self._roster = Fetch(offer, header, self._settings.blob_bytes)
        complete = False
        for part in first_data(offer, header.blob):
            complete = self._roster.add(part)
        return self._keep(self._roster, header) if complete else [self._look_again()]

    def part(self, part: Part) -> list[fx.Effect]:
        """A part of either; others are ignored."""
        batch, roster = self._batch, self._roster
        if batch is not None and batch.header.blob.digest == part.blob:
            return [] if batch.complete else batch.part(part)
        if roster is None or roster.header.blob.digest != part.blob:
            return []
        if roster.add(part) and isinstance(roster.header, Roster):
            return self._keep(roster, roster.header)
        need = roster.next_need(timer=False)
        return [fx.Send(fx.Proxy(), need)] if need else []

    def look(self) -> list[fx.Effect]:
        """The timer: ask for what did not come."""
        out: list[fx.Effect] = []
        if self._roster is not None and (need := self._roster.next_need(timer=True)):
            out.append(fx.Send(fx.Proxy(), need))
        pulling = self._batch is not None and not self._batch.complete
        if self._batch is not None and pulling:
            # The round is closed: only silence counts from now on, however long the way is.
            out += [self._watch()] if self._batch.progressed() else self._batch.ask_again()
        return [*out, self._look_again()] if pulling or self._roster is not None else out

    def acknowledge_batch(self) -> list[fx.Effect]:
        """The cloud has no more use for the batch; the proxy may forget it."""
        if self._batch is None:
            return []
        digest = self._batch.header.blob.digest
        return [*self.drop_batch(), fx.Send(fx.Proxy(), self.ack(digest, "held"))]

    def drop_batch(self) -> list[fx.Effect]:
        """Forget the batch, here and on the disk."""
        batch, self._batch = self._batch, None
        return [] if batch is None else [fx.Store(BatchDropped())]

    def ack(self, digest: bytes, status: str) -> Note:
        """A note for the proxy about what it offered."""
        return self._signer.note(Ack(digest, status))  # type: ignore[arg-type]

    def _keep(self, fetch: Fetch, header: Roster) -> list[fx.Effect]:
        data = fetch.assembly.finish()
        self._roster, self._epoch = None, header.epoch
        return [
            fx.Store(RosterKept(header.epoch, data)),
            fx.Send(fx.Proxy(), self.ack(header.blob.digest, "held")),
            fx.Report("roster", {"enrolled": len(data) // KEY_BYTES}),
        ]

    def _watch(self) -> fx.SetTimer:
        return fx.SetTimer("watchdog", self._settings.proxy_margin_s)

    def _look_again(self) -> fx.SetTimer:
        return fx.SetTimer("repair", self._settings.repair_s)
