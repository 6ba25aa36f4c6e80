"""A simulation gives the model and the events of the parties themselves, bit for bit."""

import io
import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from edgeveil.errors import JobFailed
from edgeveil.evaluation.graph_check import check_graph
from edgeveil_tools.cli import main
from edgeveil_tools.local.job import Overrides
from edgeveil_tools.local.run import run_local
from edgeveil_tools.simulation import workers as pool
from tests.kits.fleet import played_by_all_parties

JOBS = Path(__file__).parents[3] / "configs" / "jobs"
SLOW = pytest.mark.slow
KIT = JOBS.parents[1] / "tests" / "kits" / "quickstart.yaml"


def job_file(folder, name, **changes):
    """A shipped job, some of its blocks changed; of few rounds the last is evaluated."""
    plain = yaml.safe_load((KIT if name == "quickstart" else JOBS / f"{name}.yaml").read_text())
    for key, value in changes.items():
        merged = isinstance(value, dict) and isinstance(plain.get(key), dict)
        plain[key] = {**plain[key], **value} if merged else value
    unsupervised = plain.get("unsupervised", {})
    if unsupervised.get("every_rounds"):
        unsupervised["every_rounds"] = min(unsupervised["every_rounds"], plain["train"]["rounds"])
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def comparable(events):
    """Events without their times."""
    times = ("seconds", "timeline", "job_id")
    return [
        (event["type"], {k: v for k, v in event["data"].items() if k not in times})
        for event in events
    ]


def played(path, out, **overrides):
    """(weights, events without times, result) of a simulated run."""
    asked = Overrides(simulate=True, **overrides)
    assert run_local(path, out, asked, reference=False, stream=io.StringIO()) == 0
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    result = json.loads((out / "result.json").read_text())
    check_graph((out / "model.onnx").read_bytes(), released=True)
    return (out / "model.safetensors").read_bytes(), comparable(events), result


FEWER = {
    "train": {"rounds": 2},
    "selection": {"devices": 12},
    "round": {"min_batch": 10},
    "local_run": {"devices": 12},
}
CASES = {
    "quickstart": {"train": {"rounds": 5}, "local_run": {"infer_only": 2}},
    "digits_fedavg": {"train": {"rounds": 2}},
    "digits_scaffold": {"train": {"rounds": 2, "local_epochs": 2}},
    "digits_fedrep": {"train": {"rounds": 2, "head_epochs": 1}},
    "digits_evaluated": {**FEWER, "federated_evaluation": {"every_rounds": 1}},
    "digits_clustered": {**FEWER, "unsupervised": {"every_rounds": 1}},
    "stopped early": {
        "train": {"rounds": 4},
        "unsupervised": {"every_rounds": 0},
        "test_metric": "sklearn.metrics:log_loss",
        "early_stopping": {"patience": 1, "min_delta": 9, "mode": "min"},
    },
    "drawn and spent": {
        "train": {"rounds": 3},
        "selection": {"devices": 12, "min_devices": 12},
        "round": {"min_batch": 5},
        "privacy": {"max_participations": 2},
    },
}
MORE = {
    "digits_pca": {"train": {"rounds": 1}},
    "digits_pate": {},
    **{
        f"digits_{name}": {"train": {"rounds": 2}}
        for name in ("krum", "min_divergence", "secprobe", "shared", "secure_groups")
    },
    "digits_secure_inference": {"train": {"rounds": 2}},
}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(one, marks=SLOW) for one in MORE)])
def test_rounds_alone_give_the_model_and_the_events_of_all_parties(tmp_path, name):
    shipped = name if (JOBS / f"{name}.yaml").exists() else "quickstart"
    path = job_file(tmp_path, shipped, **(CASES | MORE)[name])
    workers = {"quickstart": 1, "digits_fedavg": 3}.get(name, 2)
    weights, alone, result = played(path, tmp_path / "alone", workers=workers)
    status, _, of_all, events, _ = played_by_all_parties(path, tmp_path / "all", Overrides())
    assert (status, weights) == ("completed", of_all)
    assert alone == comparable(events)
    assert result["engine"] == {"name": "processes", "workers": workers}
    if name == "stopped early":
        stopped = result["final"]["early_stopping"]
        facts = {"best_round": 1, "rounds_since": 1, "releases": "best"}
        assert stopped == facts | {"judged_by": "cloud's test"}
        assert [row["round"] for row in result["rounds"]] == [1, 2]
        assert result["final"]["accuracy"] == result["rounds"][0]["accuracy"]
        assert isinstance(result["final"]["figures"]["test_metric"], float)
    if name == "drawn and spent":
        assert sum(data.get("declined", 0) for _, data in alone) > 0


def test_too_few_answers_end_the_run_with_the_devices_reason(tmp_path):
    spent = {
        "train": {"rounds": 3},
        "selection": {"devices": 19, "min_devices": 19},
        "round": {"min_batch": 19},
        "privacy": {"max_participations": 1},
        "unsupervised": {"every_rounds": 0},
    }
    path, out = job_file(tmp_path, "quickstart", **spent), tmp_path / "out"
    with pytest.raises(JobFailed, match="was reserved 1 times"):
        run_local(path, out, Overrides(simulate=True), reference=False, stream=io.StringIO())
    assert json.loads((out / "result.json").read_text())["status"] == "failed"
    assert "declined:" in (out / "logs" / "simulation.log").read_text()


def test_a_worker_that_dies_ends_the_run_with_its_name_and_none_outlives_it(tmp_path, monkeypatch):
    path = job_file(tmp_path, "quickstart", train={"rounds": 3})
    starts, pids = pool.ProcessWorkers.__init__, []

    def shot(self, fleet, count):
        starts(self, fleet, count)
        pids.extend(self.pids)
        os.kill(self.pids[1], signal.SIGKILL)

    monkeypatch.setattr(pool.ProcessWorkers, "__init__", shot)
    with pytest.raises(JobFailed, match=r"simulation-2: a worker process ended by itself .*-9"):
        played(path, tmp_path / "out", workers=2)
    assert json.loads((tmp_path / "out" / "result.json").read_text())["status"] == "failed"
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_cluster_that_is_not_there_is_named_at_once(tmp_path, capsys):
    pytest.importorskip("ray")
    path = job_file(tmp_path, "quickstart")
    asked = ["--simulate", "--ray", "127.0.0.1:1", "--no-reference"]
    assert main(["run", str(path), "--out", str(tmp_path / "out"), *asked]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.drill
def test_two_ray_nodes_give_the_same_bits(tmp_path):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    path = job_file(tmp_path, "quickstart", train={"rounds": 5})
    here = played(path, tmp_path / "here", workers=2)
    try:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    except Exception as error:
        pytest.skip(f"no Ray node starts here: {error}")
    try:
        cluster.add_node(num_cpus=1)
        there = played(path, tmp_path / "there", ray_address=cluster.address, workers=2)
    finally:
        cluster.shutdown()
    assert there[:2] == here[:2]
    assert there[2]["engine"] == {"name": "ray", "workers": 2}
