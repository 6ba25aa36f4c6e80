"""A job that others hold up comes to a stand, and goes on where it stood."""

from __future__ import annotations

import pytest
from cloud_bench import (
    absorb,
    ack,
    broadcast,
    cloud,
    done,
    fire,
    hand_over,
    receive,
    seal,
    selecting,
    start,
    state,
    waiting,
)
from protocol_kit import JOB, PROXY, at, bodies, of, reports, stored, tasks

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Ack, Close, Shortfall

ONCE = cj.StartJob(JOB, 1, 1, exchanges=2, retries=0)


def by_shortfall(machine):
    return receive(machine, PROXY.note(Shortfall(at(), 1, 2)))


def by_silence(machine):
    return fire(machine, "watchdog")


def by_a_poor_batch(machine):
    return done(machine, tasks(hand_over(machine))[0], cj.TooFewUploads("1 valid upload"))


def by_a_full_disk(machine):
    return done(machine, tasks(hand_over(machine))[0], cj.Obstacle("the batch cannot be written"))


def paused(out):
    (status,) = [item for item in stored(out) if isinstance(item, cj.JobStatus)]
    return status.status == "paused" and status.job_id == JOB and bool(status.reason)


@pytest.mark.parametrize("how", [by_shortfall, by_silence, by_a_poor_batch, by_a_full_disk])
def test_without_retries_left_the_job_pauses_and_nobody_is_told_that_it_ended(how):
    machine = waiting(what=ONCE)
    out = how(machine)
    assert paused(out) and tasks(out) == [] and bodies(out, Close) == []
    assert state(machine) is cj.CloudState.IDLE and JOB not in machine.courses
    assert reports(out)["job_paused"]["reason"]
    assert {"watchdog", "resend"} <= {
        effect.name.partition("/")[0] for effect in of(out, fx.CancelTimer)
    }


@pytest.mark.parametrize("task", [cj.SealJob(JOB), cj.SealRound(JOB, 1, 1)])
def test_work_that_is_blocked_pauses_at_once_and_keeps_its_retries(task):
    machine = cloud()
    start(machine)
    if task != cj.SealJob(JOB):
        broadcast(machine, cj.SealJob(JOB))
    assert paused(done(machine, task, cj.Obstacle("2 devices are still enrolled")))


def test_a_blocked_release_pauses():
    machine = cloud()
    start(machine, cj.StartJob(JOB, 3, 1, exchanges=2, retries=1))
    broadcast(machine, cj.SealJob(JOB))
    assert paused(done(machine, cj.SealRelease(JOB), cj.Obstacle("no device is enrolled")))


def test_work_that_can_never_be_done_still_fails_the_job():
    machine = cloud()
    start(machine)
    out = done(machine, cj.SealJob(JOB), fx.WorkFailed("the sealed job has 9 bytes"))
    assert stored(out) == [cj.JobStatus(JOB, "failed", "the sealed job has 9 bytes")]


def test_a_refused_broadcast_pauses():
    machine = cloud()
    start(machine)
    header, _ = seal(machine, cj.SealJob(JOB))
    out = receive(machine, ack(header, "refused", "spool_full"))
    assert paused(out) and "spool_full" in stored(out)[0].reason


def test_devices_that_all_decline_still_end_the_job():
    machine = waiting(what=ONCE)
    selecting(machine, 3)
    out = receive(machine, PROXY.note(Shortfall(at(), 0, 3)))
    assert stored(out)[0].status == "failed" and len(bodies(out, Close)) == 1


def test_a_resumed_job_is_announced_again_and_goes_on_with_fresh_retries():
    machine = waiting(what=ONCE)
    by_silence(machine)
    assert tasks(start(machine, cj.StartJob(JOB, 1, 2, exchanges=2, retries=1))) == [
        cj.SealJob(JOB)
    ]
    assert tasks(broadcast(machine, cj.SealJob(JOB))) == [cj.SealRound(JOB, 1, 2)]
    broadcast(machine, cj.SealRound(JOB, 1, 2))
    assert tasks(fire(machine, "watchdog")) == [cj.SealRound(JOB, 1, 3)]
    broadcast(machine, cj.SealRound(JOB, 1, 3))
    assert tasks(absorb(machine, at(1, 3))) == [cj.SealRound(JOB, 2, 1)]


def test_while_it_stands_what_still_comes_of_the_round_is_turned_away():
    machine = waiting(what=ONCE)
    by_silence(machine)
    assert [a.status for a in bodies(hand_over(machine), Ack)] == ["closed"]
    assert by_shortfall(machine) == []
    for name in ("watchdog", "resend", "repair"):
        assert fire(machine, name) == []


def test_another_job_may_run_meanwhile():
    machine = waiting(what=ONCE)
    by_silence(machine)
    other = b"K" * 16
    assert tasks(start(machine, cj.StartJob(other, 1, 1, 1, 0))) == [cj.SealJob(other)]
    assert tasks(start(machine, ONCE)) == [cj.SealJob(JOB)]
