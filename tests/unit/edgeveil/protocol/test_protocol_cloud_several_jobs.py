"""Several jobs at one cloud: each goes its own way, and none holds up another."""

from __future__ import annotations

import pytest
from cloud_bench import (
    OTHER,
    absorb,
    batch,
    both_waiting,
    broadcast,
    cloud,
    done,
    fire,
    receive,
    seal,
    start,
    state,
)
from hypothesis import given
from hypothesis import strategies as st
from protocol_kit import JOB, PROXY, bodies, commit_of, messages, of, offer, parts_of, stored, tasks

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CancelJob, CloudMachine
from edgeveil.protocol.messages import Ack, BlobPart, ExchangeId, Need, Shortfall

THIRD = b"L" * 16
JOBS = (JOB, OTHER, THIRD)


def where(job: bytes, attempt: int = 1) -> ExchangeId:
    return ExchangeId(job, 1, attempt)


def test_batches_of_two_jobs_that_come_interleaved_are_each_its_own():
    machine = both_waiting(push_bytes=1)
    sent = {job: batch(where(job), fill=job[:1], size=2500) for job in (JOB, OTHER)}
    for header, _ in sent.values():
        receive(machine, offer(header, b"", PROXY))
    pieces = {job: parts_of(header, data) for job, (header, data) in sent.items()}
    came: dict[bytes, list[object]] = {JOB: [], OTHER: []}
    absorbed = []
    for mine, theirs in zip(pieces[JOB], pieces[OTHER], strict=True):
        for part in (theirs, mine):
            out = receive(machine, part)
            for kept in of(out, fx.Persist):
                assert isinstance(kept.item, cj.BatchPart)
                came[kept.item.job_id].append(kept.item.data)
            absorbed += tasks(out)
    assert absorbed == [cj.Absorb({"": sent[OTHER][0]}), cj.Absorb({"": sent[JOB][0]})]
    assert {job: b"".join(data) for job, data in came.items()} == {
        job: data for job, (_, data) in sent.items()
    }


def test_one_pauses_while_the_other_ends():
    machine = both_waiting()
    fire(machine, "watchdog", OTHER)
    broadcast(machine, cj.SealRound(OTHER, 1, 2))
    paused = receive(machine, PROXY.note(Shortfall(where(OTHER, 2), 0, 0)))
    (status,) = [one for one in stored(paused) if isinstance(one, cj.JobStatus)]
    assert (status.job_id, status.status) == (OTHER, "paused")
    assert {one.name.partition("/")[2] for one in of(paused, fx.CancelTimer)} == {OTHER.hex()}
    assert state(machine) is cj.CloudState.WAITING and state(machine, OTHER) is cj.CloudState.IDLE
    assert tasks(absorb(machine)) == [cj.SealRelease(JOB)]
    out = broadcast(machine, cj.SealRelease(JOB))
    assert [one.status for one in stored(out) if isinstance(one, cj.JobStatus)] == ["completed"]
    assert machine.courses == {}


def test_timers_and_effects_name_their_job():
    machine = both_waiting()
    out = fire(machine, "watchdog", OTHER)
    assert tasks(out) == [cj.SealRound(OTHER, 1, 2)]
    about = {one.at for one in out if isinstance(one, fx.Report | fx.Work)}
    assert about == {where(OTHER, 2)}
    assert state(machine) is cj.CloudState.WAITING and machine.courses[JOB].attempt == 1


def test_the_proxy_is_given_the_parts_of_whichever_broadcast_it_asks_for():
    machine = both_waiting()
    heads = {}
    for job in (JOB, OTHER):
        fire(machine, "watchdog", job)
        heads[job], _ = seal(machine, cj.SealRound(job, 1, 2), 3000)
    for job in (OTHER, JOB):
        out = receive(machine, Need(heads[job].blob.digest, (1,)))
        assert [one.index for one in messages(out, BlobPart)] == [1]
        assert {one.name for one in of(out, fx.SetTimer)} == {f"watchdog/{job.hex()}"}


def test_a_job_that_ends_leaves_the_other_its_batch():
    machine = both_waiting(push_bytes=1)
    for job in (JOB, OTHER):
        receive(machine, offer(batch(where(job), fill=job[:1], size=2500)[0], b"", PROXY))
    out = machine.handle(fx.Command(CancelJob(OTHER)), 0.0)
    assert [one for one in stored(out) if isinstance(one, cj.BatchDropped)] == [
        cj.BatchDropped(OTHER)
    ]
    header, data = batch(where(JOB), fill=JOB[:1], size=2500)
    outs = [effect for part in parts_of(header, data) for effect in receive(machine, part)]
    assert tasks(outs) == [cj.Absorb({"": header})]


def test_a_batch_waits_while_others_leave_no_room_and_the_proxy_counts_as_there():
    machine = both_waiting(push_bytes=1, spool_bytes=4000)
    first, data = batch(where(JOB), size=2500)
    second, _ = batch(where(OTHER), fill=b"b", size=2500)
    receive(machine, offer(first, b"", PROXY))
    out = receive(machine, offer(second, b"", PROXY))
    assert [one.reason for one in of(out, fx.Refuse)] == ["spool_full"]
    assert [one.name for one in of(out, fx.SetTimer)] == [f"watchdog/{OTHER.hex()}"]
    assert state(machine, OTHER) is cj.CloudState.WAITING
    for part in parts_of(first, data):
        receive(machine, part)
    done(machine, cj.Absorb({"": first}), cj.RoundCommit(*commit_of(where(JOB), [b"a"])))
    assert messages(receive(machine, offer(second, b"", PROXY)), Need)


def test_what_is_about_no_job_that_runs_is_closed_and_changes_nothing():
    machine = both_waiting()
    out = receive(machine, offer(batch(where(THIRD))[0], b"a" * 90, PROXY))
    assert [ack.status for ack in bodies(out, Ack)] == ["closed"]
    assert receive(machine, PROXY.note(Shortfall(where(THIRD), 1, 1))) == []
    assert [state(machine, job) for job in (JOB, OTHER)] == [cj.CloudState.WAITING] * 2


@pytest.mark.parametrize("job", [JOB, OTHER])
def test_an_outcome_that_comes_twice_is_refused_for_its_job_alone(job):
    machine = both_waiting()
    _, out = seal(machine, cj.SealRound(job, 1, 1))
    assert [one.reason for one in of(out, fx.Refuse)] == ["illegal_transition"]
    assert [state(machine, one) for one in (JOB, OTHER)] == [cj.CloudState.WAITING] * 2


def _play(machine: CloudMachine, job: bytes, step: int) -> list[fx.Effect]:
    """One event of a job's course; whether it fits where the job stands is the machine's to say."""
    attempt = machine.courses[job].attempt if job in machine.courses else 1
    at = where(job, attempt)
    match step:
        case 0:
            return start(machine, cj.StartJob(job, 1, 1, exchanges=1, retries=2))
        case 1:
            return broadcast(machine, cj.SealJob(job))
        case 2:
            return broadcast(machine, cj.SealRound(job, 1, attempt))
        case 3:
            return absorb(machine, at)
        case 4:
            return broadcast(machine, cj.SealRelease(job))
        case 5:
            return fire(machine, "watchdog", job)
        case 6:
            return receive(machine, PROXY.note(Shortfall(at, 1, 0)))
    return machine.handle(fx.Command(CancelJob(job)), 0.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=40))
def test_jobs_interleaved_go_as_each_would_alone(tape):
    """Whatever happens to the others, in whatever order, repeated or left out."""
    together, alone = cloud(), {job: cloud() for job in JOBS}
    for who, step in tape:
        job = JOBS[who]
        said = _play(together, job, step), _play(alone[job], job, step)
        works = [[one for one in out if not isinstance(one, fx.Send)] for out in said]
        if step == 0 or job in alone[job].courses:
            assert [type(one) for one in works[0]] == [type(one) for one in works[1]]
            assert tasks(said[0]) == tasks(said[1]) and stored(said[0]) == stored(said[1])
        assert state(together, job) is state(alone[job], job)
