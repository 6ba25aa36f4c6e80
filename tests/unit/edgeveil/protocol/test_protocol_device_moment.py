"""An answer leaves at a moment fixed as its package arrives, however long the work takes."""

import copy
from dataclasses import replace

import protocol_kit as kit
import pytest
from device_bench import MODEL, PACKAGE, SEALED, device, done, own, receive
from hypothesis import example, given
from hypothesis import strategies as st

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Cover, Need, Offer

HEADER = kit.manifest(MODEL, deadline_s=60.0)
LOOK = dr.OpenPackage(HEADER, MODEL)
UP = fx.PeerConnected(fx.ProxyAddress())


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.999])
def test_the_length_of_the_work_does_not_show(chance):
    moments, found = set(), dr.OpenedPackage(PACKAGE, chance, budget_s=4.0)
    for work_s, opened_s in ((0.001, 0.0), (1.7, 0.5), (3.1, 0.0)):
        machine = device()
        receive(machine, kit.offer(HEADER, MODEL), 100.0)
        (task,) = kit.tasks(done(machine, LOOK, found, 100.0 + opened_s))
        assert task.until_s == 100.0 + 4.0 * dr.WORK_SHARE
        out = done(machine, task, SEALED, 100.0 + work_s)
        assert kit.stored(out) == kit.headers(out) == []  # nor is it on the disk
        moments.add(round(work_s + kit.timers(out)["resend"], 6))
        left = machine.handle(own("resend"), 104.0)
        assert [type(item) for item in kit.stored(left)] == [dr.OutboxPut]
        assert len(kit.headers(left)) == 1
    (leaves_s,) = moments
    assert 4.0 * dr.LEAVE_SHARE <= leaves_s <= 4.0


@example(0.0, 8.0, 0.0, 0.5, 1.0, 100.0)
@example(0.0, 8.0, 20.0, 0.5, 1.0, 100.0)
@given(
    st.floats(0, 1e6),
    st.floats(0, 1e5),
    st.floats(0, 1e5),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1e5),
    st.floats(0, 2e5),
)
def test_work_always_ends_before_the_moment_and_the_moment_within_the_budget(
    begun_s, budget_s, cover_s, chance, waits_s, left_s
):
    """Whenever its turn comes, and the moment before the round closes."""
    start_s, closes_s = begun_s + waits_s, begun_s + left_s
    found = dr.AnswerWindow(begun_s, budget_s, cover_s, chance, closes_s).moment(start_s)
    assert found.begun_s == start_s
    if not budget_s and not cover_s:
        assert found.wait_s(start_s) == 0
        return
    latest_s = begun_s + cover_s if cover_s else max(start_s, min(start_s + budget_s, closes_s))
    assert found.leaves_s <= latest_s + 1e-6
    late = cover_s and found.allowed_s == 0
    assert late or start_s + found.allowed_s <= found.leaves_s + 1e-6
    if cover_s:
        alone = dr.AnswerWindow(begun_s, budget_s, cover_s, chance).moment(0.0)
        assert found.leaves_s == alone.leaves_s


DUMMY = replace(SEALED, dummy=True)

LARGE_MODEL = b"m" * 4000  # of several parts
LARGE = kit.manifest(LARGE_MODEL, deadline_s=60.0)


def covered(window_s=10.0):
    machine = device()
    assert receive(machine, kit.PROXY.note(Cover(window_s))) == []
    return machine


def unselected(machine, header=HEADER):
    receive(machine, kit.offer(header, MODEL))
    return done(machine, dr.OpenPackage(header, MODEL), dr.OpenedPackage(None))


def test_only_a_new_link_ends_cover_with_the_next_round_unless_it_is_asked_for_again():
    """A note that ended it could be played again by a broker."""
    machine = covered()
    assert kit.refused(receive(machine, kit.PROXY.note(Cover(0.0)))) == ["malformed"]
    receive(machine, kit.offer(HEADER, MODEL))
    machine.handle(UP, 0.0)
    assert kit.tasks(done(machine, LOOK, dr.OpenedPackage(None))) == [dr.SealDummies(HEADER)]
    second, third = (kit.manifest(MODEL, kit.at(number), deadline_s=60.0) for number in (2, 3))
    assert unselected(machine, second) == []
    receive(machine, kit.PROXY.note(Cover(10.0)))
    assert kit.tasks(unselected(machine, third)) == [dr.SealDummies(third)]


def answer(machine, chance, work_s, *, dummy):
    """The package comes at 100 s, the work ends `work_s` later."""
    receive(machine, kit.offer(HEADER, MODEL), 100.0)
    opened = dr.OpenedPackage(None if dummy else PACKAGE, chance, budget_s=0.0 if dummy else 2.0)
    (task,) = kit.tasks(done(machine, LOOK, opened, 100.0))
    return done(machine, task, replace(SEALED, dummy=dummy), 100.0 + work_s)


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.999])
def test_the_length_of_the_work_does_not_show_cover(chance):
    """All leave in the second half of the window, whether they had anything to compute or not."""
    moments = set()
    for work_s, dummy in ((0.001, True), (4.9, False)):
        out = answer(covered(10.0), chance, work_s, dummy=dummy)
        assert kit.messages(out, Offer) == []
        moments.add(round(work_s + kit.timers(out)["resend"], 6))
    (moment,) = moments
    assert moment == pytest.approx(5.0 + chance * 5.0)


@pytest.mark.parametrize("came_s", [0.0, 50.0, 61.0])
def test_the_window_ends_before_the_round_however_late_the_package_is(came_s):
    machine = covered(3600.0)
    receive(machine, kit.offer(LARGE), 0.0)
    for part in kit.parts_of(LARGE, LARGE_MODEL):
        receive(machine, part, came_s)
    look, unlisted = dr.OpenPackage(LARGE, LARGE_MODEL), dr.OpenedPackage(None, 0.999)
    done(machine, look, unlisted, came_s)
    out = done(machine, dr.SealDummies(LARGE), DUMMY, came_s)
    wait_s = 0.0 if kit.messages(out, Offer) else kit.timers(out)["resend"]
    assert wait_s <= max(0.0, LARGE.deadline_s - came_s) / 2


def test_nothing_leaves_before_its_moment_though_the_link_comes_back():
    machine = covered()
    out = answer(machine, 0.5, 0.0, dummy=True)
    assert kit.stored(out) == []  # nor is it on the disk
    assert kit.headers(machine.handle(UP, 101.0)) == []
    out = machine.handle(own("resend"), 107.5)
    assert [type(item) for item in kit.stored(out)] == [dr.OutboxPut]
    assert len(kit.headers(out)) == 1
    assert len(kit.headers(machine.handle(UP, 108.0))) == 1


@pytest.mark.parametrize("selected", [False, True])
def test_a_restart_before_the_moment_does_not_tell_who_was_selected(selected):
    """A dummy is ready at once, an answer after some work: neither is there before its moment."""
    machine = covered(30.0)
    for message in (kit.offer(LARGE), *kit.parts_of(LARGE, LARGE_MODEL)):
        receive(machine, message)
    found = dr.OpenedPackage(PACKAGE if selected else None, 0.5)
    done(machine, dr.OpenPackage(LARGE, LARGE_MODEL), found)
    if not selected:
        done(machine, dr.SealDummies(LARGE), DUMMY)
    machine = device(copy.deepcopy(machine.memory))
    out = machine.handle(UP, 0.0)
    out += receive(machine, kit.PROXY.note(Cover(30.0)))
    out += receive(machine, kit.offer(LARGE)) + machine.handle(fx.Timer("repair"), 1.0)
    assert kit.messages(out, Offer) == []
    assert [need.blob for need in kit.messages(out, Need)] == [LARGE.blob.digest]
