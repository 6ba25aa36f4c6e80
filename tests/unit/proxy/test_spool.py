"""The proxy's spool: what is there after a kill at any effect, and what is truly gone."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fl_core.crypto.keys import SigningKey
from fl_core.crypto.labels import HEADER
from fl_core.errors import EdgeVeilError, ProtocolError
from fl_core.file_data import FileData
from fl_core.protocol.blob import describe
from fl_core.protocol.collection import Held
from fl_core.protocol.envelope import Signer, check
from fl_core.protocol.messages import Batch, Blob, Close, Commit, Exchanged, Group, Manifest
from fl_core.protocol.proxy_tasks import (
    BatchDelivered,
    BatchKept,
    BroadcastDropped,
    BroadcastPart,
    JobEnded,
    KeepBroadcast,
    Kept,
    ProxyMemory,
    RoundDropped,
    Shuffled,
    ShuffleRound,
    UploadKept,
    UploadPart,
    key_of,
)
from fl_core.sqlite_file import StorageError
from proxy.spool import Spool

JOB, OTHER = b"J" * 16, b"K" * 16
CLOUD_KEY = SigningKey.generate()
CLOUD, PROXY = Signer("cloud", CLOUD_KEY), Signer("proxy", SigningKey.generate())
DEVICES = tuple(f"{n:016x}" for n in range(3))


def at(round_: int = 1, attempt: int = 1, job: bytes = JOB) -> Exchanged:
    return Exchanged(job, round_, attempt)


def manifest(kind: str, where: Exchanged, data: bytes) -> Manifest:
    return Manifest(
        kind=kind,  # type: ignore[arg-type]
        at=where,
        sequence=1,
        job_digest=bytes(32),
        phase="train",
        selected=3,
        min_batch=3,
        quorum=3,
        deadline_s=1.0,
        grace_s=1.0,
        groups=(Group("a", 64),),
        stanza_bytes=0,
        package_digest=bytes(32),
        package_bytes=1,
        commitment=bytes(32),
        cloud_key=bytes(32),
        blob=describe(data, 1024),
    )


def put(spool: Spool, header: Manifest | Commit, data: bytes) -> Kept:
    """A broadcast comes and is kept, as the machine has it done."""
    for offset in range(0, len(data), 1024):
        piece = data[offset : offset + 1024]
        spool.store(BroadcastPart(header.blob.digest, offset, piece))
    item = spool.keep(KeepBroadcast(CLOUD.header(header), header))
    spool.store(item)
    return item


def keep(
    spool: Spool, kind: str = "round", where: Exchanged | None = None, data: bytes = b"model"
) -> Kept:
    where = where or at()
    data += bytes((where.round, where.attempt)) + where.job_id + kind.encode()
    return put(spool, manifest(kind, where, data), data)


def keep_commit(spool: Spool, where: Exchanged) -> Kept:
    data = b"h" * 32 + where.round.to_bytes(2, "big")
    return put(spool, Commit(where, 1, describe(data, 1024)), data)


SEGMENT_BYTES = 12_000


def upload(
    spool: Spool, slot: int, where: Exchanged | None = None, data: bytes = b"sealed"
) -> UploadKept:
    """Device `slot` uploads one segment, in two parts."""
    where = where or at()
    data = (data * SEGMENT_BYTES)[:SEGMENT_BYTES]
    offset = slot * SEGMENT_BYTES
    spool.store(UploadPart(where, offset, data[:7000]))
    spool.store(UploadPart(where, offset + 7000, data[7000:]))
    held = Held((0,), hashlib.sha256(data).digest(), slot)
    item = UploadKept(where, DEVICES[slot], held)
    spool.store(item)
    return item


def in_order(_places: list[int]) -> None:
    """No shuffle at all."""


def shuffled(spool: Spool, slots: int = 3, where: Exchanged | None = None) -> Shuffled:
    uploads = tuple((slot, (0,)) for slot in range(slots))
    task = ShuffleRound(where or at(), (SEGMENT_BYTES,), SEGMENT_BYTES, 1, uploads)
    return spool.shuffled(task, in_order)


def batch(spool: Spool, slots: int = 3, where: Exchanged | None = None) -> BatchKept:
    """The round's batch is made and kept."""
    done = shuffled(spool, slots, where)
    header = Batch(where or at(), slots, 0, done.counts, Blob(done.digest, len(done.data), 1024))
    item = BatchKept(header.at, PROXY.header(header), header, done.data)
    spool.store(item)
    return item


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.sqlite"


def reopened(path: Path) -> ProxyMemory:
    """The memory that a new process finds while the killed one never closed its file."""
    spool = Spool(path)
    try:
        return spool.load()
    finally:
        spool.close()


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())


def names(path: Path) -> set[str]:
    """The spool's files, by what they are."""
    return {file.name.split("-")[0] for file in path.with_suffix("").iterdir()}


def kinds(memory: ProxyMemory) -> list[tuple[bytes, str, int]]:
    headers = [item.header for item in memory.kept.values()]
    return [(h.at.job_id, getattr(h, "kind", "commit"), h.at.round) for h in headers]


def test_a_new_spool_is_empty(path: Path) -> None:
    assert reopened(path) == ProxyMemory()


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
    assert (memory.batches, memory.delivered) == ({}, {key_of(at())})
    spool.close()


def test_what_was_signed_is_still_signed_after_the_restart(path: Path) -> None:
    spool = Spool(path)
    keep(spool)
    spool.close()
    (item,) = reopened(path).kept.values()
    check(item.signed, "cloud", CLOUD_KEY.public(), HEADER)


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
    assert [held[JOB, item.device].digest for item in items] == [i.held.digest for i in items]
    spool.close()


def test_a_second_upload_of_a_device_or_batch_of_a_round_changes_nothing(path: Path) -> None:
    spool = Spool(path)
    item = upload(spool, 0)
    spool.store(UploadKept(at(), DEVICES[0], Held((0,), b"o" * 32, 5)))
    assert reopened(path).uploads == [item]
    made = batch(spool, 1)
    other = Batch(at(), 9, 9, made.batch.counts, made.batch.blob)
    spool.store(BatchKept(at(), PROXY.header(other), other, made.data))
    assert reopened(path).batches[key_of(at())].batch == made.batch
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
    assert memory.delivered == {key_of(at())}
    assert kinds(memory) == [(JOB, "round", 1)]  # late devices may still ask for it
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
    assert kinds(memory) == [(JOB, "job", 0), (OTHER, "round", 7), (JOB, "round", 2)]
    assert next(iter(memory.kept.values())).header.at.attempt == 2
    assert (memory.uploads, memory.batches) == ([], {})
    assert len(list(path.with_suffix("").iterdir())) == 3
    keep_commit(spool, at(2))
    assert kinds(reopened(path))[-1] == (JOB, "commit", 2)
    spool.close()


def test_only_the_newest_release_stays_whoevers_it_is(path: Path) -> None:
    spool = Spool(path)
    keep(spool, "release", at(0))
    keep(spool, "release", at(0, job=OTHER))
    assert kinds(reopened(path)) == [(OTHER, "release", 0)]
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
    for _ in range(2):
        spool.store(JobEnded(JOB, notes[JOB]))
    memory = reopened(path)
    assert kinds(memory) == [(JOB, "release", 0)]
    assert (memory.uploads, memory.batches, memory.delivered) == ([], {}, set())
    assert list(memory.ended.items()) == [(OTHER, notes[OTHER]), (JOB, notes[JOB])]
    assert names(path) == {"kept"}
    spool.close()


MARK = b"ciphertext that must not stay "
UNUSED = {
    "batch made": (lambda s: upload(s, 0, data=MARK), lambda s: batch(s, 0)),
    "round dropped": (lambda s: upload(s, 0, data=MARK), lambda s: s.store(RoundDropped(at()))),
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


def test_nothing_on_the_disk_says_in_which_order_a_batch_s_uploads_came(path: Path) -> None:
    """A row keeps who answered, with which digest: its place in the round's file is overwritten."""
    spool = Spool(path)
    for slot in range(3):
        upload(spool, slot)
    batch(spool)
    with sqlite3.connect(path) as db:
        assert {slot for (slot,) in db.execute("SELECT slot FROM uploads")} == {-1}
    assert path.with_name(path.name + "-wal").stat().st_size == 0
    spool.close()


# --- work ------------------------------------------------------------------------------------


def test_a_batch_holds_each_group_s_segments_in_an_order_of_its_own(path: Path) -> None:
    spool, sizes = Spool(path), (40, 24)
    for slot in range(4):
        data = bytes((slot, 0)) * 20 + bytes((slot, 1)) * 12
        spool.store(UploadPart(at(), slot * 64, data))
    turns = iter((1, 2))

    def rotate(places: list[int]) -> None:
        by = next(turns)
        places[:] = places[by:] + places[:by]

    task = ShuffleRound(at(), sizes, 64, 3, tuple((slot, (0, 1)) for slot in range(4)))
    done = spool.shuffled(task, rotate)
    data = done.data[:]
    assert done.counts == (4, 4) and done.digest == hashlib.sha256(data).digest()
    firsts, seconds = data[:160], data[160:]
    assert firsts == b"".join(bytes((slot, 0)) * 20 for slot in (1, 2, 3, 0))
    assert seconds == b"".join(bytes((slot, 1)) * 12 for slot in (2, 3, 0, 1))


def test_a_group_below_the_floor_is_left_out(path: Path) -> None:
    spool = Spool(path)
    for slot in range(3):
        spool.store(UploadPart(at(), slot * 64, bytes((slot,)) * 64))
    held = ((0, (0, 1)), (1, (1,)), (2, (0, 1)))
    done = spool.shuffled(ShuffleRound(at(), (40, 24), 64, 3, held), in_order)
    assert done.counts == (0, 3)
    assert done.data[:] == bytes((0,)) * 24 + bytes((1,)) * 24 + bytes((2,)) * 24


def test_a_broadcast_that_is_not_its_digest_is_not_kept(path: Path) -> None:
    spool, header = Spool(path), manifest("round", at(), bytes(100))
    spool.store(BroadcastPart(header.blob.digest, 0, b"x" * 100))
    with pytest.raises(ProtocolError, match="bad_digest"):
        spool.keep(KeepBroadcast(CLOUD.header(header), header))
    spool.store(BroadcastDropped(header.blob.digest))
    assert names(path) == set()
    assert keep(spool, data=bytes(100)).data[:100] == bytes(100)


def test_dropping_one_under_way_leaves_a_kept_one_of_the_same_bytes(path: Path) -> None:
    spool = Spool(path)
    item = keep(spool)
    spool.store(BroadcastDropped(item.header.blob.digest))
    (found,) = reopened(path).kept.values()
    assert found.data[:] == item.data[:]


# --- faults ----------------------------------------------------------------------------------


def test_what_a_killed_process_left_half_done_is_swept(path: Path) -> None:
    spool = Spool(path)
    keep(spool, where=at(9, job=OTHER))
    spool.store(BroadcastPart(b"b" * 32, 0, b"half a broadcast"))
    spool.store(UploadPart(at(job=OTHER), 0, b"half an upload"))
    for slot in range(3):
        upload(spool, slot)
    shuffled(spool)  # but the batch was not stored
    assert names(path) == {"arriving", "kept", "uploads", "batch"}
    memory = reopened(path)
    assert [kept.held.slot for kept in memory.uploads] == [0, 1, 2]
    files = path.with_suffix("").iterdir()
    assert sorted(f.name.split("-")[0] for f in files) == ["kept", "uploads"]


def test_a_write_that_fails_is_undone_as_a_whole(path: Path) -> None:
    spool = Spool(path)
    upload(spool, 0)
    spool._file.db.execute(
        "CREATE TEMP TRIGGER full BEFORE UPDATE ON uploads BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    with pytest.raises(StorageError, match="full"):
        batch(spool, 1)  # the batch is written first, then the uploads' places are forgotten
    memory = reopened(path)
    assert memory.batches == {} and [u.held.slot for u in memory.uploads] == [0]
    assert names(path) == {"uploads"}
    spool._file.db.execute("DROP TRIGGER full")
    batch(spool, 1)
    assert list(reopened(path).batches) == [key_of(at())]
    spool.close()


def test_several_items_are_durable_together_or_not_at_all(path: Path) -> None:
    spool = Spool(path)
    with pytest.raises(StorageError, match="nothing to write"), spool.together():
        upload(spool, 0)
        raise StorageError("nothing to write")
    assert reopened(path).uploads == []
    with spool.together():
        items = [upload(spool, slot) for slot in range(3)]
        assert sqlite3.connect(path).execute("SELECT count(*) FROM uploads").fetchone() == (0,)
    assert reopened(path).uploads == items
    spool.close()


def test_a_folder_that_cannot_be_written_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "spool").write_bytes(b"a file in the folder's place")
    with pytest.raises(StorageError, match="cannot be used") as caught:
        Spool(tmp_path / "spool.sqlite")
    assert caught.value.where == str(tmp_path / "spool") and caught.value.fix


def test_a_broadcast_s_file_that_is_gone_is_named(path: Path) -> None:
    spool = Spool(path)
    keep(spool)
    spool.close()
    for file in path.with_suffix("").iterdir():
        file.unlink()
    with pytest.raises(StorageError, match="No such file"):
        reopened(path)


def test_a_damaged_file_is_named_with_the_fix(path: Path) -> None:
    path.write_bytes(b"no database, whatever its name says" * 40)
    with pytest.raises(EdgeVeilError, match="cannot be used") as caught:
        Spool(path)
    assert caught.value.where == str(path)
    assert caught.value.fix
