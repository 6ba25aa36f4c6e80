"""A device loads torch for jobs that need it, and trains with `fm` without it.

Each part runs in an interpreter of its own: which libraries it has is what is tested.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from edge_kit import job

from edgeveil_edge import compute_worker as wire
from edgeveil_edge.compute_worker import ComputeServer

pytestmark = pytest.mark.slow

WHOLE_MODEL = {
    "features": (),
    "model": {"name": "mlp", "hidden": (4,)},
    "train": {"method": "sgd", "rounds": 2},
    "privacy": {"accept_unproven": True},
}


def printed(code):
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, text=True, cwd=Path(__file__).parent)


def learn():
    """What a computing process that is told of a job then has of torch."""
    server = ComputeServer()
    for one in (job(), job(**WHOLE_MODEL)):
        know = wire.encode(wire.LoadJob(b"", one.canonical(), b"", (), True))
        assert wire.decode_reply(server.change_state(know)) == wire.RequestDone()
        print(one.train.method, "torch" in sys.modules)


def test_torch_is_loaded_with_the_first_job_that_needs_it():
    told = printed(f"import {Path(__file__).stem} as t; t.learn()")
    assert told.splitlines() == ["fm False", "sgd True"]


def test_a_device_that_has_met_no_job_holds_no_code_that_trains():
    held = set(printed("import sys, edgeveil_edge.main; print(*sys.modules)").split())
    assert not held & {"torch", "sklearn", "onnx", "onnxruntime"}
    assert not [name for name in held if name.startswith("edgeveil.parts.methods.")]
