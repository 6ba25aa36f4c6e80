"""The HTTP control through a real socket: who may ask, what is answered, how it ends."""

import asyncio
import json
from contextlib import asynccontextmanager
from itertools import product

import pytest
from http_kit import TOKENS, inside, served

from edgeveil.errors import UsageError
from edgeveil.parts.features.onnx import MAX_BACKBONE_BYTES
from edgeveil_cloud.http_guard import Scope, TokenFolder, load_or_make_token, rotate_token

TOKEN = TOKENS[Scope.ADMIN]


@asynccontextmanager
async def as_admin():
    async with served() as cloud:
        cloud.token = TOKEN
        cloud.job = cloud.store.submit_job("a", b"", bytes(32)).id
        yield cloud


admin = inside(as_admin)


@admin
async def test_nothing_but_health_is_told_without_the_token(cloud):
    for token in ("", "wrong", TOKEN[:-1], TOKEN + "x", "ü" * 43):
        cloud.token = token
        for path in (f"/jobs/{cloud.job}", "/jobs/none", "/no/such/page"):
            answer = await cloud.ask("GET", path)
            assert answer.status == 401, (path, token)
            assert cloud.job.encode() not in answer.body
    assert await cloud.json("GET", "/healthz") == {"status": "ok"}


async def test_a_token_reaches_as_far_as_its_scope(tmp_path):
    tokens = TokenFolder(tmp_path)
    async with served(tokens) as cloud:
        job = cloud.store.submit_job("a", b"", bytes(32)).id
        cloud.store.put_release(job, b"ONNX", b"TENSORS")
        of_it, releases = f"/jobs/{job}", f"/releases/{job}"
        reading = ["/jobs", of_it, f"{of_it}/events", f"{of_it}/job.json", "/status", "/metrics"]
        wanted = {("GET", path): Scope.READ for path in [*reading, "/releases", releases]}
        wanted["HEAD", "/jobs"] = Scope.READ
        submitting = [("GET", f"{of_it}/model.onnx"), ("HEAD", f"{of_it}/model.onnx")]
        submitting += [("GET", f"{of_it}/model.safetensors")]
        submitting += [("PUT", "/backbones"), ("POST", "/jobs")]
        submitting += [("POST", f"{of_it}/{change}") for change in ("cancel", "resume")]
        submitting += [("POST", f"{releases}/{change}") for change in ("withdraw", "promote")]
        wanted |= dict.fromkeys(submitting, Scope.SUBMIT)
        levels = [(None, ""), *sorted(tokens().items())]
        for (scope, token), ((method, path), least) in product(levels, wanted.items()):
            status = await cloud.status(method, path, token)
            if scope is not None and scope >= least:
                assert status not in (401, 403), (scope, method, path)
            else:
                assert status == (401 if scope is None else 403), (scope, method, path)
                assert cloud.store.job(job).status == "queued"


@pytest.mark.parametrize("scope", list(Scope))
async def test_a_token_that_is_rotated_or_unfit_lets_nobody_in_any_more(tmp_path, scope):
    tokens = TokenFolder(tmp_path)
    async with served(tokens) as cloud:

        async def status(token):
            return await cloud.status("GET", "/jobs", token)

        before = dict(tokens())
        assert await status(before[scope]) == 200
        path = rotate_token(tmp_path, scope)
        assert path.stat().st_mode & 0o777 == 0o600
        assert [one.name for one in tmp_path.iterdir() if one.name.endswith(".new")] == []
        after = load_or_make_token(tmp_path, scope)
        assert [await status(one) for one in (before[scope], after)] == [401, 200]
        for other in set(Scope) - {scope}:
            assert await status(before[other]) == 200
        for mode, expected in ((0o644, 401), (0o600, 200)):
            path.chmod(mode)
            assert await status(after) == expected
        path.unlink()
        assert await status(after) == 401


def test_the_token_is_made_once_for_its_owner_alone(tmp_path):
    token, path = load_or_make_token(tmp_path / "state"), tmp_path / "state" / "http.token"
    assert len(token) >= 32 and path.stat().st_mode & 0o777 == 0o600
    assert load_or_make_token(tmp_path / "state") == token
    assert load_or_make_token(tmp_path / "other") != token
    path.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        load_or_make_token(tmp_path / "state")
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(UsageError, match="holds no token"):
        load_or_make_token(tmp_path / "state")


@admin
async def test_what_cannot_be_done_is_a_json_error(cloud):
    job = cloud.job
    assert (await cloud.json("POST", f"/jobs/{job}/cancel"))["status"] == "cancelled"
    for method, path, wanted in [
        ("GET", "/jobs/none", 404),
        ("POST", f"/jobs/{job}/cancel", 409),
        ("POST", "/releases/none/withdraw", 404),
        ("DELETE", "/jobs", 405),
        ("GET", f"/jobs/{job}/events?after=x", 422),
        ("GET", f"/jobs/{job}/events?wait_s=nan", 422),
    ]:
        answer = await cloud.ask(method, path)
        assert answer.status == wanted, path
        assert json.loads(answer.body).keys() & {"what", "problems"}
    refused = await cloud.ask("POST", "/jobs", data=b"nonsense")
    assert (refused.status, len(json.loads(refused.body)["problems"])) == (422, 2)
    assert await cloud.status("POST", "/jobs", data=b"\xff\xfe") == 422
    assert len(cloud.store.jobs()) == 1


def looked_again(store):
    """Set when a long poll asks for news a second time: it has found nothing, and it waits."""
    plain, asked, again = store.news, [], asyncio.Event()

    def news(job):
        asked.append(job)
        if len(asked) == 2:
            again.set()
        return plain(job)

    store.news = news
    return asyncio.wait_for(again.wait(), 20)


@admin
async def test_a_long_poll_answers_with_the_first_event_and_does_not_hold_up_the_end(cloud):
    events = f"/jobs/{cloud.job}/events"
    (first,) = (await cloud.json("GET", events))["events"]
    assert first["type"] == "job_submitted"
    again = looked_again(cloud.store)
    poll = asyncio.create_task(cloud.json("GET", f"{events}?after={first['seq']}&wait_s=30"))
    await again
    assert not poll.done()
    cloud.store.append_event(cloud.job, "note", {"k": 1})
    (event,) = (await poll)["events"]
    assert (event["type"], event["data"]) == ("note", {"k": 1})
    after = f"{events}?after={event['seq']}"
    assert (await cloud.json("GET", f"{after}&wait_s=0.1"))["events"] == []
    again = looked_again(cloud.store)
    poll = asyncio.create_task(cloud.json("GET", f"{after}&wait_s=30"))
    await again
    await cloud.server.stop()  # an answer, not a broken connection
    assert await asyncio.wait_for(poll, 20) == {"events": []}


@admin
async def test_a_release_is_shown_by_counts_and_withdrawn_for_good(cloud):
    job, rollouts = cloud.job, cloud.store.rollouts
    rollouts.begin(job, "digits", [b"k" * 32], 9.0)
    rollouts.sent(job, 5, "canary", 1, b"secret" * 11)
    rollouts.count(5, {b"d" * 32: "failed_trial"})
    (shown,) = (await cloud.json("GET", "/releases"))["releases"]
    assert (shown["stage"], shown["reports"]) == ("canary", {"canary": {"failed_trial": 1}})
    assert "kkkk" not in str(shown) and "secret" not in str(shown)
    assert (await cloud.json("GET", f"/jobs/{job}"))["release"] == shown
    assert (await cloud.json("POST", f"/releases/{job}/withdraw"))["stage"] == "withdrawn"
    assert await cloud.status("POST", f"/releases/{job}/promote") == 409


@admin
async def test_a_backbone_beyond_the_limit_is_refused(cloud):
    larger = bytes(MAX_BACKBONE_BYTES + 1)
    assert await cloud.status("PUT", "/backbones", data=larger) == 409
