"""The spool's files: shuffled, checked, swept, and durable together or not at all."""

import sqlite3

import pytest
import spool_kit as sk

from edgeveil.errors import ProtocolError
from edgeveil.protocol.proxy_broadcasts import BroadcastDropped, BroadcastPart, KeepBroadcast
from edgeveil.protocol.proxy_rounds import ShuffleRound
from edgeveil.protocol.proxy_uploads import UploadPart
from edgeveil.storage import StorageError
from edgeveil_proxy.spool import Spool


def test_a_group_below_the_floor_is_left_out(spool):
    for slot in range(3):
        spool.store(UploadPart(sk.at(), slot * 64, bytes((slot,)) * 64))
    held = ((0, (0, 1)), (1, (1,)), (2, (0, 1)))
    done = spool.shuffled(ShuffleRound(sk.at(), (40, 24), 64, 3, held), sk.in_order)
    assert done.counts == (0, 3)
    assert done.data[:] == bytes((0,)) * 24 + bytes((1,)) * 24 + bytes((2,)) * 24


def test_a_broadcast_that_is_not_its_digest_is_not_kept(path):
    spool, header = Spool(path), sk.manifest("round", sk.at(), bytes(100))
    spool.store(BroadcastPart(header.blob.digest, 0, b"x" * 100))
    with pytest.raises(ProtocolError, match="bad_digest"):
        spool.keep(KeepBroadcast(sk.CLOUD.header(header), header))
    spool.store(BroadcastDropped(header.blob.digest))
    assert sk.names(path) == set()
    assert sk.keep(spool, data=bytes(100)).data[:100] == bytes(100)


def test_dropping_one_under_way_leaves_a_kept_one_of_the_same_bytes(spool, path):
    item = sk.keep(spool)
    spool.store(BroadcastDropped(item.header.blob.digest))
    (found,) = sk.reopened(path).kept.values()
    assert found.data[:] == item.data[:]


def test_what_a_killed_process_left_half_done_is_swept(spool, path):
    sk.keep(spool, where=sk.at(9, job=sk.OTHER))
    spool.store(BroadcastPart(b"b" * 32, 0, b"half a broadcast"))
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


def test_several_items_are_durable_together_or_not_at_all(spool, path):
    with pytest.raises(StorageError, match="nothing to write"), spool.together():
        sk.upload(spool, 0)
        raise StorageError("nothing to write")
    assert sk.reopened(path).uploads == []
    with spool.together():
        items = [sk.upload(spool, slot) for slot in range(3)]
        assert sqlite3.connect(path).execute("SELECT count(*) FROM uploads").fetchone() == (0,)
    assert sk.reopened(path).uploads == items
