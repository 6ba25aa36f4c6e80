"""What a job can achieve, estimated on public and made-up records, never on an owner's."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from edgeveil_tools.cli import main
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.prospect import MADE_UP_ACCURACY, prospect, stand_in

QUICK = Path("tests/kits/quickstart.yaml")


def changed(folder, source, change):
    """A copy of a job's file whose plain content `change` has changed."""
    plain = yaml.safe_load(Path(source).read_text())
    change(plain)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def estimated(path):
    return prospect(path, lambda _line: None, seeds=1)


def test_few_devices_with_little_epsilon_learn_nothing_and_a_useful_job_needs_no_advice(
    tmp_path, capsys
):
    def poor(plain):
        plain["privacy"]["epsilon"], plain["data"]["nominal_records"] = 0.2, 22

    found = estimated(changed(tmp_path, QUICK, poor))
    assert "20 devices of 22 records at ε = 0.2" in found.verdict[0]
    assert found.without_noise > found.mean + 0.4
    assert main(["check", str(QUICK), "--seeds", "1", "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["files"][0]["estimate"]
    assert found["gain"] > 0.8
    assert len(found["verdict"]) == 1
    assert found["privacy"]["training"]["epsilon"] == pytest.approx(8, rel=1e-3)
    assert found["round"]["upload_bytes"] > 0


@pytest.mark.parametrize("shape", [[64], [3, 8, 8]])
def test_made_up_records_have_the_jobs_form_and_the_stated_difficulty(shape, tmp_path):
    path = changed(
        tmp_path, "configs/jobs/own_data.yaml", lambda job: job["data"].update(input_shape=shape)
    )
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
    if shape == [64]:  # its file of own records does not exist
        assert "made-up records" in estimated(path).measured_on


def test_made_up_rows_have_the_form_of_the_schema(tmp_path):
    def tabular(plain):
        plain["data"]["schema"]["label"] = {"column": "kind", "classes": ["a", "b"]}
        plain["data"]["schema"]["columns"] = [
            {"name": "sex", "category": ["f", "m"]},
            {"name": ["bmi", "bp"], "number": [0, 100]},
            {"name": "age", "number": [0, 100], "bins": [30, 60]},
        ]

    path = changed(tmp_path, "configs/jobs/diabetes.yaml", tabular)
    x = stand_in(*local_job(path, Overrides(simulate=True))).draw(500, np.random.default_rng(1)).x
    assert x.shape == (500, 3 + 2 + 4)
    assert (x[:, :3].sum(axis=1) == 1).all() and (x[:, 5:].sum(axis=1) == 1).all()
    assert -1 <= x[:, 3:5].min() < 0 < x[:, 3:5].max() <= 1
