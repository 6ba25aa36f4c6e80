"""Batches that workers open: the same bits as in the cloud's own process, whatever befalls them."""

import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from deadly_slice import Deadly
from round_kit import CloudRound, job
from test_cloud_host import Desk
from test_secure_rounds import seed

from edgeveil.config.cloud import ComputeAt
from edgeveil.errors import UsageError
from edgeveil.jobs.plan import Plan
from edgeveil.parts.aggregation.mean import mean
from edgeveil.protocol.cloud_job import BatchPart, Obstacle
from edgeveil.protocol.sealed import RoundCheck, masked_vectors
from edgeveil.protocol.tensors import masked_segment
from edgeveil_cloud.broadcasts import BroadcastLimits
from edgeveil_cloud.compute import on_ray, processes
from edgeveil_cloud.compute.on_ray import RayTasks
from edgeveil_cloud.compute.processes import ComputeError, WorkerProcesses, workers_of
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.open_segments import RoundOpening
from edgeveil_cloud.store import Store
from edgeveil_cloud.validate_batch import BatchSpool, SpooledBatch, validate_batch

UPLOADS = 13


@contextmanager
def pool(count, **more):
    found = WorkerProcesses(count, least_bytes=0, **more)
    try:
        yield found
    finally:
        found.close()


def spooled(batch, data):
    spool = BatchSpool()
    spool.put(BatchPart(batch.blob.digest, 0, data))
    return spool.whole(batch.blob)


def hostile(of, cancelling=False):
    """Uploads of which some do not count. Of the others all but one cancel each other
    out where they are `cancelling`: the sum is bits that a grid a little too coarse would lose."""
    rng, groups = np.random.default_rng(4), []
    for g in range(len(of.manifest.groups)):
        spec = of.plan.segments(of.round)[g]
        values = rng.normal(size=(UPLOADS, *spec.shape))
        if cancelling:
            values[1::2] = -values[:-1:2]
            values[-1] = np.ldexp(1.0, -80 - np.arange(spec.count).reshape(spec.shape) % 40)
        sound = [of.segment(g, one.astype(spec.dtype)) for one in values]
        bad = [
            of.segment(g, of.array(g, 1.0), membership=b"x" * 32),
            of.segment(g, of.array(g, np.inf)),
            of.segment(g, of.array(g, 1e30) if not cancelling else of.array(g, np.nan)),
            sound[3],
            os.urandom(len(sound[0])),
        ]
        for number, segment in enumerate(bad):
            sound.insert(3 * number, segment)
        groups.append(sound)
    return groups


def opened(of, batch, data, **more):
    return validate_batch(of.context, of.secret, batch, spooled(batch, data), **more)


def bits(found):
    """All that is found; the means are those of the arrays one by one."""
    result = {"accepted": found.accepted, "refused": found.refused, "chosen": found.chosen}
    result["totals"] = [[one.to_bytes() for one in s] for s in found.totals]
    for name, arrays in found.arrays.items():
        one_by_one = list(arrays)
        result[name] = [one.tobytes() for one in one_by_one]
        result[name].append(mean({name: arrays})[name].tobytes())
        assert result[name][-1] == mean({name: one_by_one})[name].tobytes()
    return result


def masked(of):
    """Whole uploads; one is not for this round, one comes twice."""
    vectors = masked_vectors(of.manifest.at, of.manifest.groups, of.manifest.masked)
    by_group, groups = {one.group: one for one in vectors}, []
    for g in range(len(of.manifest.groups)):
        segments = []
        for device in range(UPLOADS):
            raw = of.array(g, device)
            if g in by_group:
                values = np.random.default_rng(device).integers(-100, 100, by_group[g].ring.count)
                check = RoundCheck.of_manifest(of.manifest, of.secret.membership)
                raw = masked_segment(by_group[g], values, seed(device), check)
            segments.append(of.segment(g, raw))
        groups.append([*segments[:5], os.urandom(len(segments[0])), *segments[5:], segments[2]])
    return groups


cancelling = partial(hostile, cancelling=True)
UNDER_MASKS = {"selection": {"devices": 64, "min_devices": 64}, "round": {"min_batch": 12}}
CASES = {
    "added up": ({"name": "fedavg"}, hostile),
    "added up to the last bits": ({"name": "fedavg"}, cancelling),
    "looked at one by one": ({"name": "krum"}, hostile),
    "under masks": ({"name": "fedavg", "secure": True}, masked),
    "under masks, in groups": ({"name": "median", "groups": 3, "secure": True}, masked),
}


@pytest.mark.parametrize(("rule", "uploads"), CASES.values(), ids=CASES)
def test_any_number_of_workers_gives_the_same_bits(rule, uploads):
    wanted = job(aggregation=rule, **(UNDER_MASKS if rule.get("secure") else {}))
    of = CloudRound(plan=Plan(wanted), selected=64)
    batch, data = of.batch(uploads(of))
    here = opened(of, batch, data)
    assert bits(opened(of, batch, data, kept_bytes=50)) == bits(here)
    assert {"not_for_this_round", "repeated_segment"} <= set(here.refused)
    assert len(here.chosen) == (UPLOADS if rule.get("secure") else 0)
    for count in (1, 3):
        with pool(count) as workers:
            there = opened(of, batch, data, workers=workers, kept_bytes=200)
            assert len(workers.pids) == count
            assert bits(there) == bits(here)


DATA = bytes(range(200)) * 3
PIECES = {number: DATA[100 * number : 100 * number + 50] for number in range(6)}
OF = CloudRound()
OPENING = RoundOpening(OF.secret.opening, OF.secret.membership, OF.manifest.at, b"d" * 32)


def run(workers, folder, deaths):
    data, found = SpooledBatch(b"", None), {}
    data.write(0, DATA)
    slices = [Deadly(folder, number, deaths.get(number, 0)) for number in range(6)]
    workers.run(OPENING, data, slices, found.__setitem__)
    return found


def test_what_a_worker_leaves_undone_is_done_by_another_in_three_tries_at_most(tmp_path, caplog):
    with pool(2) as workers:
        assert run(workers, tmp_path, {1: 1, 4: 2}) == PIECES
        logged = [(one.msg, getattr(one, "how", "")) for one in caplog.records]
        assert logged == [("worker_ended", "SIGKILL"), ("slice_repeated", "")] * 3
        assert OPENING.key.to_bytes().hex() not in caplog.text
        with pytest.raises(ComputeError, match="SIGKILL"):
            run(workers, tmp_path, {2: 9})
        assert workers.pids == []
        assert run(workers, tmp_path, {}) == PIECES


def test_a_worker_that_ended_between_two_batches_is_started_anew():
    of = CloudRound(selected=64)
    batch, data = of.batch(of.honest(UPLOADS))
    here = opened(of, batch, data)
    with pool(2) as workers:
        opened(of, batch, data, workers=workers)
        first = list(workers.pids)
        os.kill(first[0], signal.SIGKILL)
        there = opened(of, batch, data, workers=workers)
        assert first[1] in workers.pids
        assert len(set(workers.pids) - set(first)) == 1
        assert bits(there) == bits(here)


def test_a_round_whose_workers_are_gone_is_asked_for_again():
    with pool(2) as workers:
        desk = Desk(Store())
        desk.host = CloudHost(desk.store, None, BroadcastLimits(4096), workers=workers)
        task = desk.answers(desk.sealed(), 8)
        workers.close()
        assert isinstance(desk.perform(task), Obstacle)
        assert desk.store.rounds(desk.id) == ()


PROGRAM = """
import time
from edgeveil_cloud.compute.processes import WorkerProcesses
found = WorkerProcesses(2)
found.start()
print(*found.pids, flush=True)
time.sleep(600)
"""


def alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_workers_end_with_a_cloud_that_is_killed():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as cloud:
        pids = list(map(int, cloud.stdout.readline().split()))
        assert len(pids) == 2 and all(map(alive, pids))
        cloud.kill()
    until_s = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_a_rounds_key_goes_nowhere_by_chance():
    with pytest.raises(TypeError):
        pickle.dumps(OPENING)
    assert OPENING.membership.hex() not in repr(OPENING)
    assert repr(OPENING.membership) not in repr(OPENING)


@pytest.mark.slow
def test_a_cluster_that_nobody_answers_for_is_waited_for_and_then_named(
    monkeypatch, caplog, tmp_path
):
    pytest.importorskip("ray")
    monkeypatch.setattr(processes, "AWAY_S", 0.5)
    workers = workers_of(ComputeAt(engine="ray", workers=2, address="127.0.0.1:1"))
    assert "127.0.0.1:1" in caplog.records[0].reason
    with pytest.raises(ComputeError, match=r"127\.0\.0\.1:1") as caught:
        run(workers, tmp_path, {})
    assert (caught.value.where, bool(caught.value.fix)) == ("cloud.compute", True)
    workers.close()


def test_without_ray_the_cloud_does_not_start(monkeypatch, tmp_path):
    (tmp_path / "ray.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError):
        workers_of(ComputeAt(engine="ray", workers=2))


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        try:
            found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        except Exception as error:
            pytest.skip(f"no Ray node starts here: {error}")
        try:
            found.add_node(num_cpus=1)
            yield found
        finally:
            found.shutdown()


@pytest.mark.slow
def test_a_cluster_gives_the_same_bits(cluster):
    of = CloudRound(selected=64)
    batch, data = of.batch(hostile(of))
    here = opened(of, batch, data)
    with pool(2, on_ray=True, address=cluster.address) as workers:
        there = opened(of, batch, data, workers=workers, kept_bytes=200)
        assert bits(there) == bits(here)


@pytest.mark.slow
@pytest.mark.drill
def test_what_a_worker_of_the_cluster_leaves_undone_is_done_by_another(cluster, tmp_path):
    with pool(2, on_ray=True, address=cluster.address) as workers:
        assert run(workers, tmp_path, {1: 1, 4: 2}) == PIECES
        with pytest.raises(ComputeError, match="WorkerCrashedError"):
            run(workers, tmp_path, {2: 9})


@pytest.mark.slow
@pytest.mark.parametrize("other", ["EdgeVeil", "Ray"])
def test_another_version_on_the_cluster_is_named(cluster, other, monkeypatch):
    import ray

    if other == "Ray":
        monkeypatch.setattr(ray, "__version__", "2.44.1")
    else:
        monkeypatch.setattr(on_ray.metadata, "version", lambda _name: "9.9.9")
    try:
        with pytest.raises(UsageError, match=r"2\.44\.1|9\.9\.9"):
            RayTasks(1, cluster.address)
    finally:
        ray.shutdown()
