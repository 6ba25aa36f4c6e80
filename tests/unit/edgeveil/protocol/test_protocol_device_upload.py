"""A device: consent, upload, and until it was counted."""

import copy
import hashlib

import device_bench as db
import msgspec
import protocol_kit as kit
import pytest
from device_bench import upload
from proxy_bench import FLEET, proxy, send_note

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.device import CountElsewhere, Installation
from edgeveil.protocol.device_round import DeviceMemory, DeviceState
from edgeveil.protocol.messages import Ack, Behind, EncryptedJobState, Hello, MaskedGroup, RoundKey
from edgeveil.protocol.proxy import Answered, FindAnswered
from edgeveil.protocol.proxy_rounds import ProxyMemory
from edgeveil.protocol.transfer import Backoff

DIGEST = hashlib.sha256(db.SEALED.data).digest()


def ack(status, digest=DIGEST, signer=kit.PROXY, reason=""):
    return signer.note(m.Ack(digest, status, reason))


def decline(machine, header):
    db.work_on(machine, header)
    task = dr.ComputeAnswer(header, db.PACKAGE)
    return db.done(machine, task, dr.NoAnswer("over it by 3", "budget"))


def committed(*segments):
    return kit.offer(*kit.commit_of(kit.at(), segments))


def test_declining_says_so_and_names_the_cause_but_not_the_reason():
    machine, header = db.device(), kit.manifest(db.MODEL)
    out = decline(machine, header)
    assert kit.bodies(out, m.Decline) == [m.Decline(header.at, "budget")]
    assert all(b"over it" not in m.encode(send.message) for send in kit.of(out, fx.Send))
    assert kit.reports(out)["declined"]["why"] == "over it by 3"


def test_an_upload_is_sent_again_ever_more_rarely_until_acknowledged():
    machine = db.device(resend_s=5.0, waits_cap_s=30.0)
    waits = [kit.timers(upload(machine))["resend"]]
    for _ in range(4):
        out = db.fire(machine, "resend")
        assert [h.blob.digest for h in kit.headers(out)] == [DIGEST]
        waits.append(kit.timers(out)["resend"])
    caps = (5.0, 10.0, 20.0, 30.0, 30.0)
    assert all(cap / 2 < wait <= cap for wait, cap in zip(waits, caps, strict=True))
    db.receive(machine, ack("held"))
    assert db.fire(machine, "resend") == []


def test_nobody_else_can_end_an_upload():
    machine = db.device()
    upload(machine)
    before = db.snapshot(machine)
    for message, reason in (
        (ack("refused", signer=m.Signer("proxy", kit.signing_key(9))), "forged"),
        (ack("refused", signer=db.ME.signer), "unknown_signer"),
        (ack("refused", signer=kit.CLOUD), "unexpected_body"),
        (kit.PROXY.note(m.Close(kit.JOB, "failed")), "unexpected_body"),
        (kit.PROXY.note(m.Want(kit.JOB)), "unexpected_body"),
    ):
        assert kit.refused(db.receive(machine, message)) == [reason]
        assert db.snapshot(machine) == before


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("accepted", "outcome"), [(3, "counted"), (2, "partial"), (0, "missing")])
def test_a_commit_says_how_many_segments_were_counted(accepted, outcome, late):
    """Also one that comes after the next round."""
    machine, record = db.device(), committed(*db.SEGMENTS[:accepted], b"another device's")
    upload(machine)
    db.receive(machine, ack("held"))
    if late:
        db.receive(machine, kit.offer(kit.manifest(db.MODEL, kit.at(2)), db.MODEL))
    out = db.receive(machine, record)
    assert kit.reports(out)["counted"]["counted"] == accepted
    ended = dr.LateRecord if late else dr.OutboxDrop
    assert kit.stored(out) == [ended(kit.at(), outcome)] and not machine.memory.uploads
    assert db.receive(machine, record) == []


def test_at_the_deadline_an_upload_is_given_up_unless_it_was_acknowledged():
    machine = db.device()
    upload(machine)
    assert kit.stored(db.fire(machine, "deadline")) == [dr.OutboxDrop(kit.at(), "dropped")]
    assert machine.state is dr.DeviceState.IDLE
    assert db.fire(machine, "resend") == []
    machine = db.device()
    upload(machine)
    db.receive(machine, ack("held"))
    assert db.fire(machine, "deadline") == [] and machine.memory.uploads


@pytest.mark.parametrize("held", [False, True])
def test_a_restart_sends_the_same_upload_until_it_is_acknowledged_and_does_no_second_work(held):
    first = db.device()
    sent = kit.headers(upload(first))
    if held:
        db.receive(first, ack("held"))
    machine = db.device(first.memory)
    out = machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    assert kit.headers(out) == ([] if held else sent)
    assert machine.state is (DeviceState.ANSWERED if held else DeviceState.UPLOADING)
    assert kit.tasks(db.receive(machine, kit.offer(kit.manifest(db.MODEL), db.MODEL))) == []
    db.receive(machine, ack("held"))
    assert db.receive(machine, ack("closed")) == []  # late, it takes nothing back
    out = db.receive(machine, committed(*db.SEGMENTS))
    assert kit.refused(out) == [] and kit.reports(out)["counted"]["counted"] == 3


ENDS = {
    "counted": lambda machine: db.receive(machine, committed(*db.SEGMENTS)),
    "refused": lambda machine: db.receive(machine, ack("closed")),
    "expired": lambda machine: db.fire(machine, "deadline"),
}


@pytest.mark.parametrize("end", [*ENDS, "declined"])
def test_a_settled_round_is_not_taken_up_again_also_after_a_restart(end):
    machine, header = db.device(), kit.manifest(db.MODEL)
    if end == "declined":
        decline(machine, header)
    else:
        upload(machine)
        ENDS[end](machine)
    fork = msgspec.structs.replace(header, commitment=b"z" * 32)
    again = kit.offer(kit.manifest(db.MODEL, kit.at(1, 2)), db.MODEL)
    for one in (db.device(copy.deepcopy(machine.memory)), machine):
        assert db.receive(one, kit.offer(header, db.MODEL)) == []
        assert kit.refused(db.receive(one, kit.offer(fork, db.MODEL))) == ["forked_manifest"]
        assert len(kit.tasks(db.receive(one, again))) == 1


KEY = bytes(range(32))
ROUND = kit.manifest(db.MODEL, masked=(MaskedGroup(0, 10, 40),))


def receive_key(machine, key=KEY, where=None):
    return db.receive(machine, kit.PROXY.note(RoundKey(where or kit.at(), key)))


def test_without_the_round_s_key_from_the_proxy_the_round_is_refused_and_nothing_stored():
    machine = db.device()
    for where in (kit.at(1, 2), kit.at(2), kit.at(job=b"K" * 16)):
        receive_key(machine, where=where)
    assert kit.refused(db.receive(machine, kit.CLOUD.note(RoundKey(kit.at(), KEY))))
    before = db.snapshot(machine)
    out = db.receive(machine, kit.offer(ROUND, db.MODEL))
    assert kit.refused(out) == ["no_round_key"]
    assert kit.stored(out) == kit.tasks(out) == []
    assert db.snapshot(machine) == before


def test_a_fleet_s_waits_are_spread_and_never_longer_than_said():
    waits = [Backoff(f"{n:016x}").wait_s(4.0, 1, 30.0) for n in range(2000)]
    assert all(4.0 < wait <= 8.0 for wait in waits)
    tenths = [int((wait - 4.0) / 0.4) for wait in waits]
    assert min(tenths.count(tenth) for tenth in range(10)) > 120  # 200 expected, 13 deviation


UP = fx.PeerConnected(fx.ProxyAddress())


def counting(answered=0):
    return db.device(DeviceMemory(jobs={kit.JOB: None}, answered=answered))


def digest_of_hello(machine):
    hello = Hello(db.ME.id, 0, 0, machine.memory.answered, 3)
    return hashlib.sha256(db.ME.signer.note(hello).body.payload).digest()


def test_until_its_hello_is_acknowledged_it_takes_up_nothing_and_then_it_numbers_its_answers():
    machine, sent = counting(4), kit.offer(kit.manifest(db.MODEL), db.MODEL)
    machine.handle(UP, 0.0)
    assert db.receive(machine, sent) == []
    db.receive(machine, kit.PROXY.note(Ack(digest_of_hello(machine), "held")))
    assert kit.tasks(db.receive(machine, sent))
    (header,) = kit.headers(upload(machine))
    assert (header.number, machine.memory.answered) == (5, 5)
    assert kit.bodies(machine.handle(UP, 0.0), Hello) == [Hello(db.ME.id, 0, 0, 5, 3)]


def test_told_that_it_is_behind_it_counts_before_it_says_hello_again():
    machine = counting(2)
    machine.handle(UP, 0.0)
    elsewhere = kit.PROXY.note(Behind(bytes(32), 6, (), True))  # an answer to another hello
    forged = db.ME.signer.note(Behind(digest_of_hello(machine), 6, (), True))
    for foreign in (elsewhere, forged):
        assert kit.tasks(db.receive(machine, foreign)) == [] and machine.memory.answered == 2
    behind = Behind(digest_of_hello(machine), 6, (EncryptedJobState(kit.JOB, b"d"),), True)
    (task,) = kit.tasks(db.receive(machine, kit.PROXY.note(behind)))
    assert task == CountElsewhere(behind)
    assert db.receive(machine, kit.offer(kit.manifest(db.MODEL), db.MODEL)) == []
    out = db.done(machine, task, Installation())
    assert kit.bodies(out, Hello) == [Hello(db.ME.id, 0, 0, 6, 3)]


def hello(machine, number):
    return send_note(machine, FLEET[0], Hello(FLEET[0].id, 0, 0, number, 3))


def test_who_counts_fewer_than_were_given_is_told_and_not_heard():
    machine = proxy(ProxyMemory(answered={FLEET[0].id: 7}))
    machine.hold_work = True
    out = hello(machine, 5)
    assert kit.refused(out) == ["behind"] and not kit.bodies(out, Ack)
    assert FLEET[0].id not in machine.online
    (task,) = kit.tasks(out)
    assert isinstance(task, FindAnswered) and (task.since, task.known) == (5, 7)
    found = Answered(7, (EncryptedJobState(kit.JOB, b"d"),), True)
    out = machine.handle(fx.WorkDone(task, found), 0.0)
    assert kit.bodies(out, Behind) == [Behind(task.hello, 7, found.jobs, True)]
    assert [send.to for send in kit.of(out, fx.Send)] == [fx.DeviceAddress(FLEET[0].id)]
    assert kit.bodies(hello(machine, 7), Ack) and FLEET[0].id in machine.online
