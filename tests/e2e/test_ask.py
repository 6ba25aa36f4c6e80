"""A question to the devices of a running cloud, over MQTT, from Python and the command line."""

import json

import pytest
import yaml

import edgeveil
from edgeveil.config.data import DataSource
from edgeveil.config.policy import Policy
from edgeveil.errors import EdgeVeilError
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.privacy.policy import price
from edgeveil_tools.cli import main
from tests.kits.live_site import LiveSite, page
from tests.kits.people import people, people_job, write_people

pytestmark = pytest.mark.slow

POLICY = {
    "max_collusion_epsilon_per_job": "any",
    "lifetime_collusion_epsilon": "any",
    "allowed_methods": ("fm", "statistics"),
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
        # Neither asking nor learning decides which records the other may read.
        learns = yaml.safe_load(people_job(tmp_path, tmp_path / "people.csv").read_text())
        del learns["local_run"]
        learns |= {"train": {"method": "fm", "rounds": 1}, "round": {"min_batch": 5}}
        columns = [{"name": "age", "number": [0, 100], "bins": 10}]
        learns |= {"statistics": {"epsilon": 9, "columns": columns}}
        learns["privacy"] |= {"delta": 1e-3, "noise": "shared"}
        learns["aggregation"] = {"name": "fedavg", "secure": True}
        site.completed(site.client.submit_yaml(yaml.safe_dump(learns).encode()))
        site.wait_released()
        asked = {"histogram": ("age", 10), "mean": "age", "count": "income"}
        again = edgeveil.ask(cloud=site.client, **asked, **how, **public)
        assert abs(again["count", "income"]["value"] - len(rows)) < 40
        (age,) = again.drift["columns"]
        assert (again.drift["since"], age["drifted"]) == ("the release of people", False)
        assert abs(age["mean_shift"]) < 2 * age["mean_shift_plus_minus"]
        # Twenty years later, and with a cloud and devices that were started anew.
        site.stop_all()
        older = [[str(min(100, int(age) + 20)), *others] for age, *others in rows]
        write_people(tmp_path / "people.csv", older)
        site.start_all()
        later = edgeveil.ask(cloud=site.client, **asked, **how, **public)
        (age,) = later.drift["columns"]
        assert age["drifted"] and 15 < age["mean_shift"] < 25
        token = site.site.token_file.read_text().strip()
        assert 'edgeveil_drifted_columns{job="ask' in page(f"{site.spec.url}/metrics", token)[1]
        ledger = next(site.spec.folder.rglob(LEDGER_FILE))
        jobs = read_ledger(ledger).accounts["people"].values()
        priced = [price(one.events, 1e-3) for one in jobs]
        assert [one.training.epsilon > 0 for one in priced] == [True] * 5
        assert [one.inference.epsilon > 0 for one in priced] == [True] * 5  # of each question
        both, asked = (priced[2].training.epsilon, priced[2].inference.epsilon)
        assert asked < 9.01 < both
