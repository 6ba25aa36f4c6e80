"""Split & shuffle on files: what stands where in the batch, and what is left out."""

import hashlib

import pytest

from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.proxy_rounds import ShuffleRound
from edgeveil_proxy import shuffle
from edgeveil_proxy.shuffle import shuffle_round

AT = RoundId(b"J" * 16, 1, 1)
SIZES = (3, 5)
SLOT = sum(SIZES)


def segment(slot, group):
    """What device `slot` sent for a group."""
    return bytes([16 * slot + group]) * SIZES[group]


def reverse(places):
    places.reverse()


def shuffled(
    folder,
    uploads,
    *,
    floor=1,
    keep_order=False,
):
    """The batch of these uploads, whose `shuffle` turns every group round."""
    slots = max((slot for slot, _ in uploads), default=-1) + 1
    content = bytearray(slots * SLOT)
    for slot, groups in uploads:
        data = b"".join(segment(slot, group) for group in groups)
        content[slot * SLOT : slot * SLOT + len(data)] = data
    (folder / "uploads").write_bytes(content)
    task = ShuffleRound(AT, SIZES, SLOT, floor, uploads, keep_order=keep_order)
    return shuffle_round(task, folder / "uploads", folder / "batch", reverse)


def batch(folder, *groups):
    """For each group the devices in the order of the batch."""
    return b"".join(segment(s, g) for g, slots in enumerate(groups) for s in slots)


ALL = ((2, (0, 1)), (0, (0, 1)), (1, (0, 1)))  # in the order in which they came


def test_every_group_is_permuted_alone(tmp_path):
    done = shuffled(tmp_path, ALL)
    assert (tmp_path / "batch").read_bytes() == batch(tmp_path, (1, 0, 2), (1, 0, 2))
    assert done.counts == (3, 3)
    assert done.digest == hashlib.sha256((tmp_path / "batch").read_bytes()).digest()
    assert done.data[0 : len(done.data)] == (tmp_path / "batch").read_bytes()


def test_segments_larger_than_a_block_arrive_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(shuffle, "_BLOCK_BYTES", 4)
    shuffled(tmp_path, ALL)
    assert (tmp_path / "batch").read_bytes() == batch(tmp_path, (1, 0, 2), (1, 0, 2))


def test_uploads_that_are_cut_off_make_no_batch(tmp_path):
    (tmp_path / "uploads").write_bytes(bytes(SLOT + 1))
    task = ShuffleRound(AT, SIZES, SLOT, 1, ((0, (0, 1)), (1, (0, 1))))
    with pytest.raises(OSError, match="cut off"):
        shuffle_round(task, tmp_path / "uploads", tmp_path / "batch", reverse)


@pytest.mark.parametrize("keep_order", [False, True])
def test_groups_that_stay_together_share_one_order(tmp_path, keep_order):
    """And which uploads stand in it is told: the seeds of their masks take the same places."""
    uploads = ((3, (0, 1)), (0, (0, 1)), (2, (0, 1)), (1, (0, 1)))
    turned = []

    def half_turn(places):
        turned.append(list(places))
        places[:] = places[2:] + places[:2]

    content = b"".join(segment(slot, 0) + segment(slot, 1) for slot in range(4))
    (tmp_path / "uploads").write_bytes(content)
    task = ShuffleRound(
        AT, SIZES, SLOT, 1, uploads, keep_order=keep_order, together=frozenset({0, 1})
    )
    done = shuffle_round(task, tmp_path / "uploads", tmp_path / "batch", half_turn)
    order = (3, 0, 2, 1) if keep_order else (2, 1, 3, 0)
    assert (tmp_path / "batch").read_bytes() == batch(tmp_path, order, order)
    assert [uploads[index][0] for index in done.order] == list(order)
    assert len(turned) == (0 if keep_order else 1), "the others follow the first"


def test_uploads_without_those_groups_stand_beside_them(tmp_path):
    """Of three groups the first and the last stay together; a device has all of them or none."""
    sizes, slot_bytes = (2, 3, 4), 9
    uploads = ((0, (1,)), (1, (0, 1, 2)), (2, (1,)), (3, (0, 1, 2)), (4, (0, 1, 2)))
    content = bytearray(5 * slot_bytes)
    for slot, groups in uploads:
        data = b"".join(bytes([16 * slot + group]) * sizes[group] for group in groups)
        content[slot * slot_bytes : slot * slot_bytes + len(data)] = data
    (tmp_path / "uploads").write_bytes(content)
    task = ShuffleRound(AT, sizes, slot_bytes, 3, uploads, together=frozenset({0, 2}))
    done = shuffle_round(task, tmp_path / "uploads", tmp_path / "batch", reverse)
    expected = [(0, (4, 3, 1)), (1, (4, 3, 2, 1, 0)), (2, (4, 3, 1))]
    whole = [bytes([16 * slot + g]) * sizes[g] for g, slots in expected for slot in slots]
    assert (tmp_path / "batch").read_bytes() == b"".join(whole)
    assert done.counts == (3, 5, 3)
    assert done.order == (4, 3, 1)
