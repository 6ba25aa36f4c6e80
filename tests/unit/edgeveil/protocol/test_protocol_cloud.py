"""The cloud: one exchange after the other, each committed once."""

from __future__ import annotations

import pytest
from cloud_bench import (
    OTHER,
    absorb,
    ack,
    batch,
    both_waiting,
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
    of,
    offer,
    parts_of,
    refused,
    reports,
    signing_key,
    stored,
    tasks,
    timers,
    upload_of,
)

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CancelJob, CloudMachine
from edgeveil.protocol.messages import Ack, BlobPart, Close, ExchangeId, Need, Shortfall, Signer
from edgeveil.protocol.transfer import NEED_LIMIT


def test_a_job_goes_from_its_announcement_to_its_release():
    machine = cloud()
    assert tasks(start(machine)) == [cj.SealJob(JOB)]
    assert tasks(broadcast(machine, cj.SealJob(JOB))) == [cj.SealRound(JOB, 1, 1)]
    assert tasks(broadcast(machine, cj.SealRound(JOB, 1, 1))) == []
    assert tasks(hand_over(machine)) == [cj.Absorb({"": batch()[0]})]
    assert tasks(absorb(machine)) == [cj.SealRound(JOB, 2, 1)]
    broadcast(machine, cj.SealRound(JOB, 2, 1))
    assert tasks(absorb(machine, at(2))) == [cj.SealRelease(JOB)]
    out = broadcast(machine, cj.SealRelease(JOB))
    assert stored(out) == [cj.ReleaseHeld(1), cj.JobStatus(JOB, "completed")]
    assert bodies(out, Close) == [Close(JOB, "completed")]
    assert state(machine) is cj.CloudState.IDLE and JOB not in machine.courses


def test_a_batch_is_acknowledged_only_after_the_commit():
    machine = waiting()
    assert messages(hand_over(machine), object) == []
    record, data = commit_of(at(), [b"x"])
    out = done(machine, cj.Absorb({"": batch()[0]}), cj.RoundCommit(record, data))
    assert bodies(out, Ack) == [Ack(batch()[0].blob.digest, "held")]
    assert record in headers(out)


def test_the_proxy_coming_back_gets_the_broadcast():
    machine = cloud()
    start(machine)
    header, _ = seal(machine, cj.SealJob(JOB))
    assert headers(machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)) == [header]


def test_a_batch_may_come_before_the_acknowledgement():
    machine = cloud()
    start(machine)
    broadcast(machine, cj.SealJob(JOB))
    header, _ = seal(machine, cj.SealRound(JOB, 1, 1))
    assert tasks(hand_over(machine)) == [cj.Absorb({"": batch()[0]})]
    assert receive(machine, ack(header)) == []
    assert tasks(absorb(machine)) == [cj.SealRound(JOB, 2, 1)]


def test_a_batch_without_a_job_is_closed():
    assert [a.status for a in bodies(hand_over(cloud()), Ack)] == ["closed"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (offer(*batch(), Signer("proxy", signing_key(9))), "forged"),
        (offer(*batch(), CLOUD), "unknown_signer"),
        (offer(*upload_of(at(), 1), PROXY), "unexpected_header"),
        (offer(manifest(b"m"), b"m", PROXY), "unexpected_header"),
        (offer(batch()[0], b"b" * 90, PROXY), "bad_digest"),
        (PROXY.note(Close(JOB, "failed")), "unexpected_body"),
        (Signer("proxy", signing_key(9)).note(Shortfall(at(), 0, 0)), "forged"),
    ],
)
def test_only_the_proxy_s_own_word_counts(message, reason):
    machine = waiting()
    assert refused(receive(machine, message)) == [reason]
    assert state(machine) is cj.CloudState.WAITING
    assert len(tasks(hand_over(machine))) == 1


# --- repeating ----------------------------------------------------------------------------


def shortfall(machine, where=None):
    return receive(machine, PROXY.note(Shortfall(where or at(), 1, 2)))


def repeat_by_shortfall(machine):
    return shortfall(machine)


def repeat_by_silence(machine):
    return fire(machine, "watchdog")


def repeat_by_too_few(machine):
    hand_over(machine)
    return done(machine, cj.Absorb({"": batch()[0]}), cj.TooFewUploads("1 valid upload"))


@pytest.mark.parametrize("again", [repeat_by_shortfall, repeat_by_silence, repeat_by_too_few])
def test_a_round_is_repeated_as_a_new_attempt_until_the_retries_are_used_up(again):
    machine = waiting()
    out = again(machine)
    assert tasks(out) == [cj.SealRound(JOB, 1, 2)] and state(machine) is cj.CloudState.SEALING
    assert reports(out)["round_repeated"]["attempt"] == 2
    broadcast(machine, cj.SealRound(JOB, 1, 2))
    assert [a.status for a in bodies(hand_over(machine, at(1, 1)), Ack)] == ["closed"]
    out = fire(machine, "watchdog")
    assert stored(out) == [cj.JobStatus(JOB, "paused", "the proxy did not answer in time")]
    assert bodies(out, Close) == [] and state(machine) is cj.CloudState.IDLE


def test_a_shortfall_that_comes_twice_repeats_once():
    machine = waiting()
    shortfall(machine)
    assert shortfall(machine) == []


def test_a_job_resumed_after_its_last_commit_goes_on_to_the_release():
    machine = cloud()
    start(machine, cj.StartJob(JOB, 3, 1, exchanges=2, retries=1))
    assert tasks(broadcast(machine, cj.SealJob(JOB))) == [cj.SealRelease(JOB)]
    out = broadcast(machine, cj.SealRelease(JOB))
    assert stored(out) == [cj.ReleaseHeld(1), cj.JobStatus(JOB, "completed")]


def test_the_watchdog_waits_for_the_round_s_own_deadline():
    machine = cloud(proxy_margin_s=30.0)
    start(machine)
    broadcast(machine, cj.SealJob(JOB))
    task = cj.SealRound(JOB, 1, 1)
    header = manifest(b"m", deadline_s=60.0, grace_s=5.0)
    assert (
        timers(done(machine, task, cj.CellBroadcasts({"": cj.Broadcast(header, b"m")})))["watchdog"]
        == 95.0
    )
    assert timers(receive(machine, ack(header)))["watchdog"] == 95.0


@pytest.mark.parametrize("task", [cj.SealJob(JOB), cj.SealRound(JOB, 1, 1)])
def test_the_watchdog_waits_while_the_proxy_asks_for_parts(task):
    machine = cloud(proxy_margin_s=30.0, push_bytes=0)
    start(machine)
    if task != cj.SealJob(JOB):
        broadcast(machine, cj.SealJob(JOB))
    header, out = seal(machine, task, size=3000)
    whole_s = timers(out)["watchdog"]
    assert timers(receive(machine, Need(header.blob.digest, (0,)))) == {"watchdog": whole_s}
    assert timers(receive(machine, Need(b"x" * 32, (0,)))) == {}


# --- A batch on its way into the cloud: every part to the disk, none in memory, none


def spooled(effects):
    return [item for item in stored(effects) if isinstance(item, cj.BatchPart)]


def pulling(size=100_000, **settings):
    """A machine that was offered a large batch, and what it asked for."""
    machine = waiting(cloud(push_bytes=10_000, **settings))
    header, data = batch(size=size)
    out = receive(machine, offer(header, b"", PROXY))
    return machine, header, parts_of(header, data), out


def asked(effects):
    return [index for need in messages(effects, Need) for index in need.indices]


def test_a_small_batch_is_waited_for_and_its_missing_parts_are_asked_for():
    machine = waiting()
    header, data = batch(size=3000)
    assert messages(receive(machine, offer(header, b"", PROXY)), Need) == []
    pieces = parts_of(header, data)
    assert len(spooled(receive(machine, pieces[1]))) == 1
    fire(machine, "repair")
    assert asked(fire(machine, "repair")) == [0, 2]
    receive(machine, pieces[2])
    out = receive(machine, pieces[0])
    assert stored(out) == [cj.BatchPart(header.blob.digest, 0, pieces[0].data, JOB)]
    assert tasks(out) == [cj.Absorb({"": header})]
    assert receive(machine, pieces[0]) == [] and fire(machine, "repair") == []


def test_a_large_batch_is_pulled_at_once_with_many_parts_always_under_way():
    machine, header, pieces, out = pulling(size=400_000)
    wanted, came, open_at_once = asked(out), [], []
    assert wanted == list(range(NEED_LIMIT))
    while wanted:
        index = wanted.pop(0)
        came.append(index)
        out = receive(machine, pieces[index])
        wanted += asked(out)
        open_at_once.append(len(wanted))
    assert came == list(range(len(pieces))) and tasks(out) == [cj.Absorb({"": header})]
    assert max(open_at_once) <= cj.BATCH_CREDIT
    assert min(open_at_once[: -cj.BATCH_CREDIT]) >= NEED_LIMIT // 2


@pytest.mark.parametrize(
    "bad",
    [
        lambda p: BlobPart(p.blob, 10**6, p.crc, p.data),
        lambda p: BlobPart(p.blob, p.index, p.crc ^ 1, p.data),
        lambda p: BlobPart(p.blob, p.index, p.crc, p.data[:-1]),
    ],
)
def test_a_part_that_does_not_fit_is_refused_and_stores_nothing(bad):
    machine, _, pieces, _ = pulling()
    out = receive(machine, bad(pieces[0]))
    assert refused(out) == ["bad_part"] and stored(out) == []
    assert len(spooled(receive(machine, pieces[0]))) == 1


def test_a_long_pull_is_no_silence_and_a_stalled_one_is():
    machine, _, pieces, out = pulling(proxy_margin_s=30.0)
    assert timers(out)["watchdog"] == 30.0
    receive(machine, pieces[0])
    assert timers(fire(machine, "repair"))["watchdog"] == 30.0
    assert "watchdog" not in timers(fire(machine, "repair"))
    header, _ = batch(size=100_000)
    assert "watchdog" not in timers(receive(machine, offer(header, b"", PROXY)))
    out = fire(machine, "watchdog")
    assert tasks(out) == [cj.SealRound(JOB, 1, 2)] and stored(out) == [cj.BatchDropped(JOB)]


def test_a_batch_larger_than_the_spool_pauses_the_job_and_says_why():
    machine = waiting(cloud(spool_bytes=50_000))
    header, _ = batch(size=100_000)
    (status,) = stored(receive(machine, offer(header, b"", PROXY)))
    assert status.status == "paused"
    assert "100000" in status.reason and "limits.spool_bytes" in status.reason


@pytest.mark.parametrize(
    "result", [fx.WorkFailed("bad_digest"), cj.TooFewUploads("1 valid upload")]
)
def test_a_batch_of_no_use_is_dropped_with_its_file(result):
    machine = waiting()
    (task,) = tasks(hand_over(machine))
    out = done(machine, task, result)
    assert cj.BatchDropped(JOB) in stored(out) and tasks(out) == [cj.SealRound(JOB, 1, 2)]


# --- A job that others hold up comes to a stand, and goes on where it stood


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


# --- Several jobs at one cloud: each goes its own way, and none holds up another


THIRD = b"L" * 16
JOBS = (JOB, OTHER, THIRD)


def where(job: bytes, attempt: int = 1) -> ExchangeId:
    return ExchangeId(job, 1, attempt)


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
