"""The spool's files: shuffled, checked, swept, and durable together or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from spool_kit import (
    CLOUD,
    OTHER,
    at,
    batch,
    in_order,
    keep,
    manifest,
    names,
    reopened,
    shuffled,
    upload,
)

from edgeveil.errors import ProtocolError
from edgeveil.protocol.proxy_broadcasts import BroadcastDropped, BroadcastPart, KeepBroadcast
from edgeveil.protocol.proxy_rounds import ShuffleRound
from edgeveil.protocol.proxy_uploads import UploadPart
from edgeveil.storage import StorageError
from edgeveil_proxy.spool import Spool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.sqlite"


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
    assert list(reopened(path).batches) == [at()]
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
