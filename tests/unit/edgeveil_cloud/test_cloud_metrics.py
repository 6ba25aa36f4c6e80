"""What a scrape says of a job's ε, once its devices were asked."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeveil.jobs import load_plan
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_job import CellBroadcasts, SealRound
from edgeveil.transport.metrics import Metrics
from edgeveil_cloud.metrics import CloudMetrics
from edgeveil_cloud.store import Store
from edgeveil_cloud.stored_jobs import StoredJobs, wire_id

JOBS = Path(__file__).parents[3] / "configs" / "jobs"


def spent(name):
    """ε by kind, after the job's devices were asked for its first round."""
    store = Store()
    job = load_plan(JOBS / name).job
    entry = store.submit_job(job.job, job.canonical(), job.digest())
    host = SimpleNamespace(jobs=StoredJobs(store))
    shown = CloudMetrics(Metrics(), store, host, SimpleNamespace(courses={}))
    task, made = object.__new__(SealRound), object.__new__(CellBroadcasts)
    for field, value in {"job_id": wire_id(entry.id), "round": 1}.items():
        object.__setattr__(task, field, value)
    shown.watch(fx.WorkDone(task, made))
    (family,) = [one for one in shown.collect() if one.name == "edgeveil_epsilon_spent"]
    store.close()
    return {sample.labels["kind"]: sample.value for sample in family.samples}


def test_shared_noise_has_a_second_epsilon():
    found = spent("digits_shared.yaml")
    assert found["training"] == pytest.approx(2, abs=1e-3)
    assert found["collusion"] > 3 * found["training"]


def test_noise_of_each_device_has_one():
    assert set(spent("digits_features.yaml")) == {"training", "inference"}
