"""Split & shuffle on files: what stands where in a batch, also in one that begins to go early."""

import hashlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spool_kit import PROXY, at, names, reopened

from edgeveil.crypto.keys import MaskSeed
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol.messages import Batch, Blob
from edgeveil.protocol.proxy_uploads import UploadPart
from edgeveil.storage import StorageError
from edgeveil_proxy import shuffle
from edgeveil_proxy.shuffle import MaskedStream, PiecedData, shuffle_round
from edgeveil_proxy.spool import Spool

SIZES = (30, 50, 20)  # of the groups
SLOT = sum(SIZES)
MASKED = frozenset({0, 2})
ALL = (0, 1, 2)
COUNT = 9


def segment(slot, group):
    return hashlib.shake_128(b"%d %d" % (slot, group)).digest(SIZES[group])


def content(slot, groups=ALL):
    return b"".join(segment(slot, group) for group in groups)


def written(folder, uploads, slot_bytes=SLOT):
    """The round's file: these groups in these slots."""
    file = bytearray(slot_bytes * (max(uploads) + 1))
    for slot, groups in uploads.items():
        data = content(slot, groups)
        file[slot * slot_bytes : slot * slot_bytes + len(data)] = data
    path = folder / "uploads"
    path.write_bytes(file)
    return path


def backwards(places):
    places.reverse()


TWO, BOTH = SIZES[:2], (0, 1)
THREE = ((2, BOTH), (0, BOTH), (1, BOTH))


def shuffled(folder, uploads, sizes, *, floor=1, turn=backwards, **how):
    """The batch of uploads, (slot, groups) each in the order in which they came."""
    file = written(folder, dict(uploads), sum(sizes))
    task = pr.ShuffleRound(at(), sizes, sum(sizes), floor, uploads, **how)
    return shuffle_round(task, file, folder / "batch", turn)


def batch(*groups):
    return b"".join(segment(s, g) for g, slots in enumerate(groups) for s in slots)


@pytest.mark.parametrize("block_bytes", [4, 1 << 20])
def test_every_group_is_permuted_alone(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(shuffle, "_BLOCK_BYTES", block_bytes)
    done = shuffled(tmp_path, THREE, TWO)
    made = (tmp_path / "batch").read_bytes()
    assert made == batch((1, 0, 2), (1, 0, 2)) == done.data[0 : len(done.data)]
    assert done.counts == (3, 3)
    assert done.digest == hashlib.sha256(made).digest()


def test_a_group_below_the_floor_is_left_out(tmp_path):
    done = shuffled(tmp_path, ((0, BOTH), (1, (1,)), (2, BOTH)), TWO, floor=3)
    assert done.counts == (0, 3)
    assert (tmp_path / "batch").read_bytes() == batch((), (2, 1, 0))


def test_uploads_that_are_cut_off_make_no_batch(tmp_path):
    (tmp_path / "uploads").write_bytes(bytes(sum(TWO) + 1))
    task = pr.ShuffleRound(at(), TWO, sum(TWO), 1, ((0, BOTH), (1, BOTH)))
    with pytest.raises(OSError, match="cut off"):
        shuffle_round(task, tmp_path / "uploads", tmp_path / "batch", backwards)


@pytest.mark.parametrize("keep_order", [False, True])
def test_groups_that_stay_together_share_one_order(tmp_path, keep_order):
    """And which uploads stand in it is told: the seeds of their masks take the same places."""
    uploads = tuple((slot, BOTH) for slot in (3, 0, 2, 1))
    turned = []

    def half_turn(places):
        turned.append(list(places))
        places[:] = places[2:] + places[:2]

    how = {"keep_order": keep_order, "together": frozenset({0, 1}), "turn": half_turn}
    done = shuffled(tmp_path, uploads, TWO, **how)
    order = (3, 0, 2, 1) if keep_order else (2, 1, 3, 0)
    assert (tmp_path / "batch").read_bytes() == batch(order, order)
    assert [uploads[index][0] for index in done.order] == list(order)
    assert len(turned) == (0 if keep_order else 1), "the others follow the first"


def test_uploads_without_those_groups_stand_beside_them(tmp_path):
    """Of three groups the first and the last stay together; a device has all of them or none."""
    uploads = ((0, (1,)), (1, (0, 1, 2)), (2, (1,)), (3, (0, 1, 2)), (4, (0, 1, 2)))
    done = shuffled(tmp_path, uploads, SIZES, floor=3, together=frozenset({0, 2}))
    assert (tmp_path / "batch").read_bytes() == batch((4, 3, 1), (4, 3, 2, 1, 0), (4, 3, 1))
    assert (done.counts, done.order) == ((3, 5, 3), (4, 3, 1))


def lot(uploads, first, last, **how):
    """Uploads from `first` up to `last`, by their place among all; (slot, groups) each."""
    chosen = [(i, *uploads[i]) for i in range(first, last) if MASKED.intersection(uploads[i][1])]
    return pr.StreamUploads(at(), SIZES, SLOT, tuple(chosen), MASKED, **how)


def closing(uploads, floor=1, **how):
    return pr.ShuffleRound(
        at(), SIZES, SLOT, floor, tuple(uploads), together=MASKED, streamed=True, **how
    )


def masked_of(slots):
    return b"".join(segment(slot, group) for slot in slots for group in sorted(MASKED))


def whole(data):
    return data[0 : len(data)]


ONLY = tuple(sorted(MASKED))


def started(folder, slots, groups=ONLY):
    uploads = [(slot, groups) for slot in slots]
    return MaskedStream(written(folder, dict(uploads))), uploads


def test_each_lot_has_an_order_of_its_own_behind_those_before(tmp_path):
    slots = [3, 0, 1, 4, 2, 5]
    stream, uploads = started(tmp_path, slots)
    late = lot(uploads, 0, 2)
    first = stream.add(lot(uploads, 0, 2), backwards)
    assert whole(first.data) == masked_of([0, 3])
    second = stream.add(lot(uploads, 2, 4), backwards)
    assert second.name == first.name
    assert len(first.data) == 100, "what was told does not change"
    assert whole(second.data) == masked_of([0, 3, 4, 1])
    done = stream.finish(closing(uploads), tmp_path / "batch", backwards)
    assert whole(done.data) == masked_of([0, 3, 4, 1, 5, 2])
    assert [slots[index] for index in done.order] == [0, 3, 4, 1, 5, 2]
    assert done.digest == hashlib.sha256(whole(done.data)).digest()
    assert (done.counts, done.stream) == ((6, 0, 6), first.name)
    assert not (tmp_path / "batch").exists(), "nothing was copied"
    stream.add(late, backwards)  # after the batch it changes nothing
    assert whole(done.data) == masked_of([0, 3, 4, 1, 5, 2])


def test_other_groups_wait_are_permuted_alone_and_stand_apart(tmp_path):
    """No order and no place says which of them came with which masked segment."""
    slots = [1, 0, 2, 3]
    stream, uploads = started(tmp_path, slots, ALL)
    so_far = stream.add(lot(uploads, 0, 3), backwards)
    assert not [slot for slot in slots if segment(slot, 1) in whole(so_far.data)]
    with pytest.raises(OSError, match="No such file"):  # made twice it is the same
        stream.finish(closing(uploads), tmp_path / "gone" / "batch", backwards)
    done = stream.finish(closing(uploads), tmp_path / "batch", backwards)
    others = b"".join(segment(slot, 1) for slot in reversed(slots))
    assert whole(done.data) == masked_of([2, 0, 1, 3]) + others
    assert (done.counts, done.pieces) == ((4, 4, 4), ()), "a file of its own: the uploads can go"
    assert (tmp_path / "batch").read_bytes() == whole(done.data)
    assert done.digest == hashlib.sha256(whole(done.data)).digest()


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 10)), max_size=12), st.data())
def test_pieces_read_as_the_bytes_that_they_stand_for(tmp_path_factory, pieces, data):
    path = tmp_path_factory.mktemp("pieces") / "file"
    file = Random(5).randbytes(100)
    path.write_bytes(file)
    expected = b"".join(file[place : place + size] for place, size in pieces)
    cut = data.draw(st.integers(0, len(pieces)))
    read = PiecedData(path, pieces[:cut])
    read.add(pieces[cut:])
    start = data.draw(st.integers(0, len(expected) + 3))
    stop = data.draw(st.integers(0, len(expected) + 3))
    assert len(read) == len(expected)
    assert read[start:stop] == expected[start:stop]
    assert PiecedData(path, read.pieces)[0 : len(expected)] == expected


def held(spool, slot, groups=ONLY):
    spool.store(UploadPart(at(), slot * SLOT, content(slot, groups)))
    item = pr.HeldUpload(groups, hashlib.sha256(b"%d" % slot).digest(), slot, MaskSeed(bytes(32)))
    spool.store(pr.UploadKept(at(), f"{slot:016x}", item))


def streamed(path, groups=ONLY):
    """A round of nine, of which five went on before it closed; its batch is kept."""
    spool = Spool(path)
    for slot in range(COUNT):
        held(spool, slot, groups)
    uploads = [(slot, groups) for slot in range(COUNT)]
    spool.streamed(lot(uploads, 0, 5), backwards)
    done = spool.shuffled(closing(uploads), backwards)
    blob = Blob(done.digest, len(done.data), 64)
    header = Batch(at(), COUNT, 0, done.counts, blob, done.stream)
    seeds = tuple(MaskSeed(bytes([index]) * 32) for index in done.order)
    kept = pr.BatchKept(at(), PROXY.header(header), header, done.data, seeds, done.pieces)
    spool.store(kept)
    return spool, kept


@pytest.mark.parametrize("groups", [ONLY, ALL], ids=["masked alone", "with others"])
def test_a_streamed_batch_is_there_after_a_restart(path, groups):
    spool, kept = streamed(path, groups)
    assert whole(kept.data).startswith(masked_of([4, 3, 2, 1, 0, 8, 7, 6, 5]))
    again = reopened(path).batches[at()]
    assert again.batch == kept.batch
    assert again.seeds == kept.seeds
    assert whole(again.data) == whole(kept.data)
    for upload in reopened(path).uploads:
        assert (upload.held.slot, upload.held.digest, upload.held.seed) == (-1, b"", None)
    spool.close()


def test_a_short_round_s_stream_goes_with_its_uploads(spool, path):
    """What is dealt while it goes comes to nothing, and leaves no file behind."""
    for slot in range(3):
        held(spool, slot)
    uploads = [(slot, ONLY) for slot in range(3)]
    name = spool.streamed(lot(uploads, 0, 2), backwards).name
    spool.store(pr.UploadsDropped(at()))
    assert names(path) == set()
    with pytest.raises(StorageError):
        spool.streamed(lot(uploads, 2, 3), backwards)
    for slot in range(3):
        held(spool, slot)
    assert spool.streamed(lot(uploads, 0, 2), backwards).name != name
