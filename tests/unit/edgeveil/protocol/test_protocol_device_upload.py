"""A device: consent, upload, and until it was counted."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec
import pytest
from device_bench import (
    ME,
    MODEL,
    PACKAGE,
    SEALED,
    SEGMENTS,
    device,
    done,
    fire,
    own,
    receive,
    snapshot,
    upload,
    work_on,
)
from protocol_kit import (
    CLOUD,
    JOB,
    PROXY,
    at,
    bodies,
    commit_of,
    headers,
    manifest,
    messages,
    of,
    offer,
    refused,
    reports,
    signing_key,
    stored,
    tasks,
    timers,
)
from proxy_bench import FLEET, proxy, says

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.device import CountElsewhere, Installation
from edgeveil.protocol.device_round import DeviceMemory, DeviceState
from edgeveil.protocol.messages import Ack, Behind, Hello, JobDeposit, MaskedGroup, RoundKey, Upload
from edgeveil.protocol.proxy import Answered, FindAnswered
from edgeveil.protocol.proxy_rounds import ProxyMemory
from edgeveil.protocol.transfer import Backoff

DIGEST = hashlib.sha256(SEALED.data).digest()
NAMED = JOB.hex()[:12]


def ack(status, digest=DIGEST, signer=PROXY, reason=""):
    return signer.note(m.Ack(digest, status, reason))


def test_declining_says_so_and_names_the_cause_but_not_the_reason():
    machine, header = device(), manifest(MODEL)
    work_on(machine, header)
    out = done(machine, dr.ComputeAnswer(header, PACKAGE), dr.NoAnswer("over it by 3", "budget"))
    assert bodies(out, m.Decline) == [m.Decline(header.at, "budget")]
    assert all(b"over it" not in m.encode(send.message) for send in of(out, fx.Send))
    assert reports(out)["declined"]["why"] == "over it by 3"
    assert reports(out)["declined"]["cause"] == "budget"
    assert machine.state is dr.DeviceState.IDLE


def test_an_upload_is_durable_before_it_is_sent():
    machine = device()
    out = upload(machine)
    kinds = [type(effect) for effect in out]
    assert kinds.index(fx.Persist) < kinds.index(fx.Send)
    (item,) = stored(out)
    (header,) = headers(out)
    assert isinstance(item, dr.OutboxPut) and item.upload == header
    assert header.groups == (0, 1, 2) and header.blob.digest == DIGEST
    assert machine.state is dr.DeviceState.UPLOADING


def test_work_of_a_round_that_is_over_is_not_sent():
    machine, old = device(), manifest(MODEL, at(1))
    work_on(machine, old)
    work_on(machine, manifest(MODEL, at(2)))
    assert done(machine, dr.ComputeAnswer(old, PACKAGE), SEALED) == []
    assert messages(done(machine, dr.ComputeAnswer(old, PACKAGE), dr.NoAnswer("x")), m.Offer) == []
    assert machine.state is dr.DeviceState.WORKING


def test_an_upload_is_sent_again_ever_more_rarely_until_acknowledged():
    machine = device(resend_s=5.0, waits_cap_s=30.0)
    waits = [timers(upload(machine))["resend"]]
    for _ in range(4):
        out = fire(machine, "resend")
        assert [h.blob.digest for h in headers(out)] == [DIGEST]
        waits.append(timers(out)["resend"])
    caps = (5.0, 10.0, 20.0, 30.0, 30.0)
    assert all(cap / 2 < wait <= cap for wait, cap in zip(waits, caps, strict=True))
    out = receive(machine, ack("held"))
    assert of(out, fx.CancelTimer) == [fx.CancelTimer(own("resend").name)]
    assert machine.state is dr.DeviceState.ANSWERED
    assert fire(machine, "resend") == []


def test_a_large_upload_is_offered_and_its_parts_are_pulled():
    machine, header = device(), manifest(MODEL)
    work_on(machine, header)
    data = bytes(range(250)) * 20
    out = done(
        machine,
        dr.ComputeAnswer(header, PACKAGE),
        dr.SealedAnswer((0,), (5000,), data, (b"m" * 32,)),
    )
    (offered,) = messages(out, m.Offer)
    assert offered.data == b"" and messages(out, m.BlobPart) == []
    blob = m.decode_header(offered.header).blob
    pulled = messages(receive(machine, m.Need(blob.digest, tuple(range(blob.parts)))), m.BlobPart)
    assert b"".join(piece.data for piece in pulled) == data
    assert messages(receive(machine, m.Need(blob.digest, (2, 0, 0))), m.BlobPart) == [
        pulled[0],
        pulled[2],
    ]
    assert refused(receive(machine, m.Need(blob.digest, (blob.parts,)))) == ["bad_index"]
    assert receive(machine, m.Need(b"x" * 32, (0,))) == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (ack("refused", signer=m.Signer("proxy", signing_key(9))), "forged"),
        (ack("refused", signer=ME.signer), "unknown_signer"),
        (ack("refused", signer=CLOUD), "unexpected_body"),
        (PROXY.note(m.Close(JOB, "failed")), "unexpected_body"),
        (PROXY.note(m.Want(JOB)), "unexpected_body"),
    ],
)
def test_nobody_else_can_end_an_upload(message, reason):
    machine = device()
    upload(machine)
    before = snapshot(machine)
    assert refused(receive(machine, message)) == [reason]
    assert snapshot(machine) == before


# --- commit -------------------------------------------------------------------------------


@pytest.mark.parametrize("accepted", [3, 2, 0])
def test_a_commit_says_how_many_segments_were_counted(accepted):
    machine = device()
    upload(machine)
    receive(machine, ack("held"))
    record, data = commit_of(at(), [*SEGMENTS[:accepted], b"another device's"])
    out = receive(machine, offer(record, data))
    told = {"job": NAMED, "round": 1, "segments": 3, "counted": accepted}
    assert reports(out)["counted"] == told
    outcome = {3: "counted", 0: "missing"}.get(accepted, "partial")
    assert stored(out) == [dr.OutboxDrop(at(), outcome)] and not machine.memory.uploads
    assert machine.state is dr.DeviceState.IDLE
    assert receive(machine, offer(record, data)) == []


def test_a_commit_of_another_round_is_not_fetched():
    machine = device()
    upload(machine)
    record, data = commit_of(at(1, 2), SEGMENTS)
    assert receive(machine, offer(record, data)) == []
    assert machine.memory.uploads


def test_a_forged_commit_is_refused():
    machine = device()
    upload(machine)
    record, data = commit_of(at(), SEGMENTS)
    assert refused(receive(machine, offer(record, data, PROXY))) == ["unknown_signer"]


# --- the end of a round, a job, a process ----------------------------------------------------


def test_after_the_deadline_the_upload_is_given_up():
    machine = device()
    upload(machine)
    assert stored(fire(machine, "deadline")) == [dr.OutboxDrop(at(), "dropped")]
    assert machine.state is dr.DeviceState.IDLE
    assert fire(machine, "resend") == []


def test_the_deadline_leaves_an_acknowledged_upload_alone():
    machine = device()
    upload(machine)
    receive(machine, ack("held"))
    assert fire(machine, "deadline") == [] and machine.memory.uploads


@pytest.mark.parametrize(("accepted", "outcome"), [(3, "counted"), (2, "partial"), (0, "missing")])
def test_a_commit_that_comes_after_the_next_round_still_counts(accepted, outcome):
    machine = device()
    upload(machine)
    receive(machine, ack("held"))
    receive(machine, offer(manifest(MODEL, at(2)), MODEL))
    record, data = commit_of(at(), SEGMENTS[:accepted])
    out = receive(machine, offer(record, data))
    assert stored(out) == [dr.LateRecord(at(), outcome)]
    assert reports(out)["counted"]["counted"] == accepted
    assert machine.state is dr.DeviceState.OPENING
    assert receive(machine, offer(record, data)) == []


def test_a_restart_sends_the_same_upload_and_does_no_second_work():
    first = device()
    sent = headers(upload(first))
    machine = device(first.memory)
    out = machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    assert headers(out) == sent and machine.state is dr.DeviceState.UPLOADING
    assert tasks(receive(machine, offer(manifest(MODEL), MODEL))) == []
    receive(machine, ack("held"))
    record, data = commit_of(at(), SEGMENTS)
    assert reports(receive(machine, offer(record, data)))["counted"]["counted"] == 3


def test_a_restart_still_refuses_a_fork():
    first, header = device(), manifest(MODEL)
    upload(first, header)
    fork = msgspec.structs.replace(header, commitment=b"z" * 32)
    out = receive(device(first.memory), offer(fork, MODEL))
    assert refused(out) == ["forked_manifest"]


def test_stopping_says_goodbye():
    out = device(dr.DeviceMemory()).handle(fx.Command("stop"), 0.0)
    assert bodies(out, m.Bye) == [m.Bye(ME.id)]


@pytest.mark.parametrize("end", ["counted", "refused", "expired", "declined"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_settled_round_is_not_taken_up_again(end, restarted):
    machine = device()
    if end == "declined":
        work_on(machine, manifest(MODEL))
        out = done(machine, dr.ComputeAnswer(manifest(MODEL), PACKAGE), dr.NoAnswer("busy"))
        assert [type(item) for item in stored(out)] == [dr.ManifestMark]
    else:
        upload(machine)
    if end == "counted":
        record, data = commit_of(at(), SEGMENTS)
        receive(machine, offer(record, data))
    if end == "refused":
        receive(machine, ack("closed"))
    if end == "expired":
        fire(machine, "deadline")
    machine = device(machine.memory) if restarted else machine
    assert receive(machine, offer(manifest(MODEL), MODEL)) == []
    fork = msgspec.structs.replace(manifest(MODEL), commitment=b"z" * 32)
    assert refused(receive(machine, offer(fork, MODEL))) == ["forked_manifest"]
    assert len(tasks(receive(machine, offer(manifest(MODEL, at(1, 2)), MODEL)))) == 1


# --- A device in a round under masks: first the proxy's key, then the round, and a se


KEY = bytes(range(32))
MASKED = replace(SEALED, at_once=True, seed=b"s" * 80)
ROUND = manifest(MODEL, masked=(MaskedGroup(0, 10, 40),))


def told(machine, key=KEY, where=None):
    return receive(machine, PROXY.note(RoundKey(where or at(), key)))


@pytest.mark.parametrize(
    "where", [None, at(1, 2), at(2), at(job=b"K" * 16)], ids=["none", "attempt", "round", "job"]
)
def test_without_the_round_s_key_the_round_is_refused_and_nothing_stored(where):
    machine = device()
    if where:
        told(machine, where=where)
    before = snapshot(machine)
    out = receive(machine, offer(ROUND, MODEL))
    assert refused(out) == ["no_round_key"]
    assert stored(out) == tasks(out) == []
    assert snapshot(machine) == before


def test_the_work_is_given_the_key_and_the_upload_carries_the_seed():
    machine = device()
    told(machine, b"n" * 32, at(1, 2))
    told(machine)
    (task,) = tasks(work_on(machine, ROUND))
    assert task.round_key == KEY
    out = done(machine, dr.ComputeAnswer(ROUND, PACKAGE), MASKED)
    (upload,) = [header for header in headers(out) if isinstance(header, Upload)]
    assert upload.seed == b"s" * 80
    (item,) = stored(out)
    assert item.upload.seed == b"s" * 80


def test_a_key_is_believed_from_the_proxy_alone():
    machine = device()
    out = receive(machine, CLOUD.note(RoundKey(at(), KEY)))
    assert refused(out)
    assert refused(receive(machine, offer(ROUND, MODEL))) == ["no_round_key"]


def test_keys_of_as_many_jobs_as_it_knows_are_kept():
    names = [bytes([number]) * 16 for number in range(4)]
    machine = device(dr.DeviceMemory(jobs=dict.fromkeys([*names, JOB])), jobs=3)
    for name in names:
        told(machine, where=at(job=name))
    found = []
    for name in names:
        header = manifest(MODEL + name, at(job=name), masked=ROUND.masked)
        found.append(refused(receive(machine, offer(header, MODEL + name))))
    assert found == [["no_round_key"], [], [], []]


# --- A device's waits: spread over the fleet, put off when asked; an acknowledgement


def test_a_fleet_s_waits_are_spread_and_never_longer_than_said() -> None:
    waits = [Backoff(f"{n:016x}").wait_s(4.0, 1, 30.0) for n in range(2000)]
    assert all(4.0 < wait <= 8.0 for wait in waits)
    tenths = [int((wait - 4.0) / 0.4) for wait in waits]
    assert min(tenths.count(tenth) for tenth in range(10)) > 120  # 200 expected, 13 deviation


@pytest.mark.parametrize(("tries", "most_s"), [(0, 5.0), (1, 10.0), (3, 30.0), (10_000, 30.0)])
def test_waits_double_up_to_a_cap(tries: int, most_s: float) -> None:
    wait_s = Backoff("a" * 16).wait_s(5.0, tries, 30.0)
    assert most_s / 2 < wait_s <= most_s


# --- what is acknowledged -------------------------------------------------------------------


def test_an_acknowledged_upload_is_not_offered_again_after_a_restart() -> None:
    first = device()
    upload(first)
    receive(first, PROXY.note(Ack(DIGEST, "held")))
    machine = device(first.memory)
    assert headers(machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)) == []
    assert machine.state is DeviceState.ANSWERED
    assert tasks(receive(machine, offer(manifest(MODEL), MODEL))) == []
    # A late word that the round is closed takes nothing back.
    assert receive(machine, PROXY.note(Ack(DIGEST, "closed"))) == []
    record, data = commit_of(at(), [])
    out = receive(machine, offer(record, data))
    assert refused(out) == []
    assert reports(out)["counted"]["counted"] == 0


# --- A device that was copied or put back to an older state: it counts what was answe


UP = fx.PeerConnected(fx.ProxyAddress())


def counting(answered: int = 0):
    """A device whose memory is kept, after so many answers."""
    return device(DeviceMemory(jobs={JOB: None}, answered=answered))


def heard(machine) -> None:
    machine.handle(UP, 0.0)
    receive(machine, PROXY.note(Ack(said(machine), "held")))


def said(machine) -> bytes:
    """Digest of its hello."""
    hello = Hello(ME.id, 0, 0, machine.memory.answered, 3)
    return hashlib.sha256(ME.signer.note(hello).body.payload).digest()


# --- at the device ---


def test_answers_are_numbered_and_a_hello_says_the_last_number() -> None:
    machine = counting(4)
    heard(machine)
    (header,) = headers(upload(machine))
    assert (header.number, machine.memory.answered) == (5, 5)
    assert bodies(machine.handle(UP, 0.0), Hello) == [Hello(ME.id, 0, 0, 5, 3)]


def test_before_it_was_heard_it_takes_up_nothing() -> None:
    machine = counting()
    machine.handle(UP, 0.0)
    assert receive(machine, offer(manifest(MODEL), MODEL)) == []
    heard(machine)
    assert tasks(receive(machine, offer(manifest(MODEL), MODEL)))


def test_told_that_it_is_behind_it_counts_before_it_says_hello_again() -> None:
    machine = counting(2)
    machine.handle(UP, 0.0)
    behind = Behind(said(machine), 6, (JobDeposit(JOB, b"d"),), True)
    (task,) = tasks(receive(machine, PROXY.note(behind)))
    assert task == CountElsewhere(behind)
    assert receive(machine, offer(manifest(MODEL), MODEL)) == []
    out = done(machine, task, Installation())
    assert bodies(out, Hello) == [Hello(ME.id, 0, 0, 6, 3)]


@pytest.mark.parametrize("wrong", ["of another hello", "by another signer"])
def test_a_foreign_word_makes_it_count_nothing(wrong: str) -> None:
    machine = counting(2)
    machine.handle(UP, 0.0)
    digest = bytes(32) if wrong == "of another hello" else said(machine)
    signer = PROXY if wrong == "of another hello" else ME.signer
    out = receive(machine, signer.note(Behind(digest, 6, (), True)))
    assert tasks(out) == [] and machine.memory.answered == 2


def test_what_could_not_be_counted_leaves_it_where_it_was() -> None:
    machine = counting(2)
    machine.handle(UP, 0.0)
    behind = Behind(said(machine), 6, (), True)
    (task,) = tasks(receive(machine, PROXY.note(behind)))
    assert refused(done(machine, task, fx.WorkFailed("full_disk"))) == ["full_disk"]
    assert machine.memory.answered == 2
    assert receive(machine, offer(manifest(MODEL), MODEL)) == []


# --- at the proxy ---


def hello(machine, number: int):
    return says(machine, FLEET[0], FLEET[0].signer.note(Hello(FLEET[0].id, 0, 0, number, 3)))


def test_who_counts_fewer_than_were_given_is_told_and_not_heard() -> None:
    machine = proxy(ProxyMemory(answered={FLEET[0].id: 7}))
    machine.hold_work = True
    out = hello(machine, 5)
    assert refused(out) == ["behind"] and not bodies(out, Ack)
    assert FLEET[0].id not in machine.online
    (task,) = tasks(out)
    assert isinstance(task, FindAnswered) and (task.since, task.known) == (5, 7)
    found = Answered(7, (JobDeposit(JOB, b"d"),), True)
    out = machine.handle(fx.WorkDone(task, found), 0.0)
    assert bodies(out, Behind) == [Behind(task.hello, 7, found.jobs, True)]
    assert [send.to for send in of(out, fx.Send)] == [fx.DeviceAddress(FLEET[0].id)]
    assert bodies(hello(machine, 7), Ack) and FLEET[0].id in machine.online
