"""`edgeveil job …` against a served control, and what it says when there is none."""

import json
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
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


def submit(path, url, token, code=0):
    assert main(["job", "submit", str(path), "--cloud", url, "--token-file", str(token)]) == code


def show(url, token, *job):
    assert main(["job", "show", *job, "--cloud", url, "--token-file", str(token)]) == 0


@contextmanager
def cloud(tmp_path):
    """(url, token file, store) of a control served by a thread."""
    with served(tmp_path) as (url, store):
        yield url, tmp_path / "http.token", store


def finish(store, job, status="completed"):
    store.set_status(job, "running")
    scores = {"score": 0.25}
    record = RoundRecord(1, "train", 1, 1, 20, 0.875, scores, 1.5, {"up": 1200})
    store.commit_round(job, RoundRecord(1, "centre", 0, 1, 19), b"")
    store.commit_round(job, RoundRecord(**{**record.__dict__, "index": 2}), b"")
    store.set_status(job, status, "" if status == "completed" else "too few uploads in round 1")


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


def test_a_desk_with_the_core_s_libraries_alone_submits_lists_watches_and_fetches(tmp_path):
    code = LIGHT.format(libraries=NOT_CORE)

    def job(*arguments):
        said = ("--cloud", url, "--token-file", str(token))
        command = [sys.executable, "-c", code, "job", *arguments, *said]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with cloud(tmp_path) as (url, token, store):
        assert job("show")
        found = job("submit", str(QUICKSTART)).strip()
        assert job("submit", str(QUICKSTART)).strip() != found
        finish(store, found)
        store.put_release(found, b"a graph", b"weights")
        _, first, second = job("show").splitlines()
        assert first.split()[:2] == [found, "completed"] and "queued" in second
        watched = job("show", found, "--watch")
        for figure in ("20", "0.875", "centre", "0.250", "1,200"):
            assert figure in watched
        assert "cancelled" in job("cancel", second.split()[0])
        assert json.loads(job("show", "--json"))["jobs"][0]["id"] == found
        job("fetch", found, "--out", str(tmp_path / "model.onnx"))
        assert (tmp_path / "model.onnx").read_bytes() == b"a graph"


def test_of_a_job_with_shared_noise_both_epsilons_are_shown(tmp_path, capsys):
    with cloud(tmp_path) as (url, token, _):
        at = Cloud(url, token)
        plain = at.submit_yaml(QUICKSTART.read_bytes())
        shared = at.submit_yaml(SHARED.read_bytes().partition(b"local_run:")[0])
        training = at.job(shared)["privacy"]["training"]
        collusion = up(training["collusion_epsilon"])
        assert training["epsilon"] == pytest.approx(2, abs=1e-3)
        assert training["collusion_epsilon"] > 3 * training["epsilon"]
        assert training["honest_devices"] == 15 and "privacy" not in at.job(plain)
        show(url, token)
        _, first, second = capsys.readouterr().out.splitlines()
        assert second.split()[-2:] == ["2", collusion]
        assert first.split()[-1].count(":") == 2  # its time, and no ε after it
        show(url, token, shared)
        shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert shown["training"].startswith("ε = 2 per record")
        assert shown["if"].endswith(f"ε = {collusion} per record")


def test_a_pause_is_shown_and_waited_out(tmp_path, capsys):
    with cloud(tmp_path) as (url, token, store):
        job = Cloud(url, token).submit_yaml(QUICKSTART.read_bytes())
        store.set_status(job, "running")
        store.set_status(job, "paused", "1 uploads, below the minimum")

        def go_on():
            assert Cloud(url, token).resume(job)["id"] == job
            finish(store, job)

        later = threading.Timer(0.3, go_on)
        later.start()
        assert jobs.watch(job, Cloud(url, token, patience_s=60.0)) == 0
        later.join()
        shown = capsys.readouterr().out
        assert shown.index("below the minimum") < shown.index("resumed") < shown.index("completed")
        with pytest.raises(UsageError):
            Cloud(url, token).resume(job)


def test_a_completed_jobs_model_is_fetched_in_either_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with cloud(tmp_path) as (url, token, store):
        job, at = store.submit_job("one", b"{}", bytes(32)).id, Cloud(url, token)
        (tmp_path / "a file").touch()
        refused = [(job, None), ("none", None)]
        refused += [(job, tmp_path / out) for out in ("model.pt", "new", "a file/model.onnx")]
        for asked in refused:
            with pytest.raises(UsageError):
                at.fetch(*asked)
            if asked[1] is None and asked[0] == job:
                finish(store, job)
                store.put_release(job, b"an onnx graph", b"weights")
        assert at.fetch(job) == Path(f"{job}.onnx")
        assert Path(f"{job}.onnx").read_bytes() == b"an onnx graph"
        weights = tmp_path / "new" / "w.safetensors"
        assert at.fetch(job, weights) == weights
        assert weights.read_bytes() == b"weights"


def test_the_clouds_problems_and_refusals_are_shown(tmp_path, capsys):
    with cloud(tmp_path) as (url, token, store):
        bad = tmp_path / "bad.yaml"
        bad.write_text("job: quickstart\nprivcy: {}\n")
        submit(bad, url, token, ConfigError.exit_code)
        assert "privcy" in capsys.readouterr().err
        submit(tmp_path / "absent.yaml", url, token, ConfigError.exit_code)
        for refused in (partial(Cloud(url, token).cancel, "none"), Cloud(url, "x" * 43).list):
            with pytest.raises(UsageError):
                refused()
        assert store.jobs() == ()


def test_a_backbone_is_put_before_the_job_that_names_it(tmp_path, capsys):
    backbone = small_backbone()
    (tmp_path / "own.onnx").write_bytes(backbone)
    text = QUICKSTART.read_text()
    entry = "{name: identity, input_scale: 16, shift: -0.3}"
    assert entry in text
    (tmp_path / "job.yaml").write_text(text.replace(entry, "{name: onnx, file: own.onnx}"))
    with cloud(tmp_path) as (url, token, store):
        submit(tmp_path / "job.yaml", url, token)
        canonical = store.job(capsys.readouterr().out.strip()).canonical
        (digest,) = backbone_digests(Job.from_canonical(canonical).features)
        assert store.backbone(digest) == backbone
        assert b"own.onnx" not in canonical


@contextmanager
def recording(answer):
    """(address, what all connections sent) of what answers a connection's first request so."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def one_after_another():
            with suppress(OSError):
                while True:
                    one, _ = server.accept()
                    with one, suppress(OSError):
                        said = one.recv(1 << 16)
                        heard.append(said)
                        one.sendall(answer(said))
                        one.shutdown(socket.SHUT_WR)
                        while more := one.recv(1 << 16):
                            heard.append(more)

        threading.Thread(target=one_after_another, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", heard
        server.shutdown(socket.SHUT_RDWR)


def http(body, kind=b"application/json"):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
    return head % (kind, len(body), body)


OTHERS = [b"{}", b'{"jobs":5}', b"[" * 100_000]


@pytest.mark.parametrize(
    "raw", [*map(http, OTHERS), http(b"<html>", b"text/html"), b"SSH-2.0-x\r\n"]
)
def test_what_is_no_cloud_is_told(tmp_path, raw):
    with recording(lambda _said: raw) as (url, _):
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


def true_proof(token, said):
    nonce = said.split(b"nonce=", 1)[1].split(b" ", 1)[0].decode()
    return http(json.dumps({"proofs": [proof(token, nonce)]}).encode())


@pytest.mark.parametrize(
    "answer",
    [
        lambda _said: http(b'{"proofs": []}'),
        lambda _said: http(b'{"proofs": ["%s", 5, null]}' % (b"0" * 64)),
        lambda _said: http(b'{"proofs": "%s"}' % (b"0" * 64)),
        lambda _said: http(b'{"jobs": []}'),
        lambda _said: b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
        lambda _said: b"HTTP/1.1 302 Found\r\nLocation: /jobs\r\nContent-Length: 0\r\n\r\n",
        lambda said: true_proof("another" * 6, said),
        lambda said: true_proof("secret" * 6, b"nonce=" + b"0" * 64 + b" "),  # an old one
        lambda said: true_proof("secret" * 6, said).replace(
            b"200 OK", b"200 OK\r\nConnection: close"
        ),  # it goes away, and another end has proved nothing
    ],
)
def test_whoever_merely_holds_the_port_gets_no_token(answer):
    with recording(answer) as (url, heard):
        other = Cloud(url, "secret" * 6)
        for call in (other.list, partial(other.submit_yaml, b"job: x")):
            with pytest.raises(UsageError):
                call()
    assert heard
    assert b"/v1/hello" in heard[0]
    assert all(b"secret" not in said and b"Authorization" not in said for said in heard)
    connections = [said for said in heard if said.startswith(b"GET /v1/hello")]
    assert len(connections) == 2  # one a call: a proof is good for its own connection


def test_a_token_crosses_no_network_in_the_clear_and_a_password_is_not_repeated():
    for host in ("cloud", "192.0.2.1", "[2001:db8::1]", "localhost.example"):
        with pytest.raises(UsageError):
            Cloud(f"http://{host}:8701", "t")
        Cloud(f"http://{host}:8701", "t", insecure_http=True)
        Cloud(f"https://{host}:8701", "t")
    for host in ("127.0.0.1", "127.8.8.8", "[::1]", "localhost"):
        Cloud(f"http://{host}:8701", "t")
    with pytest.raises(UsageError) as raised:
        Cloud("http://me:hidden@localhost:8701", "t")
    assert "hidden" not in str(raised.value)


def test_an_operator_lists_shows_promotes_and_withdraws_a_release(tmp_path, capsys):
    with cloud(tmp_path) as (url, token, store):

        def job_command(*arguments, code=0):
            capsys.readouterr()
            words = ["job", *arguments, "--cloud", url, "--token-file", str(token)]
            assert main(words) == code
            return capsys.readouterr().out

        job = Cloud(url, token).submit(QUICKSTART)
        store.rollouts.begin(job, "digits", [b"k" * 32, b"l" * 32], 9.0)
        store.rollouts.sent(job, 5, "canary", 2, bytes(64))
        store.rollouts.count(5, {b"d" * 32: "failed_trial", b"e" * 32: "in_use"})
        (row,) = json.loads(job_command("show", "--json"))["jobs"]
        assert row["release"]["canary"] == 2
        for shown in (job_command("show"), job_command("show", job)):
            assert "1 in use, 1 failed the trial" in shown
        job_command("release", job, "promote")
        withdrawn = json.loads(job_command("release", job, "withdraw", "--json"))
        assert withdrawn["release"]["stage"] == "withdrawn"
        job_command("release", job, "promote", code=UsageError.exit_code)
