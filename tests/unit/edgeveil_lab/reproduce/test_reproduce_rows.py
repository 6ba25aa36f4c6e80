"""Rows of an experiment: several figures of a run, fewer rounds, rows of former runs, no files."""

import json

import pytest

from edgeveil.parts.sources import published_files
from edgeveil.registry import Table
from edgeveil_lab.reproduce.experiment import Experiment, Point, Trial, final_accuracy
from edgeveil_tools import cli

pytestmark = pytest.mark.slow

TOY = {
    "job": "toy",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "features": [{"name": "identity", "input_scale": 16}],
    "train": {"method": "fm", "rounds": 2},
    "privacy": {"epsilon": 8.0},
    "local_run": {"devices": 5},
}
PICTURES = {**TOY, "data": {**TOY["data"], "source": "mnist", "input_shape": [28, 28]}}


def first_round(result):
    return result["rounds"][0]["accuracy"]


ROWS = (
    Trial(
        "curve",
        "a curve",
        TOY,
        (
            Point(0.5, first_round, "ours", 1, "round 1"),
            Point(0.7, final_accuracy, "ours", 2, "end"),
        ),
        "ε = 1, they say",
    ),
    Trial("other", "another", TOY, (Point(0.9),), "none"),
    Trial("pictures", "on MNIST", PICTURES, (Point(),), "none"),
)


@pytest.fixture
def toy(monkeypatch):
    experiment = Experiment(
        "a toy", "nobody 2000", "accuracy", lambda _quick: ROWS, "No remark.", picture="lines"
    )
    table = Table("experiment", {"toy": experiment})
    monkeypatch.setattr("edgeveil_lab.reproduce.run.EXPERIMENTS", table)
    monkeypatch.setattr("edgeveil_lab.reproduce.EXPERIMENTS", table)


@pytest.fixture
def play(toy, tmp_path, capsys):
    def played(*options):
        command = ["reproduce", "toy", "--seeds", "1", "--out", str(tmp_path), "--json", *options]
        assert cli.main(command) == 0
        return json.loads(capsys.readouterr().out)["rows"]

    return played


def test_a_run_gives_a_row_for_each_point(play):
    rows = play("--only", "curve")
    one, two, *_ = rows
    assert [(r["label"], r["x"], r["claimed"]) for r in (one, two)] == [
        ("a curve, round 1", 1, 0.5),
        ("a curve, end", 2, 0.7),
    ]
    assert one["ours"] == one["curve"][0][1]
    assert two["ours"] == two["curve"][1][1]
    assert [r["ours"] for r in rows[2:]] == [None, None]


def test_rows_of_a_former_run_stay_and_each_names_its_command(play, tmp_path):
    (first, *_), rows = play("--only", "curve"), play("--only", "other", "--rounds", "1")
    kept, _, other, _ = rows
    assert kept == first
    assert kept["command"] == "edgeveil reproduce toy --seeds 1"
    assert other["command"] == "edgeveil reproduce toy --seeds 1 --rounds 1"
    said = (tmp_path / "reproduction.md").read_text()
    assert f"{kept['command']} --only curve\n{other['command']} --only other\n" in said
    assert "| **1** of 2 |" in said


def test_what_a_row_learns_with_stands_in_the_table_where_the_experiment_shows_it(
    monkeypatch, tmp_path
):
    job = {**TOY, "features": [{"name": "identity"}, {"name": "random", "dimension": 9}]}
    job["train"] = {**TOY["train"], "clip": 0.5, "shares": {"centre": 0.02, "quadratic": 0.2}}
    row = Trial("both", "two maps", job, (Point(),), "none")
    shown = Experiment("a toy", "none", "accuracy", lambda _: (row,), "", shows_settings=True)
    monkeypatch.setattr(
        "edgeveil_lab.reproduce.run.EXPERIMENTS", Table("experiment", {"toy": shown})
    )
    assert cli.main(["reproduce", "toy", "--seeds", "1", "--out", str(tmp_path)]) == 0
    said = (tmp_path / "reproduction.md").read_text()
    assert "| features and settings |\n" in said
    assert "| all × 64 records; identity + random (1 : 1), 73 features; noise gaussian, ce" in said
    assert "clip 0.5, radius 0.7, ridge 0.3, curvature 0.5, shares 0.02/0.2, local_steps" in said
    (kept,) = json.loads((tmp_path / "reproduction.json").read_text())["rows"]
    assert kept["settings"] in said


def test_rows_without_files_are_left_out_where_others_run(toy, tmp_path, capsys):
    options = ["--rounds", "1", "--seeds", "1", "--data", str(tmp_path), "--out", str(tmp_path)]
    assert cli.main(["reproduce", "toy", *options]) == 0
    said = capsys.readouterr().out
    assert said.startswith("left out, for want of files: mnist as it is published: train-images")
    assert "| not run: no files of mnist | – | – |" in said
    assert cli.main(["reproduce", "toy", "--only", "curve", *options]) == 0
    said = capsys.readouterr().out
    assert "left out" not in said  # it was not asked for
    assert "| not run: no files of mnist | – | – |" in said


def test_a_row_without_files_that_is_asked_for_is_refused(toy, tmp_path, capsys):
    options = ["--only", "pictures", "--data", str(tmp_path), "--out", str(tmp_path)]
    assert cli.main(["reproduce", "toy", *options]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in published_files()["mnist"].names)
    assert not (tmp_path / "jobs").exists()


def test_rounds_are_at_least_one(toy, tmp_path, capsys):
    assert cli.main(["reproduce", "toy", "--rounds", "0", "--out", str(tmp_path)]) == 2
    assert "no round to run" in capsys.readouterr().err
