"""The HTTP control through a real socket: who may ask, what is answered, how it ends."""

import asyncio
import json
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest
from played import in_loop, played

from edgeveil.errors import UsageError
from edgeveil_cloud.http import make_app
from edgeveil_cloud.http_guard import Scope, TokenFolder, load_or_make_token, rotate_token
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord
from tests.kits.cloud_control import PlainControl

TOKEN = "t" * 43


def tokens():
    return {Scope.ADMIN: TOKEN}


@asynccontextmanager
async def served(tokens=tokens):
    """`ask(method, path)` of a served application, its store, and the server."""
    store = Store()
    server = await make_app(store, PlainControl(store), tokens).start()
    async with aiohttp.ClientSession(server.url) as session:

        async def ask(method, path, token=TOKEN, **options):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.request(method, path, headers=headers, **options) as answer:
                return answer.status, await answer.read()

        yield {"ask": ask, "store": store, "server": server}
    await server.stop()
    store.close()


served.gives = ("ask", "store", "server")
played = partial(played, served)


def body(answer):
    return json.loads(answer[1])


@played
async def test_a_job_from_submission_to_model(ask, store):
    status, content = await ask("POST", "/jobs", data=b"job: quickstart\n")
    assert status == 201
    job = json.loads(content)["id"]
    listed = body(await ask("GET", "/jobs"))["jobs"]
    assert [(one["id"], one["status"]) for one in listed] == [(job, "queued")]
    assert (await ask("GET", f"/jobs/{job}/model.onnx"))[0] == 404
    store.set_status(job, "running")
    store.commit_round(job, RoundRecord(1, "train", 1, 1, 20, 0.9, bytes={"up": 4}), b"")
    store.put_release(job, b"ONNX", b"TENSORS")
    store.set_status(job, "completed")
    shown = body(await ask("GET", f"/jobs/{job}"))
    assert shown["status"] == "completed"
    assert shown["exchanges"][0]["accuracy"] == 0.9
    assert shown["exchanges"][0]["figure"] == "accuracy 0.900"
    assert await ask("GET", f"/jobs/{job}/model.onnx") == (200, b"ONNX")
    assert await ask("GET", f"/jobs/{job}/model.safetensors") == (200, b"TENSORS")
    assert body(await ask("GET", "/status")) == {"enrolled": 3}


@played
async def test_every_problem_of_a_refused_job_is_returned(ask, store):
    status, content = await ask("POST", "/jobs", data=b"nonsense")
    assert status == 422
    assert len(json.loads(content)["problems"]) == 2
    assert (await ask("POST", "/jobs", data=b"\xff\xfe"))[0] == 422
    assert store.jobs() == ()


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "ü" * 43])
@played
async def test_nothing_but_health_is_told_without_the_token(ask, store, token):
    job = store.submit_job("a", b"", bytes(32)).id
    of_it = f"/jobs/{job}"
    paths = ["/jobs", "/status", of_it, "/jobs/none", "/no/such/page"]
    paths += [f"{of_it}/{what}" for what in ("events", "job.json", "model.onnx")]
    changes = [("POST", path) for path in ("/jobs", f"{of_it}/cancel", f"{of_it}/resume")]
    for method, path in [*(("GET", path) for path in paths), *changes]:
        status, content = await ask(method, path, token=token)
        assert status == 401, path
        assert job.encode() not in content
    assert store.job(job).status == "queued"
    assert await ask("GET", "/healthz", token=token) == (200, b'{"status": "ok"}')


@in_loop
async def test_a_token_reaches_as_far_as_its_scope(tmp_path):
    tokens = TokenFolder(tmp_path)
    async with served(tokens) as given:
        ask, store = given["ask"], given["store"]
        job = store.submit_job("a", b"", bytes(32)).id
        store.put_release(job, b"ONNX", b"TENSORS")
        of_it, models = (
            f"/jobs/{job}",
            (f"/jobs/{job}/model.onnx", f"/jobs/{job}/model.safetensors"),
        )
        reading = ["/jobs", of_it, f"{of_it}/events", f"{of_it}/job.json", "/status", "/metrics"]
        reading += ["/releases", f"/releases/{job}"]
        wanted = {("GET", path): (Scope.READ, "http-read.token") for path in reading}
        wanted["HEAD", "/jobs"] = Scope.READ, "http-read.token"
        submitting = [("GET", models[0]), ("HEAD", models[0]), ("GET", models[1])]
        submitting += [("PUT", "/backbones"), ("POST", "/jobs")]
        submitting += [("POST", f"{of_it}/{what}") for what in ("cancel", "resume")]
        submitting += [("POST", f"/releases/{job}/{what}") for what in ("withdraw", "promote")]
        wanted |= dict.fromkeys(submitting, (Scope.SUBMIT, "http-submit.token"))
        for scope, token in sorted(tokens().items()):
            for (method, path), (least, file) in wanted.items():
                status, content = await ask(method, path, token)
                if scope >= least:
                    assert status not in (401, 403), (scope, method, path)
                    continue
                assert status == 403, (scope, method, path)
                assert store.job(job).status == "queued"
                if method != "HEAD":
                    assert f"scope '{least.label}'" in json.loads(content)["what"]
                    assert file in json.loads(content)["fix"]


@pytest.mark.parametrize("scope", list(Scope))
@in_loop
async def test_a_token_that_is_rotated_or_unfit_lets_nobody_in_any_more(tmp_path, scope):
    tokens = TokenFolder(tmp_path)
    async with served(tokens) as given:

        async def status(token):
            return (await given["ask"]("GET", "/jobs", token))[0]

        before = dict(tokens())
        assert await status(before[scope]) == 200
        path = rotate_token(tmp_path, scope)
        assert path.stat().st_mode & 0o777 == 0o600
        assert [one.name for one in tmp_path.iterdir() if one.name.endswith(".new")] == []
        assert await status(before[scope]) == 401
        for other in set(Scope) - {scope}:
            assert await status(before[other]) == 200
        after = load_or_make_token(tmp_path, scope)
        assert after != before[scope]
        assert await status(after) == 200
        path.chmod(0o644)
        assert await status(after) == 401
        path.chmod(0o600)
        assert await status(after) == 200
        path.unlink()
        assert await status(after) == 401


@played
async def test_unknown_addresses_and_jobs_and_late_cancels_are_json_errors(ask, store):
    job = store.submit_job("a", b"", bytes(32)).id
    assert body(await ask("POST", f"/jobs/{job}/cancel"))["status"] == "cancelled"
    for method, path, wanted in [
        ("GET", "/jobs/none", 404),
        ("GET", "/jobs/none/events", 404),
        ("POST", "/jobs/none/cancel", 404),
        ("POST", f"/jobs/{job}/cancel", 409),
        ("POST", "/jobs/none/resume", 404),
        ("POST", f"/jobs/{job}/resume", 409),
        ("GET", "/nowhere", 404),
        ("DELETE", "/jobs", 405),
        ("GET", f"/jobs/{job}/events?after=x", 422),
        ("GET", f"/jobs/{job}/events?wait_s=31", 422),
        ("GET", f"/jobs/{job}/events?wait_s=nan", 422),
    ]:
        status, content = await ask(method, path)
        assert status == wanted, path
        assert json.loads(content).keys() & {"what", "problems"}


def looked_again(store):
    """Set when a long poll asks for news a second time: it has found nothing, and it waits."""
    plain, asked, again = store.news, [], asyncio.Event()

    def news(job):
        asked.append(job)
        if len(asked) == 2:
            again.set()
        return plain(job)

    store.news = news
    return again


@played
async def test_a_long_poll_answers_with_the_first_event_and_pages_on(ask, store):
    job = store.submit_job("a", b"", bytes(32)).id
    first = body(await ask("GET", f"/jobs/{job}/events"))["events"]
    assert [event["type"] for event in first] == ["job_submitted"]
    after = first[0]["seq"]
    again = looked_again(store)
    waiting = asyncio.create_task(ask("GET", f"/jobs/{job}/events?after={after}&wait_s=30"))
    await asyncio.wait_for(again.wait(), 20)
    assert not waiting.done()
    store.append_event(job, "note", {"k": 1})
    (event,) = body(await waiting)["events"]
    assert (event["type"], event["data"]) == ("note", {"k": 1})
    after = event["seq"]
    assert body(await ask("GET", f"/jobs/{job}/events?after={after}&wait_s=0.1"))["events"] == []


@played
async def test_a_long_poll_does_not_hold_up_the_end(ask, store, server):
    job = store.submit_job("a", b"", bytes(32)).id
    again = looked_again(store)
    poll = asyncio.create_task(ask("GET", f"/jobs/{job}/events?after=9&wait_s=30"))
    await asyncio.wait_for(again.wait(), 20)
    await server.stop()  # an answer, not a broken connection
    assert body(await asyncio.wait_for(poll, 20)) == {"events": []}


def test_the_token_is_made_once_for_its_owner_alone(tmp_path):
    token = load_or_make_token(tmp_path / "state")
    path = tmp_path / "state" / "http.token"
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_make_token(tmp_path / "state") == token
    assert load_or_make_token(tmp_path / "other") != token
    path.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        load_or_make_token(tmp_path / "state")
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(UsageError, match="holds no token"):
        load_or_make_token(tmp_path / "state")


@played
async def test_a_release_is_shown_by_counts_and_withdrawn_for_good(ask, store):
    job = store.submit_job("a", b"", bytes(32)).id
    assert (await ask("GET", f"/releases/{job}"))[0] == 404
    assert body(await ask("GET", f"/jobs/{job}"))["release"] is None
    store.rollouts.begin(job, "digits", [b"k" * 32], 9.0)
    store.rollouts.sent(job, 5, "canary", 1, b"secret" * 11)
    store.rollouts.count(5, {b"d" * 32: "failed_trial"})
    (shown,) = body(await ask("GET", "/releases"))["releases"]
    assert shown["stage"] == "canary"
    assert shown["reports"] == {"canary": {"failed_trial": 1}}
    assert "kkkk" not in str(shown)
    assert "secret" not in str(shown)
    assert body(await ask("GET", f"/jobs/{job}"))["release"] == shown
    withdrawn = body(await ask("POST", f"/releases/{job}/withdraw"))
    assert withdrawn["stage"] == "withdrawn"
    status, content = await ask("POST", f"/releases/{job}/promote")
    assert status == 409
    assert b"was withdrawn" in content
    assert (await ask("POST", "/releases/none/withdraw"))[0] == 404
