"""Rows of the store's tables as records, and the one transaction that commits a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from edgeveil_cloud import store_schema as tables
from edgeveil_cloud.store_records import (
    ENDED,
    TRANSITIONS,
    Counts,
    ExchangeRecord,
    JobEntry,
    LastCommit,
    Status,
    StoredEvent,
    StoreError,
    UnknownJob,
)

HASH_BYTES = 32
EVENTS_KEPT = 10_000  # of each job
_SWEEP_EVERY = 256  # events between two looks for old ones
Row = sa.RowMapping


def find_row(db: sa.Connection, job: str) -> Row:
    """A job's row; UnknownJob if there is none."""
    row = db.execute(sa.select(tables.jobs).where(tables.jobs.c.id == job)).mappings().first()
    if row is None:
        raise UnknownJob(job)
    return row


def has_row(db: sa.Connection, job: str) -> bool:
    """Whether there is such a job."""
    return db.scalar(sa.select(tables.jobs.c.number).where(tables.jobs.c.id == job)) is not None


def job_of(row: Row) -> JobEntry:
    """A job from its row."""
    return JobEntry(
        id=row["id"],
        name=row["name"],
        canonical=bytes(row["canonical"]),
        digest=bytes(row["digest"]),
        status=row["status"],
        reason=row["reason"],
        submitted_at=row["submitted_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def exchange_of(row: Row) -> ExchangeRecord:
    """A committed exchange from its row."""
    return ExchangeRecord(**{name: row[name] for name in ExchangeRecord.__dataclass_fields__})


def last_index(db: sa.Connection, job: str) -> int:
    """Index of a job's newest committed exchange; 0 before the first."""
    table = tables.exchanges
    return int(db.scalar(sa.select(sa.func.max(table.c.index)).where(table.c.job == job)) or 0)


def absorbed_in(db: sa.Connection, job: str, digest: bytes) -> int | None:
    """The exchange that absorbed a batch; None if none did."""
    table = tables.batches
    query = sa.select(table.c.index).where(table.c.job == job).where(table.c.digest == digest)
    return db.scalar(query)


def count_rows(db: sa.Connection) -> Counts:
    """Enrolled devices, and jobs by status."""
    status, number = tables.jobs.c.status, sa.func.count()
    rows = db.execute(sa.select(status, number).group_by(status))
    enrolled = db.scalar(sa.select(sa.func.count()).select_from(tables.enrolled_keys))
    return Counts(int(enrolled or 0), {row[0]: int(row[1]) for row in rows})


def write_status(db: sa.Connection, job: str, status: Status, reason: str, now_s: float) -> bool:
    """Move a job on, as TRANSITIONS allows; StoreError otherwise. False if it stands there."""
    before = job_of(find_row(db, job))
    if (before.status, before.reason) == (status, reason) and status != "running":
        return False  # a commit whose answer was lost
    if status not in TRANSITIONS[before.status]:
        raise StoreError(
            f"job '{job}' is {before.status} and cannot become {status}",
            fix="submit it again" if before.ended else "",
        )
    values: dict[str, Any] = {"status": status, "reason": reason}
    if status == "running" and before.started_at is None:
        values["started_at"] = now_s
    if status in ENDED:
        values["ended_at"] = now_s
        db.execute(tables.round_keys.delete().where(tables.round_keys.c.job == job))
    db.execute(tables.jobs.update().where(tables.jobs.c.id == job).values(values))
    return True


def write_event(
    db: sa.Connection, job: str | None, kind: str, data: Mapping[str, Any], now_s: float
) -> StoredEvent:
    """Append an event, and now and then forget a job's oldest beyond `EVENTS_KEPT`."""
    table = tables.events
    values = {"job": job, "time": now_s, "type": kind, "data": dict(data)}
    key = db.execute(table.insert().values(values)).inserted_primary_key
    seq = int(cast(Any, key)[0])
    if seq % _SWEEP_EVERY == 0:
        of_job = table.c.job == job if job is not None else table.c.job.is_(None)
        newest = sa.select(table.c.seq).where(of_job).order_by(table.c.seq.desc())
        oldest = db.scalar(newest.offset(EVENTS_KEPT).limit(1))
        if oldest is not None:
            db.execute(table.delete().where(of_job, table.c.seq <= oldest))
    return StoredEvent(seq, job, now_s, kind, dict(data))


def next_sequence(db: sa.Connection, now_s: float) -> int:
    """A broadcast's number: the time in ms, and always more than the one before."""
    last = db.scalar(sa.select(tables.sequence.c.last))
    number = max(int(now_s * 1000), 0 if last is None else last + 1)
    change = tables.sequence.insert() if last is None else tables.sequence.update()
    db.execute(change.values(last=number))
    return number


def write_opening(db: sa.Connection, job: str, exchange: int, attempt: int, digest: bytes) -> bool:
    """Note the batch of an attempt before it is opened; False if that was another one."""
    table = tables.openings
    at = sa.and_(table.c.job == job, table.c.exchange == exchange, table.c.attempt == attempt)
    noted = db.scalar(sa.select(table.c.digest).where(at))
    if noted is None:
        row = {"job": job, "exchange": exchange, "attempt": attempt, "digest": digest}
        db.execute(table.insert().values(row))
    return noted is None or bytes(noted) == digest


def any_opened(db: sa.Connection, job: str, exchange: int) -> bool:
    """Whether a batch of any attempt at an exchange was opened."""
    table = tables.openings
    query = sa.select(table.c.attempt).where(table.c.job == job, table.c.exchange == exchange)
    return db.scalar(query.limit(1)) is not None


def last_commit(db: sa.Connection, job: str) -> LastCommit | None:
    """Where to resume; None before the first commit."""
    table, state = tables.exchanges, tables.states
    query = (
        sa.select(table, state.c.tensors)
        .join(state, sa.and_(state.c.job == table.c.job, state.c.index == table.c.index))
        .where(table.c.job == job)
    )
    row = db.execute(query).mappings().first()
    if row is None:
        return None
    packed = bytes(row["accepted"])
    hashes = (packed[k : k + HASH_BYTES] for k in range(0, len(packed), HASH_BYTES))
    return LastCommit(exchange_of(row), bytes(row["tensors"]), tuple(hashes))


def write_commit(
    db: sa.Connection,
    job: str,
    record: ExchangeRecord,
    state: bytes,
    accepted: Sequence[bytes],
    batch_digest: bytes | None,
    now_s: Callable[[], float],
) -> bool:
    """The rows of `Store.commit_exchange`, whose docstring has the law; False if they exist."""
    if any(len(digest) != HASH_BYTES for digest in accepted):
        raise StoreError(f"an accepted hash does not have {HASH_BYTES} bytes")
    entry = job_of(find_row(db, job))
    last = last_index(db, job)
    if record.index <= last:
        return False
    if entry.status != "running" or record.index != last + 1:
        raise StoreError(
            f"exchange {record.index} of job '{job}' cannot be committed: "
            f"the job is {entry.status} and its last exchange is {last}"
        )
    if batch_digest is not None:
        absorbed = absorbed_in(db, job, batch_digest)
        if absorbed is not None:
            raise StoreError(f"this batch was absorbed by exchange {absorbed} of job '{job}'")
        db.execute(tables.batches.insert().values(job=job, digest=batch_digest, index=record.index))
    values = {**record.__dict__, "bytes": dict(record.bytes)}
    values |= {
        "scores": None if record.scores is None else dict(record.scores),
        "committed_at": now_s(),
        "accepted": b"".join(sorted(accepted)),
    }
    db.execute(tables.exchanges.insert().values(job=job, **values))
    db.execute(tables.states.delete().where(tables.states.c.job == job))
    db.execute(tables.states.insert().values(job=job, index=record.index, tensors=state))
    keys = tables.round_keys
    db.execute(keys.delete().where(keys.c.job == job, keys.c.exchange <= record.index))
    opened = tables.openings
    db.execute(opened.delete().where(opened.c.job == job, opened.c.exchange <= record.index))
    return True
