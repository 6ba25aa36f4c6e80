"""What became of the newest uploads, one row each: a device's own proof of what it was told."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Literal

from edgeveil.protocol.device_tasks import OutboxPut, Outcome
from edgeveil.protocol.messages import ExchangeId

SCHEMA = """
CREATE TABLE IF NOT EXISTS receipts (job BLOB, round INTEGER, attempt INTEGER, state TEXT,
  segment_hashes BLOB, PRIMARY KEY (job, round, attempt));
"""
KEPT = 1000
_HASH_BYTES = 32

State = Literal["stored", "held", "counted", "missing", "refused", "dropped"]


@dataclass(frozen=True)
class Receipt:
    """One upload: `segment_hashes` are the marks of its sealed segments, in order.

    `stored`: not acknowledged yet. `held`: the proxy acknowledged it, and no commit record was
    seen. `counted`, `missing`: it was acknowledged, and the commit record lists all of its
    segments, or not all. `refused`: by the proxy. `dropped`: given up without an acknowledgement.
    """

    job_id: bytes
    round: int
    attempt: int
    state: State
    segment_hashes: tuple[bytes, ...]


def add(db: sqlite3.Connection, item: OutboxPut, kept: int) -> None:
    """The upload is on disk. Of all receipts the newest `kept` stay, and no promise is replaced."""
    if item.dummy:
        return
    at = item.at
    db.execute(
        "INSERT INTO receipts VALUES (?, ?, ?, 'stored', ?) ON CONFLICT DO UPDATE"
        " SET state = excluded.state, segment_hashes = excluded.segment_hashes"
        " WHERE state NOT IN ('held', 'counted', 'missing')",
        (at.job_id, at.exchange, at.attempt, b"".join(item.marks)),
    )
    db.execute("DELETE FROM receipts WHERE rowid <= (SELECT max(rowid) FROM receipts) - ?", (kept,))


def hold(db: sqlite3.Connection, at: ExchangeId) -> None:
    """The proxy acknowledged it."""
    _set(db, at, "held", "stored")


def end(db: sqlite3.Connection, at: ExchangeId, outcome: Outcome) -> None:
    """The device is done with it. What was acknowledged is never called refused or dropped."""
    match outcome:
        case "counted":
            _set(db, at, "counted", "stored", "held")
        case "missing":
            _set(db, at, "missing", "held")
            _set(db, at, "dropped", "stored")
        case _:
            _set(db, at, outcome, "stored")


def read(db: sqlite3.Connection) -> list[Receipt]:
    """All receipts, the oldest first."""
    rows = db.execute(
        "SELECT job, round, attempt, state, segment_hashes FROM receipts ORDER BY rowid"
    )
    return [Receipt(row[0], row[1], row[2], row[3], cut(row[4])) for row in rows]


def _set(db: sqlite3.Connection, at: ExchangeId, to: State, *was: State) -> None:
    for state in was:
        db.execute(
            "UPDATE receipts SET state = ?"
            " WHERE job = ? AND round = ? AND attempt = ? AND state = ?",
            (to, at.job_id, at.exchange, at.attempt, state),
        )


def cut(hashes: bytes) -> tuple[bytes, ...]:
    """A row's hashes, 32 bytes each."""
    return tuple(hashes[i : i + _HASH_BYTES] for i in range(0, len(hashes), _HASH_BYTES))
