"""The proxy's broadcast side: one manifest per attempt, identical bytes for everybody."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from protocol_kit import (
    CLOUD,
    JOB,
    PART_BYTES,
    PROXY,
    at,
    bodies,
    commit_of,
    headers,
    manifest,
    member,
    messages,
    of,
    offer,
    parts_of,
    refused,
    reports,
    signing_key,
    stored,
    timers,
    upload_of,
)
from proxy_bench import FLEET, MODEL, cloud_says, open_round, proxy, says, to_cloud, to_devices

from edgeveil.crypto.keys import sign
from edgeveil.crypto.labels import RELEASE_AHEAD
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import (
    Ack,
    Blob,
    BlobPart,
    Bye,
    Close,
    ExchangeId,
    Hello,
    Need,
    Offer,
    PeerKeys,
    ReleaseStatement,
    Roster,
    Signer,
    TrustMetadata,
    Want,
    proof_of_releases,
)
from edgeveil.protocol.proxy_broadcasts import BroadcastPart, JobEnded
from edgeveil.protocol.proxy_rounds import KeptBroadcast, RoundDropped

LONG = bytes(range(256)) * 20
ME = FLEET[0]


def acks(effects):
    return [(ack.status, ack.reason) for ack in bodies(effects, Ack)]


def test_a_broadcast_is_kept_acknowledged_and_passed_on_unchanged():
    header = manifest(MODEL)
    sent = offer(header, MODEL)
    out = cloud_says(proxy(), sent)
    assert [type(e) for e in out[:4]] == [fx.Persist, fx.Work, fx.Persist, fx.Send]
    assert stored(out) == [
        BroadcastPart(header.blob.digest, 0, MODEL),
        KeptBroadcast(sent.header, header, MODEL),
    ]
    assert bodies(out, Ack) == [Ack(header.blob.digest, "held")]
    assert to_devices(out) == [sent]
    assert reports(out)["round_open"] == {"round": 1, "phase": "train"}


def test_a_large_broadcast_is_put_together_and_pushed_once():
    machine, header = proxy(), manifest(LONG)
    assert not stored(cloud_says(machine, offer(header)))
    pieces = parts_of(header, LONG)
    for piece in pieces[:0:-1]:
        (item,) = stored(cloud_says(machine, piece))
        assert item == BroadcastPart(piece.blob, piece.index * PART_BYTES, piece.data)
        assert cloud_says(machine, piece) == []  # what is there is not written again
    out = cloud_says(machine, pieces[0])
    assert to_devices(out) == [offer(header), *pieces]
    assert cloud_says(machine, pieces[0]) == []


def test_what_is_above_the_push_limit_is_only_offered():
    machine, header = proxy(push_bytes=len(LONG) - 1), manifest(LONG)
    cloud_says(machine, offer(header))
    for piece in parts_of(header, LONG):
        out = cloud_says(machine, piece)
    assert to_devices(out) == [offer(header)]
    need = Need(header.blob.digest, (3, 3, 1))
    pieces = parts_of(header, LONG)
    assert messages(says(machine, ME, need), BlobPart) == [pieces[1], pieces[3]]
    # A device that asks again while the answer is still on its way gets nothing twice.
    assert says(machine, ME, need) == []
    assert messages(says(machine, ME, Need(header.blob.digest, (1, 2))), BlobPart) == [pieces[2]]
    later = fx.MessageReceived(fx.DeviceAddress(ME.signer.name), need)
    assert len(messages(machine.handle(later, machine.settings.need_repeat_s + 1), BlobPart)) == 2


def test_a_need_of_a_stranger_is_not_served():
    machine, header = proxy(), manifest(MODEL)
    cloud_says(machine, offer(header, MODEL))
    stranger = fx.MessageReceived(fx.DeviceAddress("f" * 16), Need(header.blob.digest, (0,)))
    assert refused(machine.handle(stranger, 0.0)) == ["unknown_signer"]


def test_missing_parts_are_asked_of_the_cloud():
    machine, header = proxy(), manifest(LONG)
    cloud_says(machine, offer(header))
    out = machine.handle(fx.Timer("repair"), 0.0)
    assert to_cloud(out) == [Need(header.blob.digest, (0, 1, 2, 3, 4))]
    assert "repair" in timers(out)


def test_the_same_broadcast_again_is_acknowledged_and_not_passed_on():
    machine = proxy()
    open_round(machine)
    out = open_round(machine)
    assert acks(out) == [("held", "")] and to_devices(out) == [] and stored(out) == []


def test_a_second_manifest_for_an_attempt_is_refused():
    machine = proxy()
    open_round(machine)
    fork = msgspec.structs.replace(manifest(MODEL), commitment=b"z" * 32)
    out = cloud_says(machine, offer(fork, MODEL))
    assert refused(out) == ["forked_manifest"] and acks(out) == [("refused", "forked_manifest")]
    assert to_devices(out) == [] and stored(out) == []


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (manifest(MODEL, at(1, 2)), "replayed_round"),
        (manifest(MODEL, at(1, 3), selected=2), "selected_below_floor"),
        (manifest(MODEL, at(1, 3), selected=4, min_batch=5), "selected_below_floor"),
        (manifest(MODEL, ExchangeId(b"E" * 16, 1, 0)), "closed_job"),
    ],
)
def test_a_round_that_may_not_open_is_refused(header, reason):
    machine = proxy(min_batch_floor=3)
    open_round(machine, manifest(MODEL, at(1, 3)))
    cloud_says(machine, CLOUD.note(Close(b"E" * 16, "completed")))
    if reason != "replayed_round":
        machine = proxy(machine.memory, min_batch_floor=3)  # it must survive a restart
        header = msgspec.structs.replace(header, at=_later(header.at))
    before = dict(machine.memory.kept)
    out = cloud_says(machine, offer(header, MODEL))
    assert refused(out) == [reason] and acks(out) == [("refused", reason)]
    assert to_devices(out) == [] and machine.memory.kept == before


def _later(where):
    return ExchangeId(where.job_id, where.exchange + 1, 1)


def test_an_older_release_cannot_replace_a_newer_one():
    machine = proxy()
    new = manifest(b"new", ExchangeId(b"N" * 16, 0, 2), kind="release", sequence=9)
    old = manifest(b"old", ExchangeId(b"O" * 16, 0, 1), kind="release", sequence=8)
    cloud_says(machine, offer(new, b"new"))
    out = cloud_says(machine, offer(old, b"old"))
    assert refused(out) == ["replayed_release"]
    assert [kept.header for kept in machine.memory.kept.values()] == [new]


def test_an_older_announcement_cannot_replace_a_newer_one():
    """A new one is sealed to the devices that are enrolled now."""
    machine = proxy()
    new = manifest(b"new", at(0, 2), kind="job", sequence=9)
    cloud_says(machine, offer(new, b"new"))
    out = cloud_says(machine, offer(manifest(b"old", at(0, 1), kind="job", sequence=8), b"old"))
    assert refused(out) == ["replayed_job"]
    newest = manifest(b"newest", at(0, 3), kind="job", sequence=10)
    cloud_says(machine, offer(newest, b"newest"))
    assert [kept.header for kept in machine.memory.kept.values()] == [newest]


@pytest.mark.parametrize(
    ("signer", "reason"),
    [(Signer("cloud", signing_key(9)), "forged"), (PROXY, "unknown_signer")],
)
def test_only_the_cloud_s_key_broadcasts(signer, reason):
    machine = proxy()
    out = cloud_says(machine, offer(manifest(MODEL), MODEL, signer))
    assert refused(out) == [reason] and out == of(out, fx.Refuse)
    assert machine.memory.kept == {} and machine.rounds.collections == {}


def test_a_device_cannot_broadcast_even_with_the_cloud_s_own_manifest():
    machine = proxy()
    assert refused(says(machine, ME, offer(manifest(MODEL), MODEL))) == ["unknown_signer"]
    forged = offer(manifest(MODEL), MODEL, ME.signer)
    assert refused(says(machine, ME, forged)) == ["unexpected_header"]
    assert machine.rounds.collections == {}


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        (manifest(MODEL), b"other length", "bad_digest"),
        (manifest(MODEL), b"x" * len(MODEL), "bad_digest"),
        (manifest(MODEL, blob=Blob(b"x" * 32, 2**30, PART_BYTES)), b"", "oversized_blob"),
        (upload_of(at(), 1)[0], b"", "unexpected_header"),
    ],
)
def test_a_broadcast_that_cannot_be_fetched_changes_nothing(header, data, reason):
    machine = proxy()
    assert refused(cloud_says(machine, offer(header, data))) == [reason]
    assert machine.memory.kept == {} and machine.broadcasts.arriving == {}


@pytest.mark.parametrize("kind", ["job", "round", "release"])
def test_the_cloud_hears_that_a_broadcast_is_larger_than_the_proxy_takes(kind):
    """Or a job that is paid for would wait for ever."""
    large = manifest(MODEL, kind=kind, blob=Blob(b"x" * 32, 2**30, PART_BYTES))
    assert acks(cloud_says(proxy(), offer(large, b""))) == [("refused", "oversized_blob")]


def test_a_new_attempt_ends_the_earlier_ones():
    machine = proxy()
    open_round(machine)
    out = open_round(machine, manifest(MODEL, at(1, 2)))
    assert RoundDropped(at(1, 1)) in stored(out)
    assert list(machine.rounds.collections) == [at(1, 2)]
    assert [kept.header.at for kept in machine.memory.kept.values()] == [at(1, 2)]


def test_a_fetch_that_was_overtaken_is_given_up():
    machine = proxy()
    cloud_says(machine, offer(manifest(LONG)))
    open_round(machine, manifest(MODEL, at(1, 2)))
    assert machine.handle(fx.Timer("repair"), 0.0) == []


def test_a_closed_job_is_no_longer_fetched():
    machine = proxy()
    cloud_says(machine, offer(manifest(LONG)))
    cloud_says(machine, CLOUD.note(Close(JOB, "cancelled")))
    assert machine.handle(fx.Timer("repair"), 0.0) == []


def test_a_commit_is_passed_on_and_ends_the_round():
    machine = proxy()
    open_round(machine)
    record, data = commit_of(at(), [b"a", b"b"])
    out = cloud_says(machine, offer(record, data))
    assert to_devices(out) == [offer(record, data)]
    assert RoundDropped(at()) in stored(out) and acks(out) == [("held", "")]


# --- devices that come late -----------------------------------------------------------------


def hello(machine, who=ME):
    return says(machine, who, who.signer.note(Hello(who.id, knows=3)))


def test_a_late_device_gets_what_is_open_the_job_first():
    machine = proxy()
    open_round(machine)
    job = manifest(b"job", at(0), kind="job", groups=())
    cloud_says(machine, offer(job, b"job"))
    cloud_says(machine, CLOUD.note(Close(b"E" * 16, "completed")))
    out = hello(machine)
    assert [header.kind for header in headers(out)] == ["job", "round"]
    assert {send.to for send in of(out, fx.Send)} == {fx.DeviceAddress(ME.id)}
    assert bodies(out, Close) == [Close(b"E" * 16, "completed")]


def test_presence_is_a_count():
    machine = proxy()
    hello(machine)
    out = hello(machine, FLEET[1])
    assert reports(out) == {"devices_online": {"count": 2}}
    out = says(machine, ME, ME.signer.note(Bye(ME.id)))
    assert reports(out) == {"devices_online": {"count": 1}}


def test_a_large_broadcast_is_not_pushed_to_a_late_device():
    machine, header = proxy(), manifest(LONG)
    cloud_says(machine, offer(header))
    for piece in parts_of(header, LONG):
        cloud_says(machine, piece)
    assert messages(hello(machine), BlobPart) == []


def test_wanting_a_job_gets_that_job_alone():
    machine = proxy()
    open_round(machine)
    for job in (JOB, b"K" * 16):
        header = manifest(job, ExchangeId(job, 0, 0), kind="job", groups=())
        cloud_says(machine, offer(header, job))
    out = says(machine, ME, ME.signer.note(Want(JOB)))
    assert [(h.kind, h.at.job_id) for h in headers(out)] == [("job", JOB)]


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        (FLEET[1].signer.note(Hello(FLEET[1].id, knows=3)), "unknown_signer"),
        (Signer(ME.id, signing_key(9)).note(Hello(ME.id, knows=3)), "forged"),
        (ME.signer.note(Hello(FLEET[1].id, knows=3)), "unexpected_body"),
        (ME.signer.note(Bye(FLEET[1].id)), "unexpected_body"),
        (ME.signer.note(Close(JOB, "failed")), "unexpected_body"),
        (CLOUD.note(Close(JOB, "failed")), "unknown_signer"),
    ],
)
def test_a_device_speaks_for_itself_alone(note, reason):
    machine = proxy()
    open_round(machine)
    assert refused(says(machine, ME, note)) == [reason]
    assert machine.online == set() and len(machine.rounds.collections) == 1


def test_a_device_that_was_not_admitted_is_unknown():
    stranger = member(99)
    assert refused(hello(proxy(), stranger)) == ["unknown_signer"]


def test_asking_for_what_is_not_there_is_refused():
    machine = proxy()
    open_round(machine)
    assert refused(says(machine, ME, Need(b"x" * 32, (0,)))) == ["unknown_blob"]
    need = Need(manifest(MODEL).blob.digest, (1,))
    assert refused(says(machine, ME, need)) == ["bad_index"]


# --- the end of a job, the roster -------------------------------------------------------------


def test_a_close_drops_the_job_tells_the_devices_and_is_acknowledged():
    machine = proxy()
    open_round(machine)
    note = CLOUD.note(Close(JOB, "completed"))
    out = cloud_says(machine, note)
    assert JobEnded(JOB, note) in stored(out) and RoundDropped(at()) in stored(out)
    assert (
        to_devices(out) == [note] and machine.rounds.collections == {} and machine.memory.kept == {}
    )
    again = cloud_says(machine, note)
    assert acks(again) == acks(out) == [("held", "")] and to_devices(again) == []


def test_a_close_leaves_the_release():
    machine = proxy()
    release = manifest(b"final", at(0, 2), kind="release")
    cloud_says(machine, offer(release, b"final"))
    cloud_says(machine, CLOUD.note(Close(JOB, "completed")))
    assert headers(hello(machine)) == [release]


def test_a_commit_that_comes_after_the_close_is_not_kept():
    machine = proxy()
    open_round(machine)
    cloud_says(machine, CLOUD.note(Close(JOB, "completed")))
    record, data = commit_of(at(), [b"a"])
    assert refused(cloud_says(machine, offer(record, data))) == ["closed_job"]
    assert machine.memory.kept == {}


def test_only_so_many_ended_jobs_are_remembered():
    machine = proxy(ended_kept=2)
    for number in range(4):
        cloud_says(machine, CLOUD.note(Close(bytes([number]) * 16, "completed")))
    assert list(machine.memory.ended) == [b"\2" * 16, b"\3" * 16]


def test_the_roster_holds_keys_and_is_offered_until_acknowledged():
    machine = proxy()
    machine.registry.members.update({m.id: m.key for m in map(member, range(50, 90))})
    out = machine.handle(fx.PeerConnected(fx.CloudAddress()), 0.0)
    (header,) = headers(out)
    assert isinstance(header, Roster) and header.blob.parts == 2
    keys = b"".join(sorted(key.to_bytes() for key in machine.registry.members.values()))
    pieces = messages(out, BlobPart)
    assert b"".join(piece.data for piece in pieces) == keys
    again = machine.handle(fx.Timer("roster"), 0.0)
    assert headers(again) == [header] and messages(again, BlobPart) == []
    assert messages(cloud_says(machine, Need(header.blob.digest, (1,))), BlobPart) == pieces[1:]
    assert of(cloud_says(machine, CLOUD.note(Ack(header.blob.digest, "held"))), fx.CancelTimer)
    assert machine.handle(fx.Timer("roster"), 0.0) == []


def test_an_admission_changes_the_roster():
    machine = proxy()
    machine.handle(fx.PeerConnected(fx.CloudAddress()), 0.0)
    machine.registry.members[member(50).id] = member(50).key
    (header,) = headers(machine.handle(fx.Command("roster_changed"), 0.0))
    assert header.blob.size_bytes == 32 * (len(FLEET) + 1)


def test_messages_from_nowhere_do_nothing():
    machine = proxy()
    assert (
        machine.handle(fx.MessageReceived(fx.ProxyAddress(), offer(manifest(MODEL), MODEL)), 0.0)
        == []
    )
    for message in (Offer(PROXY.header(manifest(MODEL))), CLOUD.note(Want(JOB))):
        assert len(refused(cloud_says(machine, message))) == 1


# --- what a job's announcement says of its end ----------------------------------------------


RELEASES = Signer("cloud", signing_key(55))


def job_of(sequence=1_000_000, signer=CLOUD, **changes):
    """Announced with the proof that the cloud makes of it."""
    header = manifest(b"job", at(0, 1), kind="job", sequence=sequence, **changes)
    proof = sign(signer.key, RELEASE_AHEAD, proof_of_releases(header))
    return msgspec.structs.replace(header, release_proof=proof)


def released(sequence, data_set=b""):
    where = ExchangeId(b"R" * 16, 0, 1)
    return manifest(b"release", where, kind="release", sequence=sequence, data_set=data_set)


def stated(number):
    return CLOUD.note(ReleaseStatement(number, 0.0, (), ()))


@pytest.mark.parametrize(
    ("before", "job", "reason"),
    [
        ([offer(released(9_000_000), b"release")], job_of(), "replayed_release"),
        ([stated(9_000_000)], job_of(), "replayed_statement"),
        ([], job_of(signer=RELEASES), "unknown_release_key"),
        ([], job_of(broadcast_bytes=2**30), "oversized_broadcast"),
        ([], job_of(upload_bytes=2**26 + 1), "oversized_upload"),
        ([], job_of(min_batch=17, upload_bytes=2**26), "spool_too_small"),
        ([], job_of(2**44), "far_sequence"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_job_is_refused_before_its_first_round_for_what_comes_later(before, job, reason):
    machine = proxy()
    for one in before:
        cloud_says(machine, one)
    kept = dict(machine.memory.kept)
    out = cloud_says(machine, offer(job, b"job"))
    assert refused(out) == [reason] and acks(out) == [("refused", reason)]
    assert machine.memory.kept == kept and to_devices(out) == []


@pytest.mark.parametrize(
    ("before", "job"),
    [
        ([offer(released(9_000_000, b"other"), b"release")], job_of(data_set=b"own")),
        ([offer(released(1_000_500), b"release"), stated(1_000_600)], job_of()),
        ([], manifest(b"job", at(0, 1), kind="job")),
        ([], job_of(min_batch=16, upload_bytes=2**26)),
    ],
    ids=["a release of other data", "what the cloud said meanwhile", "a cloud of before", "full"],
)
def test_a_job_whose_release_will_be_taken_is_announced(before, job):
    machine = proxy()
    for one in before:
        cloud_says(machine, one)
    out = cloud_says(machine, offer(job, b"job"))
    assert acks(out) == [("held", "")] and job.blob.digest in machine.memory.kept


def reading_trust():
    """A proxy to which the cloud just passed on what the root says, and the work on it."""
    machine = proxy()
    machine._trust = SimpleNamespace(after=lambda _root, _version: ((), b""))
    machine.hold_work = True
    (work,) = cloud_says(machine, TrustMetadata((), b"newer"))
    machine.hold_work = False
    return machine, work.task


def test_a_job_waits_until_the_roots_word_that_came_before_it_is_read():
    """The key of releases is replaced: metadata and job come together."""
    machine, task = reading_trust()
    announced = offer(job_of(signer=RELEASES), b"job")
    assert cloud_says(machine, announced) == []
    keys = PeerKeys(CLOUD.key.public(), PROXY.key.public(), RELEASES.key.public())
    machine.handle(fx.WorkDone(task, keys), 0.0)
    assert acks(cloud_says(machine, announced)) == [("held", "")]


def test_a_job_is_refused_where_the_root_does_not_name_its_key():
    machine, task = reading_trust()
    machine.handle(fx.WorkDone(task, None), 0.0)
    out = cloud_says(machine, offer(job_of(signer=RELEASES), b"job"))
    assert acks(out) == [("refused", "unknown_release_key")]


def test_a_number_that_no_clock_gave_holds_up_nothing_at_the_proxy():
    """Also one that the proxy kept before it knew of this."""
    machine = proxy()
    far = released(2**62)
    kept = KeptBroadcast(CLOUD.header(far), far, b"release")
    machine.memory.kept[far.blob.digest] = kept
    machine.memory.statement = stated(2**62)
    again = msgspec.structs.replace(released(7), at=ExchangeId(b"S" * 16, 0, 1))
    assert refused(cloud_says(machine, stated(2**61))) == ["far_sequence"]
    assert refused(cloud_says(machine, stated(3))) == []
    assert refused(cloud_says(machine, offer(job_of(4), b"job"))) == []
    assert acks(cloud_says(machine, offer(again, b"release"))) == [("held", "")]
    assert [k.header for k in machine.memory.kept.values() if k.header.kind == "release"] == [again]
