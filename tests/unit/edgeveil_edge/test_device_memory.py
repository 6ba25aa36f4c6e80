"""What a device keeps from round to round: durable with the release, bounded, its own, and gone."""

import sqlite3

import numpy as np
import pytest
from edge_kit import JOB_ID, Device, Round, job

from edgeveil.data.records import Records
from edgeveil.errors import ProtocolError
from edgeveil.jobs import compile_job
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.privacy.ledger import Ledger
from edgeveil.protocol.device import JobClosed
from edgeveil.protocol.sealed import RoundPackage
from edgeveil.protocol.tensors import pack_tensors, unpack_tensors
from edgeveil_edge.compute import Computation, Computer, TaughtJob

PLAN = compile_job(
    job(
        features=(),
        model={"name": "mlp", "hidden": ()},
        train={"method": "sgd", "rounds": 3},
        update=({"name": "stc", "share": 0.3},),
        privacy={"epsilon": 4.0, "accept_unproven": True},
        unsupervised={"every_rounds": 0},
    )
)
POLICY = {
    "min_devices": 3,
    "allowed_methods": ("sgd",),
    "accept_unproven": True,
    "accept_unprotected": True,
}
HEX = JOB_ID.hex()


@pytest.fixture(autouse=True)
def _initial(monkeypatch):
    monkeypatch.setattr("edge_kit.trained", lambda plan: dict(plan.cloud.initial_state()))


def device(folder):
    return Device(folder, policy=POLICY).knows(PLAN)


def answered(one, index, attempt=1):
    sealed = Round(PLAN, index, one.keys(), attempt=attempt)
    return sealed.tensors(one.answer(sealed))


def kept(one):
    return unpack_tensors(one.ledger.kept(HEX))


def test_what_a_round_keeps_is_what_the_next_one_gets(tmp_path, monkeypatch):
    one, seen = device(tmp_path), []
    real = Computer.compute

    def watched(computer, asked, *rest):
        seen.append({name: array.copy() for name, array in asked.own.items()})
        return real(computer, asked, *rest)

    monkeypatch.setattr(Computer, "compute", watched)
    answered(one, 1)
    first = kept(one)["stc"]
    assert first.any()
    again = one.restarted(policy=POLICY)  # a crash: nobody closed the files
    answered(again, 2)
    assert [sorted(own) for own in seen] == [[], ["kept/stc"]]
    np.testing.assert_array_equal(seen[1]["kept/stc"], first)
    assert not np.array_equal(kept(again)["stc"], first)


def test_release_and_memory_are_durable_together_or_not_at_all(tmp_path, monkeypatch):
    one = device(tmp_path)
    answered(one, 1)
    memory = one.ledger.kept(HEX)

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Ledger, "_keep", dies)
        answered(one, 2)
    again = one.restarted(policy=POLICY)
    assert again.ledger.recall(HEX, 2) is None
    assert again.ledger.kept(HEX) == memory
    answered(again, 2)
    assert again.load.reads == 1
    assert again.ledger.kept(HEX) != memory


def test_it_is_gone_with_the_job_and_nothing_of_it_stays_in_the_file(tmp_path):
    one = device(tmp_path)
    answered(one, 1)
    values = kept(one)["stc"].tobytes()
    one.host.store(JobClosed(JOB_ID, "completed"))
    assert one.ledger.kept(HEX) == b""
    one.ledger.close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert values not in (tmp_path / "ledger.sqlite").read_bytes()


def test_more_than_the_owner_allows_is_declined_and_nothing_released(tmp_path):
    one = device(tmp_path)
    small = one.site.limits.model_copy(update={"memory_bytes": 59})
    one.host._work.site = one.site.model_copy(update={"limits": small})
    assert "limits.memory_bytes" in one.declines(PLAN, 1).why
    assert one.ledger.recall(HEX, 1) is None
    one.host._work.site = one.site
    one.seals(PLAN, 1)


def test_a_cloud_cannot_put_words_into_the_device_s_memory(tmp_path):
    weights = PLAN.cloud.package(PLAN.cloud.initial_state(), PLAN.round(1))
    tensors = pack_tensors({**weights, "kept/stc": np.ones(15, np.float32)})
    package = RoundPackage("train", 1, False, tensors, b"")
    nobody = Records(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    job, computer = TaughtJob(PLAN, b"", b""), Computer(device(tmp_path).site, bytes(32))
    one = Computation(job, PLAN.round(1), package, {}, True, DerivedRandom(bytes(32)))
    with pytest.raises(ProtocolError) as caught:
        computer.compute(one, "train", nobody, nobody)
    assert caught.value.reason == "bad_package"
