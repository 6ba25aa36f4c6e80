"""What a run's folder says of it: job, time, command; and its model in the file."""

import json
from pathlib import Path

import onnx
import pytest

import edgeveil
from edgeveil.errors import UsageError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.jobs import parse_job
from edgeveil_tools import cli
from edgeveil_tools.local.job import Overrides, local_job, submitted, whole_job
from edgeveil_tools.local.local_run import load_local_job
from edgeveil_tools.local.run import FILES, prepared

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "tests" / "kits" / "quickstart.yaml"
JOBS = sorted(
    path for path in (ROOT / "configs" / "jobs").glob("*.yaml") if "encoder" not in path.name
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    base = tmp_path_factory.mktemp("run")
    job = base / "job.yaml"
    text = QUICKSTART.read_text().replace("rounds: 15", "rounds: 2")
    job.write_text(text.replace("every_rounds: 5", "every_rounds: 2"))
    line = ["run", str(job), "--simulate", "--devices", "6", "--seed", "3", "--no-reference"]
    line += ["--out", str(base / "out")]
    assert cli.main(line) == 0
    return base / "out", line


@pytest.mark.timeout(900)  # whose backbone is not here yet has it trained
@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_that_is_written_whole_is_the_same_job(path, tmp_path):
    job, run = local_job(path, Overrides(seed=11))
    assert job.digest() == load_local_job(path)[0].alone.digest()
    assert parse_job(submitted(job)).digest() == job.digest()
    whole = tmp_path / "job.yaml"
    whole.write_bytes(whole_job(job, run))
    again, same_run = local_job(whole, Overrides())
    assert again.canonical() == job.canonical()
    assert again.priority == job.priority
    assert same_run == run


def test_running_its_job_file_again_repeats_the_run(ran, tmp_path):
    out, _ = ran
    again = edgeveil.run(out / "job.yaml", out=tmp_path / "again", reference=False, report=False)
    assert again.model.read_bytes() == (out / "model.onnx").read_bytes()
    assert (tmp_path / "again" / "job.yaml").read_bytes() == (out / "job.yaml").read_bytes()


def test_the_model_says_what_it_is_and_a_result_is_written_over_only_if_asked_to(ran, capsys):
    out, line = ran
    raw, before = ((out / name).read_bytes() for name in ("model.onnx", "result.json"))
    check_graph(raw, released=True)
    model = onnx.load_model_from_string(raw)
    onnx.checker.check_model(model)
    assert all((out / name).is_file() for name in FILES)
    facts = {entry.key: entry.value for entry in model.metadata_props}
    result = json.loads(before)
    assert facts["edgeveil.job"] == "quickstart"
    assert facts["edgeveil.job_sha256"] == result["run"]["job_sha256"]
    assert json.loads(facts["edgeveil.labels"]) == [str(n) for n in range(10)]
    assert json.loads(facts["edgeveil.input_shape"]) == [64]
    assert json.loads(facts["edgeveil.privacy"]) == result["privacy"]
    assert "protects nobody" in facts["edgeveil.note"]
    assert cli.main(line) == 2
    with pytest.raises(UsageError):
        edgeveil.simulate(QUICKSTART, out=out)
    with prepared(busy := out.with_name("busy")):
        (busy / "events.jsonl").write_text("of the other run")
        for force in ([], ["--force"]):
            assert cli.main([*line, "--out", str(busy), *force]) == 2
        assert "another run is writing it" in capsys.readouterr().err
        assert sorted(path.name for path in busy.rglob("*")) == ["events.jsonl", "logs"]
        assert (busy / "events.jsonl").read_text() == "of the other run"
    assert (out / "result.json").read_bytes() == before
    assert cli.main([*line, "--force"]) == 0
    assert (out / "result.json").read_bytes() != before


def test_a_job_file_of_ones_own_is_never_written_over(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(text := "# mine\n" + QUICKSTART.read_text())
    for force in (False, True):
        with pytest.raises(UsageError):
            edgeveil.simulate(job, out=tmp_path, devices=6, reference=False, force=force)
    assert job.read_text() == text
