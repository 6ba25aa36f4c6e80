"""Rounds of several jobs at hand at once: none waits for another but for its turn to compute."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from device_bench import ME, MODEL, PACKAGE, SEALED, SEGMENTS, device, own
from hypothesis import given
from hypothesis import strategies as st
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
    offer,
    refused,
    reports,
    stored,
    tasks,
    timers,
)

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.device import DeviceMachine

JOBS = (JOB, b"K" * 16, b"L" * 16)
S = dr.DeviceState


def several() -> DeviceMachine:
    return device(dr.DeviceMemory(jobs=dict.fromkeys(JOBS)))


def model(job: bytes) -> bytes:
    return MODEL + job


def round_of(job: bytes, number: int = 1, **changes: object) -> m.Manifest:
    return manifest(model(job), at(number, job=job), **changes)


def answer_of(job: bytes) -> dr.SealedAnswer:
    """Each job's has other bytes."""
    return replace(SEALED, data=SEALED.data[:-1] + job[:1])


def hear(machine: DeviceMachine, message: object, now_s: float = 0.0) -> list[fx.Effect]:
    return machine.handle(fx.MessageReceived(fx.ProxyAddress(), message), now_s)


def open_(
    machine: DeviceMachine,
    header: m.Manifest,
    now_s: float = 0.0,
    budget_s: float = 0.0,
    **more: float,
) -> list[fx.Effect]:
    """The package comes and opens."""
    data = model(header.at.job_id)
    hear(machine, offer(header, data), now_s)
    opened = dr.OpenedPackage(PACKAGE, budget_s=budget_s, **more)
    return machine.handle(fx.WorkDone(dr.OpenPackage(header, data), opened), now_s)


def done(machine: DeviceMachine, task: object, result: object, now_s: float) -> list[fx.Effect]:
    return machine.handle(fx.WorkDone(task, result), now_s)


def state(machine: DeviceMachine, job: bytes) -> dr.DeviceState:
    found = machine.rounds.of(job)
    assert found is not None
    return found.state


def upload(machine: DeviceMachine, job: bytes, number: int = 1) -> list[fx.Effect]:
    (task,) = tasks(open_(machine, round_of(job, number)))
    return done(machine, task, answer_of(job), 0.0)


def ack(job: bytes, status: str = "held") -> object:
    return PROXY.note(m.Ack(digest(answer_of(job).data), status))


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


# --- beside each other --------------------------------------------------------------------


def test_a_round_of_another_job_takes_nothing_from_the_one_that_is_fetched() -> None:
    machine = several()
    first, second = round_of(JOBS[0]), round_of(JOBS[1])
    hear(machine, offer(first))
    assert tasks(hear(machine, offer(second, model(JOBS[1])))) == [
        dr.OpenPackage(second, model(JOBS[1]))
    ]
    assert tasks(hear(machine, offer(first, model(JOBS[0])))) == [
        dr.OpenPackage(first, model(JOBS[0]))
    ]
    assert [state(machine, job) for job in JOBS[:2]] == [S.OPENING, S.OPENING]


def test_each_job_has_its_upload_until_it_is_acknowledged_and_counted() -> None:
    machine = several()
    for job in JOBS:
        assert [type(item) for item in stored(upload(machine, job))] == [dr.OutboxPut]
    assert set(machine.memory.uploads) == set(JOBS)
    assert [item.upload.at.job_id for item in machine.memory.uploads.values()] == list(JOBS)
    assert stored(hear(machine, ack(JOBS[1]))) == [dr.OutboxHeld(at(job=JOBS[1]))]
    assert [state(machine, job) for job in JOBS] == [S.UPLOADING, S.ANSWERED, S.UPLOADING]
    for job in JOBS[::2]:
        again = machine.handle(own("resend", job), 1.0)
        assert [header.at.job_id for header in headers(again)] == [job]
    last = answer_of(JOBS[1]).data[-len(SEGMENTS[-1]) :]
    record, data = commit_of(at(job=JOBS[1]), [*SEGMENTS[:2], last])
    out = hear(machine, offer(record, data))
    assert stored(out)[0].at == at(job=JOBS[1])
    assert set(machine.memory.uploads) == {JOBS[0], JOBS[2]}


def test_a_need_is_answered_from_the_upload_that_it_names() -> None:
    machine = several()
    for job in JOBS[:2]:
        upload(machine, job)
    for job in JOBS[:2]:
        item = machine.memory.uploads[job]
        (part,) = messages(hear(machine, m.Need(item.upload.blob.digest, (0,))), m.BlobPart)
        assert part.blob == item.upload.blob.digest
        assert item.data.startswith(part.data)


def test_answers_are_numbered_over_all_jobs() -> None:
    machine = device(dr.DeviceMemory(jobs=dict.fromkeys(JOBS), answered=4))
    (hello,) = messages(machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0), m.Note)
    hear(machine, PROXY.note(m.Ack(digest(hello.body.payload), "held")))
    for job in JOBS:
        upload(machine, job)
    assert [item.upload.number for item in machine.memory.uploads.values()] == [5, 6, 7]


@pytest.mark.parametrize("ended", JOBS)
def test_the_end_of_one_job_leaves_the_others_rounds(ended: bytes) -> None:
    machine = several()
    for job in JOBS:
        upload(machine, job)
    out = hear(machine, CLOUD.note(m.Close(ended, "completed")))
    assert dr.OutboxDrop(at(job=ended), "dropped") in stored(out)
    others = [job for job in JOBS if job != ended]
    assert list(machine.memory.uploads) == others
    assert all(state(machine, job) is S.UPLOADING for job in others)


def test_the_deadline_of_one_round_is_its_own() -> None:
    machine = several()
    hear(machine, offer(round_of(JOBS[0])))
    upload(machine, JOBS[1])
    out = machine.handle(own("deadline", JOBS[0]), 70.0)
    assert stored(out) == []
    assert [state(machine, job) for job in JOBS[:2]] == [S.IDLE, S.UPLOADING]
    assert not machine.fetches.has(round_of(JOBS[0]))


def test_all_uploads_come_back_after_a_restart() -> None:
    machine = several()
    for job in JOBS:
        upload(machine, job)
    hear(machine, ack(JOBS[2]))
    again = device(machine.memory)
    out = again.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    assert {header.at.job_id for header in headers(out)} == set(JOBS[:2])
    assert [state(again, job) for job in JOBS] == [S.UPLOADING, S.UPLOADING, S.ANSWERED]
    for job in JOBS:  # nor is one of them computed anew
        assert hear(again, offer(round_of(job), model(job))) == []
        fork = msgspec.structs.replace(round_of(job), commitment=b"z" * 32)
        assert refused(hear(again, offer(fork, model(job)))) == ["forked_manifest"]
        older = round_of(job, 0)
        assert refused(hear(again, offer(older, model(job)))) == ["replayed_round"]


def test_a_device_leaves_when_all_that_it_owes_is_done() -> None:
    machine = several()
    machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    upload(machine, JOBS[1])
    (task,) = tasks(open_(machine, round_of(JOBS[0])))
    assert bodies(machine.handle(fx.Command("leave"), 0.0), m.Bye) == []
    assert hear(machine, offer(round_of(JOBS[2]), model(JOBS[2]))) == []  # nothing new
    assert bodies(hear(machine, ack(JOBS[1])), m.Bye) == []
    out = done(machine, task, dr.NoAnswer("few"), 0.0)
    assert bodies(out, m.Bye) == [m.Bye(ME.id)]
    out = machine.handle(fx.Command("come"), 0.0)
    assert len(bodies(out, m.Hello)) == 1


def test_rounds_before_their_jobs_wait_for_each_of_them() -> None:
    machine = device(dr.DeviceMemory())
    wanted = [
        want for job in JOBS[:2] for want in bodies(hear(machine, offer(round_of(job))), m.Want)
    ]
    assert [want.job_id for want in wanted] == [JOBS[0], JOBS[0], JOBS[1]]
    assert all(machine.fetches.has(round_of(job)) for job in JOBS[:2])


def test_what_happens_is_told_of_its_job() -> None:
    machine = several()
    (task,) = tasks(open_(machine, round_of(JOBS[1])))
    assert machine.at == at(job=JOBS[1])
    open_(machine, round_of(JOBS[0]))
    out = done(machine, task, dr.NoAnswer("few"), 0.0)
    assert reports(out)["declined"]["job"] == JOBS[1].hex()[:12]
    assert machine.at == at(job=JOBS[1])


def test_of_too_many_rounds_one_that_is_over_makes_room() -> None:
    machine = device(dr.DeviceMemory(jobs=dict.fromkeys(JOBS)), jobs=2)
    upload(machine, JOBS[1])
    (task,) = tasks(open_(machine, round_of(JOBS[0])))
    assert refused(hear(machine, offer(round_of(JOBS[2]), model(JOBS[2])))) == ["too_many_rounds"]
    done(machine, task, dr.NoAnswer("few"), 0.0)
    assert refused(hear(machine, offer(round_of(JOBS[2]), model(JOBS[2])))) == []


# --- turns --------------------------------------------------------------------------------


def works(effects: list[fx.Effect]) -> list[dr.ComputeAnswer]:
    return [task for task in tasks(effects) if isinstance(task, dr.ComputeAnswer)]


def test_one_computes_after_the_other_and_begins_when_the_time_of_the_first_has_passed() -> None:
    machine = several()
    (first,) = works(open_(machine, round_of(JOBS[0]), 100.0, budget_s=4.0))
    out = open_(machine, round_of(JOBS[1]), 101.0, budget_s=8.0)
    assert (works(out), timers(out)[dr.TURN]) == ([], 2.5)
    assert (
        works(done(machine, first, answer_of(JOBS[0]), 101.5)) == []
    )  # done, and it does not show
    (second,) = works(machine.handle(fx.Timer(dr.TURN), 103.52))
    assert (first.begun_s, first.until_s) == (100.0, 103.0)
    assert (second.begun_s, second.until_s) == (103.5, 109.5)


@pytest.mark.parametrize("unread", [dr.NoAnswer("few"), replace(SEALED, at_once=True)])
def test_a_turn_without_records_ends_at_once(unread: object) -> None:
    machine = several()
    (first,) = works(open_(machine, round_of(JOBS[0]), 100.0, budget_s=4.0))
    open_(machine, round_of(JOBS[1]), 100.0, budget_s=4.0)
    (second,) = works(done(machine, first, unread, 100.25))
    assert second.begun_s == 100.25


def test_the_round_whose_time_ends_first_is_next() -> None:
    """In the order in which they came one of the two would come too late."""
    machine = several()
    open_(machine, round_of(JOBS[0]), 100.0, budget_s=8.0)
    slow = round_of(JOBS[1], deadline_s=60.0)
    quick = round_of(JOBS[2], deadline_s=10.0)
    open_(machine, slow, 100.0, budget_s=40.0, needed_s=20.0)
    open_(machine, quick, 100.0, budget_s=2.0, needed_s=1.0)
    (second,) = works(machine.handle(fx.Timer(dr.TURN), 107.0))
    assert second.manifest == quick
    (third,) = works(machine.handle(fx.Timer(dr.TURN), 108.75))
    assert third.manifest == slow
    assert third.allowed_s >= 20.0


def test_what_would_come_too_late_is_declined_as_it_comes() -> None:
    machine = several()
    open_(machine, round_of(JOBS[0]), 100.0, budget_s=40.0)
    out = open_(machine, round_of(JOBS[1], deadline_s=31.0), 100.0, budget_s=2.0, needed_s=1.0)
    assert bodies(out, m.Decline) == [m.Decline(at(job=JOBS[1]), "conditions")]
    assert reports(out)["declined"]["why"] == dr.BUSY
    assert state(machine, JOBS[1]) is S.IDLE
    assert works(machine.handle(fx.Timer(dr.TURN), 130.0)) == []


def test_under_cover_what_comes_too_late_is_covered() -> None:
    machine = several()
    hear(machine, PROXY.note(m.Cover(20.0)), 100.0)
    open_(machine, round_of(JOBS[0]), 100.0, budget_s=40.0)
    out = open_(machine, round_of(JOBS[1]), 100.0, budget_s=40.0)
    assert bodies(out, m.Decline) == []
    assert [type(task) for task in tasks(out)] == [dr.SealDummies]


def test_a_round_that_is_over_does_not_wait_for_its_turn() -> None:
    machine = several()
    open_(machine, round_of(JOBS[0]), 100.0, budget_s=4.0)
    open_(machine, round_of(JOBS[1]), 100.0, budget_s=4.0)
    open_(machine, round_of(JOBS[2]), 100.0, budget_s=4.0)
    hear(machine, CLOUD.note(m.Close(JOBS[1], "cancelled")), 101.0)
    (next_,) = works(machine.handle(fx.Timer(dr.TURN), 103.5))
    assert next_.manifest.at.job_id == JOBS[2]


Plan = Sequence[tuple[float, float, float]]  # of each job: when its package comes, budget, chance


def played(plan: Plan, work: Sequence[float], cover_s: float) -> dict[bytes, tuple[object, ...]]:
    """What becomes visible of each job, and when, if their work takes `work` seconds."""
    machine = several()
    if cover_s:
        hear(machine, PROXY.note(m.Cover(cover_s)))
    events: list[tuple[float, int, fx.Event]] = []
    number, live = 0, dict[str, int]()

    def post(when_s: float, event: fx.Event) -> int:
        nonlocal number
        number += 1
        events.append((when_s, number, event))
        return number

    chances = {job: chance for job, (_, _, chance) in zip(JOBS, plan, strict=False)}
    budgets = {job: budget for job, (_, budget, _) in zip(JOBS, plan, strict=False)}
    seconds = dict(zip(JOBS, work, strict=False))
    for job, (comes_s, _, _) in zip(JOBS, plan, strict=False):
        header = round_of(job)
        post(comes_s, fx.MessageReceived(fx.ProxyAddress(), offer(header, model(job))))
    seen: dict[bytes, tuple[object, ...]] = {}
    busy_s = 0.0
    while events:
        events.sort(key=lambda entry: entry[:2])
        now_s, mine, event = events.pop(0)
        if isinstance(event, fx.Timer) and live.get(event.name) != mine:
            continue
        for effect in machine.handle(event, now_s):
            match effect:
                case fx.SetTimer(name=name, delay_s=delay_s) if name.startswith(
                    ("resend", dr.TURN)
                ):
                    if now_s < 1000.0:
                        live[name] = post(now_s + delay_s, fx.Timer(name))
                case fx.CancelTimer(name=name):
                    live.pop(name, None)
                case fx.Work(task=dr.OpenPackage(manifest=header) as task):
                    job = header.at.job_id
                    found = dr.OpenedPackage(PACKAGE, chances[job], budgets[job])
                    post(now_s, fx.WorkDone(task, found))
                case fx.Work(task=dr.ComputeAnswer(manifest=header) as task):
                    job = header.at.job_id
                    assert busy_s <= task.begun_s <= now_s, "two turns at once"
                    busy_s = task.until_s  # and then it is sealed
                    ends_s = min(now_s + seconds[job], max(now_s, task.until_s))
                    post(ends_s, fx.WorkDone(task, answer_of(job)))
                case fx.Work(task=dr.SealDummies(manifest=header) as task):
                    dummy = replace(answer_of(header.at.job_id), dummy=True)
                    post(now_s, fx.WorkDone(task, dummy))
                case fx.Send(message=m.Offer() as sent):
                    job = headers([fx.Send(fx.ProxyAddress(), sent)])[0].at.job_id
                    seen.setdefault(job, ("answers", round(now_s, 6)))
                case fx.Send() as sent if bodies([sent], m.Decline):
                    job = bodies([sent], m.Decline)[0].at.job_id
                    seen.setdefault(job, ("declines", round(now_s, 6)))
    return seen


times = st.floats(0, 20)
plans = st.lists(st.tuples(times, st.floats(0.1, 30), st.floats(0, 0.99)), min_size=2, max_size=3)
seconds = st.lists(st.floats(0, 60), min_size=3, max_size=3)


@given(plans, seconds, seconds, st.sampled_from([0.0, 10.0, 60.0]))
def test_when_anything_leaves_does_not_follow_from_how_long_any_work_takes(
    plan: Plan, work: Sequence[float], other: Sequence[float], cover_s: float
) -> None:
    """Of none of the jobs, and not whether it answers either."""
    seen = played(plan, work, cover_s)
    assert seen == played(plan, other, cover_s)
    assert len(seen) == len(plan)


def test_the_bound_of_a_turn_is_the_work_s_share_of_the_budget() -> None:
    machine = several()
    (task,) = works(open_(machine, round_of(JOBS[0]), 5.0, budget_s=8.0))
    assert task.until_s == 5.0 + 8.0 * dr.WORK_SHARE < math.inf
