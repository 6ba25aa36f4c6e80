"""A table with names, from its file to names and probabilities: run, checked, described, used."""

import json

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from edgeveil.errors import ConfigError, DataError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.jobs import parse_plan
from edgeveil_edge.predict import predict
from edgeveil_edge.release_trial import run_trial
from edgeveil_tools.checks import record_notes
from edgeveil_tools.cli import main
from edgeveil_tools.describe import describe
from edgeveil_tools.local.data import dealt, held
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import load_local_job
from edgeveil_tools.local.run import run_local
from tests.kits.people import NAMES, SCHEMA, people, people_job, write_people


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    job = people_job(folder, write_people(folder / "people.csv"))
    assert run_local(job, folder / "out", Overrides(), reference=True) == 0
    return folder


def test_the_released_model_reads_raw_rows_and_prints_names(learned, capsys):
    model = learned / "out" / "model.onnx"
    result = json.loads((learned / "out" / "result.json").read_text())
    assert result["final"]["accuracy"] > 0.85 < result["reference"]["accuracy"]
    check_graph(model.read_bytes(), released=True)
    assert run_trial(model.read_bytes()) == ""
    found = predict(model, learned / "people.csv")
    assert found.classes == ("low", "high")
    assert found.accuracy > 0.85
    bare = write_people(learned / "bare.csv", [row[2::-1] for row in people()], names=False)
    text = "hours,work,age\n" + bare.read_text()
    bare.write_text(text)  # other order, neither the label nor the remark
    without = predict(model, bare)
    assert without.accuracy is None
    assert np.array_equal(without.probabilities, found.probabilities)
    columns = dict(zip(NAMES, map(list, zip(*people(), strict=True)), strict=True))
    columns["age"] = [int(age) for age in columns["age"]]
    parquet.write_table(pa.table(columns), learned / "people.parquet")
    assert np.array_equal(
        predict(model, learned / "people.parquet").probabilities, found.probabilities
    )
    capsys.readouterr()
    assert main(["predict", str(model), str(bare), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["predictions"][0]
    assert (first["label"], first["name"]) == (1, "high")
    assert sum(first["probabilities"]) == pytest.approx(1)
    (learned / "lacks.csv").write_text("age,hours\n3,4\n")
    with pytest.raises(DataError):
        predict(model, learned / "lacks.csv")


def test_a_file_without_a_header_is_used_by_its_order_with_the_label_or_without(tmp_path):
    path = write_people(tmp_path / "people.data", names=False)
    job = people_job(tmp_path, path, schema={**SCHEMA, "header": NAMES})
    assert run_local(job, tmp_path / "out", Overrides(workers=1), reference=False) == 0
    bare = write_people(tmp_path / "bare.csv", [row[:-1] for row in people()], names=False)
    named = write_people(tmp_path / "named.csv")
    found = [predict(tmp_path / "out" / "model.onnx", file) for file in (path, bare, named)]
    assert found[0].accuracy > 0.8
    for other in found[1:]:
        assert np.array_equal(other.probabilities, found[0].probabilities)


def test_a_test_file_of_its_own_is_what_the_cloud_tests_on(tmp_path):
    rows = people()
    write_people(tmp_path / "a.csv", rows[:300])
    write_people(tmp_path / "b.csv", rows[300:])
    data = {"source": "csv", "path": "a.csv", "test_path": "b.csv"}
    path = people_job(tmp_path, tmp_path / "a.csv", data=data)
    (tmp_path / "elsewhere").mkdir()
    for name in ("a.csv", "b.csv"):
        (tmp_path / "elsewhere" / name).write_text((tmp_path / name).read_text())
    job, run = local_job(path, Overrides(data=tmp_path / "elsewhere"))
    assert run.data.path == tmp_path / "elsewhere" / "a.csv"
    assert (len(dealt(job, run)[0]), len(held(job, run))) == (300, 100)
    with pytest.raises(ConfigError):
        load_local_job(people_job(tmp_path, tmp_path / "a.csv", data=data, test_folds=5))


def test_validate_tells_what_would_be_clipped_or_dropped(tmp_path, capsys):
    columns = [{"name": "age", "number": [0, 1]}, *SCHEMA["columns"][1:]]
    rows = [*people(50), ["30", "Sate", "1", "", "other"]]
    data = write_people(tmp_path / "p.csv", rows)
    job = people_job(tmp_path, data, schema={**SCHEMA, "columns": columns})
    notes = record_notes(load_local_job(job)[0], job)
    for figure in ("'age': 51 of 51", "'work': 1 of ", "p.csv:52: "):
        assert figure in "\n".join(notes)
    assert main(["check", str(job)]) == 0
    assert "'age': 51 of 51" in capsys.readouterr().out
    site = {
        "edge": {
            "name": "one",
            "role": "train",
            "broker": {"url": "mqtt://127.0.0.1:1"},
            "proxy_key_file": "p.pub",
            "cloud_key_file": "c.pub",
            "state_dir": str(tmp_path / "state"),
            "data": {"name": "people", "source": "csv", "path": str(data), "header": True},
        }
    }
    (tmp_path / "edge.yaml").write_text(yaml.safe_dump(site))
    assert main(["check", str(tmp_path / "edge.yaml"), str(job)]) == DataError.exit_code
    assert "'age': 51 of 51" in capsys.readouterr().out


def test_a_draft_is_ones_own_look_and_no_job_before_it_is_judged(tmp_path, capsys):
    path = write_people(tmp_path / "people.csv")
    assert main(["check", str(path)]) == 0
    draft = capsys.readouterr().out.partition("\n")[2]
    found = yaml.safe_load(draft)["data"]["schema"]
    assert found["origin"] == "own_records"
    assert found["label"] == {"column": "income", "classes": ["high", "low"]}
    assert {"name": "work", "category": ["Private", "State", "none"]} in found["columns"]
    assert {"name": "age", "number": [0, 100]} in found["columns"]
    assert found["missing"] == ["?"]
    assert "note is left out: 400 different texts" in draft
    rest = "features: [{name: identity}]\ntrain: {method: fm}\nprivacy: {epsilon: 8}\njob: d\n"
    with pytest.raises(ConfigError):
        parse_plan(draft + rest)
    assert parse_plan((draft + rest).replace("own_records   #", "public   #")).job.data.classes == 2
    with pytest.raises(DataError):
        describe(path, "incme")
