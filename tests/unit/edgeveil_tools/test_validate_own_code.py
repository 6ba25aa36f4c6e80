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
        INIT
    def forward(self, x):
        FORWARD
        return self.layer(x)
"""


def written(folder, **lines):
    text = NET
    for place in ("IMPORT", "INIT", "FORWARD"):
        text = text.replace(place, lines.get(place.lower(), "pass"))
    (folder / "odd_model.py").write_text(text)
    (folder / "job.yaml").write_text(JOB)
    return folder / "job.yaml"


def validated(job):
    path = os.pathsep.join([str(job.parent), *sys.path])
    command = [sys.executable, "-m", "edgeveil_tools.cli", "check", str(job)]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.mark.parametrize(
    ("place", "line", "said"),
    [
        ("import", "sys.exit(0)", "SystemExit"),
        ("init", "os._exit(0)", "ended the process"),
        ("forward", "os.abort()", "SIGABRT"),
    ],
)
def test_the_command_says_so_with_the_files_line_and_ends_itself(tmp_path, place, line, said):
    done = validated(written(tmp_path, **{place: line}))
    assert done.returncode not in (0, -6), done.stderr
    told = done.stdout + done.stderr
    assert "job.yaml:3 model" in told and said in told
    assert "Traceback" not in told


def test_sound_code_is_sound_and_code_that_waits_is_ended(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    job = written(tmp_path)
    assert validate(job) == []
    monkeypatch.setattr(rehearsal, "REHEARSAL_S", 0.5)
    written(tmp_path, forward="__import__('signal').pause()")
    (problem,) = validate(job)
    assert "did not end within 0.5 s" in problem.text and problem.line == 3
