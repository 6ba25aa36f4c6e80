"""`edgeveil compare`: one job with local, shared and no noise, and what may not be compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

from edgeveil_tools.cli import main
from edgeveil_tools.report.noise_comparison import (
    NO_NOISE,
    accuracy_picture,
    cells,
    epsilon_picture,
)

SHARED = Path(__file__).parents[3] / "configs" / "jobs" / "digits_shared.yaml"
SMALL = {
    "train": {"method": "fm", "rounds": 2},
    "selection": {"devices": 5},
    "round": {"deadline_s": 30, "min_batch": 4},
    "local_run": {"devices": 5, "partition": {"kind": "iid"}},
}


def job_file(folder: Path, **changes: Any) -> Path:
    plain = {**yaml.safe_load(SHARED.read_text()), **SMALL, "job": "small", **changes}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def local(folder: Path) -> Path:
    """A job file that says nothing of shared noise."""
    privacy = {"epsilon": 2, "delta": 1e-5}
    return job_file(folder, privacy=privacy, aggregation={"name": "fedavg"})


def compared(capsys: pytest.CaptureFixture[str], *given: str) -> dict[str, dict[str, Any]]:
    assert main(["compare", *given, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    return {row["noise"]: row for row in rows}


def test_each_noise_has_its_row_its_folder_and_its_lines(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    rows = compared(capsys, str(job_file(tmp_path)), "--out", str(out))
    assert list(rows) == ["local", "shared", "none"]
    one, shared, none = rows.values()
    assert one["epsilon"] == one["collusion_epsilon"] == pytest.approx(2, abs=1e-2)
    assert one["collusion_epsilons"] == [None, None]
    assert shared["epsilon"] == pytest.approx(2, abs=1e-2)
    assert shared["collusion_epsilon"] > shared["epsilon"]
    assert shared["honest_devices"] == 4  # of 4 uploads, 0.8 of them, rounded up
    assert shared["collusion_epsilons"][-1] == pytest.approx(shared["collusion_epsilon"], rel=1e-2)
    assert none["epsilon"] is none["collusion_epsilon"] is none["delta"] is None
    assert [len(row["accuracies"]) for row in rows.values()] == [2, 2, 2]
    for noise in ("local", "shared"):
        result = json.loads((out / noise / "result.json").read_bytes())
        assert result["final"]["accuracy"] == rows[noise]["accuracy"]
        assert (result["privacy"]["training"].get("honest_devices", 0) > 0) == (noise == "shared")
    assert not (out / "none").exists()
    page = (out / "compare.html").read_text("utf-8")
    assert page.count("<svg") == 2 and NO_NOISE in page
    assert not re.search(r'(?:src|href)="(?!#)', page)


def test_a_job_that_shares_nothing_is_shared_for_the_comparison(
    tmp_path: Path, capsys: Any
) -> None:
    out = str(tmp_path / "out")
    rows = compared(capsys, str(local(tmp_path)), "--noise", "shared,local", "--out", out)
    assert list(rows) == ["shared", "local"]
    # The owners' policy of the file does not speak of collusion, and refuses nothing here.
    assert rows["shared"]["collusion_epsilon"] > rows["shared"]["epsilon"]
    again = compared(capsys, str(job_file(tmp_path)), "--noise", "shared", "--out", out, "--force")
    assert again["shared"]["accuracies"] == rows["shared"]["accuracies"]


def test_the_table_says_loudly_that_no_noise_protects_nobody(tmp_path: Path, capsys: Any) -> None:
    assert main(["compare", str(job_file(tmp_path)), "--out", str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert NO_NOISE in said
    assert "simulated with seeded noise: this run protects nobody" in said
    plain = ["compare", str(job_file(tmp_path)), "--noise", "local,shared"]
    assert main([*plain, "--out", str(tmp_path / "out")]) == 2
    assert "holds a result already" in capsys.readouterr().err
    assert main([*plain, "--out", str(tmp_path / "out"), "--force"]) == 0
    assert "PRIVACY" not in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused_before_anything_runs(
    tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out"
    assert main(["compare", str(job_file(tmp_path)), "--noise", "none", "--out", str(out)]) == 2
    assert "add local or shared" in capsys.readouterr().err
    pure = {"method": "fm", "rounds": 2, "noise": "laplace"}
    laplace = job_file(tmp_path, train=pure, privacy={"epsilon": 2, "delta": 1e-5})
    assert main(["compare", str(laplace), "--out", str(out)]) != 0
    assert "Laplace noise do not add up" in capsys.readouterr().err
    assert main(["compare", str(laplace), "--noise", "local,sharde"]) == 2
    assert "takes local, shared and none, got 'sharde'" in capsys.readouterr().err
    assert not out.exists()


def test_of_own_records_no_noise_is_shown_only_if_it_is_asked_for(
    tmp_path: Path, capsys: Any
) -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 400)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(400, 2)) + 2 * y[:, None], y=y)
    own = {
        "data": {"source": "mine", "classes": 2, "input_shape": [2], "nominal_records": 50},
        "features": [{"name": "identity", "input_scale": 4}],
        "local_run": {**SMALL["local_run"], "data": {"source": "npz", "path": "own.npz"}},
    }
    path, out = str(job_file(tmp_path, **own)), str(tmp_path / "out")
    assert list(compared(capsys, path, "--out", out)) == ["local", "shared"]
    assert main(["compare", path, "--noise", "local,none", "--out", out, "--force"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "none: computed from the run's own records without any protection" in said


def number_job(folder: Path) -> Path:
    """A small table whose label is a number of two columns, and a job for it."""
    rng = np.random.default_rng(4)
    x = rng.uniform(0, 1, (600, 2))
    y = 2 + 5 * x[:, 0] + 2 * x[:, 1] + rng.normal(0, 0.2, 600)
    table = np.column_stack([x, y])
    np.savetxt(folder / "t.csv", table, "%.6f", ",", header="a,b,y", comments="")
    schema = {
        "origin": "public",
        "label": {"column": "y", "number": [0, 10]},
        "columns": [{"name": ["a", "b"], "number": [0, 1]}],
    }
    return job_file(
        folder,
        data={"source": "t", "nominal_records": 96, "evaluation_share": 0, "schema": schema},
        features=[{"name": "identity"}],
        unsupervised={"eval_type": "NOT_EVAL"},
        local_run={**SMALL["local_run"], "data": {"source": "csv", "path": "t.csv"}},
    )


def test_a_number_is_compared_by_its_rmse_beside_that_of_the_mean(
    tmp_path: Path, capsys: Any
) -> None:
    path, out = str(number_job(tmp_path)), tmp_path / "out"
    assert main(["compare", path, "--noise", "local,shared,none", "--out", str(out), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    rows = {row["noise"]: row for row in content["rows"]}
    assert content["measure"] == "RMSE"
    mean = content["predicting_the_mean"]
    assert 1.2 < mean < 1.9  # of 2 + 5a + 2b, whose deviation is 1.55
    for noise in ("local", "shared"):
        result = json.loads((out / noise / "result.json").read_bytes())
        assert rows[noise]["accuracy"] == result["final"]["figures"]["rmse"]
        r2 = result["final"]["figures"]["r2"]
        assert rows[noise]["accuracy"] == pytest.approx(mean * (1 - r2) ** 0.5, rel=1e-4)
    assert 0 < rows["none"]["accuracy"] < mean / 2
    page = (out / "compare.html").read_text("utf-8")
    assert page.count("<svg") == 2 and "RMSE by round" in page and "Accuracy" not in page
    assert f"Saying the mean of the test records for each of them: RMSE {mean:.4g}" in page


def row(noise: str, **changes: Any) -> dict[str, Any]:
    plain = {
        "noise": noise, "accuracy": 0.9, "accuracies": [0.8, 0.9], "epsilon": 2.0,
        "collusion_epsilon": 9.64491, "delta": 1e-5, "unit": "record", "status": "proven",
        "epsilons": [1.0, 2.0], "collusion_epsilons": [5.0, 9.6], "seconds": 3.25,
    }  # fmt: skip
    return {**plain, **changes}


def test_words_of_a_row() -> None:
    assert cells(row("shared"))[1:6] == ("0.900", "2", "9.645", "1e-05", "record")
    assert cells(row("shared", collusion_epsilon=None))[3] == "not bounded"
    assert cells(row("local", status="claimed"))[2:4] == ("no proven guarantee",) * 2
    assert cells(row("none"))[2:4] == ("no privacy at all",) * 2


def test_pictures_are_whole_and_leave_out_what_is_not_there() -> None:
    rows = [row("local", collusion_epsilons=[]), row("shared"), row("none", epsilons=[])]
    for picture in (accuracy_picture(rows), epsilon_picture(rows)):
        ElementTree.fromstring(picture)
        assert "stroke-dasharray" in picture
    assert "stroke-dasharray" not in epsilon_picture(rows[:1])
    assert accuracy_picture([row("local", accuracies=[None, None])]) == ""
    assert epsilon_picture([row("local", epsilons=[None], collusion_epsilons=[])]) == ""
