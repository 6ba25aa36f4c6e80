"""The cloud's machine: one job at a time, one exchange after the other, each committed once."""

from __future__ import annotations

from edgeveil.crypto.keys import VerifyKey
from edgeveil.crypto.labels import BODY, HEADER
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_arrivals import Arrivals
from edgeveil.protocol.cloud_ends import Ends
from edgeveil.protocol.cloud_job import Job
from edgeveil.protocol.cloud_outgoing import Outgoing
from edgeveil.protocol.cloud_states import TABLE, State
from edgeveil.protocol.cloud_tasks import (
    Absorb,
    Absorbed,
    Blocked,
    Broadcast,
    Cancel,
    CloudSettings,
    Ended,
    Failed,
    JobStatus,
    SealJob,
    SealRelease,
    Start,
    TooFew,
)
from edgeveil.protocol.codec import decode_body, decode_header
from edgeveil.protocol.envelope import Signer, check
from edgeveil.protocol.messages import (
    Ack,
    Batch,
    Commit,
    Exchanged,
    Here,
    Manifest,
    Need,
    Note,
    Offer,
    Part,
    Roster,
    Shortfall,
    Signed,
)
from edgeveil.protocol.transfer import sends

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
        self.state = TABLE.start
        self.job: Job | None = None
        self._out = Outgoing(signer, self.settings)
        self._arrivals = Arrivals(signer, self.settings)
        self._ends = Ends(signer, self.settings)

    @property
    def at(self) -> Exchanged | None:
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
            case fx.Command(what=Start() as start):
                return self._start(start)
            case fx.Command(what=Cancel(job_id=job_id)):
                running = self.job is not None and self.job.start.job_id == job_id
                return self._end("cancelled", "cancelled by the operator") if running else []
            case fx.Command(what=Ended(job_id=job_id, status=status)):
                return self._ends.tell(job_id, status)
            case fx.Connected():
                here = fx.Send(fx.Proxy(), self.signer.note(Here(0.0)))
                return [here, *self._out.send(), *self._ends.send()]
            case fx.Received(message=Offer() as offer):
                return self._offer(offer)
            case fx.Received(message=Part() as part):
                return self._arrived(self._arrivals.part(part))
            case fx.Received(message=Need() as need):
                return self._answer(need)
            case fx.Received(message=Note(body=signed)):
                return self._note(signed)
            case fx.Timer(name=name):
                return self._timer(name)
            case fx.Done(task=task, result=result):
                return self._done(task, result)
        return []

    # --- a job's course ---

    def _start(self, start: Start) -> list[fx.Effect]:
        self.state = TABLE.step(self.state, "start")
        self.job = Job.begin(start)
        what = {"job_id": start.job_id.hex(), "rounds": start.rounds}
        return [fx.Report("job_started", what), fx.Work(SealJob(start.job_id))]

    def _done(self, task: object, result: object) -> list[fx.Effect]:
        job = self.job
        if job is None or not job.awaits(task):
            return []
        match result:
            case Failed(reason=reason) | Blocked(reason=reason) if isinstance(task, Absorb):
                # Not acknowledged: the proxy still has it, and drops it with the next attempt.
                return self._repeat(job, reason)
            case Failed(reason=reason):
                return self._end("failed", reason)
            case Blocked(reason=reason):
                return self._pause(job, reason)
            case Broadcast(manifest=manifest, data=data):
                return self._sealed(job, manifest, data)
            case Absorbed(commit=commit, data=data):
                return self._committed(job, commit, data)
            case TooFew(reason=reason):
                return self._arrivals.acknowledge_batch() + self._repeat(job, reason)
        return []

    def _sealed(self, job: Job, manifest: Manifest, data: bytes) -> list[fx.Effect]:
        self.state = TABLE.step(self.state, "sealed")
        job.broadcasts(manifest, self.settings.proxy_margin_s)
        what = {
            "round": manifest.at.round,
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

    def _held(self, job: Job) -> list[fx.Effect]:
        """The proxy holds the broadcast."""
        released = self.state is State.RELEASING
        # A job may be taken up again after its last commit and before its release.
        announced = self.state is State.ANNOUNCING
        trained = announced and job.round > job.start.rounds
        self.state = TABLE.step(self.state, "held_all_committed" if trained else "held")
        self._out.drop()
        if announced:
            job.retries_left = job.start.retries
        if released:
            return self._finish(job, "completed", "")
        out: list[fx.Effect] = [fx.CancelTimer("resend"), fx.Report("held", {"round": job.round})]
        if trained:
            return [*out, fx.Work(SealRelease(job.start.job_id))]
        if self.state is State.SEALING:
            return [*out, job.seal()]
        # The proxy's deadline runs from here, not from the sealing.
        return [*out, fx.SetTimer("watchdog", job.patience_s)]

    def _committed(self, job: Job, commit: Commit, data: bytes) -> list[fx.Effect]:
        last = job.round >= job.start.rounds
        self.state = TABLE.step(self.state, "committed_last" if last else "committed")
        out = self._arrivals.acknowledge_batch()
        signed = self.signer.header(commit)
        out += sends(fx.Proxy(), signed, commit.blob, data, self.settings.packet_bytes)
        self._out.drop()
        job.retries_left, job.attempt = job.start.retries, 1
        if last:
            return [*out, fx.Work(SealRelease(job.start.job_id))]
        job.round += 1
        return [*out, job.seal()]

    def _repeat(self, job: Job, reason: str) -> list[fx.Effect]:
        if job.retries_left <= 0:
            return self._pause(job, reason)
        self.state = TABLE.step(self.state, "repeat")
        job.retries_left -= 1
        job.attempt += 1
        self._out.drop()
        what = {"round": job.round, "attempt": job.attempt, "why": reason}
        return [*self._arrivals.drop_batch(), fx.Report("round_repeated", what), job.seal()]

    def _pause(self, job: Job, reason: str) -> list[fx.Effect]:
        """Others are missing: the job keeps its round and its devices until somebody resumes it."""
        self.state = TABLE.step(self.state, "pause")
        return self._leave(job, "paused", reason, [])

    def _end(self, status: str, reason: str) -> list[fx.Effect]:
        if self.job is None:
            return []
        self.state = TABLE.step(self.state, "end")
        return self._finish(self.job, status, reason)

    def _finish(self, job: Job, status: str, reason: str) -> list[fx.Effect]:
        return self._leave(job, status, reason, self._ends.tell(job.start.job_id, status))

    def _leave(self, job: Job, status: str, reason: str, told: list[fx.Effect]) -> list[fx.Effect]:
        self.job = None
        self._out.drop()
        return [
            *self._arrivals.drop_batch(),
            fx.CancelTimer("watchdog"),
            fx.CancelTimer("resend"),
            fx.Store(JobStatus(job.start.job_id, status, reason)),
            *told,
            fx.Report("job_" + status, {"job_id": job.start.job_id.hex(), "reason": reason}),
        ]

    # --- messages ---

    def _offer(self, offer: Offer) -> list[fx.Effect]:
        check(offer.header, "proxy", self.proxy_key, HEADER)
        header = decode_header(offer.header)
        if not isinstance(header, Roster | Batch):
            raise ProtocolError("unexpected_header")
        expected = isinstance(header, Batch) and header.at == self.at
        if self.job is not None and expected and TABLE.allows(self.state, "batch"):
            size_bytes, most_bytes = header.blob.size_bytes, self.settings.spool_bytes
            if size_bytes > most_bytes:  # another attempt would bring as much
                why = f"the batch has {size_bytes} bytes, limits.spool_bytes is {most_bytes}"
                return self._pause(self.job, why)
        self._arrivals.check(offer, header)
        if isinstance(header, Roster):
            return self._arrivals.roster(offer, header)
        if header.at != self.at:
            return [fx.Send(fx.Proxy(), self._arrivals.ack(header.blob.digest, "closed"))]
        if not TABLE.allows(self.state, "batch"):
            return []  # being absorbed: the acknowledgement follows the commit
        return self._arrived(self._arrivals.batch(offer, header))

    def _arrived(self, out: list[fx.Effect]) -> list[fx.Effect]:
        batch = self._arrivals.whole_batch
        if batch is None or not TABLE.allows(self.state, "batch"):
            return out
        self.state = TABLE.step(self.state, "batch")
        report = fx.Report("batch", {"round": batch.at.round, "uploads": batch.uploads})
        cancel = [fx.CancelTimer("resend"), fx.CancelTimer("watchdog")]
        return [*out, report, *cancel, fx.Work(Absorb(batch))]

    def _note(self, signed: Signed) -> list[fx.Effect]:
        check(signed, "proxy", self.proxy_key, BODY)
        body, job = decode_body(signed), self.job
        if isinstance(body, Shortfall):
            if job is None or body.at != self.at or not TABLE.allows(self.state, "batch"):
                return []
            if job.attempt == 1 and not body.uploads and body.declined >= job.selected:
                # Nothing was released, and asking again at once would change no owner's mind.
                report = fx.Report("all_declined", {"round": job.round, "declined": body.declined})
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
            return self._held(job) if TABLE.allows(self.state, "held") else []
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
            if self.state in (State.BROADCASTING, State.WAITING):
                return self._repeat(job, _SILENT)
            if self.state in (State.ANNOUNCING, State.RELEASING):
                return self._wait_again(job)
        return []

    def _wait_again(self, job: Job) -> list[fx.Effect]:
        """An announcement or release is offered on; each further wait takes one of the retries."""
        if job.retries_left <= 0:
            return self._pause(job, _SILENT)
        job.retries_left -= 1
        return [*self._out.send(), fx.SetTimer("watchdog", self.settings.proxy_margin_s)]
