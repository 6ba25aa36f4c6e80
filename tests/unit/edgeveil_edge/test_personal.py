"""A box's own model: the release's head learned further, seen by its owner alone."""

import json
from contextlib import closing
from pathlib import Path

import edge_kit as kit
import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from edgeveil.data.schema import DataSchema, schema_metadata
from edgeveil.data.split import SPLIT_KEY_FILE, split_once
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.model_head import find_head, with_output
from edgeveil.evaluation.onnx_session import OnnxModel, open_session, run_session
from edgeveil.jobs.job import JobData
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models import build_network
from edgeveil.parts.models.heads import bake, build_graph
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger
from edgeveil.testing import device_sites
from edgeveil_edge.personal import personalise
from edgeveil_edge.predict import RELEASES, predict
from edgeveil_edge.releases import ReleaseStore, keep_personal
from edgeveil_edge.store import SPLIT_SHARE, STORE_FILE, USUAL_SHARE, DeviceStore, split_fact
from edgeveil_tools.local.job import Overrides, local_job, site_of
from tests.kits.fleet import played_by_all_parties

JOBS = Path(__file__).parents[3] / "configs" / "jobs"


def of_features(weight=None):
    weights = {
        "centre": np.full(64, 0.1, np.float32),
        "radius": np.full(1, 0.5, np.float32),
        "weight": np.random.default_rng(4).normal(0, 0.3, (64, 10)).astype(np.float32)
        if weight is None
        else weight,
    }
    return bake(build_graph(Identity(IdentityParameters(input_scale=16)), (64,), 10), weights)


def of_network(parameters, shape):
    network = build_network(parameters, shape, 10)
    return bake(network.graph(), network.initial())


MODELS = {
    "features": (of_features, (64,)),
    "mlp": (lambda: of_network(NetworkParameters(hidden=(12,)), (64,)), (64,)),
    "cnn": (lambda: of_network(NetworkParameters(name="cnn"), (1, 8, 8)), (1, 8, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_head_is_what_the_graph_computes_last_and_is_replaced_alone(name):
    made, shape = MODELS[name]
    graph = made()
    head = find_head(graph)
    x = np.random.default_rng(4).normal(4, 4, (5, *shape)).astype(np.float32)
    session = open_session(with_output(graph, head.features))
    phi = run_session(session, head.features, {"x": x}).astype(np.float64)
    powers = np.exp(phi @ head.weight + (0 if head.bias is None else head.bias))
    before = OnnxModel(graph).probabilities(x, {})
    np.testing.assert_allclose(powers / powers.sum(axis=1, keepdims=True), before, atol=1e-5)
    assert head.replaced(graph, head.weight, head.bias) == graph
    bias = None if head.bias is None else np.roll(head.bias, 1)
    turned = head.replaced(graph, np.roll(head.weight, 1, axis=1), bias)
    check_graph(turned, released=True)
    after = OnnxModel(turned).probabilities(x, {})
    np.testing.assert_allclose(np.roll(before, 1, axis=1), after, atol=1e-6)


def a_box(folder, x, y):
    (folder / "state").mkdir(parents=True)
    (folder / "state" / SPLIT_KEY_FILE).write_bytes(bytes(32))  # the same halves in each run
    np.savez(folder / "records.npz", x=x, y=y)
    data = {"name": "own", "source": "npz", "path": folder / "records.npz"}
    return kit.site(folder, state_dir=folder / "state", data=data)


def learned(site, graph=None):
    store = ReleaseStore(site.state_dir / RELEASES)
    store.install("a", of_features() if graph is None else graph, {})
    return personalise(site, store.folder)


def two_digits():
    """Records of a box that sees threes and eights alone."""
    digits = load_digits()
    mine = np.isin(digits.target, (3, 8))
    return digits.data[mine].astype(np.float32), digits.target[mine]


def test_a_box_learns_its_own_kind_of_records_and_the_release_stays_as_it_is(tmp_path):
    x, y = two_digits()
    x[0], y[1], y[2] = np.nan, 10, -1  # these are left out
    site, graph = a_box(tmp_path, x, y), of_features()
    found = learned(site, graph)
    assert found.training_records + found.evaluation_records == len(y) - 3
    assert found.personal_accuracy > max(0.85, found.shared_accuracy + 0.2)
    assert ReleaseStore(site.state_dir / RELEASES).current().path.read_bytes() == graph
    personal = site.state_dir / "personal"
    assert {one.stat().st_mode & 0o777 for one in personal.iterdir()} == {0o600}
    shared, own = (predict(site.state_dir, x, personal=mine) for mine in (False, True))
    assert own.model == "0001-a, personal"
    assert np.mean(own.labels == y) > np.mean(shared.labels == y) + 0.2


def test_records_are_read_as_the_release_reads_them(tmp_path):
    schema = {
        "origin": "public",
        "label": {"column": "kind", "classes": ["low", "high"]},
        "columns": [{"name": "size", "number": [0, 1000]}, {"name": "age", "number": [0, 10]}],
    }
    weights = {
        "centre": np.zeros(2, np.float32),
        "radius": np.ones(1, np.float32),
        "weight": np.array([[-9, 9], [0, 0]], np.float32),
    }
    features = Identity(IdentityParameters(input_scale=1))
    entries = schema_metadata(DataSchema.model_validate_json(json.dumps(schema)))
    graph = bake(build_graph(features, (2,), 2), weights, entries)
    rows = [f"{k},5,{'low' if k < 500 else 'high'}" for k in range(5, 1000, 10)]
    (tmp_path / "records.csv").write_text("\n".join(["size,age,kind", *rows]))
    site = a_box(tmp_path, np.zeros((1, 2)), np.zeros(1))
    own = {"source": "csv", "path": tmp_path / "records.csv", "header": True}
    found = learned(site.model_copy(update={"data": site.data.model_copy(update=own)}), graph)
    assert found.training_records + found.evaluation_records == len(rows)
    assert found.shared_accuracy == 1


def test_evaluation_records_are_not_learned_from(tmp_path):
    x, y = two_digits()
    site = a_box(tmp_path, x, y)
    graph = of_features()
    first = learned(site, graph)
    personal = (site.state_dir / "personal" / "model.onnx").read_bytes()
    key = (site.state_dir / SPLIT_KEY_FILE).read_bytes()
    _, evaluation = split_once(x, USUAL_SHARE, key)
    turned = y.copy()
    turned[evaluation] = 11 - turned[evaluation]
    np.savez(tmp_path / "records.npz", x=x, y=turned)
    second = learned(site, graph)
    assert (site.state_dir / "personal" / "model.onnx").read_bytes() == personal
    assert second.personal_accuracy < 0.2 < first.personal_accuracy


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_split_is_the_devices_own(share, tmp_path):
    """As its first job had it: what is compared on was learned from by no job."""
    x, y = two_digits()
    site = a_box(tmp_path, x, y)
    with closing(DeviceStore(site.state_dir / STORE_FILE)) as running:  # the device's process
        running.put_fact(split_fact(SPLIT_SHARE, site.data.name), repr(share))
        found = learned(site)
    _, evaluation = split_once(x, share, (site.state_dir / SPLIT_KEY_FILE).read_bytes())
    assert found.evaluation_records == len(evaluation)
    assert JobData.model_fields["evaluation_share"].default == USUAL_SHARE
    assert (found.shared_accuracy is None) == (share == 0)


def test_weights_that_training_kept_make_the_personal_model(tmp_path):
    """Two boxes of other classes train `fedrep`; each predicts its own with its own head."""
    job = yaml.safe_load((JOBS / "digits_fedrep.yaml").read_text())
    job["train"] |= {"rounds": 3}
    job["local_run"] |= {"devices": 5, "seed": 7}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    status, onnx, _, events, _ = played_by_all_parties(path, tmp_path, Overrides())
    assert status == "completed"
    (job_id,) = (one["data"]["job_id"] for one in events if one["type"] == "job_started")
    parsed, run = local_job(path, Overrides())
    site = site_of(parsed, run, tmp_path)
    boxes = device_sites(5, site.source, partition=site.partition, classes=site.classes, seed=7)
    folders = [tmp_path / "state" / f"edge-{number}" for number in (1, 2)]
    own = [
        one.model_copy(update={"state_dir": at}) for one, at in zip(boxes, folders, strict=False)
    ]
    for at in folders:
        ReleaseStore(at / RELEASES).install("a", onnx, {"job_id": job_id})
    with closing(Ledger(folders[0] / LEDGER_FILE, "digits")) as ledger:  # one box's job has ended
        keep_personal(folders[0], job_id, ledger.kept(job_id))
        ledger.close_job(job_id)
        assert not ledger.kept(job_id)
    found = [personalise(one, at / RELEASES) for one, at in zip(own, folders, strict=True)]
    for one, at in zip(found, folders, strict=True):
        assert (one.kept_weights, one.pull) == (2, None)
        assert one.personal_accuracy > 0.8 > one.shared_accuracy
        check_graph((at / "personal" / "model.onnx").read_bytes(), released=True)
    x = np.random.default_rng(1).uniform(0, 16, (50, 64)).astype(np.float32)
    a, b = (predict(at, x, personal=True).probabilities for at in folders)
    assert not np.allclose(a, b, atol=0.1)
