"""A device trains with `fm` where torch is missing, and does not load it where it is there.

Each part runs in an interpreter of its own: which libraries it has is what is tested.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from edge_kit import CENTRE, FIRST, QUADRATIC, Device, Round, job, records

from edgeveil.jobs import compile_job
from edgeveil_edge import compute_worker as wire
from edgeveil_edge.compute_process import ComputeProcess, RemoteComputer
from edgeveil_edge.compute_worker import ComputeServer

pytestmark = pytest.mark.slow

WHOLE_MODEL = {
    "features": (),
    "model": {"name": "mlp", "hidden": (4,)},
    "train": {"method": "sgd", "rounds": 2},
    "privacy": {"accept_unproven": True},
}


def elsewhere(call, *first):
    """The lines that a function of this file prints in a new interpreter."""
    path = map(str, (*first, Path(__file__).parent, *sys.path))
    done = subprocess.run(
        [sys.executable, "-c", f"import {Path(__file__).stem} as t; t.{call}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def play(folder):
    """A device, its computing in a process of its own, through the first rounds of a job."""
    own = records(30, 1)
    path = Path(folder) / "own.npz"
    np.savez(path, x=own.x, y=own.y)
    process, plan = ComputeProcess(), compile_job(job())
    device = Device(
        Path(folder),
        compute=lambda site, identity: RemoteComputer(process, "0" * 16, site, identity.split_key),
        data={"name": "bench", "source": "npz", "path": path},
        device="auto",
    )
    try:
        device.knows(plan)
        for index in (CENTRE, QUADRATIC, FIRST):
            sealed = Round(plan, index, device.keys())
            print(*sealed.tensors(device.answer(sealed)))
    finally:
        process.end()
    print(device.said)


def test_a_device_trains_with_fm_where_there_is_no_torch(tmp_path):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    # A file, not an entry of `sys.modules`: the computing process must not find torch either.
    (blocked / "torch.py").write_text("raise ImportError('no torch here')\n")
    found = elsewhere(f"play({str(tmp_path)!r})", blocked)
    assert found == ["centre", "quadratic", "head.weight softmax", "[]"]


def learn():
    """What a computing process that is told of a job then has of torch."""
    server = ComputeServer()
    for one in (job(), job(**WHOLE_MODEL)):
        know = wire.encode(wire.TeachJob(b"", one.canonical(), b"", (), True))
        assert wire.decode_reply(server.learn(know)) == wire.RequestDone()
        print(one.train.method, "torch" in sys.modules)


def test_torch_is_loaded_with_the_first_job_that_needs_it():
    assert elsewhere("learn()") == ["fm False", "sgd True"]


def test_a_device_that_has_met_no_job_holds_no_code_that_trains():
    code = "import sys, edgeveil_edge.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    held = set(done.stdout.split())
    assert not held & {"torch", "sklearn", "onnx", "onnxruntime"}
    assert not [name for name in held if name.startswith("edgeveil.parts.methods.")]
