"""The cloud's HTTP while its database is away: it says so, though all else waits for the return."""

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request

import pytest

from edgeveil.transport.health import Health
from edgeveil_cloud import http
from edgeveil_cloud.http import ControlDesk, HttpThread, make_app
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.store import Store
from tests.kits.cloud_control import PlainControl
from tests.kits.postgres_server import postgres_server

TOKEN = "t" * 43
PATHS = ["/healthz", "/jobs", "/jobs/any", "/jobs/any/events?wait_s=20", "/status", "/metrics"]


def tokens():
    return {Scope.ADMIN: TOKEN}


class Control(PlainControl):
    """Its status asks the database, as the cloud's own does."""

    def status(self):
        return {"enrolled": self.store.counts().enrolled}


def get(url):
    """Status and JSON, asked from another thread than the loop's."""
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
        control = Control(store)
        http = HttpThread()
        app = make_app(store, control, tokens, health, ask=desk)
        await http.start(app, "127.0.0.1", 0)
        try:
            assert await asyncio.to_thread(get, f"{http.url}/status") == (200, {"enrolled": 0})
            held_up(http.url)
            assert await asyncio.to_thread(get, f"{http.url}/healthz") == (200, {"status": "ok"})
            assert await asyncio.to_thread(get, f"{http.url}/status") == (200, {"enrolled": 0})
        finally:
            await http.stop()

    asyncio.run(run())


@pytest.fixture(scope="module")
def server():
    with postgres_server() as running:
        yield running


def test_every_page_says_that_the_database_is_away_and_all_is_well_when_it_is_back(server):
    store = Store(server.url)
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
    store.close()
    assert answers.pop("/healthz") == (
        503,
        {
            "status": "degraded",
            "parts": ["store"],
            "reasons": {"store": "store_fails"},
            "live": True,
        },
    )
    for path, (status, said) in answers.items():
        assert status == 503, path
        assert said["what"] == "the database does not answer", path
        assert said["fix"], path


def test_a_cloud_that_is_held_up_otherwise_is_waited_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr(http, "ANSWER_S", 0.3)
    store = Store()
    answers = []

    def held_up(url):
        asking = threading.Thread(target=lambda: answers.append(get(f"{url}/jobs")))
        asking.start()
        asking.join()  # the loop does nothing meanwhile

    play(store, held_up)
    store.close()
    ((status, said),) = answers
    assert status == 503
    assert "did not answer" in str(said["what"])
