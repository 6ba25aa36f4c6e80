"""A job whose model is large: what the brokers carry of it."""

import json
import subprocess
import sys

import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.drill

DEVICES, ROUNDS, BROKER_BYTES = 3, 2, 1 << 20
JOB = """
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


def test_no_broker_carries_a_large_model(tmp_path):
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(JOB)
    run = ["run", str(job), "--out", str(out), "--no-reference"]
    command = [sys.executable, "-m", "edgeveil_tools.cli", *run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    weights = load_file(out / "model.safetensors")
    assert sum(array.nbytes for array in weights.values()) > 16 << 20
    result = json.loads((out / "result.json").read_text())
    assert sum(one["uploads"] for one in result["rounds"]) == DEVICES * ROUNDS
    for hop, carried_bytes in result["bytes"].items():
        assert carried_bytes < DEVICES * BROKER_BYTES, hop
    logs = "".join(path.read_text() for path in (out / "logs").glob("*.log"))
    assert "over_the_broker" not in logs and "store_failed" not in logs
