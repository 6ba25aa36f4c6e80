"""What a job can come to, said before it runs: on public and made-up records, never an owner's."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from edgeveil_tools.cli import main
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.prospect import (
    MADE_UP_ACCURACY,
    prospect,
    stand_in,
)

QUICK = Path("tests/kits/quickstart.yaml")


def job_file(folder, **changes):
    """The quickstart's job with other values, each named by its path `block.key`."""
    plain = yaml.safe_load(QUICK.read_text())
    for key, value in changes.items():
        block, _, name = key.partition("__")
        plain[block][name] = value
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def looked_at(path, **options):
    return prospect(path, lambda _line: None, **{"seeds": 1, **options})


def test_few_devices_with_little_epsilon_are_told_that_they_learn_nothing(tmp_path):
    found = looked_at(job_file(tmp_path, privacy__epsilon=0.2, data__nominal_records=22))
    assert "20 devices of 22 records at ε = 0.2" in found.verdict[0]
    assert found.without_noise > found.mean + 0.4


def test_a_job_that_is_of_use_needs_no_advice(capsys):
    assert main(["check", str(QUICK), "--seeds", "1", "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["files"][0]["estimate"]
    assert found["gain"] > 0.8
    assert len(found["verdict"]) == 1
    assert found["privacy"]["training"]["epsilon"] == pytest.approx(8, rel=1e-3)
    assert found["privacy"]["inference"]["status"] == "proven"
    assert found["round"]["upload_bytes"] > 0


def test_own_records_are_never_read():
    found = looked_at(Path("configs/jobs/own_data.yaml"))  # its file does not exist
    assert "made-up records" in found.measured_on
    assert found.accuracies


@pytest.mark.parametrize("shape", [[64], [28, 28], [3, 8, 8]])
def test_made_up_records_have_the_jobs_form_and_the_difficulty_that_is_said(shape, tmp_path):
    plain = yaml.safe_load(Path("configs/jobs/own_data.yaml").read_text())
    plain["data"]["input_shape"] = shape
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(plain))
    records = stand_in(*local_job(path, Overrides(simulate=True)))
    many = records.draw(4000, np.random.default_rng(3))
    assert many.x.shape == (4000, *shape)
    assert many.x.min() >= 0 and many.x.max() <= 16  # the job's input_scale
    flat = many.x.reshape(4000, -1).astype(np.float64)
    centres = np.stack([flat[many.y == of].mean(axis=0) for of in range(10)])
    test = records.test.x.reshape(len(records.test), -1).astype(np.float64)
    scores = test @ centres.T - np.square(centres).sum(axis=1) / 2
    right = float(np.mean(scores.argmax(axis=1) == records.test.y))
    assert abs(right - MADE_UP_ACCURACY) < 0.05


def test_made_up_rows_are_what_the_schema_makes(tmp_path):
    plain = yaml.safe_load(Path("configs/jobs/diabetes.yaml").read_text())
    plain["data"]["schema"]["label"] = {"column": "kind", "classes": ["a", "b"]}
    plain["data"]["schema"]["columns"] = [
        {"name": "sex", "category": ["f", "m"]},
        {"name": ["bmi", "bp"], "number": [0, 100]},
        {"name": "age", "number": [0, 100], "bins": [30, 60]},
    ]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(plain))
    records = stand_in(*local_job(path, Overrides(simulate=True)))
    drawn = records.draw(500, np.random.default_rng(1))
    assert drawn.x.shape == (500, 3 + 2 + 4)
    assert (drawn.x[:, :3].sum(axis=1) == 1).all() and (drawn.x[:, 5:].sum(axis=1) == 1).all()
    assert -1 <= drawn.x[:, 3:5].min() < 0 < drawn.x[:, 3:5].max() <= 1
    assert looked_at(path).accuracies
