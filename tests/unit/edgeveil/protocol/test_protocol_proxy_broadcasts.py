"""The proxy's broadcast side: one manifest per attempt, identical bytes for everybody."""

import zlib

import msgspec
import protocol_kit as kit
import proxy_bench as pb
import pytest

from edgeveil.crypto.keys import sign
from edgeveil.crypto.labels import RELEASE_AHEAD
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.proxy_broadcasts import BroadcastDropped, BroadcastPart
from edgeveil.protocol.proxy_rounds import KeptBroadcast

LONG = bytes(range(256)) * 20
ME = pb.FLEET[0]


def test_a_broadcast_is_kept_acknowledged_and_passed_on_unchanged():
    header = kit.manifest(pb.MODEL)
    sent = kit.offer(header, pb.MODEL)
    out = pb.cloud_says(pb.proxy(), sent)
    assert [type(e) for e in out[:4]] == [fx.Persist, fx.Work, fx.Persist, fx.Send]
    assert kit.stored(out) == [
        BroadcastPart(header.blob.digest, 0, pb.MODEL),
        KeptBroadcast(sent.header, header, pb.MODEL),
    ]
    assert kit.bodies(out, m.Ack) == [m.Ack(header.blob.digest, "held")]
    assert pb.to_devices(out) == [sent]
    assert kit.reports(out)["round_open"] == {"round": 1, "phase": "train"}


def test_what_is_above_the_push_limit_is_only_offered():
    machine, header = pb.proxy(push_bytes=len(LONG) - 1), kit.manifest(LONG)
    assert pb.part_by_part(machine, header, LONG) == [kit.offer(header)]
    pieces = kit.parts_of(header, LONG)

    def asked(*indices, now_s=0.0):
        return pb.says(machine, ME, m.Need(header.blob.digest, indices), now_s)

    assert kit.messages(asked(3, 3, 1), m.BlobPart) == [pieces[1], pieces[3]]
    # A device that asks again while the answer is still on its way gets nothing twice.
    assert asked(3, 3, 1) == []
    assert kit.messages(asked(1, 2), m.BlobPart) == [pieces[2]]
    later_s = machine.settings.need_repeat_s + 1
    assert len(kit.messages(asked(3, 1, now_s=later_s), m.BlobPart)) == 2


def test_the_same_broadcast_again_is_acknowledged_and_another_for_its_attempt_refused():
    machine, header = pb.proxy(), kit.manifest(pb.MODEL)
    pb.open_round(machine)
    fork = msgspec.structs.replace(header, commitment=b"z" * 32)
    for one, refused, ack in (
        (header, [], ("held", "")),
        (fork, ["forked_manifest"], ("refused", "forked_manifest")),
    ):
        out = pb.open_round(machine, one)
        assert kit.refused(out) == refused and kit.acks(out) == [ack]
        assert pb.to_devices(out) == [] and kit.stored(out) == []


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (kit.manifest(pb.MODEL, kit.at(1, 2)), "replayed_round"),
        (kit.manifest(pb.MODEL, kit.at(2), selected=2, min_batch=2), "selected_below_floor"),
        (kit.manifest(pb.MODEL, kit.at(2), selected=4, min_batch=5), "selected_below_floor"),
        (kit.manifest(pb.MODEL, m.RoundId(b"E" * 16, 1, 1)), "closed_job"),
    ],
)
def test_a_round_that_may_not_open_is_refused_also_after_a_restart(header, reason):
    machine = pb.proxy(min_batch_floor=3)
    pb.open_round(machine, kit.manifest(pb.MODEL, kit.at(1, 3)))
    pb.cloud_says(machine, kit.CLOUD.note(m.Close(b"E" * 16, "completed")))
    for one in (machine, pb.proxy(machine.memory, min_batch_floor=3)):
        before = dict(one.memory.kept)
        out = pb.open_round(one, header)
        assert kit.refused(out) == [reason] and kit.acks(out) == [("refused", reason)]
        assert pb.to_devices(out) == [] and one.memory.kept == before


HUGE = m.Blob(b"x" * 32, 2**30, kit.PART_BYTES)
ANOTHER = m.Signer("cloud", kit.signing_key(9))


def test_a_broadcast_of_another_or_that_cannot_be_fetched_changes_nothing():
    machine, header = pb.proxy(), kit.manifest(pb.MODEL)
    for offer, reason in (
        (kit.offer(header, pb.MODEL, ANOTHER), "forged"),
        (kit.offer(header, pb.MODEL, kit.PROXY), "unknown_signer"),
        (kit.offer(header, b"other length"), "bad_digest"),
        (kit.offer(header, b"x" * len(pb.MODEL)), "bad_digest"),
        (kit.offer(kit.manifest(pb.MODEL, blob=HUGE)), "oversized_blob"),
        (kit.offer(kit.upload_of(kit.at(), 1)[0]), "unexpected_header"),
    ):
        out = pb.cloud_says(machine, offer)
        assert kit.refused(out) == [reason] and not kit.stored(out)
        assert machine.memory.kept == machine.broadcasts.arriving == {}
        assert machine.rounds.collections == {}


def test_a_device_speaks_for_itself_alone():
    machine, other = pb.proxy(), pb.FLEET[1]
    pb.open_round(machine)
    for note, reason in (
        (other.signer.note(m.Hello(other.id, knows=3)), "unknown_signer"),
        (m.Signer(ME.id, kit.signing_key(9)).note(m.Hello(ME.id, knows=3)), "forged"),
        (ME.signer.note(m.Hello(other.id, knows=3)), "unexpected_body"),
        (ME.signer.note(m.Bye(other.id)), "unexpected_body"),
        (ME.signer.note(m.Close(kit.JOB, "failed")), "unexpected_body"),
        (kit.CLOUD.note(m.Close(kit.JOB, "failed")), "unknown_signer"),
    ):
        assert kit.refused(pb.says(machine, ME, note)) == [reason]
    assert machine.online == set() and len(machine.rounds.collections) == 1


RELEASES = m.Signer("cloud", kit.signing_key(55))


def job_of(sequence=1_000_000, signer=kit.CLOUD, **changes):
    """Announced with the proof that the cloud makes of it."""
    header = kit.manifest(b"job", kit.at(0, 1), kind="job", sequence=sequence, **changes)
    proof = sign(signer.key, RELEASE_AHEAD, m.proof_of_releases(header))
    return msgspec.structs.replace(header, release_proof=proof)


def released(sequence, data_set=b""):
    where = m.RoundId(b"R" * 16, 0, 1)
    return kit.manifest(b"release", where, kind="release", sequence=sequence, data_set=data_set)


def stated(number):
    return kit.CLOUD.note(m.ReleaseStatement(number, 0.0, (), ()))


@pytest.mark.parametrize(
    ("before", "job", "reason"),
    [
        ([kit.offer(released(9_000_000), b"release")], job_of(), "replayed_release"),
        ([stated(9_000_000)], job_of(), "replayed_statement"),
        ([], job_of(signer=RELEASES), "unknown_release_key"),
        ([], job_of(broadcast_bytes=2**30), "oversized_broadcast"),
        ([], job_of(upload_bytes=2**26 + 1), "oversized_upload"),
        ([], job_of(min_batch=17, upload_bytes=2**26), "spool_too_small"),
        ([], job_of(2**44), "far_sequence"),
    ],
)
def test_a_job_is_refused_before_its_first_round_for_what_comes_later(before, job, reason):
    machine = pb.proxy()
    for one in before:
        pb.cloud_says(machine, one)
    kept = dict(machine.memory.kept)
    out = pb.cloud_says(machine, kit.offer(job, b"job"))
    assert kit.refused(out) == [reason] and kit.acks(out) == [("refused", reason)]
    assert machine.memory.kept == kept and pb.to_devices(out) == []


@pytest.mark.parametrize(
    ("before", "job"),
    [
        ([kit.offer(released(9_000_000, b"other"), b"release")], job_of(data_set=b"own")),
        ([kit.offer(released(1_000_500), b"release"), stated(1_000_600)], job_of()),
        ([], kit.manifest(b"job", kit.at(0, 1), kind="job")),
        ([], job_of(min_batch=16, upload_bytes=2**26)),
    ],
)
def test_a_job_whose_release_will_be_taken_is_announced(before, job):
    machine = pb.proxy()
    for one in before:
        pb.cloud_says(machine, one)
    out = pb.cloud_says(machine, kit.offer(job, b"job"))
    assert kit.acks(out) == [("held", "")] and job.blob.digest in machine.memory.kept


def reading_trust():
    """A proxy to which the cloud just passed on what the root says, and the work on it."""
    machine = pb.proxy()
    machine._trust = lambda _root, _version: ((), b"")
    machine.hold_work = True
    (work,) = pb.cloud_says(machine, m.TrustMetadata((), b"newer"))
    machine.hold_work = False
    return machine, work.task


def test_a_job_waits_until_the_roots_word_that_came_before_it_is_read():
    """The key of releases is replaced: metadata and job come together."""
    announced = kit.offer(job_of(signer=RELEASES), b"job")
    keys = m.PeerKeys(kit.CLOUD.key.public(), kit.PROXY.key.public(), RELEASES.key.public())
    for found, ack in ((keys, ("held", "")), (None, ("refused", "unknown_release_key"))):
        machine, task = reading_trust()
        assert pb.cloud_says(machine, announced) == []
        machine.handle(fx.WorkDone(task, found), 0.0)
        assert kit.acks(pb.cloud_says(machine, announced)) == [ack]


def test_a_number_that_no_clock_gave_holds_up_nothing_at_the_proxy():
    """Also one that the proxy kept before it knew of this."""
    machine = pb.proxy()
    far = released(2**62)
    kept = KeptBroadcast(kit.CLOUD.header(far), far, b"release")
    machine.memory.kept[far.blob.digest] = kept
    machine.memory.statement = stated(2**62)
    again = msgspec.structs.replace(released(7), at=m.RoundId(b"S" * 16, 0, 1))
    assert kit.refused(pb.cloud_says(machine, stated(2**61))) == ["far_sequence"]
    assert kit.refused(pb.cloud_says(machine, stated(3))) == []
    assert kit.refused(pb.cloud_says(machine, kit.offer(job_of(4), b"job"))) == []
    assert kit.acks(pb.cloud_says(machine, kit.offer(again, b"release"))) == [("held", "")]
    assert [k.header for k in machine.memory.kept.values() if k.header.kind == "release"] == [again]


def test_a_broadcast_that_is_not_its_digest_is_fetched_again():
    machine, header = pb.proxy(), kit.manifest(LONG)
    *rest, last = kit.parts_of(header, LONG)
    wrong = bytes(len(last.data))
    lie = msgspec.structs.replace(last, data=wrong, crc=zlib.crc32(wrong))
    for ending, acks in ((lie, []), (last, [("held", "")])):
        pb.cloud_says(machine, kit.offer(header))
        for piece in (*rest, ending):
            out = pb.cloud_says(machine, piece)
        assert kit.acks(out) == acks and bool(machine.memory.kept) == bool(acks)
        if ending is lie:
            assert kit.refused(out) == ["bad_digest"] and pb.to_devices(out) == []
            assert kit.stored(out)[-1] == BroadcastDropped(header.blob.digest)


def checked(machine, task, data):
    return machine.handle(fx.WorkDone(task, KeptBroadcast(task.signed, task.header, data)), 0.0)


def test_a_commit_that_the_next_round_overtakes_is_still_passed_on_and_kept():
    machine = pb.proxy()
    pb.open_round(machine)
    machine.hold_work = True
    record, data = kit.commit_of(kit.at(), [b"a"])
    (commit,) = kit.tasks(pb.cloud_says(machine, kit.offer(record, data)))
    (new,) = kit.tasks(pb.open_round(machine, kit.manifest(pb.MODEL, kit.at(2))))
    checked(machine, new, pb.MODEL)
    out = checked(machine, commit, data)
    assert pb.to_devices(out) == [kit.offer(record, data)] and kit.acks(out) == [("held", "")]
    assert machine.memory.kept[record.blob.digest].header == record
    assert list(machine.rounds.open) == [kit.at(2)]


def test_a_record_that_a_later_one_overtakes_while_it_is_checked_is_dropped():
    machine = pb.proxy()
    machine.hold_work = True
    held = [kit.commit_of(kit.at(number), [bytes([number])]) for number in (1, 2)]
    first, second = (kit.tasks(pb.cloud_says(machine, kit.offer(*one)))[0] for one in held)
    checked(machine, second, held[1][1])
    out = checked(machine, first, held[0][1])
    assert kit.refused(out) == ["replayed_commit"] and pb.to_devices(out) == []
    assert BroadcastDropped(held[0][0].blob.digest) in kit.stored(out)
    assert [kept.header for kept in machine.memory.kept.values()] == [held[1][0]]


def records(machine):
    headers = [kept.header for kept in machine.memory.kept.values()]
    return {header.at for header in headers if header.kind == "commit"}


def test_a_record_outlives_the_next_round_and_ends_with_the_next_record():
    machine = pb.proxy()
    first, other = kit.commit_of(kit.at(), [b"a"]), kit.commit_of(kit.at(9, job=b"K" * 16), [b"k"])
    for record in (first, other):
        pb.cloud_says(machine, kit.offer(*record))
    pb.open_round(machine, kit.manifest(pb.MODEL, kit.at(2)))
    assert records(machine) == {kit.at(), other[0].at}
    pb.cloud_says(machine, kit.offer(*kit.commit_of(kit.at(2), [b"b"])))
    assert records(machine) == {kit.at(2), other[0].at}
    assert kit.refused(pb.cloud_says(machine, kit.offer(*first))) == ["replayed_commit"]


def test_what_is_checked_when_its_job_ends_is_not_kept():
    machine = pb.proxy()
    machine.hold_work = True
    (task,) = kit.tasks(pb.open_round(machine))
    pb.cloud_says(machine, kit.CLOUD.note(m.Close(kit.JOB, "cancelled")))
    dropped = fx.Persist(BroadcastDropped(task.header.blob.digest))
    assert checked(machine, task, pb.MODEL) == [dropped] and machine.memory.kept == {}


def test_the_cache_has_a_bound_and_says_so():
    machine = pb.proxy(cache_bytes=3 * len(LONG))
    for job in (b"1", b"2"):
        header = kit.manifest(LONG + job, m.RoundId(job * 16, 0, 0), kind="job")
        pb.cloud_says(machine, kit.offer(header))
        for piece in kit.parts_of(header, LONG + job):
            out = pb.cloud_says(machine, piece)
        assert kit.acks(out) == [("held", "")]
    used = machine.broadcasts.cached_bytes
    third = kit.manifest(LONG, m.RoundId(b"3" * 16, 0, 0), kind="job")
    out = pb.cloud_says(machine, kit.offer(third))
    assert kit.refused(out) == ["cache_full"] and kit.acks(out) == [("refused", "cache_full")]
    assert machine.broadcasts.cached_bytes == used and machine.broadcasts.arriving == {}


def test_the_roster_holds_keys_and_is_offered_until_acknowledged():
    machine = pb.proxy()
    crowd(machine, 40)
    out = machine.handle(fx.PeerConnected(fx.CloudAddress()), 0.0)
    (header,) = kit.headers(out)
    pieces = kit.messages(out, m.BlobPart)
    keys = sorted(key.to_bytes() for key in machine.registry.members.values())
    assert len(pieces) == 2 and b"".join(piece.data for piece in pieces) == b"".join(keys)
    for again in (machine.handle(fx.Timer("roster"), 0.0) for _ in range(2)):
        assert kit.headers(again) == [header] and kit.messages(again, m.BlobPart) == []
        assert "roster" in kit.timers(again)
    need = m.Need(header.blob.digest, (1,))
    assert kit.messages(pb.cloud_says(machine, need), m.BlobPart) == pieces[1:]
    out = pb.cloud_says(machine, kit.CLOUD.note(m.Ack(header.blob.digest, "held")))
    assert kit.of(out, fx.CancelTimer) == [fx.CancelTimer("roster")]
    assert machine.handle(fx.Timer("roster"), 0.0) == []


def crowd(machine, count):
    many = [kit.member(1000 + number) for number in range(count)]
    machine.registry.members.update({who.id: who.key for who in many})
    return many


def test_a_forged_hello_takes_nobody_s_place():
    machine = pb.proxy(hellos_per_s=1.0)
    for _ in range(5):
        forged = pb.FLEET[1].signer.note(m.Hello(pb.FLEET[0].id, knows=3))
        assert kit.refused(pb.says(machine, pb.FLEET[0], forged)) == ["unknown_signer"]
    assert kit.bodies(pb.hello(machine, pb.FLEET[0]), m.Ack)


def test_who_answers_after_its_copy_said_bye_is_asked_for_a_hello():
    machine = pb.proxy()
    machine.handle(fx.PeerConnected(fx.AllDevices()), 0.0)
    pb.hello(machine, pb.FLEET[0])
    pb.says(machine, pb.FLEET[0], pb.FLEET[0].signer.note(m.Bye(pb.FLEET[0].id)))
    pb.open_round(machine)
    assert kit.bodies(pb.upload(machine, 0), m.Here) == []  # all are still coming
    machine.handle(fx.Timer("hellos"), 60.0)
    out = pb.upload(machine, 0)
    assert kit.of(out, fx.Send)[-1].to == fx.DeviceAddress(pb.FLEET[0].id)
    assert kit.bodies(out, m.Here) == [m.Here(0.0)]
    pb.hello(machine, pb.FLEET[0], 60.0)
    assert kit.bodies(pb.upload(machine, 0), m.Here) == []


def last_delay_s(machine, loud):
    """What an honest device is told after 20 s in which sound hellos used up all the pace."""
    others = crowd(machine, 200)
    for moment in range(200):
        now_s = moment / 10
        while machine.hello_rate.free(now_s):
            pb.hello(machine, others.pop(), now_s)
        for who in loud * 20:
            pb.hello(machine, who, now_s)
    (later,) = kit.bodies(pb.hello(machine, pb.FLEET[2], now_s), m.Later)
    return later.delay_s


def test_neither_one_device_that_keeps_saying_hello_nor_strangers_put_the_others_off():
    calm_s = last_delay_s(pb.proxy(hellos_per_s=5.0), [])
    assert last_delay_s(pb.proxy(hellos_per_s=5.0), [pb.FLEET[1]]) <= calm_s + 2 * 5 / 5.0
    strangers = [kit.member(number) for number in range(50, 53)]
    machine = pb.proxy(hellos_per_s=5.0)
    assert last_delay_s(machine, strangers) == calm_s
    out = pb.hello(machine, strangers[0], 20.0)
    assert kit.refused(out) == ["unknown_signer"] and kit.of(out, fx.Send) == []


def test_a_new_sealing_key_is_kept_once_and_others_come_once_a_minute():
    """Keeping one is a transaction, and a roster of all devices for the cloud."""
    machine, who, other = pb.proxy(), pb.FLEET[0], pb.FLEET[1]

    def new_key(number, by=who):
        return by.signer.note(m.NewSealingKey(by.id, bytes([number] * 32), number))

    outs = [pb.says(machine, who, new_key(200)) for _ in range(100)]
    assert [len(kit.stored(out)) for out in outs] == [1] + [0] * 99
    assert all(len(kit.bodies(out, m.Ack)) == 1 for out in outs)
    outs = [pb.says(machine, who, new_key(n), n / 2) for n in range(1, 118)]
    assert [kit.refused(out) for out in outs] == [["new_key_too_often"]] * 117
    assert len(kit.stored(pb.says(machine, other, new_key(1, other), 59.0))) == 1
    assert len(kit.stored(pb.says(machine, who, new_key(118), 60.0))) == 1
