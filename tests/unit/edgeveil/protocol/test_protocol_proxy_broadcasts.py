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
from edgeveil.protocol.proxy_broadcasts import BroadcastDropped
from edgeveil.protocol.proxy_rounds import KeptBroadcast

LONG = bytes(range(256)) * 20


def test_a_device_speaks_for_itself_alone():
    machine, (me, other, *_) = pb.proxy(), pb.FLEET
    pb.open_round(machine)
    for note, reason in (
        (other.signer.note(m.Hello(other.id, knows=3)), "unknown_signer"),
        (m.Signer(me.id, kit.signing_key(9)).note(m.Hello(me.id, knows=3)), "forged"),
        (me.signer.note(m.Hello(other.id, knows=3)), "unexpected_body"),
        (me.signer.note(m.Bye(other.id)), "unexpected_body"),
        (me.signer.note(m.Close(kit.JOB, "failed")), "unexpected_body"),
    ):
        assert kit.refused(pb.send(machine, me, note)) == [reason]
    assert machine.online == set() and len(machine.rounds.collections) == 1


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
    pb.from_cloud(machine, kit.CLOUD.note(m.Close(b"E" * 16, "completed")))
    for one in (machine, pb.proxy(machine.memory, min_batch_floor=3)):
        before = dict(one.memory.kept)
        out = pb.open_round(one, header)
        assert kit.refused(out) == [reason] and kit.acks(out) == [("refused", reason)]
        assert pb.to_devices(out) == [] and one.memory.kept == before


HUGE = m.Blob(b"x" * 32, 2**30, kit.PART_BYTES)


def test_a_broadcast_of_another_or_that_cannot_be_fetched_changes_nothing():
    machine, header = pb.proxy(), kit.manifest(pb.MODEL)
    for offer, reason in (
        (kit.offer(header, pb.MODEL, m.Signer("cloud", kit.signing_key(9))), "forged"),
        (kit.offer(header, pb.MODEL, kit.PROXY), "unknown_signer"),
        (kit.offer(header, b"x" * len(pb.MODEL)), "bad_digest"),
        (kit.offer(kit.manifest(pb.MODEL, blob=HUGE)), "oversized_blob"),
        (kit.offer(kit.upload_of(kit.at(), 1)[0]), "unexpected_header"),
    ):
        out = pb.from_cloud(machine, offer)
        assert kit.refused(out) == [reason] and not kit.stored(out)
        assert machine.memory.kept == machine.broadcasts.arriving == {}
        assert machine.rounds.collections == {}


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
        ([kit.offer(released(9_000_000, b"other"), b"release")], job_of(data_set=b"own"), ""),
        ([kit.offer(released(1_000_500), b"release"), stated(1_000_600)], job_of(), ""),
        ([], kit.manifest(b"job", kit.at(0, 1), kind="job"), ""),
        ([], job_of(min_batch=16, upload_bytes=2**26), ""),
    ],
)
def test_a_job_is_refused_before_its_first_round_for_what_comes_later(before, job, reason):
    machine = pb.proxy()
    for one in before:
        pb.from_cloud(machine, one)
    kept = set(machine.memory.kept)
    out = pb.from_cloud(machine, kit.offer(job, b"job"))
    assert kit.acks(out) == [("refused" if reason else "held", reason)]
    assert machine.memory.kept.keys() == kept | (set() if reason else {job.blob.digest})
    assert bool(pb.to_devices(out)) == (not reason)


def test_a_job_waits_until_trust_metadata_that_came_before_it_are_read():
    """The key of releases is replaced: metadata and job come together."""
    announced = kit.offer(job_of(signer=RELEASES), b"job")
    keys = m.PeerKeys(kit.CLOUD.key.public(), kit.PROXY.key.public(), RELEASES.key.public())
    for found, ack in ((keys, ("held", "")), (None, ("refused", "unknown_release_key"))):
        machine = pb.proxy()
        machine._trust = lambda _root, _version: ((), b"")
        machine.hold_work = True
        (work,) = pb.from_cloud(machine, m.TrustMetadata((), b"newer"))
        machine.hold_work = False
        assert pb.from_cloud(machine, announced) == []
        machine.handle(fx.WorkDone(work.task, found), 0.0)
        assert kit.acks(pb.from_cloud(machine, announced)) == [ack]


def test_a_broadcast_that_is_not_its_digest_is_fetched_again():
    machine, header = pb.proxy(), kit.manifest(LONG)
    *rest, last = kit.parts_of(header, LONG)
    wrong = bytes(len(last.data))
    lie = msgspec.structs.replace(last, data=wrong, crc=zlib.crc32(wrong))
    for ending, acks in ((lie, []), (last, [("held", "")])):
        pb.from_cloud(machine, kit.offer(header))
        for piece in (*rest, ending):
            out = pb.from_cloud(machine, piece)
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
    (commit,) = kit.tasks(pb.from_cloud(machine, kit.offer(record, data)))
    (new,) = kit.tasks(pb.open_round(machine, kit.manifest(pb.MODEL, kit.at(2))))
    checked(machine, new, pb.MODEL)
    out = checked(machine, commit, data)
    assert pb.to_devices(out) == [kit.offer(record, data)] and kit.acks(out) == [("held", "")]
    assert machine.memory.kept[record.blob.digest].header == record
    assert list(machine.rounds.open) == [kit.at(2)]


def records(machine):
    headers = [kept.header for kept in machine.memory.kept.values()]
    return {header.at for header in headers if header.kind == "commit"}


def test_a_record_outlives_the_next_round_and_ends_with_the_next_record():
    machine = pb.proxy()
    first, other = kit.commit_of(kit.at(), [b"a"]), kit.commit_of(kit.at(9, job=b"K" * 16), [b"k"])
    for record in (first, other):
        pb.from_cloud(machine, kit.offer(*record))
    pb.open_round(machine, kit.manifest(pb.MODEL, kit.at(2)))
    assert records(machine) == {kit.at(), other[0].at}
    pb.from_cloud(machine, kit.offer(*kit.commit_of(kit.at(2), [b"b"])))
    assert records(machine) == {kit.at(2), other[0].at}
    assert kit.refused(pb.from_cloud(machine, kit.offer(*first))) == ["replayed_commit"]


def test_the_cache_has_a_bound_and_says_so():
    machine = pb.proxy(cache_bytes=2 * len(LONG))
    first, second = (
        kit.manifest(LONG, m.RoundId(job * 16, 0, 0), kind="job") for job in (b"1", b"2")
    )
    pb.part_by_part(machine, first, LONG)
    used = machine.broadcasts.cached_bytes
    assert kit.acks(pb.from_cloud(machine, kit.offer(second))) == [("refused", "cache_full")]
    assert machine.broadcasts.cached_bytes == used > 0 and machine.broadcasts.arriving == {}


def crowd(machine, count):
    many = [kit.member(1000 + number) for number in range(count)]
    machine.registry.members.update({who.id: who.key for who in many})
    return many


def last_delay_s(machine, loud):
    """What an honest device is told after 10 s in which sound hellos used up all the pace."""
    others = crowd(machine, 100)
    for now_s in range(10):
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
    forged = pb.FLEET[1].signer.note(m.Hello(pb.FLEET[0].id, knows=3))
    for out in (
        pb.hello(machine, strangers[0], 20.0),
        pb.send(machine, pb.FLEET[0], forged, 20.0),
    ):
        assert kit.refused(out) == ["unknown_signer"] and kit.of(out, fx.Send) == []


def test_a_new_sealing_key_is_kept_once_and_others_come_once_a_minute():
    """Keeping one is a transaction, and a roster of all devices for the cloud."""
    machine, who, other = pb.proxy(), pb.FLEET[0], pb.FLEET[1]

    def new_key(number, by=who):
        return by.signer.note(m.NewSealingKey(by.id, bytes([number] * 32), number))

    outs = [pb.send(machine, who, new_key(200)) for _ in range(3)]
    assert [len(kit.stored(out)) for out in outs] == [1, 0, 0]
    assert all(len(kit.bodies(out, m.Ack)) == 1 for out in outs)
    assert kit.refused(pb.send(machine, who, new_key(1), 59.0)) == ["new_key_too_often"]
    assert len(kit.stored(pb.send(machine, other, new_key(1, other), 59.0))) == 1
    assert len(kit.stored(pb.send(machine, who, new_key(118), 60.0))) == 1
