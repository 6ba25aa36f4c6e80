"""Layers of torch.nn: usable ones to the end, and one refused for each reason."""

import re

import numpy as np
import pytest
import torch
from torch_layers import CLASSES, REFUSED, USABLE

from edgeveil.jobs import load_plan
from edgeveil.jobs.rehearsal import made_up_records
from edgeveil.parts.models import python_model
from edgeveil.parts.models.heads import bake
from edgeveil_edge.predict import predict
from edgeveil_edge.releases import ReleaseStore
from edgeveil_tools.cli import main

pytestmark = pytest.mark.usefixtures("own_process_here")

METHODS = {
    "sgd": "{method: sgd, rounds: 1, batch_size: 4}",
    "dp_sgd": "{method: dp_sgd, rounds: 1, local_steps: 1, sampling_rate: 0.9}",
}
JOB = """
job: {name}
data: {{source: lines, classes: {classes}, input_shape: {shape}, nominal_records: 8}}
model:
  name: python
  function: "torch_layers:{layer}"
train: {train}
privacy: {{epsilon: 8, delta: 1.0e-5, accept_unproven: true}}
"""


@pytest.fixture(autouse=True)
def fresh():
    python_model.loaded.cache_clear()


def job_file(tmp_path, one, method):
    path = tmp_path / f"{method}.yaml"
    path.write_text(
        JOB.format(
            name=one.layer.lower(),
            layer=one.layer,
            classes=CLASSES,
            shape=list(one.shape),
            train=METHODS[method],
        )
    )
    return path


def trained(plan, records):
    """The weights after a round of one device."""
    round, state = plan.all_rounds[0], plan.cloud.initial_state()
    package = plan.cloud.package(state, round)
    answer = plan.device.answer(round, package, records, processor="cpu")
    after = plan.cloud.absorb(state, round, answer.segments, 1)
    assert any(not np.array_equal(after[name], state[name]) for name in after)
    return plan.cloud.model(after)


@pytest.mark.parametrize("layer", USABLE)
def test_a_usable_layer_is_trained_released_and_used(layer, tmp_path, capsys):
    one = USABLE[layer]
    methods = ["dp_sgd", "sgd"] if one.by_record else ["sgd"]
    assert main(["check", str(job_file(tmp_path, one, methods[0]))]) == 0, capsys.readouterr().out
    for method in methods:
        path = job_file(tmp_path, one, method)
        plan = load_plan(path)
        records = made_up_records(plan, 8)
        weights = trained(plan, records)
        device = tmp_path / method
        ReleaseStore(device / "releases").install(plan.job.job, bake(plan.graph(), weights), {})
        np.savez(tmp_path / "records.npz", x=records.x)
        capsys.readouterr()
        told = predict(device, tmp_path / "records.npz").plain()
        tensors = {name: torch.tensor(array) for name, array in weights.items()}
        with torch.no_grad():
            code = plan.context.network.logits(tensors, torch.tensor(records.x)).softmax(1).numpy()
        found = np.array([row["probabilities"] for row in told])
        np.testing.assert_allclose(found, code, atol=1e-4)


@pytest.mark.parametrize("layer", REFUSED)
def test_a_layer_that_cannot_be_used_is_refused_with_line_reason_and_fix(layer, tmp_path, capsys):
    one = REFUSED[layer]
    path = job_file(tmp_path, one, "sgd")
    assert main(["check", str(path)]) == 2
    told = capsys.readouterr().out
    assert re.match(rf"{re.escape(str(path))}:[4-6] model", told)
    assert one.why in told
    assert "docs/models.md" in told or "GroupNorm" in told
    assert "\n" not in told.strip()


def test_a_layer_without_a_record_s_own_gradient_is_refused_where_the_method_needs_it(
    tmp_path, capsys
):
    (alone,) = (one for one in USABLE.values() if not one.by_record)
    assert main(["check", str(job_file(tmp_path, alone, "dp_sgd"))]) == 2
    assert "'dp_sgd' needs" in capsys.readouterr().out
