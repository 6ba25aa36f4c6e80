"""`edgeveil job …` against a served control, and what it says when there is none."""

import json
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from edgeveil.errors import ConfigError, UsageError
from edgeveil.jobs import Job
from edgeveil.parts.features import backbone_digests
from edgeveil.privacy.guarantee import up
from edgeveil_cloud.http_guard import proof
from edgeveil_cloud.store_tables import RoundRecord
from edgeveil_tools.cli import jobs, main
from edgeveil_tools.cloud_client import Cloud
from tests.kits.backbone_files import small_backbone
from tests.kits.cloud_control import served

JOBS = Path(__file__).parents[3] / "configs" / "jobs"
QUICKSTART = JOBS.parents[1] / "tests" / "kits" / "quickstart.yaml"
SHARED = JOBS / "digits_shared.yaml"


@contextmanager
def cloud(tmp_path):
    """A control served by a thread: (its client, its store, a call of `edgeveil job`)."""
    with served(tmp_path) as (url, store):
        token = tmp_path / "http.token"

        def job(*words, code=0):
            assert main(["job", *words, "--cloud", url, "--token-file", str(token)]) == code

        yield Cloud(url, token, patience_s=60.0), store, job


def finish(store, job):
    store.set_status(job, "running")
    scores = {"score": 0.25}
    record = RoundRecord(1, "train", 1, 1, 20, 0.875, scores, 1.5, {"up": 1200})
    store.commit_round(job, RoundRecord(1, "centre", 0, 1, 19), b"")
    store.commit_round(job, replace(record, index=2), b"")
    store.set_status(job, "completed")


LIGHT = """
import sys
for name in {libraries}:
    sys.modules[name] = None
from edgeveil_tools.cli import main
sys.exit(main(sys.argv[1:]))
"""
NOT_CORE = (
    *("aiohttp", "amqtt", "dp_accounting", "jinja2", "matplotlib", "onnx", "onnxruntime"),
    *("prometheus_client", "psutil", "rich", "scipy", "sklearn", "sqlalchemy", "torch"),
)


def test_a_desk_with_the_core_s_libraries_alone_submits_watches_and_fetches(tmp_path):
    code = LIGHT.format(libraries=NOT_CORE)

    def job(*arguments):
        at = ("--cloud", url, "--token-file", str(tmp_path / "http.token"))
        command = [sys.executable, "-c", code, "job", *arguments, *at]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with served(tmp_path) as (url, store):
        submitted = job("submit", str(QUICKSTART)).strip()
        finish(store, submitted)
        store.put_release(submitted, b"a graph", b"weights")
        watched = job("show", submitted, "--watch")
        for figure in ("20", "0.875", "centre", "0.250", "1,200"):
            assert figure in watched
        job("fetch", submitted, "--out", str(tmp_path / "model.onnx"))
        assert (tmp_path / "model.onnx").read_bytes() == b"a graph"


def test_of_a_job_with_shared_noise_both_epsilons_are_shown(tmp_path, capsys):
    with cloud(tmp_path) as (at, _, job):
        shared = at.submit_yaml(SHARED.read_bytes().partition(b"local_run:")[0])
        training = at.job(shared)["privacy"]["training"]
        collusion = up(training["collusion_epsilon"])
        assert training["epsilon"] == pytest.approx(2, abs=1e-3)
        assert training["collusion_epsilon"] > 3 * training["epsilon"]
        assert training["honest_devices"] == 15
        job("show")
        _, line = capsys.readouterr().out.splitlines()
        assert line.split()[:2] == [shared, "queued"] and line.split()[-2:] == ["2", collusion]
        job("show", shared)
        shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert shown["training"].startswith("ε = 2 per record")
        assert shown["if"].endswith(f"ε = {collusion} per record")


def test_a_pause_is_shown_and_waited_out(tmp_path, capsys):
    with cloud(tmp_path) as (at, store, _):
        job = at.submit_yaml(QUICKSTART.read_bytes())
        store.set_status(job, "running")
        store.set_status(job, "paused", "1 uploads, below the minimum")

        def go_on():
            assert at.resume(job)["id"] == job
            finish(store, job)

        later = threading.Timer(0.3, go_on)
        later.start()
        assert jobs.watch(job, at) == 0
        later.join()
        shown = capsys.readouterr().out
        assert shown.index("below the minimum") < shown.index("resumed") < shown.index("completed")
        with pytest.raises(UsageError):
            at.resume(job)


def test_a_completed_jobs_model_is_fetched_in_either_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with cloud(tmp_path) as (at, store, _):
        job = store.submit_job("one", b"{}", bytes(32)).id
        with pytest.raises(UsageError):
            at.fetch(job)
        finish(store, job)
        store.put_release(job, b"an onnx graph", b"weights")
        (tmp_path / "a file").touch()
        for refused in (("none",), (job, Path("model.pt")), (job, Path("a file/model.onnx"))):
            with pytest.raises(UsageError):
                at.fetch(*refused)
        assert at.fetch(job) == Path(f"{job}.onnx")
        assert Path(f"{job}.onnx").read_bytes() == b"an onnx graph"
        weights = tmp_path / "new" / "w.safetensors"
        assert at.fetch(job, weights) == weights
        assert weights.read_bytes() == b"weights"


def test_the_clouds_problems_and_refusals_are_shown(tmp_path, capsys):
    with cloud(tmp_path) as (_, store, job):
        bad = tmp_path / "bad.yaml"
        bad.write_text("job: quickstart\nprivcy: {}\n")
        job("submit", str(bad), code=ConfigError.exit_code)
        assert "privcy" in capsys.readouterr().err
        job("submit", str(tmp_path / "absent.yaml"), code=ConfigError.exit_code)
        job("cancel", "none", code=UsageError.exit_code)
        assert store.jobs() == ()


def test_a_backbone_is_put_before_the_job_that_names_it(tmp_path, capsys):
    backbone = small_backbone()
    (tmp_path / "own.onnx").write_bytes(backbone)
    text = QUICKSTART.read_text()
    entry = "{name: identity, input_scale: 16, shift: -0.3}"
    assert entry in text
    (tmp_path / "job.yaml").write_text(text.replace(entry, "{name: onnx, file: own.onnx}"))
    with cloud(tmp_path) as (_, store, job):
        job("submit", str(tmp_path / "job.yaml"))
        canonical = store.job(capsys.readouterr().out.strip()).canonical
        (digest,) = backbone_digests(Job.from_canonical(canonical).features)
        assert store.backbone(digest) == backbone
        assert b"own.onnx" not in canonical


@contextmanager
def recording(answer):
    """(address, what all connections sent) of a server that gives each first request `answer`."""
    received = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def one_after_another():
            with suppress(OSError):
                while True:
                    one, _ = server.accept()
                    with one, suppress(OSError):
                        received.append(one.recv(1 << 16))
                        one.sendall(answer(received[-1]))
                        one.shutdown(socket.SHUT_WR)
                        while more := one.recv(1 << 16):
                            received.append(more)

        threading.Thread(target=one_after_another, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", received
        server.shutdown(socket.SHUT_RDWR)


def http(body, kind=b"application/json"):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
    return head % (kind, len(body), body)


@pytest.mark.parametrize(
    "raw",
    [http(b"{}"), http(b"[" * 100_000), http(b"<html>", b"text/html"), b"SSH-2.0-x\r\n"],
    ids=["object", "nested", "html", "ssh"],
)
def test_a_server_that_is_no_cloud_is_refused(tmp_path, raw):
    with recording(lambda _request: raw) as (url, _):
        other = Cloud(url, "secret")
        calls = [
            other.list,
            partial(other.events, "0" * 32),
            partial(other.wait, "0" * 32),
            partial(other.submit_yaml, b"job: x"),
            partial(other.fetch, "0" * 32, tmp_path / "a.onnx"),
            partial(other.fetch, "0" * 32, tmp_path / "a.safetensors"),
        ]
        for call in calls:
            with pytest.raises(UsageError):
                call()
    assert not list(tmp_path.iterdir())


def true_proof(token, request):
    nonce = request.split(b"nonce=", 1)[1].split(b" ", 1)[0].decode()
    return http(json.dumps({"proofs": [proof(token, nonce)]}).encode())


CLOSED = b"200 OK\r\nConnection: close"  # another end of the next connection has proved nothing


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: http(b'{"proofs": []}'),
        lambda _: http(b'{"proofs": ["%s", 5, null]}' % (b"0" * 64)),
        lambda _: http(b'{"proofs": "%s"}' % (b"0" * 64)),
        lambda _: http(b'{"jobs": []}'),
        lambda _: b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
        lambda _: b"HTTP/1.1 302 Found\r\nLocation: /jobs\r\nContent-Length: 0\r\n\r\n",
        lambda request: true_proof("another" * 6, request),
        lambda _: true_proof("secret" * 6, b"nonce=" + b"0" * 64 + b" "),  # an old one
        lambda request: true_proof("secret" * 6, request).replace(b"200 OK", CLOSED),
    ],
)
def test_a_server_without_proof_of_the_token_gets_none(answer):
    with recording(answer) as (url, received):
        other = Cloud(url, "secret" * 6)
        for call in (other.list, partial(other.submit_yaml, b"job: x")):
            with pytest.raises(UsageError):
                call()
    assert all(b"secret" not in raw and b"Authorization" not in raw for raw in received)
    connections = [raw for raw in received if raw.startswith(b"GET /v1/hello")]
    assert len(connections) == 2  # one a call: a proof is good for its own connection


def test_a_token_crosses_no_network_in_the_clear_and_a_password_is_not_repeated():
    for host in ("cloud", "192.0.2.1", "[2001:db8::1]", "localhost.example"):
        with pytest.raises(UsageError):
            Cloud(f"http://{host}:8701", "t")
        Cloud(f"http://{host}:8701", "t", insecure_http=True)
        Cloud(f"https://{host}:8701", "t")
    for host in ("127.8.8.8", "[::1]", "localhost"):
        Cloud(f"http://{host}:8701", "t")
    with pytest.raises(UsageError) as raised:
        Cloud("http://me:hidden@localhost:8701", "t")
    assert "hidden" not in str(raised.value)


def test_an_operator_lists_shows_promotes_and_withdraws_a_release(tmp_path, capsys):
    with cloud(tmp_path) as (at, store, call):

        def shown(*words, code=0):
            capsys.readouterr()
            call(*words, code=code)
            return capsys.readouterr().out

        job = at.submit(QUICKSTART)
        store.rollouts.begin(job, "digits", [b"k" * 32, b"l" * 32], 9.0)
        store.rollouts.sent(job, 5, "canary", 2, bytes(64))
        store.rollouts.count(5, {b"d" * 32: "failed_trial", b"e" * 32: "in_use"})
        (row,) = json.loads(shown("show", "--json"))["jobs"]
        assert row["release"]["canary"] == 2
        for text in (shown("show"), shown("show", job)):
            assert "1 in use, 1 failed the trial" in text
        shown("release", job, "promote")
        withdrawn = json.loads(shown("release", job, "withdraw", "--json"))
        assert withdrawn["release"]["stage"] == "withdrawn"
        shown("release", job, "promote", code=UsageError.exit_code)
