"""A database that goes away: what is asked waits for it, or says so, and counts once."""

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
import sqlalchemy as sa

from edgeveil.transport.health import Health
from edgeveil_cloud import database, http
from edgeveil_cloud.http import ControlDesk, HttpThread, make_app
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord, StoreError
from tests.kits.cloud_control import PlainControl
from tests.kits.postgres_server import postgres_server

RECORD = RoundRecord(1, "train", 1, 1, 3)


@pytest.fixture(scope="module")
def server():
    with postgres_server() as running:
        yield running


@pytest.fixture
def store(server):
    opened = Store(server.url)
    yield opened
    opened.close()


def types(store, job):
    return [event.type for event in store.events_after(0, job)]


def test_a_restart_is_waited_out_and_nothing_is_lost_or_doubled(server, store, caplog):
    caplog.set_level("INFO")
    job = store.submit_job("away", b"{}", bytes(32)).id
    store.set_status(job, "running")
    server.stop()
    back = threading.Timer(0.5, server.start)
    back.start()
    assert store.commit_round(job, RECORD, b"one", [("round", {})])
    back.join()
    assert store.last_commit(job).state == b"one"
    assert types(store, job) == ["job_submitted", "job_running", "round"]
    assert [line.message for line in caplog.records] == ["store_away", "store_back"]


def test_a_database_that_stays_away_is_an_error_without_its_address(server, store, monkeypatch):
    monkeypatch.setattr(database, "AWAY_S", 0.4)
    server.stop()
    try:
        with pytest.raises(StoreError) as caught:
            store.counts()
        assert caught.value.fix and "edgeveil@" not in str(caught.value)
        with pytest.raises(StoreError, match="cannot be opened"):
            Store(server.url)
    finally:
        server.start()
    assert store.counts().enrolled == 0


def test_a_server_that_takes_a_connection_and_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(database, "CONNECT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"postgresql://edgeveil@127.0.0.1:{silent.getsockname()[1]}/postgres"
        with pytest.raises(StoreError, match="cannot be opened"):
            Store(address)


class Unheard(Store):
    """The next commits reach the database, and their answers do not come back."""

    lost = 0

    def _committed(self):
        if self.lost:
            self.lost -= 1
            gone = ConnectionError()
            raise sa.exc.OperationalError("COMMIT", {}, gone, connection_invalidated=True)
        super()._committed()


def test_whose_answer_is_lost_counts_once_when_it_is_tried_again(monkeypatch):
    monkeypatch.setattr(database, "_FIRST_WAIT_S", 0.0)
    store = Unheard()
    for end in ("completed", "failed", "cancelled"):
        store.lost = 1
        job = store.submit_job("digits", b"{}", bytes(32), queue_limit=1).id
        store.set_status(job, "running")
        store.lost = 1
        assert not store.commit_round(job, RECORD, b"one", [("round", {})])
        store.lost = 1
        assert store.set_status(job, "paused", "why").status == "paused"
        store.lost = 2  # a look at the job comes first
        assert store.resume(job).status == "queued"
        store.set_status(job, "running")
        store.lost = 1
        assert store.set_status(job, end, "why").status == end
        done = ["submitted", "running", "round", "paused", "resumed", "running", end]
        assert types(store, job) == [one if one == "round" else f"job_{one}" for one in done]
        assert len(store.rounds(job)) == 1
        with pytest.raises(StoreError):  # another end is still refused
            store.cancel(job)
        with pytest.raises(StoreError):
            store.set_status(job, end, "other")


TOKEN = "t" * 43
PATHS = ["/healthz", "/jobs", "/jobs/any", "/jobs/any/events?wait_s=20", "/status", "/metrics"]


class Control(PlainControl):
    """Its status asks the database, as the cloud's own does."""

    def status(self):
        return {"enrolled": self.store.counts().enrolled}


def get(url):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(request, timeout=25) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def play(store, held_up):
    """Serve a cloud whose own loop is then held up by `held_up(url)`."""

    async def run():
        health = Health({"store": lambda: not store.away})
        desk = ControlDesk(asyncio.get_running_loop(), lambda: store.away)
        control, http = Control(store), HttpThread()
        app = make_app(store, control, lambda: {Scope.ADMIN: TOKEN}, health, ask=desk)
        await http.start(app, "127.0.0.1", 0)
        try:
            assert await asyncio.to_thread(get, f"{http.url}/status") == (200, {"enrolled": 0})
            held_up(http.url)
            assert await asyncio.to_thread(get, f"{http.url}/healthz") == (200, {"status": "ok"})
            assert await asyncio.to_thread(get, f"{http.url}/status") == (200, {"enrolled": 0})
        finally:
            await http.stop()

    asyncio.run(run())


def test_every_page_says_that_the_database_is_away_and_all_is_well_when_it_is_back(server, store):
    answers = {}

    def held_up(url):
        def ask():
            while not store.away:
                time.sleep(0.005)
            try:
                answers.update({path: get(url + path) for path in PATHS})
            finally:
                server.start()

        server.stop()
        asking = threading.Thread(target=ask)
        asking.start()
        assert store.counts().enrolled == 0  # on the cloud's loop: it waits until the return
        asking.join()

    play(store, held_up)
    status, health = answers.pop("/healthz")
    degraded = {"status": "degraded", "parts": ["store"], "live": True}
    assert (status, health) == (503, degraded | {"reasons": {"store": "store_fails"}})
    for path, (status, said) in answers.items():
        assert status == 503, path
        assert said["what"] == "the database does not answer" and said["fix"], path


def test_a_cloud_that_is_held_up_otherwise_is_waited_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr(http, "ANSWER_S", 0.3)
    store, answers = Store(), []

    def held_up(url):
        asking = threading.Thread(target=lambda: answers.append(get(f"{url}/jobs")))
        asking.start()
        asking.join()  # the loop does nothing meanwhile

    play(store, held_up)
    store.close()
    assert [status for status, _ in answers] == [503]
