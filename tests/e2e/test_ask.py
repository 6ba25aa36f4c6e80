"""A question to the devices of a running cloud, over MQTT, from Python and the command line."""

import json

import pytest
import yaml

import edgeveil
from edgeveil.config.data import DataSource
from edgeveil.config.policy import Policy
from edgeveil.errors import EdgeVeilError
from edgeveil_tools.cli import main
from tests.kits.live_site import LiveSite
from tests.kits.people import people, write_people

pytestmark = pytest.mark.slow

POLICY = {
    "max_collusion_epsilon_per_job": "any",
    "lifetime_collusion_epsilon": "any",
    "allowed_methods": ("statistics",),
}


def test_a_cloud_s_devices_answer_and_a_schema_follows(tmp_path, capsys):
    rows = people(400)
    write_people(tmp_path / "people.csv", rows)
    source = DataSource(name="people", source="csv", path=tmp_path / "people.csv", header=True)
    policy = Policy(**POLICY, lifetime_epsilon=50, max_epsilon_per_job=20, lifetime_delta=0.5)
    with LiveSite(tmp_path, devices=5, policy=policy, source=source) as site:
        site.start_all()
        how = {"source": "people", "nominal_records": 80, "delta": 1e-3, "epsilon": 9}
        public = {"ranges": {"age": (0, 100)}, "categories": {"income": ["low", "high"]}}
        found = edgeveil.ask(cloud=site.client, mean="age", count="income", **how, **public)
        mean = found["mean", "age"]
        true = sum(int(row[0]) for row in rows) / len(rows)
        assert abs(mean["value"] - true) < 2 * mean["plus_minus"] < 4
        words = ["--source", "people", "--records", "80", "--range", "age=0,100", "--epsilon", "9"]
        words += ["--delta", "1e-3", "--histogram", "age=10", "--category", "work=Private,State"]
        cloud = ["--cloud", site.spec.url, "--token-file", str(site.site.token_file)]
        assert main(["ask", *words, "--count", "work", *cloud, "--json"]) == 0
        job = json.loads(capsys.readouterr().out)["job"]
        assert site.client.job(job)["status"] == "completed" and not site.client.releases()
        with pytest.raises(EdgeVeilError):
            site.client.model(job)
        assert main(["job", "show", job, *cloud]) == 0
        assert "histogram   0 ▁" in capsys.readouterr().out
        assert main(["draft", "--from-statistics", job, "--label", "work", *cloud]) == 0
        schema = yaml.safe_load(capsys.readouterr().out)["data"]["schema"]
        assert schema["label"]["classes"] == ["Private", "State"]
        assert schema["columns"] == [{"name": "age", "number": [10, 90]}]
