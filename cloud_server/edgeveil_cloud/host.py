"""What the cloud's process does for its machine: seal, commit, release, record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from edgeveil.data.records import Records
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.protocol import effects as fx
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.cloud_tasks import (
    RESUME,
    Absorb,
    BatchDropped,
    BatchPart,
    CountReports,
    JobStatus,
    Obstacle,
    OpenArrived,
    ReleaseHeld,
    RosterKept,
    RosterMark,
    RosterRefused,
    SealJob,
    SealPublication,
    SealRelease,
    SealRound,
    TakeMasks,
    job_of,
    pause_advice,
)
from edgeveil.protocol.messages import KNOWS_BUCKETS, KNOWS_RECORDS
from edgeveil.protocol.sealed import Sealing
from edgeveil.sites.cloud import ReleaseValidity
from edgeveil_cloud.broadcasts import (
    BroadcastLimits,
    Choose,
    MarksOfJobs,
    Sealer,
    TooFewDevices,
    TooManyDevices,
    UnknownAdmissions,
    draw,
)
from edgeveil_cloud.commit_round import RoundCommitter
from edgeveil_cloud.evaluation import Evaluation
from edgeveil_cloud.round_report import Recorder, job_summary
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import StoreError
from edgeveil_cloud.stored_jobs import StoredJobs
from edgeveil_cloud.validate_batch import BatchSpool

LOG = logging.getLogger("edgeveil.cloud")
EVENTS = ("job_started", "batch", "round_repeated", "all_declined")  # what a job's events tell
MARKS = ("held", "batch")  # of a round's phases

_NAMED = 5  # paused jobs in a reason


class CloudHost:
    """The cloud's work; everything it decides is in the store before the machine goes on.

    `spool_dir` holds the batches under way (None: the system's folder for temporary files).
    `random_bytes` is what aggregation rules draw from; a release is stale after `valid_s`.
    """

    def __init__(
        self,
        store: Store,
        test: Records | None,
        limits: BroadcastLimits,
        *,
        spool_dir: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        sealing: Sealing = real_sealing,
        choose: Choose = draw,
        recorder: Recorder | None = None,
        random_bytes: RandomBytes = os_random,
        valid_s: float = ReleaseValidity().valid_s,
    ) -> None:
        self._store, self._clock = store, clock
        self.jobs = StoredJobs(store)
        self._spool_dir = spool_dir
        self._spools: dict[bytes, BatchSpool] = {}  # of each job, its batch under way
        self._marks = MarksOfJobs()
        evaluation = self.evaluation = Evaluation(test)
        self.limits = limits
        self._sealer = Sealer(
            store, self.jobs, evaluation, limits, self._marks, clock, sealing, choose, valid_s
        )
        self._committer = RoundCommitter(
            store,
            self.jobs,
            evaluation,
            self._marks,
            clock,
            sealing,
            recorder,
            limits.part_bytes,
            random_bytes,
        )
        self._all_declined: set[bytes] = set()  # jobs whose last round it was
        self._advised: dict[bytes, str] = {}  # the last reason that came with its own way out

    def store(self, item: object) -> None:
        """Durable before the next effect; a batch's parts are on the disk, and need not last."""
        match item:
            case BatchPart(job_id=job_id):
                self._spool_of(job_id).put(item)
            case BatchDropped(job_id=job_id):
                self._spools.pop(job_id, None)
            case RosterKept(keys=keys) as roster:
                self._store.set_enrolled({keys[i : i + 32] for i in range(0, len(keys), 32)})
                self._store.take_roster(RosterMark(roster.lineage, roster.epoch), roster.expires_s)
                self._sealer.buckets = roster.knows >= KNOWS_BUCKETS
                self._committer.in_pieces = roster.knows >= KNOWS_RECORDS
            case RosterRefused(reason=reason, lineage=lineage):
                self._store.refuse_roster(reason, lineage)
            case ReleaseHeld(sequence=sequence):
                self._store.rollouts.held(sequence)
            case JobStatus():
                self._left(item)

    def _left(self, left: JobStatus) -> None:
        entry, job_id = self.jobs.entry(left.job_id), left.job_id
        self._marks.forget(job_id)
        self._sealer.forget(entry.id)
        advised, all_declined = self._advised.pop(job_id, ""), job_id in self._all_declined
        self._all_declined.discard(job_id)
        if entry.ended:
            return
        if left.status == "paused":
            why = f"{self._why(left.reason)}; {self._next_step(entry.id, left.reason, advised)}"
            answers = {"answers": left.answers.to_dict()} if left.answers else None
            self._store.set_status(entry.id, "paused", why, answers)
            return
        plan = self.jobs.plan(entry)
        reason = left.reason or (plan.stop_note if left.status == "completed" else "")
        data = job_summary(self._store, plan, entry.id, all_declined)
        self._store.set_status(entry.id, left.status, reason, data)  # type: ignore[arg-type]

    def _why(self, reason: str) -> str:
        """With the jobs that fill the proxy's cache, if that is the reason."""
        paused = [entry.id for entry in self._store.jobs() if entry.status == "paused"]
        if "cache_full" not in reason or not paused:
            return reason
        named = ", ".join(paused[:_NAMED]) + ", …" * (len(paused) > _NAMED)
        return f"{reason}; paused jobs keep their broadcasts there, resume or cancel them: {named}"

    def _next_step(self, job: str, reason: str, advised: str) -> str:
        """What its operator does; a reason that says its own way out needs no other."""
        first = "" if advised == reason else f"{pause_advice(reason)}, "
        return f"{first}{RESUME}{job}"

    def together(self) -> AbstractContextManager[None]:
        """Its few stores are each durable at once."""
        return nullcontext()

    def report(self, report: fx.Report) -> None:
        """Into the log, and into the job's events where a person follows the job."""
        data: Mapping[str, Any] = report.data
        LOG.info(report.what, extra=dict(data))
        if report.at is None:
            return
        job_id = report.at.job_id
        if report.what in EVENTS:
            self._store.append_event(self.jobs.name(job_id), report.what, dict(data))
        if report.what in MARKS:
            self._marks.of(job_id).times_s[report.what] = self._clock()
        if report.what == "all_declined":
            self._all_declined.add(job_id)

    def _spool_of(self, job_id: bytes) -> BatchSpool:
        return self._spools.setdefault(job_id, BatchSpool(self._spool_dir))

    def perform(self, task: object) -> object:
        """Do one task of a running job. What may be different later is `Obstacle`."""
        try:
            return self._perform(task)
        except (TooFewDevices, TooManyDevices, UnknownAdmissions, StoreError) as error:
            self._advised[job_of(task) or b""] = str(error) if error.fix else ""
            return Obstacle(str(error))
        except OSError as error:
            return Obstacle(f"the disk cannot be used ({error.strerror or type(error).__name__})")

    def _perform(self, task: object) -> object:
        match task:
            case SealJob(job_id=job_id):
                return self._sealer.job(self.jobs.entry(job_id))
            case SealRound():
                return self._sealer.round(task)
            case Absorb(batch=batch):
                spooled = self._spool_of(batch.at.job_id)
                return self._committer.commit(
                    batch, lambda: spooled.whole(batch.blob, batch.stream)
                )
            case OpenArrived(batch=batch):
                spooled = self._spool_of(batch.at.job_id)
                if (under_way := spooled.under_way) is not None:
                    self._committer.open_arrived(batch, under_way)
                return None
            case TakeMasks():
                return self._committer.finish(task)
            case SealRelease(job_id=job_id):
                return self._sealer.release(self.jobs.entry(job_id))
            case SealPublication(job_id=job_id):
                return self._sealer.publication(self.jobs.entry(job_id))
            case CountReports():
                return self._sealer.count_reports(task)
        return fx.WorkFailed("unknown task")
