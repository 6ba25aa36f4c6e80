"""The engines of a simulation: the same model and the same events, bit for bit."""

import io
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import yaml

from edgeveil.errors import INTERRUPTED, JobFailed, UsageError
from edgeveil.jobs import compile_job
from edgeveil_cloud.broadcasts import round_package
from edgeveil_tools.cli import main
from edgeveil_tools.local import simulated
from edgeveil_tools.local.job import Overrides, local_job, site_of
from edgeveil_tools.local.run import run_local
from edgeveil_tools.report.table import TableOptions, table
from edgeveil_tools.simulation import workers as pool
from edgeveil_tools.simulation.checkpoint import CHECKPOINT
from edgeveil_tools.simulation.devices import Shelf, SimulatedDevices, SimulatedFleet
from edgeveil_tools.simulation.rounds import SimulatedRounds

JOBS = Path(__file__).parents[3] / "configs" / "jobs"
TIMES = ("seconds", "timeline", "job_id")


def job_file(folder, name, **changes):
    """A shipped job, some of its blocks changed; of few rounds the last is evaluated."""
    kits = JOBS.parents[1] / "tests" / "kits"
    plain = yaml.safe_load(((kits if name == "quickstart" else JOBS) / f"{name}.yaml").read_text())
    for key, value in changes.items():
        merged = isinstance(value, dict) and isinstance(plain.get(key), dict)
        plain[key] = {**plain[key], **value} if merged else value
    unsupervised = plain.get("unsupervised", {})
    if unsupervised.get("every_rounds"):
        unsupervised["every_rounds"] = min(unsupervised["every_rounds"], plain["train"]["rounds"])
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def played(path, out, **overrides):
    """(model, events without times, result) of a simulated run."""
    asked = Overrides(simulate=True, **overrides)
    assert run_local(path, out, asked, reference=False, stream=io.StringIO()) == 0
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    told = [
        (event["type"], {k: v for k, v in event["data"].items() if k not in TIMES})
        for event in events
    ]
    result = json.loads((out / "result.json").read_text())
    return (out / "model.onnx").read_bytes(), told, result


CASES = {
    "quickstart": {"train": {"rounds": 5}, "local_run": {"infer_only": 2}},
    "digits_fedavg": {"train": {"rounds": 2}, "broadcast": {"dtype": "float16"}},
    "digits_krum": {"train": {"rounds": 2}},
    "digits_min_divergence": {"train": {"rounds": 2}},
    "digits_secprobe": {"train": {"rounds": 2}},
    "digits_pca": {"train": {"rounds": 1}},
    "digits_pate": {},
    "digits_shared": {"train": {"rounds": 2}},
    "digits_secure_inference": {"train": {"rounds": 2}},
    "digits_evaluated": {"train": {"rounds": 2}, "federated_evaluation": {"every_rounds": 1}},
    "digits_clustered": {"train": {"rounds": 2}, "unsupervised": {"every_rounds": 1}},
}


@pytest.mark.parametrize("name", CASES)
def test_rounds_alone_give_the_model_and_the_events_of_all_parties(tmp_path, name):
    path = job_file(tmp_path, name, **CASES[name])
    model, told, result = played(path, tmp_path / "all", engine="faithful")
    alone, told_alone, result_alone = played(
        path, tmp_path / "alone", engine="processes", workers=2
    )
    assert alone == model
    assert told_alone == told
    assert result["engine"] == {"name": "faithful", "workers": 0}
    assert result_alone["engine"] == {"name": "processes", "workers": 2}
    for key in ("privacy", "final", "rounds", "phases"):
        rows = json.loads(json.dumps([result[key], result_alone[key]]))
        for row in (row for of in rows if isinstance(of, list) for row in of):
            row.pop("seconds")
        assert rows[0] == rows[1]


def test_devices_that_are_drawn_and_spend_their_budgets_are_the_same(tmp_path):
    some = {
        "train": {"rounds": 3},
        "selection": {"devices": 12, "min_devices": 12},
        "round": {"min_batch": 5},
        "privacy": {"max_participations": 2},
    }
    path = job_file(tmp_path, "quickstart", **some)
    model, told, _ = played(path, tmp_path / "all", engine="faithful")
    alone, told_alone, _ = played(path, tmp_path / "alone", engine="processes", workers=2)
    assert (alone, told_alone) == (model, told)
    assert sum(data.get("declined", 0) for _, data in told) > 0


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_no_bit(tmp_path, workers, monkeypatch):
    path = job_file(tmp_path, "quickstart", train={"rounds": 3})
    two = played(path, tmp_path / "two", workers=2)
    monkeypatch.setattr(simulated, "KEPT_BYTES", 1000)  # nearly all uploads wait on the disk
    assert played(path, tmp_path / "other", workers=workers)[:2] == two[:2]


def test_a_run_of_all_parties_repeats_to_the_order_of_uploads(tmp_path):
    path = job_file(tmp_path, "quickstart", train={"rounds": 5})
    first = played(path, tmp_path / "a", engine="faithful")
    assert played(path, tmp_path / "b", engine="faithful")[:2] == first[:2]
    assert any(data.get("clusters") for _, data in first[1])


def test_who_declines_says_so_in_both(tmp_path):
    spent = {
        "train": {"rounds": 3},
        "selection": {"devices": 19, "min_devices": 19},
        "round": {"min_batch": 19},
        "privacy": {"max_participations": 1},
        "unsupervised": {"every_rounds": 0},
    }
    path = job_file(tmp_path, "quickstart", **spent)
    reasons = []
    for engine in ("faithful", "processes"):
        out = tmp_path / engine
        asked = Overrides(simulate=True, engine=engine)
        with pytest.raises(JobFailed, match="was reserved 1 times") as raised:
            run_local(path, out, asked, reference=False, stream=io.StringIO())
        assert "below the minimum" in str(raised.value)
        result = json.loads((out / "result.json").read_text())
        reasons.append((result["status"], result["privacy"]))
        assert "declined:" in (out / "logs" / "simulation.log").read_text()
    assert reasons[0] == reasons[1]


def test_a_worker_that_dies_ends_the_run_with_its_name(tmp_path, monkeypatch):
    path = job_file(tmp_path, "quickstart", train={"rounds": 3})
    starts = pool.ProcessWorkers.__init__

    def shot(self, fleet, count):
        starts(self, fleet, count)
        os.kill(self.pids[1], signal.SIGKILL)

    monkeypatch.setattr(pool.ProcessWorkers, "__init__", shot)
    with pytest.raises(JobFailed, match=r"simulation-2: a worker process ended by itself .*-9"):
        played(path, tmp_path / "out", workers=2, engine="processes")
    assert json.loads((tmp_path / "out" / "result.json").read_text())["status"] == "failed"


def test_no_worker_outlives_its_run(tmp_path, monkeypatch):
    path = job_file(tmp_path, "quickstart", train={"rounds": 1})
    pids = []
    stops = pool.ProcessWorkers.stop

    def counted(self):
        pids.extend(self.pids)
        stops(self)

    monkeypatch.setattr(pool.ProcessWorkers, "stop", counted)
    played(path, tmp_path / "out", workers=2)
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_an_engine_cannot_play_is_refused_or_left_to_the_other(tmp_path):
    grouped = JOBS / "digits_secure_groups.yaml"
    asked = Overrides(simulate=True, engine="processes")
    with pytest.raises(UsageError, match=r"aggregation.groups.*--engine faithful"):
        run_local(grouped, tmp_path / "a", asked, reference=False, stream=io.StringIO())
    path = job_file(tmp_path, "quickstart", train={"rounds": 1})
    with pytest.raises(UsageError, match="keeps no keys"):
        run_local(path, tmp_path / "b", asked, keep=True, reference=False, stream=io.StringIO())
    job, run = local_job(grouped, Overrides(simulate=True))
    assert simulated.engine_of(job, run) == "faithful"
    job, run = local_job(path, Overrides(simulate=True))
    assert simulated.engine_of(job, run) == "processes"
    assert simulated.engine_of(job, run, keep=True) == "faithful"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--engine", "processes"], "--engine"),
        (["--simulate", "--address", "127.0.0.1:6379"], "--address"),
        (["--simulate", "--engine", "faithful", "--workers", "2"], "--workers"),
    ],
)
def test_options_that_would_change_nothing_are_refused(tmp_path, capsys, options, named):
    path = job_file(tmp_path, "quickstart")
    assert main(["run", str(path), "--out", str(tmp_path / "out"), *options]) == 2
    assert f"{named}: " in capsys.readouterr().err


def test_a_cluster_that_is_not_there_is_named_at_once(tmp_path, capsys):
    pytest.importorskip("ray")
    path = job_file(tmp_path, "quickstart")
    asked = ["--simulate", "--engine", "ray", "--address", "127.0.0.1:1", "--no-reference"]
    assert main(["run", str(path), "--out", str(tmp_path / "out"), *asked]) == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in capsys.readouterr().err


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
        there = played(
            path, tmp_path / "there", engine="ray", ray_address=cluster.address, workers=2
        )
    finally:
        cluster.shutdown()
    assert there[:2] == here[:2]
    assert there[2]["engine"] == {"name": "ray", "workers": 2}


# --- interrupted, and gone on with --------------------------------------------------------------


def interrupt_after(monkeypatch, exchange):
    """A checkpoint after every exchange, and Ctrl-C in the round after this one."""
    monkeypatch.setattr(simulated, "EVERY_S", 0.0)
    answers = SimulatedRounds._answers

    def interrupted(self, context, package, selected):
        if context.exchange.index == exchange + 1:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return answers(self, context, package, selected)

    monkeypatch.setattr(SimulatedRounds, "_answers", interrupted)


@pytest.mark.parametrize(
    ("name", "after"),
    [("quickstart", 4), ("digits_pca", 2), ("digits_min_divergence", 1), ("digits_stages", 1)],
)
def test_an_interrupted_simulation_goes_on_to_the_same_bits(tmp_path, monkeypatch, name, after):
    rounds = {"train": {"rounds": 3}, "selection": {"devices": 12, "min_devices": 12}}
    path = job_file(
        tmp_path, name, **(rounds if name == "quickstart" else {"train": {"rounds": 2}})
    )
    whole = played(path, tmp_path / "whole", workers=2)
    out = tmp_path / "out"
    asked = Overrides(simulate=True, workers=3)
    interrupt_after(monkeypatch, after)
    said = io.StringIO()
    assert run_local(path, out, asked, reference=False, stream=said) == INTERRUPTED
    assert "--resume goes on with it" in said.getvalue()
    assert (out / CHECKPOINT).stat().st_mode & 0o077 == 0
    assert not (out / "model.onnx").exists()
    with (out / "events.jsonl").open("a") as events:
        events.write('{"of": "the open round"}\n')
    asked = Overrides(simulate=True, workers=2)
    assert run_local(path, out, asked, reference=False, resume=True, stream=io.StringIO()) == 0
    assert (out / "model.onnx").read_bytes() == whole[0]
    lines = (out / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == [kind for kind, _ in whole[1]]
    assert not (out / CHECKPOINT).exists()


def test_what_cannot_be_gone_on_with_is_named(tmp_path, monkeypatch):
    path = job_file(tmp_path, "quickstart", train={"rounds": 3})
    out = tmp_path / "out"

    def resumed(**changes):
        asked = Overrides(simulate=True, **changes)
        run_local(path, out, asked, reference=False, resume=True, stream=io.StringIO())

    with pytest.raises(UsageError, match="holds no interrupted simulation"):
        resumed()
    interrupt_after(monkeypatch, 2)
    run_local(path, out, Overrides(simulate=True), reference=False, stream=io.StringIO())
    with pytest.raises(UsageError, match="other settings"):
        resumed(seed=8)
    with pytest.raises(UsageError, match="by worker processes alone"):
        resumed(engine="faithful")
    (out / CHECKPOINT).write_bytes(b"\x93\x01")
    with pytest.raises(UsageError, match="cannot be read"):
        resumed()
    assert (out / "events.jsonl").stat().st_size > 0


def test_a_table_goes_on_within_a_seed(tmp_path, monkeypatch):
    path = job_file(tmp_path, "quickstart", train={"rounds": 3})
    asked = TableOptions(seeds=1, out=tmp_path / "table", reference=False, as_json=True)
    interrupt_after(monkeypatch, 3)
    assert table([path], asked) == INTERRUPTED
    folder = tmp_path / "table" / "quickstart" / "seed-7"
    begun = json.loads((folder / "events.jsonl").read_text().splitlines()[0])["time"]
    assert table([path], asked) == 0
    first = json.loads((folder / "events.jsonl").read_text().splitlines()[0])
    assert first["time"] == begun


# --- what lies in a worker ----------------------------------------------------------------------


@pytest.mark.parametrize("kept_bytes", [0, 100, 1 << 20])
def test_arrays_come_back_from_memory_and_from_the_disk(kept_bytes):
    shelf = Shelf(kept_bytes)
    chance = np.random.default_rng(0)
    for _round in range(2):
        shelf.clear()
        given = {
            number: chance.normal(size=(2, number)).astype("float32") for number in range(1, 9)
        }
        for number, array in given.items():
            shelf.put(0, number, array)
            shelf.put(1, number, array.astype(np.int64))
        order = [5, 1, 8]
        for number, array in zip(order, shelf.all(0, order), strict=True):
            assert (array == given[number]).all()
        assert [a.dtype for a in shelf.all(1, [3])] == [np.dtype(np.int64)]


def test_devices_keep_their_chance_apart(tmp_path):
    """What one device draws moves no other, in whatever order they are asked."""
    job, run = local_job(
        JOBS.parents[1] / "tests" / "kits" / "quickstart.yaml", Overrides(simulate=True)
    )
    fleet = SimulatedFleet(site_of(job, run, tmp_path), job.canonical(), (), 1 << 20)
    plan = compile_job(job)
    found = []
    for order in ([1, 2, 3], [3, 1]):
        devices = SimulatedDevices(fleet)
        context = devices_context(plan)
        devices.begin(1, round_package(context, plan.cloud.initial_state()), 20)
        devices.answer(order)
        found.append(devices.arrays(0, [1, 3]))
    assert all((a == b).all() for a, b in zip(*found, strict=True))
    assert (found[0][0] != found[0][1]).any()


def devices_context(plan):
    from edgeveil.jobs.round_context import RoundContext

    return RoundContext.of(plan, 1)
