"""A round that is not for everybody: stanzas first, and the stream for who finds its own."""

import hashlib

import msgspec
import protocol_kit as kit
import pytest
from device_bench import MODEL, PACKAGE, device, done, fire, receive, snapshot, work_on
from protocol_kit import at
from proxy_bench import FLEET, cloud_says, hello, part_by_part, proxy, says

from edgeveil.crypto.buckets import bucket_of
from edgeveil.crypto.keys import OpeningKey
from edgeveil.errors import ProtocolError
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


def looked(machine, header=HEADER):
    """The offer and the stanzas came."""
    receive(machine, kit.offer(header))
    out = [effect for part in parts(FRONT, STANZAS) for effect in receive(machine, part)]
    assert kit.tasks(out) == [FindStanza(header, STANZAS)]


def came(machine, pieces=None):
    """All parts of the stream, or these."""
    chosen = list(parts(REST, STREAM))
    given = chosen if pieces is None else [chosen[index] for index in pieces]
    return [effect for part in given for effect in receive(machine, part)]


def test_a_stream_that_is_pushed_before_the_look_is_not_asked_for():
    machine = device()
    receive(machine, kit.offer(HEADER))
    assert kit.tasks(came(machine)) == []
    looked(machine)
    out = done(machine, FindStanza(HEADER, STANZAS), StanzaLook(True))
    assert (needs(out), kit.tasks(out)) == ([], [dr.OpenPackage(HEADER, DATA)])


def test_under_cover_everybody_fetches_the_stream_unlooked():
    machine = device()
    receive(machine, kit.PROXY.note(m.Cover(5.0)))
    receive(machine, kit.offer(HEADER))
    out = [effect for part in parts(FRONT, STANZAS) for effect in receive(machine, part)]
    assert kit.tasks(out) == []
    assert needs(out)
    came(machine)
    assert machine.state is dr.DeviceState.OPENING
    out = done(machine, dr.OpenPackage(HEADER, DATA), dr.OpenedPackage(None))
    assert [type(task) for task in kit.tasks(out)] == [dr.SealDummies]


def test_a_look_that_a_newer_round_overtook_is_dropped():
    machine = device()
    looked(machine)
    newer = kit.manifest(b"x" * 3000, kit.at(2))
    receive(machine, kit.offer(newer))
    for found in (True, False):
        assert done(machine, FindStanza(HEADER, STANZAS), StanzaLook(found)) == []
    assert machine.at == kit.at(2)
    assert machine.state is dr.DeviceState.FETCHING


def test_a_broken_stream_is_refused_and_fetched_again():
    machine = device()
    looked(machine)
    done(machine, FindStanza(HEADER, STANZAS), StanzaLook(True))
    spoilt = describe(STREAM, kit.PART_BYTES)
    wrong = list(parts(spoilt, STREAM[:-1] + b"!"))
    out = [effect for part in wrong for effect in receive(machine, part)]
    assert kit.refused(out) == ["bad_digest"]
    assert kit.tasks(came(machine)) == [dr.OpenPackage(HEADER, DATA)]


@pytest.mark.parametrize("pieces", [(FRONT,), (REST, FRONT), (FRONT, FRONT)])
def test_pieces_that_are_not_the_blob_are_refused(pieces):
    machine = device()
    before = snapshot(machine)
    wrong = kit.manifest(DATA, stanza_bytes=len(STANZAS), pieces=pieces)
    assert receive(machine, kit.CLOUD.offer(wrong)) == [fx.Refuse("malformed")]
    assert snapshot(machine) == before


KEYS = [OpeningKey.generate() for _ in range(100)]
BUCKETED, BUCKETS, TAG = sl.seal_broadcast(
    sl.Terms(
        "round",
        kit.at(),
        1,
        b"d" * 32,
        "train",
        cloud_key=OpeningKey.generate().public().to_bytes(),
    ),
    b"model" * 2000,
    [key.public() for key in KEYS],
    kit.PART_BYTES,
    bucketed=True,
)
LEVEL = BUCKETED.buckets
BUCKET_PARTS = list(parts(BUCKETED.pieces[0], BUCKETS))
REST_PARTS = list(parts(BUCKETED.pieces[1], BUCKETS[BUCKETED.stanza_bytes :]))


def own_bucket(key, level=LEVEL):
    return bucket_of(key.public(), level)


def test_a_device_looks_in_its_bucket_and_fetches_the_stream_alone():
    machine, own = device(sealing=[KEYS[0].public()]), own_bucket(KEYS[0])
    receive(machine, kit.offer(BUCKETED))
    out = [effect for part in BUCKET_PARTS for effect in receive(machine, part)]
    (look,) = kit.tasks(out)
    assert look == FindStanza(BUCKETED, BUCKET_PARTS[own].data)
    assert sl.is_listed(KEYS[0], BUCKETED, look.stanzas)
    out = done(machine, look, StanzaLook(True))
    assert needs(out) == [m.Need(BUCKETED.pieces[1].digest, tuple(range(BUCKETED.pieces[1].parts)))]
    (opened,) = kit.tasks([e for part in REST_PARTS for e in receive(machine, part)])
    assert sl.open_broadcast(KEYS[0], BUCKETED, opened.blob) == (b"model" * 2000, TAG)
    assert sl.open_broadcast(OpeningKey.generate(), BUCKETED, opened.blob) is None


def test_with_a_new_key_it_looks_in_the_buckets_of_both():
    new = OpeningKey.generate()
    while own_bucket(new) == own_bucket(KEYS[0]):
        new = OpeningKey.generate()
    machine = device(sealing=[new.public(), KEYS[0].public()])
    receive(machine, kit.offer(BUCKETED))
    out = [effect for part in BUCKET_PARTS for effect in receive(machine, part)]
    (look,) = kit.tasks(out)
    assert len(look.stanzas) == 2 * len(BUCKET_PARTS[0].data)
    assert sl.is_listed(KEYS[0], BUCKETED, look.stanzas)
    assert not sl.is_listed(new, BUCKETED, look.stanzas)


def test_who_does_not_know_its_bucket_looks_in_all():
    machine = device()
    receive(machine, kit.offer(BUCKETED))
    (look,) = kit.tasks([effect for part in BUCKET_PARTS for effect in receive(machine, part)])
    assert len(look.stanzas) == BUCKETED.stanza_bytes
    assert all(sl.is_listed(key, BUCKETED, look.stanzas) for key in KEYS)
    assert sl.open_broadcast(KEYS[1], BUCKETED, BUCKETS) == (b"model" * 2000, TAG)


def test_a_spoilt_bucket_only_hides_the_round():
    machine, own = device(sealing=[KEYS[0].public()]), own_bucket(KEYS[0])
    receive(machine, kit.offer(BUCKETED))
    other = describe(bytes(len(BUCKET_PARTS[own].data)), len(BUCKET_PARTS[own].data))
    spoilt = part_of(other, bytes(other.size_bytes), 0)
    spoilt = m.BlobPart(BUCKETED.pieces[0].digest, own, spoilt.crc, spoilt.data)
    (look,) = kit.tasks(receive(machine, spoilt))
    assert not sl.is_listed(KEYS[0], BUCKETED, look.stanzas)
    assert done(machine, look, StanzaLook(False)) == []
    assert machine.state is dr.DeviceState.IDLE


@pytest.mark.parametrize("buckets", [2, 16, 65536])
def test_buckets_that_are_not_the_parts_are_refused(buckets):
    machine = device()
    before = snapshot(machine)
    wrong = msgspec.structs.replace(BUCKETED, buckets=buckets)
    if buckets == LEVEL:
        wrong = msgspec.structs.replace(wrong, pieces=())
    assert receive(machine, kit.CLOUD.offer(wrong)) == [fx.Refuse("malformed")]
    assert snapshot(machine) == before


@pytest.mark.parametrize("kind", ["job", "release"])
def test_what_is_for_all_goes_to_all_but_the_stanzas(kind):
    machine = proxy(packet_bytes=1 << 16)
    header, data, _ = sl.seal_broadcast(
        sl.Terms(kind, kit.at(0), 0, b"d" * 32, kind),
        b"graph" * 4000,
        [key.public() for key in KEYS],
        kit.PART_BYTES,
        bucketed=True,
    )
    out = said(machine, header, data)
    buckets = [e for e in out if isinstance(e.to, fx.BucketAddress)]
    assert [(e.to.level, e.to.index, e.message.index) for e in buckets] == [
        (LEVEL, index, index) for index in range(LEVEL)
    ]
    told = [e.message for e in out if isinstance(e.to, fx.AllDevices)]
    assert told == [kit.offer(header), *parts(header.pieces[1], data[header.stanza_bytes :])]


def said(machine, header, data):
    """What the proxy sends to devices, and to whom, once it has a broadcast."""
    out = cloud_says(machine, kit.offer(header))
    out += [e for part in kit.parts_of(header, data) for e in cloud_says(machine, part)]
    towards = (fx.AllDevices, fx.BucketAddress)
    return [e for e in out if isinstance(e, fx.Send) and isinstance(e.to, towards)]


def test_the_roster_says_what_every_device_knows():
    machine = proxy()
    old, new = FLEET[0], FLEET[1]
    (first,) = rosters(cloud_says(machine, kit.CLOUD.note(m.Here(0.0))))
    assert first.knows == m.KNOWS_CHECKS
    out = says(machine, old, old.signer.note(m.Hello(old.id)))
    assert [one.knows for one in rosters(out)] == [0]
    assert DeviceKnows(old.id, 0) in kit.stored(out)
    assert rosters(says(machine, new, new.signer.note(m.Hello(new.id, knows=m.KNOWS_CHECKS)))) == []
    out = says(machine, old, old.signer.note(m.Hello(old.id, knows=m.KNOWS_BUCKETS)))
    assert [one.knows for one in rosters(out)] == [m.KNOWS_RECORDS]
    assert DeviceKnows(old.id, m.KNOWS_BUCKETS) in kit.stored(out)
    out = says(machine, old, old.signer.note(m.Hello(old.id, knows=m.KNOWS_CHECKS)))
    assert [one.knows for one in rosters(out)] == [m.KNOWS_CHECKS]
    assert DeviceKnows(old.id, m.KNOWS_CHECKS) in kit.stored(out)


@pytest.mark.parametrize("answered", [-1, 0, 7])
def test_who_knew_checks_of_masks_once_does_not_know_less_again(answered):
    """Whatever it says of the answers that it counts: it would hold up each secure job else."""
    machine, who = proxy(), FLEET[0]
    for number, knows in enumerate([m.KNOWS_CHECKS, 2, m.KNOWS_CHECKS, 2]):
        hello = who.signer.note(m.Hello(who.id, answered=answered, knows=knows))
        out = says(machine, who, hello, 20.0 * number)
        assert rosters(out) == []
        assert not [one for one in kit.stored(out) if isinstance(one, DeviceKnows)]
        assert kit.refused(out) == ([] if knows == m.KNOWS_CHECKS else ["earlier_version"])


def rosters(effects):
    headers = [m.decode_header(one.header) for one in kit.messages(effects, m.Offer)]
    return [one for one in headers if isinstance(one, m.Roster)]


LONG = STANZAS + b"stream" * 3000
LONGER = sl.in_pieces(kit.manifest(LONG, stanza_bytes=len(STANZAS)), LONG)
PUSHED = list(parts(LONGER.pieces[0], STANZAS))
PULLED = list(parts(LONGER.pieces[1], LONG[len(STANZAS) :]))


def test_the_stanzas_go_to_all_and_the_stream_to_who_asks():
    machine = proxy()
    assert part_by_part(machine, LONGER, LONG) == [kit.offer(LONGER), *PUSHED]
    asked = m.Need(LONGER.pieces[1].digest, (0, 2))
    assert kit.messages(says(machine, FLEET[0], asked), m.BlobPart) == [PULLED[0], PULLED[2]]
    late = m.Need(LONGER.pieces[0].digest, (0,))
    assert kit.messages(says(machine, FLEET[1], late), m.BlobPart) == [PUSHED[0]]
    old = m.Need(LONGER.blob.digest, (0,))  # a device of an earlier version wants it whole
    assert kit.messages(says(machine, FLEET[2], old), m.BlobPart) == kit.parts_of(LONGER, LONG)[:1]


@pytest.mark.parametrize("pieces", [(LONGER.pieces[0],), LONGER.pieces[::-1]])
def test_the_proxy_keeps_no_broadcast_whose_pieces_are_not_its_own(pieces):
    machine = proxy()
    wrong = kit.manifest(LONG, stanza_bytes=len(STANZAS), pieces=pieces)
    assert kit.refused(cloud_says(machine, kit.offer(wrong))) == ["malformed"]
    assert machine.broadcasts.cached_bytes == 0


PART_BYTES = transfer.part_bytes(kit.PACKET_BYTES)
MARKS = [hashlib.sha256(b"mark %d" % number).digest() for number in range(200)]
MINE, ABSENT = MARKS[7], hashlib.sha256(b"nobody's").digest()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(transfer, "PIECE_MARKS", 20)


def record(marks=MARKS, floor=3, where=None, size=PART_BYTES):
    return transfer.describe_record(where or at(), marks, size, floor)


def piece_bytes(commit, data, piece):
    start = sum(one.size_bytes for one in commit.pieces[: commit.pieces.index(piece)])
    return data[start : start + piece.size_bytes]


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


def marks_of(piece):
    return [piece[i : i + 32] for i in range(0, len(piece), 32)]


@pytest.mark.parametrize(("floor", "pieces"), [(1, 8), (30, 4), (60, 2), (150, 1)])
def test_no_piece_has_fewer_marks_than_the_floor(floor, pieces):
    commit, _ = record(floor=floor)
    assert len(commit.pieces) == pieces
    assert min(piece.size_bytes for piece in commit.pieces) >= 32 * floor


@pytest.mark.parametrize("these", [(0, 1, 2), (0, 1), (0,) * 8])
def test_pieces_that_do_not_make_up_the_record_are_refused(these):
    commit, _ = record()
    pieces = tuple(commit.pieces[number] for number in these)
    wrong = msgspec.structs.replace(commit, pieces=pieces)
    with pytest.raises(ProtocolError, match="malformed"):
        transfer.check_record(wrong)
    assert kit.refused(cloud_says(proxy(), kit.offer(wrong))) == ["malformed"]
    assert kit.refused(receive(answered(), kit.offer(wrong))) == ["malformed"]


def answered(*marks, cover=False):
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


def came_of_records(machine, piece, data):
    return [effect for one in transfer.parts(piece, data) for effect in receive(machine, one)]


def test_a_piece_of_a_neighbour_or_with_a_changed_mark_tells_nothing():
    machine = answered()
    commit, data = record()
    receive(machine, kit.offer(commit))
    piece = transfer.piece_for(commit, [MINE])
    other = commit.pieces[commit.pieces.index(piece) - 1]
    assert came_of_records(machine, other, piece_bytes(commit, data, other)) == []
    mine = piece_bytes(commit, data, piece)
    for wrong in (mine.replace(MINE, ABSENT), data[-len(mine) :]):
        lie = msgspec.structs.replace(piece, digest=piece.digest)
        assert kit.refused(came_of_records(machine, lie, wrong)) == ["bad_digest"]
    assert machine.memory.uploads
    assert kit.stored(came_of_records(machine, piece, mine)) == [OutboxDrop(at(), "counted")]


def test_the_last_record_of_a_job_is_taken_after_its_end():
    machine = answered()
    commit, data = record()
    receive(machine, kit.offer(commit))
    receive(machine, kit.CLOUD.note(m.Close(kit.JOB, "completed")))
    piece = transfer.piece_for(commit, [MINE])
    out = came_of_records(machine, piece, piece_bytes(commit, data, piece))
    assert kit.stored(out) == [LateRecord(at(), "counted")]


def test_the_last_record_stays_with_the_job_s_end_for_who_asks():
    machine = proxy(ended_kept=2)
    commit, data = record()
    part_by_part(machine, commit, data)
    cloud_says(machine, kit.CLOUD.note(m.Close(kit.JOB, "completed")))
    assert kit.messages(hello(machine, FLEET[0]), m.Offer) == []
    asked = m.Need(commit.pieces[0].digest, (0,))
    assert kit.messages(says(machine, FLEET[0], asked), m.BlobPart)
    for number in range(2):
        cloud_says(machine, kit.CLOUD.note(m.Close(bytes([number]) * 16, "completed")))
    assert machine.memory.kept == {} and kit.JOB not in machine.memory.ended
    assert kit.refused(says(machine, FLEET[1], asked)) == ["unknown_blob"]
