"""Evaluations on the devices' own records over a whole fleet: exact sums of noised counts, and a
training that does not notice them."""

import json

import numpy as np
import onnx
import pytest
from sklearn import metrics

from edgeveil.config.policy import Policy
from edgeveil.evaluation.cluster_sums import ONE
from edgeveil.evaluation.figures import GUESSING
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.jobs.federated_evaluation import ABOUT, COUNTS
from edgeveil.jobs.plan import Plan
from edgeveil.parts.round import CLUSTER, EVALUATE
from edgeveil.protocol.messages import Manifest, Unmask
from edgeveil_cloud.stored_jobs import wire_id
from tests.kits.fleet import committed
from tests.sim.test_secure_sums import DEVICES, books, completed, job, played, said, state

__all__ = ["books"]  # the fixture

pytestmark = pytest.mark.slow

ASKED = {"epsilon": 12.0, "every_rounds": 1}
PLAIN = {"aggregation": {"name": "fedavg"}}
SHARED = {"privacy": {"epsilon": 8.0, "delta": 1e-5, "noise": "shared"}}


def evaluated(**changes):
    """Two training rounds, each evaluated: the evaluations are rounds 4 and 6."""
    data = {"source": "digits", "classes": 10, "input_shape": (64,), "nominal_records": 150}
    plain = {
        "data": {**data, "evaluation_share": 0.3},
        "federated_evaluation": ASKED,
        "unsupervised": {"every_rounds": 0},
    }
    return job(**{**plain, **changes})


def told(fleet, done):
    rounds = committed(fleet, done)
    assert all(("federated" in one) == (one["phase"] == EVALUATE) for one in rounds)
    return {one["number"]: one for one in rounds if one["phase"] == EVALUATE}


def right_of_all(fleet, done):
    model = OnnxModel(fleet.store.release(done).onnx)
    right = records = 0
    for box in fleet.devices:
        computer = box.host._work._compute
        own = computer.records(0.3)[1]
        found = model.answers(own.x, {}).argmax(axis=1)
        right, records = right + int((found == own.y).sum()), records + len(own)
    return right, records


@pytest.mark.parametrize("changes", [PLAIN, {}, SHARED], ids=["plain", "secure", "shared"])
def test_figures_are_those_of_all_devices_records(tmp_path, books, changes):
    policy = Policy(max_collusion_epsilon_per_job=500, lifetime_collusion_epsilon=500)
    fleet, done = played(tmp_path, evaluated(**changes), policy=policy)
    records = completed(fleet, done, None if "aggregation" in changes else books)
    assert [one.phase for one in records][2:] == ["train", EVALUATE, "train", EVALUATE]
    if "aggregation" not in changes:
        masked = {m.at.round: m for m in said(fleet, Manifest) if m.kind == "round"}
        assert [group.name for group in masked[6].groups] == [COUNTS]
        assert len(masked[6].masked) == 1
        assert len({(q.at.round, q.chosen) for q in said(fleet, Unmask)}) == 6
    found = told(fleet, done)
    assert sorted(found) == [1, 2]
    last = found[2]["federated"]
    right, count = right_of_all(fleet, done)
    assert last["uploads"] == DEVICES
    assert last["records"] == pytest.approx(count, abs=6 * 1.5 * last["count_deviation"])
    assert last["accuracy"] == pytest.approx(right / count, abs=6 * last["accuracy_deviation"])
    assert found[2]["accuracy"] == records[4].accuracy  # of the same model by the cloud's test
    assert {k: v for k, v in records[-1].scores.items() if k != GUESSING} == last
    model = onnx.load_from_string(fleet.store.release(done).onnx)
    (entry,) = [one.value for one in model.metadata_props if one.key == "edgeveil.federated"]
    assert json.loads(entry)["accuracy"] == last["accuracy"]
    for box in fleet.devices:
        assert box.ledger.spent(purpose="infer").epsilon == pytest.approx(12, rel=0.01)
        assert box.ledger.spent().epsilon == pytest.approx(8, rel=0.01)


def test_what_a_device_keeps_for_its_next_round_outlives_an_evaluation(tmp_path):
    """`stc` keeps what it did not send; an evaluation stands between two rounds."""
    changes = {
        "features": (),
        "model": {"name": "mlp", "hidden": (4,), "input_scale": 16.0},
        "train": {"method": "sgd", "rounds": 2},
        "update": ({"name": "stc", "share": 0.2},),
        "privacy": {"accept_unproven": True, "epsilon": None},
        **PLAIN,
    }
    policy = Policy(accept_unproven=True, accept_unprotected=True, allowed_methods=("sgd",))
    fleet, done = played(tmp_path, evaluated(**changes), policy=policy)
    fleet.net.run(lambda: len(fleet.store.rounds(done)) == 1)
    wire = wire_id(done).hex()
    kept = [box.ledger.kept(wire) for box in fleet.devices]
    fleet.net.run(lambda: len(fleet.store.rounds(done)) == 2)
    assert all(kept)
    assert [box.ledger.kept(wire) for box in fleet.devices] == kept
    completed(fleet, done)


def test_a_device_without_evaluation_records_answers_like_the_others(tmp_path, books, monkeypatch):
    fleet, done = played(tmp_path, evaluated(**PLAIN))
    empty = fleet.devices[0].host._work._compute
    training, own = empty.records(0.3)
    monkeypatch.setattr(empty, "records", lambda *_: (training, own.at(np.zeros(0, np.int64))))
    completed(fleet, done)
    assert told(fleet, done)[2]["federated"]["uploads"] == DEVICES


def test_an_evaluation_that_too_few_answer_pauses_and_is_answered_with_the_same_counts(
    tmp_path, books
):
    fleet, done = played(tmp_path, evaluated(**PLAIN))
    fleet.net.run(lambda: len(fleet.store.rounds(done)) == 5)
    for box in fleet.devices[1:]:
        box.runner.up = False
    assert fleet.finish(done) == "paused"
    wire, trained = wire_id(done).hex(), state(fleet, done)
    held = fleet.devices[0].ledger.recall(wire, 6)
    spent = fleet.devices[0].ledger.spent()
    for box in fleet.devices[1:]:
        box.runner.up = True
        fleet.net.connect(box.runner)
    fleet.resume(done)
    completed(fleet, done)
    assert held is not None
    assert fleet.devices[0].ledger.recall(wire, 6) == held
    assert fleet.devices[0].ledger.spent() == spent
    assert all(np.array_equal(state(fleet, done)[name], was) for name, was in trained.items())
    assert told(fleet, done)[2]["federated"]["uploads"] == DEVICES


def all_outputs(fleet, done):
    model = OnnxModel(fleet.store.release(done).onnx)
    own = [box.host._work._compute.records(0.3)[1] for box in fleet.devices]
    return np.concatenate([model.answers(one.x, {}) for one in own])


@pytest.mark.parametrize("changes", [PLAIN, {}, SHARED], ids=["plain", "secure", "shared"])
def test_cluster_scores_are_those_of_all_devices_records(tmp_path, books, changes):
    policy = Policy(
        max_inference_epsilon=100,
        max_collusion_epsilon_per_job=2000,
        lifetime_collusion_epsilon=2000,
    )
    asked = {"upload": "sums", "epsilon": 24.0, "every_rounds": 1}
    wanted = {"unsupervised": asked, "federated_evaluation": None, "encrypt": {}, **changes}
    fleet, done = played(tmp_path, evaluated(**wanted), policy=policy)
    records = completed(fleet, done, None if "aggregation" in changes else books)
    assert [one.phase for one in records][2:] == ["train", CLUSTER, "train", CLUSTER]
    events = committed(fleet, done)
    first, last = [one["clusters"] for one in events if one["phase"] == CLUSTER]
    assert {k: v for k, v in records[-1].scores.items() if k != "guessing"} == last
    assert (last["upload"], last["uploads"]) == ("sums", DEVICES)
    after = state(fleet, done)
    centroids, points = after[ABOUT] / ONE, all_outputs(fleet, done)
    assert not np.array_equal(centroids, np.eye(10))  # those of the first sums
    assert last["records"] == pytest.approx(len(points), abs=9 * last["count_deviation"])
    apart = np.sqrt(np.square(points[:, None] - centroids[None]).sum(axis=2))
    least = np.sort(apart, axis=1)
    silhouette = float(np.mean(1 - least[:, 0] / least[:, 1]))
    said = last["silhouette_deviation"]
    assert last["silhouette"] == pytest.approx(silhouette, abs=5 * said)
    assert first["silhouette"] != last["silhouette"]
    wanted_score = metrics.calinski_harabasz_score(points, apart.argmin(axis=1))
    if last["calinski_harabasz"] is not None:
        said = last["calinski_harabasz_deviation"]
        assert last["calinski_harabasz"] == pytest.approx(wanted_score, abs=5 * said)
    for box in fleet.devices:
        assert box.ledger.spent(purpose="infer").epsilon == pytest.approx(24, rel=0.01)


def test_a_device_declines_sums_about_what_are_no_centroids(tmp_path, books, monkeypatch):
    """What is proven of a record holds on the simplex alone; nothing is paid."""
    asked = {"upload": "sums", "epsilon": 2.0, "every_rounds": 2}
    wanted = {"unsupervised": asked, "federated_evaluation": None, "encrypt": {}, **PLAIN}
    fleet, done = played(tmp_path, evaluated(**wanted))
    fleet.net.run(lambda: len(fleet.store.rounds(done)) == 4)
    far = np.diag(np.full(10, 3 * ONE))
    monkeypatch.setattr(Plan, "_centroids", lambda *_: far)
    assert fleet.finish(done) == "paused"
    assert f"0 uploaded, {DEVICES} declined" in fleet.store.job(done).reason
    assert {box.ledger.spent(purpose="infer").epsilon for box in fleet.devices} == {0.0}
