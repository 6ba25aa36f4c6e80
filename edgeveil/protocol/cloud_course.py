"""One job's course at the cloud: announced, exchange after exchange, released.

Theory of operation. `CLOUD_STATES` has the whole course. The job is announced to all enrolled
devices, then played exchange by exchange, then its model is released. Each of the three begins with
the host sealing a broadcast (`Work`), which is offered to the proxy again and again until the proxy
says that it holds it. After an exchange's broadcast the proxy's batch is awaited, pulled part by
part to the host's disk, and given to the host to open, aggregate and commit (`Absorb`). Only then
is the batch acknowledged: the proxy keeps it until the round is durable here.

A round under masks takes one step more. What the host opens are sums that say nothing yet; once
they are durable the proxy is asked for the masks of the uploads in them (`MaskArrivals`), again and
again until it answers. There is no way back from there: the exchange is never asked for again, also
not after a restart, which finds the kept sums when it would seal the round anew.

What moves a job on is an outcome of the host's work, a word of the proxy, or silence. Only outcomes
of the attempt under way count (`JobCourse.awaits`), and only messages that the state allows. Where
an attempt brings too few uploads it is repeated, at most `retries` times for each exchange, with
the same devices and noise. After that, or where something stands in the way that others must mend,
the job pauses with its round kept; `end` is for what cannot be mended. `watchdog` is the one timer
that ends a wait for the proxy: it starts anew with every sign of the proxy about this job, so that
a broadcast or batch may take as long as it moves.

Courses know nothing of each other. Each has timers of its own, named by its job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_arrivals import BatchArrival, acknowledged
from edgeveil.protocol.cloud_masks import MaskArrivals
from edgeveil.protocol.cloud_outgoing import JobEnds, OutgoingBroadcast
from edgeveil.protocol.cloud_tasks import (
    Absorb,
    AskUnmask,
    Broadcast,
    CloudSettings,
    JobStatus,
    Obstacle,
    OpenArrived,
    ReleaseHeld,
    RoundAnswers,
    RoundCommit,
    SealJob,
    SealRelease,
    SealRound,
    StartJob,
    TakeMasks,
    TooFewUploads,
    timer_name,
)
from edgeveil.protocol.effects import StateTable
from edgeveil.protocol.messages import (
    Ack,
    Arrived,
    Batch,
    BlobPart,
    Commit,
    ExchangeId,
    Manifest,
    MaskSums,
    Need,
    Offer,
    Shortfall,
    Signer,
    Unmask,
)
from edgeveil.protocol.transfer import check_fetchable, sends


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


ALL_DECLINED = (
    "all {} selected devices declined: a policy or a spent budget does not allow this job, or the "
    "boxes are too slow for it; each device's console says why"
)
_SILENT = "the proxy did not answer in time"


@dataclass(frozen=True)
class CourseContext:
    """What all courses share: who signs, the bounds, and whom the ends of jobs are told."""

    signer: Signer
    releases: Signer
    settings: CloudSettings
    ends: JobEnds


class JobCourse:
    """One job from its start to its end: the exchange and attempt it is at, the retries left.

    It is over when it is in the state `idle` again.
    """

    def __init__(self, start: StartJob, context: CourseContext) -> None:
        self._context, self.start = context, start
        self.state = CLOUD_STATES.start
        self.exchange, self.attempt, self.retries_left = (
            start.exchange,
            start.attempt,
            start.retries,
        )
        self.selected = 0  # by the newest broadcast
        self._patience_s = 0.0  # with the proxy, from each sign that the broadcast moves on
        self._announce_again = (
            False  # after the commit under way: the key that announced it is gone
        )
        signer, settings, job_id = context.signer, context.settings, start.job_id
        resend = timer_name("resend", job_id)
        self._out = OutgoingBroadcast(signer, context.releases, settings, resend)
        self.arrival = BatchArrival(signer, settings, job_id)
        self._masks = MaskArrivals(signer, settings, job_id)

    @property
    def job_id(self) -> bytes:
        """The job, as the wire names it."""
        return self.start.job_id

    @property
    def at(self) -> ExchangeId:
        """The attempt under way."""
        return ExchangeId(self.job_id, self.exchange, self.attempt)

    @property
    def sealing(self) -> SealRound:
        """The task of sealing this attempt's model."""
        return SealRound(self.job_id, self.exchange, self.attempt)

    @property
    def over(self) -> bool:
        """Nothing follows any more."""
        return self.state is CloudState.IDLE

    @property
    def releasing(self) -> bool:
        """Its release is being sealed, or offered."""
        return self.state in (_S.SEALING_RELEASE, _S.RELEASING)

    def awaits(self, task: object) -> bool:
        """Whether the outcome of this task still matters: it belongs to the attempt under way."""
        match task:
            case SealJob(job_id=job_id) | SealRelease(job_id=job_id):
                return job_id == self.job_id
            case SealRound():
                return task == self.sealing
            case Absorb(batch=batch):
                return batch.at == self.at
            case TakeMasks(at=at):
                return at == self.at
        return False

    def _step(self, happened: str) -> None:
        self.state = CLOUD_STATES.step(self.state, happened)

    def _may(self, happen: str) -> bool:
        return CLOUD_STATES.allows(self.state, happen)

    def _work(self, task: object) -> fx.Work:
        return fx.Work(task, self.at)

    def _report(self, what: str, **data: Any) -> fx.Report:
        return fx.Report(what, data, self.at)

    def _timer(self, what: str, delay_s: float) -> fx.SetTimer:
        return fx.SetTimer(timer_name(what, self.job_id), delay_s)

    def _cancel(self, what: str) -> fx.CancelTimer:
        return fx.CancelTimer(timer_name(what, self.job_id))

    # --- its beginning, its end ---

    def begin(self) -> list[fx.Effect]:
        """Have it announced. Raises ProtocolError `illegal_transition` for one that runs."""
        self._step("start")
        what = {"job_id": self.job_id.hex(), "rounds": self.start.exchanges}
        return [self._report("job_started", **what), self._work(SealJob(self.job_id))]

    def cancel(self) -> list[fx.Effect]:
        """The operator ends it."""
        return self._end("cancelled", "cancelled by the operator")

    def rekeyed(self) -> list[fx.Effect]:
        """The cloud speaks with another key: what was signed before is believed no more."""
        if not self._may("rekeyed"):
            # Nothing that was signed is needed any more, or it is offered again with the new key.
            self._announce_again = self.state in (_S.ABSORBING, _S.UNMASKING)
            return self.send()
        self.attempt += 1
        return self._announce_anew()

    def _announce_anew(self) -> list[fx.Effect]:
        self._step("rekeyed")
        self._announce_again = False
        self._out.drop()
        cancelled = [self._cancel("watchdog"), self._cancel("resend")]
        return [*self.arrival.drop(), *cancelled, self._work(SealJob(self.job_id))]

    def _pause(self, reason: str, answers: RoundAnswers | None = None) -> list[fx.Effect]:
        """Others are missing: the job keeps its round and its devices until somebody resumes it."""
        self._step("pause")
        return self._leave("paused", reason, answers)

    def _end(self, status: str, reason: str) -> list[fx.Effect]:
        self._step("end")
        return self._leave(status, reason)

    def _leave(
        self, status: str, reason: str, answers: RoundAnswers | None = None
    ) -> list[fx.Effect]:
        """The job runs no more; unless it is only paused, its end is told."""
        self._out.drop()
        told = self._context.ends.tell(self.job_id, status) if status != "paused" else []
        return [
            *self.arrival.drop(),
            *self._masks.drop(),
            self._cancel("watchdog"),
            self._cancel("resend"),
            fx.Persist(JobStatus(self.job_id, status, reason, answers)),
            *told,
            self._report("job_" + status, job_id=self.job_id.hex(), reason=reason),
        ]

    # --- the host's work ---

    def done(self, task: object, result: object) -> list[fx.Effect]:
        """An outcome that is awaited."""
        match result:
            case fx.WorkFailed(reason=reason) | Obstacle(reason=reason) if isinstance(task, Absorb):
                # Not acknowledged: the proxy still has it, and drops it with the next attempt.
                return self._repeat(reason)
            case fx.WorkFailed(reason=reason):
                return self._end("failed", reason)
            case Obstacle(reason=reason):
                return self._pause(reason)
            case Broadcast(manifest=manifest, data=data):
                return self._sealed(manifest, data)
            case RoundCommit(commit=commit, data=data):
                return self._committed(commit, data)
            case AskUnmask(unmask=unmask):
                return self._ask_unmask(unmask)
            case TooFewUploads(reason=reason, answers=answers):
                return self.arrival.acknowledge() + self._repeat(reason, answers)
        return []

    def opened(self, _task: OpenArrived) -> list[fx.Effect]:
        """The host opened what was there of a stream."""
        return self._at_work(self.arrival.opened())

    def _at_work(self, out: list[fx.Effect]) -> list[fx.Effect]:
        """With the place that work of the arrival is about."""
        return [self._work(one.task) if isinstance(one, fx.Work) else one for one in out]

    def _ask_unmask(self, unmask: Unmask) -> list[fx.Effect]:
        self._step("summed")
        self.attempt = unmask.at.attempt
        report = self._report("unmasking", round=self.exchange)
        watchdog = self._timer("watchdog", self._context.settings.proxy_margin_s)
        return [report, *self._masks.ask(unmask), watchdog]

    def _sealed(self, manifest: Manifest, data: bytes) -> list[fx.Effect]:
        self._step("sealed")
        self.selected = manifest.selected
        margin_s = self._context.settings.proxy_margin_s
        self._patience_s = manifest.deadline_s + manifest.grace_s + margin_s
        report = self._report(
            "broadcast",
            round=manifest.at.exchange,
            kind=manifest.kind,
            selected=manifest.selected,
            attempt=manifest.at.attempt,
        )
        watchdog = self._timer("watchdog", self._patience_s)
        return [report, *self._out.offer(manifest, data), watchdog]

    def _committed(self, commit: Commit, data: bytes) -> list[fx.Effect]:
        last = self.exchange >= self.start.exchanges
        self._step("committed_last" if last else "committed")
        out = [*self._masks.drop(), *self.arrival.acknowledge()]
        signed, packet_bytes = (
            self._context.signer.header(commit),
            self._context.settings.packet_bytes,
        )
        out += sends(fx.ProxyAddress(), signed, commit.blob, data, packet_bytes)
        self._out.drop()
        self.retries_left, self.attempt = self.start.retries, 1
        if last:
            return [*out, self._work(SealRelease(self.job_id))]
        self.exchange += 1
        if self._announce_again:
            return [*out, *self._announce_anew()]
        return [*out, self._work(self.sealing)]

    def _repeat(self, reason: str, answers: RoundAnswers | None = None) -> list[fx.Effect]:
        if self.retries_left <= 0:
            return self._pause(reason, answers)
        self._step("repeat")
        self.retries_left -= 1
        self.attempt += 1
        self._out.drop()
        told = {} if answers is None else {"answers": answers.to_dict()}
        what = {"round": self.exchange, "attempt": self.attempt, "why": reason, **told}
        report = self._report("round_repeated", **what)
        if self._announce_again:
            return [report, *self._announce_anew()]
        return [*self.arrival.drop(), report, self._work(self.sealing)]

    # --- what the proxy says ---

    def send(self) -> list[fx.Effect]:
        """Say all that is not confirmed (again)."""
        return [*self._out.send(), *self._masks.send()]

    def offers(self, digest: bytes) -> bool:
        """Whether this is the digest of the broadcast under way."""
        return self._out.is_blob(digest)

    def answer(self, need: Need) -> list[fx.Effect]:
        """A proxy that asks for parts is there, however long the broadcast takes."""
        return [*self._out.answer(need), self._timer("watchdog", self._patience_s)]

    def hears(self, ack: Ack) -> bool:
        """Whether the proxy's word is about this job's broadcast, or its question."""
        return ack.blob == self._masks.question or self.offers(ack.blob)

    def acknowledged(self, ack: Ack) -> list[fx.Effect]:
        """It holds the broadcast, or will not; or it gives no masks."""
        if ack.blob == self._masks.question:
            return self._pause(f"the proxy refused to unmask: {ack.reason}")
        if ack.status == "held":
            return self._held() if self._may("held") else []
        return self._pause(f"the proxy refused the broadcast: {ack.reason}")

    def _held(self) -> list[fx.Effect]:
        """The proxy holds the broadcast."""
        released = self.state is CloudState.RELEASING
        # A job may be taken up again after its last commit and before its release.
        announced = self.state is CloudState.ANNOUNCING
        trained = announced and self.exchange > self.start.exchanges
        self._step("held_all_committed" if trained else "held")
        sequence = self._out.sequence
        self._out.drop()
        if announced:
            self.retries_left = self.start.retries
        if released:
            return [fx.Persist(ReleaseHeld(sequence)), *self._leave("completed", "")]
        out: list[fx.Effect] = [self._cancel("resend"), self._report("held", round=self.exchange)]
        if trained:
            return [*out, self._work(SealRelease(self.job_id))]
        if self.state is CloudState.SEALING:
            return [*out, self._work(self.sealing)]
        # The proxy's deadline runs from here, not from the sealing.
        return [*out, self._timer("watchdog", self._patience_s)]

    def takes(self, header: Batch) -> bool:
        """Whether this is the batch, or the front of it, of the attempt under way."""
        return header.at == self.at and self._may("batch")

    def batch(self, offer: Offer, header: Batch, room_bytes: int) -> list[fx.Effect]:
        """The proxy offers a batch; `room_bytes` of the disk are left by other jobs.

        Raises ProtocolError where it cannot be fetched.
        """
        settings, size_bytes = self._context.settings, header.blob.size_bytes
        if self.takes(header) and size_bytes > settings.spool_bytes:
            # Another attempt would bring as much.
            return self._pause(
                f"the batch has {size_bytes} bytes, limits.spool_bytes is {settings.spool_bytes}"
            )
        check_fetchable(offer, header.blob, settings.spool_bytes)
        if header.at != self.at:
            closed = acknowledged(self._context.signer, header.blob.digest, "closed")
            return [] if self._may_be_summed(header.at) else [closed]
        if not self._may("batch"):
            return []  # being absorbed: the acknowledgement follows the commit
        if size_bytes > room_bytes:
            # It is offered again, and other jobs' batches go: the proxy is not silent meanwhile.
            return [fx.Refuse("spool_full"), self.arrival.watch()]
        return self._arrived(self.arrival.batch(offer, header))

    def _may_be_summed(self, at: ExchangeId) -> bool:
        """Whether the host may hold sums of this attempt, for which the proxy keeps the seeds."""
        same = at.exchange == self.exchange
        return same and self.state in (_S.SEALING_JOB, _S.ANNOUNCING, _S.SEALING)

    def stream(self, arrived: Arrived, room_bytes: int) -> list[fx.Effect]:
        """The front of a batch that is not whole yet. As `BatchArrival.stream`."""
        if arrived.at != self.at or not self._may("batch"):
            return []
        if arrived.blob.size_bytes > room_bytes:
            return []  # it comes with the batch
        return self._at_work(self.arrival.stream(arrived))

    def knows(self, digest: bytes) -> bool:
        """Whether parts of this name belong to it."""
        return self._masks.knows(digest) or self.arrival.knows(digest)

    def part(self, part: BlobPart) -> list[fx.Effect]:
        """A part of the batch, or of the sums of masks."""
        taken = self._masks.part(part)
        return self._at_work(self._arrived(self.arrival.part(part)) if taken is None else taken)

    def masks(self, offer: Offer, header: MaskSums) -> list[fx.Effect]:
        """The proxy offers sums of masks. Raises ProtocolError where they cannot be fetched."""
        return self._at_work(self._masks.offer(offer, header))

    def _arrived(self, out: list[fx.Effect]) -> list[fx.Effect]:
        batch, out = self.arrival.whole_batch, self._at_work(out)
        if batch is None or not self._may("batch"):
            return out
        self._step("batch")
        report = self._report("batch", round=batch.at.exchange, uploads=batch.uploads)
        cancel = [self._cancel("resend"), self._cancel("watchdog")]
        return [*out, report, *cancel, self._work(Absorb(batch))]

    def short(self, short: Shortfall) -> list[fx.Effect]:
        """The round ended at the proxy below the floor."""
        if short.at != self.at or not self._may("batch"):
            return []
        if self.attempt == 1 and not short.uploads and short.declined >= self.selected:
            # Nothing was released, and asking again at once would change no owner's mind.
            report = self._report("all_declined", round=self.exchange, declined=short.declined)
            return [report, *self._end("failed", ALL_DECLINED.format(short.declined))]
        answers = RoundAnswers(self.selected, short.uploads, short.declined)
        return self._repeat(f"{answers}: below the minimum", answers)

    # --- timers ---

    def timer(self, what: str) -> list[fx.Effect]:
        """One of its own ran out."""
        match what:
            case "resend":
                return self._out.send()
            case "repair":
                return self.arrival.look()
            case "unmask":
                return self._masks.send()
            case "watchdog":
                if self.state in (CloudState.BROADCASTING, CloudState.WAITING):
                    return self._repeat(_SILENT)
                if self.state in _WAITING_ON:
                    return self._wait_again()
        return []

    def _wait_again(self) -> list[fx.Effect]:
        """The same is offered or asked on; each further wait takes one of the retries."""
        if self.retries_left <= 0:
            return self._pause(_SILENT)
        self.retries_left -= 1
        watchdog = self._timer("watchdog", self._context.settings.proxy_margin_s)
        return [*self._out.send(), watchdog]
