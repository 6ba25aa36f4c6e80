"""Rounds of several jobs at hand at once: none waits for another but for its turn to compute."""

from dataclasses import replace

import protocol_kit as kit
from device_bench import MODEL, PACKAGE, SEALED, device, done, receive
from hypothesis import given
from hypothesis import strategies as st
from protocol_kit import at

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m

JOBS = (kit.JOB, b"K" * 16, b"L" * 16)


def several():
    return device(dr.DeviceMemory(jobs=dict.fromkeys(JOBS)))


def model(job):
    return MODEL + job


def round_of(job, **changes):
    return kit.manifest(model(job), at(job=job), **changes)


def answer_of(job):
    return replace(SEALED, data=SEALED.data[:-1] + job[:1])


def open_(machine, header, now_s=0.0, budget_s=0.0, **more):
    data = model(header.at.job_id)
    receive(machine, kit.offer(header, data), now_s)
    opened = dr.OpenedPackage(PACKAGE, budget_s=budget_s, **more)
    return done(machine, dr.OpenPackage(header, data), opened, now_s)


def test_of_too_many_rounds_one_that_is_over_makes_room():
    machine = device(dr.DeviceMemory(jobs=dict.fromkeys(JOBS)), jobs=2)
    third = kit.offer(round_of(JOBS[2]), model(JOBS[2]))
    (task,), _ = [kit.tasks(open_(machine, round_of(job))) for job in JOBS[:2]]
    assert kit.refused(receive(machine, third)) == ["too_many_rounds"]
    done(machine, task, dr.NoAnswer("few"), 0.0)
    assert kit.refused(receive(machine, third)) == []


def works(effects):
    return [task for task in kit.tasks(effects) if isinstance(task, dr.ComputeAnswer)]


def test_one_computes_after_the_other_and_begins_when_the_time_of_the_first_has_passed():
    machine = several()
    (first,) = works(open_(machine, round_of(JOBS[0]), 100.0, budget_s=4.0))
    out = open_(machine, round_of(JOBS[1]), 101.0, budget_s=8.0)
    assert (works(out), kit.timers(out)[dr.TURN]) == ([], 2.5)
    assert (
        works(done(machine, first, answer_of(JOBS[0]), 101.5)) == []
    )  # done, and it does not show
    (second,) = works(machine.handle(fx.Timer(dr.TURN), 103.52))
    assert (first.begun_s, first.until_s) == (100.0, 103.0)
    assert (second.begun_s, second.until_s) == (103.5, 109.5)


def test_the_round_whose_time_ends_first_is_next():
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


def played(plan, work, cover_s):
    """What becomes visible of each job, and when, if their work takes `work` seconds."""
    machine = several()
    if cover_s:
        receive(machine, kit.PROXY.note(m.Cover(cover_s)))
    events = []
    number, live = 0, dict[str, int]()

    def post(when_s, event):
        nonlocal number
        number += 1
        events.append((when_s, number, event))
        return number

    planned = dict(zip(JOBS, plan, strict=False))
    seconds = dict(zip(JOBS, work, strict=False))
    for job, (comes_s, _, _) in planned.items():
        offer = kit.offer(round_of(job), model(job))
        post(comes_s, fx.MessageReceived(fx.ProxyAddress(), offer))
    seen = {}
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
                    _, budget_s, chance = planned[header.at.job_id]
                    found = dr.OpenedPackage(PACKAGE, chance, budget_s)
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
                    job = kit.headers([fx.Send(fx.ProxyAddress(), sent)])[0].at.job_id
                    seen.setdefault(job, ("answers", round(now_s, 6)))
                case fx.Send() as sent if kit.bodies([sent], m.Decline):
                    job = kit.bodies([sent], m.Decline)[0].at.job_id
                    seen.setdefault(job, ("declines", round(now_s, 6)))
    return seen


times = st.floats(0, 20)
plans = st.lists(st.tuples(times, st.floats(0.1, 30), st.floats(0, 0.99)), min_size=2, max_size=3)
seconds = st.lists(st.floats(0, 60), min_size=3, max_size=3)


@given(plans, seconds, seconds, st.sampled_from([0.0, 10.0, 60.0]))
def test_when_anything_leaves_does_not_follow_from_how_long_any_work_takes(
    plan, work, other, cover_s
):
    """Of none of the jobs, and not whether it answers either."""
    seen = played(plan, work, cover_s)
    assert seen == played(plan, other, cover_s)
    assert len(seen) == len(plan)
