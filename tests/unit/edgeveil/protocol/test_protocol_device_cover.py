"""A device under cover traffic: it answers every round, at a moment that chance decides."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace

import pytest
from device_bench import MODEL, PACKAGE, SEALED, device, done, own, receive, work_on
from protocol_kit import (
    PROXY,
    at,
    bodies,
    commit_of,
    headers,
    manifest,
    messages,
    offer,
    parts_of,
    refused,
    reports,
    stored,
    tasks,
    timers,
)

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.messages import Ack, Cover, Decline, Manifest, Need, Offer

DUMMY = replace(SEALED, dummy=True)
DIGEST = hashlib.sha256(SEALED.data).digest()
HEADER = manifest(MODEL, deadline_s=60.0)
LARGE_MODEL = b"m" * 4000  # of several parts
LARGE = manifest(LARGE_MODEL, deadline_s=60.0)


def covered(window_s: float = 10.0) -> DeviceMachine:
    machine = device()
    assert receive(machine, PROXY.note(Cover(window_s))) == []
    return machine


def unselected(machine: DeviceMachine, header: Manifest = HEADER) -> list[fx.Effect]:
    receive(machine, offer(header, MODEL))
    return done(machine, dr.OpenPackage(header, MODEL), dr.OpenedPackage(None))


def test_who_was_not_selected_answers_with_dummies() -> None:
    machine = covered()
    assert tasks(unselected(machine)) == [dr.SealDummies(HEADER)]
    done(machine, dr.SealDummies(HEADER), DUMMY)
    (item,) = stored(machine.handle(own("resend"), 10.0))
    assert isinstance(item, dr.OutboxPut)
    assert item.dummy
    assert machine.state is dr.DeviceState.UPLOADING


@pytest.mark.parametrize("outcome", [dr.NoAnswer("over budget"), fx.WorkFailed("wrong_groups")])
def test_who_declines_answers_with_dummies_and_no_note(outcome: object) -> None:
    machine = covered()
    work_on(machine, HEADER)
    out = done(machine, dr.ComputeAnswer(HEADER, PACKAGE), outcome)
    assert tasks(out) == [dr.SealDummies(HEADER)]
    assert bodies(out, Decline) == []
    assert "why" in reports(out)["declined"]


def test_a_broadcast_that_does_not_open_is_answered_too() -> None:
    machine = covered()
    receive(machine, offer(HEADER, MODEL))
    out = done(machine, dr.OpenPackage(HEADER, MODEL), fx.WorkFailed("wrong_commitment"))
    assert tasks(out) == [dr.SealDummies(HEADER)]
    assert refused(out) == ["wrong_commitment"]


def test_without_cover_nobody_else_answers() -> None:
    machine = device()
    assert unselected(machine) == []
    assert machine.state is dr.DeviceState.IDLE


def test_a_note_that_would_end_cover_is_malformed() -> None:
    """An old one could be played again by a broker."""
    machine = covered()
    assert refused(receive(machine, PROXY.note(Cover(0.0)))) == ["malformed"]
    assert tasks(unselected(machine)) == [dr.SealDummies(HEADER)]


def test_a_new_link_ends_cover_with_the_next_round_unless_it_is_asked_for_again() -> None:
    machine = covered()
    receive(machine, offer(HEADER, MODEL))
    machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    assert tasks(done(machine, dr.OpenPackage(HEADER, MODEL), dr.OpenedPackage(None))) == [
        dr.SealDummies(HEADER)
    ]
    second, third = (manifest(MODEL, at(number), deadline_s=60.0) for number in (2, 3))
    assert unselected(machine, second) == []
    receive(machine, PROXY.note(Cover(10.0)))
    assert tasks(unselected(machine, third)) == [dr.SealDummies(third)]


def test_where_no_dummy_can_be_made_there_is_silence() -> None:
    machine = covered()
    unselected(machine)
    out = done(machine, dr.SealDummies(HEADER), dr.NoAnswer("too large for the outbox"))
    assert [type(effect) for effect in out] == [fx.Report]
    assert machine.state is dr.DeviceState.IDLE


def test_an_owner_who_requires_cover_answers_nothing_without_it_not_even_that() -> None:
    machine = device(require_cover=True)
    out = work_on(machine, HEADER)
    assert [type(effect) for effect in out] == [fx.Report]
    assert "require_cover" in reports(out)["uncovered"]["why"]
    assert machine.state is dr.DeviceState.IDLE
    receive(machine, PROXY.note(Cover(10.0)))
    second = manifest(MODEL, at(2), deadline_s=60.0)
    (task,) = tasks(work_on(machine, second))
    assert isinstance(task, dr.ComputeAnswer)
    assert (task.manifest, task.package) == (second, PACKAGE)


# --- the moment ---------------------------------------------------------------------------


def answer(machine: DeviceMachine, chance: float, work_s: float, *, dummy: bool) -> list[fx.Effect]:
    """The package comes at 100 s, the work ends `work_s` later."""
    machine.handle(fx.MessageReceived(fx.ProxyAddress(), offer(HEADER, MODEL)), 100.0)
    opened = dr.OpenedPackage(None if dummy else PACKAGE, chance, budget_s=0.0 if dummy else 2.0)
    (task,) = tasks(machine.handle(fx.WorkDone(dr.OpenPackage(HEADER, MODEL), opened), 100.0))
    sealed = replace(SEALED, dummy=dummy)
    return machine.handle(fx.WorkDone(task, sealed), 100.0 + work_s)


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.999])
def test_the_length_of_the_work_does_not_show(chance: float) -> None:
    """All leave in the second half of the window, whether they had anything to compute or not."""
    moments = set()
    for work_s, dummy in ((0.001, True), (4.9, False)):
        out = answer(covered(10.0), chance, work_s, dummy=dummy)
        assert messages(out, Offer) == []
        moments.add(round(work_s + timers(out)["resend"], 6))
    (moment,) = moments
    assert moment == pytest.approx(5.0 + chance * 5.0)


def test_an_answer_s_work_ends_with_the_window_s_first_half() -> None:
    for budget_s, allowed_s in ((2.0, 1.5), (60.0, 3.75), (0.0, 3.75)):
        machine = covered(10.0)
        machine.handle(fx.MessageReceived(fx.ProxyAddress(), offer(HEADER, MODEL)), 100.0)
        opened = fx.WorkDone(
            dr.OpenPackage(HEADER, MODEL), dr.OpenedPackage(PACKAGE, 0.5, budget_s)
        )
        (work,) = tasks(machine.handle(opened, 101.0))
        assert isinstance(work, dr.ComputeAnswer)
        assert (work.begun_s, work.allowed_s) == (100.0, allowed_s)


def test_what_is_ready_after_its_moment_leaves_at_once() -> None:
    assert len(headers(answer(covered(10.0), 0.5, 11.0, dummy=True))) == 1


def test_the_window_is_at_most_half_of_the_round() -> None:
    out = answer(covered(3600.0), 0.999, 0.0, dummy=True)
    assert timers(out)["resend"] < HEADER.deadline_s / 2


@pytest.mark.parametrize("came_s", [0.0, 50.0, 61.0])
def test_the_window_ends_before_the_round_however_late_the_package_is(came_s: float) -> None:
    machine = covered(3600.0)
    machine.handle(fx.MessageReceived(fx.ProxyAddress(), offer(LARGE)), 0.0)
    for part in parts_of(LARGE, LARGE_MODEL):
        machine.handle(fx.MessageReceived(fx.ProxyAddress(), part), came_s)
    machine.handle(
        fx.WorkDone(dr.OpenPackage(LARGE, LARGE_MODEL), dr.OpenedPackage(None, 0.999)), came_s
    )
    out = machine.handle(fx.WorkDone(dr.SealDummies(LARGE), DUMMY), came_s)
    wait_s = 0.0 if messages(out, Offer) else timers(out)["resend"]
    assert wait_s <= max(0.0, LARGE.deadline_s - came_s) / 2


def test_nothing_leaves_before_its_moment_though_the_link_comes_back() -> None:
    machine = covered()
    out = answer(machine, 0.5, 0.0, dummy=True)
    assert stored(out) == []  # nor is it on the disk
    assert headers(machine.handle(fx.PeerConnected(fx.ProxyAddress()), 101.0)) == []
    out = machine.handle(own("resend"), 107.5)
    assert [type(item) for item in stored(out)] == [dr.OutboxPut]
    (header,) = headers(out)
    assert header.blob.digest == DIGEST
    assert len(headers(machine.handle(fx.PeerConnected(fx.ProxyAddress()), 108.0))) == 1


@pytest.mark.parametrize("selected", [False, True])
def test_a_restart_before_the_moment_does_not_tell_who_was_selected(selected: bool) -> None:
    """A dummy is ready at once, an answer after some work: neither is there before its moment."""
    machine = covered(30.0)
    receive(machine, offer(LARGE))
    for part in parts_of(LARGE, LARGE_MODEL):
        receive(machine, part)
    done(
        machine,
        dr.OpenPackage(LARGE, LARGE_MODEL),
        dr.OpenedPackage(PACKAGE if selected else None, 0.5),
    )
    if not selected:
        done(machine, dr.SealDummies(LARGE), DUMMY)
    machine = device(copy.deepcopy(machine.memory))
    out = machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    out += receive(machine, PROXY.note(Cover(30.0)))
    out += receive(machine, offer(LARGE)) + machine.handle(fx.Timer("repair"), 1.0)
    assert messages(out, Offer) == []
    assert [need.blob for need in messages(out, Need)] == [LARGE.blob.digest]


def test_a_newer_round_displaces_an_answer_that_waits() -> None:
    machine = covered()
    answer(machine, 0.5, 0.0, dummy=False)
    second = manifest(MODEL, at(2), deadline_s=60.0)
    receive(machine, offer(second, MODEL))
    out = machine.handle(own("resend"), 107.5)
    assert (stored(out), headers(out)) == ([], [])


# --- what becomes of a dummy ----------------------------------------------------------------


def uploaded(machine: DeviceMachine) -> None:
    unselected(machine)
    done(machine, dr.SealDummies(HEADER), DUMMY)
    machine.handle(own("resend"), 10.0)


def test_a_dummy_lives_and_ends_as_an_upload_does_and_the_owner_is_not_told() -> None:
    machine = covered()
    uploaded(machine)
    out = receive(machine, PROXY.note(Ack(DIGEST, "held")))
    assert stored(out) == [dr.OutboxHeld(at())]
    record, data = commit_of(at(), [b"another device's"])
    out = receive(machine, offer(record, data))
    assert stored(out) == [dr.OutboxDrop(at(), "missing")]
    assert reports(out) == {}


def test_a_refused_dummy_is_dropped_without_a_word() -> None:
    machine = covered()
    uploaded(machine)
    out = receive(machine, PROXY.note(Ack(DIGEST, "closed", "closed_round")))
    assert stored(out) == [dr.OutboxDrop(at(), "dropped")]
    assert reports(out) == {}


def test_a_restart_sends_the_same_dummy() -> None:
    first = covered()
    uploaded(first)
    machine = device(first.memory)
    (header,) = headers(machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0))
    assert header.blob.digest == DIGEST


def test_the_answer_s_form_does_not_tell_dummies_from_true_ones() -> None:
    sent = []
    for dummy in (False, True):
        machine = covered()
        answer(machine, 0.0, 0.0, dummy=dummy)
        sent.append(messages(machine.handle(own("resend"), 105.0), Offer))
    (true,), (false,) = sent
    assert len(true.data) == len(false.data)
    assert len(true.header.payload) == len(false.header.payload)
