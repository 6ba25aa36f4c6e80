"""A run's page while it runs: who may see it, what they see, and that it ends with the run."""

import http.client
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeveil.jobs import compile_job, load_job
from edgeveil.pages.assets import CONTENT_POLICY
from edgeveil_cloud import job_view
from edgeveil_tools.local import run_page
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.run_page import MOST_WATCHERS, RunPage, way_in
from edgeveil_tools.result import RunEvents
from tests.kits.browser import PHONE, browser
from tests.kits.job_events import broadcast, committed, course

JOB = Path(__file__).parents[3] / "tests" / "kits" / "quickstart.yaml"


class Fleet(SimpleNamespace):
    """What the page looks at, of a run that stands still."""

    def take(self, *events):
        for event in events:
            self.log.record.take(event)


@pytest.fixture
def fleet():
    job = load_job(JOB)
    record = RunEvents()
    return Fleet(
        job=job,
        settings=LocalRun(devices=20, simulate=True),
        log=SimpleNamespace(record=record, plan=compile_job(job)),
        memory=SimpleNamespace(peak_bytes=3 << 20),
        reference=SimpleNamespace(rounds=[]),
    )


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setattr(run_page, "LOOK_S", 0.02)
    made = RunPage()
    yield made
    made.stop()


def get(url, path=None, **headers):
    """An answer to a request as it stands: a redirection is not followed."""
    rest = url.removeprefix("http://")
    host, _, there = rest.partition("/")
    line = http.client.HTTPConnection(host, timeout=20)
    line.request("GET", f"/{there}" if path is None else path, headers=headers)
    return line.getresponse()


def entered(url):
    answer = get(url)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
    return cookie.partition(";")[0]


def data_of(answer):
    """The next event that a stream tells."""
    while not (line := answer.readline()).startswith(b"data: "):
        assert line
    return json.loads(line.removeprefix(b"data: "))


def test_the_printed_address_opens_it_once_and_for_all(page):
    url = page.start()
    cookie = entered(url)
    answer = get(url, "/", Cookie=cookie)
    assert answer.status == 200
    assert answer.headers["Content-Security-Policy"] == CONTENT_POLICY
    assert answer.headers["Cache-Control"] == "no-store"
    assert b'<script src="/static/job_view.js">' in answer.read()
    assert get(url, "/static/base.js", Cookie=cookie).status == 200
    assert get(url, "/static/none.js", Cookie=cookie).status == 404
    assert get(url, "/static/..%2Fassets.py", Cookie=cookie).status == 404


@pytest.mark.parametrize(
    "path", ["/", "/events", "/static/base.js", "/wrong-secret", "/favicon.ico"]
)
def test_who_has_not_the_address_sees_nothing(page, path):
    url = page.start()
    port = url.split(":")[2].partition("/")[0]
    for cookie in ("", f"edgeveil-run-{port}=wrong", f"edgeveil-run-{port}=\u00e9"):
        answer = get(url, path, Cookie=cookie.encode("latin-1"))
        assert answer.status == 403
        assert b"job" not in answer.read()


def test_another_name_than_this_machines_is_refused_with_the_right_cookie(page):
    url = page.start()
    cookie = entered(url)
    port = url.split(":")[2].partition("/")[0]
    for host in ("evil.example", f"evil.example:{port}", "192.0.2.1", "127.0.0.1.evil.example"):
        assert get(url, "/", Cookie=cookie, Host=host).status == 403
    assert get(url, "/", Cookie=cookie, Host=f"localhost:{port}").status == 200


def test_a_browser_is_led_there_without_the_address_in_its_command_line(page):
    url = page.start()
    with way_in(url) as path, browser() as chromium:
        assert path.parent.stat().st_mode & 0o077 == 0
        assert page._secret not in path.as_uri()
        chromium.open(path.as_uri())
        chromium.wait("location.pathname === '/' && document.getElementById('live')")
    assert not path.exists()


def test_events_come_as_they_happen_and_the_last_one_says_that_it_ended(page, fleet, tmp_path):
    url = page.start()
    answer = get(url, "/events", Cookie=entered(url))
    assert answer.headers["Content-Type"] == "text/event-stream"
    page.show(fleet)
    assert data_of(answer)["view"]["progress"]["text"] == "round 0 of 15"
    fleet.take(*course(2), broadcast("round 3", 7))
    while (view := data_of(answer)["view"])["progress"]["text"] != "round 2 of 15: round 3":
        pass
    assert "Simulated, encryption off" in view["lines"][1]["text"]
    fleet.reference.rounds = [0.9, 0.95]
    last = data_of(answer)["view"]
    assert [card["name"] for card in last["cards"][0]][:2] == ["accuracy now", "without noise"]
    report = tmp_path / "report.html"
    (tmp_path / "events.jsonl").write_text("")
    page.end(ended(fleet, report))
    told = data_of(answer)
    assert told["ended"] == "ended"
    assert told["view"]["badge"]["text"] == "failed"
    stopping = threading.Thread(target=page.stop)
    stopping.start()
    assert answer.read().strip() == b""
    stopping.join(20)
    assert not stopping.is_alive()


def ended(fleet, report):
    from edgeveil_tools.result import Result, RunFacts, build, privacy_of

    facts = RunFacts(
        job="quickstart",
        status="failed",
        reason="stopped",
        broker="",
        protocol=None,
        devices=20,
        infer_only=0,
        seconds=3.0,
        memory_peak_bytes=None,
        reference=[],
        bytes={},
        privacy=privacy_of(fleet.log.plan.quote(), None),
        simulated=True,
    )
    return Result(build(fleet.log.record, facts), report.parent)


def test_nothing_is_made_while_nobody_watches(page, fleet, monkeypatch):
    made = []
    view = job_view.job_view
    monkeypatch.setattr(job_view, "job_view", lambda *given: made.append(1) or view(*given))
    url = page.start()
    page.show(fleet)
    fleet.take(*course(3))
    time.sleep(0.2)
    assert made == []
    cookie = entered(url)
    streams = [get(url, "/events", Cookie=cookie) for _ in range(3)]
    first, *others = [data_of(one) for one in streams]
    assert others == [first] * 2
    assert made == [1]  # the same for all of them


def test_one_watcher_too_many_ends_the_oldest(page, fleet):
    url = page.start()
    page.show(fleet)
    cookie = entered(url)
    there = [get(url, "/events", Cookie=cookie) for _ in range(MOST_WATCHERS)]
    assert [data_of(one)["view"]["title"] for one in there] == ["quickstart"] * MOST_WATCHERS
    more = get(url, "/events", Cookie=cookie)
    assert data_of(more)["view"]["title"] == "quickstart"
    assert there[0].read().strip() == b""


def test_a_browser_follows_the_run_to_its_end(page, fleet, tmp_path):
    with browser() as chromium:
        url = page.start()
        page.show(fleet)
        fleet.take(*course(3))
        chromium.open(url, PHONE)
        chromium.wait("document.querySelector('#time .drawn')")
        assert chromium.run("return location.pathname") == "/"  # the secret is in no history
        assert chromium.run("return document.cookie") == ""
        assert chromium.run("return document.querySelector('#live').textContent") == "live"
        fleet.take(broadcast("round 4", 9), committed(5, 4, 10))
        chromium.wait("document.querySelector('#rounds tbody').rows.length === 5")
        assert chromium.cut_off() == [] and chromium.small_text() == []
        assert chromium.barriers() == []
        (tmp_path / "events.jsonl").write_text("")
        page.end(ended(fleet, tmp_path / "report.html"))
        chromium.wait("document.querySelector('#live').textContent === 'ended'")
        assert chromium.run("return document.title") == "quickstart: failed"
        page.stop()
        assert chromium.wrong() == []


def test_only_looking_is_possible(page):
    url = page.start()
    line = http.client.HTTPConnection(url.split("/")[2], timeout=20)
    line.request("POST", "/events", headers={"Cookie": entered(url)})
    assert line.getresponse().status in (403, 405)
