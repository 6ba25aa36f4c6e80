"""The cloud's pages over HTTP: who gets in by a cookie, what it may, what a page is told."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from played import in_loop, played

from edgeveil.jobs import parse_job
from edgeveil.transport.listener import ListenAt, server_context
from edgeveil_cloud import http_guard as guard
from edgeveil_cloud.http import make_app
from edgeveil_cloud.pages import routes
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord
from tests.kits.certificates import Authority
from tests.kits.cloud_control import idle_control

TOKENS = {guard.Scope.READ: "r" * 43, guard.Scope.SUBMIT: "s" * 43, guard.Scope.ADMIN: "t" * 43}
OWN = {"X-EdgeVeil": "1"}
HOSTILE = "<img src=x onerror=alert(1)>"
STATUS = {"jobs": [], "most_running": 1, "enrolled": 0, "queued": 0, "paused": 0, "refused": {}}


class Page:
    """A browser's side: it keeps cookies, and says where its requests come from."""

    def __init__(self, session, url):
        self._session, self.url = session, url

    async def ask(self, method, path, **options):
        options.setdefault("allow_redirects", False)
        async with self._session.request(method, path, **options) as answer:
            found = {"status": answer.status, "headers": answer.headers}
            return SimpleNamespace(**found, body=await answer.read())

    async def log_in(self, scope=guard.Scope.SUBMIT, token=None, **options):
        data = {"token": TOKENS[scope] if token is None else token}
        return await self.ask("POST", "/login", data=data, **options)

    async def json(self, method, path, **options):
        answer = await self.ask(method, path, **options)
        return json.loads(answer.body)


def control_of(store):
    control = idle_control(store)
    control.status = lambda: STATUS  # there is no machine
    return control


@asynccontextmanager
async def served(tokens=lambda: TOKENS, at=None):
    store = Store()
    app = make_app(store, control_of(store), tokens, at=at)
    server = await app.start()
    jar = aiohttp.CookieJar(unsafe=True)  # also from an address without a name
    try:
        async with aiohttp.ClientSession(server.url, cookie_jar=jar) as session:
            yield {"page": Page(session, server.url), "store": store}
    finally:
        await server.stop()
        store.close()


served.gives = ("page", "store")
played = partial(played, served)


@asynccontextmanager
async def stream(page):
    """What the stream says, one value after the other."""
    async with page._session.get("/v1/page/stream") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")

        async def told():
            while True:
                line = await asyncio.wait_for(answer.content.readline(), 20)
                assert line, "the stream ended"
                if line.startswith(b"data: "):
                    return json.loads(line[6:])

        yield told, answer


# --- log-in, log-out ---


@played
async def test_a_token_is_given_for_a_cookie_that_no_script_and_no_other_site_sees(page, store):
    store.submit_job("secret-name", b"", bytes(32))
    before = await page.ask("GET", "/")
    assert b"Log in" in before.body
    assert b"secret-name" not in before.body
    answer = await page.log_in()
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="):
        assert part in cookie
    assert "Secure" not in cookie  # plain HTTP on this machine
    assert TOKENS[guard.Scope.SUBMIT] not in cookie
    assert b"cloud.js" in (await page.ask("GET", "/")).body
    assert (await page.json("GET", "/v1/page/me"))["may_submit"]
    assert (await page.ask("GET", "/jobs")).status == 200  # the other addresses too


@played
async def test_a_wrong_token_lets_nobody_in_and_soon_none_is_looked_at(page):
    for _ in range(guard.TRIES):
        answer = await page.log_in(token="wrong")
        assert answer.status == 401
        assert "Set-Cookie" not in answer.headers
        assert b"none of the cloud" in answer.body
    late = await page.log_in(token="wrong")
    assert late.status == 429
    assert int(late.headers["Retry-After"]) > 0
    assert (await page.ask("GET", "/v1/page/me")).status == 401
    assert (await page.log_in()).status == 303  # a good one is not locked out by others' tries


@played
async def test_a_log_in_is_small_and_of_the_clouds_own_page(page):
    assert (await page.log_in(token="x" * 5000)).status == 413
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = await page.log_in(headers=headers)
        assert answer.status == 403
        assert "Set-Cookie" not in answer.headers
    assert (await page.log_in(headers={"Origin": page.url})).status == 303


@played
async def test_who_logs_out_is_out(page):
    await page.log_in()
    assert (await page.ask("POST", "/logout")).status == 403  # any site's form could
    assert (await page.ask("GET", "/v1/page/me")).status == 200
    held = {one.key: one.value for one in page._session.cookie_jar}
    assert (await page.ask("POST", "/logout", headers=OWN)).status == 200
    assert (await page.ask("GET", "/v1/page/me", cookies=held)).status == 401
    assert b"Log in" in (await page.ask("GET", "/")).body


@in_loop
async def test_a_session_ends_when_its_token_is_rotated(tmp_path):
    tokens = guard.TokenFolder(tmp_path)
    async with served(tokens=tokens) as given:
        page = given["page"]
        assert (await page.log_in(token=tokens()[guard.Scope.READ])).status == 303
        assert (await page.ask("GET", "/jobs")).status == 200
        guard.rotate_token(tmp_path, guard.Scope.SUBMIT)
        assert (await page.ask("GET", "/jobs")).status == 200
        guard.rotate_token(tmp_path, guard.Scope.READ)
        assert (await page.ask("GET", "/jobs")).status == 401


def test_sessions_expire_and_are_bounded():
    now = [0.0]
    sessions = guard.BrowserSessions(lambda: TOKENS, lambda: now[0])
    first, scope = sessions.begin(TOKENS[guard.Scope.READ])
    assert scope is guard.Scope.READ is sessions.scope(first)
    assert sessions.begin("wrong") is None
    assert sessions.scope("") is sessions.scope(first[:-1]) is None
    now[0] = guard.KEEP_S
    assert sessions.scope(first) is None
    first, _ = sessions.begin(TOKENS[guard.Scope.READ])
    for _ in range(guard.MOST_SESSIONS):
        last, _ = sessions.begin(TOKENS[guard.Scope.SUBMIT])
    assert sessions.scope(first) is None
    assert sessions.scope(last) is guard.Scope.SUBMIT


def test_wrong_tries_are_counted_by_address_and_forgotten():
    now = [0.0]
    tries = guard.FailedTries(lambda: now[0])
    for _ in range(guard.TRIES):
        assert tries.wait_s("a") == 0
        tries.failed("a")
    assert tries.wait_s("a") == guard.TRIES_S
    assert tries.wait_s("b") == 0
    for address in range(5000):
        tries.failed(str(address))
    assert len(tries._tries) < 2000
    now[0] = guard.TRIES_S
    assert tries.wait_s("a") == 0
    assert not tries._tries


# --- what a cookie may ---


@played
async def test_a_cookie_reaches_as_far_as_its_token(page, store):
    job = store.submit_job("a", b"", bytes(32)).id
    store.put_release(job, b"ONNX", b"TENSORS")
    await page.log_in(guard.Scope.READ)
    me = await page.json("GET", "/v1/page/me")
    assert me == {"scope": "read", "may_submit": False}
    changes = [("POST", "/jobs"), ("PUT", "/backbones"), ("GET", f"/jobs/{job}/model.onnx")]
    changes += [("POST", f"/jobs/{job}/{what}") for what in ("cancel", "resume")]
    for method, path in changes:
        answer = await page.ask(method, path, headers=OWN)
        assert answer.status == 403, path
        assert "scope 'submit'" in json.loads(answer.body)["what"]
    assert store.job(job).status == "queued"


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
@played
async def test_what_changes_a_job_comes_from_the_clouds_own_page(page, store, headers, status):
    job = store.submit_job("a", b"", bytes(32)).id
    await page.log_in()
    assert (await page.ask("POST", f"/jobs/{job}/cancel", headers=headers)).status == status
    assert store.job(job).status == ("cancelled" if status == 200 else "queued")


@in_loop
async def test_over_tls_the_cookie_is_secure_and_a_certificate_is_no_sites_to_use(tmp_path):
    authority = Authority(tmp_path)
    server, desk = authority.issue("127.0.0.1"), authority.issue("desk")
    context = server_context(*server, authority.cert_file)
    at = ListenAt("127.0.0.1", tls=context)
    mine = ssl.create_default_context(cafile=authority.cert_file)
    mine.load_cert_chain(*desk)
    store = Store()
    job = store.submit_job("a", b"", bytes(32)).id
    clients = {"desk": guard.Scope.SUBMIT}
    server = make_app(store, control_of(store), lambda: TOKENS, at=at, clients=clients)
    await server.start(at)
    jar, connector = aiohttp.CookieJar(unsafe=True), aiohttp.TCPConnector(ssl=mine)
    async with aiohttp.ClientSession(server.url, cookie_jar=jar, connector=connector) as session:
        page = Page(session, server.url)
        assert b"cloud.js" in (await page.ask("GET", "/")).body  # it needs no log-in
        assert (await page.json("GET", "/v1/page/me"))["scope"] == "submit"
        foreign = {"Origin": "https://evil.example"}
        path = f"/jobs/{job}/cancel"
        assert (await page.ask("POST", path, headers=foreign)).status == 403
        assert (await page.ask("POST", path)).status == 200  # of a program with a certificate
        cookie = (await page.log_in()).headers["Set-Cookie"]
        assert cookie.startswith("__Host-edgeveil-cloud-")
        assert "Secure" in cookie
    await server.stop()
    store.close()


@played
async def test_another_sites_name_that_leads_to_this_machine_shows_nothing(page, store):
    store.submit_job("secret-name", b"", bytes(32))
    await page.log_in()
    held = {one.key.rpartition("-")[0]: one.value for one in page._session.cookie_jar}
    (value,) = held.values()
    other = {"Host": "evil.example", "Cookie": f"edgeveil-cloud={value}"}
    for path in ("/", "/v1/page/stream", "/pages/cloud.js", "/jobs"):
        answer = await page.ask("GET", path, headers=other)
        assert answer.status in (401, 403), path
        assert b"secret-name" not in answer.body
    assert (await page.log_in(headers={"Host": "evil.example"})).status == 403
    for host in ("localhost:1", "127.0.0.1", "[::1]:1"):
        assert (await page.ask("GET", "/", headers={"Host": host})).status == 200


@played(at=ListenAt("0.0.0.0"))
async def test_beyond_this_machine_the_cloud_goes_by_any_name(page):
    assert (await page.ask("GET", "/", headers={"Host": "cloud.example"})).status == 200


@pytest.mark.parametrize("name", ["../http.py", "cloud.html", "none.js"])
@played
async def test_only_the_pages_own_files_are_served(page, name):
    assert (await page.ask("GET", f"/pages/{name}")).status in (401, 404)


# --- what a page is told ---


def run_job(store, name="digits", rounds=2, job=None):
    of = job or example()
    number = of.data.target is not None
    entry = store.submit_job(name, of.canonical(), of.digest())
    store.set_status(entry.id, "running")
    for index in range(1, rounds + 1):
        store.announce(entry.id, {"kind": "round", "selected": 5, "round": f"round {index}"})
        right = None if number else index / 10
        loss = 0.16 / index**2 if number else None
        record = RoundRecord(index, "train", index, 1, 4, right, bytes={"cloud_in": 10}, loss=loss)
        told = {"exchange": index, "phase": "train", "number": index, "uploads": 4}
        told |= {"declined": 1, "refused": {"bad_norm": 1}, "accuracy": right, "loss": loss}
        store.commit_round(entry.id, record, b"", [("exchange_committed", told)])
    return entry.id


def example():
    return parse_job(Path("tests/kits/example.yaml").read_text("utf-8"))


@played
async def test_the_stream_begins_with_all_and_goes_on_with_what_changed(page, store):
    first, second = run_job(store), run_job(store, "other")
    await page.log_in(guard.Scope.READ)
    async with stream(page) as (told, _):
        rows = {row["id"]: row for row in (await told())["rows"]}
        assert rows.keys() == {first, second}
        row = rows[first]
        assert (row["status"], row["round"], row["rounds"]) == ("running", 2, 15)
        assert row["figure"] == {"name": "accuracy", "text": "0.200"}
        training, inference = row["guarantees"]
        assert (training["name"], training["value"]) == ("ε training", "ε = 8")
        assert "as planned" in training["note"]
        assert "per device" in inference["note"]
        store.set_status(first, "paused", "2 uploaded: below the minimum; mend it")
        change = await told()
        assert [(one["id"], one["status"]) for one in change["rows"]] == [(first, "paused")]
        assert "below the minimum" in change["rows"][0]["reason"]


@played
async def test_a_waiting_job_says_why_and_what_to_do(page, store):
    queued = store.submit_job("a", example().canonical(), bytes(32)).id
    store.append_event(queued, "job_waiting", {"enrolled": 3, "wanted": 5})
    await page.log_in(guard.Scope.READ)
    async with stream(page) as (told, _):
        (row,) = (await told())["rows"]
    assert row["reason"].startswith("3 devices are enrolled, the job wants 5: admit")


@in_loop
async def test_who_watched_and_left_costs_nothing(monkeypatch):
    monkeypatch.setattr(routes, "BEAT_S", 0.05)
    boards, made = [], routes.JobBoard
    monkeypatch.setattr(
        routes, "JobBoard", lambda *given: boards.append(made(*given)) or boards[-1]
    )
    async with served() as given, asyncio.timeout(20):
        page = given["page"]
        await page.log_in(guard.Scope.READ)
        async with stream(page) as (told, _), stream(page) as (also, _):
            await told(), await also()
            assert boards[0]._watchers == 2
        while boards[0]._watchers or boards[0]._keeping:
            await asyncio.sleep(0.05)


@played
async def test_a_stream_ends_with_the_session_that_it_was_opened_by(page, monkeypatch):
    monkeypatch.setattr(routes, "BEAT_S", 0.05)
    await page.log_in(guard.Scope.READ)
    async with stream(page) as (told, answer):
        await told()
        await page.ask("POST", "/logout", headers=OWN)
        await asyncio.wait_for(answer.content.read(), 20)


@played
async def test_a_job_is_told_as_a_page_and_again_when_it_changed(page, store):
    job = run_job(store, HOSTILE[:60])
    await page.log_in(guard.Scope.READ)
    path = f"/v1/page/jobs/{job.replace('/', '%2F')}"
    view = (await page.json("GET", path))["view"]
    assert view["title"] == HOSTILE[:60]  # text: the browser never reads it as markup
    assert view["badge"]["text"] == "running"
    assert {"accuracy", "rounds", "events"} <= {one["id"] for one in view["sections"]}
    store.set_status(job, "failed", "it broke")
    async with asyncio.timeout(60):  # it is not made anew at once, and says when
        while (again := await page.json("GET", path))["again_s"]:
            assert again["view"] == view
            await asyncio.sleep(again["again_s"])
    assert again["view"]["badge"]["text"] == "failed"
    assert (await page.ask("GET", "/v1/page/jobs/none")).status == 404
