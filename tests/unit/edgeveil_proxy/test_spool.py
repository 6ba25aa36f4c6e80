"""The proxy's spool: what is there after a kill at any effect, and what is truly gone."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import spool_kit as sk

from edgeveil.crypto.keys import OpeningKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import messages as m
from edgeveil.protocol import proxy_broadcasts as br
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol.proxy import AnswersFrom, DeviceKnows, FindAnswered
from edgeveil.protocol.proxy_uploads import UploadPart
from edgeveil.storage import StorageError
from edgeveil_proxy import spool as spool_module
from edgeveil_proxy.spool import ENDED_KEPT, Spool


def test_devices_of_an_earlier_version_stay_known(spool, path):
    """Uploads with other seeds than a round commits to would be paid for in vain."""
    for number in range(3):
        spool.store(DeviceKnows(str(number) * 16, 0))
    spool.store(DeviceKnows("0" * 16, m.KNOWS_CHECKS))
    spool.store(DeviceKnows("1" * 16, m.KNOWS_BUCKETS))
    assert sk.reopened(path).earlier == {"1" * 16: m.KNOWS_BUCKETS, "2" * 16: 0}
    spool.store(AnswersFrom("3" * 16, 1))
    spool.close()
    with closing(sqlite3.connect(path)) as db:  # all whom an earlier proxy heard
        db.executescript(
            "DROP TABLE halves; ALTER TABLE earlier DROP COLUMN knows; PRAGMA user_version = 6;"
        )
    known = dict.fromkeys(("1" * 16, "2" * 16), 0)
    assert sk.reopened(path).earlier == {"3" * 16: m.KNOWS_BUCKETS, **known}


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
CLOSE = sk.CLOUD.note(m.Close(sk.JOB, "failed"))


def uploaded(spool):
    sk.upload(spool, 0, data=MARK)


def batched(spool):
    uploaded(spool)
    sk.batch(spool, 1)


UNUSED = {
    "batch made": (uploaded, lambda s: sk.batch(s, 0)),
    "round dropped": (uploaded, lambda s: s.store(pr.RoundDropped(sk.at()))),
    "round short": (uploaded, lambda s: s.store(pr.UploadsDropped(sk.at()))),
    "delivered": (batched, lambda s: s.store(pr.BatchDelivered(sk.at()))),
    "batch dropped": (batched, lambda s: s.store(pr.RoundDropped(sk.at()))),
    "uploads overtaken": (uploaded, lambda s: sk.keep(s, where=sk.at(2))),
    "broadcast overtaken": (lambda s: sk.keep(s, data=MARK), lambda s: sk.keep(s, where=sk.at(2))),
    "job ended": (batched, lambda s: s.store(br.JobEnded(sk.JOB, CLOSE))),
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


def test_a_broadcast_that_is_not_its_digest_is_not_kept(path):
    spool, header = Spool(path), sk.manifest("round", sk.at(), bytes(100))
    spool.store(br.BroadcastPart(header.blob.digest, 0, b"x" * 100))
    with pytest.raises(ProtocolError, match="bad_digest"):
        spool.keep(br.KeepBroadcast(sk.CLOUD.header(header), header))
    spool.store(br.BroadcastDropped(header.blob.digest))
    assert sk.names(path) == set()
    item = sk.keep(spool, data=bytes(100))
    spool.store(br.BroadcastDropped(item.header.blob.digest))  # of one under way
    (found,) = sk.reopened(path).kept.values()
    assert found.data[:] == item.data[:] and item.data[:100] == bytes(100)


def test_what_a_killed_process_left_half_done_is_swept(spool, path):
    sk.keep(spool, where=sk.at(9, job=sk.OTHER))
    spool.store(br.BroadcastPart(b"b" * 32, 0, b"half a broadcast"))
    spool.store(UploadPart(sk.at(job=sk.OTHER), 0, b"half an upload"))
    for slot in range(3):
        sk.upload(spool, slot)
    sk.shuffled(spool)  # but the batch was not stored
    assert sk.names(path) == {"arriving", "kept", "uploads", "batch"}
    memory = sk.reopened(path)
    assert [kept.held.slot for kept in memory.uploads] == [0, 1, 2]
    files = path.with_suffix("").iterdir()
    assert sorted(f.name.split("-")[0] for f in files) == ["kept", "uploads"]


def test_a_write_that_fails_is_undone_as_a_whole(spool, path):
    sk.upload(spool, 0)
    spool._file.db.execute(
        "CREATE TEMP TRIGGER full BEFORE UPDATE ON uploads BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    with pytest.raises(StorageError, match="full"):
        sk.batch(spool, 1)  # the batch is written first, then the uploads' places are forgotten
    memory = sk.reopened(path)
    assert memory.batches == {} and [u.held.slot for u in memory.uploads] == [0]
    assert sk.names(path) == {"uploads"}
    spool._file.db.execute("DROP TRIGGER full")
    sk.batch(spool, 1)
    assert list(sk.reopened(path).batches) == [sk.at()]


FIRST = sk.DEVICES[0]


def answer(spool, number, job, device=FIRST):
    item = sk.upload(spool, 1, sk.at(number, job=job))
    spool.store(replace(item, device=device, number=number, encrypted_state=b"d%d" % number))


def asked(spool, since, most=64):
    return spool.answered(FindAnswered(FIRST, b"", since, 99, most))


def test_each_job_answered_since_is_told_once_with_its_newest_deposit(spool, path):
    spool.store(AnswersFrom(FIRST, 2))
    for number, job in ((3, sk.JOB), (4, sk.OTHER), (5, sk.JOB)):
        answer(spool, number, job)
    answer(spool, 6, b"L" * 16, sk.DEVICES[2])
    found = asked(spool, 3)
    assert found.jobs == (m.EncryptedJobState(sk.OTHER, b"d4"), m.EncryptedJobState(sk.JOB, b"d5"))
    assert (found.number, found.whole) == (99, True)
    assert asked(spool, 5).jobs == ()
    assert asked(spool, 2).whole and not asked(spool, 1).whole, "before it began to count"
    spool.store(br.JobEnded(sk.JOB, sk.CLOUD.note(m.Close(sk.JOB, "completed"))))
    assert sk.reopened(path).answered == {FIRST: 5}
    assert asked(spool, 3) == found, "it outlives the job"


def test_more_jobs_than_fit_are_told_in_turn_and_of_many_the_latest_are_kept(spool, monkeypatch):
    spool.store(AnswersFrom(FIRST, 0))
    for number in range(1, 6):
        answer(spool, number, bytes((number,)) * 16)
    found = asked(spool, 0, most=2)
    assert [job.encrypted_state for job in found.jobs] == [b"d1", b"d2"] and found.number == 2
    assert [job.encrypted_state for job in asked(spool, 2, most=3).jobs] == [b"d3", b"d4", b"d5"]
    monkeypatch.setattr(spool_module, "ANSWERED_JOBS_KEPT", 3)
    answer(spool, 6, b"L" * 16)
    assert [job.encrypted_state for job in asked(spool, 3).jobs] == [b"d4", b"d5", b"d6"]
    assert asked(spool, 3).whole and not asked(spool, 2).whole
