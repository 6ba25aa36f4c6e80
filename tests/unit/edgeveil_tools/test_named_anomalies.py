"""What is normal, from a table of windows to alarms: learned, counted, reported, released, used."""

import json
import re

import numpy as np
import pytest

from edgeveil.errors import ConfigError, UsageError
from edgeveil_edge.predict import predict
from edgeveil_edge.release_trial import run_trial
from edgeveil_tools.cli import main
from edgeveil_tools.local.grid import run_grid
from edgeveil_tools.local.job import Overrides
from edgeveil_tools.local.local_run import load_local_job
from edgeveil_tools.local.run import run_local
from edgeveil_tools.prospect import prospect
from edgeveil_tools.result import Result
from tests.kits.windows import NAMES, SCHEMA, windows, windows_job, write_windows


def run_of(folder, *, reference=False, **changes):
    write_windows(folder / "windows.csv")
    job = windows_job(folder, **changes)
    assert run_local(job, folder / "out", Overrides(), reference=reference) == 0
    return Result.load(folder / "out")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    run_of(folder, reference=True)
    return folder


def test_anomalies_are_told_by_what_is_normal(learned):
    result = Result.load(learned / "out")
    figures, federated = (result.content["final"][key] for key in ("figures", "federated"))
    assert (result.accuracy, result.rmse) == (None, None)
    assert figures["auc"] == result.auc > 0.9 < result.content["reference"]["auc"]
    assert result.content["rounds"][-1]["loss"] == pytest.approx(1 - result.auc, abs=1e-6)
    assert (federated["alarm_rate"], 0 < federated["threshold"] < 1) == (0.1, True)
    assert abs(figures["false_alarm_rate"] - 0.1) < 0.08
    assert figures["detection_rate"] > 0.6
    assert f"{result.auc:.3f}" in str(result) and "accuracy" not in str(result)


def test_the_released_model_reads_raw_rows_and_tells_alarms(learned, capsys):
    model = learned / "out" / "model.onnx"
    assert run_trial(model.read_bytes()) == ""
    found = predict(model, learned / "windows.csv")
    assert len(found) == 1500
    assert (found.accuracy, found.values) == (None, None)
    assert found.alarms
    assert found.labels.tolist() == (found.scores > 1).astype(int).tolist()
    _, names = windows()
    bad = np.array([name in ("leak", "stall") for name in names])
    ok = np.array([name == "ok" for name in names])
    assert found.labels[bad].mean() > 0.6
    assert found.labels[ok].mean() < 0.2
    assert found.errors["detection_rate"] == pytest.approx(found.labels[bad].mean(), abs=1e-6)
    (learned / "bare.csv").write_text(f"{','.join(NAMES)}\n{','.join(['0.3'] * 8)}\n1,2,3\n")
    capsys.readouterr()
    assert main(["predict", str(model), str(learned / "bare.csv"), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["predictions"]
    assert (first["label"], first["name"]) == (0, "normal")
    assert second == {"score": None, "label": None, "name": None}


def test_without_federated_evaluation_there_is_no_threshold(tmp_path):
    result = run_of(tmp_path, federated_evaluation=None)
    assert result.content["final"]["figures"].keys().isdisjoint({"detection_rate", "precision"})
    model = tmp_path / "out" / "model.onnx"
    found = predict(model, tmp_path / "windows.csv")
    assert not found.alarms
    assert set(found.labels.tolist()) == {-1}
    assert found.plain()[0].keys() == {"score"}


OTHER = {**SCHEMA, "label": {"column": "state", "classes": ["a", "b"]}}
SCORED = {"encrypt": {"laplace_eval": {"laplace_eval_eps": 1}}, "unsupervised": {"every_rounds": 1}}
NO_NORMAL = {"source": "w", "schema": OTHER, "nominal_records": 9}


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"method": "fm"}},
        {"data": NO_NORMAL},
        SCORED,
        {"train": {"method": "pca_residual", "keep": 8}},
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changes):
    with pytest.raises(ConfigError):
        load_local_job(windows_job(tmp_path, **changes))


def test_arrays_have_zero_for_normal(tmp_path):
    """Without a schema: class 0 is normal, all others anomalous, -1 without a label."""
    x, names = windows()
    codes = {"ok": 0, "leak": 3, "stall": 7}
    y = np.array([codes.get(name, -1) for name in names])
    np.savez(tmp_path / "windows.npz", x=x.astype(np.float32), y=y)
    data = {"source": "windows", "classes": 2, "input_shape": [8], "nominal_records": 240}
    own = {"source": "npz", "path": "windows.npz"}
    job = windows_job(
        tmp_path,
        data={**data, "evaluation_share": 0.4},
        features=[{"name": "identity", "norm": "bounded", "input_scale": 2}],
        local_run={"devices": 5, "simulate": True, "data": own, "test_share": 0.3},
    )
    assert run_local(job, tmp_path / "out", Overrides()) == 0
    result = Result.load(tmp_path / "out")
    assert result.auc > 0.9
    assert result.content["final"]["figures"]["anomalous"] > 10


def test_plans_refuse_it_clearly_and_comparisons_tell_auc(tmp_path):
    write_windows(tmp_path / "windows.csv")
    job = windows_job(tmp_path)
    with pytest.raises(UsageError):
        prospect(job, print)
    assert run_grid(job, tmp_path / "c", Overrides(simulate=True), 2, ()) == 0
    (row,) = json.loads((tmp_path / "c" / "table.json").read_text())["rows"]
    assert row["measure"] == "AUC"
    assert min(row["values"]) > 0.9


def test_without_any_label_nothing_is_tested_and_where_all_are_anomalous_nothing_learned(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_windows(tmp_path / "windows.csv")
    text = (tmp_path / "windows.csv").read_text()
    label = re.compile(",(ok|leak|stall|)$", re.MULTILINE)
    (tmp_path / "windows.csv").write_text(label.sub(",leak", text))
    assert main(["check", str(windows_job(tmp_path))]) == ConfigError.exit_code
    (other / "windows.csv").write_text(label.sub("", text).replace(",state\n", "\n"))
    assert run_local(windows_job(other), tmp_path / "out", Overrides()) == 0
    result = Result.load(tmp_path / "out")
    assert result.auc is None
    assert result.content["final"]["federated"]["threshold"] > 0
    assert (tmp_path / "out" / "report.html").exists()
