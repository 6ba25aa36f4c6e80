"""What the proxy hands to the cloud: the roster, and one batch at a time."""

from __future__ import annotations

from edgeveil.crypto.keys import KEY_BYTES
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_tasks import BatchDropped, BatchPart, CloudSettings, RosterKept
from edgeveil.protocol.envelope import Signer
from edgeveil.protocol.messages import Ack, Batch, Need, Note, Offer, Part, Roster
from edgeveil.protocol.transfer import Fetch, check_fetchable, first_data

BATCH_CREDIT = 64  # parts under way from the proxy: they go to the disk, not into memory


class Arrivals:
    """Both as far as they are there. The timer `repair` asks for what is missing; `watchdog`,
    which ends a wait for the proxy, starts anew whenever a part of the batch has come.
    """

    def __init__(self, signer: Signer, settings: CloudSettings) -> None:
        self._signer, self._settings = signer, settings
        self._batch: Fetch | None = None  # its bytes go to the host
        self._roster: Fetch | None = None
        self._epoch = -1  # an old roster would bring revoked devices back

    @property
    def whole_batch(self) -> Batch | None:
        """The batch, once every part of it was handed to the host."""
        if self._batch is None or not self._batch.assembly.complete:
            return None
        header = self._batch.header
        return header if isinstance(header, Batch) else None

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
        """The batch of the round under way is offered (again). A large one is pulled at once."""
        new = self._batch is None or self._batch.header != header
        if self._batch is None or new:
            limit = self._settings.spool_bytes
            self._batch = Fetch(offer, header, limit, keep=False, credit=BATCH_CREDIT)
        out: list[fx.Effect] = []
        for part in first_data(offer, header.blob):
            out += self._put_away(self._batch, part)
        if new and header.blob.size_bytes > self._settings.push_bytes:
            out += _asked(self._batch.next_need(timer=True))
        return [*out, self._look_again(), self._watch()] if new else [*out, self._look_again()]

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
            return self._put_away(batch, part)
        if roster is None or roster.header.blob.digest != part.blob:
            return []
        if roster.add(part) and isinstance(roster.header, Roster):
            return self._keep(roster, roster.header)
        return _asked(roster.next_need(timer=False))

    def look(self) -> list[fx.Effect]:
        """The timer: ask for what did not come."""
        out: list[fx.Effect] = []
        if self._roster is not None:
            out += _asked(self._roster.next_need(timer=True))
        pulling = self._batch is not None and not self._batch.assembly.complete
        if self._batch is not None and pulling:
            out += _asked(self._batch.next_need(timer=True))
            if not self._batch.idle_looks:
                # The round is closed: only silence counts from now on, however long the way is.
                out.append(self._watch())
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

    @staticmethod
    def _put_away(fetch: Fetch, part: Part) -> list[fx.Effect]:
        """A part of the batch: to its place on the disk, once."""
        seen, blob = part.index in fetch.assembly, fetch.header.blob
        fetch.add(part)
        if seen:
            return []
        kept = fx.Store(BatchPart(blob.digest, part.index * blob.part_bytes, part.data))
        return [kept, *_asked(fetch.next_need(timer=False))]

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


def _asked(need: Need | None) -> list[fx.Effect]:
    return [fx.Send(fx.Proxy(), need)] if need else []
