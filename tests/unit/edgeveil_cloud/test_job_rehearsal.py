"""A job that would fail late is refused before it is queued or run, with the reason, unpriced."""

import io
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml

from edgeveil.crypto.chunked import chunked_bytes
from edgeveil.data.records import Records
from edgeveil.errors import ConfigError, DataError, JobFailed
from edgeveil.jobs import compile_job, load_job, parse_plan
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.parts.models import python_model
from edgeveil.privacy.ledger import Ledger
from edgeveil_cloud import rehearsal
from edgeveil_cloud.broadcasts import BroadcastLimits, largest_broadcast
from edgeveil_cloud.evaluation import Evaluation
from edgeveil_cloud.rehearsal import RefusedJobError, rehearse_job
from edgeveil_cloud.store import Store
from edgeveil_tools.cli import main
from edgeveil_tools.local.job import Overrides, submitted
from edgeveil_tools.local.run import run_local
from tests.kits.backbone_files import small_backbone
from tests.kits.cloud_control import idle_control

JOBS = Path("configs/jobs")
LIMITS = BroadcastLimits(4096)
YAML = f"""
job: own_model
data: {{source: digits, classes: 10, input_shape: [64], nominal_records: 20}}
model:
  name: python
  function: "{__name__}:NAME"
train: {{method: sgd, rounds: 2}}
privacy: {{epsilon: 1, accept_unproven: true}}
unsupervised: {{every_rounds: 2}}
encrypt: {{laplace_eval: {{laplace_eval_eps: 20}}}}
selection: {{min_devices: 4}}
round: {{min_batch: 3}}
local_run:
  devices: 4
  simulate: true
  policy:
    allowed_methods: [sgd]
    accept_unproven: true
    accept_unprotected: true
    min_devices: 4
"""


class Sound(torch.nn.Sequential):
    """Group normalisation, as the refusal of batch normalisation advises, and GELU."""

    def __init__(self):
        super().__init__(
            torch.nn.Unflatten(1, (1, 8, 8)),
            torch.nn.Conv2d(1, 4, 3),
            torch.nn.GroupNorm(2, 4),
            torch.nn.GELU(),
            torch.nn.Flatten(),
            torch.nn.Linear(144, 10),
        )


class Shrinking(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(64, 10), torch.nn.CELU())


class Infinite(torch.nn.Module):
    """Its logits are infinite after training: no probabilities, and as code the same."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x):
        return torch.exp(self.layer(x).abs() + (0 if self.training else 100))


def file(tmp_path, name):
    python_model.loaded.cache_clear()
    path = tmp_path / "job.yaml"
    path.write_text(YAML.replace("NAME", name))
    return path


def store_in(folder):
    return Store(f"sqlite:///{folder / 'cloud.sqlite'}")


def sent(path):
    return submitted(load_job(path)).decode()


def plan_of(path):
    job = load_job(path)
    return compile_job(job).with_artifacts(read_artifacts(job))


def keeps_to_what_it_announces(plan, monkeypatch):
    """No package of the job, played without a network, is larger than announced."""
    plain, encode = [], rehearsal.encode_package

    def seen(package):
        plain.append(len(found := encode(package)))
        return found

    monkeypatch.setattr(rehearsal, "encode_package", seen)
    rehearse_job(plan, LIMITS, devices=False)
    announced = largest_broadcast(plan, plan.graph())
    assert len(plain) > 1
    assert all(chunked_bytes(size) <= announced for size in plain[1:])  # past the job itself


def presets():
    for path in sorted(JOBS.glob("*.yaml")):
        slow = [pytest.mark.slow] if path.stem in ("cifar10_shared", "pictures") else []
        yield pytest.param(path, id=path.stem, marks=slow)


@pytest.mark.parametrize("path", list(presets()))
@pytest.mark.usefixtures("encoders", "own_process_here")  # which sees what is set here
def test_every_job_of_ours_can_be_done_and_sends_no_more_than_it_announces(path, monkeypatch):
    """A round's package past the proxy's limit was refused once all had paid."""
    keeps_to_what_it_announces(plan_of(path), monkeypatch)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (  # a round that infers is sent the model beside what is trained; uploads are half as much
            "large_model",
            {
                "model": {"name": "mlp", "hidden": [256, 256], "input_scale": 16},
                "update": [{"name": "cast", "dtype": "float16"}],
                "unsupervised": {"every_rounds": 2},
                "encrypt": {"laplace_eval": {"laplace_eval_eps": 20}},
            },
        ),
        ("link_test", {"train": {"method": "noise_only", "rounds": 2, "package_values": 200_000}}),
    ],
)
def test_nor_does_one_whose_packages_are_more_than_model_and_upload(name, changes, monkeypatch):
    plain = yaml.safe_load((JOBS / f"{name}.yaml").read_text()) | changes
    keeps_to_what_it_announces(parse_plan(yaml.safe_dump(plain)), monkeypatch)


@pytest.mark.parametrize(
    ("name", "why"), [("Shrinking", "'Celu'"), ("Infinite", "no probabilities over 10 classes")]
)
@pytest.mark.usefixtures("own_process_here")
def test_a_model_that_fails_late_is_refused_by_check_run_and_submit(
    tmp_path, capsys, monkeypatch, name, why
):
    priced = []
    monkeypatch.setattr(Ledger, "commit", lambda *given: priced.append(given))
    path, out = file(tmp_path, name), tmp_path / "out"
    assert main(["check", str(path)]) == 2
    printed = capsys.readouterr().out
    assert printed.startswith(f"{path}:6 model.function: ") and why in printed
    with pytest.raises(ConfigError, match=why):
        run_local(path, out, Overrides(), reference=False, stream=io.StringIO())
    assert not out.exists()
    assert main(["job", "submit", str(path), "--cloud", "http://127.0.0.1:1"]) == 2
    assert why in capsys.readouterr().err
    cloud = idle_control(store_in(tmp_path), python_models=True)
    with pytest.raises(RefusedJobError, match=why) as caught:
        cloud.submit(sent(path))
    assert caught.value.where == "model.function"
    assert not cloud._store.jobs() and not priced


@pytest.mark.usefixtures("own_process_here")
def test_code_of_a_job_runs_where_the_clouds_operator_allows_it_alone(tmp_path, monkeypatch):
    """A sound one is queued there: its graph, rounds and final model were all made."""
    job, store = sent(file(tmp_path, "Sound")), store_in(tmp_path)
    assert store.job(idle_control(store, python_models=True).submit(job)).status == "queued"
    monkeypatch.setattr(python_model, "loaded", Mock(side_effect=AssertionError("the code ran")))
    with pytest.raises(DataError) as caught:
        idle_control(store).submit(job)
    assert caught.value.where == "cloud.allow_python_models"


def test_a_metric_runs_where_the_clouds_operator_allows_it_and_owners_need_not(tmp_path):
    plain, store = yaml.safe_load((JOBS / "digits_fedavg.yaml").read_text()), store_in(tmp_path)
    for name, allowed, where in (
        ("sklearn.metrics:log_loss", False, "cloud.allow_python_models"),
        ("absent:f", True, "test_metric"),
    ):
        with pytest.raises(DataError) as caught:
            job = yaml.safe_dump(plain | {"test_metric": name})
            idle_control(store, python_models=allowed).submit(job)
        assert caught.value.where == where and not store.jobs()
    sound = yaml.safe_dump(plain | {"test_metric": "sklearn.metrics:log_loss"})
    assert not parse_plan(sound).job.functions  # which owners allow
    assert idle_control(store, python_models=True).submit(sound)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (BroadcastLimits(4096, blob_bytes=2000), "the job"),
        (BroadcastLimits(4096, blob_bytes=8500), "the final model"),
        (BroadcastLimits(4096, batch_bytes=100), "limit of 100 bytes a batch"),
        (LIMITS, "the final model"),
    ],
)
@pytest.mark.usefixtures("own_process_here")
def test_sizes_that_would_fail_late_are_refused(tmp_path, monkeypatch, limits, why):
    plan = plan_of(file(tmp_path, "Sound"))
    if limits is LIMITS:  # a device would not take the final model
        monkeypatch.setattr(rehearsal, "MAX_GRAPH_BYTES", len(plan.graph()) + 100)
    with pytest.raises(RefusedJobError, match=why) as caught:
        rehearse_job(plan, limits)
    assert caught.value.where == "model.function"


def test_a_job_whose_backbone_is_not_here_or_of_another_form_is_not_queued(tmp_path):
    (tmp_path / "backbone.onnx").write_bytes(backbone := small_backbone(side=2, features=3))
    path = tmp_path / "job.yaml"
    path.write_text("""
job: frozen
data: {source: bench, classes: 3, input_shape: [4], nominal_records: 30}
features: [{name: onnx, file: backbone.onnx}, {name: identity}]
train: {method: fm, rounds: 2}
privacy: {epsilon: 4.0}
round: {min_batch: 3}
""")
    job, store = sent(path), store_in(tmp_path)
    with pytest.raises(DataError, match="not here"):
        idle_control(store).submit(job)
    store.put_backbone(backbone)
    with pytest.raises(DataError, match="another form"):
        idle_control(store).submit(job.replace("output_dim: 3", "output_dim: 4"))
    assert store.jobs() == ()
    assert store.job(idle_control(store).submit(job)).status == "queued"


def test_a_cloud_without_the_records_that_a_rule_asks_for_does_not_queue_it(tmp_path):
    job, cloud = sent(JOBS / "digits_secprobe.yaml"), idle_control(store_in(tmp_path))
    with pytest.raises(JobFailed) as caught:
        cloud.submit(job)
    assert caught.value.where == "aggregation.validation_records"
    assert not cloud._store.jobs()
    records = Records(np.zeros((2000, 64), np.float32), np.zeros(2000, np.int64))
    cloud._host.evaluation = Evaluation(records)
    assert cloud.submit(job)


def test_the_cloud_needs_no_torch_for_a_model_of_ours():
    code = """
import sys
from pathlib import Path
from edgeveil_cloud.rehearsal import rehearse_job
from edgeveil_cloud.broadcasts import BroadcastLimits
from edgeveil.jobs import load_plan
rehearse_job(load_plan(Path("tests/kits/quickstart.yaml")), BroadcastLimits(4096), devices=False)
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
