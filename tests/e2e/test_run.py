"""`edgeveil run` as a user starts it."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import psutil
import pytest
from safetensors.numpy import load_file

from edgeveil.pages.frozen import thawed
from edgeveil.parts.sources.digits import load_digits_split
from tests.kits.commands import edgeveil, edited, interrupted, ran
from tests.kits.live_site import wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "configs" / "jobs"
SHORTER = {
    "rounds: 15": "rounds: 4",
    "every_rounds: 5": "every_rounds: 2",
    "min_devices: 20": "min_devices: 6",
    "  devices: 20\n": "  devices: 8\n",
}
LARGE = """
job: large
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 32}
model: {name: mlp, hidden: [2048, 1984], input_scale: 16}
train: {method: sgd, rounds: 2, local_epochs: 1, batch_size: 64, learning_rate: 0.01}
privacy: {accept_unproven: true}
round: {min_batch: 3, deadline_s: 120, budget_s: 10}
selection: {min_devices: 3}
proxy: {shuffle: whole}
local_run:
  devices: 3
"""


def written(source, folder, edits):
    path = folder / "job.yaml"
    path.write_text(edited(source.read_text("utf-8"), edits), "utf-8")
    return path


def shorter(folder, edits):
    return written(ROOT / "tests" / "kits" / "quickstart.yaml", folder, {**SHORTER, **edits})


@pytest.mark.parametrize("engine", ["mosquitto", "amqtt"])
def test_run_leaves_result_model_and_report(tmp_path, engine):
    out = tmp_path / "out"
    job = shorter(tmp_path, {"infer_only: 0": "infer_only: 1", "devices: all": "devices: 7"})
    ran("run", job, "--out", out, "--broker", engine)
    result = json.loads((out / "result.json").read_text())
    assert (result["job"], result["status"]) == ("quickstart", "completed")
    assert result["devices"] == 8 and engine in result["broker"]
    rounds = result["rounds"]
    scored = [(one["round"], bool(one["cluster_scores"])) for one in rounds]
    assert scored == [(1, False), (2, True), (3, False), (4, True)]
    assert all(one["seconds"] > 0 and one["bytes"] and 6 <= one["uploads"] <= 7 for one in rounds)
    training, inference = result["privacy"]["training"], result["privacy"]["inference"]
    assert 7.9 < training["epsilon"] <= 8
    assert (training["delta"], training["unit"], training["status"]) == (1e-5, "record", "proven")
    assert inference["epsilon"] == pytest.approx(2 * inference["epsilon_per_round"])
    assert (inference["unit"], inference["status"]) == ("device", "proven")
    assert result["reference"]["accuracy"] > 0.8
    test = load_digits_split()[1]
    session = onnxruntime.InferenceSession(out / "model.onnx")
    right = session.run(["label"], {"x": test.x})[0] == test.y
    assert np.mean(right) == pytest.approx(result["final"]["accuracy"])
    assert load_file(out / "model.safetensors")["weight"].shape == (64, 10)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert events[-1]["type"] == "job_completed"
    assert sum(event["type"] == "exchange_committed" for event in events) == 6
    view = thawed((out / "report.html").read_text())
    shown = {section["id"] for section in view["sections"]}
    assert {"accuracy", "figures", "held", "epsilon", "clusters", "time", "bytes"} <= shown


def cpu_s(pid):
    started = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in [started, *started.children(recursive=True)])


def test_ctrl_c_ends_every_process(tmp_path):
    job = shorter(tmp_path, {"rounds: 4": "rounds: 400", "every_rounds: 2": "every_rounds: 0"})
    run = edgeveil("run", job, "--out", tmp_path / "out")
    interrupted(run, after="round 2:", processes=6)
    assert json.loads((tmp_path / "out" / "result.json").read_text())["status"] == "failed"


def test_ctrl_c_ends_a_simulation_while_a_device_is_at_work(tmp_path):
    edits = {
        "rounds: 10\n": "rounds: 1\n",
        "local_steps: 10 ": "local_steps: 10000 ",  # minutes of work for each device
        "hidden: []": "hidden: [300, 100]",
        "local_run:": "local_run:\n  simulate: true",
    }
    said = tmp_path / "out" / "events.jsonl"

    def at_work(run):
        wait_for(lambda: said.exists() and '"kind": "round"' in said.read_text(), "the round")
        before_s = cpu_s(run.pid)
        # Nobody tells that a device has begun; what the cloud does for a round takes far less.
        wait_for(lambda: cpu_s(run.pid) > before_s + 3, "a device's work")

    job = written(JOBS / "digits_dp_sgd.yaml", tmp_path, edits)
    interrupted(edgeveil("run", job, "--out", tmp_path / "out"), after="", work=at_work)


@pytest.mark.drill
def test_no_broker_carries_a_large_model(tmp_path):
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(LARGE)
    ran("run", job, "--out", out, "--no-reference", timeout=280)
    weights = load_file(out / "model.safetensors")
    assert sum(array.nbytes for array in weights.values()) > 16 << 20
    result = json.loads((out / "result.json").read_text())
    assert sum(one["uploads"] for one in result["rounds"]) == 3 * 2
    for hop, carried_bytes in result["bytes"].items():
        assert carried_bytes < 3 << 20, hop
    logs = "".join(path.read_text() for path in (out / "logs").glob("*.log"))
    assert "over_the_broker" not in logs and "store_failed" not in logs
