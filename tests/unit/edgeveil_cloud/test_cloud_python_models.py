"""A submitted job whose model is Python code: the cloud runs it only where its operator says so."""

import pytest
import torch

from edgeveil.errors import DataError
from edgeveil.jobs import load_job
from edgeveil.parts.models import python_model
from edgeveil_cloud.store import Store
from edgeveil_tools.local.job import submitted
from tests.kits.cloud_control import idle_control

YAML = f"""
job: own_model
data: {{source: digits, classes: 3, input_shape: [4], nominal_records: 8}}
model: {{name: python, function: "{__name__}:Net"}}
train: {{method: sgd, rounds: 1}}
privacy: {{epsilon: 1, accept_unproven: true}}
"""


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 3)


@pytest.fixture
def sent(tmp_path):
    (tmp_path / "job.yaml").write_text(YAML)
    return submitted(load_job(tmp_path / "job.yaml")).decode()


@pytest.fixture
def store(tmp_path):
    return Store(f"sqlite:///{tmp_path / 'cloud.sqlite'}")


def test_without_the_operators_word_no_code_runs(store, sent, monkeypatch):
    def never(function):
        raise AssertionError("the code ran")

    monkeypatch.setattr(python_model, "loaded", never)
    with pytest.raises(DataError, match="may not run here") as caught:
        idle_control(store).submit(sent)
    assert caught.value.where == "cloud.allow_python_models"


def test_with_it_the_job_is_queued_and_one_that_cannot_run_is_not(store, sent):
    allowing = idle_control(store, python_models=True)
    assert allowing.submit(sent)
    with pytest.raises(DataError, match="does not take records"):
        allowing.submit(sent.replace("input_shape:\n  - 4", "input_shape:\n  - 5"))
