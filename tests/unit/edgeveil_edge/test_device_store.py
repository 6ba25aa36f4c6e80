"""The device's store: what it holds after the process was killed at any point."""

from dataclasses import replace

import pytest

from edgeveil.crypto.keys import SigningKey
from edgeveil.protocol.device import JobClosed
from edgeveil.protocol.device_round import ManifestMark, OutboxDrop, OutboxHeld, OutboxPut
from edgeveil.protocol.messages import RoundId, Signer, Upload
from edgeveil.protocol.transfer import describe
from edgeveil_edge.store import DeviceStore

JOB, OTHER = b"J" * 16, b"K" * 16
KEY = SigningKey.generate()
SIGNER = Signer(KEY.public().fingerprint(), KEY)


def outbox(round_=3, data=b"sealed" * 40, job=JOB):
    at = RoundId(job, round_, 1)
    upload = Upload(at, (0, 2), describe(data, 1024))
    return OutboxPut(at, SIGNER.header(upload), upload, (b"1" * 32, b"2" * 32), data)


def reopened(path):
    """The memory that a new process would find while the old one never closed its file."""
    store = DeviceStore(path)
    try:
        return store.load()
    finally:
        store.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "device.sqlite"


def test_the_outbox_holds_one_upload_of_each_job(path):
    store = DeviceStore(path)
    store.store(outbox(3))
    store.store(outbox(8, job=OTHER))
    store.store(outbox(4, b"newer" * 9))
    newer, other = outbox(4, b"newer" * 9), outbox(8, job=OTHER)
    assert reopened(path).uploads == {JOB: newer, OTHER: other}
    store.store(OutboxHeld(RoundId(OTHER, 8, 1)))
    assert reopened(path).uploads == {JOB: newer, OTHER: replace(other, held=True)}
    store.store(OutboxDrop(RoundId(JOB, 4, 1), "dropped"))
    assert reopened(path).uploads == {OTHER: replace(other, held=True)}
    store.close()


def test_a_closed_job_is_forgotten_but_for_its_end(path):
    store = DeviceStore(path)
    for job in (JOB, OTHER):
        store.put_job(job, b"canonical", b"graph")
        store.store(ManifestMark(RoundId(job, 1, 1), bytes(32)))
    store.store(JobClosed(JOB, "completed"))
    memory = reopened(path)
    assert (memory.closed, memory.jobs, set(memory.seen)) == ({JOB: None}, {OTHER: None}, {OTHER})
    assert store.job(JOB) is None
    assert store.job(OTHER) == (b"canonical", b"graph")
    store.close()
