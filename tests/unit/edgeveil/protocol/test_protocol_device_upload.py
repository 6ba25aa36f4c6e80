"""A device: consent, upload, and until it was counted."""

import hashlib

import device_bench as db
import msgspec
import protocol_kit as kit
import pytest
from device_bench import upload
from proxy_bench import FLEET, proxy, says

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.device import CountElsewhere, Installation
from edgeveil.protocol.device_round import DeviceMemory, DeviceState
from edgeveil.protocol.messages import Ack, Behind, Hello, JobDeposit, MaskedGroup, RoundKey
from edgeveil.protocol.proxy import Answered, FindAnswered
from edgeveil.protocol.proxy_rounds import ProxyMemory
from edgeveil.protocol.transfer import Backoff

DIGEST = hashlib.sha256(db.SEALED.data).digest()
NAMED = kit.JOB.hex()[:12]


def ack(status, digest=DIGEST, signer=kit.PROXY, reason=""):
    return signer.note(m.Ack(digest, status, reason))


def test_declining_says_so_and_names_the_cause_but_not_the_reason():
    machine, header = db.device(), kit.manifest(db.MODEL)
    db.work_on(machine, header)
    out = db.done(
        machine, dr.ComputeAnswer(header, db.PACKAGE), dr.NoAnswer("over it by 3", "budget")
    )
    assert kit.bodies(out, m.Decline) == [m.Decline(header.at, "budget")]
    assert all(b"over it" not in m.encode(send.message) for send in kit.of(out, fx.Send))
    assert kit.reports(out)["declined"]["why"] == "over it by 3"
    assert kit.reports(out)["declined"]["cause"] == "budget"
    assert machine.state is dr.DeviceState.IDLE


def test_an_upload_is_durable_before_it_is_sent():
    machine = db.device()
    out = upload(machine)
    kinds = [type(effect) for effect in out]
    assert kinds.index(fx.Persist) < kinds.index(fx.Send)
    (item,) = kit.stored(out)
    (header,) = kit.headers(out)
    assert isinstance(item, dr.OutboxPut) and item.upload == header
    assert header.groups == (0, 1, 2) and header.blob.digest == DIGEST
    assert machine.state is dr.DeviceState.UPLOADING


def test_work_of_a_round_that_is_over_is_not_sent():
    machine, old = db.device(), kit.manifest(db.MODEL, kit.at(1))
    db.work_on(machine, old)
    db.work_on(machine, kit.manifest(db.MODEL, kit.at(2)))
    assert db.done(machine, dr.ComputeAnswer(old, db.PACKAGE), db.SEALED) == []
    assert (
        kit.messages(db.done(machine, dr.ComputeAnswer(old, db.PACKAGE), dr.NoAnswer("x")), m.Offer)
        == []
    )
    assert machine.state is dr.DeviceState.WORKING


def test_an_upload_is_sent_again_ever_more_rarely_until_acknowledged():
    machine = db.device(resend_s=5.0, waits_cap_s=30.0)
    waits = [kit.timers(upload(machine))["resend"]]
    for _ in range(4):
        out = db.fire(machine, "resend")
        assert [h.blob.digest for h in kit.headers(out)] == [DIGEST]
        waits.append(kit.timers(out)["resend"])
    caps = (5.0, 10.0, 20.0, 30.0, 30.0)
    assert all(cap / 2 < wait <= cap for wait, cap in zip(waits, caps, strict=True))
    out = db.receive(machine, ack("held"))
    assert kit.of(out, fx.CancelTimer) == [fx.CancelTimer(db.own("resend").name)]
    assert machine.state is dr.DeviceState.ANSWERED
    assert db.fire(machine, "resend") == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (ack("refused", signer=m.Signer("proxy", kit.signing_key(9))), "forged"),
        (ack("refused", signer=db.ME.signer), "unknown_signer"),
        (ack("refused", signer=kit.CLOUD), "unexpected_body"),
        (kit.PROXY.note(m.Close(kit.JOB, "failed")), "unexpected_body"),
        (kit.PROXY.note(m.Want(kit.JOB)), "unexpected_body"),
    ],
)
def test_nobody_else_can_end_an_upload(message, reason):
    machine = db.device()
    upload(machine)
    before = db.snapshot(machine)
    assert kit.refused(db.receive(machine, message)) == [reason]
    assert db.snapshot(machine) == before


@pytest.mark.parametrize("accepted", [3, 2, 0])
def test_a_commit_says_how_many_segments_were_counted(accepted):
    machine = db.device()
    upload(machine)
    db.receive(machine, ack("held"))
    record, data = kit.commit_of(kit.at(), [*db.SEGMENTS[:accepted], b"another device's"])
    out = db.receive(machine, kit.offer(record, data))
    told = {"job": NAMED, "round": 1, "segments": 3, "counted": accepted}
    assert kit.reports(out)["counted"] == told
    outcome = {3: "counted", 0: "missing"}.get(accepted, "partial")
    assert kit.stored(out) == [dr.OutboxDrop(kit.at(), outcome)] and not machine.memory.uploads
    assert machine.state is dr.DeviceState.IDLE
    assert db.receive(machine, kit.offer(record, data)) == []


@pytest.mark.parametrize(("accepted", "outcome"), [(3, "counted"), (2, "partial"), (0, "missing")])
def test_a_commit_that_comes_after_the_next_round_still_counts(accepted, outcome):
    machine = db.device()
    upload(machine)
    db.receive(machine, ack("held"))
    db.receive(machine, kit.offer(kit.manifest(db.MODEL, kit.at(2)), db.MODEL))
    record, data = kit.commit_of(kit.at(), db.SEGMENTS[:accepted])
    out = db.receive(machine, kit.offer(record, data))
    assert kit.stored(out) == [dr.LateRecord(kit.at(), outcome)]
    assert kit.reports(out)["counted"]["counted"] == accepted
    assert machine.state is dr.DeviceState.OPENING
    assert db.receive(machine, kit.offer(record, data)) == []


def test_after_the_deadline_the_upload_is_given_up():
    machine = db.device()
    upload(machine)
    assert kit.stored(db.fire(machine, "deadline")) == [dr.OutboxDrop(kit.at(), "dropped")]
    assert machine.state is dr.DeviceState.IDLE
    assert db.fire(machine, "resend") == []


def test_the_deadline_leaves_an_acknowledged_upload_alone():
    machine = db.device()
    upload(machine)
    db.receive(machine, ack("held"))
    assert db.fire(machine, "deadline") == [] and machine.memory.uploads


def test_a_restart_sends_the_same_upload_and_does_no_second_work():
    first = db.device()
    sent = kit.headers(upload(first))
    machine = db.device(first.memory)
    out = machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    assert kit.headers(out) == sent and machine.state is dr.DeviceState.UPLOADING
    assert kit.tasks(db.receive(machine, kit.offer(kit.manifest(db.MODEL), db.MODEL))) == []
    db.receive(machine, ack("held"))
    record, data = kit.commit_of(kit.at(), db.SEGMENTS)
    assert kit.reports(db.receive(machine, kit.offer(record, data)))["counted"]["counted"] == 3


@pytest.mark.parametrize("end", ["counted", "refused", "expired", "declined"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_settled_round_is_not_taken_up_again(end, restarted):
    machine = db.device()
    if end == "declined":
        db.work_on(machine, kit.manifest(db.MODEL))
        out = db.done(
            machine, dr.ComputeAnswer(kit.manifest(db.MODEL), db.PACKAGE), dr.NoAnswer("busy")
        )
        assert [type(item) for item in kit.stored(out)] == [dr.ManifestMark]
    else:
        upload(machine)
    if end == "counted":
        record, data = kit.commit_of(kit.at(), db.SEGMENTS)
        db.receive(machine, kit.offer(record, data))
    if end == "refused":
        db.receive(machine, ack("closed"))
    if end == "expired":
        db.fire(machine, "deadline")
    machine = db.device(machine.memory) if restarted else machine
    assert db.receive(machine, kit.offer(kit.manifest(db.MODEL), db.MODEL)) == []
    fork = msgspec.structs.replace(kit.manifest(db.MODEL), commitment=b"z" * 32)
    assert kit.refused(db.receive(machine, kit.offer(fork, db.MODEL))) == ["forked_manifest"]
    assert (
        len(
            kit.tasks(
                db.receive(machine, kit.offer(kit.manifest(db.MODEL, kit.at(1, 2)), db.MODEL))
            )
        )
        == 1
    )


KEY = bytes(range(32))
ROUND = kit.manifest(db.MODEL, masked=(MaskedGroup(0, 10, 40),))


def told(machine, key=KEY, where=None):
    return db.receive(machine, kit.PROXY.note(RoundKey(where or kit.at(), key)))


@pytest.mark.parametrize(
    "where",
    [None, kit.at(1, 2), kit.at(2), kit.at(job=b"K" * 16)],
    ids=["none", "attempt", "round", "job"],
)
def test_without_the_round_s_key_the_round_is_refused_and_nothing_stored(where):
    machine = db.device()
    if where:
        told(machine, where=where)
    before = db.snapshot(machine)
    out = db.receive(machine, kit.offer(ROUND, db.MODEL))
    assert kit.refused(out) == ["no_round_key"]
    assert kit.stored(out) == kit.tasks(out) == []
    assert db.snapshot(machine) == before


def test_a_key_is_believed_from_the_proxy_alone():
    machine = db.device()
    out = db.receive(machine, kit.CLOUD.note(RoundKey(kit.at(), KEY)))
    assert kit.refused(out)
    assert kit.refused(db.receive(machine, kit.offer(ROUND, db.MODEL))) == ["no_round_key"]


def test_keys_of_as_many_jobs_as_it_knows_are_kept():
    names = [bytes([number]) * 16 for number in range(4)]
    machine = db.device(dr.DeviceMemory(jobs=dict.fromkeys([*names, kit.JOB])), jobs=3)
    for name in names:
        told(machine, where=kit.at(job=name))
    found = []
    for name in names:
        header = kit.manifest(db.MODEL + name, kit.at(job=name), masked=ROUND.masked)
        found.append(kit.refused(db.receive(machine, kit.offer(header, db.MODEL + name))))
    assert found == [["no_round_key"], [], [], []]


def test_a_fleet_s_waits_are_spread_and_never_longer_than_said():
    waits = [Backoff(f"{n:016x}").wait_s(4.0, 1, 30.0) for n in range(2000)]
    assert all(4.0 < wait <= 8.0 for wait in waits)
    tenths = [int((wait - 4.0) / 0.4) for wait in waits]
    assert min(tenths.count(tenth) for tenth in range(10)) > 120  # 200 expected, 13 deviation


def test_an_acknowledged_upload_is_not_offered_again_after_a_restart():
    first = db.device()
    upload(first)
    db.receive(first, kit.PROXY.note(Ack(DIGEST, "held")))
    machine = db.device(first.memory)
    assert kit.headers(machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)) == []
    assert machine.state is DeviceState.ANSWERED
    assert kit.tasks(db.receive(machine, kit.offer(kit.manifest(db.MODEL), db.MODEL))) == []
    # A late word that the round is closed takes nothing back.
    assert db.receive(machine, kit.PROXY.note(Ack(DIGEST, "closed"))) == []
    record, data = kit.commit_of(kit.at(), [])
    out = db.receive(machine, kit.offer(record, data))
    assert kit.refused(out) == []
    assert kit.reports(out)["counted"]["counted"] == 0


UP = fx.PeerConnected(fx.ProxyAddress())


def counting(answered=0):
    """A device whose memory is kept, after so many answers."""
    return db.device(DeviceMemory(jobs={kit.JOB: None}, answered=answered))


def heard(machine):
    machine.handle(UP, 0.0)
    db.receive(machine, kit.PROXY.note(Ack(said(machine), "held")))


def said(machine):
    """Digest of its hello."""
    hello = Hello(db.ME.id, 0, 0, machine.memory.answered, 3)
    return hashlib.sha256(db.ME.signer.note(hello).body.payload).digest()


def test_answers_are_numbered_and_a_hello_says_the_last_number():
    machine = counting(4)
    heard(machine)
    (header,) = kit.headers(upload(machine))
    assert (header.number, machine.memory.answered) == (5, 5)
    assert kit.bodies(machine.handle(UP, 0.0), Hello) == [Hello(db.ME.id, 0, 0, 5, 3)]


def test_before_it_was_heard_it_takes_up_nothing():
    machine = counting()
    machine.handle(UP, 0.0)
    assert db.receive(machine, kit.offer(kit.manifest(db.MODEL), db.MODEL)) == []
    heard(machine)
    assert kit.tasks(db.receive(machine, kit.offer(kit.manifest(db.MODEL), db.MODEL)))


def test_told_that_it_is_behind_it_counts_before_it_says_hello_again():
    machine = counting(2)
    machine.handle(UP, 0.0)
    behind = Behind(said(machine), 6, (JobDeposit(kit.JOB, b"d"),), True)
    (task,) = kit.tasks(db.receive(machine, kit.PROXY.note(behind)))
    assert task == CountElsewhere(behind)
    assert db.receive(machine, kit.offer(kit.manifest(db.MODEL), db.MODEL)) == []
    out = db.done(machine, task, Installation())
    assert kit.bodies(out, Hello) == [Hello(db.ME.id, 0, 0, 6, 3)]


@pytest.mark.parametrize("wrong", ["of another hello", "by another signer"])
def test_a_foreign_word_makes_it_count_nothing(wrong):
    machine = counting(2)
    machine.handle(UP, 0.0)
    digest = bytes(32) if wrong == "of another hello" else said(machine)
    signer = kit.PROXY if wrong == "of another hello" else db.ME.signer
    out = db.receive(machine, signer.note(Behind(digest, 6, (), True)))
    assert kit.tasks(out) == [] and machine.memory.answered == 2


def hello(machine, number):
    return says(machine, FLEET[0], FLEET[0].signer.note(Hello(FLEET[0].id, 0, 0, number, 3)))


def test_who_counts_fewer_than_were_given_is_told_and_not_heard():
    machine = proxy(ProxyMemory(answered={FLEET[0].id: 7}))
    machine.hold_work = True
    out = hello(machine, 5)
    assert kit.refused(out) == ["behind"] and not kit.bodies(out, Ack)
    assert FLEET[0].id not in machine.online
    (task,) = kit.tasks(out)
    assert isinstance(task, FindAnswered) and (task.since, task.known) == (5, 7)
    found = Answered(7, (JobDeposit(kit.JOB, b"d"),), True)
    out = machine.handle(fx.WorkDone(task, found), 0.0)
    assert kit.bodies(out, Behind) == [Behind(task.hello, 7, found.jobs, True)]
    assert [send.to for send in kit.of(out, fx.Send)] == [fx.DeviceAddress(FLEET[0].id)]
    assert kit.bodies(hello(machine, 7), Ack) and FLEET[0].id in machine.online
