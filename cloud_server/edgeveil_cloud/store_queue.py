"""The job queue of the cloud's store: submitted, taken up, moved on, ended."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from edgeveil_cloud import store_schema as tables
from edgeveil_cloud.store_engine import forget_old_pages
from edgeveil_cloud.store_journal import Journal
from edgeveil_cloud.store_records import Counts, JobEntry, Status, StoreError
from edgeveil_cloud.store_rows import count_rows, find_row, has_row, job_of, write_status
from edgeveil_cloud.store_transaction import transaction


class JobQueue(Journal):
    """The jobs of the store that it is a part of, with their events."""

    def submit_job(
        self, name: str, canonical: bytes, digest: bytes, *, queue_limit: int = 100
    ) -> JobEntry:
        """Queue a job under a new id. StoreError if `queue_limit` jobs already wait."""
        # Drawn outside, so that a commit whose answer was lost is found when it is tried again.
        job = f"{name}-{secrets.token_hex(4)}"
        return self._submit(job, name, canonical, digest, queue_limit)

    @transaction
    def _submit(
        self,
        db: sa.Connection,
        job: str,
        name: str,
        canonical: bytes,
        digest: bytes,
        queue_limit: int,
    ) -> JobEntry:
        if has_row(db, job):
            return job_of(find_row(db, job))
        waiting = sa.select(sa.func.count()).where(tables.jobs.c.status == "queued")
        if int(db.scalar(waiting) or 0) >= queue_limit:
            raise StoreError(
                f"{queue_limit} jobs are waiting already",
                where="limits.jobs_queued",
                fix="wait, or cancel one with edgeveil job cancel",
            )
        db.execute(
            tables.jobs.insert().values(
                id=job,
                name=name,
                canonical=canonical,
                digest=digest,
                status="queued",
                reason="",
                submitted_at=self._now_s(),
            )
        )
        self._event(db, job, "job_submitted", {"name": name})
        return job_of(find_row(db, job))

    @transaction
    def next_job(self, db: sa.Connection) -> JobEntry | None:
        """The job to work on: one that was running (after a restart), else the oldest queued."""
        table = tables.jobs
        query = (
            sa.select(table)
            .where(table.c.status.in_(("queued", "running")))
            .order_by(sa.case((table.c.status == "running", 0), else_=1), table.c.number)
        )
        row = db.execute(query.limit(1)).mappings().first()
        return job_of(row) if row else None

    @transaction
    def jobs(self, db: sa.Connection) -> tuple[JobEntry, ...]:
        """All jobs, oldest first."""
        rows = db.execute(sa.select(tables.jobs).order_by(tables.jobs.c.number)).mappings()
        return tuple(job_of(row) for row in rows)

    @transaction
    def job_names(self, db: sa.Connection) -> tuple[str, ...]:
        """The ids of all jobs, oldest first."""
        return tuple(db.scalars(sa.select(tables.jobs.c.id).order_by(tables.jobs.c.number)))

    @transaction
    def counts(self, db: sa.Connection) -> Counts:
        """How many devices are enrolled, and how many jobs have each status; cheap."""
        return count_rows(db)

    @transaction
    def job(self, db: sa.Connection, job: str) -> JobEntry:
        """One job; UnknownJob if there is none."""
        return job_of(find_row(db, job))

    def set_status(
        self, job: str, status: Status, reason: str = "", data: Mapping[str, Any] | None = None
    ) -> JobEntry:
        """Move a job on, as TRANSITIONS allows; StoreError otherwise, and nothing changes.

        Nothing is left to do where it has this status for this reason already.
        Writes the event `job_<status>` with `data` and the reason. The end of a job also deletes
        its round keys.
        """
        said = {"reason": reason} if reason else {}
        after = self._move(job, status, reason, f"job_{status}", {**said, **(data or {})})
        if after.ended:
            self._forget()
        return after

    def cancel(self, job: str, reason: str = "cancelled by its owner") -> JobEntry:
        """Cancel a job that has not ended; StoreError otherwise."""
        entry = self.job(job)
        if entry.ended:
            raise StoreError(f"job '{job}' is {entry.status} already", fix="submit it again")
        return self.set_status(job, "cancelled", reason)

    def resume(self, job: str) -> JobEntry:
        """Let a paused job wait for its turn again; StoreError for any other."""
        status = self.job(job).status
        if status != "paused":
            raise StoreError(f"job '{job}' is {status}: only a paused one can be resumed")
        return self._move(job, "queued", "", "job_resumed", {})

    @transaction
    def _move(
        self,
        db: sa.Connection,
        job: str,
        status: Status,
        reason: str,
        event: str,
        data: Mapping[str, Any],
    ) -> JobEntry:
        if write_status(db, job, status, reason, self._now_s()):
            self._event(db, job, event, data)
        return job_of(find_row(db, job))

    def _forget(self) -> None:
        with self._lock:
            forget_old_pages(self._engine)
