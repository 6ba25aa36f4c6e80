"""Devices evaluate over a real broker: under masks, with noise that they share."""

import json
from pathlib import Path

import onnx
import pytest

from edgeveil.pages.frozen import thawed
from edgeveil_tools.result import Result
from tests.kits.commands import edited, ran

pytestmark = pytest.mark.slow

JOB = Path(__file__).parents[2] / "configs" / "jobs" / "digits_evaluated.yaml"
DEVICES = 8
SMALLER = {
    "rounds: 10": "rounds: 2",
    "every_rounds: 5": "every_rounds: 1",
    "epsilon: 1 ": "epsilon: 16 ",
    "devices: 50": f"devices: {DEVICES}",
    "min_batch: 40": "min_batch: 5",
}


def test_figures_of_devices_stand_beside_the_clouds(tmp_path):
    path, out = tmp_path / "job.yaml", tmp_path / "out"
    path.write_text(edited(JOB.read_text("utf-8"), SMALLER), "utf-8")
    ran("run", path, "--out", out)
    result = Result.load(out)
    assert [row["round"] for row in result.rounds] == [1, 2]
    assert [row["round"] for row in result.evaluations] == [1, 2]
    last, rounds = result.evaluations[-1], result.rounds
    assert last["uploads"] == last["federated_uploads"] == DEVICES
    assert last["accuracy"] == rounds[-1]["accuracy"] == result.accuracy
    off = 6 * last["federated_accuracy_deviation"] + 0.1  # other records than the cloud's
    assert last["federated_accuracy"] == pytest.approx(result.accuracy, abs=off)
    inference = result.privacy["inference"]
    assert 15 < inference["epsilon"] <= 16
    assert "collusion_epsilon" in inference
    assert (inference["unit"], inference["epsilon_per_round"]) == ("record", None)
    phases = [row["phase"] for row in result.epsilon]
    assert phases == ["centre", "quadratic", *["train", "evaluate"] * 2]
    view = thawed((out / "report.html").read_text("utf-8"))
    assert "federated" in {section["id"] for section in view["sections"]}
    entries = {one.key: one.value for one in onnx.load(out / "model.onnx").metadata_props}
    told = json.loads(entries["edgeveil.federated"])
    assert told["accuracy"] == last["federated_accuracy"]
