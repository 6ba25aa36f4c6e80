"""The cloud's machine: one job at a time, one exchange after the other, each committed once.

Theory of operation. A job is announced to all enrolled devices, then played exchange by exchange,
then its model is released; `CLOUD_STATES` has the whole course. Each of the three begins with the
host sealing a broadcast (`Work`), which is offered to the proxy again and again until the proxy
says that it holds it. After an exchange's broadcast the proxy's batch is awaited, pulled part by
part to the host's disk, and given to the host to open, aggregate and commit (`Absorb`). Only then
is the batch acknowledged: the proxy keeps it until the round is durable here.

A round under masks takes one step more. What the host opens are sums that say nothing yet; once
they are durable the proxy is asked for the masks of the uploads in them (`MaskArrivals`), again and
again until it answers. There is no way back from there: the exchange is never asked for again, also
not after a restart, which finds the kept sums when it would seal the round anew.

What moves a job on is an outcome of the host's work, a word of the proxy, or silence. Only outcomes
of the attempt under way count (`RunningJob.awaits`), and only messages that the state allows. Where
an attempt brings too few uploads it is repeated, at most `retries` times for each exchange, with
the same devices and noise. After that, or where something stands in the way that others must mend,
the job pauses with its round kept; `end` is for what cannot be mended. `watchdog` is the one timer
that ends a wait for the proxy: it starts anew with every sign of the proxy, so that a broadcast or
batch may take as long as it moves.

Beside the job, and in any state, stand the roster, which the proxy hands over when it changes, and
the ends of jobs, which are told until the proxy confirms them (`JobEnds`), and what follows a
release (`CloudReleases`).

Whom the cloud believes, and with which keys it speaks, may change while a job runs, by metadata
that the offline root signed. What was signed with the key before is believed no more: the job is
announced anew, and its round repeated.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from edgeveil.crypto.keys import KEY_BYTES, SigningKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_masks import MaskArrivals
from edgeveil.protocol.cloud_outgoing import JobEnds, OutgoingBroadcast
from edgeveil.protocol.cloud_releases import CloudReleases
from edgeveil.protocol.cloud_tasks import (
    Absorb,
    AskUnmask,
    BatchDropped,
    BatchPart,
    Broadcast,
    CancelJob,
    CloudSettings,
    CountReports,
    JobStatus,
    Obstacle,
    OpenArrived,
    PublishRelease,
    ReleaseHeld,
    RepeatEnd,
    RosterKept,
    RosterMark,
    RosterRefused,
    RoundAnswers,
    RoundCommit,
    SealJob,
    SealPublication,
    SealRelease,
    SealRound,
    StartJob,
    TakeMasks,
    TooFewUploads,
)
from edgeveil.protocol.effects import StateTable
from edgeveil.protocol.messages import (
    Ack,
    Arrived,
    Batch,
    BlobPart,
    Commit,
    Envelope,
    ExchangeId,
    Here,
    Manifest,
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
    Unmask,
    verified_body,
    verified_header,
)
from edgeveil.protocol.transfer import (
    NEED_LIMIT,
    Fetch,
    check_claim,
    check_fetchable,
    first_data,
    sends,
)


class CloudState(Enum):
    """Where the cloud stands in the job it runs."""

    IDLE = "idle"
    SEALING_JOB = "sealing_job"
    ANNOUNCING = "announcing"
    SEALING = "sealing"
    BROADCASTING = "broadcasting"
    WAITING = "waiting"
    ABSORBING = "absorbing"
    UNMASKING = "unmasking"
    SEALING_RELEASE = "sealing_release"
    RELEASING = "releasing"


_S = CloudState
_WAITING_ON = (_S.ANNOUNCING, _S.UNMASKING, _S.RELEASING)  # nothing else can be done meanwhile
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
        (_S.ABSORBING, "summed"): _S.UNMASKING,
        (_S.SEALING, "summed"): _S.UNMASKING,
        (_S.UNMASKING, "committed"): _S.SEALING,
        (_S.UNMASKING, "committed_last"): _S.SEALING_RELEASE,
        (_S.SEALING_RELEASE, "sealed"): _S.RELEASING,
        (_S.RELEASING, "held"): _S.IDLE,
    }
    | {(s, "repeat"): _S.SEALING for s in (_S.BROADCASTING, _S.WAITING, _S.ABSORBING)}
    | {(s, "rekeyed"): _S.SEALING_JOB for s in (_S.SEALING, _S.BROADCASTING, _S.WAITING)}
    | {(s, how): _S.IDLE for how in ("pause", "end") for s in _RUNNING},
)


@dataclass
class RunningJob:
    """One job from its start to its end: the exchange and attempt it is at, the retries left."""

    start: StartJob
    exchange: int
    attempt: int
    retries_left: int
    selected: int = 0  # by the newest broadcast
    patience_s: float = 0.0  # with the proxy, from each sign that the broadcast moves on
    announce_again: bool = False  # after the commit under way: the key that announced it is gone

    @property
    def at(self) -> ExchangeId:
        """The attempt under way."""
        return ExchangeId(self.start.job_id, self.exchange, self.attempt)

    @property
    def sealing(self) -> SealRound:
        """The task of sealing this attempt's model."""
        return SealRound(self.start.job_id, self.exchange, self.attempt)

    def awaits(self, task: object) -> bool:
        """Whether the outcome of this task still matters: it belongs to the attempt under way."""
        match task:
            case SealJob(job_id=job_id) | SealRelease(job_id=job_id):
                return job_id == self.start.job_id
            case SealRound():
                return task == self.sealing
            case Absorb(batch=batch):
                return batch.at == self.at
            case TakeMasks(at=at):
                return at == self.at
        return False


ALL_DECLINED = (
    "all {} selected devices declined: a policy or a spent budget does not allow this job, or the "
    "boxes are too slow for it; each device's console says why"
)
_SILENT = "the proxy did not answer in time"


@dataclass(frozen=True)
class OwnKeys:
    """What the cloud signs with from now on, and whom it believes; `metadata` says why."""

    jobs: SigningKey
    releases: SigningKey
    peers: PeerKeys
    metadata: TrustMetadata


class CloudMachine:
    """One cloud behind one proxy."""

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
        self.state = CLOUD_STATES.start
        self.job: RunningJob | None = None
        self._out = OutgoingBroadcast(signer, self._releases, self.settings)
        self._arrivals = CloudArrivals(signer, self.settings, roster)
        self._masks = MaskArrivals(signer, self.settings)
        self._ends = JobEnds(signer, self.settings)
        self.releases = CloudReleases(signer, self._releases, self.settings)

    @property
    def at(self) -> ExchangeId | None:
        """The running job, its exchange and attempt."""
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
            case fx.Command(what=PublishRelease() as asked):
                return self.releases.publish(asked)
            case fx.Command(what=ReleaseStatement() as said):
                return self.releases.state(said)
            case fx.Command(what=OwnKeys() as keys):
                return self._rekeyed(keys)
            case fx.PeerSilent():
                return [self._here()]
            case fx.PeerConnected():
                beside = [*self._ends.send(), *self.releases.send()]
                return [
                    *self._tell_trust(),
                    self._here(),
                    *self._out.send(),
                    *self._masks.send(),
                    *beside,
                ]
            case fx.MessageReceived(message=Offer() as offer):
                return self._offer(offer)
            case fx.MessageReceived(message=BlobPart() as part):
                taken = self._masks.part(part)
                return self._arrived(self._arrivals.part(part)) if taken is None else taken
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
            case fx.WorkDone(task=OpenArrived()):
                return self._arrivals.opened()
            case fx.WorkDone(task=task, result=result):
                return self._done(task, result)
        return []

    def _here(self) -> fx.Effect:
        """What the proxy answers with its roster."""
        return fx.Send(fx.ProxyAddress(), self.signer.note(Here(0.0)))

    def _step(self, happened: str) -> None:
        self.state = CLOUD_STATES.step(self.state, happened)

    def _may(self, happen: str) -> bool:
        return CLOUD_STATES.allows(self.state, happen)

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
        if self.job is None:
            return out
        if not self._may("rekeyed"):
            # Nothing that was signed is needed any more, or it is offered again with the new key.
            self.job.announce_again = self.state in (CloudState.ABSORBING, CloudState.UNMASKING)
            return [*out, *self._out.send(), *self._masks.send()]
        self.job.attempt += 1
        return [*out, *self._announce_again(self.job)]

    def _announce_again(self, job: RunningJob) -> list[fx.Effect]:
        self._step("rekeyed")
        job.announce_again = False
        self._out.drop()
        cancelled = [fx.CancelTimer("watchdog"), fx.CancelTimer("resend")]
        return [*self._arrivals.drop_batch(), *cancelled, fx.Work(SealJob(job.start.job_id))]

    # --- a job's course ---

    def _start(self, start: StartJob) -> list[fx.Effect]:
        self._step("start")
        self.job = RunningJob(start, start.exchange, start.attempt, start.retries)
        what = {"job_id": start.job_id.hex(), "rounds": start.exchanges}
        return [fx.Report("job_started", what), fx.Work(SealJob(start.job_id))]

    def _done(self, task: object, result: object) -> list[fx.Effect]:
        job = self.job
        if job is None or not job.awaits(task):
            return []
        match result:
            case fx.WorkFailed(reason=reason) | Obstacle(reason=reason) if isinstance(task, Absorb):
                # Not acknowledged: the proxy still has it, and drops it with the next attempt.
                return self._repeat(job, reason)
            case fx.WorkFailed(reason=reason):
                return self._end("failed", reason)
            case Obstacle(reason=reason):
                return self._pause(job, reason)
            case Broadcast(manifest=manifest, data=data):
                return self._sealed(job, manifest, data)
            case RoundCommit(commit=commit, data=data):
                return self._committed(job, commit, data)
            case AskUnmask(unmask=unmask):
                return self._ask_unmask(job, unmask)
            case TooFewUploads(reason=reason, answers=answers):
                return self._arrivals.acknowledge_batch() + self._repeat(job, reason, answers)
        return []

    def _ask_unmask(self, job: RunningJob, unmask: Unmask) -> list[fx.Effect]:
        self._step("summed")
        job.attempt = unmask.at.attempt
        report = fx.Report("unmasking", {"round": job.exchange})
        watchdog = fx.SetTimer("watchdog", self.settings.proxy_margin_s)
        return [report, *self._masks.ask(unmask), watchdog]

    def _sealed(self, job: RunningJob, manifest: Manifest, data: bytes) -> list[fx.Effect]:
        self._step("sealed")
        job.selected = manifest.selected
        job.patience_s = manifest.deadline_s + manifest.grace_s + self.settings.proxy_margin_s
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
        published = self.releases.answer(need)
        if published is not None:
            return published
        out = self._out.answer(need)
        return [*out, fx.SetTimer("watchdog", self.job.patience_s)] if self.job else out

    def _held(self, job: RunningJob) -> list[fx.Effect]:
        """The proxy holds the broadcast."""
        released = self.state is CloudState.RELEASING
        # A job may be taken up again after its last commit and before its release.
        announced = self.state is CloudState.ANNOUNCING
        trained = announced and job.exchange > job.start.exchanges
        self._step("held_all_committed" if trained else "held")
        sequence = self._out.sequence
        self._out.drop()
        if announced:
            job.retries_left = job.start.retries
        if released:
            return [fx.Persist(ReleaseHeld(sequence)), *self._leave(job, "completed", "")]
        report = fx.Report("held", {"round": job.exchange})
        out: list[fx.Effect] = [fx.CancelTimer("resend"), report]
        if trained:
            return [*out, fx.Work(SealRelease(job.start.job_id))]
        if self.state is CloudState.SEALING:
            return [*out, fx.Work(job.sealing)]
        # The proxy's deadline runs from here, not from the sealing.
        return [*out, fx.SetTimer("watchdog", job.patience_s)]

    def _committed(self, job: RunningJob, commit: Commit, data: bytes) -> list[fx.Effect]:
        last = job.exchange >= job.start.exchanges
        self._step("committed_last" if last else "committed")
        out = [*self._masks.drop(), *self._arrivals.acknowledge_batch()]
        signed = self.signer.header(commit)
        out += sends(fx.ProxyAddress(), signed, commit.blob, data, self.settings.packet_bytes)
        self._out.drop()
        job.retries_left, job.attempt = job.start.retries, 1
        if last:
            return [*out, fx.Work(SealRelease(job.start.job_id))]
        job.exchange += 1
        if job.announce_again:
            return [*out, *self._announce_again(job)]
        return [*out, fx.Work(job.sealing)]

    def _repeat(
        self, job: RunningJob, reason: str, answers: RoundAnswers | None = None
    ) -> list[fx.Effect]:
        if job.retries_left <= 0:
            return self._pause(job, reason, answers)
        self._step("repeat")
        job.retries_left -= 1
        job.attempt += 1
        self._out.drop()
        what = {"round": job.exchange, "attempt": job.attempt, "why": reason, **_told(answers)}
        report = fx.Report("round_repeated", what)
        if job.announce_again:
            return [report, *self._announce_again(job)]
        return [*self._arrivals.drop_batch(), report, fx.Work(job.sealing)]

    def _pause(
        self, job: RunningJob, reason: str, answers: RoundAnswers | None = None
    ) -> list[fx.Effect]:
        """Others are missing: the job keeps its round and its devices until somebody resumes it."""
        self._step("pause")
        return self._leave(job, "paused", reason, answers)

    def _end(self, status: str, reason: str) -> list[fx.Effect]:
        if self.job is None:
            return []
        self._step("end")
        return self._leave(self.job, status, reason)

    def _leave(
        self, job: RunningJob, status: str, reason: str, answers: RoundAnswers | None = None
    ) -> list[fx.Effect]:
        """The job runs no more; unless it is only paused, its end is told."""
        job_id, self.job = job.start.job_id, None
        self._out.drop()
        told = self._ends.tell(job_id, status) if status != "paused" else []
        return [
            *self._arrivals.drop_batch(),
            *self._masks.drop(),
            fx.CancelTimer("watchdog"),
            fx.CancelTimer("resend"),
            fx.Persist(JobStatus(job_id, status, reason, answers)),
            *told,
            fx.Report("job_" + status, {"job_id": job_id.hex(), "reason": reason}),
        ]

    # --- messages ---

    def _offer(self, offer: Offer) -> list[fx.Effect]:
        header = verified_header(offer.header, "proxy", self.keys.proxy)
        if isinstance(header, MaskSums):
            return self._masks.offer(offer, header)
        if not isinstance(header, Roster | Batch):
            raise ProtocolError("unexpected_header")
        expected = isinstance(header, Batch) and header.at == self.at and self._may("batch")
        size_bytes, most_bytes = header.blob.size_bytes, self.settings.spool_bytes
        if self.job is not None and expected and size_bytes > most_bytes:
            # Another attempt would bring as much.
            why = f"the batch has {size_bytes} bytes, limits.spool_bytes is {most_bytes}"
            return self._pause(self.job, why)
        self._arrivals.check(offer, header)
        if isinstance(header, Roster):
            refused = self._arrivals.why_no_roster(header, self.keys.lineage)
            if refused:
                # A replay changes nothing: the newest roster stands.
                replayed = refused == "replayed_roster"
                told = [] if replayed else [fx.Persist(RosterRefused(refused, header.lineage))]
                return [*told, fx.Refuse(refused)]
            return self._arrivals.roster(offer, header)
        if header.at != self.at:
            closed = self._arrivals.ack(header.blob.digest, "closed")
            return [] if self._may_be_summed(header.at) else [closed]
        if not expected:
            return []  # being absorbed: the acknowledgement follows the commit
        return self._arrived(self._arrivals.batch(offer, header))

    def _may_be_summed(self, at: ExchangeId) -> bool:
        """Whether the host may hold sums of this attempt, for which the proxy keeps the seeds."""
        job = self.job
        same = job is not None and (at.job_id, at.exchange) == (job.start.job_id, job.exchange)
        return same and self.state in (_S.SEALING_JOB, _S.ANNOUNCING, _S.SEALING)

    def _arrived(self, out: list[fx.Effect]) -> list[fx.Effect]:
        batch = self._arrivals.whole_batch
        if batch is None or not self._may("batch"):
            return out
        self._step("batch")
        report = fx.Report("batch", {"round": batch.at.exchange, "uploads": batch.uploads})
        cancel = [fx.CancelTimer("resend"), fx.CancelTimer("watchdog")]
        return [*out, report, *cancel, fx.Work(Absorb(batch))]

    def _note(self, envelope: Envelope) -> list[fx.Effect]:
        body = verified_body(envelope, "proxy", self.keys.proxy)
        if isinstance(body, Shortfall):
            return self._short(body)
        if isinstance(body, Arrived):
            expected = body.at == self.at and self._may("batch")
            return self._arrivals.stream(body) if expected else []
        if isinstance(body, ReleaseReports):
            return self.releases.reports(body, hashlib.sha256(envelope.payload).digest())
        if not isinstance(body, Ack):
            raise ProtocolError("unexpected_body")
        confirmed = self._ends.confirmed(body.blob)
        if confirmed is not None:
            return confirmed
        published = self.releases.confirmed(body)
        if published is not None:
            return published
        if self.job is not None and body.blob == self._masks.question:
            return self._pause(self.job, f"the proxy refused to unmask: {body.reason}")
        if self.job is None or not self._out.is_blob(body.blob):
            return []
        if body.status == "held":
            return self._held(self.job) if self._may("held") else []
        return self._pause(self.job, f"the proxy refused the broadcast: {body.reason}")

    def _short(self, short: Shortfall) -> list[fx.Effect]:
        """The round ended at the proxy below the floor."""
        job = self.job
        if job is None or short.at != job.at or not self._may("batch"):
            return []
        if job.attempt == 1 and not short.uploads and short.declined >= job.selected:
            # Nothing was released, and asking again at once would change no owner's mind.
            what = {"round": job.exchange, "declined": short.declined}
            report = fx.Report("all_declined", what)
            return [report, *self._end("failed", ALL_DECLINED.format(short.declined))]
        answers = RoundAnswers(job.selected, short.uploads, short.declined)
        return self._repeat(job, f"{answers}: below the minimum", answers)

    # --- timers ---

    def _timer(self, name: str) -> list[fx.Effect]:
        match name:
            case "resend":
                return self._out.send()
            case "close":
                return self._ends.send()
            case "release":
                return self.releases.resend()
            case "statement":
                return self.releases.tell()
            case "repair":
                return self._arrivals.look()
            case "unmask":
                return self._masks.send()
            case "watchdog" if self.job is not None:
                if self.state in (CloudState.BROADCASTING, CloudState.WAITING):
                    return self._repeat(self.job, _SILENT)
                if self.state in _WAITING_ON:
                    return self._wait_again(self.job)
        return []

    def _wait_again(self, job: RunningJob) -> list[fx.Effect]:
        """The same is offered or asked on; each further wait takes one of the retries."""
        if job.retries_left <= 0:
            return self._pause(job, _SILENT)
        job.retries_left -= 1
        return [*self._out.send(), fx.SetTimer("watchdog", self.settings.proxy_margin_s)]


def _told(answers: RoundAnswers | None) -> dict[str, object]:
    return {} if answers is None else {"answers": answers.to_dict()}


# --- what passes between cloud and proxy -----------------------------------------------------


BATCH_CREDIT = 256  # parts under way from the proxy: they go to the disk, not into memory
BATCH_CREDIT_BYTES = 16 << 20


class CloudArrivals:
    """The roster and one batch, as far as they are there. The timer `repair` asks for what is
    missing; `watchdog` starts anew whenever a part of the batch has come.
    """

    def __init__(
        self, signer: Signer, settings: CloudSettings, newest: RosterMark | None = None
    ) -> None:
        self._signer, self._settings = signer, settings
        self._batch: Fetch[Batch] | None = None  # its bytes go to the host
        self._stream: Fetch[Batch] | None = None  # the front of one that is not whole yet
        self._at_work = self._more = False  # the host opens what came of a stream; more came since
        self._roster: Fetch[Roster] | None = None
        self._newest = newest  # an older roster would bring revoked devices back

    @property
    def whole_batch(self) -> Batch | None:
        """The batch, once every part of it was handed to the host."""
        batch = self._batch
        return batch.header if batch and batch.assembly.complete else None

    def check(self, offer: Offer, header: Roster | Batch) -> None:
        """Raise ProtocolError, before anything is changed, unless this can be fetched."""
        if isinstance(header, Batch):
            check_fetchable(offer, header.blob, self._settings.spool_bytes)
            return
        check_fetchable(offer, header.blob, self._settings.blob_bytes)
        if header.blob.size_bytes % KEY_BYTES:
            raise ProtocolError("malformed")

    def why_no_roster(self, header: Roster, named: str) -> str:
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

    def batch(self, offer: Offer, header: Batch) -> list[fx.Effect]:
        """The batch of the round under way is offered (again). A large one is pulled at once, and
        one of which the front is there already."""
        batch, settings = self._batch, self._settings
        new = batch is None or batch.header != header
        known = new and self._continues(offer, header)
        if batch is None or new:
            batch = self._stream if known else None
            batch = batch or self._fetch(offer, header)
            self._batch, self._stream = batch, None
        out: list[fx.Effect] = []
        for part in first_data(offer, header.blob):
            out += self._put_away(batch, part)
        if known:
            out += _asked(batch.next_need(timer=False))
        elif new and (header.stream or header.blob.size_bytes > settings.push_bytes):
            out += _asked(batch.next_need(timer=True))
        return [*out, self._look_again(), self._watch()] if new else [*out, self._look_again()]

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
        return _asked(stream.next_need(timer=False))

    def opened(self) -> list[fx.Effect]:
        """What was there is opened; go on if more is by now."""
        self._at_work, more, self._more = False, self._more, False
        batch = self._batch or self._stream
        return self._open(batch.header) if more and batch and batch.header.stream else []

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

    def roster(self, offer: Offer, header: Roster) -> list[fx.Effect]:
        """A roster is offered (again)."""
        if self._roster is None or self._roster.header != header:
            self._roster = Fetch(offer, header, self._settings.blob_bytes)
        complete = False
        for part in first_data(offer, header.blob):
            complete = self._roster.add(part)
        return self._keep(self._roster) if complete else [self._look_again()]

    def part(self, part: BlobPart) -> list[fx.Effect]:
        """A part of either; others are ignored."""
        batch, roster = self._batch or self._stream, self._roster
        if batch is not None and part.blob in (batch.header.blob.digest, batch.header.stream):
            return self._put_away(batch, part)
        if roster is None or roster.header.blob.digest != part.blob:
            return []
        return self._keep(roster) if roster.add(part) else _asked(roster.next_need(timer=False))

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
        told = self.ack(self._batch.header.blob.digest, "held")
        return [*self.drop_batch(), told]

    def drop_batch(self) -> list[fx.Effect]:
        """Forget the batch, here and on the disk."""
        batch = self._batch or self._stream
        self._batch = self._stream = None
        return [] if batch is None else [fx.Persist(BatchDropped())]

    def ack(self, digest: bytes, status: Literal["held", "closed"]) -> fx.Effect:
        """Tell the proxy what became of what it offered."""
        return fx.Send(fx.ProxyAddress(), self._signer.note(Ack(digest, status)))

    def _put_away(self, batch: Fetch[Batch], part: BlobPart) -> list[fx.Effect]:
        """A part of the batch: to its place on the disk, once. What is streamed is opened there."""
        again, blob, stream = part.index in batch.assembly, batch.header.blob, batch.header.stream
        batch.add(part)
        if again:
            return []
        kept = BatchPart(stream or blob.digest, part.index * blob.part_bytes, part.data)
        opening = self._open(batch.header) if stream else []
        return [fx.Persist(kept), *opening, *_asked(batch.next_need(timer=False))]

    def _open(self, batch: Batch) -> list[fx.Effect]:
        if self._at_work:
            self._more = True
            return []
        self._at_work = True
        return [fx.Work(OpenArrived(batch))]

    def _keep(self, roster: Fetch[Roster]) -> list[fx.Effect]:
        data, header = roster.assembly.finish(), roster.header
        self._roster, self._newest = None, RosterMark(header.lineage, header.epoch)
        kept = RosterKept(header.epoch, data, header.lineage, header.expires_s, header.knows)
        return [
            fx.Persist(kept),
            self.ack(header.blob.digest, "held"),
            fx.Report("roster", {"enrolled": len(data) // KEY_BYTES}),
        ]

    def _watch(self) -> fx.SetTimer:
        return fx.SetTimer("watchdog", self._settings.proxy_margin_s)

    def _look_again(self) -> fx.SetTimer:
        return fx.SetTimer("repair", self._settings.repair_s)


def _asked(need: Need | None) -> list[fx.Effect]:
    return [fx.Send(fx.ProxyAddress(), need)] if need else []
