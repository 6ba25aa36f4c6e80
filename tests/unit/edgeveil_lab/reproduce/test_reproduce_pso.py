"""PSO-DP's experiments and anonymous learning's: figures at their rows; one holder's job runs."""

import json

import numpy as np
import pytest

from edgeveil.parts.sources.digits import load_digits_split
from edgeveil_lab.reproduce import EXPERIMENTS
from edgeveil_lab.reproduce.pso import PsoWorkload, digits
from edgeveil_tools import cli

pytestmark = pytest.mark.slow


def rows(name, quick=False):
    return {trial.name: trial for trial in EXPERIMENTS[name].trials(quick)}


def test_one_holder_of_all_records_learns_pictures_alone(tmp_path, capsys):
    command = ["reproduce", "pso-fig5", "--quick", "--rounds", "1", "--only", "dp_sgd_eps2"]
    assert cli.main([*command, "--json", "--out", str(tmp_path)]) == 0
    content = json.loads(capsys.readouterr().out)
    (row,) = [row for row in content["rows"] if row["rounds"]]
    assert (row["trial"], row["claimed"], row["x"]) == ("dp_sgd_eps2", 0.6752, 2)
    assert row["proven_privacy"].endswith("per record, whole job, proven")
    (result,) = tmp_path.glob("dp_sgd_eps2/seed-*/result.json")
    assert json.loads(result.read_text())["devices"] == 1


def test_figures_4_and_5_have_the_texts_figures():
    for name, figures in {"pso-fig4": (0.7125, 0.9066), "pso-fig5": (0.6752, 0.8826)}.items():
        found = rows(name)
        assert len(found) == 5 * 4
        assert found["dp_sgd_eps2"].points[0].claimed == figures[0]
        for choice in ("unpriced", "priced"):
            trial = found[f"{choice}_eps2"]
            assert trial.points[0].claimed == figures[1]
            assert trial.job["train"]["selection"] == choice


def test_a_swarm_takes_as_many_steps_a_particle_as_its_rival():
    scene = PsoWorkload(False, {"name": "cnn"})
    alone, swarm = scene.noised("dp_sgd"), scene.noised("pso_dp_sgd")
    assert alone["rounds"] == swarm["rounds"]
    assert alone["local_steps"] == swarm["local_steps"] * swarm["moves"]


@pytest.mark.parametrize(
    ("row", "figure", "kind"),
    [("pso_iid_eps10", 0.9829, "iid"), ("pso_non_iid_eps2", 0.8928, "n_class")],
)
def test_figures_8_and_9_differ_in_the_dealing(row, figure, kind):
    trial = rows("pso-fig8-9")[row]
    assert trial.points[0].claimed == figure
    assert trial.job["local_run"]["partition"]["kind"] == kind
    assert trial.job["train"]["method"] == "pso_dp_fl"


def test_table_2_says_that_it_needs_a_gpu_before_it_looks_for_files(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("edgeveil_lab.reproduce.run.chosen_processor", lambda _wanted: "cpu")
    out = tmp_path / "out"
    assert cli.main(["reproduce", "pso-table2", "--data", str(tmp_path), "--out", str(out)]) == 2
    assert "needs a GPU" in capsys.readouterr().err
    monkeypatch.setattr("edgeveil_lab.reproduce.run.chosen_processor", lambda _wanted: "cuda")
    assert cli.main(["reproduce", "pso-table2", "--data", str(tmp_path), "--out", str(out)]) == 2
    assert "data_batch_1.bin" in capsys.readouterr().err
    assert not out.exists()


def test_shares_of_one_need_no_stage():
    found = rows("anonymous-lambda")
    stages = {name: trial.job.get("update") for name, trial in found.items()}
    assert stages["up1_down1"] == []
    assert stages["up0_1_down1"] == [{"name": "upload_top_k", "share": 0.1}]
    assert stages["up1_down0_5"] == [{"name": "download_random", "share": 0.5}]
    assert [stage["name"] for stage in stages["up0_1_down0_5"]] == [
        *("download_random", "upload_top_k")
    ]
    assert stages["eps8_delta1e-5"] is None  # the preset's own


def test_digits_keep_their_pixels_places():
    flat = load_digits_split(0)[0]
    np.testing.assert_array_equal(digits().x[:, 2, 3], flat.x[:, 2 * 8 + 3])
    assert digits().x.shape == (1797, 8, 8)
