"""A device's durable state in one SQLite file: rounds seen, jobs, outbox, receipts.

The outbox holds only noised, sealed bytes. A receipt records the fate of one upload. The ledger is
a separate file.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import structs

from edgeveil.protocol import device as machine
from edgeveil.protocol import device_round as rounds
from edgeveil.protocol import messages as m
from edgeveil.storage import SqliteFile

_VERSION = 3  # of the schema
_SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (job BLOB PRIMARY KEY, round INTEGER, attempt INTEGER, digest BLOB,
  settled INTEGER);
CREATE TABLE IF NOT EXISTS jobs (job BLOB PRIMARY KEY, canonical BLOB, graph BLOB);
CREATE TABLE IF NOT EXISTS backbones (job BLOB, graph BLOB);
CREATE TABLE IF NOT EXISTS closed (job BLOB PRIMARY KEY, status TEXT);
CREATE TABLE IF NOT EXISTS outbox (job BLOB PRIMARY KEY, round INTEGER, attempt INTEGER,
  header BLOB, marks BLOB, data BLOB, dummy INTEGER, held INTEGER);
CREATE TABLE IF NOT EXISTS answered (job BLOB, round INTEGER, attempt INTEGER,
  PRIMARY KEY (job, round, attempt));
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS receipts (job BLOB, round INTEGER, attempt INTEGER, state TEXT,
  segment_hashes BLOB, PRIMARY KEY (job, round, attempt));
"""
_STEPS = {
    1: """
CREATE TABLE uploads (job BLOB PRIMARY KEY, round INTEGER, attempt INTEGER,
  header BLOB, marks BLOB, data BLOB, dummy INTEGER, held INTEGER);
INSERT INTO uploads SELECT job, round, attempt, header, marks, data, dummy, held FROM outbox;
DROP TABLE outbox;
ALTER TABLE uploads RENAME TO outbox;
""",
    # Facts of the device become facts of a data set, named after the slash; see `adopt_split`.
    2: """
UPDATE facts SET name = name || '/' WHERE name IN ('evaluation_share', 'records_read_by');
""",
}
STORE_FILE = "device.sqlite"
USUAL_SHARE = 0.1  # of evaluation records, for a job that sets none
SPLIT_SHARE = "evaluation_share"  # of a data set: fixed by its first job
READ_BY = "records_read_by"  # of a data set: split by values or by schema, fixed likewise
_SPLIT_FACTS = (SPLIT_SHARE, READ_BY)
RECEIPTS_KEPT = 1000
_HASH_BYTES = 32
_WHERE = "WHERE job = ? AND round = ? AND attempt = ?"
_REFUSED, _REFUSED_KEPT = "refused_lately", 20

# Release facts of the cloud's key epoch; a new key starts its own sequence numbers.
_RELEASE_MARKS = (
    "release_sequence",
    "release_package",
    "release_reported",
    "release_statement",
    "release_report",
)

_encode = msgspec.msgpack.encode
_headers = msgspec.msgpack.Decoder(m.Manifest)

ReceiptState = Literal["stored", "held", "counted", "missing", "late", "refused", "dropped"]


@dataclass(frozen=True)
class UploadReceipt:
    """One upload; `segment_hashes` are the marks of its sealed segments, in order.

    `stored`: not acknowledged. `held`: acknowledged, no commit record seen. `counted`, `missing`:
    acknowledged, and the commit record lists all, or not all, of its segments. `late`: not
    acknowledged, and the record lists none. `refused`: by the proxy. `dropped`: not acknowledged.
    """

    job_id: bytes
    round: int
    attempt: int
    state: ReceiptState
    segment_hashes: tuple[bytes, ...]


class DeviceStore:
    """Durable state of one device, for one process. Every method may raise StorageError."""

    def __init__(self, path: Path | str) -> None:
        what = "the device's store"
        schema: dict[str, Any] = {"version": _VERSION, "steps": _STEPS}
        # No statement cache: an upload may be large.
        self._file = SqliteFile(path, what, _SCHEMA, **schema, keep_statements=False)

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._file.transaction():
            yield

    def store(self, item: object) -> None:
        """Apply one item of the machine durably; inside `together`, at the end of the block."""
        with self._file.transaction() as db:
            match item:
                case rounds.ManifestMark(at=at, manifest_digest=digest, settled=settled):
                    row = (*structs.astuple(at), digest, settled)
                    db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?)", row)
                case rounds.OutboxPut(at=at) as put:
                    kept = (_encode(put.header), b"".join(put.marks), put.data, put.dummy, put.held)
                    query = "INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                    db.execute(query, (*structs.astuple(at), *kept))
                    _put_fact(db, "answered", str(put.upload.number))
                    if not put.dummy:  # dummies get no receipt
                        _add_receipt(db, put)
                case rounds.OutboxHeld(at=at):
                    db.execute("UPDATE outbox SET held = 1 WHERE job = ?", (at.job_id,))
                    _set_receipt(db, at, {"stored": "held"})
                case rounds.OutboxDrop(at=at, outcome=outcome):
                    db.execute("DELETE FROM outbox WHERE job = ?", (at.job_id,))
                    query = f"UPDATE seen SET settled = 1 {_WHERE}"  # noqa: S608 - constants
                    db.execute(query, structs.astuple(at))
                    _set_receipt(db, at, _ENDED[outcome])
                case rounds.LateRecord(at=at, outcome=outcome):
                    _set_receipt(db, at, _ENDED[outcome])
                case machine.SealingKeyAcknowledged():
                    db.execute("DELETE FROM facts WHERE name = 'new_sealing'")
                case machine.CloudEpoch(epoch=epoch):
                    db.execute("DELETE FROM seen")
                    marks = [(name,) for name in _RELEASE_MARKS]
                    db.executemany("DELETE FROM facts WHERE name = ?", marks)
                    _put_fact(db, "epoch", str(epoch))
                case machine.ReportDue(manifest=manifest):
                    _put_fact(db, "release_report", m.encode_inner(manifest).hex())
                case machine.ReportSettled(sequence=sequence):
                    db.execute("DELETE FROM facts WHERE name = 'release_report'")
                    _put_fact(db, "release_reported", str(sequence))
                case machine.JobClosed(job_id=job_id, status=status):
                    db.execute("INSERT OR REPLACE INTO closed VALUES (?, ?)", (job_id, status))
                    old = "DELETE FROM closed WHERE rowid <= (SELECT max(rowid) FROM closed) - ?"
                    db.execute(old, (machine.CLOSED_KEPT,))
                    for table in ("jobs", "backbones", "seen", "answered"):
                        db.execute(f"DELETE FROM {table} WHERE job = ?", (job_id,))  # noqa: S608 - constants
                    facts = (trial_name(job_id), memory_name(job_id))
                    db.execute("DELETE FROM facts WHERE name IN (?, ?)", facts)

    def answered_before(self, at: m.RoundId) -> int:
        """Count other attempts at this round that were answered with an upload."""
        with self._file.guard() as db:
            query = "SELECT count(*) FROM answered WHERE job = ? AND round = ? AND attempt <> ?"
            row = db.execute(query, structs.astuple(at)).fetchone()
        return int(row[0])

    def was_taken(self, job_id: bytes, rounds: Sequence[int]) -> bool:
        query = "SELECT round FROM receipts WHERE job = ? AND state NOT IN ('refused', 'late')"
        with self._file.guard() as db:
            found = db.execute(query, (job_id,)).fetchall()
        return not {round_ for (round_,) in found}.isdisjoint(rounds)

    def receipts(self) -> list[UploadReceipt]:
        query = "SELECT job, round, attempt, state, segment_hashes FROM receipts ORDER BY rowid"
        with self._file.guard() as db:
            rows = db.execute(query)
            return [UploadReceipt(j, r, a, state, _hashes(m)) for j, r, a, state, m in rows]

    def load(self) -> rounds.DeviceMemory:
        memory = rounds.DeviceMemory()
        with self._file.guard() as db:
            for job, number, attempt, digest, settled in db.execute("SELECT * FROM seen"):
                at = m.RoundId(job, number, attempt)
                memory.seen[job] = rounds.ManifestMark(at, digest, bool(settled))
            for (job,) in db.execute("SELECT job FROM jobs ORDER BY rowid"):
                memory.jobs[job] = None
            for (job,) in db.execute("SELECT job FROM closed ORDER BY rowid"):
                memory.closed[job] = None
            memory.release_sequence = int(self.fact("release_sequence") or -1)
            memory.release_package = bytes.fromhex(self.fact("release_package") or "")
            memory.reported = int(self.fact("release_reported") or -1)
            memory.statement = int(self.fact("release_statement") or -1)
            due = self.fact("release_report")
            if due:
                memory.report_due = _headers.decode(bytes.fromhex(due))
            memory.epoch = int(self.fact("epoch") or 0)
            memory.answered = int(self.fact("answered") or 0)
            new = self.fact("new_sealing")
            if new:
                device, sealing, number = json.loads(new)
                memory.new_sealing = m.NewSealingKey(device, bytes.fromhex(sealing), number)
            rows = db.execute(
                "SELECT job, round, attempt, header, marks, data, dummy, held FROM outbox"
                " ORDER BY rowid"
            ).fetchall()
        for job, number, attempt, header, marks, data, dummy, held in rows:
            signed = msgspec.msgpack.decode(header, type=m.Envelope)
            upload = m.decode_header(signed)
            if isinstance(upload, m.Upload):
                at, flags = m.RoundId(job, number, attempt), (bool(dummy), bool(held))
                item = rounds.OutboxPut(at, signed, upload, _hashes(marks), data, *flags)
                memory.uploads[job] = item
        return memory

    def put_job(
        self, job_id: bytes, canonical: bytes, graph: bytes, backbones: Iterable[bytes] = ()
    ) -> None:
        with self._file.transaction() as db:
            db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (job_id, canonical, graph))
            db.execute("DELETE FROM backbones WHERE job = ?", (job_id,))
            rows = [(job_id, backbone) for backbone in backbones]
            db.executemany("INSERT INTO backbones VALUES (?, ?)", rows)

    def job(self, job_id: bytes) -> tuple[bytes, bytes] | None:
        with self._file.guard() as db:
            row: tuple[bytes, bytes] | None = db.execute(
                "SELECT canonical, graph FROM jobs WHERE job = ?", (job_id,)
            ).fetchone()
        return row

    def job_name(self, job_id: bytes) -> str:
        known = self.job(job_id)
        return str(json.loads(known[0])["job"]) if known else ""

    def backbones(self, job_id: bytes) -> list[bytes]:
        with self._file.guard() as db:
            rows = db.execute("SELECT graph FROM backbones WHERE job = ? ORDER BY rowid", (job_id,))
            return [bytes(graph) for (graph,) in rows]

    def queue_sealing_key(self, device: str, sealing: bytes, now_s: float) -> None:
        """Queue a new sealing key for the proxy, numbered by the clock and strictly increasing."""
        number = max(int(now_s), int(self.fact("sealing_number") or 0) + 1)
        self.put_fact("sealing_number", str(number))
        self.put_fact("new_sealing", json.dumps([device, sealing.hex(), number]))

    def enter_cell(self, cell: str, device: str, sealing: bytes, now_s: float) -> None:
        """Queue the sealing key for another cell's proxy, unless the device enrolled with it."""
        if cell == (self.fact("cell") or ""):
            return
        if self.fact("sealing_number"):
            self.queue_sealing_key(device, sealing, now_s)
        self.put_fact("cell", cell)

    def adopt_split(self, datasets: Iterable[str]) -> None:
        """Assign the device-wide split facts of an earlier version to data sets with a release."""
        for name in _SPLIT_FACTS:
            value = self.fact(split_fact(name, ""))
            if value is None:
                continue
            with self._file.transaction() as db:
                rows = [(split_fact(name, one), value) for one in datasets]
                db.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", rows)
                db.execute("DELETE FROM facts WHERE name = ?", (split_fact(name, ""),))

    def fact(self, name: str) -> str | None:
        with self._file.guard() as db:
            row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    def refused_lately(self) -> list[dict[str, Any]]:
        """Return recently declined rounds: `time_s`, `job_id`, `job`, `round`, `cause`, `why`."""
        found: list[dict[str, Any]] = json.loads(self.fact(_REFUSED) or "[]")
        return found

    def note_refusal(self, refusal: Mapping[str, Any]) -> None:
        """Add to `refused_lately`, which keeps the newest round of each job and cause."""
        same = refusal["job_id"], refusal["cause"]
        others = [one for one in self.refused_lately() if (one["job_id"], one["cause"]) != same]
        self.put_fact(_REFUSED, json.dumps([dict(refusal), *others][:_REFUSED_KEPT]))

    def put_fact(self, name: str, value: str) -> None:
        with self._file.transaction() as db:
            _put_fact(db, name, value)


def split_fact(name: str, dataset: str) -> str:
    return f"{name}/{dataset}"


def trial_name(job_id: bytes) -> str:
    return f"trial/{job_id.hex()}"


def memory_name(job_id: bytes) -> str:
    """Return the fact's name for the proxy's memory at the job's first masked answer."""
    return f"memory/{job_id.hex()}"


def _put_fact(db: sqlite3.Connection, name: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def _add_receipt(db: sqlite3.Connection, item: rounds.OutboxPut) -> None:
    """Record an attempt, and its receipt unless an acknowledged one exists; keep the newest."""
    at, place = item.at, structs.astuple(item.at)
    db.execute(
        "INSERT INTO receipts VALUES (?, ?, ?, 'stored', ?) ON CONFLICT DO UPDATE"
        " SET state = excluded.state, segment_hashes = excluded.segment_hashes"
        " WHERE state NOT IN ('held', 'counted', 'missing')",
        (*place, b"".join(item.marks)),
    )
    old = "DELETE FROM receipts WHERE rowid <= (SELECT max(rowid) FROM receipts) - ?"
    db.execute(old, (RECEIPTS_KEPT,))
    db.execute("DELETE FROM answered WHERE job = ? AND round <> ?", (at.job_id, at.round))
    db.execute("INSERT OR IGNORE INTO answered VALUES (?, ?, ?)", place)


# New state of a receipt by its old one. An acknowledged upload never becomes refused or dropped.
_ENDED: dict[rounds.Outcome, dict[ReceiptState, ReceiptState]] = {
    "counted": {"stored": "counted", "held": "counted", "dropped": "counted"},
    "partial": {"held": "missing", "stored": "dropped"},
    "missing": {"held": "missing", "stored": "late", "dropped": "late"},
    "refused": {"stored": "refused"},
    "dropped": {"stored": "dropped"},
}


def _set_receipt(
    db: sqlite3.Connection, at: m.RoundId, by_state: Mapping[ReceiptState, ReceiptState]
) -> None:
    query = f"UPDATE receipts SET state = ? {_WHERE} AND state = ?"  # noqa: S608 - constants
    for was, to in by_state.items():
        db.execute(query, (to, *structs.astuple(at), was))


def _hashes(hashes: bytes) -> tuple[bytes, ...]:
    return tuple(hashes[i : i + _HASH_BYTES] for i in range(0, len(hashes), _HASH_BYTES))
