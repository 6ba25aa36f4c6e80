"""Real processes over real brokers."""

import re
import signal
import subprocess

import numpy as np
import pandas as pd
import pytest
import yaml

from edgeveil import FederatedClassifier, FederatedRegressor
from edgeveil.config.data import DataSource
from edgeveil_edge.predict import predict
from tests.kits.commands import edgeveil
from tests.kits.live_site import LiveSite, site_job, wait_for
from tests.kits.people import NAMES, SCHEMA, people, write_people

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("engine", "protocol"),
    [
        ("mosquitto", 5),
        pytest.param("mosquitto", 4, marks=pytest.mark.drill),
        pytest.param("amqtt", 4, marks=pytest.mark.drill),
    ],
)
def test_jobs_one_after_the_other_one_cancelled_and_clean_stops(tmp_path, engine, protocol):
    with LiveSite(tmp_path, engine=engine, protocol=protocol) as live:
        live.start_all()
        for _ in range(2):
            job = live.completed(live.submit())
            assert [e["uploads"] for e in job["exchanges"]] == [5] * 5
            assert job["exchanges"][-1]["accuracy"] > 0.6
        job = live.submit(rounds=200, every=0)
        wait_for(lambda: len(live.client.job(job)["exchanges"]) >= 4, "some rounds")
        live.client.cancel(job)
        assert live.finish(job)["status"] == "cancelled"
        live.completed(live.submit())
        release = tmp_path / "site" / "state" / "edge-1"
        wait_for(lambda: len(list(release.rglob("model.onnx"))) == 3, "the releases")
        records = tmp_path / "records.npz"
        np.savez(records, x=np.zeros((2, 64), np.float32))
        assert len(predict(release, records).labels) == 2
        assert live.stop("edge") == 0
        wait_for(lambda: live.proxy_status()["online"] == 0, "the devices' good-byes", 5)
        for name in ("proxy", "cloud"):
            assert live.stop(name) == 0
        for name in ("edge", "proxy", "cloud"):
            assert "Traceback" not in live.log(name)


def test_devices_without_torch_train_infer_and_decline_by_their_policy(tmp_path):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    with LiveSite(tmp_path, devices=7, infer_only=1) as live:
        strict = live.site.edges[0]
        text = strict.read_text().replace("max_epsilon_per_job: 10.0", "max_epsilon_per_job: 2.0")
        strict.write_text(text)
        live.start_servers()
        live.start("edge-train", *live.site.edges[:-1], blocked=blocked)
        live.start("edge-infer", live.site.edges[-1], blocked=blocked)
        live.wait_ready()
        job = live.completed(live.submit())
        assert [e["uploads"] for e in job["exchanges"]] == [5] * 5
        scored = [e["scores"]["used"] for e in job["exchanges"] if "used" in (e["scores"] or {})]
        assert scored == [6]
        declined = "box-1: job [0-9a-f]{12}, round 1 declined: policy.max_epsilon_per_job"
        assert re.search(declined, live.log("edge-train"))
        for name in ("edge-train", "edge-infer"):
            assert "Traceback" not in live.log(name)


def test_two_jobs_run_at_once_and_go_on_when_cloud_and_proxy_are_killed(tmp_path):
    with LiveSite(tmp_path) as live:
        live.start_all()
        jobs = [live.submit(rounds=20, every=10), live.submit(rounds=10, every=0)]
        wait_for(lambda: [one["job"] for one in live.client.status()["jobs"]] == jobs, "both jobs")
        wait_for(lambda: min(map(live.committed, jobs)) >= 4, "some rounds of both")
        command = edgeveil("job", "show", jobs[0], "--watch", "--config", live.site.cloud)
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        shown = watching.stdout.readline()
        live.stop("cloud", signal.SIGKILL)
        live.stop("proxy", signal.SIGKILL)
        live.start_servers()
        live.wait_ready()
        for job, rounds in zip(jobs, (22, 12), strict=True):  # with those of preparation
            indices = [one["index"] for one in live.completed(job)["exchanges"]]
            assert indices == list(range(1, rounds + 1))
        shown += watching.communicate(timeout=30)[0]
        assert watching.returncode == 0
        assert "round 20" in shown and shown.endswith(f"{jobs[0]}: completed\n")


def test_estimators_learn_on_the_devices_of_a_site(tmp_path):
    file = write_people(tmp_path / "people.csv")
    source = DataSource(name="people", source="csv", path=file, header=True)
    whole = pd.DataFrame(people(), columns=NAMES)
    job = yaml.safe_load(site_job(5, rounds=2)) | {"unsupervised": {"eval_type": "NOT_EVAL"}}
    job["features"] = [{"name": "identity"}]
    of_hours = {"label": {"column": "hours", "number": [0, 80]}, "columns": SCHEMA["columns"][:2]}
    with LiveSite(tmp_path, source=source) as live:
        live.start_all()

        def fitted(kind, schema):
            data = {"source": "people", "nominal_records": 80, "schema": schema}
            (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "data": data}))
            return kind(job=tmp_path / "job.yaml", cloud=live.client).fit()

        found = fitted(FederatedClassifier, SCHEMA)
        assert live.client.job(found.job_id_)["status"] == "completed"
        assert found.model_ == live.client.model(found.job_id_)
        assert found.classes_.tolist() == ["low", "high"]
        assert found.score(whole, whole["income"]) > 0.75
        number = fitted(FederatedRegressor, {**SCHEMA, **of_hours})
        hours = number.predict(whole.drop(columns="hours"))
        assert hours.shape == (len(whole),) and 0 <= hours.min() <= hours.max() <= 80
