"""A round that is not for everybody: stanzas first, and the stream for who finds its own."""

import hashlib

import msgspec
import protocol_kit as kit
import pytest
from device_bench import MODEL, PACKAGE, device, done, receive, snapshot, work_on
from protocol_kit import at
from proxy_bench import FLEET, from_cloud, hello, part_by_part, proxy, send

from edgeveil.crypto.buckets import bucket_of
from edgeveil.crypto.keys import OpeningKey
from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import sealed as sl
from edgeveil.protocol import transfer
from edgeveil.protocol.device import FindStanza, StanzaLook
from edgeveil.protocol.device_round import ComputeAnswer, LateRecord, OutboxDrop, SealedAnswer
from edgeveil.protocol.proxy import DeviceKnows
from edgeveil.protocol.transfer import describe, parts
from edgeveil.protocol.transfer import part as part_of

STANZAS = bytes(range(200)) * 3
STREAM = b"stream" * 3 * kit.PART_BYTES
DATA = STANZAS + STREAM
HEADER = sl.in_pieces(kit.manifest(DATA, stanza_bytes=len(STANZAS)), DATA)
FRONT, REST = HEADER.pieces


def needs(effects):
    return kit.messages(effects, m.Need)


def receive_all(machine, sent):
    return [effect for one in sent for effect in receive(machine, one)]


def look(machine, buckets=None):
    """The offer and the buckets came; where the device looks."""
    receive(machine, kit.offer(BUCKETED))
    (task,) = kit.tasks(receive_all(machine, buckets or BUCKET_PARTS))
    return task


def test_under_cover_everybody_fetches_the_stream_unlooked():
    machine = device()
    receive(machine, kit.PROXY.note(m.Cover(5.0)))
    receive(machine, kit.offer(HEADER))
    out = receive_all(machine, parts(FRONT, STANZAS))
    assert kit.tasks(out) == [] and needs(out)
    receive_all(machine, parts(REST, STREAM))
    assert machine.state is dr.DeviceState.OPENING
    out = done(machine, dr.OpenPackage(HEADER, DATA), dr.OpenedPackage(None))
    assert [type(task) for task in kit.tasks(out)] == [dr.SealDummies]


def test_pieces_or_buckets_that_are_not_the_blob_are_refused():
    machine = device()
    before, wrong = snapshot(machine), msgspec.structs.replace
    pieces = [(FRONT,), (REST, FRONT), (FRONT, FRONT)]
    headers = [kit.manifest(DATA, stanza_bytes=len(STANZAS), pieces=one) for one in pieces]
    headers += [wrong(BUCKETED, buckets=count) for count in (2, 2 * LEVEL, 65536)]
    for header in (*headers, wrong(BUCKETED, pieces=())):
        assert receive(machine, kit.CLOUD.offer(header)) == [fx.Refuse("malformed")]
        assert snapshot(machine) == before
    holder = proxy()
    for header in headers[:2]:
        assert kit.refused(from_cloud(holder, kit.offer(header))) == ["malformed"]
    assert holder.broadcasts.cached_bytes == 0


KEYS = [OpeningKey.generate() for _ in range(100)]


def bucketed(kind, where, package):
    cloud_key = OpeningKey.generate().public().to_bytes()
    terms = sl.Terms(kind, where, where.round, b"d" * 32, kind, cloud_key=cloud_key)
    keys = [key.public() for key in KEYS]
    return sl.seal_broadcast(terms, package, keys, kit.PART_BYTES, bucketed=True)


BUCKETED, BUCKETS, TAG = bucketed("round", kit.at(), b"model" * 2000)
LEVEL = BUCKETED.buckets
BUCKET_PARTS = list(parts(BUCKETED.pieces[0], BUCKETS))
REST_PARTS = list(parts(BUCKETED.pieces[1], BUCKETS[BUCKETED.stanza_bytes :]))


def own_bucket(key):
    return bucket_of(key.public(), LEVEL)


def test_a_device_looks_in_its_bucket_and_fetches_the_stream_alone():
    machine, own = device(sealing=[KEYS[0].public()]), own_bucket(KEYS[0])
    task, stream = look(machine), BUCKETED.pieces[1]
    assert task == FindStanza(BUCKETED, BUCKET_PARTS[own].data)
    assert sl.is_listed(KEYS[0], BUCKETED, task.stanzas)
    out = done(machine, task, StanzaLook(True))
    assert needs(out) == [m.Need(stream.digest, tuple(range(stream.parts)))]
    (opened,) = kit.tasks(receive_all(machine, REST_PARTS))
    assert sl.open_broadcast(KEYS[0], BUCKETED, opened.blob) == (b"model" * 2000, TAG)
    assert sl.open_broadcast(OpeningKey.generate(), BUCKETED, opened.blob) is None


def test_with_a_new_key_it_looks_in_the_buckets_of_both_and_in_all_if_it_knows_none():
    new = OpeningKey.generate()
    while own_bucket(new) == own_bucket(KEYS[0]):
        new = OpeningKey.generate()
    stanzas = look(device(sealing=[new.public(), KEYS[0].public()])).stanzas
    assert len(stanzas) == 2 * len(BUCKET_PARTS[0].data)
    assert sl.is_listed(KEYS[0], BUCKETED, stanzas)
    assert not sl.is_listed(new, BUCKETED, stanzas)
    stanzas = look(device()).stanzas
    assert len(stanzas) == BUCKETED.stanza_bytes
    assert all(sl.is_listed(key, BUCKETED, stanzas) for key in KEYS)
    assert sl.open_broadcast(KEYS[1], BUCKETED, BUCKETS) == (b"model" * 2000, TAG)


def test_a_spoilt_bucket_only_hides_the_round():
    machine, own = device(sealing=[KEYS[0].public()]), own_bucket(KEYS[0])
    zeros = bytes(len(BUCKET_PARTS[own].data))
    spoilt = part_of(describe(zeros, len(zeros)), zeros, 0)
    task = look(machine, [m.BlobPart(BUCKETED.pieces[0].digest, own, spoilt.crc, zeros)])
    assert not sl.is_listed(KEYS[0], BUCKETED, task.stanzas)
    assert done(machine, task, StanzaLook(False)) == []
    assert machine.state is dr.DeviceState.IDLE


def test_what_is_for_all_goes_to_all_but_the_stanzas():
    machine = proxy(packet_bytes=1 << 16)
    header, data, _ = bucketed("release", kit.at(0), b"graph" * 4000)
    out = from_cloud(machine, kit.offer(header))
    out += [e for part in kit.parts_of(header, data) for e in from_cloud(machine, part)]
    sends = kit.of(out, fx.Send)
    buckets = [e for e in sends if isinstance(e.to, fx.BucketAddress)]
    assert [(e.to.level, e.to.index, e.message.index) for e in buckets] == [
        (LEVEL, index, index) for index in range(LEVEL)
    ]
    told = [e.message for e in sends if isinstance(e.to, fx.AllDevices)]
    assert told == [kit.offer(header), *parts(header.pieces[1], data[header.stanza_bytes :])]


@pytest.mark.parametrize("answered", [-1, 7])
def test_who_knew_checks_of_masks_once_does_not_know_less_again(answered):
    """It would hold up each secure job else."""
    machine, who = proxy(), FLEET[0]
    for number, knows in enumerate([m.KNOWS_CHECKS, 2, m.KNOWS_CHECKS, 2]):
        hello = who.signer.note(m.Hello(who.id, answered=answered, knows=knows))
        out = send(machine, who, hello, 20.0 * number)
        assert rosters(out) == []
        assert not [one for one in kit.stored(out) if isinstance(one, DeviceKnows)]
        assert kit.refused(out) == ([] if knows == m.KNOWS_CHECKS else ["earlier_version"])


def rosters(effects):
    return [one for one in kit.headers(effects) if isinstance(one, m.Roster)]


LONG = STANZAS + b"stream" * 3000
LONGER = sl.in_pieces(kit.manifest(LONG, stanza_bytes=len(STANZAS)), LONG)
PUSHED = list(parts(LONGER.pieces[0], STANZAS))
PULLED = list(parts(LONGER.pieces[1], LONG[len(STANZAS) :]))


def test_the_stanzas_go_to_all_and_the_stream_to_who_asks():
    machine, (stanzas, stream) = proxy(), LONGER.pieces
    assert part_by_part(machine, LONGER, LONG) == [kit.offer(LONGER), *PUSHED]
    whole = kit.parts_of(LONGER, LONG)  # what a device of an earlier version wants
    for blob, sent in ((stream, PULLED[:2]), (stanzas, PUSHED[:1]), (LONGER.blob, whole[:1])):
        need = m.Need(blob.digest, tuple(range(len(sent))))
        assert kit.messages(send(machine, FLEET[0], need), m.BlobPart) == sent


PART_BYTES = transfer.part_bytes(kit.PACKET_BYTES)
MARKS = [hashlib.sha256(b"mark %d" % number).digest() for number in range(200)]
MINE, ABSENT = MARKS[7], hashlib.sha256(b"nobody's").digest()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(transfer, "PIECE_MARKS", 20)


def record(floor=3):
    return transfer.describe_record(at(), MARKS, PART_BYTES, floor)


def piece_bytes(commit, data, piece):
    start = sum(one.size_bytes for one in commit.pieces[: commit.pieces.index(piece)])
    return data[start : start + piece.size_bytes]


def test_every_mark_stands_in_its_own_piece_of_no_fewer_marks_than_the_floor_and_in_no_other():
    for floor, pieces in ((1, 8), (60, 2), (150, 1)):
        found = record(floor=floor)[0].pieces
        assert len(found) == pieces and min(one.size_bytes for one in found) >= 32 * floor
    commit, data = record()
    assert len(commit.pieces) == 8 and commit.accepted == len(MARKS)
    assert data == b"".join(sorted(MARKS))
    cut = [piece_bytes(commit, data, piece) for piece in commit.pieces]
    assert [transfer.describe(piece, PART_BYTES) for piece in cut] == list(commit.pieces)
    assert b"".join(cut) == data
    for mark in (*MARKS, ABSENT):
        found = [n for n, piece in enumerate(cut) if piece.find(mark) % 32 == 0]
        here = commit.pieces.index(transfer.piece_for(commit, [mark]))
        assert found == ([] if mark is ABSENT else [here])


def test_pieces_that_do_not_make_up_the_record_are_refused():
    commit, _ = record()
    for these in ((0, 1), (0,) * 8):
        pieces = tuple(commit.pieces[number] for number in these)
        wrong = msgspec.structs.replace(commit, pieces=pieces)
        assert kit.refused(from_cloud(proxy(), kit.offer(wrong))) == ["malformed"]
        assert kit.refused(receive(answered(), kit.offer(wrong))) == ["malformed"]


def answered():
    """A device whose upload of one segment the proxy holds."""
    machine, header = device(), kit.manifest(MODEL)
    size = kit.SEALED_BYTES[0]
    work_on(machine, header)
    answer = SealedAnswer((0,), (size,), bytes(size), (MINE,), at_once=True)
    done(machine, ComputeAnswer(header, PACKAGE), answer)
    upload = machine.memory.uploads[kit.JOB].upload
    receive(machine, kit.PROXY.note(m.Ack(upload.blob.digest, "held")))
    return machine


def recorded():
    """The record is offered: (machine, record, its bytes, the device's own piece, that's bytes)."""
    machine, (commit, data) = answered(), record()
    receive(machine, kit.offer(commit))
    piece = transfer.piece_for(commit, [MINE])
    return machine, commit, data, piece, piece_bytes(commit, data, piece)


def test_a_piece_of_a_neighbour_or_with_a_changed_mark_tells_nothing():
    machine, commit, data, piece, mine = recorded()
    other = commit.pieces[commit.pieces.index(piece) - 1]
    assert receive_all(machine, parts(other, piece_bytes(commit, data, other))) == []
    for wrong in (mine.replace(MINE, ABSENT), data[-len(mine) :]):
        assert kit.refused(receive_all(machine, parts(piece, wrong))) == ["bad_digest"]
    assert machine.memory.uploads
    assert kit.stored(receive_all(machine, parts(piece, mine))) == [OutboxDrop(at(), "counted")]


def test_the_last_record_of_a_job_is_taken_after_its_end():
    machine, _, _, piece, mine = recorded()
    receive(machine, kit.CLOUD.note(m.Close(kit.JOB, "completed")))
    assert kit.stored(receive_all(machine, parts(piece, mine))) == [LateRecord(at(), "counted")]


def test_the_last_record_stays_with_the_job_s_end_for_who_asks():
    machine, (commit, data) = proxy(ended_kept=2), record()
    part_by_part(machine, commit, data)
    from_cloud(machine, kit.CLOUD.note(m.Close(kit.JOB, "completed")))
    assert kit.messages(hello(machine, FLEET[0]), m.Offer) == []
    asked = m.Need(commit.pieces[0].digest, (0,))
    assert kit.messages(send(machine, FLEET[0], asked), m.BlobPart)
    for number in range(2):
        from_cloud(machine, kit.CLOUD.note(m.Close(bytes([number]) * 16, "completed")))
    assert machine.memory.kept == {} and kit.JOB not in machine.memory.ended
    assert kit.refused(send(machine, FLEET[1], asked)) == ["unknown_blob"]
