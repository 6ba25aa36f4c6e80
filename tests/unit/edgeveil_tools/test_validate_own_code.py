"""`edgeveil check` of a job whose model is code that ends the process it is loaded in."""

import os
import subprocess
import sys

import pytest

from edgeveil_cloud import rehearsal
from edgeveil_tools.checks import validate

JOB = """job: own_model
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 100}
model: {name: python, function: "odd_model:Net"}
train: {method: sgd, rounds: 1}
privacy: {epsilon: 1, accept_unproven: true}
"""
NET = """import os, sys, torch
IMPORT
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
    def forward(self, x):
        FORWARD
        return self.layer(x)
"""


def written(folder, place="IMPORT", line="pass"):
    text = NET.replace(place, line)
    for other in ("IMPORT", "FORWARD"):
        text = text.replace(other, "pass")
    (folder / "odd_model.py").write_text(text)
    (folder / "job.yaml").write_text(JOB)
    return folder / "job.yaml"


@pytest.mark.parametrize(
    ("place", "line", "reason"),
    [
        ("IMPORT", "sys.exit(0)", "SystemExit"),
        ("FORWARD", "os.abort()", "SIGABRT"),
    ],
)
def test_code_that_ends_its_process_is_named_with_the_files_line(tmp_path, place, line, reason):
    job = written(tmp_path, place, line)
    command = [sys.executable, "-m", "edgeveil_tools.cli", "check", str(job)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode not in (0, -6), done.stderr
    output = done.stdout + done.stderr
    assert "job.yaml:3 model" in output and reason in output
    assert "Traceback" not in output


def test_sound_code_is_sound_and_code_that_waits_is_ended(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    job = written(tmp_path)
    assert validate(job) == []
    monkeypatch.setattr(rehearsal, "REHEARSAL_S", 0.5)
    written(tmp_path, "FORWARD", "__import__('signal').pause()")
    (problem,) = validate(job)
    assert "did not end within 0.5 s" in problem.text and problem.line == 3
