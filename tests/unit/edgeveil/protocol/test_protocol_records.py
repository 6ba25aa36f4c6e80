"""A round's record in pieces: each mark in its own, who asks for which, and what the proxy does."""

import hashlib

import msgspec
import protocol_kit as kit
import pytest
from device_bench import MODEL, PACKAGE, device, done, fire, receive, work_on
from protocol_kit import at
from proxy_bench import FLEET, cloud_says, proxy, says, to_devices

from edgeveil.errors import ProtocolError
from edgeveil.protocol import messages as m
from edgeveil.protocol import transfer
from edgeveil.protocol.device_round import ComputeAnswer, LateRecord, OutboxDrop, SealedAnswer

PART_BYTES = transfer.part_bytes(kit.PACKET_BYTES)
MARKS = [hashlib.sha256(b"mark %d" % number).digest() for number in range(200)]
MINE, ABSENT = MARKS[7], hashlib.sha256(b"nobody's").digest()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(transfer, "PIECE_MARKS", 20)


def record(marks=MARKS, floor=3, where=None, size=PART_BYTES):
    return transfer.describe_record(where or at(), marks, size, floor)


def piece_bytes(commit: m.Commit, data: bytes, piece: m.Blob) -> bytes:
    start = sum(one.size_bytes for one in commit.pieces[: commit.pieces.index(piece)])
    return data[start : start + piece.size_bytes]


# --- the cut ----------------------------------------------------------------------------------


def test_every_mark_stands_in_its_own_piece_and_in_no_other():
    commit, data = record()
    assert len(commit.pieces) == 8 and commit.accepted == len(MARKS)
    assert data == b"".join(sorted(MARKS))
    cut = [piece_bytes(commit, data, piece) for piece in commit.pieces]
    assert [transfer.describe(piece, PART_BYTES) for piece in cut] == list(commit.pieces)
    assert b"".join(cut) == data
    for mark in (*MARKS, ABSENT):
        found = [n for n, piece in enumerate(cut) if mark in marks_of(piece)]
        here = commit.pieces.index(transfer.piece_for(commit, [mark]))
        assert found == ([] if mark is ABSENT else [here])


def marks_of(piece: bytes) -> list[bytes]:
    return [piece[i : i + 32] for i in range(0, len(piece), 32)]


@pytest.mark.parametrize(("floor", "pieces"), [(1, 8), (30, 4), (60, 2), (150, 1)])
def test_no_piece_has_fewer_marks_than_the_floor(floor, pieces):
    commit, _ = record(floor=floor)
    assert len(commit.pieces) == pieces
    assert min(piece.size_bytes for piece in commit.pieces) >= 32 * floor


def test_a_record_without_a_floor_has_no_pieces_and_one_of_few_marks_is_its_own():
    assert transfer.describe_record(at(), MARKS, PART_BYTES)[0].pieces == ()
    few, _ = record(MARKS[:30])
    assert few.pieces == (few.blob,)


@pytest.mark.parametrize("these", [(0, 1, 2), (0, 1), (0,) * 8])
def test_pieces_that_do_not_make_up_the_record_are_refused(these):
    commit, _ = record()
    pieces = tuple(commit.pieces[number] for number in these)
    wrong = msgspec.structs.replace(commit, pieces=pieces)
    with pytest.raises(ProtocolError, match="malformed"):
        transfer.check_record(wrong)
    assert kit.refused(cloud_says(proxy(), kit.offer(wrong))) == ["malformed"]
    assert kit.refused(receive(answered(), kit.offer(wrong))) == ["malformed"]


# --- at a device ------------------------------------------------------------------------------


def answered(*marks: bytes, cover: bool = False):
    """A device whose upload, of one segment for each mark, the proxy holds."""
    machine = device()
    if cover:
        receive(machine, kit.PROXY.note(m.Cover(5.0)))
    marks = marks or (MINE,)
    groups = tuple(range(len(marks)))
    sizes = kit.SEALED_BYTES[: len(marks)]
    answer = SealedAnswer(groups, sizes, bytes(sum(sizes)), marks, at_once=True)
    work_on(machine, kit.manifest(MODEL))
    done(machine, ComputeAnswer(kit.manifest(MODEL), PACKAGE), answer)
    if cover:
        fire(machine, "resend")
    upload = machine.memory.uploads[kit.JOB].upload
    receive(machine, kit.PROXY.note(m.Ack(upload.blob.digest, "held")))
    return machine


def came(machine, piece: m.Blob, data: bytes):
    return [effect for one in transfer.parts(piece, data) for effect in receive(machine, one)]


@pytest.mark.parametrize("mark", [MINE, ABSENT])
def test_a_device_asks_at_once_for_its_piece_and_is_told_by_it(mark):
    machine = answered(mark)
    commit, data = record()
    piece = transfer.piece_for(commit, [mark])
    (asked,) = kit.messages(receive(machine, kit.offer(commit)), m.Need)
    assert asked == m.Need(piece.digest, tuple(range(piece.parts)))
    out = came(machine, piece, piece_bytes(commit, data, piece))
    outcome = "counted" if mark is MINE else "missing"
    assert kit.stored(out) == [OutboxDrop(at(), outcome)]
    assert kit.reports(out)["counted"]["counted"] == int(mark is MINE)
    assert machine.fetches.under_way == {}


def test_a_piece_of_a_neighbour_or_with_a_changed_mark_tells_nothing():
    machine = answered()
    commit, data = record()
    receive(machine, kit.offer(commit))
    piece = transfer.piece_for(commit, [MINE])
    other = commit.pieces[commit.pieces.index(piece) - 1]
    assert came(machine, other, piece_bytes(commit, data, other)) == []
    mine = piece_bytes(commit, data, piece)
    for wrong in (mine.replace(MINE, ABSENT), data[-len(mine) :]):
        lie = msgspec.structs.replace(piece, digest=piece.digest)
        assert kit.refused(came(machine, lie, wrong)) == ["bad_digest"]
    assert machine.memory.uploads
    assert kit.stored(came(machine, piece, mine)) == [OutboxDrop(at(), "counted")]


def test_of_several_segments_a_device_asks_for_the_whole():
    marks = sorted(MARKS)[::80]
    machine = answered(*marks)
    commit, data = record()
    (asked,) = kit.messages(receive(machine, kit.offer(commit)), m.Need)
    assert asked.blob == commit.blob.digest
    out = [e for part in kit.parts_of(commit, data) for e in receive(machine, part)]
    assert kit.reports(out)["counted"]["counted"] == len(marks) == 3


def test_the_last_record_of_a_job_is_taken_after_its_end():
    machine = answered()
    commit, data = record()
    receive(machine, kit.offer(commit))
    receive(machine, kit.CLOUD.note(m.Close(kit.JOB, "completed")))
    piece = transfer.piece_for(commit, [MINE])
    out = came(machine, piece, piece_bytes(commit, data, piece))
    assert kit.stored(out) == [LateRecord(at(), "counted")]


class EarlierCommit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """As devices of before read it."""

    at: m.ExchangeId
    accepted: m.Count
    blob: m.Blob


def test_a_device_of_before_reads_the_whole_record():
    commit, data = record()
    read = msgspec.msgpack.decode(kit.offer(commit).header.payload, type=EarlierCommit)
    assert read == EarlierCommit(commit.at, len(MARKS), transfer.describe(data, PART_BYTES))
    machine = proxy()
    brought(machine, commit, data)
    asked = m.Need(read.blob.digest, tuple(range(read.blob.parts)))
    told = kit.messages(says(machine, FLEET[0], asked), m.BlobPart)
    assert b"".join(part.data for part in told) == data


# --- at the proxy -----------------------------------------------------------------------------


def brought(machine, commit, data):
    """What devices hear of it."""
    out = cloud_says(machine, kit.offer(commit))
    return to_devices(
        out + [e for part in kit.parts_of(commit, data) for e in cloud_says(machine, part)]
    )


def test_the_last_record_stays_with_the_job_s_end_for_who_asks():
    machine = proxy(ended_kept=2)
    commit, data = record()
    brought(machine, commit, data)
    cloud_says(machine, kit.CLOUD.note(m.Close(kit.JOB, "completed")))
    hello = FLEET[0].signer.note(m.Hello(FLEET[0].id, knows=3))
    assert kit.messages(says(machine, FLEET[0], hello), m.Offer) == []
    asked = m.Need(commit.pieces[0].digest, (0,))
    assert kit.messages(says(machine, FLEET[0], asked), m.BlobPart)
    for number in range(2):
        cloud_says(machine, kit.CLOUD.note(m.Close(bytes([number]) * 16, "completed")))
    assert machine.memory.kept == {} and kit.JOB not in machine.memory.ended
    assert kit.refused(says(machine, FLEET[1], asked)) == ["unknown_blob"]
