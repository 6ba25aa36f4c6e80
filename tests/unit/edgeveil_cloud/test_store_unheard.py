"""A commit whose answer is lost with the connection: it is tried again, and counts once."""

import pytest
import sqlalchemy as sa

from edgeveil_cloud import database
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord, StoreError


class Unheard(Store):
    """The next commit reaches the database, and its answer does not come back."""

    lost = 0

    def _committed(self):
        if self.lost:
            self.lost -= 1
            gone = ConnectionError()
            raise sa.exc.OperationalError("COMMIT", {}, gone, connection_invalidated=True)
        super()._committed()


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(database, "_FIRST_WAIT_S", 0.0)
    return Unheard()


def types(store, job):
    return [event.type for event in store.events_after(0, job)]


def test_a_job_is_submitted_once(store):
    store.lost = 1
    entry = store.submit_job("digits", b"{}", bytes(32), queue_limit=1)
    assert store.jobs() == (entry,)
    assert types(store, entry.id) == ["job_submitted"]


@pytest.mark.parametrize("status", ["paused", "completed", "failed", "cancelled"])
def test_a_job_moves_on_once(store, status):
    job = store.submit_job("digits", b"{}", bytes(32)).id
    store.set_status(job, "running")
    store.lost = 1
    assert store.set_status(job, status, "why").status == status
    assert types(store, job) == ["job_submitted", "job_running", f"job_{status}"]


def test_a_job_is_resumed_once(store):
    job = store.submit_job("digits", b"{}", bytes(32)).id
    store.set_status(job, "running")
    store.set_status(job, "paused", "why")
    store.lost = 2  # a look at the job comes first
    assert store.resume(job).status == "queued"
    assert types(store, job)[-2:] == ["job_paused", "job_resumed"]


def test_a_round_is_committed_once(store):
    job = store.submit_job("digits", b"{}", bytes(32)).id
    store.set_status(job, "running")
    store.lost = 1
    record = RoundRecord(1, "train", 1, 1, 3)
    assert not store.commit_round(job, record, b"one", [("round", {})])
    assert types(store, job)[-1] == "round" and len(store.rounds(job)) == 1


def test_another_end_is_still_refused(store):
    job = store.submit_job("digits", b"{}", bytes(32)).id
    store.cancel(job)
    for what in (lambda: store.cancel(job), lambda: store.set_status(job, "cancelled", "other")):
        with pytest.raises(StoreError, match="cancelled"):
            what()
