"""The cloud: one round after the other, each committed once."""

import cloud_bench as cb
import protocol_kit as kit
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_kit import at

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CancelJob
from edgeveil.protocol.messages import Ack, Close, Need, Shortfall, Signer


def test_a_batch_is_acknowledged_only_after_the_commit():
    machine = cb.waiting()
    assert kit.messages(cb.hand_over(machine), object) == []
    record, data = kit.commit_of(at(), [b"x"])
    out = cb.done(machine, cb.absorbing(), cj.RoundCommit(record, data))
    assert kit.bodies(out, Ack) == [Ack(cb.batch()[0].blob.digest, "held")]
    assert record in kit.headers(out)


@pytest.mark.parametrize("result", [fx.WorkFailed("wrong"), cj.Obstacle("the disk is full")])
def test_a_batch_that_was_not_absorbed_is_not_acknowledged(result):
    machine = cb.waiting()
    cb.hand_over(machine)
    out = cb.done(machine, cb.absorbing(), result)
    assert kit.bodies(out, Ack) == [] and kit.tasks(out) == [cj.SealRound(kit.JOB, 1, 2)]


def test_only_the_proxy_s_own_word_counts():
    machine, other = cb.waiting(), Signer("proxy", kit.signing_key(9))
    for message, reason in (
        (kit.offer(*cb.batch(), other), "forged"),
        (kit.offer(*cb.batch(), kit.CLOUD), "unknown_signer"),
        (kit.offer(*kit.upload_of(at(), 1), kit.PROXY), "unexpected_header"),
        (kit.offer(kit.manifest(b"m"), b"m", kit.PROXY), "unexpected_header"),
        (kit.offer(cb.batch()[0], b"b" * 90, kit.PROXY), "bad_digest"),
        (kit.PROXY.note(Close(kit.JOB, "failed")), "unexpected_body"),
        (other.note(Shortfall(at(), 0, 0)), "forged"),
    ):
        assert kit.refused(cb.receive(machine, message)) == [reason]
    assert cb.state(machine) is cj.CloudState.WAITING
    assert len(kit.tasks(cb.hand_over(machine))) == 1


def test_a_round_is_repeated_as_a_new_attempt_until_the_retries_are_used_up():
    machine = cb.waiting()
    assert kit.tasks(cb.fire(machine, "watchdog")) == [cj.SealRound(kit.JOB, 1, 2)]
    cb.broadcast(machine, cj.SealRound(kit.JOB, 1, 2))
    assert [a.status for a in kit.bodies(cb.hand_over(machine, at(1, 1)), Ack)] == ["closed"]
    out = cb.fire(machine, "watchdog")
    assert [one.status for one in kit.stored(out)] == ["paused"]
    assert kit.bodies(out, Close) == [] and cb.state(machine) is cj.CloudState.IDLE


def test_a_long_pull_is_no_silence_and_a_stalled_one_is():
    machine = cb.waiting(cb.cloud(push_bytes=10_000, proxy_margin_s=30.0))
    header, data = cb.batch(size=100_000)
    out = cb.receive(machine, kit.offer(header, b"", kit.PROXY))
    assert kit.timers(out)["watchdog"] == 30.0
    cb.receive(machine, kit.parts_of(header, data)[0])
    assert kit.timers(cb.fire(machine, "repair"))["watchdog"] == 30.0
    assert "watchdog" not in kit.timers(cb.fire(machine, "repair"))
    assert "watchdog" not in kit.timers(cb.receive(machine, kit.offer(header, b"", kit.PROXY)))
    out = cb.fire(machine, "watchdog")
    assert kit.tasks(out) == [cj.SealRound(kit.JOB, 1, 2)]
    assert kit.stored(out) == [cj.BatchDropped(kit.JOB)]


def test_a_batch_larger_than_the_spool_pauses_the_job():
    machine = cb.waiting(cb.cloud(spool_bytes=50_000))
    header, _ = cb.batch(size=100_000)
    (status,) = kit.stored(cb.receive(machine, kit.offer(header, b"", kit.PROXY)))
    assert status.status == "paused" and "limits.spool_bytes" in status.reason


JOBS = (kit.JOB, cb.OTHER, b"L" * 16)


def test_a_batch_waits_while_others_leave_no_room_and_the_proxy_counts_as_there():
    machine = cb.both_waiting(push_bytes=1, spool_bytes=4000)
    first, data = cb.batch(at(), size=2500)
    second, _ = cb.batch(at(job=cb.OTHER), fill=b"b", size=2500)
    cb.receive(machine, kit.offer(first, b"", kit.PROXY))
    out = cb.receive(machine, kit.offer(second, b"", kit.PROXY))
    assert [one.reason for one in kit.of(out, fx.Refuse)] == ["spool_full"]
    assert [one.name for one in kit.of(out, fx.SetTimer)] == [f"watchdog/{cb.OTHER.hex()}"]
    assert cb.state(machine, cb.OTHER) is cj.CloudState.WAITING
    for part in kit.parts_of(first, data):
        cb.receive(machine, part)
    cb.done(machine, cj.Absorb({"": first}), cj.RoundCommit(*kit.commit_of(at(), [b"a"])))
    assert kit.messages(cb.receive(machine, kit.offer(second, b"", kit.PROXY)), Need)


def _play(machine, job, step):
    """One event of a job; the machine decides whether it fits its state."""
    attempt = machine.runs[job].attempt if job in machine.runs else 1
    where = at(1, attempt, job)
    steps = (
        lambda: cb.start(machine, cj.StartJob(job, 1, 1, rounds=1, retries=2)),
        lambda: cb.broadcast(machine, cj.SealJob(job)),
        lambda: cb.broadcast(machine, cj.SealRound(job, 1, attempt)),
        lambda: cb.absorb(machine, where),
        lambda: cb.broadcast(machine, cj.SealRelease(job)),
        lambda: cb.fire(machine, "watchdog", job),
        lambda: cb.receive(machine, kit.PROXY.note(Shortfall(where, 1, 0))),
        lambda: machine.handle(fx.Command(CancelJob(job)), 0.0),
    )
    return steps[step]()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=40))
def test_jobs_interleaved_go_as_each_would_alone(tape):
    """Whatever happens to the others, in whatever order, repeated or left out."""
    together, alone = cb.cloud(), {job: cb.cloud() for job in JOBS}
    for who, step in tape:
        job = JOBS[who]
        said = _play(together, job, step), _play(alone[job], job, step)
        works = [[one for one in out if not isinstance(one, fx.Send)] for out in said]
        if step == 0 or job in alone[job].runs:
            assert [type(one) for one in works[0]] == [type(one) for one in works[1]]
            assert kit.tasks(said[0]) == kit.tasks(said[1])
            assert kit.stored(said[0]) == kit.stored(said[1])
        assert cb.state(together, job) is cb.state(alone[job], job)
