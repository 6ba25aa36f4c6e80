"""`edgeveil run --simulate`, of one run or of a grid."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from edgeveil.errors import JobFailed, UsageError
from edgeveil.pages.frozen import thawed
from edgeveil.parts.sources.idx import MNIST_FILES
from edgeveil_tools.cli import main
from edgeveil_tools.local import data as run_data
from edgeveil_tools.local.data import check_data, source
from edgeveil_tools.local.grid import grid_of
from edgeveil_tools.local.job import Overrides, local_job

QUICKSTART = Path(__file__).parents[3] / "tests" / "kits" / "quickstart.yaml"
SMALL = {
    "job": "small",
    "train": {"method": "fm", "rounds": 2},
    "selection": {"min_devices": 5},
    "round": {"deadline_s": 30, "min_batch": 3},
    "unsupervised": {"every_rounds": 2},
    "local_run": {"devices": 5, "simulate": True, "partition": {"kind": "iid"}},
}


def job_file(folder, **changes):
    plain = {**yaml.safe_load(QUICKSTART.read_text()), **SMALL, **changes}
    path = folder / f"{plain['job']}.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def test_a_published_set_is_looked_for_in_the_usual_places(tmp_path, monkeypatch):
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    data = {"source": "mnist", "classes": 10, "input_shape": [28, 28], "nominal_records": 20}
    features = [{"name": "gabor", "orientations": 2, "scales": 1, "pool": 16}]
    job, run = local_job(job_file(tmp_path, data=data, features=features), Overrides())
    with pytest.raises(UsageError):
        check_data(job, run)
    for place in run_data.PLACES:
        folder = here / place / "mnist"
        folder.mkdir(parents=True)
        for name in MNIST_FILES.names:
            (folder / name).touch()
        assert source(job, run).path.resolve() == folder.resolve()
        shutil.rmtree(folder)


def test_a_grid_holds_every_seed_and_point_and_goes_on_where_it_stopped(tmp_path, capsys):
    path, out = job_file(tmp_path), tmp_path / "grid"
    asked = ["run", str(path), "--simulate", "--out", str(out), "--seeds", "2", "--json"]
    asked += ["--sweep", "privacy.epsilon=1,8"]
    assert main(asked) == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in content["rows"]] == ["privacy.epsilon=1", "privacy.epsilon=8"]
    for row, epsilon in zip(content["rows"], (1, 8), strict=True):
        assert (row["seeds"], row["measure"]) == ([7, 8], "accuracy")
        assert len(row["values"]) == 2 and min(row["values"]) <= row["median"] <= max(row["values"])
        assert row["privacy"]["training"]["epsilon"] == pytest.approx(epsilon, rel=1e-3)
        assert row["without_noise"] > 0
    page = thawed((out / "comparison.html").read_text())
    model = out / "privacy.epsilon=8" / "seed-8" / "model.onnx"
    before = model.stat().st_mtime_ns
    assert main(asked) == 0
    assert model.stat().st_mtime_ns == before
    assert main(["report", str(out), "--out", str(tmp_path / "again.html")]) == 0
    assert thawed((tmp_path / "again.html").read_text()) == page
    job_file(tmp_path, train={"method": "fm", "rounds": 3})
    assert not any(one.done for one in grid_of(path, out, Overrides(simulate=True), 2, asked[-1:]))


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path, capsys):
    four = {"devices": 4, "min_devices": 4}  # of five, each of which answers some rounds
    (tmp_path / "owner.yaml").write_text("policy: {min_devices: 4}")
    run = {**SMALL["local_run"], "policy": str(tmp_path / "owner.yaml")}
    path = job_file(tmp_path, selection=four, local_run=run, round={"min_batch": 4})
    asked = ["--sweep", "privacy.max_participations=1,2", "--out", str(tmp_path / "t")]
    assert main(["run", str(path), "--simulate", "--json", *asked]) == JobFailed.exit_code
    content = json.loads(capsys.readouterr().out)
    assert [row["values"] != [] for row in content["rows"]] == [True]
    assert "below the minimum" in content["failures"][0]


MINE = {
    "job": "mine",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "model": {"name": "python", "function": "model_of_mine:Net", "input_scale": 16},
    "train": {"method": "sgd", "rounds": 1},
    "local_run": {"devices": 5},
}
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 10))
"""


def test_federated_averaging_of_an_own_model_needs_one_block_or_one_switch(
    tmp_path, capsys, monkeypatch
):
    (tmp_path / "model_of_mine.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(MINE))
    assert main(["run", str(path), "--simulate", "--out", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert "--accept-unprotected" in said
    (block,) = re.findall(r"`(privacy: [^`]*)`", said)
    by_switch, _ = local_job(path, Overrides(accept_unprotected=True))
    path.write_text(yaml.safe_dump(MINE | yaml.safe_load(block)))
    assert local_job(path, Overrides())[0].digest() == by_switch.digest()
