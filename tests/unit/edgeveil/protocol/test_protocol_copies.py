"""A device that was copied or put back to an older state: it counts what was answered since."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from device_bench import ME, MODEL, SEALED, device, done, receive, upload, work_on
from protocol_kit import JOB, PROXY, bodies, headers, manifest, of, offer, refused, stored, tasks
from proxy_bench import FLEET, proxy, says

from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import CountElsewhere, Installation
from edgeveil.protocol.device_round import DeviceMemory
from edgeveil.protocol.messages import Ack, Behind, Hello, JobDeposit
from edgeveil.protocol.proxy import Answered, AnswersFrom, FindAnswered
from edgeveil.protocol.proxy_rounds import ProxyMemory

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


def test_the_deposit_travels_with_the_answer() -> None:
    machine = counting()
    heard(machine)
    (task,) = tasks(work_on(machine, manifest(MODEL)))
    (header,) = headers(done(machine, task, replace(SEALED, deposit=b"mine")))
    assert header.deposit == b"mine"


def test_before_it_was_heard_it_takes_up_nothing() -> None:
    machine = counting()
    machine.handle(UP, 0.0)
    assert receive(machine, offer(manifest(MODEL), MODEL)) == []
    heard(machine)
    assert tasks(receive(machine, offer(manifest(MODEL), MODEL)))


def test_one_that_counts_nothing_needs_not_be_heard() -> None:
    assert tasks(receive(device(), offer(manifest(MODEL), MODEL)))


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


@pytest.mark.parametrize("number", [7, 8, -1])
def test_who_counts_as_many_or_does_not_count_is_heard(number: int) -> None:
    machine = proxy(ProxyMemory(answered={FLEET[0].id: 7}))
    assert bodies(hello(machine, number), Ack)


def test_the_first_count_is_kept_and_the_latest_remembered() -> None:
    machine = proxy()
    assert stored(hello(machine, 3)) == [AnswersFrom(FLEET[0].id, 3)]
    assert stored(hello(machine, 5)) == []
    machine.hold_work = True
    assert refused(hello(machine, 4)) == ["behind"]
