"""`edgeveil reproduce`: jobs load, toys run, and papers' figures are shown beside ours."""

import json

import pytest
import yaml

from edgeveil.errors import UsageError
from edgeveil_lab.reproduce.run import (
    ReproductionOptions,
    agreement,
    experiments,
    load_experiment,
    reproduce,
)
from edgeveil_tools import cli
from edgeveil_tools.local.local_run import parse_local_job

pytestmark = pytest.mark.slow

TOY = """
title: a toy
source: nobody 2000
figure: accuracy
remark: No remark.
picture: lines
job:
  data: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}
  features: [{name: identity, input_scale: 16}]
  train: {method: fm, rounds: 2}
  privacy: {epsilon: 8.0}
  local_run: {devices: 5}
parts:
  short: {train: {rounds: 1}}
rows:
  - {name: first, label: a row, privacy: "ε = 1, they say", claimed: 0.5, x: 1}
  - {name: "eps{}", label: "another, {}", privacy: none, sweep: {4: 0.9, 2: null},
     set: privacy.epsilon, series: swept, parts: [short]}
  - {name: pictures, label: on MNIST, privacy: none,
     job: {data: {source: mnist, input_shape: [28, 28]}}}
quick:
  only: [first]
  job: {features: null}
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "experiments"
    made.mkdir()
    (made / "toy.yaml").write_text(TOY)
    return made


@pytest.fixture
def play(folder, tmp_path):
    def played(*only, **options):
        out = tmp_path / "out"
        asked = ReproductionOptions(out, 1, only=only, **options)
        assert reproduce("toy", asked, folder) == 0
        return json.loads((out / "reproduction.json").read_text())["rows"]

    return played


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", experiments())
def test_every_row_is_a_job_that_loads(name, quick):
    trials = load_experiment(name, quick=quick).trials
    assert len({trial.name for trial in trials}) == len(trials)
    for trial in {_kind(trial): trial for trial in trials}.values():
        written = dict(trial.job)
        if any(entry["name"] == "onnx" for entry in written.get("features", ())):
            written["features"] = [{"name": "gabor"}]  # the backbone's file is trained first
        parse_local_job(yaml.safe_dump(written), trial.name)


def _kind(trial):
    """Return one key for all ε of jobs with sampled steps, whose noise takes a second to find."""
    if "sampling_rate" not in trial.job.get("train", {}):
        return trial.name
    return repr({**trial.job, "job": "", "privacy": ""})


def test_figure_2_plays_from_end_to_end(tmp_path, capsys):
    command = ["reproduce", "delm-fig2", "--quick", "--rounds", "2", "--json"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    content = json.loads(capsys.readouterr().out)
    rows = {row["trial"]: row for row in content["rows"]}
    assert content["failures"] == []
    assert all(len(row["curve"]) == row["rounds"] == 2 for row in rows.values())
    assert rows["fm"]["proven_privacy"].endswith("per record, whole job, proven")
    assert {rows[name]["proven_privacy"] for name in list(rows)[1:]} == {"no proven guarantee"}
    assert rows["fm"]["ours"] > rows["delm_basic"]["ours"]


def test_text_and_measurement_stand_side_by_side_and_rows_of_a_former_run_stay(play, tmp_path):
    first, *rest = play("first")
    assert (first["claimed"], first["values"]) == (0.5, [first["ours"]])
    assert first["ours"] == first["curve"][-1][1]
    assert first["proven_privacy"].startswith("(ε = 8, δ = 1e-05) per record")
    assert [row["ours"] for row in rest] == [None] * 3
    done = list((tmp_path / "out").rglob("model.onnx"))
    before = [path.stat().st_mtime_ns for path in done]
    assert play("first")[0] == first
    assert done and [path.stat().st_mtime_ns for path in done] == before, "it was done before"
    rows = play(data=tmp_path, rounds=1)  # in which there are no files of MNIST
    assert [row["rounds"] for row in rows[1:]] == [1, 1, None]
    assert rows[3]["ours"] is None


def test_a_sweep_is_a_row_for_each_value(folder):
    swept = load_experiment("toy", folder=folder).trials[1:3]
    for one, value, claimed in zip(swept, (4, 2), (0.9, None), strict=True):
        assert (one.name, one.label) == (f"eps{value}", f"another, {value}")
        assert one.job["privacy"]["epsilon"] == one.points[0]["x"] == value
        assert one.job["train"] == {"method": "fm", "rounds": 1}
        assert one.points[0]["claimed"] == claimed
    (quick,) = load_experiment("toy", quick=True, folder=folder).trials
    assert "features" not in quick.job


@pytest.mark.parametrize("options", [{"only": ["pictures"]}, {"only": ["firts"]}, {"rounds": 0}])
def test_what_is_asked_must_exist(options, folder, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UsageError):
        reproduce("toy", ReproductionOptions(out, data=tmp_path, **options), folder)
    assert not out.exists()


def test_names_are_listed_and_a_gpu_is_asked_for_before_files(monkeypatch, tmp_path, capsys):
    assert cli.main(["reproduce", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(experiments())
    assert cli.main(["reproduce", "delm-tabel3"]) == 2
    assert "'delm-table3'" in capsys.readouterr().err
    monkeypatch.setattr("edgeveil_lab.reproduce.run.chosen_processor", lambda _wanted: "cpu")
    out = tmp_path / "out"
    assert cli.main(["reproduce", "pso-table2", "--data", str(tmp_path), "--out", str(out)]) == 2
    assert "GPU" in capsys.readouterr().err and not out.exists()


def test_agreement_is_the_correlation_of_ranks():
    def of(scores, losses):
        rows = zip(scores, losses, strict=True)
        rounds = [{"cluster_scores": s and {"score": s}, "loss": loss} for s, loss in rows]
        return agreement({"rounds": [{"round": n, **row} for n, row in enumerate(rounds, 1)]})

    assert of((0.1, 0.2, 0.9), (0.2, 0.5, 0.6)) == pytest.approx(1)
    assert of((0.1, 0.2, 0.9), (0.9, 0.5, 0.1)) == pytest.approx(-1)
    assert of((0.1, None, 0.9), (0.9, 0.5, 0.1)) is None
