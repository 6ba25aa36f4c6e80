"""What a device must not forget: rounds seen, jobs, the outbox. One SQLite file.

Only noised, sealed bytes stand in the outbox; the ledger is a file of its own.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fl_core.errors import EdgeVeilError
from fl_core.protocol.codec import decode_header
from fl_core.protocol.messages import Exchanged, Signed, Upload
from fl_core.protocol.tasks import JobClosed, Memory, OutboxDrop, OutboxPut, Seen

_SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (job BLOB PRIMARY KEY, round INTEGER, attempt INTEGER, digest BLOB);
CREATE TABLE IF NOT EXISTS jobs (job BLOB PRIMARY KEY, canonical BLOB, graph BLOB);
CREATE TABLE IF NOT EXISTS closed (job BLOB PRIMARY KEY, status TEXT);
CREATE TABLE IF NOT EXISTS outbox (one INTEGER PRIMARY KEY CHECK (one = 1),
  job BLOB, round INTEGER, attempt INTEGER, header BLOB, sizes BLOB, data BLOB);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT);
"""

_encode = msgspec.msgpack.encode


class DeviceStore:
    """The durable memory of one device. One process owns the file."""

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.RLock()
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise EdgeVeilError(
                f"the device's store cannot be used: {error}",
                where=str(path),
                fix="check the disk and the file's rights",
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def store(self, item: object) -> None:
        """Apply one of the machine's items, durably and at once."""
        with self._transaction() as db:
            match item:
                case Seen(at=at, manifest_digest=digest):
                    db.execute(
                        "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)",
                        (at.job_id, at.round, at.attempt, digest),
                    )
                case OutboxPut(at=at, header=header, sizes=sizes, data=data):
                    db.execute(
                        "INSERT OR REPLACE INTO outbox VALUES (1, ?, ?, ?, ?, ?, ?)",
                        (at.job_id, at.round, at.attempt, _encode(header), _encode(sizes), data),
                    )
                case OutboxDrop():
                    db.execute("DELETE FROM outbox")
                case JobClosed(job_id=job_id, status=status):
                    db.execute("INSERT OR REPLACE INTO closed VALUES (?, ?)", (job_id, status))
                    db.execute("DELETE FROM jobs WHERE job = ?", (job_id,))
                    db.execute("DELETE FROM seen WHERE job = ?", (job_id,))

    def load(self) -> Memory:
        """The machine's memory as it was when the last process ended."""
        memory = Memory()
        for job, number, attempt, digest in self._db.execute("SELECT * FROM seen"):
            memory.seen[job] = Seen(Exchanged(job, number, attempt), digest)
        memory.jobs = {job for (job,) in self._db.execute("SELECT job FROM jobs")}
        memory.closed = {job for (job,) in self._db.execute("SELECT job FROM closed")}
        memory.release_sequence = int(self.fact("release_sequence") or -1)
        row = self._db.execute(
            "SELECT job, round, attempt, header, sizes, data FROM outbox"
        ).fetchone()
        if row:
            signed = msgspec.msgpack.decode(row[3], type=Signed)
            upload = decode_header(signed)
            if isinstance(upload, Upload):
                sizes = msgspec.msgpack.decode(row[4], type=tuple[int, ...])
                memory.outbox = OutboxPut(Exchanged(*row[:3]), signed, upload, sizes, row[5])
        return memory

    def put_job(self, job_id: bytes, canonical: bytes, graph: bytes) -> None:
        """Keep a job and its graph."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (job_id, canonical, graph))

    def job(self, job_id: bytes) -> tuple[bytes, bytes] | None:
        """(canonical job, graph), or None."""
        with self._lock:
            row: tuple[bytes, bytes] | None = self._db.execute(
                "SELECT canonical, graph FROM jobs WHERE job = ?", (job_id,)
            ).fetchone()
        return row

    def fact(self, name: str) -> str | None:
        """A remembered value, or None."""
        with self._lock:
            row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    def put_fact(self, name: str, value: str) -> None:
        """Remember a value."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
