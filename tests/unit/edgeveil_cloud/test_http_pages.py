"""The cloud's pages over HTTP: who gets in by a cookie, what it may, what a page is told."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import http_kit
import pytest
from http_kit import TOKENS

from edgeveil.config.cloud import CloudSite
from edgeveil.jobs import parse_job
from edgeveil.transport.listener import ListenAt, server_context
from edgeveil_cloud import http_guard as guard
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.pages import routes
from edgeveil_cloud.pages.fleet import CloudFacts
from edgeveil_cloud.store_tables import RoundRecord
from tests.kits.certificates import Authority
from tests.kits.cloud_control import idle_control

OWN = {"X-EdgeVeil": "1"}
HOSTILE = "<img src=x onerror=alert(1)>"
STATUS = {"jobs": [], "most_running": 1, "enrolled": 0, "queued": 0, "paused": 0, "refused": {}}


def control_of(store):
    control = idle_control(store)
    control.status = lambda: STATUS  # there is no machine
    return control


served = partial(http_kit.served, control=control_of)
browser = http_kit.inside(served)


def secret_job(page):
    return page.store.submit_job("secret-name", b"", bytes(32)).id


@asynccontextmanager
async def stream(page):
    """What the stream says, one value after the other."""
    async with page.session.get("/v1/page/stream") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")

        async def said():
            while True:
                line = await asyncio.wait_for(answer.content.readline(), 20)
                assert line, "the stream ended"
                if line.startswith(b"data: "):
                    return json.loads(line[6:])

        yield said, answer


# --- log-in, log-out ---


@browser
async def test_a_token_is_given_for_a_cookie_that_no_script_and_no_other_site_sees(page):
    secret_job(page)
    before = (await page.ask("GET", "/")).body
    assert b"Log in" in before and b"secret-name" not in before
    answer = await page.log_in()
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="))
    assert "Secure" not in cookie  # plain HTTP on this machine
    assert TOKENS[Scope.SUBMIT] not in cookie
    assert b"cloud.js" in (await page.ask("GET", "/")).body
    assert (await page.json("GET", "/v1/page/me"))["may_submit"]
    assert await page.status("GET", "/jobs") == 200  # the other addresses too


@browser
async def test_a_wrong_token_lets_nobody_in_and_soon_none_is_looked_at(page):
    for _ in range(guard.TRIES):
        answer = await page.log_in(token="wrong")
        assert answer.status == 401 and "Set-Cookie" not in answer.headers
    late = await page.log_in(token="wrong")
    assert late.status == 429 and int(late.headers["Retry-After"]) > 0
    assert await page.status("GET", "/v1/page/me") == 401
    assert (await page.log_in()).status == 303  # a good one is not locked out by others' tries


@browser
async def test_a_log_in_is_small_and_of_the_clouds_own_page(page):
    assert (await page.log_in(token="x" * 5000)).status == 413
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = await page.log_in(headers=headers)
        assert answer.status == 403 and "Set-Cookie" not in answer.headers
    assert (await page.log_in(headers={"Origin": page.url})).status == 303


@browser
async def test_who_logs_out_is_out_with_the_stream_that_was_open(page, monkeypatch):
    monkeypatch.setattr(routes, "BEAT_S", 0.05)
    await page.log_in()
    assert await page.status("POST", "/logout") == 403  # any site's form could
    assert await page.status("GET", "/v1/page/me") == 200
    held = {one.key: one.value for one in page.session.cookie_jar}
    async with stream(page) as (said, answer):
        await said()
        assert await page.status("POST", "/logout", headers=OWN) == 200
        await asyncio.wait_for(answer.content.read(), 20)
    assert await page.status("GET", "/v1/page/me", cookies=held) == 401
    assert b"Log in" in (await page.ask("GET", "/")).body


async def test_a_session_ends_when_its_token_is_rotated(tmp_path):
    tokens = guard.TokenFolder(tmp_path)
    async with served(tokens) as page:
        assert (await page.log_in(token=tokens()[Scope.READ])).status == 303
        assert await page.status("GET", "/jobs") == 200
        for scope, status in ((Scope.SUBMIT, 200), (Scope.READ, 401)):
            guard.rotate_token(tmp_path, scope)
            assert await page.status("GET", "/jobs") == status


def test_sessions_expire_and_are_bounded():
    now = [0.0]
    sessions = guard.BrowserSessions(lambda: TOKENS, lambda: now[0])
    first, scope = sessions.begin(TOKENS[Scope.READ])
    assert scope is Scope.READ is sessions.scope(first)
    assert sessions.begin("wrong") is None
    assert sessions.scope("") is sessions.scope(first[:-1]) is None
    now[0] = guard.KEEP_S
    assert sessions.scope(first) is None
    first, _ = sessions.begin(TOKENS[Scope.READ])
    for _ in range(guard.MOST_SESSIONS):
        last, _ = sessions.begin(TOKENS[Scope.SUBMIT])
    assert (sessions.scope(first), sessions.scope(last)) == (None, Scope.SUBMIT)


def test_wrong_tries_are_counted_by_address_and_forgotten():
    now = [0.0]
    tries = guard.FailedTries(lambda: now[0])
    for _ in range(guard.TRIES):
        assert tries.wait_s("a") == 0
        tries.failed("a")
    assert (tries.wait_s("a"), tries.wait_s("b")) == (guard.TRIES_S, 0)
    for address in range(5000):
        tries.failed(str(address))
    assert len(tries._tries) < 2000
    now[0] = guard.TRIES_S
    assert tries.wait_s("a") == 0
    assert not tries._tries


# --- what a cookie may ---


@browser
async def test_a_cookie_reaches_as_far_as_its_token(page):
    job = secret_job(page)
    page.store.put_release(job, b"ONNX", b"TENSORS")
    await page.log_in(Scope.READ)
    me = await page.json("GET", "/v1/page/me")
    assert me == {"scope": "read", "may_submit": False}
    changes = [("POST", "/jobs"), ("PUT", "/backbones"), ("GET", f"/jobs/{job}/model.onnx")]
    changes += [("POST", f"/jobs/{job}/{change}") for change in ("cancel", "resume")]
    for method, path in changes:
        assert await page.status(method, path, headers=OWN) == 403, path
    assert page.store.job(job).status == "queued"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),  # any site's form could send that
        ({**OWN, "Origin": "http://evil.example"}, 403),
        ({**OWN, "Origin": "null"}, 403),
        ({**OWN, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**OWN, "Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
        ({**OWN, "Sec-Fetch-Site": "same-origin"}, 200),
        (OWN, 200),
    ],
)
@browser
async def test_what_changes_a_job_comes_from_the_clouds_own_page(page, headers, status):
    job = secret_job(page)
    await page.log_in()
    assert await page.status("POST", f"/jobs/{job}/cancel", headers=headers) == status
    assert page.store.job(job).status == ("cancelled" if status == 200 else "queued")


async def test_over_tls_the_cookie_is_secure_and_a_certificate_is_no_sites_to_use(tmp_path):
    authority = Authority(tmp_path)
    server, desk = authority.issue("127.0.0.1"), authority.issue("desk")
    at = ListenAt("127.0.0.1", tls=server_context(*server, authority.cert_file))
    mine = ssl.create_default_context(cafile=authority.cert_file)
    mine.load_cert_chain(*desk)
    connector = aiohttp.TCPConnector(ssl=mine)
    async with served(at=at, clients={"desk": Scope.SUBMIT}, connector=connector) as page:
        assert b"cloud.js" in (await page.ask("GET", "/")).body  # it needs no log-in
        assert (await page.json("GET", "/v1/page/me"))["scope"] == "submit"
        path, foreign = f"/jobs/{secret_job(page)}/cancel", {"Origin": "https://evil.example"}
        assert await page.status("POST", path, headers=foreign) == 403
        assert await page.status("POST", path) == 200  # of a program with a certificate
        cookie = (await page.log_in()).headers["Set-Cookie"]
        assert cookie.startswith("__Host-edgeveil-cloud-") and "Secure" in cookie


@browser
async def test_another_sites_name_that_leads_to_this_machine_shows_nothing(page):
    secret_job(page)
    await page.log_in()
    (value,) = {one.value for one in page.session.cookie_jar}
    other = {"Host": "evil.example", "Cookie": f"edgeveil-cloud={value}"}
    for path in ("/", "/v1/page/stream", "/pages/cloud.js", "/jobs"):
        answer = await page.ask("GET", path, headers=other)
        assert answer.status in (401, 403), path
        assert b"secret-name" not in answer.body
    assert (await page.log_in(headers={"Host": "evil.example"})).status == 403
    for host in ("localhost:1", "127.0.0.1", "[::1]:1"):
        assert await page.status("GET", "/", headers={"Host": host}) == 200


@http_kit.inside(served, at=ListenAt("0.0.0.0"))
async def test_beyond_this_machine_the_cloud_goes_by_any_name(page):
    assert await page.status("GET", "/", headers={"Host": "cloud.example"}) == 200


@browser
async def test_only_the_pages_own_files_are_served(page):
    for name in ("../http.py", "cloud.html", "none.js"):
        assert await page.status("GET", f"/pages/{name}") in (401, 404)


# --- what a page is told ---


def example():
    return parse_job(Path("tests/kits/example.yaml").read_text("utf-8"))


def run_job(store, name="digits", rounds=2):
    of = example()
    entry = store.submit_job(name, of.canonical(), of.digest())
    store.set_status(entry.id, "running")
    for index in range(1, rounds + 1):
        store.announce(entry.id, {"kind": "round", "selected": 5, "round": f"round {index}"})
        right = index / 10
        record = RoundRecord(index, "train", index, 1, 4, right, bytes={"cloud_in": 10})
        event = {"exchange": index, "phase": "train", "number": index, "uploads": 4}
        event |= {"declined": 1, "refused": {"bad_norm": 1}, "accuracy": right, "loss": None}
        store.commit_round(entry.id, record, b"", [("exchange_committed", event)])
    return entry.id


@browser
async def test_the_stream_begins_with_all_and_goes_on_with_what_changed(page):
    store = page.store
    queued = store.submit_job("a", example().canonical(), bytes(32)).id
    store.append_event(queued, "job_waiting", {"enrolled": 3, "wanted": 5})
    job = run_job(store)
    await page.log_in(Scope.READ)
    async with stream(page) as (said, _):
        rows = {row["id"]: row for row in (await said())["rows"]}
        assert rows.keys() == {job, queued}
        assert rows[queued]["reason"].startswith("3 devices are enrolled, the job wants 5: admit")
        row = rows[job]
        assert (row["status"], row["round"], row["rounds"]) == ("running", 2, 15)
        assert row["figure"] == {"name": "accuracy", "text": "0.200"}
        training, inference = row["guarantees"]
        assert (training["name"], training["value"]) == ("ε training", "ε = 8")
        assert "as planned" in training["note"] and "per device" in inference["note"]
        store.set_status(job, "paused", "2 uploaded: below the minimum; mend it")
        (change,) = (await said())["rows"]
        assert (change["id"], change["status"]) == (job, "paused")
        assert "below the minimum" in change["reason"]


async def test_who_watched_and_left_costs_nothing(monkeypatch):
    monkeypatch.setattr(routes, "BEAT_S", 0.05)
    boards, made = [], routes.JobBoard
    monkeypatch.setattr(
        routes, "JobBoard", lambda *given: boards.append(made(*given)) or boards[-1]
    )
    async with served() as page, asyncio.timeout(20):
        await page.log_in(Scope.READ)
        async with stream(page) as (said, _), stream(page) as (also, _):
            await said(), await also()
            assert boards[0]._watchers == 2
        while boards[0]._watchers or boards[0]._keeping:
            await asyncio.sleep(0.05)


@browser
async def test_a_job_is_told_as_a_page_and_again_when_it_changed(page):
    job = run_job(page.store, HOSTILE[:60])
    await page.log_in(Scope.READ)
    path = f"/v1/page/jobs/{job.replace('/', '%2F')}"
    view = (await page.json("GET", path))["view"]
    assert view["title"] == HOSTILE[:60]  # text: the browser never reads it as markup
    assert {"accuracy", "rounds", "events"} <= {one["id"] for one in view["sections"]}
    page.store.set_status(job, "failed", "it broke")
    async with asyncio.timeout(60):  # it is not made anew at once, and says when
        while (again := await page.json("GET", path))["again_s"]:
            assert again["view"] == view
            await asyncio.sleep(again["again_s"])
    assert [one["badge"]["text"] for one in (view, again["view"])] == ["running", "failed"]
    assert await page.status("GET", "/v1/page/jobs/none") == 404


def test_what_ends_is_told_with_when_and_a_file_that_cannot_be_read_with_why(tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.issue("desk")
    site = CloudSite.model_validate(
        {
            "broker": {"url": "mqtts://b:1", "ca_file": authority.cert_file},
            "proxy_key_file": key,
            "state_dir": tmp_path,
            "http": {"tls": {"cert_file": cert, "key_file": key}},
        }
    )
    facts = CloudFacts(site, {}, None)
    (table,) = facts.endings()["parts"]
    assert {row[0] for row in table["rows"]} == {"http.tls.cert_file", "broker.ca_file"}
    assert all(row[1].endswith("UTC") for row in table["rows"])
    assert {one["tone"] for one in facts.endings()["said"]} == {"warn"}  # they end in two hours
    cert.write_text("no certificate")
    first, *_ = facts.endings()["said"]  # what needs somebody comes first
    assert (first["tone"], first["text"].split(":")[0]) == ("bad", "http.tls.cert_file")
    (disk,) = facts.disk()["said"]
    assert "free of" in disk["text"]
    (said,) = facts.links({"bad_signature": 2, "late": 0})["after"]
    assert "2 bad signature" in said["text"] and "late" not in said["text"]
