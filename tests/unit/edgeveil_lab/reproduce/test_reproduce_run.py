"""`edgeveil reproduce`: its jobs load, one runs at toy size, and what is missing is named."""

import json

import pytest
import yaml

from edgeveil.registry import Table
from edgeveil_lab.reproduce import EXPERIMENTS
from edgeveil_lab.reproduce.experiment import Experiment, Point, Trial
from edgeveil_lab.reproduce.laplace_inference import agreement
from edgeveil_tools import cli
from edgeveil_tools.local.local_run import parse_local_job

pytestmark = pytest.mark.slow

TOY = {
    "job": "toy",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "features": [{"name": "identity", "input_scale": 16}],
    "train": {"method": "fm", "rounds": 1},
    "privacy": {"epsilon": 8.0},
    "local_run": {"devices": 5},
}
ROWS = (Trial("toy", "toy row", TOY, (Point(0.5),), "ε = 1, they say"),)


@pytest.fixture
def toy(monkeypatch):
    experiment = Experiment("a toy", "nobody 2000", "accuracy", lambda _quick: ROWS, "No remark.")
    monkeypatch.setattr(
        "edgeveil_lab.reproduce.run.EXPERIMENTS", Table("experiment", {"toy": experiment})
    )


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS.names())
def test_every_row_is_a_job_that_loads(name, quick):
    trials = EXPERIMENTS[name].trials(quick)
    assert len({trial.name for trial in trials}) == len(trials)
    for trial in {_kind(trial): trial for trial in trials}.values():
        written = dict(trial.job)
        if any(entry["name"] == "onnx" for entry in written.get("features", ())):
            written["features"] = [{"name": "gabor"}]  # the backbone's file is trained first
        parse_local_job(yaml.safe_dump(written), trial.name)


def _kind(trial):
    """One of several ε stands for all where the noise takes a second to find, of sampled steps."""
    if "sampling_rate" not in trial.job.get("train", {}):
        return trial.name
    return repr({**trial.job, "job": "", "privacy": ""})


def test_text_and_measurement_stand_side_by_side(toy, tmp_path, capsys):
    assert cli.main(["reproduce", "toy", "--seeds", "1", "--out", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["claimed"] == 0.5
    assert row["values"] == [row["ours"]]
    assert row["proven_privacy"].startswith("(ε = 8, δ = 1e-05) per record")
    said = (tmp_path / "reproduction.md").read_text()
    assert "| toy row | 0.500 | " in said
    assert "ε = 1, they say" in said
    assert (tmp_path / "reproduction.png").stat().st_size > 0
    assert cli.main(["reproduce", "toy", "--seeds", "1", "--out", str(tmp_path)]) == 0
    assert "done before" in capsys.readouterr().out


def test_missing_files_are_named_before_anything_runs(tmp_path, capsys):
    command = ["reproduce", "delm-table3", "--only", "fedavg_1_class", "--data", str(tmp_path)]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) != 0
    assert "train-images-idx3-ubyte" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["delm-tabel3"], "did you mean 'delm-table3'?"),
        (["laplace-inference", "--only", "x"], "unknown trial 'x'"),
        (["laplace-inference", "--seeds", "0"], "no seed to run"),
    ],
)
def test_what_is_asked_must_exist(argv, said, tmp_path, capsys):
    assert cli.main(["reproduce", *argv, "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def rounds(pairs):
    return {
        "rounds": [
            {"round": n, "cluster_scores": s and {"score": s}, "loss": loss}
            for n, (s, loss) in enumerate(pairs, start=1)
        ]
    }


def test_agreement_is_the_correlation_of_ranks():
    assert agreement(rounds([(0.1, 0.2), (0.2, 0.5), (0.9, 0.6)])) == pytest.approx(1.0)
    assert agreement(rounds([(0.1, 0.9), (0.2, 0.5), (0.9, 0.1)])) == pytest.approx(-1.0)
    assert agreement(rounds([(0.1, 0.9), (None, 0.5), (0.9, 0.1)])) is None
    assert agreement(rounds([(0.1, 0.9), (0.2, None), (0.9, 0.1)])) is None


def test_without_a_name_the_experiments_are_listed(capsys):
    assert cli.main(["reproduce", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == EXPERIMENTS.names()
