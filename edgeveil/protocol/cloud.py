"""The cloud's machine: several jobs beside each other in all cells, and what they share.

Theory of operation. Each job that runs has a course of its own (`JobCourse`), which knows nothing
of the others: a job that waits, pauses or ends holds nobody up. What comes is told to the course
that it is about: batches and notes by the job that they name, parts and requests by the digest of
their blob, timers by their name, outcomes of work by their task. What is about no job that runs
is answered here: its batches are of no use.

Each cell has a proxy with a key of its own, and what it says counts for its cell alone. Beside the
jobs, and in any state of theirs, stand the cells' rosters, which the proxies hand over when they
change, the ends of jobs, which are told until the proxies confirm them (`JobEnds`), and what
follows a release (`CloudReleases`).

Batches of several jobs share the disk that `spool_bytes` bounds. One for which the others leave no
room waits at the proxy until theirs are committed; what came of batches that are not whole yet
makes way for it.

Whom the cloud believes, and with which keys it speaks, may change while jobs run, by metadata
that the offline root signed. What was signed with the key before is believed no more: each job is
announced anew, and its round repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_arrivals import BatchArrival, RosterArrival, acknowledged
from edgeveil.protocol.cloud_course import CourseContext, JobCourse
from edgeveil.protocol.cloud_outgoing import JobEnds
from edgeveil.protocol.cloud_releases import CloudReleases
from edgeveil.protocol.cloud_tasks import (
    EDGE_LINK,
    OTHER_KEY,
    OWN_LINK,
    BatchDropped,
    CancelJob,
    CloudSettings,
    CountReports,
    OpenArrived,
    PublishRelease,
    RepeatEnd,
    RosterMark,
    RosterRefused,
    SealPublication,
    StartJob,
    TakeBatch,
    job_of,
    timer_of,
)
from edgeveil.protocol.messages import (
    Ack,
    Arrived,
    Batch,
    BlobPart,
    BlobPut,
    Envelope,
    ExchangeId,
    Here,
    LinkState,
    MaskSums,
    Message,
    Need,
    Note,
    Offer,
    PeerKeys,
    ReleaseReports,
    ReleaseStatement,
    Roster,
    Shortfall,
    Signer,
    TrustMetadata,
    verified_body,
    verified_header,
)
from edgeveil.protocol.transfer import GrantPut, ShowBlob, check_fetchable


@dataclass(frozen=True)
class OwnKeys:
    """What the cloud signs with from now on, and whom it believes in each cell; `metadata` says
    why.
    """

    jobs: SigningKey
    releases: SigningKey
    peers: Mapping[str, PeerKeys]
    metadata: TrustMetadata


class CloudMachine:
    """One cloud behind the proxies of its cells. `courses` are the jobs that run, by their id,
    oldest first; `heard` are the cells that said something since its start."""

    def __init__(
        self,
        signer: Signer,
        keys: Mapping[str, PeerKeys],
        settings: CloudSettings | None = None,
        *,
        releases: Signer | None = None,
        rosters: Mapping[str, RosterMark] | None = None,
        metadata: TrustMetadata | None = None,
    ) -> None:
        """`keys` are those that each cell's parties speak with. `releases` signs final models
        (None: `signer` does); `rosters` were taken last; `metadata` is what the proxies are told of
        the root's."""
        self.signer, self.keys, self._metadata = signer, dict(keys), metadata
        self.heard: set[str] = set()
        self._down: dict[str, dict[str, str]] = {cell: {} for cell in keys}  # links, by their hop
        self._now_s = 0.0
        self._releases = releases or signer
        self.settings = settings or CloudSettings()
        self.courses: dict[bytes, JobCourse] = {}
        marks = rosters or {}
        self._rosters = {
            cell: RosterArrival(cell, signer, self.settings, marks.get(cell)) for cell in keys
        }
        self._ends = {cell: JobEnds(cell, signer, self.settings) for cell in keys}
        self._context = CourseContext(signer, self._releases, self.settings, self._ends)
        self.releases = CloudReleases(tuple(keys), signer, self._releases, self.settings)

    @property
    def at(self) -> ExchangeId | None:
        """The job that runs alone, its exchange and attempt; what is about one of several says so
        itself."""
        courses = list(self.courses.values())
        return courses[0].at if len(courses) == 1 else None

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Take an event; hostile or stale input ends as one `Refuse`."""
        self._now_s = now_s
        try:
            out = self._handle(event)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]
        for course in [one for one in self.courses.values() if one.over]:
            self.heard -= {cell for cell in self.keys if course.silent(cell)}  # it is to come anew
            del self.courses[course.job_id]
        return out

    def _handle(self, event: fx.Event) -> list[fx.Effect]:
        match event:
            case fx.Command(what=StartJob() as start):
                course = self.courses.get(start.job_id) or JobCourse(start, self._context)
                out = course.begin()
                self.courses[start.job_id] = course
                for cell in self.keys:
                    course.linked(cell, self.link_down(cell))
                # A proxy answers with its roster, before it holds the job: one that would be
                # refused is known before a round is sealed.
                return [*map(self._here, self.keys), *out]
            case fx.Command(what=CancelJob(job_id=job_id)):
                return self.courses[job_id].cancel() if job_id in self.courses else []
            case fx.Command(what=RepeatEnd(job_id=job_id, status=status)):
                return [one for ends in self._ends.values() for one in ends.tell(job_id, status)]
            case fx.Command(what=PublishRelease() as asked):
                return self.releases.publish(asked)
            case fx.Command(what=ReleaseStatement() as said):
                return self.releases.state(said)
            case fx.Command(what=OwnKeys() as keys):
                return self._rekeyed(keys)
            case fx.PeerSilent(peer=fx.ProxyAddress(cell=cell)) if cell in self.keys:
                return [self._here(cell)]
            case fx.PeerConnected(peer=fx.ProxyAddress(cell=cell)) if cell in self.keys:
                return [*self._connected(cell), *self._linked(cell, "cloud", "")]
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
                return self.releases.sealed(task, result)
            case fx.WorkDone(task=CountReports() as task, result=result):
                return self.releases.counted(task, result)
            case fx.WorkDone(task=ShowBlob() as task, result=result):
                return self._shown(task, result)
            case fx.WorkDone(task=task, result=result):
                return self._done(task, result)
        return []

    @property
    def unreached(self) -> list[str]:
        """The cells to which a link is down, or whose proxy is still to say something."""
        return [cell for cell in self.keys if self._down[cell] or cell not in self.heard]

    def link_down(self, cell: str) -> str:
        """Which link on the way to the cell's devices is known to be down; "": none."""
        return next(iter(self._down[cell].values()), "")

    def _linked(self, cell: str, hop: str, down: str) -> list[fx.Effect]:
        """What the jobs make of a link that is `down`, or up again."""
        if down:
            self._down[cell][hop] = f"{down} (cell '{cell}')" if cell else down
        else:
            self._down[cell].pop(hop, None)
        told = self.link_down(cell)
        return [one for course in self.courses.values() for one in course.linked(cell, told)]

    def _connected(self, cell: str) -> list[fx.Effect]:
        jobs = [one for course in self.courses.values() for one in course.send(cell)]
        beside = [*self._ends[cell].send(), *self.releases.send(cell)]
        return [*self._tell_trust(cell), self._here(cell), *jobs, *beside]

    def _message(self, cell: str, message: Message) -> list[fx.Effect]:
        match message:
            case Offer() as offer:
                return self._offer(cell, offer)
            case BlobPart() as part:
                of_it = self._course(lambda course: course.knows(cell, part.blob))
                return of_it.part(cell, part) if of_it else self._rosters[cell].part(part)
            case Need() as need:
                return self._answer(cell, need)
            case Note(body=envelope):
                return self._note(cell, envelope)
        return []

    def _hear(self, cell: str) -> None:
        """Its proxy said something, with its signature."""
        self.heard.add(cell)
        for course in self.courses.values():
            course.heard(cell)

    def _here(self, cell: str) -> fx.Effect:
        """What the proxy answers with its roster."""
        return fx.Send(fx.ProxyAddress(cell), self.signer.note(Here(0.0)))

    def _course(self, about: Callable[[JobCourse], bool]) -> JobCourse | None:
        return next((one for one in self.courses.values() if about(one)), None)

    def _done(self, task: object, result: object) -> list[fx.Effect]:
        course = self.courses.get(job_of(task) or b"")
        if course is None:
            if isinstance(task, TakeBatch):  # written since the job ended
                return [fx.Persist(BatchDropped(task.batch.at.job_id, task.cell))]
            return []
        match task:
            case OpenArrived():
                return course.opened(task)
            case GrantPut(sender=fx.ProxyAddress(cell=cell)):
                return course.cells[cell].arrival.may_be_put(task, result)
            case TakeBatch():
                return course.taken(task, result)
        return course.done(task, result) if course.awaits(task) else []

    def _shown(self, task: ShowBlob, result: object) -> list[fx.Effect]:
        """A broadcast lies in the store, or a publication; cells may have the same one."""
        of_jobs = [one for course in self.courses.values() for one in course.cells.values()]
        outgoing = [*self.releases.outgoing, *(one.out for one in of_jobs)]
        asked = [one for one in outgoing if one.shown.awaits(task)]
        of_it = next((one for one in asked if one.lends(task)), asked[0] if asked else None)
        return of_it.shown.done(task, result, self._now_s) if of_it else []

    # --- whom it believes, and with which keys it speaks ---

    def _tell_trust(self, cell: str) -> list[fx.Effect]:
        """Before anything that is signed with a new key."""
        return [fx.Send(fx.ProxyAddress(cell), self._metadata)] if self._metadata else []

    def _rekeyed(self, own: OwnKeys) -> list[fx.Effect]:
        before = self.keys
        changed = any(before[cell].epoch != peers.epoch for cell, peers in own.peers.items())
        self.keys, self._metadata = dict(own.peers), own.metadata
        self.signer.use(own.jobs)
        self._releases.use(own.releases)
        version = next(iter(own.peers.values())).versions[1]
        out: list[fx.Effect] = [one for cell in self.keys for one in self._tell_trust(cell)]
        out.append(fx.Report("trust_changed", {"version": version}))
        if not changed:
            return out
        out += [one for ends in self._ends.values() for one in ends.sign_anew()]
        out += self.releases.sign_anew()
        return out + [one for course in self.courses.values() for one in course.rekeyed()]

    # --- messages ---

    def _answer(self, cell: str, need: Need) -> list[fx.Effect]:
        """The parts asked for, or where they lie.

        Raises ProtocolError `unknown_blob` or `bad_index`.
        """
        published = self.releases.answer(cell, need, self._now_s)
        if published is not None:
            return published
        course = self._course(lambda one: one.offers(cell, need.blob))
        if course is None:
            raise ProtocolError("unknown_blob")
        return course.answer(cell, need, self._now_s)

    def _offer(self, cell: str, offer: Offer) -> list[fx.Effect]:
        header = verified_header(offer.header, "proxy", self.keys[cell].proxy)
        self._hear(cell)
        proxy = fx.ProxyAddress(cell)
        match header:
            case MaskSums(at=at):
                course = self.courses.get(at.job_id)
                told = acknowledged(proxy, self.signer, header.blob.digest, "held")
                return course.masks(cell, offer, header) if course else [told]
            case Batch(at=at):
                course = self.courses.get(at.job_id)
                if course is not None:
                    return self._batch(course, cell, offer, header)
                check_fetchable(offer, header.blob, self.settings.spool_bytes)
                return [acknowledged(proxy, self.signer, header.blob.digest, "closed")]
            case Roster():
                return self._offer_roster(cell, offer, header)
        raise ProtocolError("unexpected_header")

    def _offer_roster(self, cell: str, offer: Offer, header: Roster) -> list[fx.Effect]:
        self._rosters[cell].check(offer, header)
        refused = self._rosters[cell].why_not(header, self.keys[cell].lineage)
        if not refused:
            return self._rosters[cell].offer(offer, header)
        # A replay changes nothing: the newest roster stands. Whether it is one, its time tells.
        told = RosterRefused(refused, header.lineage, cell, header.expires_s)
        return [fx.Persist(told), fx.Refuse(refused)]

    def _others(self, course: JobCourse, cell: str) -> list[BatchArrival]:
        """What shares the disk with this job's batch of this cell."""
        of_all = [one for each in self.courses.values() for one in each.cells.values()]
        return [one.arrival for one in of_all if one is not course.cells[cell]]

    def _batch(self, course: JobCourse, cell: str, offer: Offer, header: Batch) -> list[fx.Effect]:
        """Where it fits beside other batches, though not beside what came of others that are
        not whole yet, those make way."""
        others = self._others(course, cell)
        left_bytes = self.settings.spool_bytes - sum(one.batch_bytes for one in others)
        out, size_bytes = list[fx.Effect](), header.blob.size_bytes
        if course.takes(cell, header) and size_bytes <= left_bytes:
            claimed_bytes = sum(one.claimed_bytes for one in others)
            if size_bytes > self.settings.spool_bytes - claimed_bytes:
                out += [effect for one in others for effect in one.drop_stream()]
        return [*out, *course.batch(cell, offer, header, left_bytes, self._now_s)]

    def _stream(self, cell: str, arrived: Arrived) -> list[fx.Effect]:
        course = self.courses.get(arrived.at.job_id)
        if course is None:
            return []
        others = self._others(course, cell)
        left_bytes = self.settings.spool_bytes - sum(one.claimed_bytes for one in others)
        # What no room could hold is refused as such, whatever others have.
        impossible = arrived.blob.size_bytes > self.settings.spool_bytes
        return course.stream(cell, arrived, arrived.blob.size_bytes if impossible else left_bytes)

    def _note(self, cell: str, envelope: Envelope) -> list[fx.Effect]:
        body = verified_body(envelope, "proxy", self.keys[cell].proxy)
        self._hear(cell)
        match body:
            case Shortfall(at=at):
                course = self.courses.get(at.job_id)
                return course.short(cell, body) if course else []
            case Arrived():
                return self._stream(cell, body)
            case BlobPut():
                course = self._course(lambda one: one.knows(cell, body.blob))
                return course.is_put(cell, body) if course else []
            case ReleaseReports():
                note = hashlib.sha256(envelope.payload).digest()
                return self.releases.reports(cell, body, note)
            case Ack():
                return self._ack(cell, body)
            case LinkState(up=up):
                return self._linked(cell, "edge", "" if up else EDGE_LINK)
        raise ProtocolError("unexpected_body")

    def _ack(self, cell: str, ack: Ack) -> list[fx.Effect]:
        confirmed = self._ends[cell].confirmed(ack.blob)
        if confirmed is not None:
            return confirmed
        published = self.releases.confirmed(cell, ack)
        if published is not None:
            return published
        course = self._course(lambda one: one.hears(cell, ack))
        return course.acknowledged(cell, ack) if course else []

    # --- timers ---

    def _timer(self, name: str) -> list[fx.Effect]:
        what, job_id, cell = timer_of(name)
        if job_id:
            return self.courses[job_id].timer(what, cell) if job_id in self.courses else []
        match what:
            case "close":
                return self._ends[cell].send()
            case "release":
                return self.releases.resend(cell)
            case "statement":
                return self.releases.tell(cell)
            case "roster":
                return self._rosters[cell].look()
        return []
