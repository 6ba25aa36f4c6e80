"""The inference service: what programs of the same box are answered, by which release."""

import asyncio
import io
import json
import stat
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import soundfile

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
    if onnx is not None:
        releases.install("first", onnx, {})
    path = folder / "predict.sock"

    async def ask(method, target, content=b"", kind=JSON, host="localhost", length=None):
        reader, writer = await asyncio.open_unix_connection(path)
        length = len(content) if length is None else length
        head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: {length}\r\n\r\n".encode())
        writer.write(content)
        head, _, text = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split(b" ")[1]), json.loads(text)

    service = InferenceService(Inference(socket=path, **settings), releases)
    await service.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    try:
        yield ask, releases
    finally:
        await service.stop()
    assert not path.exists()


def asked(**what):
    return json.dumps(what).encode()


async def release_of(ask):
    return (await ask("GET", "/v1/model"))[1]["release"]


async def test_one_record_and_a_batch_are_answered_as_predict_answers(tmp_path):
    async with served(tmp_path, model()) as (ask, releases):
        expected = predict(releases.current().path, np.array(X)).plain()
        found = await ask("POST", "/v1/predict", asked(records=X))
        assert found == (200, {"release": "0001-first", "predictions": expected})
        raw = np.array(X[1], "<f4").tobytes()
        for content, kind in ((asked(record=X[1]), JSON), (raw, "application/octet-stream")):
            _, answer = await ask("POST", "/v1/predict", content, kind)
            assert [one["label"] for one in answer["predictions"]] == [expected[1]["label"]]


async def test_what_holds_no_records_is_refused_and_the_service_goes_on(tmp_path):
    async with served(tmp_path, model()) as (ask, _releases):
        one = asked(record=[1, 2])
        for content, kind, status in (
            *((raw, JSON, 400) for raw in (b"{", b"[" * 100_000, b"[]", asked(records=[]))),
            *((asked(records=bad), JSON, 400) for bad in ([[1, 2, 3]], [[1, 2], [3]])),
            *((asked(record=bad), JSON, 400) for bad in (["1", "2"], [1, None])),
            *((bytes(size), "application/octet-stream", 400) for size in (0, 12)),
            (one, "text/plain", 415),
            (one.ljust(REQUEST_BYTES), JSON, 200),
        ):
            assert (await ask("POST", "/v1/predict", content, kind))[0] == status
        # Nothing of this one is ever sent.
        assert (await ask("POST", "/v1/predict", length=REQUEST_BYTES + 1))[0] == 413


async def test_what_could_not_be_read_is_counted_in_the_answer_and_in_the_log(tmp_path, caplog):
    plain = {
        "origin": "public",
        "label": {"column": "y", "classes": ["a", "b", "c"]},
        "columns": [{"name": ["v", "w"], "number": [0, 1]}],
    }
    entries = schema_metadata(DataSchema.model_validate_json(json.dumps(plain)))
    caplog.set_level("INFO", "edgeveil.edge")
    async with served(tmp_path, model(0, entries)) as (ask, _releases):
        whole = asked(records=[{"v": 0.25, "w": 1}])
        assert (await ask("POST", "/v1/predict", whole))[1].keys() == {"release", "predictions"}
        assert not caplog.records
        records = [{"v": "secret", "w": 0.25}, {"v": "secret"}, {"v": 1, "w": 7}]
        _, told = await ask("POST", "/v1/predict", asked(records=records))
    (line,) = caplog.records
    assert (line.getMessage(), line.records, list(line.notes)) == (
        "records_unread",
        3,
        told["notes"],
    )
    assert told["notes"][0].startswith("1 of 3 records were not usable")
    assert [one["unreadable"] + one["clipped"] for one in told["unread"]] == [2, 1]
    assert list(line.unread) == told["unread"] and "secret" not in str(vars(line))


async def test_a_recording_is_read_by_the_model_s_schema(tmp_path):
    audio = {"rate_hz": 4000, "seconds": 0.05, "form": "waveform"}
    label = {"classes": ["low", "high"]}
    spoken = {"origin": "public", "label": label, "audio": audio}
    schema = DataSchema.model_validate_json(json.dumps(spoken))
    graph = build_graph(Identity(IdentityParameters()), schema.input_shape, 2)
    given = {"centre": np.zeros(200), "radius": np.ones(1), "weight": np.eye(200, 2)}
    weights = {name: value.astype(np.float32) for name, value in given.items()}
    sound = io.BytesIO()
    soundfile.write(sound, np.sin(np.arange(400)), 8000, format="WAV")
    (tmp_path / "low.wav").write_bytes(sound.getvalue())
    onnx = bake(graph, weights, schema_metadata(schema))
    async with served(tmp_path, onnx) as (ask, releases):
        expected = predict(releases.current().path, tmp_path / "low.wav").plain()
        status, told = await ask("POST", "/v1/predict", sound.getvalue(), "audio/wav")
        assert status == 200
        assert told["predictions"][0]["probabilities"] == expected[0]["probabilities"]
        assert told["notes"] == ["1 of 1 recordings have another rate than 4000 Hz: resampled"]
        assert (await ask("POST", "/v1/predict", b"RIFF", "audio/flac"))[0] == 400
        assert (await ask("GET", "/v1/model"))[1]["recordings"] is True
        for name, samples in (("nan", [np.nan] * 9), ("none", []), ("long", np.ones(900))):
            soundfile.write(tmp_path / f"{name}.wav", samples, 4000, "FLOAT")
        notes = predict(releases.current().path, tmp_path).notes
        assert [note.split(":")[0] for note in notes] == [
            "1 of 4 recordings have another rate than 4000 Hz",
            "1 of 4 recordings are longer than 0.05 s",
            "2 of 4 records were not usable",
        ]


async def test_a_page_of_another_host_in_a_browser_cannot_ask(tmp_path):
    async with served(tmp_path, model()) as (ask, _releases):
        for hosts, status in (
            (("evil.example", "evil.example:8710"), 403),
            (("127.0.0.1:8710", "[::1]:8710", "localhost"), 200),
        ):
            for host in hosts:
                sent = await ask("POST", "/v1/predict", asked(record=[1, 2]), host=host)
                assert sent[0] == (await ask("GET", "/v1/model", host=host))[0] == status


async def test_a_new_release_and_a_rollback_answer_without_a_lost_request(tmp_path):
    async with served(tmp_path, model()) as (ask, releases):
        first, second = (predict_labels(turn, tmp_path) for turn in (0, 1))
        of = {"0001-first": first, "0002-second": second}
        assert first != second
        stop, answers = asyncio.Event(), []

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
            assert answers[-1][1]["release"] == release
        stop.set()
        await asyncio.gather(*clients)
        for status, told in answers:
            assert status == 200
            assert [one["label"] for one in told["predictions"]] == of[told["release"]]


def predict_labels(turn, folder):
    path = folder / f"alone-{turn}.onnx"
    path.write_bytes(model(turn))
    return predict(path, np.array(X)).labels.tolist()


async def test_a_release_that_may_not_run_leaves_the_one_before_at_work(tmp_path):
    """Nor is a model loaded whose schema makes larger records than it takes."""
    plain = {
        "origin": "public",
        "label": {"column": "y", "classes": ["a", "b", "c"]},
        "columns": [{"name": ["v", "w"], "category": [str(k) for k in range(4096)]}],
    }
    wide = model(1, schema_metadata(DataSchema.model_validate_json(json.dumps(plain))))
    assert run_trial(wide)
    async with served(tmp_path, model()) as (ask, releases):
        for bad in (b"no graph at all", GRAPH, wide):  # the second has no weights of its own
            releases.install("bad", bad, {})
            status, answer = await ask("POST", "/v1/predict", asked(record=[1, 0]))
            assert (status, answer["release"]) == (200, "0001-first")
            assert (await ask("POST", "/v1/predict", asked(records=[{}] * 9)))[0] == 400
        releases.install("fifth", model(1), {})
        assert await release_of(ask) == "0005-fifth"


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
    DeviceProcess._notify(SimpleNamespace(site=SimpleNamespace(name="box")), "no column '\x1b[2J'")
    told = capsys.readouterr()
    assert r"\x1b[2Ja" in told.out and r"\x1b]0;w" in told.err and r"box: no column" in told.out
    assert not {"\x1b", "\r"} & {*told.out, *told.err}


async def test_before_the_first_release_and_where_a_stale_one_stops_it_answers_none(tmp_path):
    async with served(tmp_path) as (ask, releases):
        one = "POST", "/v1/predict", asked(record=X[1])
        assert (await ask("GET", "/v1/model"))[0] == (await ask(*one))[0] == 503
        releases.install("first", model(), {"sequence": 7, "expires_s": 1.0})
        assert (await ask(*one))[0] == 200
        releases.follow("stop")
        assert (await ask(*one))[0] == 503
        releases.apply([7], [], 1e12)
        assert (await ask(*one))[0] == 200
