"""A ledger under the tap works as ever, and what it forgets is kept beside it; so does a spool."""

import sqlite3
from contextlib import closing

import pytest

from edgeveil.jobs import load_plan
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.ledger import Ledger, read_ledger
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.proxy_rounds import RoundUnmasked
from edgeveil.protocol.tensors import pack_tensors
from edgeveil.storage import StorageError
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord
from edgeveil_proxy.spool import Spool
from tests.chaos.__main__ import JOB
from tests.chaos.evidence import (
    stored_jobs,
    tap_ledger,
    tap_spool,
    tap_store,
    tapped_releases,
    unmasked_choices,
)

EVENT = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
LIMITS = Limits(20, 50, 1e-4, 100)


def test_tensors_of_a_closed_job_are_still_there(tmp_path):
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
    assert not read_ledger(path).accounts["digits"]["one"].is_open


# --- of what a proxy unmasks ---

AT = RoundId(bytes(16), 1, 1)


def choices(path):
    return [one.question for one in unmasked_choices(path)]


def test_the_real_spool_under_the_tap_keeps_one_choice_and_stops_at_a_second(tmp_path):
    path = tmp_path / "spool.sqlite"
    with closing(Spool(path)) as spool:
        for _ in range(2):
            tap_spool(path)
            spool.store(RoundUnmasked(AT, b"a"))
        with pytest.raises(StorageError):
            spool.store(RoundUnmasked(AT, b"b"))
        spool.store(RoundUnmasked(RoundId(AT.job_id, 2, 1), b"c"))
    assert choices(path) == [b"a", b"c"]


@pytest.mark.parametrize("flaw", ["INSERT OR IGNORE INTO", "INSERT OR REPLACE INTO", "DELETE"])
def test_a_spool_that_takes_a_second_choice_or_forgets_the_first_is_seen(tmp_path, flaw):
    """What a spool would pass over, its machine has answered all the same."""
    path = tmp_path / "spool.sqlite"
    with closing(Spool(path)) as spool:
        tap_spool(path)
        spool.store(RoundUnmasked(AT, b"a"))
        with closing(sqlite3.connect(path)) as db, db:
            if flaw == "DELETE":
                db.execute("DELETE FROM unmasked")
            else:
                row = (AT.job_id, 1, 1, b"b")
                db.execute(f"{flaw} unmasked VALUES (?, ?, ?, ?)", row)
        if flaw == "DELETE":
            spool.store(RoundUnmasked(AT, b"b"))
    assert choices(path) == [b"a", b"b"]


# --- of which cells' batches a commit is made of ---


def test_a_commit_is_made_of_the_cells_whose_batches_the_real_store_absorbed(tmp_path):
    path = tmp_path / "cloud.sqlite"
    plan = load_plan(JOB)
    with closing(Store(f"sqlite:///{path}")) as store:
        for _ in range(2):
            tap_store(path)
        job = store.submit_job("chaos", plan.job.canonical(), bytes(32)).id
        store.set_status(job, "running")
        for cell in ("north", "south", "west"):
            store.put_round_key(job, 1, 2, b"secret", cell)
            store.open_batch(job, 1, 2, cell.encode(), cell)
        store.put_round_key(job, 1, 1, b"secret", "north")
        store.open_batch(job, 1, 1, b"earlier", "north")
        record = RoundRecord(1, plan.round(1).phase, plan.round(1).number, 2, 6)
        kept = [b"south", b"west"]
        assert store.commit_round(job, record, pack_tensors({}), batch_digests=kept)
    (found,) = stored_jobs(path)
    assert found.commits[0].cells == ("south", "west")
