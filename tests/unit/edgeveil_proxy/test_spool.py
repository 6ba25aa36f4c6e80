"""The proxy's spool: what is there after a kill at any effect, and what is truly gone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from spool_kit import (
    CLOUD,
    DEVICES,
    JOB,
    OTHER,
    PROXY,
    at,
    batch,
    keep,
    keep_commit,
    kinds,
    names,
    on_disk,
    reopened,
    upload,
)

from edgeveil.crypto.keys import OpeningKey
from edgeveil.protocol.messages import (
    KNOWS_BUCKETS,
    KNOWS_CHECKS,
    Batch,
    Close,
)
from edgeveil.protocol.proxy import AnswersFrom, DeviceKnows
from edgeveil.protocol.proxy_broadcasts import (
    BroadcastDropped,
    BroadcastPart,
    JobEnded,
    ReleaseReplaced,
)
from edgeveil.protocol.proxy_rounds import (
    BatchDelivered,
    BatchKept,
    HeldUpload,
    RoundDropped,
    RoundUnmasked,
    UploadKept,
    UploadsDropped,
)
from edgeveil.storage import FileData, StorageError
from edgeveil_proxy.spool import ENDED_KEPT, Spool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.sqlite"


def test_a_spool_has_one_name_until_it_is_lost_or_put_back(path: Path) -> None:
    spool = Spool(path)
    name = spool.load().name
    assert len(name) == 16
    assert reopened(path).name == name
    spool.put_back()
    spool.close()
    other = reopened(path).name
    assert len(other) == 16 and other != name
    path.unlink()
    assert reopened(path).name not in (name, other)


def test_a_spool_of_another_version_is_refused(path: Path) -> None:
    """One without a number keeps its rows in the order in which uploads came."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE uploads (device TEXT, slot INTEGER)")
    with pytest.raises(StorageError) as caught:
        Spool(path)
    assert "version 0" in caught.value.what and caught.value.fix


def test_a_spool_of_before_gets_its_name_when_it_is_brought_up(path: Path) -> None:
    spool = Spool(path)
    first = RoundUnmasked(at(), b"first")
    spool.store(first)
    spool.close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE memory; DROP TABLE earlier; PRAGMA user_version = 4;")
    memory = reopened(path)
    assert len(memory.name) == 16
    assert memory.unmasked == {(JOB, 1): first}
    assert reopened(path).name == memory.name


def test_devices_of_an_earlier_version_stay_known(path: Path) -> None:
    spool = Spool(path)
    for number in range(3):
        spool.store(DeviceKnows(str(number) * 16, 0))
    spool.store(DeviceKnows("0" * 16, KNOWS_CHECKS))
    spool.store(DeviceKnows("1" * 16, KNOWS_BUCKETS))
    assert reopened(path).earlier == {"1" * 16: KNOWS_BUCKETS, "2" * 16: 0}
    spool.close()


def test_devices_that_an_earlier_proxy_heard_are_of_before_until_they_say_otherwise(
    path: Path,
) -> None:
    """Uploads with other seeds than a round commits to would be paid for in vain."""
    spool = Spool(path)
    spool.store(AnswersFrom("0" * 16, 1))
    spool.store(DeviceKnows("1" * 16, 0))
    spool.close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("ALTER TABLE earlier DROP COLUMN knows; PRAGMA user_version = 6;")
    assert reopened(path).earlier == {"0" * 16: KNOWS_BUCKETS, "1" * 16: 0}


def test_each_item_is_there_after_a_kill_right_behind_it(path: Path) -> None:
    spool = Spool(path)
    first = keep(spool)
    (found,) = reopened(path).kept.values()
    assert (found.signed, found.header, found.data[:]) == (
        first.signed,
        first.header,
        first.data[:],
    )
    for slot in range(3):
        item = upload(spool, slot)
        assert item in reopened(path).uploads
    made = batch(spool)
    (kept,) = reopened(path).batches.values()
    assert kept.batch == made.batch and FileData.digest(kept.data) == made.batch.blob.digest
    spool.store(BatchDelivered(at()))
    memory = reopened(path)
    assert (memory.batches, memory.delivered) == ({}, {at()})
    spool.close()


def test_uploads_have_no_place_once_they_are_in_a_batch_but_are_still_known(path: Path) -> None:
    spool = Spool(path)
    keep(spool)
    items = [upload(spool, slot) for slot in range(3)]
    upload(spool, 0, at(job=OTHER))
    batch(spool)
    held = {(u.at.job_id, u.device): u.held for u in reopened(path).uploads}
    assert {key: h.slot for key, h in held.items()} == {
        **{(JOB, device): -1 for device in DEVICES},
        (OTHER, DEVICES[0]): 0,
    }
    assert {held[JOB, item.device].digest for item in items} == {b""}
    spool.close()


def test_a_second_upload_of_a_device_or_batch_of_a_round_changes_nothing(path: Path) -> None:
    spool = Spool(path)
    item = upload(spool, 0)
    spool.store(UploadKept(at(), DEVICES[0], HeldUpload((0,), b"o" * 32, 5)))
    assert reopened(path).uploads == [item]
    made = batch(spool, 1)
    other = Batch(at(), 9, 9, made.batch.counts, made.batch.blob)
    spool.store(BatchKept(at(), PROXY.header(other), other, made.data))
    assert reopened(path).batches[at()].batch == made.batch
    spool.close()


def test_a_dropped_round_stays_closed_and_keeps_no_ciphertext(path: Path) -> None:
    spool = Spool(path)
    keep(spool)
    upload(spool, 0)
    batch(spool, 1)
    upload(spool, 1)
    spool.store(RoundDropped(at()))
    memory = reopened(path)
    assert (memory.uploads, memory.batches) == ([], {})
    assert memory.delivered == {at()}
    assert kinds(memory) == [(JOB, "round", 1)]  # late devices may still ask for it
    assert names(path) == {"kept"}
    spool.close()


def test_of_a_round_that_was_short_it_is_known_who_answered(path: Path) -> None:
    spool = Spool(path)
    keep(spool)
    upload(spool, 0)
    spool.store(UploadsDropped(at()))
    assert [(u.device, u.held.slot) for u in reopened(path).uploads] == [(DEVICES[0], -1)]
    assert names(path) == {"kept"}
    spool.close()


def test_of_a_job_the_announcement_the_newest_round_and_its_commit_stay(path: Path) -> None:
    spool = Spool(path)
    keep(spool, "job", at(0))
    keep(spool, "job", at(0, 2))
    keep(spool, where=at(1))
    upload(spool, 0)
    batch(spool, 1)
    keep_commit(spool, at(1))
    keep(spool, where=at(7, job=OTHER))
    keep(spool, where=at(2))
    memory = reopened(path)
    record, others = (JOB, "commit", 1), (OTHER, "round", 7)
    assert kinds(memory) == [(JOB, "job", 0), record, others, (JOB, "round", 2)]
    assert next(iter(memory.kept.values())).header.at.attempt == 2
    assert (memory.uploads, memory.batches) == ([], {})
    assert len(list(path.with_suffix("").iterdir())) == 4
    keep_commit(spool, at(2))
    newest = [(JOB, "round", 2), (JOB, "commit", 2)]
    assert kinds(reopened(path)) == [(JOB, "job", 0), others, *newest]
    assert len(list(path.with_suffix("").iterdir())) == 4
    spool.close()


def test_a_record_that_comes_after_the_next_round_leaves_that_round_its_key(path: Path) -> None:
    spool = Spool(path)
    opening = OpeningKey.generate()
    keep(spool, where=at(1))
    kept = keep(spool, where=at(2))
    spool.store(replace(kept, key=opening))
    keep_commit(spool, at(1))
    loaded = reopened(path).round_key(at(2))
    assert loaded is not None and loaded.to_bytes() == opening.to_bytes()
    keep_commit(spool, at(2))
    assert reopened(path).round_key(at(2)) is None
    spool.close()


def test_releases_of_two_data_sets_stay_until_one_is_replaced(path: Path) -> None:
    spool = Spool(path)
    first = keep(spool, "release", at(0, 5), data_set=b"A" * 16)
    keep(spool, "release", at(0, 7, job=OTHER), data_set=b"B" * 16)
    memory = reopened(path)
    assert kinds(memory) == [(JOB, "release", 0), (OTHER, "release", 0)]
    tags = [kept.header.data_set for kept in memory.kept.values()]  # type: ignore[union-attr]
    assert tags == [b"A" * 16, b"B" * 16]
    spool.store(ReleaseReplaced(first.header.blob.digest))
    keep(spool, "release", at(0, 9), data_set=b"A" * 16)
    assert kinds(reopened(path)) == [(OTHER, "release", 0), (JOB, "release", 0)]
    assert len(list(path.with_suffix("").iterdir())) == 2  # nothing of what was replaced
    spool.close()


def test_an_ended_job_leaves_its_release_and_its_end(path: Path) -> None:
    spool = Spool(path)
    notes = {job: CLOUD.note(Close(job, "completed")) for job in (OTHER, JOB)}
    spool.store(JobEnded(OTHER, notes[OTHER]))
    keep(spool, "job", at(0))
    keep(spool)
    upload(spool, 0)
    batch(spool, 1)
    keep(spool, "release", at(0, 9))
    keep_commit(spool, at())
    for _ in range(2):
        spool.store(JobEnded(JOB, notes[JOB]))
    memory = reopened(path)
    assert kinds(memory) == [(JOB, "release", 0), (JOB, "commit", 1)]
    assert (memory.uploads, memory.batches, memory.delivered) == ([], {}, set())
    assert list(memory.ended.items()) == [(OTHER, notes[OTHER]), (JOB, notes[JOB])]
    assert names(path) == {"kept"}
    for number in range(ENDED_KEPT):  # with the end goes the last record
        spool.store(JobEnded(bytes([number]) * 16, notes[JOB]))
    memory = reopened(path)
    assert kinds(memory) == [(JOB, "release", 0)] and JOB not in memory.ended
    assert len(list(path.with_suffix("").iterdir())) == 1
    spool.close()


MARK = b"ciphertext that must not stay "
UNUSED = {
    "batch made": (lambda s: upload(s, 0, data=MARK), lambda s: batch(s, 0)),
    "round dropped": (lambda s: upload(s, 0, data=MARK), lambda s: s.store(RoundDropped(at()))),
    "round short": (lambda s: upload(s, 0, data=MARK), lambda s: s.store(UploadsDropped(at()))),
    "delivered": (
        lambda s: (upload(s, 0, data=MARK), batch(s, 1)),
        lambda s: s.store(BatchDelivered(at())),
    ),
    "batch dropped": (
        lambda s: (upload(s, 0, data=MARK), batch(s, 1)),
        lambda s: s.store(RoundDropped(at())),
    ),
    "uploads overtaken": (lambda s: upload(s, 0, data=MARK), lambda s: keep(s, where=at(2))),
    "broadcast overtaken": (lambda s: keep(s, data=MARK), lambda s: keep(s, where=at(2))),
    "job ended": (
        lambda s: (upload(s, 0, data=MARK), batch(s, 1)),
        lambda s: s.store(JobEnded(JOB, CLOUD.note(Close(JOB, "failed")))),
    ),
    "broadcast given up": (
        lambda s: s.store(BroadcastPart(b"b" * 32, 0, MARK)),
        lambda s: s.store(BroadcastDropped(b"b" * 32)),
    ),
}


@pytest.mark.parametrize(("before", "then"), UNUSED.values(), ids=UNUSED)
def test_dropped_ciphertext_is_gone_from_the_disk(
    before: Callable[[Spool], object], then: Callable[[Spool], object], path: Path
) -> None:
    spool = Spool(path)
    before(spool)
    assert MARK in on_disk(path)
    then(spool)
    assert MARK not in on_disk(path)
    spool.close()


def test_nothing_on_the_disk_says_whose_a_batch_s_segments_are(path: Path) -> None:
    """Of a single group an upload's digest names its segment, its place the order of arrival."""
    spool = Spool(path)
    items = [upload(spool, slot, data=b"sealed %d" % slot) for slot in (2, 0, 1)]
    assert items[0].held.digest in on_disk(path)
    batch(spool)
    with sqlite3.connect(path) as db:
        rows = list(db.execute("SELECT device, digest, slot FROM uploads"))
        with pytest.raises(sqlite3.OperationalError):
            db.execute("SELECT rowid FROM uploads")
    assert rows == [(device, b"", -1) for device in DEVICES]
    disk = on_disk(path)
    assert not [item for item in items if item.held.digest in disk]
    assert path.with_name(path.name + "-wal").stat().st_size == 0
    spool.close()


def test_a_second_choice_for_an_exchange_ends_the_work_and_the_first_one_stays(path: Path) -> None:
    spool, first = Spool(path), RoundUnmasked(at(), b"first")
    for _ in range(2):  # the same again, after a crash
        spool.store(first)
    for second in (RoundUnmasked(at(), b"second"), RoundUnmasked(at(attempt=2), b"first")):
        with pytest.raises(StorageError, match="UNIQUE constraint failed: unmasked"):
            spool.store(second)
    with pytest.raises(StorageError), spool.together():
        spool.store(RoundUnmasked(at(2), b"another"))
        spool.store(RoundUnmasked(at(), b"second"))
    assert reopened(path).unmasked == {(JOB, 1): first}
    spool.close()
