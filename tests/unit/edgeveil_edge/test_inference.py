"""The inference service: what programs of the same box are answered, by which release."""

import asyncio
import json
import stat
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from edgeveil.config.edge import Inference
from edgeveil.data.schema import DataSchema, schema_metadata
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models.heads import bake, build_graph
from edgeveil_edge.inference import REQUEST_BYTES, InferenceService
from edgeveil_edge.main import DeviceProcess
from edgeveil_edge.predict import predict
from edgeveil_edge.release_trial import run_trial
from edgeveil_edge.releases import ReleaseStore
from edgeveil_tools import cli

GRAPH = build_graph(Identity(IdentityParameters()), (2,), 3)
X = [[1, 0], [0, 1], [3, 3]]
JSON = "application/json"


def model(turn=0, entries=None):
    head = np.roll(np.array([[5, 0, 1], [0, 5, 1]], np.float32), turn, axis=1)
    return bake(
        GRAPH,
        {"centre": np.zeros(2, np.float32), "radius": np.full(1, 0.1, np.float32), "weight": head},
        entries,
    )


@asynccontextmanager
async def served(folder, onnx=None, **settings):
    """A service with this release that listens in `folder`: how to ask it, and its releases."""
    releases = ReleaseStore(folder / "releases")
    releases.install("first", model() if onnx is None else onnx, {})
    path = folder / "predict.sock"

    async def ask(method, target, content=b"", kind=JSON, extra=()):
        reader, writer = await asyncio.open_unix_connection(path)
        lines = [f"{method} {target} HTTP/1.1", f"Content-Type: {kind}", "Connection: close"]
        lines += [
            *extra,
            *(["Host: localhost"] if not any("Host:" in line for line in extra) else []),
        ]
        lines += [f"Content-Length: {len(content)}"] * (method == "POST" and not extra)
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        head, _, text = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split(b" ")[1]), text

    service = InferenceService(Inference(socket=path, **settings), releases)
    await service.start()
    try:
        yield ask, releases
    finally:
        await service.stop()


def asked(**what):
    return json.dumps(what).encode()


async def test_one_record_and_a_batch_are_answered_as_predict_answers(tmp_path):
    async with served(tmp_path) as (ask, releases):
        expected = predict(releases.current().path, np.array(X)).plain()
        status, text = await ask("POST", "/v1/predict", asked(records=X))
        assert (status, json.loads(text)) == (
            200,
            {"release": "0001-first", "predictions": expected},
        )
        for content, kind in (
            (asked(record=X[1]), JSON),
            (np.array(X[1], "<f4").tobytes(), "application/octet-stream"),
        ):
            status, text = await ask("POST", "/v1/predict", content, kind)
            found = json.loads(text)["predictions"]
            assert [one["label"] for one in found] == [expected[1]["label"]]


@pytest.mark.parametrize(
    ("content", "kind", "status", "said"),
    [
        (b"{", JSON, 400, "is no JSON"),
        (b"[" * 100_000, JSON, 400, "is no JSON"),
        (b"[]", JSON, 400, "names no records"),
        (asked(records=[]), JSON, 400, "has shape"),
        (asked(records=[[1, 2, 3]]), JSON, 400, "has shape (1, 3)"),
        (asked(records=[[1, 2], [3]]), JSON, 400, "differ in length"),
        (asked(record=["1", "2"]), JSON, 400, "no real numbers"),
        (asked(record=[1, None]), JSON, 400, "no real numbers"),
        (b"", "application/octet-stream", 400, "has 0 bytes"),
        (bytes(12), "application/octet-stream", 400, "has 12 bytes"),
        (asked(record=[1, 2]), "text/plain", 415, "send application/json"),
    ],
)
async def test_what_holds_no_records_is_refused_with_the_reason(
    tmp_path, content, kind, status, said
):
    async with served(tmp_path) as (ask, _releases):
        got, text = await ask("POST", "/v1/predict", content, kind)
        assert got == status
        assert said in json.loads(text)["error"]
        assert (await ask("GET", "/v1/model"))[0] == 200  # it goes on


async def test_a_body_is_bounded_by_its_header_before_it_is_read(tmp_path):
    async with served(tmp_path) as (ask, _):
        extra = (f"Content-Length: {REQUEST_BYTES + 1}",)  # nothing of it is ever sent
        assert (await ask("POST", "/v1/predict", extra=extra))[0] == 413
        at_most = asked(record=[1, 2]).ljust(REQUEST_BYTES)
        assert (await ask("POST", "/v1/predict", at_most))[0] == 200


async def test_a_page_of_another_host_in_a_browser_cannot_ask(tmp_path):
    async with served(tmp_path) as (ask, _releases):
        content = asked(record=[1, 2])
        for host, status in (
            ("evil.example", 403),
            ("evil.example:8710", 403),
            ("127.0.0.1:8710", 200),
            ("[::1]:8710", 200),
            ("localhost", 200),
        ):
            extra = (f"Content-Length: {len(content)}", f"Host: {host}")
            assert (await ask("POST", "/v1/predict", content, extra=extra))[0] == status
            assert (await ask("GET", "/v1/model", extra=extra[1:]))[0] == status


async def test_a_new_release_and_a_rollback_answer_without_a_lost_request(tmp_path):
    async with served(tmp_path) as (ask, releases):
        first, second = (
            predict_labels(turn, tmp_path) for turn in (0, 1)
        )  # of the same records, by each model alone
        assert first != second
        stop = asyncio.Event()
        answers = []

        async def client():
            while not stop.is_set():
                answers.append(await ask("POST", "/v1/predict", asked(records=X)))

        clients = [asyncio.create_task(client()) for _ in range(4)]
        for change, release in (
            (lambda: releases.install("second", model(1), {}), "0002-second"),
            (releases.rollback, "0001-first"),
        ):
            await asyncio.to_thread(change)
            known = len(answers)
            while len(answers) < known + 12:
                await asyncio.sleep(0)
            text = json.loads(answers[-1][1])
            assert text["release"] == release
        stop.set()
        await asyncio.gather(*clients)
        of = {"0001-first": first, "0002-second": second}
        for status, text in answers:
            assert status == 200
            told = json.loads(text)
            assert [one["label"] for one in told["predictions"]] == of[told["release"]]


def predict_labels(turn, folder):
    path = folder / f"alone-{turn}.onnx"
    path.write_bytes(model(turn))
    return predict(path, np.array(X)).labels.tolist()


async def test_a_release_that_may_not_run_leaves_the_one_before_at_work(tmp_path, monkeypatch):
    async with served(tmp_path) as (ask, releases):
        releases.install("second", b"no graph at all", {})
        status, text = await ask("POST", "/v1/predict", asked(record=[1, 0]))
        assert (status, json.loads(text)["release"]) == (200, "0001-first")
        releases.install("third", GRAPH, {})  # a graph without weights of its own
        assert json.loads((await ask("GET", "/v1/model"))[1])["release"] == "0001-first"
        releases.install("fourth", model(1), {})
        assert json.loads((await ask("GET", "/v1/model"))[1])["release"] == "0004-fourth"


async def test_a_model_whose_schema_makes_larger_records_than_it_takes_is_not_loaded(tmp_path):
    plain = {
        "origin": "public",
        "label": {"column": "y", "classes": ["a", "b", "c"]},
        "columns": [{"name": ["v", "w"], "category": [str(k) for k in range(4096)]}],
    }
    schema = DataSchema.model_validate_json(json.dumps(plain))
    hostile = model(1, schema_metadata(schema))
    assert "differ from the model's" in run_trial(hostile)
    async with served(tmp_path) as (ask, releases):
        releases.install("second", hostile, {})
        status, text = await ask("POST", "/v1/predict", asked(records=[{}] * 9))
        assert (status, "records" in json.loads(text)["error"]) == (400, True)
        assert json.loads((await ask("GET", "/v1/model"))[1])["release"] == "0001-first"


def test_names_of_a_model_or_a_job_do_not_steer_the_terminal(tmp_path, capsys):
    plain = {
        "origin": "public",
        "label": {"column": "y", "classes": ["\x1b[2Ja", "\x1b[2Jb", "c\rd"]},
        "columns": [{"name": ["v", "\x1b]0;w"], "number": [0, 1]}],
    }
    entries = schema_metadata(DataSchema.model_validate_json(json.dumps(plain)))
    (tmp_path / "model.onnx").write_bytes(model(0, entries))
    np.savez(tmp_path / "x.npz", x=np.array(X, np.float32))
    (tmp_path / "x.csv").write_text("v,u\n1,2\n")
    assert cli.main(["predict", str(tmp_path / "model.onnx"), str(tmp_path / "x.npz")]) == 0
    assert cli.main(["predict", str(tmp_path / "model.onnx"), str(tmp_path / "x.csv")]) != 0
    DeviceProcess._say(SimpleNamespace(site=SimpleNamespace(name="box")), "no column '\x1b[2J'")
    told = capsys.readouterr()
    assert r"\x1b[2Ja" in told.out and r"\x1b]0;w" in told.err and r"box: no column" in told.out
    assert not {"\x1b", "\r"} & {*told.out, *told.err}


async def test_before_the_first_release_it_says_so(tmp_path):
    path = tmp_path / "predict.sock"
    service = InferenceService(Inference(socket=path), ReleaseStore(tmp_path / "releases"))
    await service.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 503 " in await reader.readline()
    writer.close()
    await service.stop()
    assert not path.exists()


async def test_a_stale_release_answers_unless_its_owner_said_stop(tmp_path):
    async with served(tmp_path) as (ask, releases):
        releases.install("first", model(), {"sequence": 7, "expires_s": 1.0})
        assert (await ask("POST", "/v1/predict", asked(record=X[1])))[0] == 200
        releases.follow("stop")
        status, text = await ask("POST", "/v1/predict", asked(record=X[1]))
        assert status == 503
        assert "was not renewed" in json.loads(text)["error"]
        releases.apply([7], [], 1e12)
        assert (await ask("POST", "/v1/predict", asked(record=X[1])))[0] == 200
