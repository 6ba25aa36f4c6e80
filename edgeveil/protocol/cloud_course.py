"""One job's course at the cloud: announced, exchange after exchange, released.

Theory of operation. `CLOUD_STATES` has the whole course. The job is announced to all enrolled
devices, then played exchange by exchange, then its model is released. Each of the three begins with
the host sealing broadcasts (`Work`), one for each cell, which are offered to the cells' proxies
again and again until each says that it holds its own. After an exchange's broadcast the proxies'
batches are awaited, pulled part by part to the host's disk, and given to the host to open,
aggregate and commit together (`Absorb`). Only then are they acknowledged: a proxy keeps its batch
until the round is durable here.

A round under masks takes two steps more. What the host opens are sums that say nothing yet, one of
each cell. Each proxy is asked for the checks of its batch's masks, by factors that it hears only
now, and uploads that do not fit are left out of the sums; of a choice nothing is said yet, so a
round that ends here is repeated like any other. Once the sums are durable each proxy is asked for
the masks of the uploads in its own (`MaskArrivals` asks both questions, again and again until the
proxy answers). There is no way back from there: the exchange is
never asked for again, also not after a restart, which finds the kept sums when it would seal the
round anew.

What moves a job on is an outcome of the host's work, or where its cells stand (`CellCourse`), which
changes by the words of their proxies and by their silence. A step ends when no cell is awaited any
more: with what came, if anything did. A cell that is silent, that refuses, or that has not come
when the others' uploads make a quorum of all, costs its own devices only; it is asked again from
the exchange after it has been heard and holds the job. Only outcomes of the attempt under way count
(`JobCourse.awaits`), and only messages that the state allows. Where an attempt brings too few
uploads it is repeated, at most `retries` times for each exchange, with the same devices and noise.
After that, or where something stands in the way that others must mend, the job pauses with its
round kept; `end` is for what cannot be mended. `watchdog` is the one timer that ends a wait for a
proxy: it starts anew with every sign of it about this job, so that a broadcast or batch may take as
long as it moves.

Courses know nothing of each other. Each has timers of its own, named by its job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_cell import CellCourse, Stand
from edgeveil.protocol.cloud_outgoing import JobEnds
from edgeveil.protocol.cloud_tasks import (
    SILENT,
    Absorb,
    AskChecks,
    AskUnmask,
    Broadcast,
    CellBroadcasts,
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
    TakeBatch,
    TakeChecks,
    TakeMasks,
    TooFewUploads,
    all_declined,
    goes_on,
    timer_name,
)
from edgeveil.protocol.effects import StateTable
from edgeveil.protocol.messages import (
    Ack,
    Arrived,
    Batch,
    BlobPart,
    BlobPut,
    CheckMasks,
    Commit,
    ExchangeId,
    MaskSums,
    Misfits,
    Need,
    Offer,
    Shortfall,
    Signer,
    Unmask,
)
from edgeveil.protocol.transfer import check_fetchable


class CloudState(Enum):
    """Where the cloud stands in the job it runs."""

    IDLE = "idle"
    SEALING_JOB = "sealing_job"
    ANNOUNCING = "announcing"
    SEALING = "sealing"
    BROADCASTING = "broadcasting"
    WAITING = "waiting"
    ABSORBING = "absorbing"
    CHECKING = "checking"
    UNMASKING = "unmasking"
    SEALING_RELEASE = "sealing_release"
    RELEASING = "releasing"


_S = CloudState
_ASKING = (_S.CHECKING, _S.UNMASKING)  # about masks
_WAITING_ON = (_S.ANNOUNCING, *_ASKING, _S.RELEASING)  # nothing else can be done meanwhile
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
        (_S.ABSORBING, "opened"): _S.CHECKING,
        (_S.ABSORBING, "summed"): _S.UNMASKING,
        (_S.CHECKING, "summed"): _S.UNMASKING,
        (_S.SEALING, "summed"): _S.UNMASKING,
        (_S.UNMASKING, "committed"): _S.SEALING,
        (_S.UNMASKING, "committed_last"): _S.SEALING_RELEASE,
        (_S.SEALING_RELEASE, "sealed"): _S.RELEASING,
        (_S.RELEASING, "held"): _S.IDLE,
    }
    | {(s, "repeat"): _S.SEALING for s in (_S.BROADCASTING, _S.WAITING, _S.ABSORBING, _S.CHECKING)}
    | {(s, "rekeyed"): _S.SEALING_JOB for s in (_S.SEALING, _S.BROADCASTING, _S.WAITING)}
    | {(s, how): _S.IDLE for how in ("pause", "end") for s in _RUNNING},
)


_EVALUATIONS = ("evaluate", "cluster")  # phases of what changes no model
_SLOW = "the other cells had a quorum of all devices before it answered"


@dataclass(frozen=True)
class CourseContext:
    """What all courses share: who signs, the bounds, and by cell whom the ends of jobs are told."""

    signer: Signer
    releases: Signer
    settings: CloudSettings
    ends: Mapping[str, JobEnds]


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
        # After the commit under way: the key that announced it is gone.
        self._announce_again = False
        self.cells = {
            cell: CellCourse(
                cell,
                context.signer,
                context.releases,
                context.settings,
                start.job_id,
                alone=len(context.ends) == 1,
            )
            for cell in context.ends
        }

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
        """The task of sealing this attempt's model, for the cells that hold the job."""
        joined = tuple(one.cell for one in self.cells.values() if one.joined)
        return SealRound(self.job_id, self.exchange, self.attempt, joined or tuple(self.cells))

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
            case Absorb(at=at) | TakeChecks(at=at) | TakeMasks(at=at):
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

    def _where(self, *stands: Stand) -> list[CellCourse]:
        return [one for one in self.cells.values() if one.stand in stands]

    # --- its beginning, its end ---

    def begin(self) -> list[fx.Effect]:
        """Have it announced. Raises ProtocolError `illegal_transition` for one that runs."""
        self._step("start")
        what = {"job_id": self.job_id.hex(), "rounds": self.start.exchanges}
        return [self._report("job_started", **what), self._work(self._announcement)]

    @property
    def _announcement(self) -> SealJob:
        return SealJob(self.job_id, tuple(self.cells))

    def cancel(self) -> list[fx.Effect]:
        """The operator ends it."""
        return self._end("cancelled", "cancelled by the operator")

    def rekeyed(self) -> list[fx.Effect]:
        """The cloud speaks with another key: what was signed before is believed no more."""
        if not self._may("rekeyed"):
            # Nothing that was signed is needed any more, or it is offered again with the new key.
            self._announce_again = self.state in (_S.ABSORBING, *_ASKING)
            return [one for cell in self.cells for one in self.send(cell)]
        self.attempt += 1
        return self._announce_anew()

    def _announce_anew(self) -> list[fx.Effect]:
        self._step("rekeyed")
        self._announce_again = False
        return [*self._all_leave(), self._work(self._announcement)]

    def _all_leave(self) -> list[fx.Effect]:
        return [one for cell in self.cells.values() for one in cell.leave()]

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
        ends = self._context.ends.values() if status != "paused" else ()
        return [
            *self._all_leave(),
            fx.Persist(JobStatus(self.job_id, status, reason, answers)),
            *[one for end in ends for one in end.tell(self.job_id, status)],
            self._report("job_" + status, job_id=self.job_id.hex(), reason=reason),
        ]

    # --- the host's work ---

    def done(self, task: object, result: object) -> list[fx.Effect]:
        """An outcome that is awaited."""
        if isinstance(task, SealJob) and self.state is not _S.SEALING_JOB:
            joining = [self.cells[cell] for cell in task.cells if self.cells[cell].joining]
            if joining:
                return self._offer_job(joining, result)
        match result:
            case fx.WorkFailed(reason=reason) | Obstacle(reason=reason) if isinstance(
                task, Absorb | TakeChecks
            ):
                # Not acknowledged: the proxies still have it, and drop it with the next attempt.
                return self._repeat(reason)
            case fx.WorkFailed(reason=reason):
                return self._end("failed", reason)
            case Obstacle(reason=reason):
                return self._pause(reason)
            case CellBroadcasts(by_cell=by_cell):
                return self._sealed(by_cell)
            case RoundCommit(commit=commit, data=data):
                return self._committed(commit, data)
            case AskChecks(checks=checks):
                return self._ask_checks(checks)
            case AskUnmask(unmasks=unmasks, misfits=misfits):
                return [*self._blame(misfits), *self._ask_unmask(unmasks)]
            case TooFewUploads(reason=reason, answers=answers, misfits=misfits):
                told = [one for cell in self.cells.values() for one in cell.arrival.acknowledge()]
                return [*self._blame(misfits), *told, *self._repeat(reason, answers)]
        return []

    def opened(self, task: OpenArrived) -> list[fx.Effect]:
        """The host opened what was there of a stream."""
        return self._at_work(self.cells[task.cell].arrival.opened())

    def _at_work(self, out: list[fx.Effect]) -> list[fx.Effect]:
        """With the place that work of the arrival is about."""
        return [self._work(one.task) if isinstance(one, fx.Work) else one for one in out]

    def _ask_checks(self, checks: Mapping[str, CheckMasks]) -> list[fx.Effect]:
        """Of cells that are not asked the uploads are there, and are not checked one by one."""
        self._step("opened")
        asked = [one for cell, check in checks.items() for one in self.cells[cell].ask(check)]
        return [self._report("checking", round=self.exchange), *asked]

    def _blame(self, misfits: Mapping[str, Misfits]) -> list[fx.Effect]:
        return [self.cells[cell].blame(said) for cell, said in misfits.items()]

    def _ask_unmask(self, unmasks: Mapping[str, Unmask]) -> list[fx.Effect]:
        self._step("summed")
        self.attempt = next(iter(unmasks.values())).at.attempt
        out: list[fx.Effect] = [self._report("unmasking", round=self.exchange)]
        for cell in self.cells.values():
            asked = unmasks.get(cell.cell)
            out += cell.ask(asked) if asked else cell.leave()
        return out

    def _sealed(self, by_cell: Mapping[str, Broadcast]) -> list[fx.Effect]:
        self._step("sealed")
        first = next(iter(by_cell.values())).manifest
        at, kind = first.at, first.kind
        # A job and a release are one broadcast for all cells.
        asked = [one.manifest.selected for one in by_cell.values()]
        selected = sum(asked) if kind == "round" else first.selected
        what = {"round": at.exchange, "kind": kind, "selected": selected, "attempt": at.attempt}
        out: list[fx.Effect] = [self._report("broadcast", **what)]
        for cell in self.cells.values():
            if cell.cell in by_cell:
                out += cell.offer(by_cell[cell.cell])
            elif not cell.joining:
                out += cell.leave()
        return out

    def _committed(self, commit: Commit, data: bytes) -> list[fx.Effect]:
        last = self.exchange >= self.start.exchanges
        self._step("committed_last" if last else "committed")
        out: list[fx.Effect] = []
        for cell in self.cells.values():
            if cell.stand is not Stand.OUT:
                out += cell.tell(commit, data)
            cell.stand = Stand.OUT
        self.retries_left, self.attempt = self.start.retries, 1
        if last:
            return [*out, self._work(SealRelease(self.job_id, tuple(self.cells)))]
        self.exchange += 1
        if self._announce_again:
            return [*out, *self._announce_anew()]
        return [*out, *self._join(), self._work(self.sealing)]

    def _repeat(self, reason: str, answers: RoundAnswers | None = None) -> list[fx.Effect]:
        """Another attempt; one during which a link was down cost no retry, and while it is down
        none is begun."""
        asked = [one for one in self.cells.values() if one.stand is not Stand.OUT]
        if down := next((one.link for one in asked if one.link), ""):
            return self._pause(down, answers)
        outage = any(one.outage for one in asked)
        if self.retries_left <= 0 and not outage:
            return self._pause(reason, answers)
        self._step("repeat")
        self.retries_left -= not outage
        self.attempt += 1
        told = {} if answers is None else {"answers": answers.to_dict()}
        what = {"round": self.exchange, "attempt": self.attempt, "why": reason, **told}
        report = self._report("round_repeated", **what)
        if self._announce_again:
            return [report, *self._announce_anew()]
        left = [one for cell in self.cells.values() if not cell.joining for one in cell.leave()]
        return [*left, report, *self._join(), self._work(self.sealing)]

    # --- cells that come back ---

    def _join(self) -> list[fx.Effect]:
        """Cells that do not hold the job, and were heard: it is sealed for them beside rounds."""
        late = [one for one in self.cells.values() if one.heard and not one.joined]
        late = [one for one in late if not one.joining]
        for cell in late:
            cell.joining = True
        return [self._work(SealJob(self.job_id, tuple(one.cell for one in late)))] if late else []

    def _offer_job(self, joining: list[CellCourse], result: object) -> list[fx.Effect]:
        """What cannot be sealed now is tried again after the next exchange."""
        by_cell = result.by_cell if isinstance(result, CellBroadcasts) else {}
        out: list[fx.Effect] = []
        for cell in joining:
            offered = by_cell.get(cell.cell)
            if offered is None:
                cell.joining = False
            else:
                out += cell.out.offer(offered.manifest, offered.data)
        return out

    # --- what a proxy says ---

    def send(self, cell: str) -> list[fx.Effect]:
        """Say all that is not confirmed (again)."""
        return self.cells[cell].send()

    def linked(self, cell: str, down: str) -> list[fx.Effect]:
        """A link on the way to the cell's devices is `down`, or none is any more."""
        return self.cells[cell].linked(down)

    def silent(self, cell: str) -> bool:
        """Whether a step went on without this cell, as nothing came from its proxy, and still
        nothing has."""
        return self.cells[cell].reason == SILENT and not self.cells[cell].heard

    def heard(self, cell: str) -> None:
        """There is a sign of its proxy."""
        self.cells[cell].heard = True

    def offers(self, cell: str, digest: bytes) -> bool:
        """Whether this is the digest of the broadcast that the cell is offered."""
        return self.cells[cell].out.is_blob(digest)

    def answer(self, cell: str, need: Need, now_s: float) -> list[fx.Effect]:
        """A proxy that asks for parts is there, however long the broadcast takes."""
        of_it = self.cells[cell]
        out = self._at_work(of_it.out.answer(need, now_s))
        return [*out, of_it.wait()] if of_it.stand is Stand.OFFERED else out

    def hears(self, cell: str, ack: Ack) -> bool:
        """Whether the proxy's word is about this job's broadcast, or its question."""
        return ack.blob == self.cells[cell].masks.question or self.offers(cell, ack.blob)

    def acknowledged(self, cell: str, ack: Ack) -> list[fx.Effect]:
        """It holds the broadcast, or will not; or it gives no masks."""
        of_it = self.cells[cell]
        if ack.blob == of_it.masks.question:
            what = "check masks" if self.state is _S.CHECKING else "unmask"
            return self._gone(of_it, f"the proxy refused to {what}: {ack.reason}")
        if of_it.joining:
            of_it.joining, of_it.joined = False, ack.status == "held"
            of_it.out.drop()
            return of_it.rest()
        if of_it.stand is not Stand.OFFERED:
            return []
        if ack.status != "held":
            return self._gone(of_it, f"the proxy refused the broadcast: {ack.reason}")
        sequence = of_it.out.sequence
        out = of_it.hold()
        if self.state is CloudState.RELEASING:
            out = [fx.Persist(ReleaseHeld(sequence, cell)), *out]
        of_it.joined = True
        if not self._may("batch"):
            out += of_it.rest()
        return [*out, *self._move()]

    def takes(self, cell: str, header: Batch) -> bool:
        """Whether this is the batch, or the front of it, of the attempt under way."""
        of_it = self.cells[cell]
        open_to = of_it.stand in (Stand.OFFERED, Stand.HELD, Stand.GONE)
        asked = of_it.manifest is not None and of_it.manifest.at == self.at
        return header.at == self.at and self._may("batch") and open_to and asked

    def batch(
        self, cell: str, offer: Offer, header: Batch, room_bytes: int, now_s: float
    ) -> list[fx.Effect]:
        """The proxy offers a batch; `room_bytes` of the disk are left by others.

        Raises ProtocolError where it cannot be fetched.
        """
        settings, size_bytes = self._context.settings, header.blob.size_bytes
        takes, of_it = self.takes(cell, header), self.cells[cell]
        if takes and size_bytes > settings.spool_bytes:
            # Another attempt would bring as much.
            return self._pause(
                f"the batch has {size_bytes} bytes, limits.spool_bytes is {settings.spool_bytes}"
            )
        check_fetchable(offer, header.blob, settings.spool_bytes)
        if header.at != self.at:
            return [] if self._may_be_summed(header.at) else [of_it.closed(header.blob.digest)]
        if not takes:
            return []  # being absorbed: the acknowledgement follows the commit
        if size_bytes > room_bytes:
            # It is offered again, and other batches go: the proxy is not silent meanwhile.
            return [fx.Refuse("spool_full"), of_it.arrival.watch()]
        return self._arrived(of_it, of_it.arrival.batch(offer, header, now_s))

    def _may_be_summed(self, at: ExchangeId) -> bool:
        """Whether the host may hold sums of this attempt, for which the proxy keeps the seeds."""
        same = at.exchange == self.exchange
        return same and self.state in (_S.SEALING_JOB, _S.ANNOUNCING, _S.SEALING)

    def is_put(self, cell: str, put: BlobPut) -> list[fx.Effect]:
        """The proxy says that the batch lies in the store."""
        return self._at_work(self.cells[cell].arrival.is_put(put))

    def taken(self, task: TakeBatch, result: object) -> list[fx.Effect]:
        """The batch was taken from the store, or what lay there was not it."""
        of_it = self.cells[task.cell]
        return self._arrived(of_it, of_it.arrival.taken(task, result))

    def stream(self, cell: str, arrived: Arrived, room_bytes: int) -> list[fx.Effect]:
        """The front of a batch that is not whole yet. As `BatchArrival.stream`."""
        if arrived.at != self.at or not self._may("batch"):
            return []
        if arrived.blob.size_bytes > room_bytes or not self.cells[cell].awaited:
            return []  # it comes with the batch
        return self._at_work(self.cells[cell].arrival.stream(arrived))

    def knows(self, cell: str, digest: bytes) -> bool:
        """Whether parts of this name belong to it."""
        of_it = self.cells[cell]
        return of_it.masks.knows(digest) or of_it.arrival.knows(digest)

    def part(self, cell: str, part: BlobPart) -> list[fx.Effect]:
        """A part of the batch, or of the sums of masks."""
        of_it = self.cells[cell]
        taken = of_it.masks.part(part)
        if taken is None:
            return self._arrived(of_it, of_it.arrival.part(part))
        return self._unmasked(of_it, taken)

    def masks(self, cell: str, offer: Offer, header: MaskSums) -> list[fx.Effect]:
        """The proxy offers sums of masks. Raises ProtocolError where they cannot be fetched."""
        return self._unmasked(self.cells[cell], self.cells[cell].masks.offer(offer, header))

    def _unmasked(self, cell: CellCourse, out: list[fx.Effect]) -> list[fx.Effect]:
        if cell.masks.masks is None or cell.stand is not Stand.ASKED:
            return out
        return [*out, *cell.come(), *self._move()]

    def _arrived(self, cell: CellCourse, out: list[fx.Effect]) -> list[fx.Effect]:
        out = self._at_work(out)
        if cell.batch is None or not self.takes(cell.cell, cell.batch):
            return out
        return [*out, *cell.come(), *self._move()]

    def short(self, cell: str, short: Shortfall) -> list[fx.Effect]:
        """The round ended at the proxy below the floor."""
        of_it = self.cells[cell]
        waits = of_it.stand in (Stand.OFFERED, Stand.HELD)
        if short.at != self.at or not self._may("batch") or not waits:
            return []
        return [*of_it.fall_short(short), *self._move()]

    # --- where the cells stand ---

    def _gone(self, cell: CellCourse, reason: str) -> list[fx.Effect]:
        """The step goes on without it, if there are others."""
        out = cell.go(reason)
        cell.joined = cell.heard = False
        if len(self.cells) > 1:
            out.append(self._report("cell_gone", round=self.exchange, why=reason, **cell.about()))
        return [*out, *self._move()]

    def _move(self) -> list[fx.Effect]:
        """The step ends once no cell is awaited."""
        if self._may("batch"):
            return self._round_moves()
        waits_for = Stand.ASKED if self.state in _ASKING else Stand.OFFERED
        if self.state not in _WAITING_ON or self._where(waits_for):
            return []
        if self.state is _S.CHECKING:
            came = self._where(Stand.CAME)
            checks = {one.cell: one.masks.masks for one in came}
            there = {cell: of_it for cell, of_it in checks.items() if of_it is not None}
            return [self._work(TakeChecks(self.at, there))] if came else self._repeat(self._why())
        if self.state is _S.UNMASKING:
            masks = {one.cell: one.masks.masks for one in self._where(Stand.CAME)}
            there = {cell: of_it for cell, of_it in masks.items() if of_it is not None}
            return [self._work(TakeMasks(self.at, there))] if there else self._pause(self._why())
        if not self._where(Stand.HELD):
            return self._pause(self._why())
        if self.state is _S.RELEASING:
            self._step("held")
            return self._leave("completed", "")
        # A job may be taken up again after its last commit and before its release.
        trained = self.exchange > self.start.exchanges
        self._step("held_all_committed" if trained else "held")
        self.retries_left = self.start.retries
        held = self._report("held", round=self.exchange)
        if trained:
            return [held, self._work(SealRelease(self.job_id, tuple(self.cells)))]
        return [held, self._work(self.sealing)]

    def _why(self) -> str:
        """Why no cell has what the step needs: a refusal says more than silence."""
        reasons = [one.reason for one in self._where(Stand.GONE)]
        return next((one for one in reasons if one != SILENT), SILENT)

    def _round_moves(self) -> list[fx.Effect]:
        out: list[fx.Effect] = []
        offered, held = self._where(Stand.OFFERED), self._where(Stand.HELD)
        if held and not offered and self._may("held"):
            self._step("held")
            out.append(self._report("held", round=self.exchange))
        came = self._where(Stand.CAME)
        if not offered and not held:
            return [*out, *(self._absorb(came) if came else self._nothing_came())]
        if came and self._quorum(came):
            grace_s = max(one.manifest.grace_s for one in came if one.manifest)
            out.append(fx.SetTimer(timer_name("enough", self.job_id), grace_s))
        return out

    def _quorum(self, came: list[CellCourse]) -> bool:
        """Whether what came is enough of all that were asked, in all cells."""
        asked = [one.manifest for one in self.cells.values() if one.stand is not Stand.OUT]
        needed = sum(one.quorum for one in asked if one is not None)
        return sum(one.batch.uploads for one in came if one.batch) >= needed

    def _absorb(self, came: list[CellCourse]) -> list[fx.Effect]:
        batches = {one.cell: one.batch for one in came if one.batch is not None}
        self._step("batch")
        uploads = sum(batch.uploads for batch in batches.values())
        report = self._report("batch", round=self.exchange, uploads=uploads)
        cancel = fx.CancelTimer(timer_name("enough", self.job_id))
        return [report, cancel, self._work(Absorb(batches))]

    def _nothing_came(self) -> list[fx.Effect]:
        short = [one.shortfall for one in self.cells.values() if one.stand is Stand.SHORT]
        if not short:
            why = self._why()
            return self._repeat(why) if goes_on(why) else self._pause(why)
        asked = [one.manifest for one in self.cells.values() if one.stand is not Stand.OUT]
        selected = sum(one.selected for one in asked if one is not None)
        answers = RoundAnswers.of(selected, [one for one in short if one is not None])
        if self.attempt == 1 and answers.ends_job(self.exchange):
            # Asking again would change no owner's mind, or nothing was paid for yet.
            why = all_declined(answers)
            if any(one is not None and one.phase in _EVALUATIONS for one in asked):
                return self._pause(why)  # what was learned is not given up for want of figures
            told = {"declined": answers.declined, "causes": dict(answers.causes)}
            report = self._report("all_declined", round=self.exchange, **told)
            return [report, *self._end("failed", why)]
        return self._repeat(f"{answers}: below the minimum", answers)

    # --- timers ---

    def timer(self, what: str, cell: str) -> list[fx.Effect]:
        """One of its own ran out."""
        if what == "enough":
            return self._close()
        of_it = self.cells[cell]
        match what:
            case "resend":
                return of_it.out.send()
            case "repair":
                return self._at_work(of_it.arrival.look())
            case "unmask":
                return of_it.masks.send()
            case "watchdog":
                return self._silent(of_it) if of_it.awaited else []
        return []

    def _close(self) -> list[fx.Effect]:
        """The others make a quorum: who has not come is not waited for."""
        if not self._may("batch"):
            return []
        out: list[fx.Effect] = []
        for slow in self._where(Stand.OFFERED, Stand.HELD):
            out += self._gone(slow, _SLOW)
        return out

    def _silent(self, cell: CellCourse) -> list[fx.Effect]:
        """The same is offered or asked on, unless others answered; each further wait takes one of
        the retries. A round is not waited for twice."""
        others = self._where(Stand.HELD, Stand.CAME)
        if self.state not in _WAITING_ON or others or self.retries_left <= 0 or cell.link:
            return self._gone(cell, cell.link or SILENT)
        waiting = self._where(Stand.OFFERED, Stand.ASKED)
        self.retries_left -= cell is waiting[0]
        return [*cell.out.send(), cell.arrival.watch()]
