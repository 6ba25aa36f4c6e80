"""A label that is a number, from its table to values in its unit: run, reported, released, used."""

import json
import re

import numpy as np
import onnx
import pytest

from edgeveil.errors import ConfigError
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil_edge.inference import ServedModel
from edgeveil_edge.predict import predict
from edgeveil_edge.release_trial import run_trial
from edgeveil_edge.releases import ReleaseStore
from edgeveil_tools.cli import main
from edgeveil_tools.local.job import Overrides
from edgeveil_tools.local.local_run import load_local_job
from edgeveil_tools.local.run import run_local
from edgeveil_tools.result import Result
from edgeveil_tools.setup.init_job import write_from
from tests.kits.homes import LOCAL, SCHEMA, homes, homes_job, write_homes


def run_of(folder, *, reference=False, **changes):
    write_homes(folder / "homes.csv")
    job = homes_job(folder, **changes)
    assert run_local(job, folder / "out", Overrides(), reference=reference) == 0
    return Result.load(folder / "out")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("homes")
    run_of(folder, reference=True)
    return folder


def test_a_number_is_learned_and_told_in_its_unit(learned):
    result = Result.load(learned / "out")
    figures, reference = result.content["final"]["figures"], result.content["reference"]
    assert result.accuracy is reference["accuracy"] is None
    assert figures.keys() == {"mae", "rmse", "rmse_of_mean", "r2", "unusable"}
    spread = float(np.std([float(row[2]) for row in homes()]))
    assert (
        15 < figures["rmse"] == result.rmse < 0.5 * spread and result.rmse < figures["rmse_of_mean"]
    )
    assert 15 < reference["rmse"] < 0.35 * spread
    assert result.content["rounds"][-1]["loss"] == pytest.approx((result.rmse / 500) ** 2, rel=1e-3)
    assert f"{result.rmse:.4g}" in str(result) and "accuracy" not in str(result)


def test_devices_errors_on_their_own_records_are_told_beside_the_clouds(tmp_path):
    asked = {"epsilon": 9}
    result = run_of(tmp_path, federated_evaluation=asked)
    told = result.content["final"]["federated"]
    assert told["leading"] == "rmse"
    assert abs(told["rmse"] - result.rmse) < 3 * told["rmse_deviation"]  # of other records
    assert 0 < told["rmse_deviation"] < 500  # half of the range is what guessing its middle has


def test_the_released_model_reads_raw_rows_and_prints_values(learned, capsys):
    model = learned / "out" / "model.onnx"
    assert run_trial(model.read_bytes()) == ""
    found = predict(model, learned / "homes.csv")
    assert len(found) == 400
    assert found.accuracy is None
    truth = np.array([float(row[2]) for row in homes()])
    assert found.errors["rmse"] == pytest.approx(
        float(np.sqrt(np.mean((found.values - np.clip(truth, 0, 1000)) ** 2))), rel=1e-3
    )
    (learned / "bare.csv").write_text("place,rooms\ntown,5\n?,many\n")  # read as missing
    capsys.readouterr()
    assert main(["predict", str(model), str(learned / "bare.csv"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["predictions"]
    assert [one.keys() for one in told] == [{"value"}] * 2
    assert 400 < told[0]["value"] < 850


def test_a_release_outside_the_range_that_it_tells_is_not_used(learned):
    raw = (learned / "out" / "model.onnx").read_bytes()
    model = onnx.load_model_from_string(raw)
    (text,) = [one for one in model.metadata_props if one.key == "edgeveil.schema"]
    text.value = text.value.replace("1000.0", "10.0")
    assert run_trial(model.SerializeToString())
    model.metadata_props.remove(text)
    assert run_trial(model.SerializeToString())
    assert "edgeveil.labels" not in OnnxModel(raw).metadata


def dealt(**partition):
    return {"local_run": {**LOCAL, "partition": partition}}


CLASSES = {"source": "h", "nominal_records": 60, "schema": SCHEMA, "classes": 3}


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("train.method", {"train": {"method": "fm_paper"}}),
        ("unsupervised.every_rounds", {"unsupervised": {"every_rounds": 1}}),
        ("train.curvature", {"train": {"method": "fm", "curvature": 0.3}}),
        ("local_run.partition", dealt(kind="n_class")),
        ("local_run.partition", dealt(lq_user=0.5, lq_data=0.5)),
        ("data.classes", {"data": CLASSES}),
    ],
)
def test_what_is_about_classes_is_refused_when_the_file_is_read(tmp_path, key, changes):
    write_homes(tmp_path / "homes.csv")
    with pytest.raises(ConfigError, match=f"{key}:"):
        load_local_job(homes_job(tmp_path, **changes))


def test_the_inference_service_answers_with_values(learned, tmp_path):
    releases = ReleaseStore(tmp_path / "releases")
    releases.install("first", (learned / "out" / "model.onnx").read_bytes(), {})
    served = ServedModel.load(releases.current())
    found = served.run(np.array([[0.0, 1, 0, 0], [np.nan, 0, 0, 1]]))
    first, second = found.plain()
    assert 400 < first["value"] < 850
    assert second == {"value": None} or 0 <= second["value"] <= 1000


def test_a_number_is_drafted_with_a_range_and_its_job_can_be_played(tmp_path):
    table = write_homes(tmp_path / "homes.csv")
    write_from(table, tmp_path, "price")
    text = (tmp_path / "job.yaml").read_text()
    assert re.search(r"column: price\n +number: \[\d+, \d+\]   # in place of classes", text)
    (tmp_path / "job.yaml").write_text(text.replace("own_records", "public"))
    load_local_job(tmp_path / "job.yaml")
