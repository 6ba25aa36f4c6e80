"""The cloud's durable memory: jobs, rounds, states, events, keys. SQLAlchemy Core.

Each method is one transaction. Everything a round changes is committed by `commit_exchange`
at once, so a crash at any point resumes at the last committed exchange.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from edgeveil_cloud import store_schema as tables
from edgeveil_cloud.store_engine import MEMORY, open_engine
from edgeveil_cloud.store_keys import (
    last_attempt,
    read_enrolled,
    round_key,
    write_enrolled,
    write_round_key,
)
from edgeveil_cloud.store_models import find_backbone, find_release, write_backbone, write_release
from edgeveil_cloud.store_queue import JobQueue
from edgeveil_cloud.store_records import ExchangeRecord, LastCommit, StoredRelease, StoreError
from edgeveil_cloud.store_rows import (
    absorbed_in,
    any_opened,
    exchange_of,
    last_commit,
    write_commit,
    write_opening,
)
from edgeveil_cloud.store_transaction import transaction


class Store(JobQueue):
    """Opened by URL: `sqlite:///state/cloud.db`, `sqlite://` (memory), `postgresql://…`.

    Safe to share between the threads of one process. Raises StoreError if the database cannot
    be opened or was written by a newer version.
    """

    def __init__(self, url: str = MEMORY, *, now_s: Callable[[], float] = time.time) -> None:
        super().__init__(open_engine(url), now_s)
        self._prepare()

    @transaction
    def _prepare(self, db: sa.Connection) -> None:
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
        done = self._commit(job, record, state, events, accepted, batch_digest)
        if done:
            self._forget()
        return done

    @transaction
    def _commit(
        self,
        db: sa.Connection,
        job: str,
        record: ExchangeRecord,
        state: bytes,
        events: Sequence[tuple[str, Mapping[str, Any]]],
        accepted: Sequence[bytes],
        batch_digest: bytes | None,
    ) -> bool:
        done = write_commit(db, job, record, state, accepted, batch_digest, self._now_s)
        for kind, data in events if done else ():
            self._event(db, job, kind, data)
        return done

    @transaction
    def last_commit(self, db: sa.Connection, job: str) -> LastCommit | None:
        """Where to resume; None before the first commit."""
        return last_commit(db, job)

    @transaction
    def exchanges(self, db: sa.Connection, job: str) -> tuple[ExchangeRecord, ...]:
        """All committed exchanges of a job, in order."""
        table = tables.exchanges
        query = sa.select(table).where(table.c.job == job).order_by(table.c.index)
        return tuple(exchange_of(row) for row in db.execute(query).mappings())

    @transaction
    def batch_absorbed(self, db: sa.Connection, job: str, batch_digest: bytes) -> bool:
        """True if this batch already stands in a committed exchange."""
        return absorbed_in(db, job, batch_digest) is not None

    @transaction
    def open_once(
        self, db: sa.Connection, job: str, exchange: int, attempt: int, batch_digest: bytes
    ) -> bool:
        """Note a batch before it is opened; False if another one of this attempt was opened."""
        return write_opening(db, job, exchange, attempt, batch_digest)

    @transaction
    def any_opened(self, db: sa.Connection, job: str, exchange: int) -> bool:
        """Whether a batch of this exchange, which has not been committed, was opened."""
        return any_opened(db, job, exchange)

    @transaction
    def put_round_key(
        self, db: sa.Connection, job: str, exchange: int, attempt: int, secret: bytes
    ) -> None:
        """Keep a round's secret HPKE key until its commit; StoreError if another one is kept."""
        write_round_key(db, job, exchange, attempt, secret)

    @transaction
    def round_key(self, db: sa.Connection, job: str, exchange: int, attempt: int) -> bytes | None:
        """The round's secret key; None after the commit."""
        return round_key(db, job, exchange, attempt)

    @transaction
    def next_attempt(self, db: sa.Connection, job: str, exchange: int) -> int:
        """The first attempt at an exchange whose key was not made yet, from 1."""
        return last_attempt(db, job, exchange) + 1

    @transaction
    def set_enrolled(self, db: sa.Connection, keys: Collection[bytes]) -> None:
        """Make exactly these public keys the enrolled ones, in one transaction."""
        write_enrolled(db, keys, self._now_s())

    @transaction
    def enrolled(self, db: sa.Connection) -> tuple[bytes, ...]:
        """All enrolled public keys, in the order of their bytes, which says nothing."""
        return read_enrolled(db)

    @transaction
    def put_release(self, db: sa.Connection, job: str, onnx: bytes, safetensors: bytes) -> None:
        """Keep a job's final model; a second call replaces it."""
        write_release(db, job, onnx, safetensors)

    @transaction
    def release(self, db: sa.Connection, job: str) -> StoredRelease | None:
        """A job's final model; None as long as there is none."""
        return find_release(db, job)

    @transaction
    def put_backbone(self, db: sa.Connection, graph: bytes) -> str:
        """Keep a feature extractor under its SHA-256 (hex), which is returned; twice is once."""
        return write_backbone(db, graph)

    @transaction
    def backbone(self, db: sa.Connection, digest: str) -> bytes | None:
        """The feature extractor of a digest (hex); None if it was never put."""
        return find_backbone(db, digest)
