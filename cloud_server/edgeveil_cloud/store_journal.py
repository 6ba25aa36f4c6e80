"""The events of the cloud's store: a numbered journal of what its jobs did."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from edgeveil_cloud import store_schema as tables
from edgeveil_cloud.store_records import StoredEvent
from edgeveil_cloud.store_rows import next_sequence, write_event
from edgeveil_cloud.store_transaction import transaction


class Journal:
    """Events, on the engine and by the clock of the store that it is a part of."""

    def __init__(self, engine: sa.Engine, now_s: Callable[[], float]) -> None:
        self._engine, self._now_s, self._lock = engine, now_s, threading.RLock()
        self.away = False  # whether a transaction waits for the database's return at this moment
        self._said: set[str] = set()  # jobs with events that are not committed yet
        self._heard: Counter[str] = Counter()

    @transaction
    def append_event(
        self, db: sa.Connection, job: str | None, kind: str, data: Mapping[str, Any]
    ) -> StoredEvent:
        """Store one event; `data` is JSON-able and holds no secret and no device's name."""
        return self._event(db, job, kind, data)

    @transaction
    def announce(self, db: sa.Connection, job: str, data: Mapping[str, Any]) -> int:
        """Store the event `broadcast`; the number for its manifest.

        It grows with every call, also where the clock steps back, and with the clock, so that it
        goes on growing when a cloud starts over with a new store.
        """
        self._event(db, job, "broadcast", data)
        return next_sequence(db, self._now_s())

    def news(self, job: str) -> int:
        """A number that grows whenever events of the job were stored by this process; free."""
        return self._heard[job]

    @transaction
    def events_after(
        self, db: sa.Connection, seq: int, job: str | None = None, limit: int = 1000
    ) -> tuple[StoredEvent, ...]:
        """Up to `limit` events with a larger number than `seq`, of one job or of all.

        Of a job the newest `EVENTS_KEPT` are kept.
        """
        table = tables.events
        query = sa.select(table).where(table.c.seq > seq).order_by(table.c.seq).limit(limit)
        if job is not None:
            query = query.where(table.c.job == job)
        return tuple(StoredEvent(**row) for row in db.execute(query).mappings())

    def _event(
        self, db: sa.Connection, job: str | None, kind: str, data: Mapping[str, Any]
    ) -> StoredEvent:
        if job is not None:
            self._said.add(job)
        return write_event(db, job, kind, data, self._now_s())

    def _committed(self) -> None:
        self._heard.update(self._said)
        self._said.clear()
