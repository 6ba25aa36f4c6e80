"""What comes from a cell's proxy to the cloud: a roster, and of each running job one batch."""

from __future__ import annotations

from typing import Literal

from edgeveil.crypto.keys import KEY_BYTES
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_tasks import (
    BatchDropped,
    BatchPart,
    CloudSettings,
    OpenArrived,
    RosterKept,
    RosterMark,
    TakeBatch,
    timer_name,
)
from edgeveil.protocol.messages import (
    Ack,
    Arrived,
    Batch,
    BlobPart,
    BlobPut,
    Envelope,
    Need,
    Offer,
    Roster,
    Signer,
)
from edgeveil.protocol.transfer import (
    NEED_LIMIT,
    Fetch,
    GrantPut,
    PutGrants,
    PutTaken,
    check_claim,
    check_fetchable,
    first_data,
    why_not,
)

BATCH_CREDIT = 256  # parts under way from the proxy: they go to the disk, not into memory
BATCH_CREDIT_BYTES = 16 << 20


def acknowledged(
    to: fx.ProxyAddress, signer: Signer, digest: bytes, status: Literal["held", "closed"]
) -> fx.Effect:
    """Tells the proxy what became of what it offered."""
    return fx.Send(to, signer.note(Ack(digest, status)))


def asked(of: fx.ProxyAddress, need: Need | None) -> list[fx.Effect]:
    """The request, if there is one."""
    return [fx.Send(of, need)] if need else []


class RosterArrival:
    """A cell's roster, as far as it is there. The timer `roster` asks for what is missing."""

    def __init__(
        self, cell: str, signer: Signer, settings: CloudSettings, newest: RosterMark | None = None
    ) -> None:
        self._proxy, self._signer, self._settings = fx.ProxyAddress(cell), signer, settings
        self._roster: Fetch[Roster] | None = None
        self._newest = newest  # an older roster would bring revoked devices back

    def check(self, offer: Offer, header: Roster) -> None:
        """Raise ProtocolError, before anything is changed, unless this can be fetched."""
        check_fetchable(offer, header.blob, self._settings.blob_bytes)
        if header.blob.size_bytes % KEY_BYTES:
            raise ProtocolError("malformed")

    def why_not(self, header: Roster, named: str) -> str:
        """Why this roster is not taken, or ""; `named` is the lineage that the root names.

        Another registry is one that was rebuilt: its numbers begin anew, and it may have forgotten
        who was revoked. Somebody must vouch for it.
        """
        newest = self._newest
        if named:
            if header.lineage != named:
                return "foreign_registry"
            if newest is None or newest.lineage != named:
                return ""
        elif newest is not None and newest.lineage and header.lineage != newest.lineage:
            return "foreign_registry"
        if newest is None or newest.lineage != header.lineage:
            return ""
        return "replayed_roster" if header.epoch < newest.epoch else ""

    def offer(self, offer: Offer, header: Roster) -> list[fx.Effect]:
        """A roster is offered (again)."""
        if self._roster is None or self._roster.header != header:
            self._roster = Fetch(offer, header, self._settings.blob_bytes)
        complete = False
        for part in first_data(offer, header.blob):
            complete = self._roster.add(part)
        return self._keep(self._roster) if complete else [self._look_again()]

    def part(self, part: BlobPart) -> list[fx.Effect]:
        """A part of it; others are ignored."""
        roster = self._roster
        if roster is None or roster.header.blob.digest != part.blob:
            return []
        if roster.add(part):
            return self._keep(roster)
        return asked(self._proxy, roster.next_need(timer=False))

    def look(self) -> list[fx.Effect]:
        """The timer: ask for what did not come."""
        if self._roster is None:
            return []
        return [*asked(self._proxy, self._roster.next_need(timer=True)), self._look_again()]

    def _keep(self, roster: Fetch[Roster]) -> list[fx.Effect]:
        data, header = roster.assembly.finish(), roster.header
        self._roster, self._newest = None, RosterMark(header.lineage, header.epoch)
        cell, digest = self._proxy.cell, header.blob.digest
        kept = RosterKept(header.epoch, data, header.lineage, header.expires_s, header.knows, cell)
        told = {"enrolled": len(data) // KEY_BYTES} | ({"cell": cell} if cell else {})
        return [
            fx.Persist(kept),
            acknowledged(self._proxy, self._signer, digest, "held"),
            fx.Report("roster", told),
        ]

    def _look_again(self) -> fx.SetTimer:
        return fx.SetTimer(timer_name("roster", cell=self._proxy.cell), self._settings.repair_s)


class BatchArrival:
    """One job's batch of one cell, as far as it is there. The timer `repair` asks for what is
    missing; `watchdog` starts anew whenever a part has come.
    """

    def __init__(self, cell: str, signer: Signer, settings: CloudSettings, job_id: bytes) -> None:
        self._proxy, self._signer, self._settings = fx.ProxyAddress(cell), signer, settings
        self._job_id = job_id
        self._batch: Fetch[Batch] | None = None  # its bytes go to the host
        self._stream: Fetch[Batch] | None = None  # the front of one that is not whole yet
        self._at_work = self._more = False  # the host opens what came of a stream; more came since
        self._grants = PutGrants[Batch](signer, settings.beside_bytes, settings.beside_s)

    @property
    def whole_batch(self) -> Batch | None:
        """The batch, once every part of it was handed to the host."""
        batch = self._batch
        return batch.header if batch and batch.assembly.complete else None

    @property
    def batch_bytes(self) -> int:
        """The disk that the batch needs; 0 without one."""
        return self._batch.header.blob.size_bytes if self._batch else 0

    @property
    def claimed_bytes(self) -> int:
        """The disk that the batch needs, or what is there of its front."""
        under_way = self._batch or self._stream
        return under_way.header.blob.size_bytes if under_way else 0

    def knows(self, digest: bytes) -> bool:
        """Whether parts of this name belong here."""
        under_way = self._batch or self._stream
        if under_way is None:
            return False
        return digest in (under_way.header.blob.digest, under_way.header.stream)

    def batch(self, offer: Offer, header: Batch, now_s: float) -> list[fx.Effect]:
        """The batch of the round under way is offered (again). A large one is pulled at once, and
        one of which the front is there already; or it is put where this cloud says."""
        batch, settings = self._batch, self._settings
        new = batch is None or batch.header != header
        known = new and self._continues(offer, header)
        if batch is None or new:
            batch = self._stream if known else None
            batch = batch or self._fetch(offer, header)
            self._batch, self._stream = batch, None
        proxy, blob = self._proxy, header.blob
        if offer.beside and not header.stream and self._grants.takes(proxy, blob, now_s):
            batch.on_its_way = True
            told = self._grants.offered(proxy, self._job_id, blob, header, now_s)
            return [*told, self._look_again(), self.watch()]  # who offers it is there
        batch.on_its_way = False
        out: list[fx.Effect] = []
        for part in first_data(offer, header.blob):
            out += self._put_away(batch, part)
        if known:
            out += asked(self._proxy, batch.next_need(timer=False))
        elif new and (header.stream or header.blob.size_bytes > settings.push_bytes):
            out += asked(self._proxy, batch.next_need(timer=True))
        return [*out, self._look_again(), self.watch()] if new else [*out, self._look_again()]

    def may_be_put(self, task: GrantPut, result: object) -> list[fx.Effect]:
        """The store has a place for the batch."""
        return self._grants.granted(task, result)

    def is_put(self, put: BlobPut) -> list[fx.Effect]:
        """The proxy says that the batch lies in the store: take it from there."""
        grant = self._grants.get(self._proxy, put.blob)
        if grant is None or grant.taking or not grant.name:
            return []
        grant.taking = True
        return [fx.Work(TakeBatch(grant.arrival, grant.name, self._proxy.cell))]

    def taken(self, task: TakeBatch, result: object) -> list[fx.Effect]:
        """The batch is on the disk; or what was put there was not it, and it is offered again."""
        batch = self._batch
        if batch is None or batch.header != task.batch:
            # Its round went meanwhile, and what was written since is of no use.
            other = batch or self._stream
            return [] if other else [fx.Persist(BatchDropped(self._job_id, self._proxy.cell))]
        self._grants.end(self._job_id)
        if isinstance(result, PutTaken):
            batch.assembly.fill(b"")
            return []
        return [fx.Refuse(f"beside_{why_not(result)}")]

    def stream(self, arrived: Arrived) -> list[fx.Effect]:
        """The front of a batch that is not whole yet, as far as it is there.

        Raises ProtocolError `oversized_blob`, `tiny_parts` or `malformed`.
        """
        blob = arrived.blob
        check_claim(blob, self._settings.spool_bytes)
        if blob.size_bytes % blob.part_bytes or not blob.size_bytes:
            raise ProtocolError("malformed")
        if self._batch is not None:
            return []  # it has all of it
        header = Batch(arrived.at, 0, 0, (), blob, blob.digest)
        offer = Offer(Envelope("proxy", b"", bytes(64)))
        stream = self._stream
        if stream is None or stream.header.stream != header.stream:
            stream = self._stream = self._fetch(offer, header)
            stream.grow(offer, header)
        elif blob.size_bytes <= stream.header.blob.size_bytes:
            return []  # said before
        else:
            stream.grow(offer, header)
        return asked(self._proxy, stream.next_need(timer=False))

    def opened(self) -> list[fx.Effect]:
        """What was there is opened; go on if more is by now."""
        self._at_work, more, self._more = False, self._more, False
        batch = self._batch or self._stream
        return self._open(batch.header) if more and batch and batch.header.stream else []

    def part(self, part: BlobPart) -> list[fx.Effect]:
        """A part of it; others are ignored."""
        batch = self._batch or self._stream
        return self._put_away(batch, part) if batch is not None and self.knows(part.blob) else []

    def look(self) -> list[fx.Effect]:
        """The timer: ask for what did not come."""
        batch = self._batch
        if batch is None or batch.assembly.complete:
            return []
        out = asked(self._proxy, batch.next_need(timer=True))
        if not batch.idle_looks and not batch.on_its_way:
            # The round is closed: only silence counts from now on, however long the way is.
            out.append(self.watch())
        return [*out, self._look_again()]

    def acknowledge(self) -> list[fx.Effect]:
        """The cloud has no more use for the batch; the proxy may forget it."""
        if self._batch is None:
            return []
        told = acknowledged(self._proxy, self._signer, self._batch.header.blob.digest, "held")
        return [*self.drop(), told]

    def drop(self) -> list[fx.Effect]:
        """Forget the batch, here and on the disk."""
        batch = self._batch or self._stream
        self._batch = self._stream = None
        self._grants.end(self._job_id)
        return [] if batch is None else [fx.Persist(BatchDropped(self._job_id, self._proxy.cell))]

    def drop_stream(self) -> list[fx.Effect]:
        """Forget the front of a batch that is not whole yet: it comes again with the batch."""
        return self.drop() if self._batch is None else []

    def watch(self) -> fx.SetTimer:
        """There is a sign of the proxy: its silence counts anew."""
        return self._timer("watchdog", self._settings.proxy_margin_s)

    def _fetch(self, offer: Offer, header: Batch) -> Fetch[Batch]:
        most_bytes = self._settings.spool_bytes
        credit = min(BATCH_CREDIT, max(NEED_LIMIT, BATCH_CREDIT_BYTES // header.blob.part_bytes))
        return Fetch(offer, header, most_bytes, keep=False, credit=credit)

    def _continues(self, offer: Offer, header: Batch) -> bool:
        """Whether what came of a stream is the front of this batch."""
        stream = self._stream
        if stream is None or stream.header.stream != header.stream:
            return False
        try:
            stream.grow(offer, header)
        except ProtocolError:
            return False
        return True

    def _put_away(self, batch: Fetch[Batch], part: BlobPart) -> list[fx.Effect]:
        """A part of the batch: to its place on the disk, once. What is streamed is opened there."""
        again, blob, stream = part.index in batch.assembly, batch.header.blob, batch.header.stream
        batch.add(part)
        if again:
            return []
        place = part.index * blob.part_bytes
        kept = BatchPart(stream or blob.digest, place, part.data, self._job_id, self._proxy.cell)
        opening = self._open(batch.header) if stream else []
        return [fx.Persist(kept), *opening, *asked(self._proxy, batch.next_need(timer=False))]

    def _open(self, batch: Batch) -> list[fx.Effect]:
        if self._at_work:
            self._more = True
            return []
        self._at_work = True
        return [fx.Work(OpenArrived(batch, self._proxy.cell))]

    def _look_again(self) -> fx.SetTimer:
        return self._timer("repair", self._settings.repair_s)

    def _timer(self, what: str, delay_s: float) -> fx.SetTimer:
        return fx.SetTimer(timer_name(what, self._job_id, self._proxy.cell), delay_s)
