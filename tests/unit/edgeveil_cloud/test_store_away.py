"""A database server that goes away: what is asked of the store waits for it, and then says so."""

import socket
import threading
import time

import pytest

from edgeveil_cloud import database
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord, StoreError
from tests.kits.postgres_server import postgres_server


@pytest.fixture(scope="module")
def server():
    with postgres_server() as running:
        yield running


@pytest.fixture
def store(server):
    opened = Store(server.url)
    yield opened
    opened.close()


@pytest.fixture
def waits(monkeypatch):
    """How long it was waited, each time."""
    found = []
    sleep = time.sleep

    def wait(seconds):
        found.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(database.time, "sleep", wait)
    return found


def test_a_restart_is_waited_out_and_nothing_is_lost_or_doubled(server, store, caplog):
    caplog.set_level("INFO")
    job = store.submit_job("away", b"{}", bytes(32)).id
    store.set_status(job, "running")
    server.stop()
    back = threading.Timer(0.5, server.start)
    back.start()
    assert store.commit_round(job, RoundRecord(1, "train", 1, 1, 3), b"one", [("round", {})])
    back.join()
    last = store.last_commit(job)
    assert last is not None and last.state == b"one"
    types = [event.type for event in store.events_after(0, job)]
    assert types == ["job_submitted", "job_running", "round"]
    assert [line.message for line in caplog.records] == ["store_away", "store_back"]


def test_a_database_that_stays_away_is_an_error_with_a_fix_and_without_the_address(
    server, store, waits, monkeypatch
):
    monkeypatch.setattr(database, "AWAY_S", 0.4)
    server.stop()
    try:
        with pytest.raises(StoreError, match="did not answer") as caught:
            store.counts()
        assert len(waits) >= 2
        assert "start the cloud again" in caught.value.fix
        assert "edgeveil@" not in str(caught.value)
        with pytest.raises(StoreError, match="cannot be opened"):
            Store(server.url)
    finally:
        server.start()
    assert store.counts().enrolled == 0


def test_a_server_that_takes_a_connection_and_says_nothing_is_given_up(server, monkeypatch):
    monkeypatch.setattr(database, "CONNECT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"postgresql://edgeveil@127.0.0.1:{silent.getsockname()[1]}/postgres"
        with pytest.raises(StoreError, match="cannot be opened"):
            Store(address)
