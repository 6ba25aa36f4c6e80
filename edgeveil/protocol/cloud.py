"""Where the cloud stands in a job, as a table."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

from edgeveil.crypto.keys import KEY_BYTES, VerifyKey
from edgeveil.crypto.labels import BODY, HEADER
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_tasks import (
    Absorb,
    BatchDropped,
    BatchPart,
    Broadcast,
    CancelJob,
    CloudSettings,
    JobStatus,
    Obstacle,
    RepeatEnd,
    RosterKept,
    RoundCommit,
    SealJob,
    SealRelease,
    SealRound,
    StartJob,
    TooFewUploads,
    WorkFailed,
)
from edgeveil.protocol.effects import StateTable
from edgeveil.protocol.messages import (
    Ack,
    Batch,
    Close,
    Commit,
    Envelope,
    ExchangeId,
    Here,
    Manifest,
    Need,
    Note,
    Offer,
    Part,
    Roster,
    Shortfall,
    Signer,
    check_signature,
    decode_body,
    decode_header,
)
from edgeveil.protocol.transfer import Fetch, answer_need, check_fetchable, first_data, sends


class CloudState(Enum):
    """Where the cloud stands in the job it runs."""

    IDLE = "idle"
    SEALING_JOB = "sealing_job"
    ANNOUNCING = "announcing"
    SEALING = "sealing"
    BROADCASTING = "broadcasting"
    WAITING = "waiting"
    ABSORBING = "absorbing"
    SEALING_RELEASE = "sealing_release"
    RELEASING = "releasing"


_S = CloudState
_RUNNING = [state for state in CloudState if state is not _S.IDLE]
CLOUD_STATES = StateTable(
    _S.IDLE,
    {
        (_S.IDLE, "start"): _S.SEALING_JOB,
        (_S.SEALING_JOB, "sealed"): _S.ANNOUNCING,
        (_S.ANNOUNCING, "held"): _S.SEALING,
        (_S.ANNOUNCING, "held_all_committed"): _S.SEALING_RELEASE,
        (_S.SEALING, "sealed"): _S.BROADCASTING,
        (_S.BROADCASTING, "held"): _S.WAITING,
        (_S.BROADCASTING, "batch"): _S.ABSORBING,
        (_S.WAITING, "batch"): _S.ABSORBING,
        (_S.ABSORBING, "committed"): _S.SEALING,
        (_S.ABSORBING, "committed_last"): _S.SEALING_RELEASE,
        (_S.SEALING_RELEASE, "sealed"): _S.RELEASING,
        (_S.RELEASING, "held"): _S.IDLE,
    }
    | {(s, "repeat"): _S.SEALING for s in (_S.BROADCASTING, _S.WAITING, _S.ABSORBING)}
    | {(s, how): _S.IDLE for how in ("pause", "end") for s in _RUNNING},
)


# --- the job under way ----------------------------------------------------------------------


@dataclass
class RunningJob:
    """One job from its start to its end."""

    start: StartJob
    exchange: int
    attempt: int
    retries_left: int
    selected: int = 0  # by the newest broadcast
    patience_s: float = 0.0  # with the proxy, from each sign that the broadcast moves on

    @classmethod
    def begin(cls, start: StartJob) -> RunningJob:
        """Where the command says."""
        return cls(start, start.exchange, start.attempt, start.retries)

    @property
    def at(self) -> ExchangeId:
        """The attempt under way."""
        return ExchangeId(self.start.job_id, self.exchange, self.attempt)

    def awaits(self, task: object) -> bool:
        """Whether the outcome of this task still matters: it belongs to the attempt under way."""
        match task:
            case SealJob(job_id=job_id) | SealRelease(job_id=job_id):
                return job_id == self.start.job_id
            case SealRound():
                return task == SealRound(self.start.job_id, self.exchange, self.attempt)
            case Absorb(batch=batch):
                return batch.at == self.at
        return False

    def seal(self) -> fx.Effect:
        """Ask for this attempt's model to be sealed."""
        return fx.Work(SealRound(self.start.job_id, self.exchange, self.attempt))

    def broadcasts(self, manifest: Manifest, margin_s: float) -> None:
        """Its broadcast goes out; `margin_s` is what the proxy gets beyond the round's own time."""
        self.selected = manifest.selected
        self.patience_s = manifest.deadline_s + manifest.grace_s + margin_s


# --- the machine ----------------------------------------------------------------------------


_ALL_DECLINED = (
    "all {} selected devices declined: a policy or a spent budget does not allow this job, or the "
    "boxes are too slow for it; each device's console says why"
)
_SILENT = "the proxy did not answer in time"


class CloudMachine:
    """One cloud behind one proxy."""

    def __init__(
        self, signer: Signer, proxy_key: VerifyKey, settings: CloudSettings | None = None
    ) -> None:
        self.signer, self.proxy_key = signer, proxy_key
        self.settings = settings or CloudSettings()
        self.state = CLOUD_STATES.start
        self.job: RunningJob | None = None
        self._out = OutgoingBroadcast(signer, self.settings)
        self._arrivals = CloudArrivals(signer, self.settings)
        self._ends = JobEnds(signer, self.settings)

    @property
    def at(self) -> ExchangeId | None:
        """The running job and its round."""
        return self.job.at if self.job else None

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Take an event; hostile or stale input ends as one `Refuse`."""
        try:
            return self._handle(event)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]

    def _handle(self, event: fx.Event) -> list[fx.Effect]:
        match event:
            case fx.Command(what=StartJob() as start):
                return self._start(start)
            case fx.Command(what=CancelJob(job_id=job_id)):
                running = self.job is not None and self.job.start.job_id == job_id
                return self._end("cancelled", "cancelled by the operator") if running else []
            case fx.Command(what=RepeatEnd(job_id=job_id, status=status)):
                return self._ends.tell(job_id, status)
            case fx.PeerConnected():
                here = fx.Send(fx.ProxyAddress(), self.signer.note(Here(0.0)))
                return [here, *self._out.send(), *self._ends.send()]
            case fx.MessageReceived(message=Offer() as offer):
                return self._offer(offer)
            case fx.MessageReceived(message=Part() as part):
                return self._arrived(self._arrivals.part(part))
            case fx.MessageReceived(message=Need() as need):
                return self._answer(need)
            case fx.MessageReceived(message=Note(body=signed)):
                return self._note(signed)
            case fx.Timer(name=name):
                return self._timer(name)
            case fx.WorkDone(task=task, result=result):
                return self._done(task, result)
        return []

    # --- a job's course ---

    def _start(self, start: StartJob) -> list[fx.Effect]:
        self.state = CLOUD_STATES.step(self.state, "start")
        self.job = RunningJob.begin(start)
        what = {"job_id": start.job_id.hex(), "rounds": start.exchanges}
        return [fx.Report("job_started", what), fx.Work(SealJob(start.job_id))]

    def _done(self, task: object, result: object) -> list[fx.Effect]:
        job = self.job
        if job is None or not job.awaits(task):
            return []
        match result:
            case WorkFailed(reason=reason) | Obstacle(reason=reason) if isinstance(task, Absorb):
                # Not acknowledged: the proxy still has it, and drops it with the next attempt.
                return self._repeat(job, reason)
            case WorkFailed(reason=reason):
                return self._end("failed", reason)
            case Obstacle(reason=reason):
                return self._pause(job, reason)
            case Broadcast(manifest=manifest, data=data):
                return self._sealed(job, manifest, data)
            case RoundCommit(commit=commit, data=data):
                return self._committed(job, commit, data)
            case TooFewUploads(reason=reason):
                return self._arrivals.acknowledge_batch() + self._repeat(job, reason)
        return []

    def _sealed(self, job: RunningJob, manifest: Manifest, data: bytes) -> list[fx.Effect]:
        self.state = CLOUD_STATES.step(self.state, "sealed")
        job.broadcasts(manifest, self.settings.proxy_margin_s)
        what = {
            "round": manifest.at.exchange,
            "kind": manifest.kind,
            "selected": manifest.selected,
            "attempt": manifest.at.attempt,
        }
        return [
            fx.Report("broadcast", what),
            *self._out.offer(manifest, data),
            fx.SetTimer("watchdog", job.patience_s),
        ]

    def _answer(self, need: Need) -> list[fx.Effect]:
        """A proxy that asks for parts is there, however long the broadcast takes."""
        out = self._out.answer(need)
        return [*out, fx.SetTimer("watchdog", self.job.patience_s)] if self.job else out

    def _held(self, job: RunningJob) -> list[fx.Effect]:
        """The proxy holds the broadcast."""
        released = self.state is CloudState.RELEASING
        # A job may be taken up again after its last commit and before its release.
        announced = self.state is CloudState.ANNOUNCING
        trained = announced and job.exchange > job.start.exchanges
        self.state = CLOUD_STATES.step(self.state, "held_all_committed" if trained else "held")
        self._out.drop()
        if announced:
            job.retries_left = job.start.retries
        if released:
            return self._finish(job, "completed", "")
        out: list[fx.Effect] = [
            fx.CancelTimer("resend"),
            fx.Report("held", {"round": job.exchange}),
        ]
        if trained:
            return [*out, fx.Work(SealRelease(job.start.job_id))]
        if self.state is CloudState.SEALING:
            return [*out, job.seal()]
        # The proxy's deadline runs from here, not from the sealing.
        return [*out, fx.SetTimer("watchdog", job.patience_s)]

    def _committed(self, job: RunningJob, commit: Commit, data: bytes) -> list[fx.Effect]:
        last = job.exchange >= job.start.exchanges
        self.state = CLOUD_STATES.step(self.state, "committed_last" if last else "committed")
        out = self._arrivals.acknowledge_batch()
        signed = self.signer.header(commit)
        out += sends(fx.ProxyAddress(), signed, commit.blob, data, self.settings.packet_bytes)
        self._out.drop()
        job.retries_left, job.attempt = job.start.retries, 1
        if last:
            return [*out, fx.Work(SealRelease(job.start.job_id))]
        job.exchange += 1
        return [*out, job.seal()]

    def _repeat(self, job: RunningJob, reason: str) -> list[fx.Effect]:
        if job.retries_left <= 0:
            return self._pause(job, reason)
        self.state = CLOUD_STATES.step(self.state, "repeat")
        job.retries_left -= 1
        job.attempt += 1
        self._out.drop()
        what = {"round": job.exchange, "attempt": job.attempt, "why": reason}
        return [*self._arrivals.drop_batch(), fx.Report("round_repeated", what), job.seal()]

    def _pause(self, job: RunningJob, reason: str) -> list[fx.Effect]:
        """Others are missing: the job keeps its round and its devices until somebody resumes it."""
        self.state = CLOUD_STATES.step(self.state, "pause")
        return self._leave(job, "paused", reason, [])

    def _end(self, status: str, reason: str) -> list[fx.Effect]:
        if self.job is None:
            return []
        self.state = CLOUD_STATES.step(self.state, "end")
        return self._finish(self.job, status, reason)

    def _finish(self, job: RunningJob, status: str, reason: str) -> list[fx.Effect]:
        return self._leave(job, status, reason, self._ends.tell(job.start.job_id, status))

    def _leave(
        self, job: RunningJob, status: str, reason: str, told: list[fx.Effect]
    ) -> list[fx.Effect]:
        self.job = None
        self._out.drop()
        return [
            *self._arrivals.drop_batch(),
            fx.CancelTimer("watchdog"),
            fx.CancelTimer("resend"),
            fx.Persist(JobStatus(job.start.job_id, status, reason)),
            *told,
            fx.Report("job_" + status, {"job_id": job.start.job_id.hex(), "reason": reason}),
        ]

    # --- messages ---

    def _offer(self, offer: Offer) -> list[fx.Effect]:
        check_signature(offer.header, "proxy", self.proxy_key, HEADER)
        header = decode_header(offer.header)
        if not isinstance(header, Roster | Batch):
            raise ProtocolError("unexpected_header")
        expected = isinstance(header, Batch) and header.at == self.at
        if self.job is not None and expected and CLOUD_STATES.allows(self.state, "batch"):
            size_bytes, most_bytes = header.blob.size_bytes, self.settings.spool_bytes
            if size_bytes > most_bytes:  # another attempt would bring as much
                why = f"the batch has {size_bytes} bytes, limits.spool_bytes is {most_bytes}"
                return self._pause(self.job, why)
        self._arrivals.check(offer, header)
        if isinstance(header, Roster):
            return self._arrivals.roster(offer, header)
        if header.at != self.at:
            return [fx.Send(fx.ProxyAddress(), self._arrivals.ack(header.blob.digest, "closed"))]
        if not CLOUD_STATES.allows(self.state, "batch"):
            return []  # being absorbed: the acknowledgement follows the commit
        return self._arrived(self._arrivals.batch(offer, header))

    def _arrived(self, out: list[fx.Effect]) -> list[fx.Effect]:
        batch = self._arrivals.whole_batch
        if batch is None or not CLOUD_STATES.allows(self.state, "batch"):
            return out
        self.state = CLOUD_STATES.step(self.state, "batch")
        report = fx.Report("batch", {"round": batch.at.exchange, "uploads": batch.uploads})
        cancel = [fx.CancelTimer("resend"), fx.CancelTimer("watchdog")]
        return [*out, report, *cancel, fx.Work(Absorb(batch))]

    def _note(self, signed: Envelope) -> list[fx.Effect]:
        check_signature(signed, "proxy", self.proxy_key, BODY)
        body, job = decode_body(signed), self.job
        if isinstance(body, Shortfall):
            if job is None or body.at != self.at or not CLOUD_STATES.allows(self.state, "batch"):
                return []
            if job.attempt == 1 and not body.uploads and body.declined >= job.selected:
                # Nothing was released, and asking again at once would change no owner's mind.
                report = fx.Report(
                    "all_declined", {"round": job.exchange, "declined": body.declined}
                )
                return [report, *self._end("failed", _ALL_DECLINED.format(body.declined))]
            why = f"{body.uploads} uploads, {body.declined} declined, below the minimum"
            return self._repeat(job, why)
        if not isinstance(body, Ack):
            raise ProtocolError("unexpected_body")
        confirmed = self._ends.confirmed(body.blob)
        if confirmed is not None:
            return confirmed
        if job is None or not self._out.is_blob(body.blob):
            return []
        if body.status == "held":
            return self._held(job) if CLOUD_STATES.allows(self.state, "held") else []
        return self._pause(job, f"the proxy refused the broadcast: {body.reason}")

    # --- timers ---

    def _timer(self, name: str) -> list[fx.Effect]:
        job = self.job
        if name == "resend":
            return self._out.send()
        if name == "close":
            return self._ends.send()
        if name == "repair":
            return self._arrivals.look()
        if name == "watchdog" and job is not None:
            if self.state in (CloudState.BROADCASTING, CloudState.WAITING):
                return self._repeat(job, _SILENT)
            if self.state in (CloudState.ANNOUNCING, CloudState.RELEASING):
                return self._wait_again(job)
        return []

    def _wait_again(self, job: RunningJob) -> list[fx.Effect]:
        """An announcement or release is offered on; each further wait takes one of the retries."""
        if job.retries_left <= 0:
            return self._pause(job, _SILENT)
        job.retries_left -= 1
        return [*self._out.send(), fx.SetTimer("watchdog", self.settings.proxy_margin_s)]


# --- the broadcast on its way to the proxy --------------------------------------------------


class OutgoingBroadcast:
    """At most one broadcast, and how it is sent again; one timer, `resend`."""

    def __init__(self, signer: Signer, settings: CloudSettings) -> None:
        self._signer, self._settings = signer, settings
        self._manifest: Manifest | None = None
        self._data = b""

    def offer(self, manifest: Manifest, data: bytes) -> list[fx.Effect]:
        """Begin with this one, in place of the one before."""
        self._manifest, self._data = manifest, data
        return self.send(push=manifest.blob.size_bytes <= self._settings.push_bytes)

    def drop(self) -> None:
        """The proxy holds it, or nobody needs it any more."""
        self._manifest, self._data = None, b""

    def send(self, *, push: bool = False) -> list[fx.Effect]:
        """Say it (again); the proxy asks for parts that did not come with the first offer."""
        if self._manifest is None:
            return []
        signed, packet_bytes = self._signer.header(self._manifest), self._settings.packet_bytes
        blob = self._manifest.blob
        packets = sends(fx.ProxyAddress(), signed, blob, self._data, packet_bytes, push=push)
        return [*packets, fx.SetTimer("resend", self._settings.resend_s)]

    def is_blob(self, digest: bytes) -> bool:
        """Whether this is the digest of the broadcast under way."""
        return self._manifest is not None and self._manifest.blob.digest == digest

    def answer(self, need: Need) -> list[fx.Effect]:
        """The parts asked for. Raises ProtocolError `unknown_blob` or `bad_index`."""
        if self._manifest is None or not self.is_blob(need.blob):
            raise ProtocolError("unknown_blob")
        return list(answer_need(fx.ProxyAddress(), need, self._manifest.blob, self._data))


# --- what the proxy hands over --------------------------------------------------------------


BATCH_CREDIT = 64  # parts under way from the proxy: they go to the disk, not into memory


class CloudArrivals:
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
        return [*self.drop_batch(), fx.Send(fx.ProxyAddress(), self.ack(digest, "held"))]

    def drop_batch(self) -> list[fx.Effect]:
        """Forget the batch, here and on the disk."""
        batch, self._batch = self._batch, None
        return [] if batch is None else [fx.Persist(BatchDropped())]

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
        kept = fx.Persist(BatchPart(blob.digest, part.index * blob.part_bytes, part.data))
        return [kept, *_asked(fetch.next_need(timer=False))]

    def _keep(self, fetch: Fetch, header: Roster) -> list[fx.Effect]:
        data = fetch.assembly.finish()
        self._roster, self._epoch = None, header.epoch
        return [
            fx.Persist(RosterKept(header.epoch, data)),
            fx.Send(fx.ProxyAddress(), self.ack(header.blob.digest, "held")),
            fx.Report("roster", {"enrolled": len(data) // KEY_BYTES}),
        ]

    def _watch(self) -> fx.SetTimer:
        return fx.SetTimer("watchdog", self._settings.proxy_margin_s)

    def _look_again(self) -> fx.SetTimer:
        return fx.SetTimer("repair", self._settings.repair_s)


def _asked(need: Need | None) -> list[fx.Effect]:
    return [fx.Send(fx.ProxyAddress(), need)] if need else []


# --- ends of jobs ---------------------------------------------------------------------------


class JobEnds:
    """The ends that nobody has confirmed yet, by job; one timer, `close`, for all."""

    def __init__(self, signer: Signer, settings: CloudSettings) -> None:
        self._signer, self._settings = signer, settings
        self._open: dict[bytes, Note] = {}
        self._wait_s = settings.resend_s

    def tell(self, job_id: bytes, status: str) -> list[fx.Effect]:
        """A job has ended as `status`."""
        self._open[job_id] = self._signer.note(Close(job_id, status))  # type: ignore[arg-type]
        self._wait_s = self._settings.resend_s
        return self.send()

    def send(self) -> list[fx.Effect]:
        """Say all of them (again), ever more rarely."""
        if not self._open:
            return []
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, self._settings.close_cap_s)
        notes = [fx.Send(fx.ProxyAddress(), note) for note in self._open.values()]
        return [*notes, fx.SetTimer("close", wait_s)]

    def confirmed(self, digest: bytes) -> list[fx.Effect] | None:
        """The proxy acknowledged a note of this digest; None if it is none of these."""
        for job_id, note in self._open.items():
            if hashlib.sha256(note.body.payload).digest() == digest:
                del self._open[job_id]
                return [] if self._open else [fx.CancelTimer("close")]
        return None
