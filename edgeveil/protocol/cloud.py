"""The cloud's machine: several jobs beside each other, and what there is once for all of them.

Theory of operation. Each job that runs has a course of its own (`JobCourse`), which knows nothing
of the others: a job that waits, pauses or ends holds nobody up. What comes is told to the course
that it is about: batches and notes by the job that they name, parts and requests by the digest of
their blob, timers by their name, outcomes of work by their task. What is about no job that runs
is answered here: its batches are of no use.

Beside the jobs, and in any state of theirs, stand the roster, which the proxy hands over when it
changes, the ends of jobs, which are told until the proxy confirms them (`JobEnds`), and what
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
from collections.abc import Callable
from dataclasses import dataclass

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_arrivals import RosterArrival, acknowledged
from edgeveil.protocol.cloud_course import CourseContext, JobCourse
from edgeveil.protocol.cloud_outgoing import JobEnds
from edgeveil.protocol.cloud_releases import CloudReleases
from edgeveil.protocol.cloud_tasks import (
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
    job_of,
)
from edgeveil.protocol.messages import (
    Ack,
    Arrived,
    Batch,
    BlobPart,
    Envelope,
    ExchangeId,
    Here,
    MaskSums,
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
from edgeveil.protocol.transfer import check_fetchable


@dataclass(frozen=True)
class OwnKeys:
    """What the cloud signs with from now on, and whom it believes; `metadata` says why."""

    jobs: SigningKey
    releases: SigningKey
    peers: PeerKeys
    metadata: TrustMetadata


class CloudMachine:
    """One cloud behind one proxy. `courses` are the jobs that run, by their id, oldest first."""

    def __init__(
        self,
        signer: Signer,
        keys: PeerKeys,
        settings: CloudSettings | None = None,
        *,
        releases: Signer | None = None,
        roster: RosterMark | None = None,
        metadata: TrustMetadata | None = None,
    ) -> None:
        """`releases` signs final models (None: `signer` does); `roster` was taken last; `metadata`
        is what the proxy is told of the root's."""
        self.signer, self.keys, self._metadata = signer, keys, metadata
        self._releases = releases or signer
        self.settings = settings or CloudSettings()
        self.courses: dict[bytes, JobCourse] = {}
        self._roster = RosterArrival(signer, self.settings, roster)
        self._ends = JobEnds(signer, self.settings)
        self._context = CourseContext(signer, self._releases, self.settings, self._ends)
        self.releases = CloudReleases(signer, self._releases, self.settings)

    @property
    def at(self) -> ExchangeId | None:
        """The job that runs alone, its exchange and attempt; what is about one of several says so
        itself."""
        courses = list(self.courses.values())
        return courses[0].at if len(courses) == 1 else None

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Take an event; hostile or stale input ends as one `Refuse`."""
        try:
            out = self._handle(event)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]
        self.courses = {job: course for job, course in self.courses.items() if not course.over}
        return out

    def _handle(self, event: fx.Event) -> list[fx.Effect]:
        match event:
            case fx.Command(what=StartJob() as start):
                course = self.courses.get(start.job_id) or JobCourse(start, self._context)
                out = course.begin()
                self.courses[start.job_id] = course
                return out
            case fx.Command(what=CancelJob(job_id=job_id)):
                return self.courses[job_id].cancel() if job_id in self.courses else []
            case fx.Command(what=RepeatEnd(job_id=job_id, status=status)):
                return self._ends.tell(job_id, status)
            case fx.Command(what=PublishRelease() as asked):
                return self.releases.publish(asked)
            case fx.Command(what=ReleaseStatement() as said):
                return self.releases.state(said)
            case fx.Command(what=OwnKeys() as keys):
                return self._rekeyed(keys)
            case fx.PeerSilent():
                return [self._here()]
            case fx.PeerConnected():
                jobs = [one for course in self.courses.values() for one in course.send()]
                beside = [*self._ends.send(), *self.releases.send()]
                return [*self._tell_trust(), self._here(), *jobs, *beside]
            case fx.MessageReceived(message=Offer() as offer):
                return self._offer(offer)
            case fx.MessageReceived(message=BlobPart() as part):
                of_it = self._course(lambda course: course.knows(part.blob))
                return of_it.part(part) if of_it else self._roster.part(part)
            case fx.MessageReceived(message=Need() as need):
                return self._answer(need)
            case fx.MessageReceived(message=Note(body=envelope)):
                return self._note(envelope)
            case fx.Timer(name=name):
                return self._timer(name)
            case fx.WorkDone(task=SealPublication() as task, result=result):
                return self.releases.sealed(task, result)
            case fx.WorkDone(task=CountReports() as task, result=result):
                return self.releases.counted(task, result)
            case fx.WorkDone(task=task, result=result):
                return self._done(task, result)
        return []

    def _here(self) -> fx.Effect:
        """What the proxy answers with its roster."""
        return fx.Send(fx.ProxyAddress(), self.signer.note(Here(0.0)))

    def _course(self, about: Callable[[JobCourse], bool]) -> JobCourse | None:
        return next((one for one in self.courses.values() if about(one)), None)

    def _done(self, task: object, result: object) -> list[fx.Effect]:
        course = self.courses.get(job_of(task) or b"")
        if course is None:
            return []
        if isinstance(task, OpenArrived):
            return course.opened(task)
        return course.done(task, result) if course.awaits(task) else []

    # --- whom it believes, and with which keys it speaks ---

    def _tell_trust(self) -> list[fx.Effect]:
        """Before anything that is signed with a new key."""
        return [fx.Send(fx.ProxyAddress(), self._metadata)] if self._metadata else []

    def _rekeyed(self, own: OwnKeys) -> list[fx.Effect]:
        changed = own.peers.epoch != self.keys.epoch
        self.keys, self._metadata = own.peers, own.metadata
        self.signer.use(own.jobs)
        self._releases.use(own.releases)
        report = fx.Report("trust_changed", {"version": own.peers.versions[1]})
        out: list[fx.Effect] = [*self._tell_trust(), report]
        if not changed:
            return out
        out += [*self._ends.sign_anew(), *self.releases.sign_anew()]
        return out + [one for course in self.courses.values() for one in course.rekeyed()]

    # --- messages ---

    def _answer(self, need: Need) -> list[fx.Effect]:
        """The parts asked for. Raises ProtocolError `unknown_blob` or `bad_index`."""
        published = self.releases.answer(need)
        if published is not None:
            return published
        course = self._course(lambda one: one.offers(need.blob))
        if course is None:
            raise ProtocolError("unknown_blob")
        return course.answer(need)

    def _offer(self, offer: Offer) -> list[fx.Effect]:
        header = verified_header(offer.header, "proxy", self.keys.proxy)
        match header:
            case MaskSums(at=at):
                course = self.courses.get(at.job_id)
                told = acknowledged(self.signer, header.blob.digest, "held")
                return course.masks(offer, header) if course else [told]
            case Batch(at=at):
                course = self.courses.get(at.job_id)
                if course is not None:
                    return self._batch(course, offer, header)
                check_fetchable(offer, header.blob, self.settings.spool_bytes)
                return [acknowledged(self.signer, header.blob.digest, "closed")]
            case Roster():
                return self._offer_roster(offer, header)
        raise ProtocolError("unexpected_header")

    def _offer_roster(self, offer: Offer, header: Roster) -> list[fx.Effect]:
        self._roster.check(offer, header)
        refused = self._roster.why_not(header, self.keys.lineage)
        if not refused:
            return self._roster.offer(offer, header)
        # A replay changes nothing: the newest roster stands.
        replayed = refused == "replayed_roster"
        told = [] if replayed else [fx.Persist(RosterRefused(refused, header.lineage))]
        return [*told, fx.Refuse(refused)]

    def _batch(self, course: JobCourse, offer: Offer, header: Batch) -> list[fx.Effect]:
        """Where it fits beside other jobs' batches, though not beside what came of others that are
        not whole yet, those make way."""
        others = [one.arrival for one in self.courses.values() if one is not course]
        left_bytes = self.settings.spool_bytes - sum(one.batch_bytes for one in others)
        out, size_bytes = list[fx.Effect](), header.blob.size_bytes
        if course.takes(header) and size_bytes <= left_bytes:
            claimed_bytes = sum(one.claimed_bytes for one in others)
            if size_bytes > self.settings.spool_bytes - claimed_bytes:
                out += [effect for one in others for effect in one.drop_stream()]
        return [*out, *course.batch(offer, header, left_bytes)]

    def _stream(self, arrived: Arrived) -> list[fx.Effect]:
        course = self.courses.get(arrived.at.job_id)
        if course is None:
            return []
        others = [one.arrival for one in self.courses.values() if one is not course]
        left_bytes = self.settings.spool_bytes - sum(one.claimed_bytes for one in others)
        # What no room could hold is refused as such, whatever others have.
        impossible = arrived.blob.size_bytes > self.settings.spool_bytes
        return course.stream(arrived, arrived.blob.size_bytes if impossible else left_bytes)

    def _note(self, envelope: Envelope) -> list[fx.Effect]:
        body = verified_body(envelope, "proxy", self.keys.proxy)
        match body:
            case Shortfall(at=at):
                course = self.courses.get(at.job_id)
                return course.short(body) if course else []
            case Arrived():
                return self._stream(body)
            case ReleaseReports():
                return self.releases.reports(body, hashlib.sha256(envelope.payload).digest())
            case Ack():
                return self._ack(body)
        raise ProtocolError("unexpected_body")

    def _ack(self, ack: Ack) -> list[fx.Effect]:
        confirmed = self._ends.confirmed(ack.blob)
        if confirmed is not None:
            return confirmed
        published = self.releases.confirmed(ack)
        if published is not None:
            return published
        course = self._course(lambda one: one.hears(ack))
        return course.acknowledged(ack) if course else []

    # --- timers ---

    def _timer(self, name: str) -> list[fx.Effect]:
        what, _, job = name.partition("/")
        course = self.courses.get(bytes.fromhex(job))
        if course is not None:
            return course.timer(what)
        match what:
            case "close":
                return self._ends.send()
            case "release":
                return self.releases.resend()
            case "statement":
                return self.releases.tell()
            case "roster":
                return self._roster.look()
        return []
