"""A run's model in MLflow and on the Hugging Face Hub."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import mlflow
import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard

import edgeveil
from edgeveil.errors import DataError, UsageError
from edgeveil.jobs import load_plan
from tests.unit.edgeveil_tools.test_in_memory import BY_NAME, QUICK, people

QUICKSTART = "configs/jobs/quickstart.yaml"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("jobs") / "names.yaml"
    path.write_text(yaml.safe_dump(BY_NAME))
    return edgeveil.simulate(path, data=people(), **QUICK)


@pytest.fixture(scope="module")
def digits():
    job = edgeveil.load_job(QUICKSTART).with_(rounds=5)
    return edgeveil.simulate(job, reference=False, **QUICK)


# --- MLflow ---


def test_a_model_in_mlflow_is_loaded_checked_and_served_by_pyfunc(own, tmp_path):
    edgeveil.mlflow.save_model(own, tmp_path / "model")
    frame = people().drop(columns="rich")
    wanted = edgeveil.predict(own.model, frame)
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert loaded.predict(frame)["label"].tolist() == wanted.labels.tolist()
    found = edgeveil.mlflow.load_model(tmp_path / "model").predictions(frame)
    assert np.array_equal(found.probabilities, wanted.probabilities)
    about = yaml.safe_load((tmp_path / "model" / "MLmodel").read_text())
    privacy = json.loads(about["metadata"]["edgeveil.privacy"])
    assert privacy["training"] == own.privacy["training"]
    with pytest.raises(UsageError):
        edgeveil.mlflow.save_model(own, tmp_path / "model")
    (tmp_path / "model" / "model.onnx").write_bytes(b"another graph")
    with pytest.raises(DataError):
        edgeveil.mlflow.load_model(tmp_path / "model")


def test_a_model_is_logged_with_an_active_run(own, tmp_path):
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    mlflow.create_experiment("models", artifact_location=(tmp_path / "files").as_uri())
    mlflow.set_experiment("models")
    try:
        with mlflow.start_run():
            logged = edgeveil.mlflow.log_model(own.model, name="people")
        found = edgeveil.mlflow.load_model(logged.model_uri).predict(people()[:3])
    finally:
        mlflow.set_tracking_uri(None)
    assert found["label"].tolist() == edgeveil.predict(own.model, people()[:3]).labels.tolist()


# --- the Hub ---


def test_a_model_folder_has_a_card_weights_and_a_job_without_local_paths(digits, tmp_path):
    options = {"intended_use": "Reading digits of 8 by 8 pixels.", "licence": "apache-2.0"}
    folder = edgeveil.create_model_folder(digits, tmp_path / "hub", **options)
    names = ["README.md", "job.yaml", "model.onnx", "weights.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == names
    card = ModelCard.load(folder / "README.md")
    assert card.data.license == "apache-2.0" and card.data.library_name == "edgeveil"
    (figure,) = card.data.eval_results
    assert (figure.metric_type, figure.metric_value) == ("accuracy", round(digits.accuracy, 4))
    for text in (
        "ε = 2 per record",
        "simulated with seeded noise",
        options["intended_use"],
        "20 devices",
    ):
        assert text in card.text
    assert load_plan(folder / "job.yaml").job.digest().hex() in card.text
    assert "local_run" not in (folder / "job.yaml").read_text()
    with pytest.raises(UsageError):
        edgeveil.create_model_folder(digits, folder)


def test_what_no_guarantee_covers_is_published_only_if_asked_for(own, digits, tmp_path):
    with pytest.raises(UsageError) as raised:  # simulated on records of the user's own
        edgeveil.create_model_folder(own, tmp_path / "a")
    assert "nothing protects" in raised.value.what and not (tmp_path / "a").exists()
    accepted = edgeveil.create_model_folder(own, tmp_path / "b", accept_unprotected=True)
    assert f"accuracy: {own.accuracy:.4g}" in (accepted / "README.md").read_text()

    def real(status):
        privacy = {**own.privacy, "training": {**own.privacy["training"], "status": status}}
        content = {**own.content, "simulated": False, "privacy": privacy}
        return edgeveil.Result(content, own.folder)

    with pytest.raises(UsageError):
        edgeveil.create_model_folder(real("none"), tmp_path / "c")
    card = edgeveil.create_model_folder(real("proven"), tmp_path / "d") / "README.md"
    assert "accuracy" not in card.read_text() and "model-index" not in card.read_text()
    failed = edgeveil.Result({**digits.content, "status": "failed"}, digits.folder)
    with pytest.raises(UsageError):
        edgeveil.create_model_folder(failed, tmp_path / "e")


class Hub(BaseHTTPRequestHandler):
    """What an upload needs of the Hub's interface."""

    seen: list

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.seen.append((self.path, self.headers["Authorization"], body))
        host = f"http://{self.headers['Host']}"
        answer = {"url": f"{host}/owner/digits", "success": True, "commitOid": "0" * 40}
        answer["commitUrl"] = f"{host}/owner/digits/commit/{'0' * 40}"
        if "preupload" in self.path:
            files = [file["path"] for file in json.loads(body)["files"]]
            answer = {
                "files": [
                    {"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files
                ]
            }
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    Hub.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_push_sends_the_folder_to_a_private_repository(digits, own, hub):
    options = {"endpoint": hub, "token": "hf_secret"}
    found = edgeveil.push_to_hub(digits, "owner/digits", **options)
    assert found == f"{hub}/owner/digits/commit/{'0' * 40}"
    (create, _, made), *_, (commit, token, sent) = Hub.seen
    assert create.endswith("/repos/create") and json.loads(made)["visibility"] == "private"
    assert "owner/digits/commit/main" in commit and token == "Bearer hf_secret"
    files = [json.loads(line) for line in sent.splitlines()]
    names = {one["value"]["path"] for one in files if one["key"] == "file"}
    assert names == {"README.md", "job.yaml", "model.onnx", "weights.safetensors"}
    Hub.seen.clear()
    with pytest.raises(UsageError):
        edgeveil.push_to_hub(own, "owner/people", **options)
    assert not Hub.seen
