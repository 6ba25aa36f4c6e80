"""A ledger under the tap works as ever, and what it forgets is kept beside it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.ledger import Ledger, read_ledger
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil_lab.chaos.evidence import tap_ledger, tapped_releases

EVENT = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
LIMITS = Limits(20, 50, 1e-4, 100)


def test_tensors_of_a_closed_job_are_still_there(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(Ledger(path, "digits")) as ledger:
        tap_ledger(path)
        tap_ledger(path)
        for job in ("one", "two"):
            ledger.open_job(JobRequest(job, 1e-5, (EVENT,)), LIMITS)
            ledger.commit(job, 3, [EVENT], job.encode())
        ledger.close_job("one")
    with closing(Ledger(path, "digits")) as ledger:
        ledger.close_job("one")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM payloads").fetchone() == (1,)
        assert tapped_releases(db) == {("one", 3): b"one", ("two", 3): b"two"}
    assert not read_ledger(path).accounts["digits"].jobs["one"].is_open


def test_without_a_ledger_there_is_nothing_to_tap(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.Error):
        tap_ledger(tmp_path / "ledger.sqlite")
