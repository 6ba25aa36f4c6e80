"""`--track`: runs in MLflow, TensorBoard and Weights & Biases, read back by their own libraries."""

import json
import socket
import struct
import threading
from pathlib import Path

import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

import edgeveil
from edgeveil.errors import MissingExtraError, UsageError
from edgeveil_tools import cli
from edgeveil_tools.local import run
from edgeveil_tools.tracking import tracker
from edgeveil_tools.tracking.course import WAITING, Tracking, metrics_of, tracked
from edgeveil_tools.tracking.follow import JobFollower
from edgeveil_tools.tracking.tracker import TrackTarget, flat, hidden

QUICKSTART = Path(__file__).parents[3] / "tests" / "kits" / "quickstart.yaml"
ROUNDS = 3
COMMITTED = {
    "exchange": 3, "phase": "train", "number": 1, "attempt": 1, "uploads": 6, "accuracy": 0.5,
    "loss": 1.5, "seconds": 0.4, "bytes": {"cloud_out": 10}, "timeline": {}, "clusters": None,
    "epsilon": {"training": 2.0, "inference": None}, "figures": {"macro_f1": 0.25},
}  # fmt: skip


@pytest.fixture(scope="module")
def store_uri(tmp_path_factory):
    """A store of MLflow's own; in SQLite it would take ten seconds to make its tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        yield f"file:{tmp_path_factory.mktemp('mlflow')}"


@pytest.fixture(scope="module")
def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def ran(tmp_path_factory, store_uri, closed_port):
    """A run that is logged to all three, and to a server that is away: folder, console, result."""
    base = tmp_path_factory.mktemp("run")
    text = QUICKSTART.read_text().replace("rounds: 15", f"rounds: {ROUNDS}")
    (base / "job.yaml").write_text(text.replace("every_rounds: 5", "every_rounds: 3"))
    away = f"mlflow:http://user:hidden-word@127.0.0.1:{closed_port}"
    lines = []

    def hear(view):
        if view.kind == "note":
            lines.append(view.line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "CLOSE_S", 200.0)  # the machine may be busy with other tests
        result = edgeveil.simulate(
            base / "job.yaml", devices=6, out=base / "out", reference=False, progress=hear,
            track=[f"mlflow:{store_uri}", f"tensorboard:{base}/board",
                   f"wandb-offline:{base}/wandb", away],
        )  # fmt: skip
    return base, lines, result


def test_a_server_that_is_away_is_told_once_and_stops_nothing(ran, closed_port):
    _, lines, result = ran
    (told,) = [line for line in lines if "Tracking" in line]
    assert told.startswith(f"Tracking to mlflow:http://…@127.0.0.1:{closed_port} stops: ")
    assert "The job goes on; see that it answers" in told
    assert "hidden-word" not in told
    assert result.status == "completed"


def test_mlflow_has_parameters_guarantees_rounds_and_files(ran, store_uri):
    _, _, result = ran
    client = MlflowClient(tracking_uri=store_uri)
    experiment = client.get_experiment_by_name("edgeveil")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("quickstart-seed-7", "FINISHED")
    params = run.data.params
    assert (params["train.method"], params["privacy.epsilon"]) == ("fm", "8.0")
    assert params["local_run.devices"] == "6"
    assert params["planned.training.status"] == "proven"
    assert params["planned.inference.unit"] == "device"
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(one.step, one.value) for one in history] == [
        (row["round"], row["accuracy"]) for row in result.rounds
    ]
    spent = client.get_metric_history(run.info.run_id, "epsilon.training")
    assert [one.value for one in spent if one.step] == [
        row["training"] for row in result.epsilon if row["round"]
    ]
    assert run.data.metrics["final.accuracy"] == result.accuracy
    assert float(run.data.tags["privacy.training.epsilon"]) == pytest.approx(8, rel=1e-6)
    assert float(run.data.tags["privacy.training.delta"]) == 1e-5
    assert "protects nobody" in run.data.tags["privacy.note"]
    kept = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert kept == {"job.yaml", "result.json", "model.onnx", "report.html"}


def test_tensorboard_reads_the_same(ran):
    base, _, result = ran
    (folder,) = (base / "board").iterdir()
    read = EventAccumulator(str(folder))
    read.Reload()
    assert [(one.step, one.value) for one in read.Scalars("loss")] == [
        (row["round"], pytest.approx(row["loss"])) for row in result.rounds
    ]
    assert read.Scalars("final.accuracy")[0].value == pytest.approx(result.accuracy)
    told = {tag: read.Tensors(tag)[0].tensor_proto.string_val[0].decode()
            for tag in ("parameters", "outcome")}  # fmt: skip
    assert "| train.method | fm |" in told["parameters"]
    assert "| privacy.inference.unit | device |" in told["outcome"]
    assert (folder / "model.onnx").read_bytes() == result.model.read_bytes()


def test_every_rounds_figures_are_logged(ran, store_uri):
    base, _, result = ran
    client = MlflowClient(tracking_uri=store_uri)
    experiment = client.get_experiment_by_name("edgeveil")
    (run,) = client.search_runs([experiment.experiment_id])
    read = EventAccumulator(str(next((base / "board").iterdir())))
    read.Reload()
    for name in ("balanced_accuracy", "macro_f1", "auc"):
        by_round = [(row["round"], row[f"figures_{name}"]) for row in result.rounds]
        history = client.get_metric_history(run.info.run_id, name)
        assert [(one.step, one.value) for one in history] == by_round
        assert [one.step for one in read.Scalars(name)] == [number for number, _ in by_round]
        assert run.data.metrics[f"final.{name}"] == by_round[-1][1]
    rows = result.content["rounds"]
    history = client.get_metric_history(run.info.run_id, "calibration_error")
    assert [one.value for one in history] == [
        row["figures"]["calibration"]["error"] for row in rows
    ]


def test_figures_of_a_number_are_logged_and_none_that_is_not_known():
    figures = {"rmse": 54.5, "mae": 41.25, "r2": None, "unusable": 0}
    found = metrics_of({**COMMITTED, "accuracy": None, "figures": figures})
    assert (found["rmse"], found["mae"], found["unusable"]) == (54.5, 41.25, 0)
    assert not {"r2", "accuracy"} & found.keys()
    assert metrics_of({**COMMITTED, "figures": None})["accuracy"] == 0.5  # of an earlier version


def _records(path):
    """The records of a .wandb file: blocks of 32 KiB, a header of 7 bytes before each piece."""
    raw, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(raw):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", raw[at : at + 7])
        whole += raw[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def test_weights_and_biases_has_it_offline(ran):
    base, _, result = ran
    (file,) = (base / "wandb" / "wandb").glob("offline-run-*/*.wandb")
    records = list(_records(file))
    config, rows = {}, []
    for record in records:
        if record.WhichOneof("record_type") == "run":
            config |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({one.key or one.nested_key[0]: json.loads(one.value_json) for one in items})
    assert config["train.method"] == "fm"
    assert config["planned.training.unit"] == "record"
    assert [(row["round"], row["accuracy"]) for row in rows if row["round"]] == [
        (row["round"], row["accuracy"]) for row in result.rounds
    ]
    assert (file.parent / "files" / "job.yaml").is_file()
    assert "environment" not in {record.WhichOneof("record_type") for record in records}
    assert not any(record.run.host for record in records)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("neptune:x", "unknown scheme 'neptune'"),
        ("board", "names no scheme"),
        ("tensorboard:", "names no place"),
    ],
)
def test_what_is_no_tracker_is_refused_before_anything_starts(text, what, tmp_path, capsys):
    out = tmp_path / "out"
    line = ["run", str(QUICKSTART), "--simulate", "--out", str(out), "--track", text]
    assert cli.main(line) == 2
    said = capsys.readouterr().err
    assert what in said
    assert "mlflow:http://HOST:5000, tensorboard:DIR, wandb-offline:DIR" in said
    assert not out.exists()


def test_a_missing_library_is_refused_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(tracker, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="needs wandb") as refused:
        edgeveil.simulate(QUICKSTART, out=tmp_path / "out", track=["wandb-offline:x"])
    assert refused.value.fix == "pip install 'edgeveil[track]'"
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError):
        TrackTarget.parse("mlflow")


def test_a_server_that_never_answers_holds_nothing_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = TrackTarget.parse(f"mlflow:http://127.0.0.1:{silent.getsockname()[1]}")
        tracking = Tracking([target], tracked("job", {}, {}))
        for _ in range(WAITING + 2):
            tracking.take({"type": "exchange_committed", "data": COMMITTED})
        (told,) = tracking.complaints()
        assert "is too slow. The job goes on" in told
        assert tracking.close("completed", {}, wait_s=0.1) == []


@pytest.mark.parametrize("word", ["b", "b@d", "b/d", "b@/d"])
def test_a_password_in_an_address_is_in_no_result(word, tmp_path):
    out = tmp_path / "out"
    line = ["run", str(QUICKSTART), "--simulate", "--out", str(out)]
    line += ["--track", f"x:http://a:{word}@c"]
    args = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeveil_tools.cli.learning._run", lambda given: args.append(given) or 0)
        assert cli.main(line) == 0
    assert args[0].command_line.endswith("--track x:http://…@c")
    assert hidden(line[-1]) == "x:http://…@c"


def test_parameters_are_flat():
    plain = {"a": {"b": 1, "c": True}, "d": [{"e": None}, {"e": 2.5}], "f": [1, 2]}
    assert dict(flat(plain)) == {
        "a.b": 1, "a.c": True, "d.0.e": "", "d.1.e": 2.5, "f": "[1, 2]",
    }  # fmt: skip


# --- the jobs of a cloud ---


class StoredCloud:
    """What a follower asks a cloud for, of two jobs whose events are given."""

    def __init__(self):
        self.jobs, self.stored = {}, {}

    def submit(self, job, canonical):
        self.jobs[job] = {"id": job, "status": "running", "ended_at": None}
        self.stored[job] = (canonical, [])

    def tell(self, job, kind, **data):
        events = self.stored[job][1]
        events.append({"seq": len(events) + 1, "type": kind, "data": data})
        if kind == "job_completed":
            self.jobs[job] |= {"status": "completed", "ended_at": 1.0}

    def list(self):
        return list(self.jobs.values())

    def content(self, job):
        return self.stored[job][0]

    def events(self, job, after=0, wait_s=0.0):
        return [one for one in self.stored[job][1] if one["seq"] > after]

    def model(self, job, kind="onnx"):
        return b"ONNX"


def test_a_follower_logs_each_job_once_and_goes_on_with_it(tmp_path, store_uri):
    canonical = edgeveil.load_job(QUICKSTART).alone.canonical()
    cloud, kept = StoredCloud(), tmp_path / "tracking.json"
    cloud.submit("old", canonical)
    cloud.tell("old", "job_completed", privacy={}, final={})
    targets = [
        TrackTarget.parse(f"mlflow:{store_uri}"),
        TrackTarget.parse(f"tensorboard:{tmp_path}/board"),
    ]
    said, stop = [], threading.Event()
    stop.set()

    first = JobFollower(cloud, targets, said.append, kept)
    first.look()
    cloud.submit("new", canonical)
    cloud.tell("new", "exchange_committed", **COMMITTED)
    first.look()
    client = MlflowClient(tracking_uri=store_uri)

    def runs():
        experiments = client.search_experiments(filter_string="name = 'edgeveil'")
        found = [one.experiment_id for one in experiments]
        return found and client.search_runs(found, "tags.`edgeveil.id` = 'new'")

    def logged():
        return [one.step for run in runs() for one in
                client.get_metric_history(run.info.run_id, "accuracy")]  # fmt: skip

    _wait(lambda: logged() == [1])
    first.run(stop)  # the cloud's process ends here, and comes again
    assert json.loads(kept.read_bytes()) == ["new"]

    second = JobFollower(cloud, targets, said.append, kept)
    cloud.tell("new", "exchange_committed", **{**COMMITTED, "number": 2, "exchange": 4})
    privacy = {"training": {"epsilon": 8.0, "delta": 1e-5, "unit": "record", "status": "proven"}}
    cloud.tell("new", "job_completed", privacy=privacy, final={"accuracy": 0.9})
    second.look()
    assert said == []
    (run,) = runs()
    assert run.info.status == "FINISHED"
    assert logged() == [1, 2]
    assert run.data.params["train.method"] == "fm"
    assert run.data.tags["privacy.training.status"] == "proven"
    assert run.data.metrics["final.accuracy"] == 0.9
    assert run.data.metrics["macro_f1"] == run.data.metrics["final.macro_f1"] == 0.25
    files = {one.path for one in client.list_artifacts(run.info.run_id)}
    assert files == {"job.yaml", "model.onnx"}
    assert json.loads(kept.read_bytes()) == []
    assert [one.name for one in (tmp_path / "board").iterdir()] == ["new"]
    read = EventAccumulator(str(tmp_path / "board" / "new"))
    read.Reload()
    assert [one.step for one in read.Scalars("accuracy")] == [1, 2]


def _wait(condition, limit_s=60.0):
    done = threading.Event()
    for _ in range(int(limit_s * 10)):
        if condition():
            return
        done.wait(0.1)
    raise AssertionError("it did not come")
