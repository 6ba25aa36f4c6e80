"""The cloud's database of jobs, rounds, states, events and keys (SQLAlchemy Core).

Each method is one transaction; a retry after a lost answer finds the earlier result. `commit_round`
commits all changes of a round, so that a job resumes at its last committed round. A round's secret
is stored before the broadcast and overwritten at the commit; `open_batch` records a batch before it
is opened, so that no other batch of the attempt ever is. Secrets and models are passed as
parameters (`execute(insert, row)`): SQLAlchemy caches values given in statements.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from edgeveil.jobs.job import Priority
from edgeveil.protocol.cloud import RosterMark
from edgeveil.protocol.cloud_reasons import STALE_ROSTER
from edgeveil_cloud import store_tables as tables
from edgeveil_cloud.database import MEMORY, Database, forget_old_pages, migrate, transaction
from edgeveil_cloud.rollout_store import RolloutStore
from edgeveil_cloud.store_tables import (
    ENDED,
    TRANSITIONS,
    BatchOpening,
    CellDevices,
    JobEntry,
    JobEvent,
    JobGlimpse,
    LastCommit,
    RoundRecord,
    Status,
    StoreCounts,
    StoredRelease,
    StoreError,
    UnknownJob,
)

Db = sa.Connection
HASH_BYTES = 32
JOBS_QUEUED = 100
EVENTS_KEPT = 10_000  # of each job, besides its commits
COMMITTED = "exchange_committed"
_HOUR_S, _DAY_S = 3600.0, 24 * 3600.0
_SWEEP_EVERY = 256  # events between two deletions of old ones


class Store:
    """The store at `url`: `sqlite:///state/cloud.db`, `sqlite://` (memory) or `postgresql://…`.

    Thread-safe; `now_s` returns seconds since 1970. Raises StoreError if unusable or too new."""

    def __init__(self, url: str = MEMORY, *, now_s: Callable[[], float] = time.time) -> None:
        self._database = Database(url, lambda: self._committed())
        self.now_s = self._now_s = now_s
        self._changed_jobs: set[str] = set()  # jobs with uncommitted events
        self._deleted = False  # whether keys were deleted; the commit then drops their pages
        self._news: Counter[str] = Counter()
        self.news_of_all = 0  # grows with each commit of events by this process
        self.rollouts = RolloutStore(self._database, now_s)
        transaction(lambda _, db: migrate(db))(self)

    def close(self) -> None:
        with self._database.lock:
            self._database.engine.dispose()

    @property
    def away(self) -> bool:
        return self._database.away

    # --- jobs: submitted, taken up, moved on, ended ---

    def submit_job(
        self,
        name: str,
        canonical: bytes,
        digest: bytes,
        *,
        queue_limit: int = JOBS_QUEUED,
        priority: Priority = "normal",
    ) -> JobEntry:
        """Queue a job under a new id; raises StoreError if `queue_limit` jobs already wait."""
        # Drawn outside the transaction, so that a retry finds a commit whose answer was lost.
        row = {"id": f"{name}-{secrets.token_hex(4)}", "name": name, "priority": priority}
        return self._submit({**row, "canonical": canonical, "digest": digest}, queue_limit)

    @transaction
    def _submit(self, db: Db, row: Mapping[str, Any], queue_limit: int) -> JobEntry:
        table, job = tables.jobs, row["id"]
        if db.scalar(sa.select(table.c.number).filter_by(id=job)) is None:
            waiting = sa.select(sa.func.count()).select_from(table).filter_by(status="queued")
            if int(db.scalar(waiting) or 0) >= queue_limit:
                what = f"{queue_limit} jobs are waiting already"
                raise StoreError(what, fix="wait, or cancel one with edgeveil job cancel")
            new = {"status": "queued", "reason": "", "submitted_at": self._now_s()}
            db.execute(table.insert(), {**row, **new})
            self._event(db, job, "job_submitted", {"name": row["name"]})
        return _entry(db, job)

    @transaction
    def next_jobs(self, db: Db) -> tuple[JobEntry, ...]:
        """Return running jobs, then queued ones by priority and age."""
        table = tables.jobs
        urgency = sa.case({"high": 0, "normal": 1}, value=table.c.priority, else_=2)
        query = (
            sa.select(table)
            .where(table.c.status.in_(("queued", "running")))
            .order_by(sa.case((table.c.status == "running", 0), else_=1), urgency, table.c.number)
        )
        return tuple(_entry_of(row) for row in db.execute(query).mappings())

    @transaction
    def jobs(self, db: Db, status: Status | None = None) -> tuple[JobEntry, ...]:
        query = sa.select(tables.jobs).order_by(tables.jobs.c.number)
        query = query.filter_by(**({"status": status} if status else {}))
        return tuple(_entry_of(row) for row in db.execute(query).mappings())

    @transaction
    def newest_job_names(self, db: Db, limit: int = 1 << 31) -> tuple[str, ...]:
        """Return the ids of the `limit` newest jobs and of all not ended, oldest first."""
        table = tables.jobs
        last = int(db.scalar(sa.select(sa.func.max(table.c.number))) or 0)
        wanted = sa.or_(table.c.number > last - limit, table.c.status.not_in(ENDED))
        return tuple(db.scalars(sa.select(table.c.id).where(wanted).order_by(table.c.number)))

    @transaction
    def counts(self, db: Db) -> StoreCounts:
        status, number = tables.jobs.c.status, sa.func.count()
        rows = db.execute(sa.select(status, number).group_by(status))
        enrolled = db.scalar(sa.select(sa.func.count()).select_from(tables.enrolled_keys))
        return StoreCounts(int(enrolled or 0), {row[0]: int(row[1]) for row in rows})

    @transaction
    def job(self, db: Db, job: str) -> JobEntry:
        return _entry(db, job)

    @transaction
    def glimpse(self, db: Db, job: str) -> JobGlimpse:
        """Return a job with its newest round and event; raises UnknownJob."""
        entry, done, journal = _entry(db, job), tables.rounds, tables.events
        last = sa.select(done).filter_by(job=job).order_by(done.c.index.desc()).limit(1)
        was_tested = sa.or_(done.c.accuracy.is_not(None), done.c.loss.is_not(None))
        newest, tested = (
            next(map(_round_of, db.execute(query).mappings()), None)
            for query in (last, last.where(was_tested))
        )
        life = sa.select(journal).filter_by(job=job).order_by(journal.c.seq.desc()).limit(1)
        kinds = journal.c.type.startswith("job_", autoescape=True)
        row = None
        if entry.status != "running":  # else the query could scan thousands of events
            row = db.execute(life.where(kinds)).mappings().first()
        return JobGlimpse(entry, newest, tested, None if row is None else JobEvent(**row))

    def set_status(
        self, job: str, status: Status, reason: str = "", data: Mapping[str, Any] | None = None
    ) -> JobEntry:
        """Move a job as TRANSITIONS allows, else raise StoreError; stores the event `job_<status>`.

        Repeating status and reason changes nothing. The end of a job deletes its round keys."""
        why = {"reason": reason} if reason else {}
        return self._move(job, status, reason, f"job_{status}", {**why, **(data or {})})

    def cancel(self, job: str, reason: str = "cancelled by its owner") -> JobEntry:
        """Cancel a job; raises StoreError if it has ended."""
        entry = self.job(job)
        if entry.ended:
            raise StoreError(f"job '{job}' is {entry.status} already", fix="submit it again")
        return self.set_status(job, "cancelled", reason)

    def resume(self, job: str) -> JobEntry:
        """Queue a paused job again; raises StoreError if it is not paused."""
        status = self.job(job).status
        if status != "paused":
            raise StoreError(f"job '{job}' is {status}: only a paused one can be resumed")
        return self._move(job, "queued", "", "job_resumed", {})

    @transaction
    def _move(
        self, db: Db, job: str, status: Status, reason: str, event: str, data: Mapping[str, Any]
    ) -> JobEntry:
        before = _entry(db, job)
        if (before.status, before.reason) == (status, reason) and status != "running":
            return before  # a commit whose answer was lost
        if status not in TRANSITIONS[before.status]:
            what = f"job '{job}' is {before.status} and cannot become {status}"
            raise StoreError(what, fix="submit it again" if before.ended else "")
        now_s = self._now_s()
        values: dict[str, Any] = {"status": status, "reason": reason}
        if status == "running" and before.started_at is None:
            values["started_at"] = now_s
        if status in ENDED:
            values["ended_at"], self._deleted = now_s, True
            for gone in (tables.round_keys, tables.unmaskings):
                db.execute(gone.delete().where(gone.c.job == job))
        db.execute(tables.jobs.update().where(tables.jobs.c.id == job), values)
        self._event(db, job, event, data)
        return _entry(db, job)

    # --- events: a numbered journal of what jobs did ---

    @transaction
    def append_event(self, db: Db, job: str | None, kind: str, data: Mapping[str, Any]) -> JobEvent:
        """Store one event; `data` must be JSON-able, without secrets or device names."""
        return self._event(db, job, kind, data)

    @transaction
    def announce(self, db: Db, job: str, data: Mapping[str, Any]) -> int:
        """Store the event `broadcast`; return the sequence number for its manifest.

        Numbers grow even if the clock steps back, and follow the clock (ms since 1970), so that
        they grow further if the store is lost."""
        self._event(db, job, "broadcast", data)
        return self._next_number(db)

    @transaction
    def next_number(self, db: Db) -> int:
        """Return the next sequence number for a signed statement; see `announce`."""
        return self._next_number(db)

    def _next_number(self, db: Db) -> int:
        last = db.scalar(sa.select(tables.sequence.c.last))
        number = max(int(self._now_s() * 1000), 0 if last is None else last + 1)
        change = tables.sequence.insert() if last is None else tables.sequence.update()
        db.execute(change.values(last=number))
        return number

    def news(self, job: str) -> int:
        """Return a counter that grows whenever this process stores events of the job."""
        return self._news[job]

    @transaction
    def events_after(
        self, db: Db, seq: int, job: str | None = None, limit: int = 1000
    ) -> tuple[JobEvent, ...]:
        """Return up to `limit` events numbered above `seq`, of one job or (default) of all."""
        table = tables.events
        query = sa.select(table).where(table.c.seq > seq).order_by(table.c.seq).limit(limit)
        query = query.filter_by(**({} if job is None else {"job": job}))
        return tuple(JobEvent(**row) for row in db.execute(query).mappings())

    @transaction
    def committed(self, db: Db, job: str, key: str, *, newest: bool) -> dict[str, Any] | None:
        """Return the newest or the first data of a job's commits that have `key`, or None."""
        table = tables.events
        order = table.c.seq.desc() if newest else table.c.seq
        of_it = sa.and_(table.c.job == job, table.c.type == COMMITTED)
        found = db.scalars(sa.select(table.c.data).where(of_it).order_by(order))
        return next((data for data in found if data.get(key)), None)

    def _event(self, db: Db, job: str | None, kind: str, data: Mapping[str, Any]) -> JobEvent:
        """Append an event; every `_SWEEP_EVERY` events delete old ones except commits."""
        if job is not None:
            self._changed_jobs.add(job)
        table, now_s = tables.events, self._now_s()
        values = {"job": job, "time": now_s, "type": kind, "data": dict(data)}
        seq = db.execute(table.insert().values(values).returning(table.c.seq)).scalar_one()
        if seq % _SWEEP_EVERY == 0:
            of_job = table.c.job == job if job is not None else table.c.job.is_(None)
            newest = sa.select(table.c.seq).where(of_job).order_by(table.c.seq.desc())
            oldest = db.scalar(newest.offset(EVENTS_KEPT).limit(1))
            if oldest is not None:
                forgotten = sa.and_(table.c.seq <= oldest, table.c.type != COMMITTED)
                db.execute(table.delete().where(of_job, forgotten))
        return JobEvent(seq, job, now_s, kind, dict(data))

    def _committed(self) -> None:
        if self._deleted:
            forget_old_pages(self._database.engine)
            self._deleted = False
        if self._changed_jobs:
            self._news.update(self._changed_jobs)
            self._changed_jobs.clear()
            self.news_of_all += 1

    # --- a round: its secret, its one batch, its commit ---

    @transaction
    def put_round_key(
        self, db: Db, job: str, round: int, attempt: int, secret: bytes, cell: str = ""
    ) -> None:
        """Store a cell's secret of a round; raises StoreError if a different one is stored."""
        kept = _round_keys(db, job, round, attempt).get(cell)
        if kept is None:
            row = {"job": job, "exchange": round, "attempt": attempt, "cell": cell}
            db.execute(tables.round_keys.insert(), {**row, "secret": secret})
        elif not secrets.compare_digest(kept, secret):
            raise StoreError(f"round {round}, attempt {attempt} has another round key")

    def round_key(self, job: str, round: int, attempt: int, cell: str = "") -> bytes | None:
        return self.round_keys(job, round, attempt).get(cell)

    @transaction
    def round_keys(self, db: Db, job: str, round: int, attempt: int) -> dict[str, bytes]:
        return _round_keys(db, job, round, attempt)

    @transaction
    def next_attempt(self, db: Db, job: str, round: int) -> int:
        """Return the first attempt without a key, from 1, or the attempt with stored sums."""
        of_it, kept, keys = {"job": job, "exchange": round}, tables.unmaskings, tables.round_keys
        summed = db.scalar(sa.select(kept.c.attempt).filter_by(**of_it))
        if summed is not None:
            return int(summed)
        last = db.scalar(sa.select(sa.func.max(keys.c.attempt)).filter_by(**of_it))
        return int(last or 0) + 1

    @transaction
    def open_batch(
        self, db: Db, job: str, round: int, attempt: int, batch_digest: bytes, cell: str = ""
    ) -> BatchOpening | None:
        """Record a batch before it is opened, and return its secret; None if it was absorbed."""
        if _absorbed_in(db, job, batch_digest) is not None:
            return None
        secret = _round_keys(db, job, round, attempt).get(cell)
        if secret is None:
            return BatchOpening(None, True)
        table = tables.openings
        row = {"job": job, "exchange": round, "attempt": attempt, "cell": cell}
        noted = db.scalar(sa.select(table.c.digest).filter_by(**row))
        if noted is None:
            db.execute(table.insert().values(**row, digest=batch_digest))
        first = noted is None or bytes(noted) == batch_digest
        return BatchOpening(secret, first)

    @transaction
    def keep_sums(self, db: Db, job: str, round: int, attempt: int, sums: bytes) -> bytes:
        """Store a round's masked sums before requesting masks; return the sums stored first."""
        found = _kept_sums(db, job, round)
        if found is None:
            row = {"job": job, "exchange": round, "attempt": attempt, "sums": sums}
            db.execute(tables.unmaskings.insert(), row)
        return found or sums

    @transaction
    def kept_sums(self, db: Db, job: str, round: int) -> bytes | None:
        return _kept_sums(db, job, round)

    @transaction
    def any_opened(self, db: Db, job: str, round: int, cell: str = "") -> bool:
        query = sa.select(tables.openings).filter_by(job=job, exchange=round, cell=cell)
        return db.execute(query.limit(1)).first() is not None

    @transaction
    def commit_round(
        self,
        db: Db,
        job: str,
        record: RoundRecord,
        state: bytes,
        events: Sequence[tuple[str, Mapping[str, Any]]] = (),
        accepted: Sequence[bytes] = (),
        batch_digests: Sequence[bytes] = (),
    ) -> bool:
        """Commit one round in a single transaction; return False if it was committed before.

        `state` is the new state (safetensors; only the newest is stored), `accepted` the SHA-256 of
        each counted ciphertext, `events` are (type, data). Raises StoreError if the job is not
        running, the round is not the next one, or another round absorbed a batch."""
        if any(len(digest) != HASH_BYTES for digest in accepted):
            raise StoreError(f"an accepted hash does not have {HASH_BYTES} bytes")
        entry, table = _entry(db, job), tables.rounds
        last = int(db.scalar(sa.select(sa.func.max(table.c.index)).filter_by(job=job)) or 0)
        if record.index <= last:
            return False
        if entry.status != "running" or record.index != last + 1:
            raise StoreError(
                f"round {record.index} of job '{job}' cannot be committed: "
                f"the job is {entry.status} and its last round is {last}"
            )
        for batch_digest in batch_digests:
            absorbed = _absorbed_in(db, job, batch_digest)
            if absorbed is not None:
                raise StoreError(f"this batch was absorbed by round {absorbed} of job '{job}'")
            of_it = {"job": job, "index": record.index}
            db.execute(tables.batches.insert(), {**of_it, "digest": batch_digest})
        kept = {"committed_at": self._now_s(), "accepted": b"".join(sorted(accepted))}
        db.execute(table.insert(), {**record.__dict__, "job": job, **kept})
        db.execute(tables.states.delete().where(tables.states.c.job == job))
        newest = {"job": job, "index": record.index, "tensors": state}
        db.execute(tables.states.insert(), newest)
        for done in (tables.round_keys, tables.openings, tables.unmaskings):
            db.execute(done.delete().where(done.c.job == job, done.c.exchange <= record.index))
        self._deleted = True
        for kind, data in events:
            self._event(db, job, kind, data)
        return True

    @transaction
    def last_commit(self, db: Db, job: str) -> LastCommit | None:
        """Return the newest commit, from which the job resumes; None before the first."""
        table, state = tables.rounds, tables.states
        joins = sa.and_(state.c.job == table.c.job, state.c.index == table.c.index)
        query = sa.select(table, state.c.tensors).join(state, joins).where(table.c.job == job)
        row = db.execute(query).mappings().first()
        if row is None:
            return None
        packed = bytes(row["accepted"])
        hashes = (packed[k : k + HASH_BYTES] for k in range(0, len(packed), HASH_BYTES))
        return LastCommit(_round_of(row), bytes(row["tensors"]), tuple(hashes))

    @transaction
    def rounds(self, db: Db, job: str) -> tuple[RoundRecord, ...]:
        table = tables.rounds
        query = sa.select(table).where(table.c.job == job).order_by(table.c.index)
        return tuple(_round_of(row) for row in db.execute(query).mappings())

    # --- devices, and models ---

    @transaction
    def set_enrolled(
        self,
        db: Db,
        keys: Collection[bytes],
        cell: str = "",
        moved: Mapping[bytes, str] | None = None,
    ) -> int:
        """Replace a cell's public keys; return how many of them belong to other cells.

        Such a key stays in the other cell, unless `moved` assigns it to this one."""
        table, moves, now_s = tables.enrolled_keys, moved or {}, self._now_s()
        rows = db.execute(sa.select(table.c.public_key, table.c.cell))
        cell_of = {bytes(key): of_it for key, of_it in rows}
        old = {key for key, of_it in cell_of.items() if of_it == cell}
        here = {key for key in keys if moves.get(key, cell) == cell}
        claimed = {key for key in here - old if key in cell_of and key not in moves}
        new = here - claimed
        for key in old - new:
            db.execute(table.delete().where(table.c.public_key == key))
        for key in (new - old) & set(cell_of):  # moved
            db.execute(table.update().where(table.c.public_key == key).values(cell=cell))
        added = [
            {"public_key": key, "added_at": now_s, "cell": cell}
            for key in sorted(new - set(cell_of))
        ]
        if added:
            db.execute(table.insert(), added)
        return len(claimed)

    @transaction
    def take_roster(self, db: Db, mark: RosterMark, expires_s: float, cell: str = "") -> None:
        """Record the cell's newest roster; it is stale from `expires_s` on (0: never)."""
        table = tables.roster
        db.execute(table.delete().where(table.c.cell == cell))
        new = {"lineage": mark.lineage, "epoch": mark.epoch, "expires_s": expires_s, "cell": cell}
        db.execute(table.insert(), {**new, "refused": "", "refused_lineage": ""})

    @transaction
    def refuse_roster(self, db: Db, reason: str, lineage: str, cell: str = "") -> None:
        """Record a refusal; `roster_problem` reports it until a roster is taken."""
        table, refused = tables.roster, {"refused": reason, "refused_lineage": lineage}
        if not db.execute(table.update().where(table.c.cell == cell).values(refused)).rowcount:
            new = {"lineage": "", "epoch": -1, "expires_s": 0.0, "cell": cell}
            db.execute(table.insert(), {**new, **refused})

    @transaction
    def is_newer_roster(self, db: Db, expires_s: float, cell: str = "") -> bool:
        """Return whether a roster with a smaller number was made after the one taken last.

        Registries never count down, so someone else used the proxy's key. Rosters expire a day
        after they are made; if the one taken expires later, any roster of the last hour is newer.
        """
        row = db.execute(sa.select(tables.roster).filter_by(cell=cell)).first()
        taken_s = 0.0 if row is None else float(row.expires_s)
        if taken_s > self._now_s() + _DAY_S + _HOUR_S:
            taken_s = self._now_s() + _DAY_S - _HOUR_S
        return expires_s > taken_s

    @transaction
    def accept_registry(self, db: Db) -> None:
        """Accept the next roster of any registry in each cell, on the operator's order."""
        db.execute(tables.roster.delete())

    @transaction
    def roster_marks(self, db: Db) -> dict[str, RosterMark]:
        rows = db.execute(sa.select(tables.roster).where(tables.roster.c.epoch >= 0))
        return {row.cell: RosterMark(row.lineage, row.epoch) for row in rows}

    @transaction
    def roster_problem(self, db: Db, cell: str = "") -> str:
        """Return why the cell's admitted devices are unknown, and the fix; "" if they are known."""
        row = db.execute(sa.select(tables.roster).filter_by(cell=cell)).first()
        if row is None:
            return ""
        if row.refused == "replayed_roster":
            return (
                "the proxy's roster has a smaller number than an earlier one: its registry"
                " was restored, or its key leaked and was used for the larger number; check"
                " which clients use the proxy's name at the cloud's broker (replace a leaked key"
                " with edgeveil trust rotate DIR proxy-rosters), then stop the cloud and take the"
                " true proxy's roster with edgeveil cloud --accept-registry"
            )
        if row.refused:
            return (
                f"the proxy's roster is refused ({row.refused}): its registry was rebuilt, or is"
                f" another one, {row.refused_lineage}, and may have forgotten who was revoked; see"
                " that it is whole, then vouch for it with edgeveil trust rotate DIR registry"
                f" {row.refused_lineage}, or, without a root, with edgeveil cloud --accept-registry"
            )
        if 0 < row.expires_s <= self._now_s():
            since = datetime.fromtimestamp(row.expires_s, UTC)
            return (
                f"{STALE_ROSTER} since {since:%F %R} UTC; see that the proxy runs, and"
                " both machines' clocks"
            )
        return ""

    @transaction
    def enrolled(self, db: Db, cell: str | None = None) -> tuple[bytes, ...]:
        """Return the enrolled public keys (default: of all cells), sorted by their bytes."""
        table = tables.enrolled_keys
        query = sa.select(table.c.public_key)
        keys = db.scalars(query if cell is None else query.where(table.c.cell == cell))
        return tuple(sorted(bytes(key) for key in keys))

    @transaction
    def devices(self, db: Db) -> tuple[CellDevices, ...]:
        table, roster = tables.enrolled_keys, tables.roster
        counted = sa.select(table.c.cell, sa.func.count()).group_by(table.c.cell)
        enrolled = {row[0]: int(row[1]) for row in db.execute(counted)}
        ends = {row[0]: row[1] for row in db.execute(sa.select(roster.c.cell, roster.c.expires_s))}
        return tuple(
            CellDevices(cell, enrolled.get(cell, 0), ends.get(cell, 0.0))
            for cell in sorted({*enrolled, *ends})
        )

    @transaction
    def put_release(self, db: Db, job: str, onnx: bytes, safetensors: bytes) -> None:
        """Store a job's final model, replacing an earlier one; raises UnknownJob."""
        table = tables.releases
        _entry(db, job)
        db.execute(table.delete().where(table.c.job == job))
        db.execute(table.insert(), {"job": job, "onnx": onnx, "safetensors": safetensors})

    @transaction
    def release(self, db: Db, job: str) -> StoredRelease | None:
        row = db.execute(sa.select(tables.releases).filter_by(job=job)).first()
        return None if row is None else StoredRelease(job, bytes(row.onnx), bytes(row.safetensors))

    @transaction
    def put_backbone(self, db: Db, graph: bytes) -> str:
        """Store a feature extractor; return its SHA-256 (hex). Idempotent."""
        table, digest = tables.backbones, hashlib.sha256(graph).hexdigest()
        if db.scalar(sa.select(table.c.digest).filter_by(digest=digest)) is None:
            db.execute(table.insert(), {"digest": digest, "graph": graph})
        return digest

    @transaction
    def backbone(self, db: Db, digest: str) -> bytes | None:
        found = db.scalar(sa.select(tables.backbones.c.graph).filter_by(digest=digest))
        return None if found is None else bytes(found)


# --- rows ---


def _entry(db: Db, job: str) -> JobEntry:
    row = db.execute(sa.select(tables.jobs).where(tables.jobs.c.id == job)).mappings().first()
    if row is None:
        raise UnknownJob(job)
    return _entry_of(row)


def _entry_of(row: sa.RowMapping) -> JobEntry:
    values = {name: row[name] for name in JobEntry.__dataclass_fields__}
    values |= {name: bytes(row[name]) for name in ("canonical", "digest")}
    return JobEntry(**values)


def _round_of(row: sa.RowMapping) -> RoundRecord:
    return RoundRecord(**{name: row[name] for name in RoundRecord.__dataclass_fields__})


def _absorbed_in(db: Db, job: str, digest: bytes) -> int | None:
    return db.scalar(sa.select(tables.batches.c.index).filter_by(job=job, digest=digest))


def _kept_sums(db: Db, job: str, round: int) -> bytes | None:
    found = db.scalar(sa.select(tables.unmaskings.c.sums).filter_by(job=job, exchange=round))
    return None if found is None else bytes(found)


def _round_keys(db: Db, job: str, round: int, attempt: int) -> dict[str, bytes]:
    table = tables.round_keys
    query = sa.select(table.c.cell, table.c.secret)
    rows = db.execute(query.filter_by(job=job, exchange=round, attempt=attempt))
    return {cell: bytes(secret) for cell, secret in rows}
