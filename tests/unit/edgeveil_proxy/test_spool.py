"""The proxy's spool: what is there after a kill at any effect, and what is truly gone."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import spool_kit as sk

from edgeveil.crypto.keys import OpeningKey
from edgeveil.protocol import messages as m
from edgeveil.protocol import proxy_broadcasts as br
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol.proxy import AnswersFrom, DeviceKnows
from edgeveil.storage import StorageError
from edgeveil_proxy.spool import ENDED_KEPT, Spool


def test_devices_of_an_earlier_version_stay_known(spool, path):
    for number in range(3):
        spool.store(DeviceKnows(str(number) * 16, 0))
    spool.store(DeviceKnows("0" * 16, m.KNOWS_CHECKS))
    spool.store(DeviceKnows("1" * 16, m.KNOWS_BUCKETS))
    assert sk.reopened(path).earlier == {"1" * 16: m.KNOWS_BUCKETS, "2" * 16: 0}


def test_devices_that_an_earlier_proxy_heard_are_of_before_until_they_say_otherwise(path):
    """Uploads with other seeds than a round commits to would be paid for in vain."""
    spool = Spool(path)
    spool.store(AnswersFrom("0" * 16, 1))
    spool.store(DeviceKnows("1" * 16, 0))
    spool.close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("ALTER TABLE earlier DROP COLUMN knows; PRAGMA user_version = 6;")
    assert sk.reopened(path).earlier == {"0" * 16: m.KNOWS_BUCKETS, "1" * 16: 0}


def test_a_second_upload_of_a_device_or_batch_of_a_round_changes_nothing(spool, path):
    item = sk.upload(spool, 0)
    spool.store(pr.UploadKept(sk.at(), sk.DEVICES[0], pr.HeldUpload((0,), b"o" * 32, 5)))
    assert sk.reopened(path).uploads == [item]
    made = sk.batch(spool, 1)
    other = m.Batch(sk.at(), 9, 9, made.batch.counts, made.batch.blob)
    spool.store(pr.BatchKept(sk.at(), sk.PROXY.header(other), other, made.data))
    assert sk.reopened(path).batches[sk.at()].batch == made.batch


def test_a_dropped_round_stays_closed_and_keeps_no_ciphertext(spool, path):
    sk.keep(spool)
    sk.upload(spool, 0)
    sk.batch(spool, 1)
    sk.upload(spool, 1)
    spool.store(pr.RoundDropped(sk.at()))
    memory = sk.reopened(path)
    assert (memory.uploads, memory.batches) == ([], {})
    assert memory.delivered == {sk.at()}
    assert sk.kinds(memory) == [(sk.JOB, "round", 1)]  # late devices may still ask for it
    assert sk.names(path) == {"kept"}


def test_of_a_job_the_announcement_the_newest_round_and_its_commit_stay(spool, path):
    sk.keep(spool, "job", sk.at(0))
    sk.keep(spool, "job", sk.at(0, 2))
    sk.keep(spool, where=sk.at(1))
    sk.upload(spool, 0)
    sk.batch(spool, 1)
    sk.keep_commit(spool, sk.at(1))
    sk.keep(spool, where=sk.at(7, job=sk.OTHER))
    sk.keep(spool, where=sk.at(2))
    memory = sk.reopened(path)
    record, others = (sk.JOB, "commit", 1), (sk.OTHER, "round", 7)
    assert sk.kinds(memory) == [(sk.JOB, "job", 0), record, others, (sk.JOB, "round", 2)]
    assert next(iter(memory.kept.values())).header.at.attempt == 2
    assert (memory.uploads, memory.batches) == ([], {})
    assert len(list(path.with_suffix("").iterdir())) == 4
    sk.keep_commit(spool, sk.at(2))
    newest = [(sk.JOB, "round", 2), (sk.JOB, "commit", 2)]
    assert sk.kinds(sk.reopened(path)) == [(sk.JOB, "job", 0), others, *newest]
    assert len(list(path.with_suffix("").iterdir())) == 4


def test_a_record_that_comes_after_the_next_round_leaves_that_round_its_key(spool, path):
    opening = OpeningKey.generate()
    sk.keep(spool, where=sk.at(1))
    kept = sk.keep(spool, where=sk.at(2))
    spool.store(replace(kept, key=opening))
    sk.keep_commit(spool, sk.at(1))
    loaded = sk.reopened(path).round_key(sk.at(2))
    assert loaded is not None and loaded.to_bytes() == opening.to_bytes()
    sk.keep_commit(spool, sk.at(2))
    assert sk.reopened(path).round_key(sk.at(2)) is None


def test_an_ended_job_leaves_its_release_and_its_end(path):
    spool = Spool(path)
    notes = {job: sk.CLOUD.note(m.Close(job, "completed")) for job in (sk.OTHER, sk.JOB)}
    spool.store(br.JobEnded(sk.OTHER, notes[sk.OTHER]))
    sk.keep(spool, "job", sk.at(0))
    sk.keep(spool)
    sk.upload(spool, 0)
    sk.batch(spool, 1)
    sk.keep(spool, "release", sk.at(0, 9))
    sk.keep_commit(spool, sk.at())
    for _ in range(2):
        spool.store(br.JobEnded(sk.JOB, notes[sk.JOB]))
    memory = sk.reopened(path)
    assert sk.kinds(memory) == [(sk.JOB, "release", 0), (sk.JOB, "commit", 1)]
    assert (memory.uploads, memory.batches, memory.delivered) == ([], {}, set())
    assert list(memory.ended.items()) == [(sk.OTHER, notes[sk.OTHER]), (sk.JOB, notes[sk.JOB])]
    assert sk.names(path) == {"kept"}
    for number in range(ENDED_KEPT):  # with the end goes the last record
        spool.store(br.JobEnded(bytes([number]) * 16, notes[sk.JOB]))
    memory = sk.reopened(path)
    assert sk.kinds(memory) == [(sk.JOB, "release", 0)] and sk.JOB not in memory.ended
    assert len(list(path.with_suffix("").iterdir())) == 1
    spool.close()


MARK = b"ciphertext that must not stay "
UNUSED = {
    "batch made": (lambda s: sk.upload(s, 0, data=MARK), lambda s: sk.batch(s, 0)),
    "round dropped": (
        lambda s: sk.upload(s, 0, data=MARK),
        lambda s: s.store(pr.RoundDropped(sk.at())),
    ),
    "round short": (
        lambda s: sk.upload(s, 0, data=MARK),
        lambda s: s.store(pr.UploadsDropped(sk.at())),
    ),
    "delivered": (
        lambda s: (sk.upload(s, 0, data=MARK), sk.batch(s, 1)),
        lambda s: s.store(pr.BatchDelivered(sk.at())),
    ),
    "batch dropped": (
        lambda s: (sk.upload(s, 0, data=MARK), sk.batch(s, 1)),
        lambda s: s.store(pr.RoundDropped(sk.at())),
    ),
    "uploads overtaken": (
        lambda s: sk.upload(s, 0, data=MARK),
        lambda s: sk.keep(s, where=sk.at(2)),
    ),
    "broadcast overtaken": (lambda s: sk.keep(s, data=MARK), lambda s: sk.keep(s, where=sk.at(2))),
    "job ended": (
        lambda s: (sk.upload(s, 0, data=MARK), sk.batch(s, 1)),
        lambda s: s.store(br.JobEnded(sk.JOB, sk.CLOUD.note(m.Close(sk.JOB, "failed")))),
    ),
    "broadcast given up": (
        lambda s: s.store(br.BroadcastPart(b"b" * 32, 0, MARK)),
        lambda s: s.store(br.BroadcastDropped(b"b" * 32)),
    ),
}


@pytest.mark.parametrize(("before", "then"), UNUSED.values(), ids=UNUSED)
def test_dropped_ciphertext_is_gone_from_the_disk(before, then, spool, path):
    before(spool)
    assert MARK in sk.on_disk(path)
    then(spool)
    assert MARK not in sk.on_disk(path)


def test_nothing_on_the_disk_says_whose_a_batch_s_segments_are(spool, path):
    """Of a single group an upload's digest names its segment, its place the order of arrival."""
    items = [sk.upload(spool, slot, data=b"sealed %d" % slot) for slot in (2, 0, 1)]
    assert items[0].held.digest in sk.on_disk(path)
    sk.batch(spool)
    with sqlite3.connect(path) as db:
        rows = list(db.execute("SELECT device, digest, slot FROM uploads"))
        with pytest.raises(sqlite3.OperationalError):
            db.execute("SELECT rowid FROM uploads")
    assert rows == [(device, b"", -1) for device in sk.DEVICES]
    disk = sk.on_disk(path)
    assert not [item for item in items if item.held.digest in disk]
    assert path.with_name(path.name + "-wal").stat().st_size == 0


def test_a_spool_has_one_name_until_it_is_lost_or_put_back(spool, path):
    name = spool.load().name
    assert len(name) == 16 and sk.reopened(path).name == name
    spool.put_back()
    spool.close()
    other = sk.reopened(path).name
    assert len(other) == 16 and other != name
    path.unlink()
    assert sk.reopened(path).name not in (name, other)


def test_a_second_choice_for_a_round_ends_the_work_and_the_first_one_stays(path):
    spool, first = Spool(path), pr.RoundUnmasked(sk.at(), b"first")
    for _ in range(2):  # the same again, after a crash
        spool.store(first)
    for second in (
        pr.RoundUnmasked(sk.at(), b"second"),
        pr.RoundUnmasked(sk.at(attempt=2), b"first"),
    ):
        with pytest.raises(StorageError, match="UNIQUE constraint failed: unmasked"):
            spool.store(second)
    with pytest.raises(StorageError), spool.together():
        spool.store(pr.RoundUnmasked(sk.at(2), b"another"))
        spool.store(pr.RoundUnmasked(sk.at(), b"second"))
    assert sk.reopened(path).unmasked == {(sk.JOB, 1): first}
    spool.close()
