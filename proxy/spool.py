"""What the proxy must not lose: broadcasts, uploads and batches, in one SQLite file.

Ciphertext only. An upload is on disk before it is acknowledged, and forgotten in the same
transaction that stores the batch it went into.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fl_core.protocol.codec import decode_header
from fl_core.protocol.collection import Held
from fl_core.protocol.messages import Batch, Commit, Exchanged, Manifest, Note, Signed
from fl_core.protocol.proxy_tasks import (
    BatchDelivered,
    BatchKept,
    JobEnded,
    Kept,
    ProxyMemory,
    ProxySettings,
    RoundDropped,
    UploadKept,
    key_of,
)
from fl_core.sqlite_file import SqliteFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (number INTEGER PRIMARY KEY AUTOINCREMENT,
  digest BLOB UNIQUE, job BLOB, kind TEXT, signed BLOB, data BLOB);
CREATE TABLE IF NOT EXISTS uploads (job BLOB, round INTEGER, attempt INTEGER, device TEXT,
  groups BLOB, digest BLOB, data BLOB, PRIMARY KEY (job, round, attempt, device));
CREATE TABLE IF NOT EXISTS batches (job BLOB, round INTEGER, attempt INTEGER, signed BLOB,
  data BLOB, delivered INTEGER DEFAULT 0, PRIMARY KEY (job, round, attempt));
CREATE TABLE IF NOT EXISTS ended (number INTEGER PRIMARY KEY AUTOINCREMENT,
  job BLOB UNIQUE, note BLOB);
"""

ENDED_KEPT = ProxySettings.ended_kept
_encode = msgspec.msgpack.encode


class Spool:
    """The proxy's durable memory. One process owns the file.

    Every method raises StorageError when the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, "the spool", _SCHEMA, secure_delete=True)
        self._together = self._emptied = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def store(self, item: object) -> None:
        """Apply one of the machine's items, durably and at once."""
        with self._file.transaction() as db:
            match item:
                case Kept():
                    self._keep(db, item)
                case UploadKept(at=at, device=device, held=held):
                    db.execute(
                        "INSERT OR IGNORE INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?)",
                        (*key_of(at), device, _encode(held.groups), held.digest, held.data),
                    )
                case BatchKept(at=at, signed=signed, data=data):
                    db.execute(
                        "INSERT OR IGNORE INTO batches VALUES (?, ?, ?, ?, ?, 0)",
                        (*key_of(at), _encode(signed), data),
                    )
                    _run(db, "UPDATE uploads SET data = x''", at)
                case BatchDelivered(at=at):
                    _run(db, "UPDATE batches SET delivered = 1, data = x''", at)
                case RoundDropped(at=at):
                    _run(db, "DELETE FROM uploads", at)
                    _run(db, "UPDATE batches SET delivered = 1, data = x''", at)
                case JobEnded(job_id=job_id, note=note):
                    self._end(db, job_id, note)
        self._emptied |= not isinstance(item, UploadKept)
        if not self._together:
            self._forget()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is stored inside is durable when the block ends, all of it or nothing."""
        self._together = True
        try:
            with self._file.transaction():
                yield
        finally:
            self._together = False
        self._forget()

    def _forget(self) -> None:
        """The write-ahead log still holds the pages from before: who sent which ciphertext."""
        if self._emptied:
            with self._file.guard("emptied") as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._emptied = False

    def _keep(self, db: sqlite3.Connection, kept: Kept) -> None:
        """Store a broadcast; of a job only the newest round stays, of releases the newest."""
        header = kept.header
        kind = "commit" if isinstance(header, Commit) else header.kind
        if kind == "round":
            old = "DELETE FROM {} WHERE job = ?"
            for table in ("uploads", "batches"):
                db.execute(old.format(table), (header.at.job_id,))
            db.execute(
                "DELETE FROM kept WHERE job = ? AND kind IN ('round', 'commit')",
                (header.at.job_id,),
            )
        if kind == "release":
            db.execute("DELETE FROM kept WHERE kind = 'release'")
        if kind == "job":
            db.execute("DELETE FROM kept WHERE job = ? AND kind = 'job'", (header.at.job_id,))
        db.execute(
            "INSERT OR REPLACE INTO kept (digest, job, kind, signed, data) VALUES (?, ?, ?, ?, ?)",
            (header.blob.digest, header.at.job_id, kind, _encode(kept.signed), kept.data),
        )

    def _end(self, db: sqlite3.Connection, job_id: bytes, note: Note) -> None:
        for table in ("uploads", "batches"):
            db.execute(f"DELETE FROM {table} WHERE job = ?", (job_id,))  # noqa: S608 - constants
        db.execute("DELETE FROM kept WHERE job = ? AND kind != 'release'", (job_id,))
        db.execute(
            "INSERT OR REPLACE INTO ended (job, note) VALUES (?, ?)", (job_id, _encode(note))
        )
        db.execute(
            "DELETE FROM ended WHERE number <= (SELECT MAX(number) FROM ended) - ?", (ENDED_KEPT,)
        )

    def load(self) -> ProxyMemory:
        """The memory as it was when the last process ended."""
        with self._file.guard() as db:
            return self._load(db)

    def _load(self, db: sqlite3.Connection) -> ProxyMemory:
        memory = ProxyMemory()
        for signed_bytes, data in db.execute("SELECT signed, data FROM kept ORDER BY number"):
            signed = msgspec.msgpack.decode(signed_bytes, type=Signed)
            header = decode_header(signed)
            if isinstance(header, Manifest | Commit):
                memory.kept[header.blob.digest] = Kept(signed, header, data)
        rows = db.execute("SELECT job, round, attempt, device, groups, digest, data FROM uploads")
        for job, number, attempt, device, groups, digest, data in rows:
            held = Held(msgspec.msgpack.decode(groups, type=tuple[int, ...]), digest, data)
            memory.uploads.append(UploadKept(Exchanged(job, number, attempt), device, held))
        rows = db.execute("SELECT job, round, attempt, signed, data, delivered FROM batches")
        for job, number, attempt, signed_bytes, data, delivered in rows:
            key = (job, number, attempt)
            if delivered:
                memory.delivered.add(key)
                continue
            signed = msgspec.msgpack.decode(signed_bytes, type=Signed)
            header = decode_header(signed)
            if isinstance(header, Batch):
                memory.batches[key] = BatchKept(Exchanged(*key), signed, header, data)
        for job, note in db.execute("SELECT job, note FROM ended ORDER BY number"):
            memory.ended[job] = msgspec.msgpack.decode(note, type=Note)
        return memory


def _run(db: sqlite3.Connection, statement: str, at: Exchanged) -> None:
    db.execute(statement + " WHERE job = ? AND round = ? AND attempt = ?", key_of(at))
