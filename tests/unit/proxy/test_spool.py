"""The proxy's spool: what is there after a kill at any effect, and what is truly gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fl_core.crypto.keys import SigningKey
from fl_core.crypto.labels import HEADER
from fl_core.errors import EdgeVeilError
from fl_core.protocol.blob import describe
from fl_core.protocol.collection import Held
from fl_core.protocol.envelope import Signer, check
from fl_core.protocol.messages import Batch, Close, Commit, Exchanged, Group, Manifest
from fl_core.protocol.proxy_tasks import (
    BatchDelivered,
    BatchKept,
    JobEnded,
    Kept,
    ProxyMemory,
    RoundDropped,
    UploadKept,
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


def kept(kind: str = "round", where: Exchanged | None = None, data: bytes = b"model") -> Kept:
    where = where or at()
    data += bytes((where.round, where.attempt)) + where.job_id + kind.encode()
    header = Manifest(
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
    return Kept(CLOUD.header(header), header, data)


def commit(where: Exchanged) -> Kept:
    data = b"h" * 32 + where.round.to_bytes(2, "big")
    header = Commit(where, 1, describe(data, 1024))
    return Kept(CLOUD.header(header), header, data)


def upload(device: str, where: Exchanged | None = None, data: bytes = b"sealed") -> UploadKept:
    return UploadKept(where or at(), device, Held((0,), b"d" * 32, data))


def batch(where: Exchanged | None = None, data: bytes = b"shuffled") -> BatchKept:
    where = where or at()
    header = Batch(where, 3, 0, (3,), describe(data, 1024))
    return BatchKept(where, PROXY.header(header), header, data)


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
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


def kinds(memory: ProxyMemory) -> list[tuple[bytes, str, int]]:
    headers = [item.header for item in memory.kept.values()]
    return [(h.at.job_id, getattr(h, "kind", "commit"), h.at.round) for h in headers]


def test_a_new_spool_is_empty(path: Path) -> None:
    assert reopened(path) == ProxyMemory()


def test_each_item_is_there_after_a_kill_right_behind_it(path: Path) -> None:
    spool = Spool(path)
    first = kept()
    spool.store(first)
    assert reopened(path).kept == {first.header.blob.digest: first}
    for device in DEVICES:
        spool.store(upload(device))
        assert upload(device) in reopened(path).uploads
    spool.store(batch())
    assert reopened(path).batches == {key_of(at()): batch()}
    spool.store(BatchDelivered(at()))
    memory = reopened(path)
    assert (memory.batches, memory.delivered) == ({}, {key_of(at())})
    spool.close()


def test_what_was_signed_is_still_signed_after_the_restart(path: Path) -> None:
    spool = Spool(path)
    spool.store(kept())
    spool.close()
    (item,) = reopened(path).kept.values()
    check(item.signed, "cloud", CLOUD_KEY.public(), HEADER)


def test_uploads_are_empty_once_they_are_in_a_batch_but_still_known(path: Path) -> None:
    spool = Spool(path)
    spool.store(kept())
    for device in DEVICES:
        spool.store(upload(device))
    spool.store(upload(DEVICES[0], at(job=OTHER)))
    spool.store(batch())
    held = {(u.at.job_id, u.device): u.held.data for u in reopened(path).uploads}
    assert held == {(JOB, d): b"" for d in DEVICES} | {(OTHER, DEVICES[0]): b"sealed"}
    assert {u.held.digest for u in reopened(path).uploads} == {b"d" * 32}
    spool.close()


def test_a_second_upload_of_a_device_or_batch_of_a_round_changes_nothing(path: Path) -> None:
    spool = Spool(path)
    spool.store(upload(DEVICES[0]))
    spool.store(upload(DEVICES[0], data=b"other"))
    assert [u.held.data for u in reopened(path).uploads] == [b"sealed"]
    spool.store(batch())
    spool.store(batch(data=b"other"))
    assert reopened(path).batches[key_of(at())].data == b"shuffled"
    spool.close()


def test_a_dropped_round_stays_closed_and_keeps_no_ciphertext(path: Path) -> None:
    spool = Spool(path)
    for item in (kept(), upload(DEVICES[0]), batch(), RoundDropped(at())):
        spool.store(item)
    memory = reopened(path)
    assert (memory.uploads, memory.batches) == ([], {})
    assert memory.delivered == {key_of(at())}
    assert kinds(memory) == [(JOB, "round", 1)]  # late devices may still ask for it
    spool.close()


def test_of_a_job_the_announcement_the_newest_round_and_its_commit_stay(path: Path) -> None:
    spool = Spool(path)
    for item in (
        kept("job", at(0)),
        kept("job", at(0, 2)),
        kept(where=at(1)),
        upload(DEVICES[0]),
        batch(),
        commit(at(1)),
        kept(where=at(7, job=OTHER)),
        kept(where=at(2)),
    ):
        spool.store(item)
    memory = reopened(path)
    assert kinds(memory) == [(JOB, "job", 0), (OTHER, "round", 7), (JOB, "round", 2)]
    assert next(iter(memory.kept.values())).header.at.attempt == 2
    assert (memory.uploads, memory.batches) == ([], {})
    spool.store(commit(at(2)))
    assert kinds(reopened(path))[-1] == (JOB, "commit", 2)
    spool.close()


def test_only_the_newest_release_stays_whoevers_it_is(path: Path) -> None:
    spool = Spool(path)
    spool.store(kept("release", at(0)))
    spool.store(kept("release", at(0, job=OTHER)))
    assert kinds(reopened(path)) == [(OTHER, "release", 0)]
    spool.close()


def test_an_ended_job_leaves_its_release_and_its_end(path: Path) -> None:
    spool = Spool(path)
    notes = {job: CLOUD.note(Close(job, "completed")) for job in (OTHER, JOB)}
    spool.store(JobEnded(OTHER, notes[OTHER]))
    for item in (
        kept("job", at(0)),
        kept(),
        upload(DEVICES[0]),
        batch(),
        kept("release", at(0, 9)),
        JobEnded(JOB, notes[JOB]),
        JobEnded(JOB, notes[JOB]),
    ):
        spool.store(item)
    memory = reopened(path)
    assert kinds(memory) == [(JOB, "release", 0)]
    assert (memory.uploads, memory.batches, memory.delivered) == ([], {}, set())
    assert list(memory.ended.items()) == [(OTHER, notes[OTHER]), (JOB, notes[JOB])]
    spool.close()


MARK = b"ciphertext that must not stay"


@pytest.mark.parametrize(
    ("before", "item"),
    [
        ([upload(DEVICES[0], data=MARK * 400)], batch()),
        ([upload(DEVICES[0], data=MARK * 400)], RoundDropped(at())),
        ([batch(data=MARK * 400)], BatchDelivered(at())),
        ([batch(data=MARK)], RoundDropped(at())),
        ([upload(DEVICES[0], data=MARK)], kept(where=at(2))),
        ([kept(data=MARK * 400)], kept(where=at(2))),
        ([batch(data=MARK * 400)], JobEnded(JOB, CLOUD.note(Close(JOB, "failed")))),
    ],
)
def test_dropped_ciphertext_is_gone_from_the_disk(
    before: list[Any], item: object, path: Path
) -> None:
    spool = Spool(path)
    for earlier in before:
        spool.store(earlier)
    assert MARK in on_disk(path)
    spool.store(item)
    assert MARK not in on_disk(path)
    spool.close()


def test_a_write_that_fails_is_undone_as_a_whole(path: Path) -> None:
    spool = Spool(path)
    spool.store(upload(DEVICES[0]))
    spool._file.db.execute(
        "CREATE TEMP TRIGGER full BEFORE UPDATE ON uploads BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    with pytest.raises(StorageError, match="full"):
        spool.store(batch())  # the batch is written first, then the uploads are emptied
    assert reopened(path).batches == {}
    spool._file.db.execute("DROP TRIGGER full")
    spool.store(batch())
    assert list(reopened(path).batches) == [key_of(at())]
    spool.close()


def test_a_damaged_file_is_named_with_the_fix(path: Path) -> None:
    path.write_bytes(b"no database, whatever its name says" * 40)
    with pytest.raises(EdgeVeilError, match="cannot be used") as caught:
        Spool(path)
    assert caught.value.where == str(path)
    assert caught.value.fix
