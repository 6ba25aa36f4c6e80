"""Cloud machine: runs several jobs in all cells and holds their shared state.

Each running job has a `JobRun` (`cloud_job.py`), independent of the others. Batches and notes are
dispatched by job id, parts and requests by the digest of their blob, timers by name, results by
task; events without a running job are handled here. Each cell has a proxy with its own key, whose
messages count for its cell only. Shared state per cell: the roster, ends of jobs and the statement
on releases (both repeated until confirmed), and releases published after a canary or for new
devices. Batches of all jobs share `spool_bytes`: a batch without room waits at the proxy, and
streams are dropped to make room.

Trusted and own keys may change while jobs run, by metadata that the offline root signed. Each job
is then announced and its round repeated under the new keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as with_changes

from edgeveil.crypto.keys import KEY_BYTES, SigningKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.cloud_reasons import EDGE_LINK, OTHER_KEY, OWN_LINK


@dataclass(frozen=True)
class CancelJob:
    """A `Command`: end this job now."""

    job_id: bytes


@dataclass(frozen=True)
class RepeatEnd:
    """A `Command`: announce again the end of a job that an earlier process ended."""

    job_id: bytes
    status: str


@dataclass(frozen=True)
class PublishRelease:
    """A `Command`: send the release of this ended job to all devices of these cells."""

    job_id: bytes
    cells: tuple[str, ...] = cj.ONE_CELL


@dataclass(frozen=True)
class OwnKeys:
    """A `Command`: sign with these keys from now on, and trust these peers."""

    jobs: SigningKey
    releases: SigningKey
    peers: Mapping[str, m.PeerKeys]
    metadata: m.TrustMetadata


@dataclass(frozen=True)
class SealPublication:
    """Work: seal a release to all keys of these cells. Returns as `SealJob`."""

    job_id: bytes
    cells: tuple[str, ...] = cj.ONE_CELL


@dataclass(frozen=True)
class CountReports:
    """Work: count a cell's reports on a release, once each; `note` is their note's digest."""

    at: m.RoundId
    sealed: tuple[bytes, ...]
    note: bytes
    cell: str = ""


@dataclass(frozen=True)
class ReportsCounted:
    """Result of `CountReports`: the counts are durable."""


@dataclass(frozen=True)
class RosterMark:
    """Registry and epoch of the newest accepted roster."""

    lineage: str
    epoch: int


@dataclass(frozen=True)
class RosterKept:
    """Enrolled public keys, 32 bytes each, stale from `expires_s` (since 1970; 0: never)."""

    epoch: int
    keys: bytes
    lineage: str = ""
    expires_s: float = 0.0
    knows: int = 0
    cell: str = ""


@dataclass(frozen=True)
class RosterRefused:
    """Refused roster: until one is accepted, new and revoked devices are unknown."""

    reason: str
    lineage: str
    cell: str = ""
    expires_s: float = 0.0


def job_of(task: object) -> bytes | None:
    at = getattr(getattr(task, "batch", task), "at", None)
    found: bytes | None = getattr(task, "job_id", None) if at is None else at.job_id
    return found


class _RosterArrival:
    """Roster of a cell being received; the timer `roster` requests missing parts."""

    def __init__(self, cell: cj.Cell, newest: RosterMark | None = None) -> None:
        self._cell = cell
        self._roster: tr.Fetch[m.Roster] | None = None
        self._newest = newest  # an older roster would restore revoked devices

    def offer(self, offer: m.Offer, header: m.Roster, named: str) -> fx.Effects:
        """Take an offered roster; `named` is the root's lineage. Raises ProtocolError."""
        cell, limit_bytes = self._cell, self._cell.settings.blob_bytes
        tr.check_fetchable(offer, header.blob, limit_bytes)
        if header.blob.size_bytes % KEY_BYTES:
            raise ProtocolError("malformed")
        if refused := self._why_not(header, named):
            # The accepted roster stays; the expiry distinguishes a replay.
            report = RosterRefused(refused, header.lineage, cell.name, header.expires_s)
            return [fx.Persist(report), fx.Refuse(refused)]
        if self._roster is None or self._roster.header != header:
            self._roster = tr.Fetch(offer, header, limit_bytes)
        complete = False
        for part in tr.first_data(offer, header.blob):
            complete = self._roster.add(part)
        if complete:
            return self._keep(self._roster)
        return [cell.set("roster", cell.settings.repair_s)]

    def _why_not(self, header: m.Roster, named: str) -> str:
        """Return the refusal's reason, or ""; a rebuilt registry may lack revocations."""
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

    def part(self, part: m.BlobPart) -> fx.Effects:
        roster = self._roster
        if roster is None or roster.header.blob.digest != part.blob:
            return []
        if roster.add(part):
            return self._keep(roster)
        return self._cell.ask(roster.next_need(timer=False))

    def repair(self) -> fx.Effects:
        if self._roster is None:
            return []
        again = self._cell.set("roster", self._cell.settings.repair_s)
        return [*self._cell.ask(self._roster.next_need(timer=True)), again]

    def _keep(self, roster: tr.Fetch[m.Roster]) -> fx.Effects:
        data, header, name = roster.finish(), roster.header, self._cell.name
        self._roster, self._newest = None, RosterMark(header.lineage, header.epoch)
        kept = RosterKept(header.epoch, data, header.lineage, header.expires_s, header.knows, name)
        facts = {"enrolled": len(data) // KEY_BYTES} | ({"cell": name} if name else {})
        held = self._cell.ack(header.blob.digest, "held")
        return [fx.Persist(kept), held, fx.Report("roster", facts)]


class CloudMachine:
    """One cloud; `runs` are running jobs by id, oldest first, `responding` the reachable cells."""

    def __init__(
        self,
        signer: m.Signer,
        keys: Mapping[str, m.PeerKeys],
        settings: cj.CloudSettings | None = None,
        *,
        releases: m.Signer | None = None,
        rosters: Mapping[str, RosterMark] | None = None,
        metadata: m.TrustMetadata | None = None,
    ) -> None:
        """`keys`, `rosters` are by cell; `releases` signs models; `metadata` is for proxies."""
        self.signer, self.keys, self._metadata = signer, dict(keys), metadata
        self.responding: set[str] = set()
        self._down: dict[str, dict[str, str]] = {cell: {} for cell in keys}  # failed links by hop
        self._now_s = 0.0
        self._releases = releases or signer
        self.settings = settings or cj.CloudSettings()
        self.runs: dict[bytes, cj.JobRun] = {}
        cells = {name: cj.Cell(name, signer, self._releases, self.settings) for name in keys}
        marks, self._cells = rosters or {}, cells
        self._rosters = {name: _RosterArrival(one, marks.get(name)) for name, one in cells.items()}
        self._ends = {name: cj.RepeatedNotes(one, signer, "close") for name, one in cells.items()}
        self._statements = {
            name: cj.RepeatedNotes(one, self._releases, "statement") for name, one in cells.items()
        }
        self._published = {
            name: cj.OutgoingBroadcast(one, "release") for name, one in cells.items()
        }
        self._publishing: PublishRelease | None = None  # while it is sealed

    @property
    def at(self) -> m.RoundId | None:
        """Attempt of the only running job; None if none or several run."""
        runs = list(self.runs.values())
        return runs[0].at if len(runs) == 1 else None

    def handle(self, event: fx.Event, now_s: float) -> fx.Effects:
        self._now_s = now_s
        try:
            out = self._handle(event)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]
        for run in [one for one in self.runs.values() if one.over]:
            # A silent cell must respond again.
            self.responding -= {name for name, cell in run.cells.items() if cell.silent}
            del self.runs[run.job_id]
        return out

    def _handle(self, event: fx.Event) -> fx.Effects:
        match event:
            case fx.Command(request=cj.StartJob() as start):
                run = self.runs.get(start.job_id)
                if run is None:
                    cells = self._cells.values()
                    own = [with_changes(cell, job_id=start.job_id) for cell in cells]
                    run = cj.JobRun(start, own, list(self._ends.values()))
                out = run.begin()
                self.runs[start.job_id] = run
                for cell in self.keys:
                    run.cells[cell].linked(self.link_down(cell))
                # A proxy answers with its roster before it holds the job, so that a roster to be
                # refused is known before a round is sealed.
                return [*map(self._here, self.keys), *out]
            case fx.Command(request=CancelJob(job_id=job_id)):
                return self.runs[job_id].cancel() if job_id in self.runs else []
            case fx.Command(request=RepeatEnd(job_id=job_id, status=status)):
                close = m.Close(job_id, status)  # type: ignore[arg-type]
                return [one for ends in self._ends.values() for one in ends.add(job_id, close)]
            case fx.Command(request=PublishRelease() as new):
                if self._publishing is not None or any(map(self.offering, new.cells)):
                    return []
                self._publishing = new
                return [fx.Work(SealPublication(new.job_id, new.cells))]
            case fx.Command(request=m.ReleaseStatement() as new):
                return [one for each in self._statements.values() for one in each.add(b"", new)]
            case fx.Command(request=OwnKeys() as keys):
                return self._rekeyed(keys)
            case fx.PeerSilent(peer=fx.ProxyAddress(cell=cell)) if cell in self.keys:
                return [self._here(cell)]
            case fx.PeerConnected(peer=fx.ProxyAddress(cell=cell)) if cell in self.keys:
                jobs = [one for run in self._cell_runs(cell) for one in run.send()]
                published, statement = self._published[cell], self._statements[cell]
                shared = [*self._ends[cell].send(), *published.send(), *statement.send()]
                out = [*self._send_trust(cell), self._here(cell), *jobs, *shared]
                return [*out, *self._linked(cell, "cloud", "")]
            case fx.PeerLost(peer=fx.ProxyAddress(cell=cell)) if cell in self.keys:
                self.responding.discard(cell)
                return self._linked(cell, "cloud", OWN_LINK)
            case fx.PeerSigned(peer=fx.ProxyAddress(cell=cell), known=known) if cell in self.keys:
                return self._linked(cell, "key", "" if known else OTHER_KEY)
            case fx.MessageReceived(sender=fx.ProxyAddress(cell=cell), message=message):
                return self._message(cell, message) if cell in self.keys else []
            case fx.Timer(name=name):
                return self._timer(name)
            case fx.WorkDone(task=SealPublication() as task, result=result):
                return self._publish(task, result)
            case fx.WorkDone(task=CountReports(note=note, cell=cell), result=result):
                # The proxy repeats reports that are not acknowledged.
                counted = isinstance(result, ReportsCounted)
                return [self._cells[cell].ack(note, "held")] if counted else []
            case fx.WorkDone(task=tr.ShowBlob() as task, result=result):
                return self._shown(task, result)
            case fx.WorkDone(task=task, result=result):
                return self._done(task, result)
        return []

    def _cell_runs(self, cell: str) -> list[cj.CellRun]:
        return [run.cells[cell] for run in self.runs.values()]

    def offering(self, cell: str) -> bool:
        sealing = self._publishing is not None and cell in self._publishing.cells
        return sealing or self._published[cell].sequence >= 0

    def _publish(self, task: SealPublication, result: object) -> fx.Effects:
        """Offer a sealed release; the process retries one that cannot be sealed."""
        if self._publishing is None or self._publishing.job_id != task.job_id:
            return []
        self._publishing = None
        if not isinstance(result, cj.CellBroadcasts):
            return [fx.Report("release_waits", {"why": getattr(result, "reason", "")})]
        selected = next(iter(result.by_cell.values())).manifest.selected
        out: fx.Effects = [fx.Report("release_published", {"selected": selected})]
        for cell, one in result.by_cell.items():
            out += self._published[cell].offer(one)
        return out

    @property
    def unreached(self) -> list[str]:
        return [cell for cell in self.keys if self._down[cell] or cell not in self.responding]

    def link_down(self, cell: str) -> str:
        """Return which link towards the cell's devices is down, or ""."""
        return next(iter(self._down[cell].values()), "")

    def _linked(self, cell: str, hop: str, down: str) -> fx.Effects:
        if down:
            self._down[cell][hop] = f"{down} (cell '{cell}')" if cell else down
        else:
            self._down[cell].pop(hop, None)
        current = self.link_down(cell)
        return [one for run in self._cell_runs(cell) for one in run.linked(current)]

    def _message(self, cell: str, message: m.Message) -> fx.Effects:
        match message:
            case m.Offer() as offer:
                return self._offer(cell, offer)
            case m.BlobPart() as part:
                run = self._run(lambda run: run.cells[cell].knows(part.blob))
                return run.part(cell, part) if run else self._rosters[cell].part(part)
            case m.Need() as need:
                return self._answer(cell, need)
            case m.Note(body=envelope):
                return self._note(cell, envelope)
        return []

    def _mark_responding(self, cell: str) -> None:
        self.responding.add(cell)
        for run in self._cell_runs(cell):
            run.responding = True

    def _here(self, cell: str) -> fx.Effect:
        return fx.Send(fx.ProxyAddress(cell), self.signer.note(m.Here(0.0)))

    def _run(self, test: Callable[[cj.JobRun], bool]) -> cj.JobRun | None:
        return next((one for one in self.runs.values() if test(one)), None)

    def _done(self, task: object, result: object) -> fx.Effects:
        run = self.runs.get(job_of(task) or b"")
        if run is None:
            if isinstance(task, cj.TakeBatch):  # written since the job ended
                return [fx.Persist(cj.BatchDropped(task.batch.at.job_id, task.cell))]
            return []
        match task:
            case cj.OpenArrived():
                return run.cells[task.cell].arrival.opened()
            case tr.GrantPut(sender=fx.ProxyAddress(cell=cell)):
                return run.cells[cell].arrival.grants.granted(task, result)
            case cj.TakeBatch():
                return run.taken(task, result)
        return run.done(task, result) if run.awaits(task) else []

    def _shown(self, task: tr.ShowBlob, result: object) -> fx.Effects:
        """Pass a stored blob to its broadcast; several cells may send the same one."""
        runs = [one for run in self.runs.values() for one in run.cells.values()]
        outgoing = [*self._published.values(), *(one.out for one in runs)]
        waiting = [one for one in outgoing if one.shown.awaits(task)]
        waiting = [one for one in waiting if one.lends(task.data)] or waiting
        return waiting[0].shown.done(task, result, self._now_s) if waiting else []

    def _send_trust(self, cell: str) -> fx.Effects:
        return [fx.Send(fx.ProxyAddress(cell), self._metadata)] if self._metadata else []

    def _rekeyed(self, own: OwnKeys) -> fx.Effects:
        before = self.keys
        changed = any(before[cell].epoch != peers.epoch for cell, peers in own.peers.items())
        self.keys, self._metadata = dict(own.peers), own.metadata
        self.signer.key = own.jobs
        self._releases.key = own.releases
        version = next(iter(own.peers.values())).versions[1]
        out: fx.Effects = [one for cell in self.keys for one in self._send_trust(cell)]
        out.append(fx.Report("trust_changed", {"version": version}))
        if not changed:
            return out
        out += [one for ends in self._ends.values() for one in ends.sign_anew()]
        for cell, published in self._published.items():
            out += [*published.send(), *self._statements[cell].sign_anew()]
        return out + [one for run in self.runs.values() for one in run.rekeyed()]

    def _answer(self, cell: str, need: m.Need) -> fx.Effects:
        """Send parts of a broadcast or its URL. Raises `unknown_blob`, `bad_index`."""
        published = self._published[cell]
        if published.is_blob(need.blob):
            return published.answer(need, self._now_s)
        run = self._run(lambda one: one.cells[cell].out.is_blob(need.blob))
        if run is None:
            raise ProtocolError("unknown_blob")
        return run.answer(cell, need, self._now_s)

    def _offer(self, cell: str, offer: m.Offer) -> fx.Effects:
        header = m.verified_header(offer.header, "proxy", self.keys[cell].proxy)
        self._mark_responding(cell)
        match header:
            case m.MaskSums(at=at):
                run = self.runs.get(at.job_id)
                if run is None:
                    return [self._cells[cell].ack(header.blob.digest, "held")]
                return run.masks(cell, offer, header)
            case m.Batch(at=at):
                run = self.runs.get(at.job_id)
                if run is not None:
                    return self._batch(run, cell, offer, header)
                tr.check_fetchable(offer, header.blob, self.settings.spool_bytes)
                return [self._cells[cell].ack(header.blob.digest, "closed")]
            case m.Roster():
                return self._rosters[cell].offer(offer, header, self.keys[cell].lineage)
        raise ProtocolError("unexpected_header")

    def _others(self, run: cj.JobRun, cell: str) -> list[cj.BatchArrival]:
        runs = [one for each in self.runs.values() for one in each.cells.values()]
        return [one.arrival for one in runs if one is not run.cells[cell]]

    def _batch(self, run: cj.JobRun, cell: str, offer: m.Offer, header: m.Batch) -> fx.Effects:
        """Take a batch, dropping streams of other jobs if it fits without them."""
        others = self._others(run, cell)
        left_bytes = self.settings.spool_bytes - sum(one.batch_bytes for one in others)
        out, size_bytes = fx.Effects(), header.blob.size_bytes
        if run.takes(cell, header) and size_bytes <= left_bytes:
            claimed_bytes = sum(one.claimed_bytes for one in others)
            if size_bytes > self.settings.spool_bytes - claimed_bytes:
                out += [effect for one in others for effect in one.drop_stream()]
        return [*out, *run.batch(cell, offer, header, left_bytes, self._now_s)]

    def _stream(self, cell: str, arrived: m.Arrived) -> fx.Effects:
        run = self.runs.get(arrived.at.job_id)
        if run is None:
            return []
        others = self._others(run, cell)
        left_bytes = self.settings.spool_bytes - sum(one.claimed_bytes for one in others)
        # A stream larger than the spool is refused by its size, not for lack of room.
        impossible = arrived.blob.size_bytes > self.settings.spool_bytes
        return run.stream(cell, arrived, arrived.blob.size_bytes if impossible else left_bytes)

    def _note(self, cell: str, envelope: m.Envelope) -> fx.Effects:
        body = m.verified_body(envelope, "proxy", self.keys[cell].proxy)
        self._mark_responding(cell)
        match body:
            case m.Shortfall(at=at):
                run = self.runs.get(at.job_id)
                return run.short(cell, body) if run else []
            case m.Arrived():
                return self._stream(cell, body)
            case m.BlobPut():
                run = self._run(lambda one: one.cells[cell].knows(body.blob))
                return run.cells[cell].arrival.is_put(body) if run else []
            case m.ReleaseReports():
                digest = hashlib.sha256(envelope.payload).digest()
                return [fx.Work(CountReports(body.at, body.sealed, digest, cell))]
            case m.Ack():
                return self._ack(cell, body)
            case m.LinkState(up=up):
                return self._linked(cell, "edge", "" if up else EDGE_LINK)
        raise ProtocolError("unexpected_body")

    def _ack(self, cell: str, ack: m.Ack) -> fx.Effects:
        for notes in (self._ends[cell], self._statements[cell]):
            if (confirmed := notes.confirmed(ack.blob)) is not None:
                return confirmed
        published = self._published[cell]
        if published.is_blob(ack.blob):
            sequence, stop = published.sequence, self._cells[cell].cancel("release")
            published.drop()
            if ack.status == "held":
                return [fx.Persist(cj.ReleaseHeld(sequence, cell)), stop]
            return [stop, fx.Report("release_refused", {"why": ack.reason})]
        run = self._run(lambda one: one.cells[cell].asks_about(ack))
        return run.acknowledged(cell, ack) if run else []

    def _timer(self, name: str) -> fx.Effects:
        kind, _, scope = name.partition("/")
        job, _, cell = scope.partition("/")
        job_id = bytes.fromhex(job)
        if job_id:
            return self.runs[job_id].timer(kind, cell) if job_id in self.runs else []
        match kind:
            case "close":
                return self._ends[cell].send()
            case "release":
                return self._published[cell].send()
            case "statement":
                return self._statements[cell].send()
            case "roster":
                return self._rosters[cell].repair()
        return []
