"""Tables whose label is a name, a number or an alarm: run, checked, described, released, used."""

import json
import re

import numpy as np
import onnx
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from edgeveil.errors import ConfigError, DataError, UsageError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.jobs import parse_plan
from edgeveil_edge.inference import ServedModel
from edgeveil_edge.predict import predict
from edgeveil_edge.release_trial import run_trial
from edgeveil_edge.releases import ReleaseStore
from edgeveil_tools.cli import main
from edgeveil_tools.describe import describe
from edgeveil_tools.local.data import dealt, held
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import load_local_job
from edgeveil_tools.local.run import run_local
from edgeveil_tools.prospect import prospect
from edgeveil_tools.result import Result
from edgeveil_tools.setup.init_job import write_from
from tests.kits import homes, people, windows
from tests.kits.homes import homes_job, write_homes
from tests.kits.people import people_job, write_people
from tests.kits.windows import windows_job, write_windows


def ran(job, folder, *, reference=False):
    """The result and the model of a run."""
    assert run_local(job, folder / "out", Overrides(workers=1), reference=reference) == 0
    return Result.load(folder / "out"), folder / "out" / "model.onnx"


def predicted(model, rows, capsys):
    capsys.readouterr()
    assert main(["predict", str(model), str(rows), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["predictions"]


# --- names ---


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    return ran(people_job(folder, write_people(folder / "people.csv")), folder, reference=True)


def test_a_released_model_reads_raw_rows_in_any_form_and_prints_names(named, tmp_path, capsys):
    result, model = named
    assert result.accuracy > 0.85 < result.content["reference"]["accuracy"]
    check_graph(model.read_bytes(), released=True)
    assert run_trial(model.read_bytes()) == ""
    found = predict(model, write_people(tmp_path / "people.csv"))
    assert found.classes == ("low", "high")
    assert found.accuracy > 0.85
    rows = people.people()
    bare = write_people(tmp_path / "bare.csv", [row[2::-1] for row in rows], names=False)
    bare.write_text("hours,work,age\n" + bare.read_text())  # neither the label nor the remark
    columns = dict(zip(people.NAMES, map(list, zip(*rows, strict=True)), strict=True))
    columns["age"] = [int(age) for age in columns["age"]]
    parquet.write_table(pa.table(columns), tmp_path / "people.parquet")
    for other in (bare, tmp_path / "people.parquet"):
        assert np.array_equal(predict(model, other).probabilities, found.probabilities)
    first = predicted(model, bare, capsys)[0]
    assert (first["label"], first["name"]) == (1, "high")
    assert sum(first["probabilities"]) == pytest.approx(1)
    (tmp_path / "lacks.csv").write_text("age,hours\n3,4\n")
    with pytest.raises(DataError):
        predict(model, tmp_path / "lacks.csv")


def test_a_file_without_a_header_is_used_by_its_order_with_the_label_or_without(tmp_path):
    path = write_people(tmp_path / "people.data", names=False)
    job = people_job(tmp_path, path, schema={**people.SCHEMA, "header": people.NAMES})
    _, model = ran(job, tmp_path)
    rows = [row[:-1] for row in people.people()]
    bare = write_people(tmp_path / "bare.csv", rows, names=False)
    named = write_people(tmp_path / "named.csv")
    found = [predict(model, file) for file in (path, bare, named)]
    assert found[0].accuracy > 0.8
    for other in found[1:]:
        assert np.array_equal(other.probabilities, found[0].probabilities)


def test_a_test_file_of_its_own_is_what_the_cloud_tests_on(tmp_path):
    rows, elsewhere = people.people(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder in (tmp_path, elsewhere):
        write_people(folder / "a.csv", rows[:300])
        write_people(folder / "b.csv", rows[300:])
    data = {"source": "csv", "path": "a.csv", "test_path": "b.csv"}
    path = people_job(tmp_path, tmp_path / "a.csv", data=data)
    job, run = local_job(path, Overrides(data=elsewhere))
    assert run.data.path == elsewhere / "a.csv"
    assert (len(dealt(job, run)[0]), len(held(job, run))) == (300, 100)
    with pytest.raises(ConfigError):
        load_local_job(people_job(tmp_path, tmp_path / "a.csv", data=data, test_folds=5))


SITE = """edge:
  name: one
  role: train
  broker: {{url: "mqtt://127.0.0.1:1"}}
  proxy_key_file: p.pub
  cloud_key_file: c.pub
  state_dir: {0}/state
  data: {{name: people, source: csv, path: {0}/p.csv, header: true}}
"""


def test_a_check_counts_what_would_be_clipped_or_dropped(tmp_path, capsys):
    columns = [{"name": "age", "number": [0, 1]}, *people.SCHEMA["columns"][1:]]
    rows = [*people.people(50), ["30", "Sate", "1", "", "other"]]
    data = write_people(tmp_path / "p.csv", rows)
    job = people_job(tmp_path, data, schema={**people.SCHEMA, "columns": columns})
    assert main(["check", str(job)]) == 0
    shown = capsys.readouterr().out
    for figure in ("'age': 51 of 51", "'work': 1 of ", "p.csv:52: "):
        assert figure in shown
    (tmp_path / "edge.yaml").write_text(SITE.format(tmp_path))
    assert main(["check", str(tmp_path / "edge.yaml"), str(job)]) == DataError.exit_code
    assert "'age': 51 of 51" in capsys.readouterr().out


def test_a_draft_of_own_records_is_no_job_before_it_is_judged(tmp_path, capsys):
    path = write_people(tmp_path / "people.csv")
    assert main(["check", str(path)]) == 0
    draft = capsys.readouterr().out.partition("\n")[2]
    found = yaml.safe_load(draft)["data"]["schema"]
    assert found["origin"] == "own_records"
    assert found["label"] == {"column": "income", "classes": ["high", "low"]}
    assert {"name": "work", "category": ["Private", "State", "none"]} in found["columns"]
    assert {"name": "age", "number": [0, 100]} in found["columns"]
    assert found["missing"] == ["?"]
    assert "note" not in [column["name"] for column in found["columns"]]  # 400 different texts
    rest = "features: [{name: identity}]\ntrain: {method: fm}\nprivacy: {epsilon: 8}\njob: d\n"
    with pytest.raises(ConfigError):
        parse_plan(draft + rest)
    assert parse_plan((draft + rest).replace("own_records   #", "public   #")).job.data.classes == 2
    with pytest.raises(DataError):
        describe(path, "incme")
    write_from(write_homes(tmp_path / "homes.csv"), tmp_path, "price")
    text = (tmp_path / "job.yaml").read_text()
    assert "number" in yaml.safe_load(text)["data"]["schema"]["label"]
    (tmp_path / "job.yaml").write_text(text.replace("own_records", "public"))
    load_local_job(tmp_path / "job.yaml")


# --- numbers ---


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("homes")
    write_homes(folder / "homes.csv")
    job = homes_job(folder, federated_evaluation={"epsilon": 9})
    return ran(job, folder, reference=True)


def test_a_number_is_learned_and_shown_in_its_unit(numbered):
    result, _ = numbered
    final, reference = result.content["final"], result.content["reference"]
    figures, federated = final["figures"], final["federated"]
    assert result.accuracy is reference["accuracy"] is None
    spread = float(np.std([float(row[2]) for row in homes.homes()]))
    assert 15 < figures["rmse"] == result.rmse < min(0.5 * spread, figures["rmse_of_mean"])
    assert 15 < reference["rmse"] < 0.35 * spread
    assert result.content["rounds"][-1]["loss"] == pytest.approx((result.rmse / 500) ** 2, rel=1e-3)
    assert f"{result.rmse:.4g}" in str(result) and "accuracy" not in str(result)
    assert federated["leading"] == "rmse"
    assert abs(federated["rmse"] - result.rmse) < 3 * federated["rmse_deviation"]
    assert 0 < federated["rmse_deviation"] < 500  # half of the range is what its middle has


def test_a_released_model_and_the_inference_service_answer_with_values(numbered, tmp_path, capsys):
    model = numbered[1]
    assert run_trial(model.read_bytes()) == ""
    found = predict(model, write_homes(tmp_path / "homes.csv"))
    assert found.accuracy is None
    truth = np.array([float(row[2]) for row in homes.homes()])
    rmse = float(np.sqrt(np.mean((found.values - np.clip(truth, 0, 1000)) ** 2)))
    assert found.errors["rmse"] == pytest.approx(rmse, rel=1e-3)
    (tmp_path / "bare.csv").write_text("place,rooms\ntown,5\n?,many\n")  # read as missing
    first, second = predicted(model, tmp_path / "bare.csv", capsys)
    assert first.keys() == second.keys() == {"value"}
    assert 400 < first["value"] < 850
    releases = ReleaseStore(tmp_path / "releases")
    releases.install("first", model.read_bytes(), {})
    served = ServedModel.load(releases.current())
    first, second = served.run(np.array([[0.0, 1, 0, 0], [np.nan, 0, 0, 1]])).plain()
    assert 400 < first["value"] < 850
    assert second == {"value": None} or 0 <= second["value"] <= 1000


def test_a_release_outside_the_range_of_its_schema_is_not_used(numbered):
    model = onnx.load_model_from_string(numbered[1].read_bytes())
    (text,) = [one for one in model.metadata_props if one.key == "edgeveil.schema"]
    text.value = text.value.replace("1000.0", "10.0")
    assert run_trial(model.SerializeToString())
    model.metadata_props.remove(text)
    assert run_trial(model.SerializeToString())


# --- alarms ---


@pytest.fixture(scope="module")
def alarmed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    write_windows(folder / "windows.csv")
    return ran(windows_job(folder), folder, reference=True)


def test_anomalies_are_found_by_what_is_normal(alarmed):
    result, _ = alarmed
    figures, federated = (result.content["final"][key] for key in ("figures", "federated"))
    assert (result.accuracy, result.rmse) == (None, None)
    assert figures["auc"] == result.auc > 0.9 < result.content["reference"]["auc"]
    assert result.content["rounds"][-1]["loss"] == pytest.approx(1 - result.auc, abs=1e-6)
    assert (federated["alarm_rate"], 0 < federated["threshold"] < 1) == (0.1, True)
    assert abs(figures["false_alarm_rate"] - 0.1) < 0.08
    assert figures["detection_rate"] > 0.6
    assert f"{result.auc:.3f}" in str(result) and "accuracy" not in str(result)


def test_a_released_model_reads_raw_rows_and_gives_alarms(alarmed, tmp_path, capsys):
    model = alarmed[1]
    assert run_trial(model.read_bytes()) == ""
    write_windows(tmp_path / "windows.csv")
    found = predict(model, tmp_path / "windows.csv")
    assert (found.accuracy, found.values) == (None, None)
    assert found.alarms
    assert found.labels.tolist() == (found.scores > 1).astype(int).tolist()
    names = np.array(windows.windows()[1])
    anomalous = np.isin(names, ("leak", "stall"))
    assert found.labels[anomalous].mean() > 0.6
    assert found.labels[names == "ok"].mean() < 0.2
    expected = found.labels[anomalous].mean()
    assert found.errors["detection_rate"] == pytest.approx(expected, abs=1e-6)
    rows = [",".join(windows.NAMES), ",".join(["0.3"] * 8), "1,2,3"]
    (tmp_path / "bare.csv").write_text("\n".join([*rows, ""]))
    first, second = predicted(model, tmp_path / "bare.csv", capsys)
    assert (first["label"], first["name"]) == (0, "normal")
    assert second == {"score": None, "label": None, "name": None}


def test_without_federated_evaluation_there_is_no_threshold(tmp_path):
    write_windows(tmp_path / "windows.csv")
    result, model = ran(windows_job(tmp_path, federated_evaluation=None), tmp_path)
    assert result.content["final"]["figures"].keys().isdisjoint({"detection_rate", "precision"})
    found = predict(model, tmp_path / "windows.csv")
    assert not found.alarms
    assert set(found.labels.tolist()) == {-1}
    assert found.plain()[0].keys() == {"score"}


def test_without_labels_nothing_is_tested_and_of_anomalies_alone_nothing_learned(tmp_path):
    write_windows(tmp_path / "windows.csv")
    text = (tmp_path / "windows.csv").read_text()
    label = re.compile(",(ok|leak|stall|)$", re.MULTILINE)
    (tmp_path / "windows.csv").write_text(label.sub(",leak", text))
    assert main(["check", str(windows_job(tmp_path))]) == ConfigError.exit_code
    other = tmp_path / "other"
    other.mkdir()
    (other / "windows.csv").write_text(label.sub("", text).replace(",state\n", "\n"))
    result, _ = ran(windows_job(other), other)
    assert result.auc is None
    assert result.content["final"]["federated"]["threshold"] > 0


# --- refusals ---

TWO_CLASSES = {**windows.SCHEMA, "label": {"column": "state", "classes": ["a", "b"]}}
SCORED = {"encrypt": {"laplace_eval": {"laplace_eval_eps": 1}}, "unsupervised": {"every_rounds": 1}}


def partition(**values):
    return {"local_run": {**homes.LOCAL, "partition": values}}


@pytest.mark.parametrize(
    ("job", "key", "changes"),
    [
        (homes_job, "train.method", {"train": {"method": "fm_paper"}}),
        (homes_job, "unsupervised.every_rounds", {"unsupervised": {"every_rounds": 1}}),
        (homes_job, "train.curvature", {"train": {"method": "fm", "curvature": 0.3}}),
        (homes_job, "local_run.partition", partition(kind="n_class")),
        (homes_job, "local_run.partition", partition(lq_user=0.5, lq_data=0.5)),
        (
            homes_job,
            "data.classes",
            {"data": {"source": "h", "nominal_records": 60, "schema": homes.SCHEMA, "classes": 3}},
        ),
        (windows_job, "", {"train": {"method": "fm"}}),
        (
            windows_job,
            "",
            {"data": {"source": "w", "schema": TWO_CLASSES, "nominal_records": 9}},
        ),
        (windows_job, "", SCORED),
        (windows_job, "", {"train": {"method": "pca_residual", "keep": 8}}),
    ],
)
def test_what_does_not_fit_the_label_is_refused_when_the_file_is_read(tmp_path, job, key, changes):
    write_homes(tmp_path / "homes.csv")
    write_windows(tmp_path / "windows.csv", 30)
    with pytest.raises(ConfigError, match=f"{key}:"):
        load_local_job(job(tmp_path, **changes))


def test_no_estimate_is_made_of_an_anomaly_job(tmp_path):
    write_windows(tmp_path / "windows.csv", 30)
    with pytest.raises(UsageError):
        prospect(windows_job(tmp_path), print)
