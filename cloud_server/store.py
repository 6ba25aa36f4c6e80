"""The cloud's durable memory: jobs, rounds, states, events, keys. SQLAlchemy Core.

Each method is one transaction. Everything a round changes is committed by `commit_exchange`
at once, so a crash at any point resumes at the last committed exchange.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import sqlalchemy as sa

from cloud_server import store_schema as tables
from cloud_server.store_engine import MEMORY, forget_old_pages, open_engine
from cloud_server.store_records import (
    ENDED,
    TRANSITIONS,
    ExchangeRecord,
    JobEntry,
    LastCommit,
    Status,
    StoredEvent,
    StoredRelease,
    StoreError,
)
from cloud_server.store_rows import (
    absorbed_in,
    exchange_of,
    find_backbone,
    find_row,
    job_of,
    last_commit,
    round_key,
    write_backbone,
    write_commit,
)


class Store:
    """Opened by URL: `sqlite:///state/cloud.db`, `sqlite://` (memory), `postgresql://…`.

    Safe to share between the threads of one process. Raises StoreError if the database cannot
    be opened or was written by a newer version.
    """

    def __init__(self, url: str = MEMORY, *, now_s: Callable[[], float] = time.time) -> None:
        self._engine = open_engine(url)
        self._now_s, self._lock = now_s, threading.RLock()
        with self._begin() as db:
            tables.metadata.create_all(db)
            version = db.scalar(sa.select(tables.info.c.version))
            if version is None:
                db.execute(tables.info.insert().values(version=tables.VERSION))
            elif version != tables.VERSION:
                raise StoreError(
                    f"the store has version {version}, this program knows {tables.VERSION}",
                    fix="install the version that wrote it, or choose another store_url",
                )

    def close(self) -> None:
        """Release the database; the store cannot be used afterwards."""
        with self._lock:
            self._engine.dispose()

    def submit_job(
        self, name: str, canonical: bytes, digest: bytes, *, queue_limit: int = 100
    ) -> JobEntry:
        """Queue a job under a new id. StoreError if `queue_limit` jobs already wait."""
        job = f"{name}-{secrets.token_hex(4)}"
        with self._begin() as db:
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

    def next_job(self) -> JobEntry | None:
        """The job to work on: one that was running (after a restart), else the oldest queued."""
        table = tables.jobs
        query = (
            sa.select(table)
            .where(table.c.status.in_(("queued", "running")))
            .order_by(sa.case((table.c.status == "running", 0), else_=1), table.c.number)
        )
        with self._begin() as db:
            row = db.execute(query.limit(1)).mappings().first()
            return job_of(row) if row else None

    def jobs(self) -> tuple[JobEntry, ...]:
        """All jobs, oldest first."""
        with self._begin() as db:
            rows = db.execute(sa.select(tables.jobs).order_by(tables.jobs.c.number)).mappings()
            return tuple(job_of(row) for row in rows)

    def job(self, job: str) -> JobEntry:
        """One job; UnknownJob if there is none."""
        with self._begin() as db:
            return job_of(find_row(db, job))

    def set_status(
        self, job: str, status: Status, reason: str = "", data: Mapping[str, Any] | None = None
    ) -> JobEntry:
        """Move a job on, as TRANSITIONS allows; StoreError otherwise, and nothing changes.

        Writes the event `job_<status>` with `data` and the reason. The end of a job also deletes
        its round keys.
        """
        with self._begin() as db:
            before = job_of(find_row(db, job))
            if status not in TRANSITIONS[before.status]:
                raise StoreError(
                    f"job '{job}' is {before.status} and cannot become {status}",
                    fix="submit it again" if before.ended else "",
                )
            values: dict[str, Any] = {"status": status, "reason": reason}
            if status == "running" and before.started_at is None:
                values["started_at"] = self._now_s()
            if status in ENDED:
                values["ended_at"] = self._now_s()
                db.execute(tables.round_keys.delete().where(tables.round_keys.c.job == job))
            db.execute(tables.jobs.update().where(tables.jobs.c.id == job).values(values))
            said = {"reason": reason} if reason else {}
            self._event(db, job, f"job_{status}", {**said, **(data or {})})
            after = job_of(find_row(db, job))
        if after.ended:
            self._forget()
        return after

    def cancel(self, job: str, reason: str = "cancelled by its owner") -> JobEntry:
        """Cancel a queued or running job; StoreError if it has ended."""
        return self.set_status(job, "cancelled", reason)

    def commit_exchange(
        self,
        job: str,
        record: ExchangeRecord,
        state: bytes,
        events: Sequence[tuple[str, Mapping[str, Any]]] = (),
        accepted: Sequence[bytes] = (),
        batch_digest: bytes | None = None,
    ) -> bool:
        """Commit one exchange in a single transaction; False if it was committed before.

        `state` is the method's state after it (safetensors; only the newest is kept),
        `accepted` the SHA-256 of each ciphertext counted, `batch_digest` marks the proxy's batch
        as absorbed, `events` are (type, data). Deletes the round keys of this exchange and all
        before it. Raises StoreError for a job that does not run, an exchange that is not the
        next one, or a batch that another exchange has absorbed.
        """
        with self._begin() as db:
            done = write_commit(db, job, record, state, accepted, batch_digest, self._now_s)
            if not done:
                return False
            for kind, data in events:
                self._event(db, job, kind, data)
        self._forget()
        return True

    def last_commit(self, job: str) -> LastCommit | None:
        """Where to resume; None before the first commit."""
        with self._begin() as db:
            return last_commit(db, job)

    def exchanges(self, job: str) -> tuple[ExchangeRecord, ...]:
        """All committed exchanges of a job, in order."""
        table = tables.exchanges
        query = sa.select(table).where(table.c.job == job).order_by(table.c.index)
        with self._begin() as db:
            return tuple(exchange_of(row) for row in db.execute(query).mappings())

    def batch_absorbed(self, job: str, batch_digest: bytes) -> bool:
        """True if this batch already stands in a committed exchange."""
        with self._begin() as db:
            return absorbed_in(db, job, batch_digest) is not None

    def append_event(self, job: str | None, kind: str, data: Mapping[str, Any]) -> StoredEvent:
        """Store one event; `data` is JSON-able and holds no secret and no device's name."""
        with self._begin() as db:
            return self._event(db, job, kind, data)

    def events_after(
        self, seq: int, job: str | None = None, limit: int = 1000
    ) -> tuple[StoredEvent, ...]:
        """Up to `limit` events with a larger number than `seq`, of one job or of all."""
        table = tables.events
        query = sa.select(table).where(table.c.seq > seq).order_by(table.c.seq).limit(limit)
        if job is not None:
            query = query.where(table.c.job == job)
        with self._begin() as db:
            return tuple(StoredEvent(**row) for row in db.execute(query).mappings())

    def put_round_key(self, job: str, exchange: int, attempt: int, secret: bytes) -> None:
        """Keep a round's secret HPKE key until its commit; StoreError if another one is kept."""
        with self._begin() as db:
            kept = round_key(db, job, exchange, attempt)
            if kept is None:
                db.execute(
                    tables.round_keys.insert().values(
                        job=job, exchange=exchange, attempt=attempt, secret=secret
                    )
                )
            elif not secrets.compare_digest(kept, secret):
                raise StoreError(f"exchange {exchange}, attempt {attempt} has another round key")

    def round_key(self, job: str, exchange: int, attempt: int) -> bytes | None:
        """The round's secret key; None after the commit."""
        with self._begin() as db:
            return round_key(db, job, exchange, attempt)

    def set_enrolled(self, keys: Collection[bytes]) -> None:
        """Make exactly these public keys the enrolled ones, in one transaction."""
        table = tables.enrolled_keys
        new, now = set(keys), self._now_s()
        with self._begin() as db:
            old = {bytes(key) for key in db.scalars(sa.select(table.c.public_key))}
            for key in old - new:
                db.execute(table.delete().where(table.c.public_key == key))
            added = [{"public_key": key, "added_at": now} for key in sorted(new - old)]
            if added:
                db.execute(table.insert(), added)

    def enrolled(self) -> tuple[bytes, ...]:
        """All enrolled public keys, in the order of their bytes, which says nothing."""
        column = tables.enrolled_keys.c.public_key
        with self._begin() as db:
            return tuple(sorted(bytes(key) for key in db.scalars(sa.select(column))))

    def put_release(self, job: str, onnx: bytes, safetensors: bytes) -> None:
        """Keep a job's final model; a second call replaces it."""
        table = tables.releases
        with self._begin() as db:
            find_row(db, job)
            db.execute(table.delete().where(table.c.job == job))
            db.execute(table.insert().values(job=job, onnx=onnx, safetensors=safetensors))

    def release(self, job: str) -> StoredRelease | None:
        """A job's final model; None as long as there is none."""
        table = tables.releases
        with self._begin() as db:
            row = db.execute(sa.select(table).where(table.c.job == job)).mappings().first()
        if row is None:
            return None
        return StoredRelease(job, bytes(row["onnx"]), bytes(row["safetensors"]))

    def put_backbone(self, graph: bytes) -> str:
        """Keep a feature extractor under its SHA-256 (hex), which is returned; twice is once."""
        with self._begin() as db:
            return write_backbone(db, graph)

    def backbone(self, digest: str) -> bytes | None:
        """The feature extractor of a digest (hex); None if it was never put."""
        with self._begin() as db:
            return find_backbone(db, digest)

    @contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        with self._lock:
            try:
                with self._engine.begin() as db:
                    yield db
            except sa.exc.SQLAlchemyError as error:
                cause = type(getattr(error, "orig", None) or error).__name__
                raise StoreError(
                    f"the store failed ({cause})", fix="check its disk and its database server"
                ) from error

    def _forget(self) -> None:
        with self._lock:
            forget_old_pages(self._engine)

    def _event(
        self, db: sa.Connection, job: str | None, kind: str, data: Mapping[str, Any]
    ) -> StoredEvent:
        now = self._now_s()
        values = {"job": job, "time": now, "type": kind, "data": dict(data)}
        key = db.execute(tables.events.insert().values(values)).inserted_primary_key
        return StoredEvent(int(cast(Any, key)[0]), job, now, kind, dict(data))
