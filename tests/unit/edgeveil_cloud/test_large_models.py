"""How many models the cloud holds at once while a large one is learned."""

from __future__ import annotations

import gc
import sys

import pytest
from round_kit import CloudRound, job, public_keys

from edgeveil.jobs import compile_job
from edgeveil.protocol.messages import ExchangeId
from edgeveil_cloud.broadcasts import BroadcastLimits, seal_round
from edgeveil_cloud.commit_round import aggregate
from edgeveil_cloud.rehearsal import rehearse_job
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import ExchangeRecord
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
def round_() -> CloudRound:
    return CloudRound(index=1, plan=PLAN)


def test_a_rounds_package_is_sealed_beside_its_plaintext_alone(round_: CloudRound) -> None:
    state, at = PLAN.cloud.initial_state(), ExchangeId(b"J" * 16, 1, 1)
    peak = peak_bytes(lambda: seal_round(round_.context, state, public_keys(5), at, 1, 4096))
    assert peak < 2.4 * MODEL_BYTES  # tensors and plaintext, then plaintext and blob, which grows


def test_uploads_are_opened_one_by_one_beside_their_exact_sum(round_: CloudRound) -> None:
    uploads = [[round_.segment(0, round_.array(0, 1.0 + number)) for number in range(6)]]
    batch, data = round_.batch(uploads)

    def commit() -> None:
        valid = validate_batch(round_.context, round_.secret, batch, data, round_.selected + 1)
        aggregate(round_.context, round_.state, valid)

    # A sum is two float64 for each float32, four models; one upload is there sealed and opened.
    assert peak_bytes(commit) < 6.4 * MODEL_BYTES


def test_a_job_is_rehearsed_with_as_many_models_as_a_round_has() -> None:
    rehearse_job(PLAN, LIMITS, devices=False)  # loads what is loaded once
    peak = peak_bytes(lambda: rehearse_job(PLAN, LIMITS, devices=False))
    # The state, an upload and the exact sum, and what is computed with, a few values at a time.
    assert peak < 6.8 * MODEL_BYTES


def test_no_statement_keeps_a_model_or_a_secret_that_was_stored() -> None:
    store = Store()
    entry = store.submit_job("large", PLAN.job.canonical(), PLAN.job.digest())
    store.set_status(entry.id, "running")
    model, onnx, secret = bytes(range(200)), bytes(range(1, 200)), bytes(range(2, 200))
    before = [sys.getrefcount(one) for one in (model, onnx, secret)]
    store.put_round_key(entry.id, 1, 1, secret)
    record = ExchangeRecord(1, "train", 1, attempt=1, uploads=20)
    assert store.commit_exchange(entry.id, record, model)
    store.put_release(entry.id, onnx, model)
    gc.collect()
    assert [sys.getrefcount(one) for one in (model, onnx, secret)] == before
