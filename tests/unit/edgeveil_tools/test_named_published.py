"""Published tables run from their own files, with the jobs that are in configs/."""

import json
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets

from edgeveil.data.check import schema_problems
from edgeveil.jobs import load_job
from edgeveil.parts.sources.tables import encode_csv
from edgeveil_edge.predict import predict
from edgeveil_tools.local.job import Overrides
from edgeveil_tools.local.run import run_local
from tests.kits.adult_files import adult_folder

JOBS = Path("configs/jobs")
CANCER = Path(sklearn.datasets.__path__[0]) / "data" / "breast_cancer.csv"


def accuracy(folder):
    return json.loads((folder / "result.json").read_text())["final"]["accuracy"]


@pytest.mark.slow
def test_breast_cancer_from_its_file(tmp_path):
    right = []
    for seed in range(5):  # each record is tested on once
        out = tmp_path / str(seed)
        overrides = Overrides(data=CANCER, simulate=True, seed=seed, workers=1)
        assert run_local(JOBS / "breast_cancer.yaml", out, overrides, reference=False) == 0
        right.append(accuracy(out))
    assert np.mean(right) > 0.93
    found = predict(tmp_path / "0" / "model.onnx", CANCER)
    assert found.classes == ("malignant", "benign")
    assert found.labels[0] == -1  # the line of counts at its beginning
    assert found.accuracy > 0.9


@pytest.mark.slow
def test_adult_from_its_files(tmp_path):
    folder = adult_folder(tmp_path)
    schema = load_job(JOBS / "adult.yaml").data.schema_
    train, test = (
        encode_csv(folder / name, schema, header=False) for name in ("adult.data", "adult.test")
    )
    assert np.bincount(train.records.y + 1).tolist() == [0, 24720, 7841]
    assert np.bincount(test.records.y + 1).tolist() == [1, 12435, 3846]  # and a comment
    assert schema_problems(schema, train) == schema_problems(schema, test) == []
    overrides = Overrides(data=folder, simulate=True, seed=7, workers=1)
    assert run_local(JOBS / "adult.yaml", tmp_path / "out", overrides, reference=False) == 0
    assert accuracy(tmp_path / "out") > 0.82
    found = predict(tmp_path / "out" / "model.onnx", folder / "adult.test")
    assert found.accuracy == pytest.approx(accuracy(tmp_path / "out"), abs=1e-3)
