"""The cloud: one exchange after the other, each committed once."""

from __future__ import annotations

import pytest
from cloud_bench import (
    absorb,
    ack,
    batch,
    broadcast,
    cloud,
    done,
    fire,
    hand_over,
    receive,
    seal,
    start,
    state,
    waiting,
)
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
    signing_key,
    stored,
    tasks,
    timers,
    upload_of,
)

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Ack, BlobPart, Close, Need, Shortfall, Signer
from edgeveil.protocol.transfer import part


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


def test_a_broadcast_is_sent_until_the_proxy_holds_it_parts_only_once():
    machine = cloud(resend_s=3.0)
    start(machine)
    header, out = seal(machine, cj.SealJob(JOB), size=3000)
    assert headers(out) == [header] and len(messages(out, BlobPart)) == 3
    for _ in range(2):
        out = fire(machine, "resend")
        assert headers(out) == [header] and messages(out, BlobPart) == []
        assert timers(out) == {"resend": 3.0}
    (part,) = messages(receive(machine, Need(header.blob.digest, (2,))), BlobPart)
    assert part.index == 2
    assert refused(receive(machine, Need(b"x" * 32, (0,)))) == ["unknown_blob"]
    receive(machine, ack(header))
    assert fire(machine, "resend") == []


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


def test_a_repeated_batch_is_absorbed_once():
    machine = waiting()
    assert len(tasks(hand_over(machine))) == 1
    assert hand_over(machine) == []
    absorb(machine)
    out = hand_over(machine)
    assert tasks(out) == [] and [a.status for a in bodies(out, Ack)] == ["closed"]


@pytest.mark.parametrize("where", [at(1, 2), at(2), at(job=b"K" * 16)])
def test_a_batch_of_another_attempt_is_closed(where):
    machine = waiting()
    out = hand_over(machine, where)
    assert tasks(out) == [] and [a.status for a in bodies(out, Ack)] == ["closed"]
    assert state(machine) is cj.CloudState.WAITING


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


def test_too_few_acknowledges_the_batch_all_the_same():
    out = repeat_by_too_few(waiting())
    assert [(a.blob, a.status) for a in bodies(out, Ack)] == [(batch()[0].blob.digest, "held")]


def test_a_commit_gives_the_next_round_its_retries_back():
    machine = waiting()
    shortfall(machine)
    broadcast(machine, cj.SealRound(JOB, 1, 2))
    absorb(machine, at(1, 2))
    broadcast(machine, cj.SealRound(JOB, 2, 1))
    assert tasks(shortfall(machine, at(2))) == [cj.SealRound(JOB, 2, 2)]


@pytest.mark.parametrize("where", [at(1, 2), at(2), at(job=b"K" * 16)])
def test_a_shortfall_of_another_attempt_is_ignored(where):
    machine = waiting()
    assert shortfall(machine, where) == [] and state(machine) is cj.CloudState.WAITING


def test_a_shortfall_that_comes_twice_repeats_once():
    machine = waiting()
    shortfall(machine)
    assert shortfall(machine) == []


def test_a_resumed_job_begins_where_it_stood():
    machine = waiting(what=cj.StartJob(JOB, 2, 4, exchanges=2, retries=1))
    assert tasks(absorb(machine, at(2, 4))) == [cj.SealRelease(JOB)]


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


def test_a_batch_on_its_way_is_waited_for_part_by_part():
    machine = waiting(cloud(proxy_margin_s=30.0))
    header, data = batch(size=2600)
    assert timers(receive(machine, PROXY.offer(header)))["watchdog"] == 30.0
    for index in (0, 1):
        receive(machine, part(header.blob, data, index))
        assert timers(fire(machine, "repair"))["watchdog"] == 30.0
    assert "watchdog" not in timers(fire(machine, "repair"))
