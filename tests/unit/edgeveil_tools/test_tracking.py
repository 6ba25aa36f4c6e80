"""`--track`: runs in MLflow and TensorBoard, read back by their own libraries."""

import json
import socket
from pathlib import Path

import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import edgeveil
from edgeveil_tools.local import run
from edgeveil_tools.tracking.feed import WAITING, Tracking, hidden
from edgeveil_tools.tracking.watch import tracked
from tests.kits.job_events import committed

QUICKSTART = Path(__file__).parents[3] / "tests" / "kits" / "quickstart.yaml"
COMMITTED = committed(3, 1, 1, figures={"macro_f1": 0.25})["data"]


@pytest.fixture(scope="module")
def store_uri(tmp_path_factory):
    """A store of MLflow's own; in SQLite it would take ten seconds to make its tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        yield f"file:{tmp_path_factory.mktemp('mlflow')}"


@pytest.fixture(scope="module")
def ran(tmp_path_factory, store_uri):
    base, lines = tmp_path_factory.mktemp("run"), []
    text = QUICKSTART.read_text().replace("rounds: 15", "rounds: 3")
    (base / "job.yaml").write_text(text.replace("every_rounds: 5", "every_rounds: 3"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        away = f"mlflow:http://user:hidden-word@127.0.0.1:{probe.getsockname()[1]}"
    track = [f"mlflow:{store_uri}", away]
    options = {"devices": 6, "out": base / "out", "reference": False, "track": track}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "CLOSE_S", 200.0)  # the machine may be busy with other tests
        note = lambda view: lines.append(view.line) if view.kind == "note" else None  # noqa: E731
        result = edgeveil.simulate(base / "job.yaml", progress=note, **options)
    return lines, result


def test_a_server_that_is_away_is_named_once_without_its_password_and_stops_nothing(ran):
    lines, result = ran
    (named,) = [line for line in lines if "Tracking" in line]
    assert "mlflow:http://…@127.0.0.1:" in named
    assert "hidden-word" not in named + json.dumps(result.content)
    assert result.status == "completed"
    for word in ("b", "b@d", "b/d", "b@/d"):
        assert hidden(f"run --track x:http://a:{word}@c") == "run --track x:http://…@c"


def test_mlflow_has_parameters_guarantees_rounds_and_files(ran, store_uri):
    _, result = ran
    client = MlflowClient(tracking_uri=store_uri)
    experiment = client.get_experiment_by_name("edgeveil")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("quickstart-seed-7", "FINISHED")
    params, tags, number = found.data.params, found.data.tags, found.info.run_id
    assert (params["train.method"], params["privacy.epsilon"]) == ("fm", "8.0")
    assert params["planned.training.status"] == "proven"

    def history(name):
        return [(one.step, one.value) for one in client.get_metric_history(number, name)]

    for name in ("accuracy", "figures_macro_f1"):
        by_round = [(row["round"], row[name]) for row in result.rounds]
        assert history(name.removeprefix("figures_")) == by_round
    spent = [row["training"] for row in result.epsilon if row["round"]]
    assert [value for step, value in history("epsilon.training") if step] == spent
    assert float(tags["privacy.training.epsilon"]) == pytest.approx(8, rel=1e-6)
    assert "protects nobody" in tags["privacy.note"]
    kept = {file.path for file in client.list_artifacts(number)}
    assert kept == {"job.yaml", "result.json", "model.onnx", "report.html"}


def test_a_server_that_never_answers_holds_nothing_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"mlflow:http://127.0.0.1:{silent.getsockname()[1]}"
        tracking = Tracking([target], "job", {}, {})
        for _ in range(WAITING + 2):
            tracking.take({"type": "exchange_committed", "data": COMMITTED})
        assert len(tracking.complaints()) == 1
        assert tracking.close("completed", {}, {}, wait_s=0.1) == []


class StoredCloud:
    """A cloud's answers about one job that has completed."""

    def content(self, _job):
        return edgeveil.load_job(QUICKSTART).alone.canonical()

    def job(self, _job):
        return {"status": "completed"}

    def model(self, _job):
        return b"ONNX"


def test_a_job_of_a_cloud_is_logged_while_it_is_watched(tmp_path, capsys):
    privacy = {"training": {"epsilon": 8.0, "delta": 1e-5, "unit": "record", "status": "proven"}}
    events = [
        {"type": "exchange_committed", "data": COMMITTED},
        {"type": "exchange_committed", "data": {**COMMITTED, "number": 2, "accuracy": 0.75}},
        {"type": "job_completed", "data": {"privacy": privacy, "final": {"accuracy": 0.75}}},
    ]
    targets = [f"tensorboard:{tmp_path}/board"]
    assert list(tracked(StoredCloud(), "quick-1", targets, events)) == events
    assert capsys.readouterr().err == ""
    (folder,) = (tmp_path / "board").iterdir()
    read = EventAccumulator(str(folder))
    read.Reload()
    assert [(one.step, one.value) for one in read.Scalars("accuracy")] == [(1, 0.5), (2, 0.75)]
    outcome = read.Tensors("outcome")[0].tensor_proto.string_val[0].decode()
    assert "| privacy.training.status | proven |" in outcome
    assert {one.name for one in folder.iterdir()} > {"job.yaml", "model.onnx"}
