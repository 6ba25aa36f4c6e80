"""A batch on the disk: what was put comes back, nothing stays behind."""

import hashlib
import random

import numpy as np
import pytest
from round_kit import CloudRound

from edgeveil.errors import ProtocolError
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.protocol.cloud_job import BatchPart
from edgeveil.protocol.transfer import describe
from edgeveil_cloud.commit_round import aggregate
from edgeveil_cloud.validate_batch import BatchSpool, validate_batch

DATA = random.Random(3).randbytes(100_000)
BLOB = describe(DATA, 4096)
ROUND = CloudRound()


def parts(data=DATA, size=4096):
    digest = hashlib.sha256(data).digest()
    return [BatchPart(digest, k, data[k : k + size]) for k in range(0, len(data), size)]


def test_parts_in_any_order_and_twice_make_the_batch(tmp_path):
    spool = BatchSpool(tmp_path)
    mixed = random.Random(1).sample(parts() * 2, k=len(parts()) * 2)
    for part in mixed:
        spool.put(part)
    batch = spool.whole(BLOB)
    assert len(batch) == len(DATA)
    assert batch[5000:9000] == DATA[5000:9000]
    assert batch[99_000:200_000] == DATA[99_000:]


def test_nothing_of_a_batch_has_a_name_on_the_disk(tmp_path):
    spool = BatchSpool(tmp_path)
    spool.put(parts()[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spoil", ["missing", "altered", "longer", "another", "nothing"])
def test_what_is_not_the_batch_is_refused(tmp_path, spoil):
    spool, wanted = BatchSpool(tmp_path), parts()
    if spoil == "missing":
        wanted = wanted[:3] + wanted[4:]
    elif spoil == "altered":
        wanted.append(BatchPart(BLOB.digest, 7, b"!"))
    elif spoil == "longer":
        wanted.append(BatchPart(BLOB.digest, len(DATA), b"!"))
    elif spoil == "another":
        wanted = parts(DATA[::-1])
    for part in [] if spoil == "nothing" else wanted:
        spool.put(part)
    with pytest.raises(ProtocolError, match="bad_digest"):
        spool.whole(BLOB)


def test_a_reader_goes_on_while_the_batch_is_dropped(tmp_path):
    spool = BatchSpool(tmp_path)
    for part in parts():
        spool.put(part)
    batch = spool.whole(BLOB)
    spool.drop()
    assert batch[0:10] == DATA[:10]
    with pytest.raises(ProtocolError):
        spool.whole(BLOB)


# --- opened from the disk, whatever is kept in memory -----------------------------------------


def spooled(groups):
    batch, data = ROUND.batch(groups)
    spool = BatchSpool()
    spool.put(BatchPart(batch.blob.digest, 0, data))
    return batch, spool.whole(batch.blob)


@pytest.mark.parametrize("kept_bytes", [0, 50, 100, 1 << 20])
def test_the_result_is_the_same_however_little_is_kept_in_memory(kept_bytes):
    groups = ROUND.honest(5)
    groups[0].insert(2, ROUND.segment(0, ROUND.array(0, 1e30)))  # refused for its norm
    batch, data = spooled(groups)
    whole = ROUND.opened(groups)
    opened = validate_batch(ROUND.context, ROUND.secret, batch, data, kept_bytes=kept_bytes)
    assert (opened.accepted, opened.refused) == (whole.accepted, whole.refused)
    for name, arrays in whole.arrays.items():
        assert all(map(np.array_equal, opened.arrays[name], arrays))
        assert len(opened.arrays[name]) == len(arrays) == 5
    assert np.array_equal(opened.arrays[SOFTMAX][-1], whole.arrays[SOFTMAX][4])
    assert len(opened.arrays[SOFTMAX][1:3]) == 2
    mine, _ = aggregate(ROUND.context, ROUND.state, opened)
    theirs, _ = aggregate(ROUND.context, ROUND.state, whole)
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


def test_of_what_is_not_kept_or_added_up_nothing_stays_in_memory():
    groups = ROUND.honest(5)
    batch, data = spooled(groups)
    room = 2 * ROUND.plan.segments(ROUND.round)[1].byte_count
    opened = validate_batch(ROUND.context, ROUND.secret, batch, data, kept_bytes=room)
    kept = {
        name: [one.found.array is not None for one in arrays.found]
        for name, arrays in opened.arrays.items()
    }
    assert kept == {"head.weight": [False] * 5, SOFTMAX: [True, True, False, False, False]}
