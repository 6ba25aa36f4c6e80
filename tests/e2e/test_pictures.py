"""Colour pictures in CIFAR-10's own form, learned with shared noise by the one command."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from edgeveil.parts.features.pictures import procedural_pictures

pytestmark = pytest.mark.drill

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "configs" / "jobs"
DEVICES, RECORDS = 10, 60


def written(folder):
    """Procedural pictures as the published files hold them: a label, then the three planes.

    The label is the colour that there is most of.
    """
    folder.mkdir()
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    pictures = procedural_pictures(DEVICES * RECORDS * 6 // 5, (3, 32, 32)).astype(np.uint8)
    labels = pictures.mean(axis=(2, 3)).argmax(axis=1).astype(np.uint8)
    rows = np.hstack([labels[:, None], pictures.reshape(len(pictures), -1)])
    for name, part in zip(names, np.array_split(rows, 6), strict=True):
        (folder / name).write_bytes(part.tobytes())


def test_the_example_for_colour_pictures_learns_them(tmp_path):
    written(tmp_path / "data")
    job = yaml.safe_load((JOBS / "cifar10_shared.yaml").read_text("utf-8"))
    job["data"]["nominal_records"] = RECORDS
    job["features"][0]["dimension"] = 100
    job["privacy"]["epsilon"] = 8
    job["selection"] = {"devices": DEVICES, "min_devices": DEVICES}
    job["round"]["min_batch"] = DEVICES
    job["local_run"]["devices"] = DEVICES
    path, out = tmp_path / "job.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(job), "utf-8")
    command = [sys.executable, "-m", "edgeveil_tools.cli", "run", str(path)]
    command += ["--data", str(tmp_path / "data"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "result.json").read_text("utf-8"))
    counts = np.bincount(np.fromfile(tmp_path / "data" / "test_batch.bin", np.uint8)[::3073])
    assert found["final"]["accuracy"] > counts.max() / counts.sum() + 0.1
