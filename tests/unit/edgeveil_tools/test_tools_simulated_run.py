"""`edgeveil run --simulate` and `edgeveil table`, on digits and on a tiny MNIST."""

import gzip
import io
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import yaml

from edgeveil.errors import JobFailed, UsageError
from edgeveil.parts.sources.mnist import MNIST_FILES
from edgeveil.sites.policy import Policy
from edgeveil_tools.cli import main
from edgeveil_tools.local import data as run_data
from edgeveil_tools.local.data import check_data, source
from edgeveil_tools.local.fleet import LocalFleet
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.run import FILES as LEFT
from edgeveil_tools.local.run import prepare, run_local, summary
from edgeveil_tools.report.table import TableOptions, claims, picture, table

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


def mnist_job(folder, **local_run):
    data = {"source": "mnist", "classes": 10, "input_shape": [28, 28], "nominal_records": 20}
    features = [{"name": "gabor", "orientations": 2, "scales": 1, "pool": 16}]
    run = {"devices": 5, "simulate": True, "partition": {"kind": "iid"}, **local_run}
    return job_file(folder, job="tiny", data=data, features=features, local_run=run)


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), 1))


@pytest.fixture
def mnist(tmp_path):
    """A hundred bright or dark squares for training, twenty for tests."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for half, count in (("train", 100), ("t10k", 20)):
        labels = np.arange(count) % 10
        images = np.zeros((count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 6] = 200
        write_idx(folder / f"{half}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{half}-labels-idx1-ubyte.gz", labels)
    return folder


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A working directory from which no data set is found."""
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    return place


def left_by(path, out, **overrides):
    assert run_local(path, out, Overrides(**overrides), stream=io.StringIO()) == 0
    assert all((out / name).is_file() for name in LEFT)
    return json.loads((out / "result.json").read_text())


def test_a_simulated_run_leaves_what_a_real_one_does_and_says_what_it_was(tmp_path, capsys):
    out = tmp_path / "out"
    result = left_by(job_file(tmp_path), out)
    assert (result["simulated"], result["encryption"]) == (True, "off")
    assert "protects nobody" in result["note"]
    assert ("note", result["note"]) in summary(result)
    assert (result["status"], result["protocol"]) == ("completed", None)
    assert [row["uploads"] for row in result["rounds"]] == [5, 5]
    assert result["privacy"]["training"]["status"] == "proven"
    assert len(result["reference"]["rounds"]) == 2
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert events[-1]["type"] == "job_completed"
    assert "encryption off" in (out / "report.html").read_text()
    assert capsys.readouterr().out == ""


def test_one_seed_repeats_exactly_and_without_reference_if_asked(tmp_path):
    path = job_file(tmp_path)
    for name in ("a", "b"):
        run_local(path, tmp_path / name, Overrides(), reference=False, stream=io.StringIO())
    left_by(path, tmp_path / "c", seed=8)
    models = [(tmp_path / name / "model.onnx").read_bytes() for name in "abc"]
    assert models[0] == models[1] != models[2]
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert result["reference"] == {"accuracy": None, "rounds": [], "note": ""}


def test_the_switch_of_the_command_line_wins(tmp_path):
    path = job_file(tmp_path)
    assert local_job(path, Overrides(simulate=False))[1].simulate is False
    assert local_job(QUICKSTART, Overrides(simulate=True))[1].simulate is True
    assert local_job(path, Overrides())[1].simulate is True


@pytest.mark.parametrize("options", [{"broker": "amqtt"}, {"protocol": 4}, {"data": Path("/")}])
def test_an_option_that_would_change_nothing_is_refused(tmp_path, options):
    path = job_file(tmp_path)
    with pytest.raises(UsageError) as raised:
        local_job(path, Overrides(**options))
    assert str(raised.value).startswith(f"--{next(iter(options))}: ")
    if "data" not in options:
        local_job(path, Overrides(simulate=False, **options))


def test_a_method_without_a_reference_waits_for_none(tmp_path):
    policy = {"allowed_methods": ["fm_paper"], "accept_unproven": True}
    path = job_file(
        tmp_path,
        train={"method": "fm_paper", "rounds": 1},
        privacy={"epsilon": 8, "accept_unproven": True},
        unsupervised={"every_rounds": 0},
        local_run={**SMALL["local_run"], "policy": policy},
    )
    said = io.StringIO()
    assert run_local(path, tmp_path / "out", Overrides(), stream=said) == 0
    assert "reference" not in said.getvalue()
    assert "without noise" not in said.getvalue()


def test_a_simulated_job_that_fails_says_why_and_leaves_its_result(tmp_path):
    job, run = local_job(job_file(tmp_path), Overrides())
    strict = run.model_copy(update={"policy": Policy(max_epsilon_per_job=1.0)})
    prepare(tmp_path / "out")
    played = LocalFleet(job, strict, tmp_path / "site", tmp_path / "out")
    with pytest.raises(JobFailed, match="all 5 selected devices declined") as raised:
        played.run()
    played.stop()
    assert "max_epsilon_per_job: job" in str(raised.value)
    result = played.result(str(raised.value))
    assert result["status"] == "failed"
    assert result["privacy"]["training"]["epsilon"] == 0
    assert "max_epsilon_per_job" in (tmp_path / "out" / "logs" / "simulation.log").read_text()


def test_a_simulated_job_that_pauses_ends_the_run_with_its_reason(tmp_path):
    job, run = local_job(job_file(tmp_path), Overrides())
    few = run.model_copy(update={"devices": 2})
    prepare(tmp_path / "out")
    played = LocalFleet(job, few, tmp_path / "site", tmp_path / "out")
    with pytest.raises(JobFailed, match=r"the job paused: .*2 devices can be selected") as raised:
        played.run()
    played.stop()
    assert raised.value.exit_code == 6
    assert played.result(str(raised.value))["status"] == "failed"


# --- MNIST --------------------------------------------------------------------------------------


def test_mnist_is_learned_from_the_folder_given(tmp_path, mnist, nowhere):
    result = left_by(mnist_job(tmp_path), tmp_path / "out", data=mnist)
    assert result["status"] == "completed"
    assert [row["uploads"] for row in result["rounds"]] == [5, 5]


def test_the_job_files_folder_counts_from_the_job_file(tmp_path, mnist, nowhere):
    job, run = local_job(mnist_job(tmp_path, data={"path": "mnist"}), Overrides())
    check_data(job, run)
    assert source(job, run).path == mnist
    other = tmp_path / "other"
    job, run = local_job(tmp_path / "tiny.yaml", Overrides(data=other))
    assert source(job, run).path == other


def test_the_usual_places_are_looked_at(tmp_path, mnist, nowhere):
    job, run = local_job(mnist_job(tmp_path), Overrides())
    for place in run_data.PLACES:
        here = nowhere / place / "mnist"
        here.parent.mkdir(parents=True, exist_ok=True)
        mnist.rename(here)
        assert source(job, run).path.resolve() == here.resolve()
        here.rename(mnist)


def test_mnist_that_is_nowhere_names_the_option_and_the_files(tmp_path, nowhere):
    with pytest.raises(UsageError) as caught:
        check_data(*local_job(mnist_job(tmp_path), Overrides()))
    assert "--data DIR" in str(caught.value)
    assert all(name in str(caught.value) for name in MNIST_FILES.names)


# --- tables -------------------------------------------------------------------------------------


def test_a_table_holds_every_seed_and_goes_on_where_it_stopped(tmp_path, capsys):
    path, out = job_file(tmp_path, federated_evaluation={"epsilon": 8}), tmp_path / "table"
    asked = TableOptions(seeds=2, out=out, as_json=True)
    assert table([path], asked) == 0
    said = capsys.readouterr()
    content = json.loads(said.out)
    (row,) = content["rows"]
    assert [one["uploads"] for one in row["federated"]] == [5, 5]
    (beside,) = (note for note in content["notes"] if note.startswith("by noised"))
    assert beside.count("±") == 2 and beside[1:] in (out / "table.md").read_text()
    found = re.findall(r"small\.yaml, seed [78] \([12] of 2\): accuracy (0\.\d+)", said.err)
    assert len(found) == 2
    assert "ε by plan" not in said.err
    assert "training guarantee" not in said.err
    assert "| seconds (median) |" in (out / "table.md").read_text()
    assert len(row["accuracies"]) == 2
    assert min(row["accuracies"]) <= row["median"] <= max(row["accuracies"])
    assert (row["status"], row["unit"], row["seeds"]) == ("proven", "record", [7, 8])
    assert row["reference"] > 0
    for name in ("table.md", "table.json", "table.png", "table.svg"):
        assert (out / name).stat().st_size > 0
    assert "| small | identity | 8 | 1e-05 | record | proven |" in (out / "table.md").read_text()
    model = out / "small" / "seed-8" / "model.onnx"
    before = model.stat().st_mtime_ns
    assert table([path], asked) == 0
    assert model.stat().st_mtime_ns == before
    assert "done before" in capsys.readouterr().err
    job_file(tmp_path, privacy={"epsilon": 4.0})
    assert table([path], asked) == 0
    assert model.stat().st_mtime_ns > before


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path, capsys):
    twice = {"privacy": {"epsilon": 8, "max_participations": 1}, "round": {"min_batch": 4}}
    four = {"devices": 4, "min_devices": 4}  # of five, each of which answers one exchange
    run = {**SMALL["local_run"], "policy": {"min_devices": 4}}
    bad = job_file(tmp_path, job="spent", selection=four, local_run=run, **twice)
    good = job_file(tmp_path)
    code = main(
        ["table", str(bad), str(good), "--seeds", "1", "--json", "--out", str(tmp_path / "t")]
    )
    assert code == JobFailed.exit_code
    content = json.loads(capsys.readouterr().out)
    assert [row["median"] is None for row in content["rows"]] == [True, False]
    assert "below the minimum" in content["failures"][0]


def test_all_job_files_are_checked_before_the_first_one_runs(tmp_path, nowhere):
    with pytest.raises(UsageError, match="--data DIR"):
        table([job_file(tmp_path), mnist_job(tmp_path)], TableOptions(seeds=1, out=tmp_path / "t"))
    assert not (tmp_path / "t").exists()


def test_each_run_of_a_table_is_logged(tmp_path, capsys):
    path, out = str(job_file(tmp_path)), str(tmp_path / "t")
    line = ["table", path, "--seeds", "1", "--out", out, "--track"]
    assert main([*line, "neptune:x"]) == 2
    assert "unknown scheme 'neptune'" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
    assert main([*line, f"tensorboard:{tmp_path}/board"]) == 0
    (logged,) = (tmp_path / "board").iterdir()
    assert (logged / "result.json").is_file()


def test_the_folder_of_a_table_is_for_the_jobs_that_read_one(tmp_path, mnist, nowhere):
    paths = [job_file(tmp_path), mnist_job(tmp_path)]
    assert table(paths, TableOptions(seeds=1, out=tmp_path / "t", data=mnist)) == 0


def test_published_figures_stand_beside_their_job_alone():
    assert [claim.text for claim in claims("mnist-fm-local")] == [
        "DELM 0.962 to 0.981",
        "LDP-FL 0.927",
    ]
    assert claims("mnist_fm_local_eps01")[0].text == "DELM 0.913 to 0.922"
    assert claims("quickstart") == ()


def test_the_picture_is_the_same_for_the_same_rows():
    row = {"job": "a", "features": "gabor", "epsilon": 1.0, "status": "proven", "claims": [],
           "accuracies": [0.9, 0.91], "median": 0.905, "reference": None}  # fmt: skip
    assert picture([row], "svg") == picture([row], "svg")
    assert picture([{**row, "median": None, "accuracies": []}], "png").startswith(b"\x89PNG")


def test_results_lie_in_a_folder_of_the_jobs_file_where_none_is_named(tmp_path, monkeypatch):
    path = job_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(path), "--no-reference"]) == 0
    assert (tmp_path / "out" / "small" / "report.html").is_file()
