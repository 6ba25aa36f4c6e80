"""The cloud's machine: several jobs beside each other in all cells, and what they share.

Theory of operation. Each running job has a `JobCourse` (`cloud_job.py`), which knows nothing of the
others. Batches and notes go to it by the job that they name, parts and requests by the digest of
their blob, timers by name, results by task. What is about no running job is answered here.

Each cell has a proxy with a key of its own, and what it says counts for its cell alone. Beside the
jobs stand, cell by cell, the roster, ends of jobs and the statement on releases (both repeated
until confirmed), and releases that the process publishes after a canary or for new devices. Batches
of several jobs share `spool_bytes`: one without room waits at the proxy, and streams make way.

Keys, believed and own, may change while jobs run, by metadata that the offline root signed. Then
each job is announced anew and its round repeated."""

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
    """A `Command`: this job ended before the process did; announce its end again."""

    job_id: bytes
    status: str


@dataclass(frozen=True)
class PublishRelease:
    """A `Command`: bring the release of this ended job to all enrolled devices of these cells."""

    job_id: bytes
    cells: tuple[str, ...] = cj.ONE_CELL


@dataclass(frozen=True)
class OwnKeys:
    """A `Command`: sign with these keys from now on, and believe these peers."""

    jobs: SigningKey
    releases: SigningKey
    peers: Mapping[str, m.PeerKeys]
    metadata: m.TrustMetadata


@dataclass(frozen=True)
class SealPublication:
    """Seal a release to all keys of these cells. Result as `SealJob`."""

    job_id: bytes
    cells: tuple[str, ...] = cj.ONE_CELL


@dataclass(frozen=True)
class CountReports:
    """Count a cell's reports on a release once each. `note`: digest of what brought them."""

    at: m.RoundId
    sealed: tuple[bytes, ...]
    note: bytes
    cell: str = ""


@dataclass(frozen=True)
class ReportsCounted:
    """The counts are durable."""


@dataclass(frozen=True)
class RosterMark:
    """The roster that was taken last: its registry, and its number there."""

    lineage: str
    epoch: int


@dataclass(frozen=True)
class RosterKept:
    """Enrolled public keys, 32 bytes each, stale from `expires_s` on (since 1970; 0: never)."""

    epoch: int
    keys: bytes
    lineage: str = ""
    expires_s: float = 0.0
    knows: int = 0
    cell: str = ""


@dataclass(frozen=True)
class RosterRefused:
    """A roster was refused: until one is taken, nobody knows who was admitted and revoked."""

    reason: str
    lineage: str
    cell: str = ""
    expires_s: float = 0.0


def job_of(task: object) -> bytes | None:
    """The job that a task of the cloud's is about."""
    at = getattr(getattr(task, "batch", task), "at", None)
    found: bytes | None = getattr(task, "job_id", None) if at is None else at.job_id
    return found


class RosterArrival:
    """A cell's roster, as far as it is there. The timer `roster` asks for what is missing."""

    def __init__(self, cell: cj.Cell, newest: RosterMark | None = None) -> None:
        self._cell = cell
        self._roster: tr.Fetch[m.Roster] | None = None
        self._newest = newest  # an older roster would bring revoked devices back

    def offer(self, offer: m.Offer, header: m.Roster, named: str) -> list[fx.Effect]:
        """A roster is offered. `named`: the lineage in the root. May raise ProtocolError."""
        cell, limit_bytes = self._cell, self._cell.settings.blob_bytes
        tr.check_fetchable(offer, header.blob, limit_bytes)
        if header.blob.size_bytes % KEY_BYTES:
            raise ProtocolError("malformed")
        if refused := self._why_not(header, named):
            # A replay changes nothing: the newest roster stands. Whether it is one, its time tells.
            told = RosterRefused(refused, header.lineage, cell.name, header.expires_s)
            return [fx.Persist(told), fx.Refuse(refused)]
        if self._roster is None or self._roster.header != header:
            self._roster = tr.Fetch(offer, header, limit_bytes)
        complete = False
        for part in tr.first_data(offer, header.blob):
            complete = self._roster.add(part)
        if complete:
            return self._keep(self._roster)
        return [cell.set("roster", cell.settings.repair_s)]

    def _why_not(self, header: m.Roster, named: str) -> str:
        """Why not, or "". A rebuilt registry may have forgotten who was revoked."""
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

    def part(self, part: m.BlobPart) -> list[fx.Effect]:
        roster = self._roster
        if roster is None or roster.header.blob.digest != part.blob:
            return []
        if roster.add(part):
            return self._keep(roster)
        return self._cell.ask(roster.next_need(timer=False))

    def look(self) -> list[fx.Effect]:
        if self._roster is None:
            return []
        again = self._cell.set("roster", self._cell.settings.repair_s)
        return [*self._cell.ask(self._roster.next_need(timer=True)), again]

    def _keep(self, roster: tr.Fetch[m.Roster]) -> list[fx.Effect]:
        data, header, name = roster.finish(), roster.header, self._cell.name
        self._roster, self._newest = None, RosterMark(header.lineage, header.epoch)
        kept = RosterKept(header.epoch, data, header.lineage, header.expires_s, header.knows, name)
        told = {"enrolled": len(data) // KEY_BYTES} | ({"cell": name} if name else {})
        held = self._cell.ack(header.blob.digest, "held")
        return [fx.Persist(kept), held, fx.Report("roster", told)]


class CloudMachine:
    """One cloud. `courses`: running jobs by id, oldest first; `heard`: cells that spoke."""

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
        """`keys` are those of each cell's parties; `releases` signs final models (None: `signer`);
        `rosters` were taken last; `metadata` is what proxies are told of the root's."""
        self.signer, self.keys, self._metadata = signer, dict(keys), metadata
        self.heard: set[str] = set()
        self._down: dict[str, dict[str, str]] = {cell: {} for cell in keys}  # links, by their hop
        self._now_s = 0.0
        self._releases = releases or signer
        self.settings = settings or cj.CloudSettings()
        self.courses: dict[bytes, cj.JobCourse] = {}
        cells = {name: cj.Cell(name, signer, self._releases, self.settings) for name in keys}
        marks, self._cells = rosters or {}, cells
        self._rosters = {name: RosterArrival(one, marks.get(name)) for name, one in cells.items()}
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
        """The attempt of the job that runs alone; None where none or several run."""
        courses = list(self.courses.values())
        return courses[0].at if len(courses) == 1 else None

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        self._now_s = now_s
        try:
            out = self._handle(event)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]
        for course in [one for one in self.courses.values() if one.over]:
            # A silent one is to come anew.
            self.heard -= {name for name, cell in course.cells.items() if cell.silent}
            del self.courses[course.job_id]
        return out

    def _handle(self, event: fx.Event) -> list[fx.Effect]:
        match event:
            case fx.Command(what=cj.StartJob() as start):
                course = self.courses.get(start.job_id)
                if course is None:
                    cells = self._cells.values()
                    own = [with_changes(cell, job_id=start.job_id) for cell in cells]
                    course = cj.JobCourse(start, own, list(self._ends.values()))
                out = course.begin()
                self.courses[start.job_id] = course
                for cell in self.keys:
                    course.cells[cell].linked(self.link_down(cell))
                # A proxy answers with its roster, before it holds the job: one that would be
                # refused is known before a round is sealed.
                return [*map(self._here, self.keys), *out]
            case fx.Command(what=CancelJob(job_id=job_id)):
                return self.courses[job_id].cancel() if job_id in self.courses else []
            case fx.Command(what=RepeatEnd(job_id=job_id, status=status)):
                close = m.Close(job_id, status)  # type: ignore[arg-type]
                return [one for ends in self._ends.values() for one in ends.say(job_id, close)]
            case fx.Command(what=PublishRelease() as asked):
                if self._publishing is not None or any(map(self.offering, asked.cells)):
                    return []
                self._publishing = asked
                return [fx.Work(SealPublication(asked.job_id, asked.cells))]
            case fx.Command(what=m.ReleaseStatement() as said):
                return [one for each in self._statements.values() for one in each.say(b"", said)]
            case fx.Command(what=OwnKeys() as keys):
                return self._rekeyed(keys)
            case fx.PeerSilent(peer=fx.ProxyAddress(cell=cell)) if cell in self.keys:
                return [self._here(cell)]
            case fx.PeerConnected(peer=fx.ProxyAddress(cell=cell)) if cell in self.keys:
                jobs = [one for of_it in self._of_jobs(cell) for one in of_it.send()]
                published, statement = self._published[cell], self._statements[cell]
                beside = [*self._ends[cell].send(), *published.send(), *statement.send()]
                out = [*self._tell_trust(cell), self._here(cell), *jobs, *beside]
                return [*out, *self._linked(cell, "cloud", "")]
            case fx.PeerLost(peer=fx.ProxyAddress(cell=cell)) if cell in self.keys:
                self.heard.discard(cell)
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
                # What could not be counted the proxy says again.
                counted = isinstance(result, ReportsCounted)
                return [self._cells[cell].ack(note, "held")] if counted else []
            case fx.WorkDone(task=tr.ShowBlob() as task, result=result):
                return self._shown(task, result)
            case fx.WorkDone(task=task, result=result):
                return self._done(task, result)
        return []

    def _of_jobs(self, cell: str) -> list[cj.CellCourse]:
        return [course.cells[cell] for course in self.courses.values()]

    def offering(self, cell: str) -> bool:
        asked = self._publishing is not None and cell in self._publishing.cells
        return asked or self._published[cell].sequence >= 0

    def _publish(self, task: SealPublication, result: object) -> list[fx.Effect]:
        """Offer what was sealed; what cannot be sealed now is asked for again."""
        if self._publishing is None or self._publishing.job_id != task.job_id:
            return []
        self._publishing = None
        if not isinstance(result, cj.CellBroadcasts):
            return [fx.Report("release_waits", {"why": getattr(result, "reason", "")})]
        selected = next(iter(result.by_cell.values())).manifest.selected
        out: list[fx.Effect] = [fx.Report("release_published", {"selected": selected})]
        for cell, one in result.by_cell.items():
            out += self._published[cell].offer(one)
        return out

    @property
    def unreached(self) -> list[str]:
        return [cell for cell in self.keys if self._down[cell] or cell not in self.heard]

    def link_down(self, cell: str) -> str:
        """Which link on the way to the cell's devices is known to be down; "": none."""
        return next(iter(self._down[cell].values()), "")

    def _linked(self, cell: str, hop: str, down: str) -> list[fx.Effect]:
        if down:
            self._down[cell][hop] = f"{down} (cell '{cell}')" if cell else down
        else:
            self._down[cell].pop(hop, None)
        told = self.link_down(cell)
        return [one for of_it in self._of_jobs(cell) for one in of_it.linked(told)]

    def _message(self, cell: str, message: m.Message) -> list[fx.Effect]:
        match message:
            case m.Offer() as offer:
                return self._offer(cell, offer)
            case m.BlobPart() as part:
                of_it = self._course(lambda course: course.cells[cell].knows(part.blob))
                return of_it.part(cell, part) if of_it else self._rosters[cell].part(part)
            case m.Need() as need:
                return self._answer(cell, need)
            case m.Note(body=envelope):
                return self._note(cell, envelope)
        return []

    def _hear(self, cell: str) -> None:
        self.heard.add(cell)
        for of_it in self._of_jobs(cell):
            of_it.heard = True

    def _here(self, cell: str) -> fx.Effect:
        return fx.Send(fx.ProxyAddress(cell), self.signer.note(m.Here(0.0)))

    def _course(self, about: Callable[[cj.JobCourse], bool]) -> cj.JobCourse | None:
        return next((one for one in self.courses.values() if about(one)), None)

    def _done(self, task: object, result: object) -> list[fx.Effect]:
        course = self.courses.get(job_of(task) or b"")
        if course is None:
            if isinstance(task, cj.TakeBatch):  # written since the job ended
                return [fx.Persist(cj.BatchDropped(task.batch.at.job_id, task.cell))]
            return []
        match task:
            case cj.OpenArrived():
                return course.cells[task.cell].arrival.opened()
            case tr.GrantPut(sender=fx.ProxyAddress(cell=cell)):
                return course.cells[cell].arrival.grants.granted(task, result)
            case cj.TakeBatch():
                return course.taken(task, result)
        return course.done(task, result) if course.awaits(task) else []

    def _shown(self, task: tr.ShowBlob, result: object) -> list[fx.Effect]:
        """A broadcast lies in the store, or a publication; cells may have the same one."""
        of_jobs = [one for course in self.courses.values() for one in course.cells.values()]
        outgoing = [*self._published.values(), *(one.out for one in of_jobs)]
        asked = [one for one in outgoing if one.shown.awaits(task)]
        of_it = next((one for one in asked if one.lends(task.data)), asked[0] if asked else None)
        return of_it.shown.done(task, result, self._now_s) if of_it else []

    def _tell_trust(self, cell: str) -> list[fx.Effect]:
        return [fx.Send(fx.ProxyAddress(cell), self._metadata)] if self._metadata else []

    def _rekeyed(self, own: OwnKeys) -> list[fx.Effect]:
        before = self.keys
        changed = any(before[cell].epoch != peers.epoch for cell, peers in own.peers.items())
        self.keys, self._metadata = dict(own.peers), own.metadata
        self.signer.key = own.jobs
        self._releases.key = own.releases
        version = next(iter(own.peers.values())).versions[1]
        out: list[fx.Effect] = [one for cell in self.keys for one in self._tell_trust(cell)]
        out.append(fx.Report("trust_changed", {"version": version}))
        if not changed:
            return out
        out += [one for ends in self._ends.values() for one in ends.sign_anew()]
        for cell, published in self._published.items():
            out += [*published.send(), *self._statements[cell].sign_anew()]
        return out + [one for course in self.courses.values() for one in course.rekeyed()]

    def _answer(self, cell: str, need: m.Need) -> list[fx.Effect]:
        """Send parts, or where they lie. Raises `unknown_blob`, `bad_index`."""
        published = self._published[cell]
        if published.is_blob(need.blob):
            return published.answer(need, self._now_s)
        course = self._course(lambda one: one.cells[cell].out.is_blob(need.blob))
        if course is None:
            raise ProtocolError("unknown_blob")
        return course.answer(cell, need, self._now_s)

    def _offer(self, cell: str, offer: m.Offer) -> list[fx.Effect]:
        header = m.verified_header(offer.header, "proxy", self.keys[cell].proxy)
        self._hear(cell)
        of_it = self._cells[cell]
        match header:
            case m.MaskSums(at=at):
                course = self.courses.get(at.job_id)
                if course is None:
                    return [of_it.ack(header.blob.digest, "held")]
                return course.masks(cell, offer, header)
            case m.Batch(at=at):
                course = self.courses.get(at.job_id)
                if course is not None:
                    return self._batch(course, cell, offer, header)
                tr.check_fetchable(offer, header.blob, self.settings.spool_bytes)
                return [of_it.ack(header.blob.digest, "closed")]
            case m.Roster():
                return self._rosters[cell].offer(offer, header, self.keys[cell].lineage)
        raise ProtocolError("unexpected_header")

    def _others(self, course: cj.JobCourse, cell: str) -> list[cj.BatchArrival]:
        of_all = [one for each in self.courses.values() for one in each.cells.values()]
        return [one.arrival for one in of_all if one is not course.cells[cell]]

    def _batch(
        self, course: cj.JobCourse, cell: str, offer: m.Offer, header: m.Batch
    ) -> list[fx.Effect]:
        """Streams of other jobs make way where this batch would fit without them."""
        others = self._others(course, cell)
        left_bytes = self.settings.spool_bytes - sum(one.batch_bytes for one in others)
        out, size_bytes = list[fx.Effect](), header.blob.size_bytes
        if course.takes(cell, header) and size_bytes <= left_bytes:
            claimed_bytes = sum(one.claimed_bytes for one in others)
            if size_bytes > self.settings.spool_bytes - claimed_bytes:
                out += [effect for one in others for effect in one.drop_stream()]
        return [*out, *course.batch(cell, offer, header, left_bytes, self._now_s)]

    def _stream(self, cell: str, arrived: m.Arrived) -> list[fx.Effect]:
        course = self.courses.get(arrived.at.job_id)
        if course is None:
            return []
        others = self._others(course, cell)
        left_bytes = self.settings.spool_bytes - sum(one.claimed_bytes for one in others)
        # What no room could hold is refused as such, whatever others have.
        impossible = arrived.blob.size_bytes > self.settings.spool_bytes
        return course.stream(cell, arrived, arrived.blob.size_bytes if impossible else left_bytes)

    def _note(self, cell: str, envelope: m.Envelope) -> list[fx.Effect]:
        body = m.verified_body(envelope, "proxy", self.keys[cell].proxy)
        self._hear(cell)
        match body:
            case m.Shortfall(at=at):
                course = self.courses.get(at.job_id)
                return course.short(cell, body) if course else []
            case m.Arrived():
                return self._stream(cell, body)
            case m.BlobPut():
                course = self._course(lambda one: one.cells[cell].knows(body.blob))
                return course.cells[cell].arrival.is_put(body) if course else []
            case m.ReleaseReports():
                return [fx.Work(CountReports(body.at, body.sealed, _digest(envelope), cell))]
            case m.Ack():
                return self._ack(cell, body)
            case m.LinkState(up=up):
                return self._linked(cell, "edge", "" if up else EDGE_LINK)
        raise ProtocolError("unexpected_body")

    def _ack(self, cell: str, ack: m.Ack) -> list[fx.Effect]:
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
        course = self._course(lambda one: one.cells[cell].asks_about(ack))
        return course.acknowledged(cell, ack) if course else []

    def _timer(self, name: str) -> list[fx.Effect]:
        what, _, of_it = name.partition("/")
        job, _, cell = of_it.partition("/")
        job_id = bytes.fromhex(job)
        if job_id:
            return self.courses[job_id].timer(what, cell) if job_id in self.courses else []
        match what:
            case "close":
                return self._ends[cell].send()
            case "release":
                return self._published[cell].send()
            case "statement":
                return self._statements[cell].send()
            case "roster":
                return self._rosters[cell].look()
        return []


def _digest(said: m.Envelope) -> bytes:
    return hashlib.sha256(said.payload).digest()
