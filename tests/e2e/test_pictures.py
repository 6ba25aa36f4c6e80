"""Colour pictures in CIFAR-10's own form, learned with shared noise by the one command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from edgeveil.parts.features.onnx import cached_backbone
from edgeveil.parts.features.pictures import procedural_pictures
from edgeveil_tools.backbone.encoders import axes, onnx_pictures, train_pictures

pytestmark = pytest.mark.drill

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "configs" / "jobs"
DEVICES, RECORDS = 10, 60


def written(folder: Path) -> None:
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


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has learned little lies where the user's copy does: the real one takes minutes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    net, drawings = train_pictures(steps=3, drawings=600, seed=0)
    path = cached_backbone("pictures")
    path.parent.mkdir(parents=True)
    path.write_bytes(onnx_pictures(net, *axes(net, drawings)))


@pytest.mark.usefixtures("encoder")
@pytest.mark.parametrize("example", ["cifar10_shared", "cifar10_encoder_shared"])
def test_the_examples_for_colour_pictures_learn_them(tmp_path: Path, example: str) -> None:
    written(tmp_path / "data")
    job = yaml.safe_load((JOBS / f"{example}.yaml").read_text("utf-8"))
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
