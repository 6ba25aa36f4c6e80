"""An answer leaves at a moment fixed as its package arrives, however long the work takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from device_bench import MODEL, PACKAGE, SEALED, device, own
from hypothesis import example, given
from hypothesis import strategies as st
from protocol_kit import headers, manifest, offer, stored, tasks, timers

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import DeviceMachine

HEADER = manifest(MODEL, deadline_s=60.0)


def worked(work_s: float, chance: float, sealed: dr.SealedAnswer = SEALED, opened_s: float = 0.0):
    """The machine after an answer's work of `work_s`, and what it does then."""
    machine = device()
    machine.handle(fx.MessageReceived(fx.ProxyAddress(), offer(HEADER, MODEL)), 100.0)
    opened = fx.WorkDone(
        dr.OpenPackage(HEADER, MODEL), dr.OpenedPackage(PACKAGE, chance, budget_s=4.0)
    )
    (task,) = tasks(machine.handle(opened, 100.0 + opened_s))
    assert isinstance(task, dr.ComputeAnswer)
    assert task.until_s == 100.0 + 4.0 * dr.WORK_SHARE
    return machine, machine.handle(fx.WorkDone(task, sealed), 100.0 + work_s)


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.999])
def test_the_length_of_the_work_does_not_show(chance: float) -> None:
    moments = set()
    for work_s, opened_s in ((0.001, 0.0), (1.7, 0.5), (3.1, 0.0)):
        machine, out = worked(work_s, chance, opened_s=opened_s)
        assert (stored(out), headers(out)) == ([], [])  # nor is it on the disk before its moment
        moments.add(round(work_s + timers(out)["resend"], 6))
        left = machine.handle(own("resend"), 104.0)
        assert [type(item) for item in stored(left)] == [dr.OutboxPut]
        assert len(headers(left)) == 1
    (leaves_s,) = moments
    assert 4.0 * dr.LEAVE_SHARE <= leaves_s <= 4.0


def test_an_answer_that_no_record_had_a_part_in_leaves_at_once() -> None:
    _, out = worked(0.001, 0.5, replace(SEALED, at_once=True))
    assert len(headers(out)) == 1


def test_a_job_that_is_not_known_has_no_moment() -> None:
    machine: DeviceMachine = device()
    machine.handle(fx.MessageReceived(fx.ProxyAddress(), offer(HEADER, MODEL)), 100.0)
    (task,) = tasks(
        machine.handle(
            fx.WorkDone(dr.OpenPackage(HEADER, MODEL), dr.OpenedPackage(PACKAGE, 0.5)), 100.0
        )
    )
    assert len(headers(machine.handle(fx.WorkDone(task, SEALED), 107.0))) == 1


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
    begun_s: float, budget_s: float, cover_s: float, chance: float, waits_s: float, left_s: float
) -> None:
    """Whenever its turn comes, and the moment before the round closes."""
    start_s, closes_s = begun_s + waits_s, begun_s + left_s
    found = dr.AnswerWindow(begun_s, budget_s, cover_s, chance, closes_s).moment(start_s)
    assert found.begun_s == start_s
    if cover_s:
        assert found.allowed_s == 0 or start_s + found.allowed_s <= found.leaves_s + 1e-6
        assert found.leaves_s <= begun_s + cover_s + 1e-6
        assert (
            found.leaves_s
            == dr.AnswerWindow(begun_s, budget_s, cover_s, chance).moment(0.0).leaves_s
        )
    elif budget_s:
        assert start_s + found.allowed_s <= found.leaves_s + 1e-6
        assert found.leaves_s <= max(start_s, min(start_s + budget_s, closes_s)) + 1e-6
    else:
        assert found.wait_s(start_s) == 0
