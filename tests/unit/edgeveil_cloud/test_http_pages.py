"""The cloud's pages over HTTP: who gets in by a cookie, what it may, what a page is told."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import http_kit
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
async def test_a_log_in_takes_the_token_from_the_clouds_own_page_and_soon_no_wrong_one(page):
    assert (await page.log_in(token="x" * 5000)).status == 413
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = await page.log_in(headers=headers)
        assert answer.status == 403 and "Set-Cookie" not in answer.headers
    for _ in range(guard.TRIES):
        answer = await page.log_in(token="wrong")
        assert answer.status == 401 and "Set-Cookie" not in answer.headers
    late = await page.log_in(token="wrong")
    assert late.status == 429 and int(late.headers["Retry-After"]) > 0
    assert await page.status("GET", "/v1/page/me") == 401
    # A good one is not locked out by others' tries.
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


def test_sessions_and_wrong_tries_expire_and_are_bounded():
    now = [0.0]
    sessions = guard.BrowserSessions(lambda: TOKENS, lambda: now[0])
    tries = guard.FailedTries(lambda: now[0])
    first, scope = sessions.begin(TOKENS[Scope.READ])
    assert scope is Scope.READ is sessions.scope(first)
    assert sessions.scope("") is sessions.scope(first[:-1]) is None
    for _ in range(guard.TRIES):
        tries.failed("a")
    assert (tries.wait_s("a"), tries.wait_s("b")) == (guard.TRIES_S, 0)
    for address in range(5000):
        tries.failed(str(address))
    assert len(tries._tries) < 2000
    now[0] = max(guard.KEEP_S, guard.TRIES_S)
    assert (sessions.scope(first), tries.wait_s("a")) == (None, 0)
    first, _ = sessions.begin(TOKENS[Scope.READ])
    for _ in range(guard.MOST_SESSIONS):
        last, _ = sessions.begin(TOKENS[Scope.SUBMIT])
    assert (sessions.scope(first), sessions.scope(last)) == (None, Scope.SUBMIT)


@browser
async def test_what_changes_a_job_comes_from_the_clouds_own_page_and_a_cookie_that_may(page):
    path = f"/jobs/{(job := secret_job(page))}/cancel"
    await page.log_in(Scope.READ)
    assert await page.status("POST", path, headers=OWN) == 403
    await page.log_in()
    for headers in (
        {},  # any site's form could send that
        {**OWN, "Origin": "http://evil.example"},
        {**OWN, "Origin": "null"},
        {**OWN, "Sec-Fetch-Site": "cross-site"},
        {**OWN, "Sec-Fetch-Site": "same-site"},  # another port of this machine
    ):
        assert await page.status("POST", path, headers=headers) == 403, headers
    assert page.store.job(job).status == "queued"
    assert await page.status("POST", path, headers={**OWN, "Sec-Fetch-Site": "same-origin"}) == 200
    assert page.store.job(job).status == "cancelled"


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
    for name in ("../http.py", "cloud.html"):
        assert await page.status("GET", f"/pages/{name}") in (401, 404)
    async with served(at=ListenAt("0.0.0.0")) as beyond_this_machine:
        at = {"headers": {"Host": "cloud.example"}}
        assert await beyond_this_machine.status("GET", "/", **at) == 200


def running_job(store, of):
    entry = store.submit_job("digits", of.canonical(), of.digest())
    store.set_status(entry.id, "running")
    event = {"exchange": 1, "phase": "train", "number": 1, "uploads": 4, "declined": 1}
    event |= {"refused": {"bad_norm": 1}, "accuracy": 0.2, "loss": None}
    record = RoundRecord(1, "train", 1, 1, 4, 0.2, bytes={"cloud_in": 10})
    store.commit_round(entry.id, record, b"", [("exchange_committed", event)])
    return entry.id


async def test_the_stream_begins_with_all_goes_on_with_changes_and_ends_with_its_watchers(
    monkeypatch,
):
    monkeypatch.setattr(routes, "BEAT_S", 0.05)
    boards, made = [], routes.JobBoard
    monkeypatch.setattr(
        routes, "JobBoard", lambda *given: boards.append(made(*given)) or boards[-1]
    )
    of = parse_job(Path("tests/kits/example.yaml").read_text("utf-8"))
    async with served() as page, asyncio.timeout(60):
        queued = page.store.submit_job("a", of.canonical(), bytes(32)).id
        job = running_job(page.store, of)
        await page.log_in(Scope.READ)
        async with stream(page) as (said, _), stream(page) as (also, _):
            await also()
            rows = {row["id"]: row for row in (await said())["rows"]}
            assert rows.keys() == {job, queued}
            row = rows[job]
            assert (row["status"], row["round"], row["rounds"]) == ("running", 1, 15)
            assert row["figure"] == {"name": "accuracy", "text": "0.200"}
            assert row["guarantees"][0]["value"] == "ε = 8"
            page.store.set_status(job, "paused", "below the minimum")
            (change,) = (await said())["rows"]
            assert (change["id"], change["status"]) == (job, "paused")
            assert boards[0]._watchers == 2
        while boards[0]._watchers or boards[0]._keeping:
            await asyncio.sleep(0.05)


def test_certificates_that_end_soon_or_cannot_be_read_come_first(tmp_path):
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
    assert {one["tone"] for one in facts.endings()["said"]} == {"warn"}  # they end in two hours
    cert.write_text("no certificate")
    first, *_ = facts.endings()["said"]
    assert (first["tone"], first["text"].split(":")[0]) == ("bad", "http.tls.cert_file")
