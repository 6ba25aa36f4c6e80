"""Keeps the noised tensors that a device's ledger forgets when a job is closed.

A trigger of the run's own in the ledger's database copies each row before it is deleted, in the
same transaction, so no kill can part the two.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_TAP = """
CREATE TABLE IF NOT EXISTS chaos_kept (number INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS chaos_keep BEFORE DELETE ON payloads
BEGIN INSERT OR IGNORE INTO chaos_kept VALUES (OLD.number, OLD.payload); END;
"""
_ALL = """
SELECT links.job, links.exchange, found.payload FROM links
JOIN (SELECT number, payload FROM payloads UNION SELECT number, payload FROM chaos_kept) AS found
USING (number) WHERE links.kind = 'released'
"""
_BUSY_S = 10.0


def install(ledger: Path) -> None:
    """From now on nothing is forgotten. Raises sqlite3.Error: no ledger there yet."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=rw", timeout=_BUSY_S, uri=True)) as db:
        db.executescript(_TAP)


def releases(db: sqlite3.Connection) -> dict[tuple[str, int], bytes]:
    """All tensors that were ever released, by (job on the wire in hex, exchange)."""
    return {(job, exchange): bytes(payload) for job, exchange, payload in db.execute(_ALL)}
