"""How many models the cloud holds at once while a large one is learned, and how large a release
is."""

import gc
import sys

import pytest
import yaml
from round_kit import CloudRound, job, public_keys

from edgeveil.crypto.chunked import chunked_bytes
from edgeveil.jobs import compile_job
from edgeveil.jobs.load import parse_plan
from edgeveil.parts.models.heads import bake
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.sealed import ReleasePackage, encode_package
from edgeveil_cloud.broadcasts import BroadcastLimits, largest_broadcast, seal_round
from edgeveil_cloud.commit_round import aggregate
from edgeveil_cloud.rehearsal import rehearse_job
from edgeveil_cloud.round_report import model_card
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord
from edgeveil_cloud.validate_batch import validate_batch
from tests.kits.memory_peak import peak_bytes

PLAN = compile_job(
    job(
        features=(),
        model={"name": "mlp", "hidden": (1024, 1000)},
        train={"method": "sgd", "rounds": 2},
        privacy={"epsilon": 4.0, "accept_unproven": True},
        proxy={"shuffle": "whole"},
        unsupervised={"every_rounds": 0},
    )
)
MODEL_BYTES = sum(array.nbytes for array in PLAN.cloud.initial_state().values())
LIMITS = BroadcastLimits(4096)


@pytest.fixture(scope="module")
def round_():
    return CloudRound(index=1, plan=PLAN, selected=6)


def test_a_rounds_package_is_sealed_beside_its_plaintext_alone(round_):
    state, at = PLAN.cloud.initial_state(), RoundId(b"J" * 16, 1, 1)
    peak = peak_bytes(lambda: seal_round(round_.context, state, public_keys(5), at, 1, 4096))
    assert peak < 2.4 * MODEL_BYTES  # tensors and plaintext, then plaintext and blob, which grows


def test_uploads_are_opened_one_by_one_beside_their_exact_sum(round_):
    uploads = [[round_.segment(0, round_.array(0, 1.0 + number)) for number in range(6)]]
    batch, data = round_.batch(uploads)

    def commit():
        valid = validate_batch(round_.context, round_.secret, batch, data)
        aggregate(round_.context, round_.state, valid)

    # A sum is two float64 for each float32, four models; one upload is there sealed and opened.
    assert peak_bytes(commit) < 6.4 * MODEL_BYTES


def test_a_job_is_rehearsed_with_as_many_models_as_a_round_has():
    rehearse_job(PLAN, LIMITS, devices=False)  # loads what is loaded once
    peak = peak_bytes(lambda: rehearse_job(PLAN, LIMITS, devices=False))
    # The state, an upload and the exact sum, and what is computed with, a few values at a time.
    assert peak < 6.8 * MODEL_BYTES


def test_no_statement_keeps_a_model_or_a_secret_that_was_stored():
    store = Store()
    entry = store.submit_job("large", PLAN.job.canonical(), PLAN.job.digest())
    store.set_status(entry.id, "running")
    model, onnx, secret = bytes(range(200)), bytes(range(1, 200)), bytes(range(2, 200))
    before = [sys.getrefcount(one) for one in (model, onnx, secret)]
    store.put_round_key(entry.id, 1, 1, secret)
    record = RoundRecord(1, "train", 1, attempt=1, uploads=20)
    assert store.commit_round(entry.id, record, model)
    store.put_release(entry.id, onnx, model)
    gc.collect()
    assert [sys.getrefcount(one) for one in (model, onnx, secret)] == before


NAMES = [f"column {number:05d} {'x' * 90}" for number in range(600)]


@pytest.mark.parametrize(
    "data",
    [
        {"classes": 10_000, "input_shape": [20]},
        {
            "schema": {
                "origin": "public",
                "label": {"column": "y", "classes": ["a", "b"]},
                "columns": [{"name": NAMES, "number": [0, 1]}],
            }
        },
        {
            "schema": {
                "origin": "public",
                "label": {"column": "y", "classes": [f"cläss {k:05d}" for k in range(2500)]},
                "columns": [{"name": "a", "number": [0, 1]}],
            }
        },
    ],
    ids=["classes", "columns", "names of classes"],
)
def test_no_release_is_larger_than_its_job_announced(data):
    """Its card names classes and columns: past 64 KiB the job was paid for and never ended."""
    told = {
        "job": "large",
        "data": {"source": "table", "nominal_records": 150, "evaluation_share": 0.1, **data},
        "features": [{"name": "identity"}],
        "train": {"method": "fm", "rounds": 2},
        "privacy": {"epsilon": 2, "delta": 0.0001},
        "unsupervised": {"every_rounds": 0},
    }
    plan = parse_plan(yaml.safe_dump(told))
    graph = plan.graph()
    said = largest_broadcast(plan, graph)
    figures = {f"figure {k}": k / 7 for k in range(100)}
    onnx = bake(graph, plan.model_weights(plan.cloud.initial_state()), model_card(plan, figures))
    package = encode_package(ReleasePackage("j" * 64, onnx, "d" * 64, 1e9 / 7))
    sealed = chunked_bytes(len(package)) + plan.upload_bytes
    assert said - (1 << 17) < sealed <= said
