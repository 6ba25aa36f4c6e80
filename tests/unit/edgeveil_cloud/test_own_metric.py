"""A user's own metric: computed by the cloud, apart, on its test records, beside accuracy."""

import json
import os
import time

import numpy as np
import pytest
from sklearn.metrics import log_loss

from edgeveil.config.base import ImpossibleMixError
from edgeveil.errors import DataError
from edgeveil.evaluation import figures
from edgeveil.evaluation.figures import METRIC, leading_text, own_metric
from edgeveil.jobs import Job, compile_job
from edgeveil_cloud.early_stopping import is_over, judged, released
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord
from tests.kits.cloud_control import idle_control

JOB = {
    "job": "a",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64},
    "model": {"name": "mlp", "hidden": []},
    "train": {"method": "sgd", "rounds": 9},
    "privacy": {"accept_unproven": True},
}
LABELS, CHANCE = np.arange(30) % 3, np.random.default_rng(0)
OUTPUTS = CHANCE.dirichlet(np.ones(3), 30).astype(np.float32)


def plan(**changes):
    return compile_job(Job.model_validate_json(json.dumps(JOB | changes)))


def per_class(labels, outputs):
    return outputs.mean(axis=0)


def nothing(labels, outputs):
    return float("nan")


def fails(labels, outputs):
    raise KeyError("no such class")


def hoards(labels, outputs):
    return np.ones(1 << 33).sum()


def ends(labels, outputs):
    os.abort()


def waits(labels, outputs):
    time.sleep(600)


def test_a_metric_is_that_of_its_function_on_labels_and_outputs():
    found = own_metric("sklearn.metrics:log_loss", labels=LABELS, outputs=OUTPUTS)
    assert found == pytest.approx(log_loss(LABELS, OUTPUTS), rel=1e-5)
    assert leading_text("accuracy", 0.5, {METRIC: 0.25}) == "0.500, test metric 0.25"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("per_class", "shape (3,)"),
        ("nothing", "returned nan"),
        ("fails", "KeyError: 'no such class'"),
        ("hoards", "MemoryError"),
        ("ends", "SIGABRT"),
        ("waits", "did not end within 3 s"),
        ("absent", "no attribute 'absent'"),
    ],
)
def test_a_metric_without_a_number_is_named_and_raises_nothing(monkeypatch, name, why):
    monkeypatch.setattr(figures, "METRIC_S", 3.0 if name == "waits" else 120.0)
    found = own_metric(f"{__name__}:{name}", labels=LABELS, outputs=OUTPUTS)
    assert found.startswith("failed: ") and why in found


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 3)])
def test_early_stopping_by_it_takes_its_direction_and_skips_rounds_without_a_number(mode, best):
    of = plan(test_metric="m:f", early_stopping={"mode": mode, "patience": 2})
    state, over = {}, []
    for number, own in enumerate([5.0, 9.0, 1.0, "failed: m:f", 5.0, 5.0], start=1):
        model = {n: np.full_like(a, number) for n, a in of.cloud.initial_state().items()}
        record = RoundRecord(
            number, "train", number, 1, 5, accuracy=number / 9, scores={METRIC: own}
        )
        state = judged(of, state, model, record)
        over.append(is_over(of, state))
    assert float(of.cloud.model(released(of, state))["output.bias"][0]) == best
    assert over.index(True) == (4 if mode == "max" else 5)


@pytest.mark.parametrize(
    "more", [{}, {"test_metric": "m:f", "federated_evaluation": {"epsilon": 8, "every_rounds": 1}}]
)
def test_its_direction_needs_a_metric_and_never_one_of_devices(more):
    with pytest.raises(ImpossibleMixError, match="no price on devices"):
        plan(early_stopping={"mode": "max"}, **more)


def test_the_operator_allows_it_and_owners_need_not():
    job = plan(test_metric="sklearn.metrics:log_loss").job
    assert not job.functions  # which owners allow
    store = Store()
    with pytest.raises(DataError) as caught:
        idle_control(store).submit(json.dumps(JOB | {"test_metric": job.test_metric}))
    assert caught.value.where == "cloud.allow_python_models"
    allows = idle_control(store, python_models=True)
    with pytest.raises(DataError, match="No module named 'absent'") as caught:
        allows.submit(json.dumps(JOB | {"test_metric": "absent:f"}))
    assert caught.value.where == METRIC and not store.jobs()
    assert allows.submit(json.dumps(JOB | {"test_metric": job.test_metric}))
