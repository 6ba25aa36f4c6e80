"""The effects of the cloud's machine: seal, commit, release, record."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from edgeveil.data.records import Records
from edgeveil.evaluation.clustering import load_libraries
from edgeveil.protocol import cloud_job as ct
from edgeveil.protocol import cloud_reasons as reasons
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import (
    CountReports,
    RosterKept,
    RosterMark,
    RosterRefused,
    SealPublication,
    job_of,
)
from edgeveil.protocol.messages import Batch
from edgeveil.protocol.transfer import GrantPut, PutTaken, ShowBlob
from edgeveil.transport.blob_store import OpenBlobStore, taken
from edgeveil_cloud.broadcasts import BroadcastLimits, CloudWork, Sealer, TemporaryFailure
from edgeveil_cloud.commit_round import RoundCommitter
from edgeveil_cloud.compute.processes import ComputeError
from edgeveil_cloud.evaluation import HeldTests
from edgeveil_cloud.round_report import job_summary
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import StoreAway, StoreError
from edgeveil_cloud.validate_batch import BatchSpool, SpooledBatch

LOG = logging.getLogger("edgeveil.cloud")
EVENTS = ("job_started", "batch", "round_repeated", "all_declined")  # stored as a job's events
MARKS = ("held", "batch")  # reports timed as a round's phases

_USED_UP = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # not disk errors


class CloudHost:
    """Performs the cloud's work; decisions are stored before the machine continues.

    `spool_dir` (default: the system's temporary folder) holds batches; `moved` returns devices'
    cells; `not_trusted` why releases would be refused, or "". Others are as in `CloudWork`."""

    def __init__(
        self,
        store: Store,
        test: Records | HeldTests | None,
        limits: BroadcastLimits,
        *,
        spool_dir: Path | None = None,
        moved: Callable[[], Mapping[bytes, str]] = dict,
        blobs: OpenBlobStore | None = None,
        not_trusted: Callable[[], str] = str,
        **more: Any,
    ) -> None:
        work = CloudWork(store, test, limits, **more)
        self._blobs, self._not_trusted, self._moved = blobs, not_trusted, moved
        self.spare: Callable[[Callable[[], None]], object] = bool  # runs a call early
        self._store, self._clock, self._marks = store, work.clock, work.marks
        self.jobs, self.evaluation, self.limits = work.jobs, work.evaluation, limits
        self._spool_dir = spool_dir
        self._spools: dict[tuple[bytes, str], BatchSpool] = {}  # of each job in each cell
        self._knows, self.checks_masks = work.knows, work.checks_masks
        self._sealer, self._committer = Sealer(work), RoundCommitter(work)
        self._all_declined: set[bytes] = set()  # jobs whose last round all devices declined
        self._advised: dict[bytes, str] = {}  # last reason that includes its own fix

    def store(self, item: object) -> None:
        """Store an item durably; parts of a batch need not survive a crash."""
        match item:
            case ct.BatchPart(job_id=job_id, cell=cell):
                self._spool_of(job_id, cell).put(item)
            case ct.BatchDropped(job_id=job_id, cell=cell):
                self._spools.pop((job_id, cell), None)
            case RosterKept():
                self._take_roster(item)
            case RosterRefused(reason=reason, lineage=lineage, cell=cell):
                newer = self._store.is_newer_roster(item.expires_s, cell)
                if reason != "replayed_roster" or newer:
                    self._store.refuse_roster(reason, lineage, cell)
            case ct.ReleaseHeld(sequence=sequence, cell=cell):
                self._store.rollouts.held(sequence, cell)
            case ct.JobStatus():
                self._left(item)

    def _take_roster(self, roster: RosterKept) -> None:
        keys, cell = roster.keys, roster.cell
        enrolled = {keys[i : i + 32] for i in range(0, len(keys), 32)}
        claimed = self._store.set_enrolled(enrolled, cell, self._moved())
        mark = RosterMark(roster.lineage, roster.epoch)
        self._store.take_roster(mark, roster.expires_s, cell)
        self._knows[cell] = roster.knows
        if claimed:
            data = {"cell": cell, "devices": claimed}
            LOG.warning("devices_of_another_cell_are_claimed", extra=data)

    def _left(self, left: ct.JobStatus) -> None:
        entry, job_id = self.jobs.entry(left.job_id), left.job_id
        self._marks.pop(job_id, None)
        self._sealer.forget(entry.id)
        self._committer.forget(job_id)
        advised, all_declined = self._advised.pop(job_id, ""), job_id in self._all_declined
        self._all_declined.discard(job_id)
        if entry.ended:
            return
        if left.status == "paused":
            why = f"{left.reason}; {self._next_step(entry.id, left.reason, advised)}"
            answers = {"answers": left.answers.to_dict()} if left.answers else None
            self._store.set_status(entry.id, "paused", why, answers)
            return
        data = job_summary(self._store, self.jobs.plan(entry), entry.id, all_declined)
        self._store.set_status(entry.id, left.status, left.reason, data)  # type: ignore[arg-type]

    def _next_step(self, job: str, reason: str, advised: str) -> str:
        if advised == reason:
            return f"{reasons.RESUME}{job}"
        advice = reasons.pause_advice(reason)
        return f"{advice}, {reasons.RESUME}{job}" if reasons.resume_follows(advice) else advice

    together = nullcontext  # no transaction over the effects of one step

    def report(self, report: fx.Report) -> None:
        data: Mapping[str, Any] = report.data
        LOG.info(report.kind, extra=dict(data))
        if report.at is None:
            return
        job_id = report.at.job_id
        if report.kind in EVENTS:
            self._store.append_event(self.jobs.name(job_id), report.kind, dict(data))
        if report.kind in MARKS:
            self._marks[job_id].times_s[report.kind] = self._clock()
        if report.kind == "all_declined":
            self._all_declined.add(job_id)

    def _lacks_checks(self, task: ct.SealJob | ct.SealRound) -> bool:
        """Return whether one wrong mask could end this job, at the expense of all other devices."""
        masked = self.jobs.plan(self.jobs.entry(task.job_id)).job.aggregation.secure
        return masked and not self.checks_masks(task.cells)

    def _spool_of(self, job_id: bytes, cell: str) -> BatchSpool:
        return self._spools.setdefault((job_id, cell), BatchSpool(self._spool_dir))

    def perform(self, task: object) -> object:
        """Do one task of a running job; return `Obstacle` for a failure that may pass."""
        try:
            return self._perform(task)
        except StoreAway as error:
            return ct.Obstacle(f"{reasons.STORE} ({error.what})")
        except (TemporaryFailure, StoreError, ComputeError) as error:
            self._advised[job_of(task) or b""] = str(error) if error.fix else ""
            return ct.Obstacle(str(error))
        except OSError as error:
            what = reasons.USED_UP if error.errno in _USED_UP else reasons.DISK
            return ct.Obstacle(f"{what} ({error.strerror or type(error).__name__})")
        except MemoryError:
            return ct.Obstacle(reasons.MEMORY)

    def _take(self, blobs: OpenBlobStore, task: ct.TakeBatch) -> PutTaken:
        job_id, blob, offset = task.batch.at.job_id, task.batch.blob, 0
        spool = self._spool_of(job_id, task.cell)
        for block in taken(blobs, task.name, blob):
            spool.put(ct.BatchPart(blob.digest, offset, block, job_id, task.cell))
            offset += len(block)
        return PutTaken()

    def _perform(self, task: object) -> object:
        match task:
            case ct.SealJob() if reason := self._not_trusted():
                return ct.Obstacle(reason)
            case ct.SealJob() | ct.SealRound() if self._lacks_checks(task):
                return ct.Obstacle(reasons.EARLIER)
            case ct.SealJob(job_id=job_id, cells=cells):
                return self._sealer.job(self.jobs.entry(job_id), cells)
            case ct.SealRound():
                if self.jobs.plan(self.jobs.entry(task.job_id)).job.infer_every:
                    self.spare(load_libraries)
                return self._sealer.round(task)
            case ct.Absorb(batches=batches):
                return self._committer.commit(batches, self._whole)
            case ShowBlob() if self._blobs:
                return self._blobs.show(task)
            case GrantPut() if self._blobs:
                return self._blobs.grant(task)
            case ct.TakeBatch() if self._blobs:
                return self._take(self._blobs, task)
            case ct.OpenArrived(batch=batch, cell=cell):
                spooled = self._spool_of(batch.at.job_id, cell)
                if (under_way := spooled.under_way) is not None:
                    self._committer.open_arrived(batch, under_way, cell)
                return None
            case ct.TakeChecks():
                return self._committer.check(task)
            case ct.TakeMasks():
                return self._committer.finish(task)
            case ct.SealRelease(job_id=job_id, cells=cells):
                return self._sealer.release(self.jobs.entry(job_id), cells)
            case SealPublication(job_id=job_id, cells=cells):
                return self._sealer.publication(self.jobs.entry(job_id), cells)
            case CountReports():
                return self._sealer.count_reports(task)
        return fx.WorkFailed("unknown task")

    def _whole(self, cell: str, batch: Batch) -> SpooledBatch:
        return self._spool_of(batch.at.job_id, cell).whole(batch.blob, batch.stream)
