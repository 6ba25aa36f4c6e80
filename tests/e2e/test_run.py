"""`edgeveil run` as a user starts it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import psutil
import pytest
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from edgeveil.data.records import Records
from edgeveil.pages.frozen import thawed
from edgeveil.parts.partitions.dealing import hold_back_share
from edgeveil.parts.sources.digits import load_digits_split
from tests.kits.live_site import wait_for

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parents[2] / "configs" / "jobs"
QUICKSTART = Path(__file__).parents[2] / "tests" / "kits" / "quickstart.yaml"


def edgeveil(*arguments):
    return [sys.executable, "-m", "edgeveil_tools.cli", *map(str, arguments)]


def shorter(folder, **changes):
    """The quickstart with fewer rounds and devices, and other changes to its text."""
    text = QUICKSTART.read_text("utf-8")
    edits = {
        "rounds: 15": "rounds: 4",
        "every_rounds: 5": "every_rounds: 2",
        "min_devices: 20": "min_devices: 6",
        "  devices: 20\n": "  devices: 8\n",
        **changes,
    }
    for old, new in edits.items():
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "job.yaml"
    path.write_text(text, "utf-8")
    return path


def cpu_s(pid):
    """CPU seconds of a process and its children so far."""
    started = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in [started, *started.children(recursive=True)])


@pytest.mark.parametrize("engine", ["mosquitto", "amqtt"])
def test_run_leaves_result_model_and_report(tmp_path, engine):
    out = tmp_path / "out"
    job = shorter(tmp_path, **{"infer_only: 0": "infer_only: 1", "devices: all": "devices: 7"})
    command = edgeveil("run", job, "--out", out, "--broker", engine)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(line.startswith(f"Brokers: {engine}") for line in done.stdout.splitlines())
    result = json.loads((out / "result.json").read_text())
    assert (result["job"], result["status"]) == ("quickstart", "completed")
    assert result["devices"] == 8
    assert engine in result["broker"]
    rounds = result["rounds"]
    assert [r["round"] for r in rounds] == [1, 2, 3, 4]
    for one in rounds:
        assert 6 <= one["uploads"] <= 7
        assert one["seconds"] > 0
        assert one["bytes"]
    scored = [bool(r["cluster_scores"]) for r in rounds]
    assert scored == [False, True, False, True]
    training, inference = result["privacy"]["training"], result["privacy"]["inference"]
    assert 7.9 < training["epsilon"] <= 8
    assert (training["delta"], training["unit"], training["status"]) == (1e-5, "record", "proven")
    assert inference["epsilon"] == pytest.approx(2 * inference["epsilon_per_round"])
    assert (inference["unit"], inference["status"]) == ("device", "proven")
    assert result["reference"]["accuracy"] > 0.8
    _model_is_the_one_scored(out, result["final"]["accuracy"])
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert events[-1]["type"] == "job_completed"
    assert sum(event["type"] == "exchange_committed" for event in events) == 6
    view = thawed((out / "report.html").read_text())
    shown = {section["id"] for section in view["sections"]}
    assert {"accuracy", "figures", "held", "epsilon", "clusters", "time", "bytes"} <= shown


def _model_is_the_one_scored(out, accuracy):
    test = load_digits_split()[1]
    session = onnxruntime.InferenceSession(out / "model.onnx")
    labels = session.run(["label"], {"x": test.x})[0]
    assert np.mean(labels == test.y) == pytest.approx(accuracy)
    assert load_file(out / "model.safetensors")["weight"].shape == (64, 10)


def test_a_file_of_ones_own_is_dealt_to_devices_and_cloud(tmp_path):
    x, y = load_digits(return_X_y=True)
    names = ",".join([*(f"pixel_{k}" for k in range(64)), "digit"])
    table, how = np.column_stack([x, y]), {"fmt": "%d", "delimiter": ",", "comments": ""}
    np.savetxt(tmp_path / "digits.csv", table, header=names, **how)
    job = (JOBS / "own_data.yaml").read_text("utf-8")
    assert "rounds: 10" in job
    (tmp_path / "job.yaml").write_text(job.replace("rounds: 10", "rounds: 2"), "utf-8")
    command = edgeveil("run", tmp_path / "job.yaml", "--out", tmp_path / "out", "--devices", 6)
    command += ["--data", str(tmp_path / "digits.csv"), "--no-reference"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [one["uploads"] for one in result["rounds"]] == [6, 6]
    accuracy = result["final"]["accuracy"]
    assert accuracy > 0.6
    whole = Records(np.asarray(x, np.float32), y)
    right = accuracy * len(hold_back_share(whole, 0.2)[1])  # of about a fifth, which no device has
    assert right == pytest.approx(round(right))


def test_ctrl_c_ends_every_process(tmp_path):
    out = tmp_path / "out"
    job = shorter(tmp_path, **{"rounds: 4": "rounds: 400", "every_rounds: 2": "every_rounds: 0"})
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(
            edgeveil("run", job, "--out", out), stdout=log, stderr=log, start_new_session=True
        )
    text = (tmp_path / "log").read_text
    wait_for(lambda: "round 2:" in text(), "the second round")
    children = psutil.Process(run.pid).children(recursive=True)
    assert len(children) >= 6
    run.send_signal(signal.SIGINT)
    assert run.wait(20) == 130
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert "Traceback" not in text()
    assert json.loads((out / "result.json").read_text())["status"] == "failed"


def test_ctrl_c_ends_a_simulation_while_a_device_is_at_work(tmp_path):
    out = tmp_path / "out"
    job = (JOBS / "digits_dp_sgd.yaml").read_text("utf-8")
    for old, new in {
        "rounds: 10\n": "rounds: 1\n",
        "local_steps: 10 ": "local_steps: 10000 ",  # minutes of work for each device
        "hidden: []": "hidden: [300, 100]",
        "local_run:": "local_run:\n  simulate: true",
    }.items():
        assert old in job
        job = job.replace(old, new)
    (tmp_path / "job.yaml").write_text(job, "utf-8")
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(
            edgeveil("run", tmp_path / "job.yaml", "--out", out), stdout=log, stderr=log
        )
    said = out / "events.jsonl"
    wait_for(lambda: said.exists() and '"kind": "round"' in said.read_text(), "the round")
    before_s = cpu_s(run.pid)
    # Nobody tells that a device has begun; what the cloud does for a round takes far less.
    wait_for(lambda: cpu_s(run.pid) > before_s + 3, "a device's work")
    run.send_signal(signal.SIGINT)
    try:
        assert run.wait(30) == 130
    finally:
        run.kill()
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text
    assert "Interrupted; what there is so far is in" in text
