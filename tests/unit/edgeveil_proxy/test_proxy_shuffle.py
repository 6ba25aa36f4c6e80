"""Split & shuffle on files: what stands where in the batch, and what is left out."""

import hashlib

import pytest

from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.proxy_rounds import ShuffleRound
from edgeveil_proxy import shuffle
from edgeveil_proxy.shuffle import shuffle_round

AT = RoundId(b"J" * 16, 1, 1)
SIZES = (3, 5, 4)


def segment(slot, group):
    """What device `slot` sent for a group."""
    return bytes([16 * slot + group]) * SIZES[group]


def reverse(places):
    places.reverse()


def shuffled(folder, uploads, sizes, *, floor=1, turn=reverse, **how):
    """The batch of uploads, (slot, groups) each in the order in which they came."""
    slot_bytes = sum(sizes)
    content = bytearray(slot_bytes * len(uploads))
    for slot, groups in uploads:
        data = b"".join(segment(slot, group) for group in groups)
        content[slot * slot_bytes : slot * slot_bytes + len(data)] = data
    (folder / "uploads").write_bytes(content)
    task = ShuffleRound(AT, sizes, slot_bytes, floor, uploads, **how)
    return shuffle_round(task, folder / "uploads", folder / "batch", turn)


def batch(*groups):
    """For each group the devices in the order of the batch."""
    return b"".join(segment(s, g) for g, slots in enumerate(groups) for s in slots)


TWO = SIZES[:2]
ALL = ((2, (0, 1)), (0, (0, 1)), (1, (0, 1)))


@pytest.mark.parametrize("block_bytes", [4, 1 << 20])
def test_every_group_is_permuted_alone(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(shuffle, "_BLOCK_BYTES", block_bytes)
    done = shuffled(tmp_path, ALL, TWO)
    made = (tmp_path / "batch").read_bytes()
    assert made == batch((1, 0, 2), (1, 0, 2)) == done.data[0 : len(done.data)]
    assert done.counts == (3, 3)
    assert done.digest == hashlib.sha256(made).digest()


def test_a_group_below_the_floor_is_left_out(tmp_path):
    done = shuffled(tmp_path, ((0, (0, 1)), (1, (1,)), (2, (0, 1))), TWO, floor=3)
    assert done.counts == (0, 3)
    assert (tmp_path / "batch").read_bytes() == batch((), (2, 1, 0))


def test_uploads_that_are_cut_off_make_no_batch(tmp_path):
    (tmp_path / "uploads").write_bytes(bytes(sum(TWO) + 1))
    task = ShuffleRound(AT, TWO, sum(TWO), 1, ((0, (0, 1)), (1, (0, 1))))
    with pytest.raises(OSError, match="cut off"):
        shuffle_round(task, tmp_path / "uploads", tmp_path / "batch", reverse)


@pytest.mark.parametrize("keep_order", [False, True])
def test_groups_that_stay_together_share_one_order(tmp_path, keep_order):
    """And which uploads stand in it is told: the seeds of their masks take the same places."""
    uploads = tuple((slot, (0, 1)) for slot in (3, 0, 2, 1))
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
