"""Receipts: what became of an upload, by what the device was told."""

import hashlib
from contextlib import closing
from dataclasses import replace

import pytest
from edge_kit import CENTRE, FIRST, PLAN, Device, Round

from edgeveil.crypto.keys import SigningKey
from edgeveil.privacy.policy import INFER
from edgeveil.protocol import device_round as work
from edgeveil.protocol.device import JobClosed
from edgeveil.protocol.messages import RoundId, Signer, Upload
from edgeveil.protocol.transfer import describe
from edgeveil_edge.store import DeviceStore

JOB, OTHER = b"J" * 16, b"K" * 16
KEY = SigningKey.generate()
SIGNER = Signer(KEY.public().fingerprint(), KEY)
SEGMENTS = (b"one" * 40, b"other" * 28)
HASHES = tuple(hashlib.sha256(segment).digest() for segment in SEGMENTS)


def item(number=1, *, job=JOB, dummy=False):
    at, data = RoundId(job, number, 1), b"".join(SEGMENTS)
    upload = Upload(at, (0, 1), describe(data, 1024))
    return work.OutboxPut(at, SIGNER.header(upload), upload, HASHES, data, dummy)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "device.sqlite"


@pytest.fixture
def store(path):
    return DeviceStore(path)


def reopened(path):
    with closing(DeviceStore(path)) as store:
        return store.load()


def test_the_outbox_holds_one_upload_of_each_job_over_a_crash(store, path):
    newer, other = item(4), item(8, job=OTHER)
    for one in (item(3), other, newer):
        store.store(one)
    assert reopened(path).uploads == {JOB: newer, OTHER: other}
    store.store(work.OutboxHeld(other.at))
    held = replace(other, held=True)
    assert reopened(path).uploads == {JOB: newer, OTHER: held}
    store.store(work.OutboxDrop(newer.at, "dropped"))
    assert reopened(path).uploads == {OTHER: held}


def test_a_closed_job_is_forgotten_but_for_its_end(store, path):
    for job in (JOB, OTHER):
        store.put_job(job, b"canonical", b"graph")
        store.store(work.ManifestMark(RoundId(job, 1, 1), bytes(32)))
    store.store(JobClosed(JOB, "completed"))
    memory = reopened(path)
    assert (memory.closed, memory.jobs, set(memory.seen)) == ({JOB: None}, {OTHER: None}, {OTHER})
    assert (store.job(JOB), store.job(OTHER)) == (None, (b"canonical", b"graph"))


# Whether the proxy has acknowledged it, its outcome, one that came later, the receipt's state.
ENDS = [
    (True, "counted", None, "counted"),
    (True, "missing", None, "missing"),
    (True, "refused", None, "held"),
    (True, "dropped", None, "held"),
    (False, "counted", None, "counted"),
    (False, "missing", None, "late"),
    (True, "partial", None, "missing"),
    (False, "partial", None, "dropped"),
    (False, "refused", None, "refused"),
    (False, "dropped", None, "dropped"),
    (False, "dropped", "counted", "counted"),  # the acknowledgement was lost
    (False, "dropped", "missing", "late"),
]


@pytest.mark.parametrize(("held", "outcome", "later", "state"), ENDS)
def test_a_receipt_says_what_became_of_an_upload(store, held, outcome, later, state):
    """What was acknowledged is never called refused or dropped."""
    store.store(item())
    if held:
        store.store(work.OutboxHeld(item().at))
    assert store.was_taken(JOB, [1]) and not store.was_taken(JOB, range(2, 9))
    store.store(work.OutboxDrop(item().at, outcome))
    if later:
        assert store.was_taken(JOB, [1])
        store.store(work.LateRecord(item().at, later))
    assert store.receipts()[-1].state == state
    assert not store.load().uploads
    assert store.was_taken(JOB, [1]) is (state not in ("late", "refused"))


@pytest.mark.parametrize("outcome", ["counted", "dropped"])
def test_a_promise_is_never_replaced(store, outcome):
    store.store(item())
    store.store(work.OutboxDrop(item().at, outcome))
    store.store(replace(item(), marks=(b"o" * 32,)))
    expected = HASHES if outcome == "counted" else (b"o" * 32,)
    assert [receipt.segment_hashes for receipt in store.receipts()] == [expected]


def test_a_dropped_upload_settles_its_attempt_on_the_disk(store):
    store.store(work.ManifestMark(item().at, b"m" * 32))
    store.store(item())
    assert not store.load().seen[JOB].settled
    store.store(work.OutboxDrop(item().at, "counted"))
    assert store.load().seen[JOB].settled
    store.store(work.ManifestMark(item(2).at, b"n" * 32))
    store.store(work.OutboxDrop(item().at, "dropped"))
    assert not store.load().seen[JOB].settled


def test_a_dummy_has_no_receipt_and_stays_a_dummy(store):
    store.store(item(dummy=True))
    store.store(work.OutboxHeld(item().at))
    assert store.load().uploads[JOB].dummy
    store.store(work.OutboxDrop(item().at, "missing"))
    assert store.receipts() == []


def test_receipt_and_outbox_change_together_or_not_at_all(store):
    store._file.db.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON receipts BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    with pytest.raises(Exception, match="full"):
        store.store(item())
    assert not store.load().uploads


@pytest.mark.parametrize("role", ["train", "infer"])
@pytest.mark.parametrize("index", [CENTRE, FIRST])
def test_a_dummy_has_the_form_of_an_answer_and_opens_for_nobody(tmp_path, role, index):
    device = Device(tmp_path, role=role).knows(PLAN)
    sealed = Round(PLAN, index, device.keys())
    dummy, other = (device.host.perform(work.SealDummies(sealed.manifest)) for _ in range(2))
    assert dummy.dummy and dummy.data != other.data
    assert device.load.reads == device.ledger.spent().epsilon == 0
    assert device.ledger.spent(purpose=INFER).epsilon == 0
    answer = device.answer(sealed)
    if isinstance(answer, work.SealedAnswer):  # an infer-only device has no answer to every round
        assert (dummy.groups, dummy.sizes) == (answer.groups, answer.sizes)
        assert not answer.dummy
    with pytest.raises(AssertionError):
        sealed.tensors(dummy)
