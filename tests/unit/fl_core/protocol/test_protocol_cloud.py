"""The cloud: one exchange after the other, each committed once."""

from __future__ import annotations

import hashlib

import pytest
from cloud_bench import (
    START,
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
    waiting,
)
from protocol_kit import (
    CLOUD,
    JOB,
    PART_BYTES,
    PROXY,
    Signer,
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

from fl_core.protocol import effects as fx
from fl_core.protocol.blob import describe
from fl_core.protocol.cloud import State
from fl_core.protocol.cloud_tasks import (
    Absorb,
    Absorbed,
    Broadcast,
    Cancel,
    Ended,
    Failed,
    JobStatus,
    RosterKept,
    SealJob,
    SealRelease,
    SealRound,
    Start,
    TooFew,
)
from fl_core.protocol.messages import Ack, Close, Need, Part, Roster, Shortfall


def test_a_job_goes_from_its_announcement_to_its_release():
    machine = cloud()
    assert tasks(start(machine)) == [SealJob(JOB)]
    assert tasks(broadcast(machine, SealJob(JOB))) == [SealRound(JOB, 1, 1)]
    assert tasks(broadcast(machine, SealRound(JOB, 1, 1))) == []
    assert tasks(hand_over(machine)) == [Absorb(*batch())]
    assert tasks(absorb(machine)) == [SealRound(JOB, 2, 1)]
    broadcast(machine, SealRound(JOB, 2, 1))
    assert tasks(absorb(machine, at(2))) == [SealRelease(JOB)]
    out = broadcast(machine, SealRelease(JOB))
    assert stored(out) == [JobStatus(JOB, "completed")]
    assert bodies(out, Close) == [Close(JOB, "completed")]
    assert machine.state is State.IDLE and machine.job is None


def test_a_batch_is_acknowledged_only_after_the_commit():
    machine = waiting()
    assert messages(hand_over(machine), object) == []
    record, data = commit_of(at(), [b"x"])
    out = done(machine, Absorb(*batch()), Absorbed(record, data))
    assert bodies(out, Ack) == [Ack(batch()[0].blob.digest, "held")]
    assert record in headers(out)


def test_a_broadcast_is_sent_until_the_proxy_holds_it_parts_only_once():
    machine = cloud(resend_s=3.0)
    start(machine)
    header, out = seal(machine, SealJob(JOB), size=3000)
    assert headers(out) == [header] and len(messages(out, Part)) == 3
    for _ in range(2):
        out = fire(machine, "resend")
        assert headers(out) == [header] and messages(out, Part) == []
        assert timers(out) == {"resend": 3.0}
    (part,) = messages(receive(machine, Need(header.blob.digest, (2,))), Part)
    assert part.index == 2
    assert refused(receive(machine, Need(b"x" * 32, (0,)))) == ["unknown_blob"]
    receive(machine, ack(header))
    assert fire(machine, "resend") == []


def test_the_proxy_coming_back_gets_the_broadcast():
    machine = cloud()
    start(machine)
    header, _ = seal(machine, SealJob(JOB))
    assert headers(machine.handle(fx.Connected(fx.Proxy()), 0.0)) == [header]


def test_a_batch_may_come_before_the_acknowledgement():
    machine = cloud()
    start(machine)
    broadcast(machine, SealJob(JOB))
    header, _ = seal(machine, SealRound(JOB, 1, 1))
    assert tasks(hand_over(machine)) == [Absorb(*batch())]
    assert receive(machine, ack(header)) == []
    assert tasks(absorb(machine)) == [SealRound(JOB, 2, 1)]


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
    assert machine.state is State.WAITING


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
    assert machine.state is State.WAITING
    assert len(tasks(hand_over(machine))) == 1


def test_a_large_batch_is_pulled_part_by_part():
    machine = waiting()
    header, data = batch(size=3000)
    receive(machine, offer(header, b"", PROXY))
    pieces = parts_of(header, data)
    receive(machine, pieces[1])
    fire(machine, "repair")
    (need,) = messages(fire(machine, "repair"), Need)
    assert need == Need(header.blob.digest, (0, 2))
    receive(machine, pieces[2])
    assert tasks(receive(machine, pieces[0])) == [Absorb(header, data)]
    assert receive(machine, pieces[0]) == [] and fire(machine, "repair") == []


# --- repeating ----------------------------------------------------------------------------


def shortfall(machine, where=None):
    return receive(machine, PROXY.note(Shortfall(where or at(), 1, 2)))


def repeat_by_shortfall(machine):
    return shortfall(machine)


def repeat_by_silence(machine):
    return fire(machine, "watchdog")


def repeat_by_too_few(machine):
    hand_over(machine)
    return done(machine, Absorb(*batch()), TooFew("1 valid upload"))


@pytest.mark.parametrize("again", [repeat_by_shortfall, repeat_by_silence, repeat_by_too_few])
def test_a_round_is_repeated_as_a_new_attempt_until_the_retries_are_used_up(again):
    machine = waiting()
    out = again(machine)
    assert tasks(out) == [SealRound(JOB, 1, 2)] and machine.state is State.SEALING
    assert reports(out)["round_repeated"]["attempt"] == 2
    broadcast(machine, SealRound(JOB, 1, 2))
    assert [a.status for a in bodies(hand_over(machine, at(1, 1)), Ack)] == ["closed"]
    out = fire(machine, "watchdog")
    assert isinstance(stored(out)[0], JobStatus) and stored(out)[0].status == "failed"
    assert bodies(out, Close) == [Close(JOB, "failed")] and machine.state is State.IDLE


def test_too_few_acknowledges_the_batch_all_the_same():
    out = repeat_by_too_few(waiting())
    assert [(a.blob, a.status) for a in bodies(out, Ack)] == [(batch()[0].blob.digest, "held")]


def test_a_commit_gives_the_next_round_its_retries_back():
    machine = waiting()
    shortfall(machine)
    broadcast(machine, SealRound(JOB, 1, 2))
    absorb(machine, at(1, 2))
    broadcast(machine, SealRound(JOB, 2, 1))
    assert tasks(shortfall(machine, at(2))) == [SealRound(JOB, 2, 2)]


@pytest.mark.parametrize("where", [at(1, 2), at(2), at(job=b"K" * 16)])
def test_a_shortfall_of_another_attempt_is_ignored(where):
    machine = waiting()
    assert shortfall(machine, where) == [] and machine.state is State.WAITING


def test_a_shortfall_that_comes_twice_repeats_once():
    machine = waiting()
    shortfall(machine)
    assert shortfall(machine) == []


def test_a_resumed_job_begins_where_it_stood():
    machine = waiting(what=Start(JOB, 2, 4, rounds=2, retries=1))
    assert tasks(absorb(machine, at(2, 4))) == [SealRelease(JOB)]


def test_a_job_resumed_after_its_last_commit_goes_on_to_the_release():
    machine = cloud()
    start(machine, Start(JOB, 3, 1, rounds=2, retries=1))
    assert tasks(broadcast(machine, SealJob(JOB))) == [SealRelease(JOB)]
    assert stored(broadcast(machine, SealRelease(JOB))) == [JobStatus(JOB, "completed")]


def test_the_watchdog_waits_for_the_round_s_own_deadline():
    machine = cloud(proxy_margin_s=30.0)
    start(machine)
    broadcast(machine, SealJob(JOB))
    task = SealRound(JOB, 1, 1)
    header = manifest(b"m", deadline_s=60.0, grace_s=5.0)
    assert timers(done(machine, task, Broadcast(header, b"m")))["watchdog"] == 95.0


# --- the end ------------------------------------------------------------------------------


def test_a_refused_broadcast_fails_the_job_with_the_reason():
    machine = cloud()
    start(machine)
    header, _ = seal(machine, SealJob(JOB))
    out = receive(machine, ack(header, "refused", "selected_below_floor"))
    (status,) = stored(out)
    assert status.status == "failed" and "selected_below_floor" in status.reason


@pytest.mark.parametrize("task", [SealJob(JOB), SealRound(JOB, 1, 1)])
def test_work_that_fails_fails_the_job(task):
    machine = cloud()
    start(machine)
    if task != SealJob(JOB):
        broadcast(machine, SealJob(JOB))
    out = done(machine, task, Failed("no device is enrolled"))
    assert stored(out) == [JobStatus(JOB, "failed", "no device is enrolled")]


def _at_state(state):
    machine = cloud()
    steps = [
        (State.SEALING_JOB, lambda: start(machine)),
        (State.ANNOUNCING, lambda: seal(machine, SealJob(JOB))),
        (State.SEALING, lambda: fire(machine, "resend") and broadcast_job(machine)),
        (State.BROADCASTING, lambda: seal(machine, SealRound(JOB, 1, 1))),
        (State.WAITING, lambda: receive(machine, ack(round_header()))),
        (State.ABSORBING, lambda: hand_over(machine)),
        (State.SEALING_RELEASE, lambda: finish_round(machine)),
        (State.RELEASING, lambda: seal(machine, SealRelease(JOB))),
    ]
    for reached, step in steps:
        step()
        assert machine.state is reached
        if reached is state:
            return machine
    raise AssertionError(state)


def broadcast_job(machine):
    return receive(machine, ack(_sealed(SealJob(JOB))))


def round_header():
    return _sealed(SealRound(JOB, 1, 1))


def _sealed(task):
    from cloud_bench import sealed

    return sealed(task)[0]


def finish_round(machine):
    machine.job.start = Start(JOB, 1, 1, rounds=1, retries=1)
    record, data = commit_of(at(), [b"x"])
    return done(machine, Absorb(*batch()), Absorbed(record, data))


@pytest.mark.parametrize("state", [s for s in State if s is not State.IDLE], ids=lambda s: s.value)
def test_a_job_can_be_cancelled_in_every_state(state):
    machine = _at_state(state)
    assert machine.handle(fx.Command(Cancel(b"K" * 16)), 0.0) == []
    out = machine.handle(fx.Command(Cancel(JOB)), 0.0)
    assert stored(out)[0].status == "cancelled" and machine.state is State.IDLE
    cancelled = {effect.name for effect in of(out, fx.CancelTimer)}
    assert {"watchdog", "resend"} <= cancelled
    late = [SealJob(JOB), SealRound(JOB, 1, 1), SealRelease(JOB), Absorb(*batch())]
    for task in late:
        assert done(machine, task, Failed("late")) == []
    assert tasks(start(machine, Start(b"K" * 16, 1, 1, 1, 0))) == [SealJob(b"K" * 16)]


def test_the_close_is_repeated_until_acknowledged():
    machine = waiting()
    out = machine.handle(fx.Command(Cancel(JOB)), 0.0)
    (note,) = [e.message for e in of(out, fx.Send)]
    for _ in range(2):
        out = fire(machine, "close")
        assert bodies(out, Close) == [Close(JOB, "cancelled")] and "close" in timers(out)
    digest = hashlib.sha256(note.body.payload).digest()
    receive(machine, PROXY.note(Ack(digest, "held")))
    assert fire(machine, "close") == []


def test_an_end_can_be_told_again_after_a_restart():
    machine = cloud()
    out = machine.handle(fx.Command(Ended(JOB, "failed")), 0.0)
    assert bodies(out, Close) == [Close(JOB, "failed")] and stored(out) == []
    assert bodies(fire(machine, "close"), Close) == [Close(JOB, "failed")]
    assert machine.state is State.IDLE


def test_the_close_is_given_up_in_the_end():
    machine = waiting(cloud(close_tries=3))
    machine.handle(fx.Command(Cancel(JOB)), 0.0)
    sent = [len(bodies(fire(machine, "close"), Close)) for _ in range(4)]
    assert sent == [1, 1, 0, 0]


@pytest.mark.parametrize("state", [State.ANNOUNCING, State.RELEASING], ids=lambda s: s.value)
def test_a_silent_proxy_is_waited_for_as_often_as_there_are_retries(state):
    machine = _at_state(state)
    out = fire(machine, "watchdog")
    assert len(headers(out)) == 1 and "watchdog" in timers(out) and machine.state is state
    assert stored(fire(machine, "watchdog"))[0].status == "failed"


def test_waiting_for_the_announcement_costs_the_first_round_no_retry():
    machine = _at_state(State.ANNOUNCING)
    fire(machine, "watchdog")
    broadcast_job(machine)
    broadcast(machine, SealRound(JOB, 1, 1))
    assert tasks(shortfall(machine)) == [SealRound(JOB, 1, 2)]


# --- what must not disturb ------------------------------------------------------------------


def test_one_job_at_a_time():
    machine = waiting()
    assert refused(start(machine, Start(b"K" * 16, 1, 1, 1, 0))) == ["illegal_transition"]
    assert machine.job.start == START and machine.state is State.WAITING


def test_outcomes_of_other_attempts_are_ignored():
    machine = waiting()
    shortfall(machine)
    stale = manifest(b"m")
    assert done(machine, SealRound(JOB, 1, 1), Broadcast(stale, b"m")) == []
    record, data = commit_of(at(), [b"x"])
    assert done(machine, Absorb(*batch()), Absorbed(record, data)) == []
    assert machine.state is State.SEALING


def test_an_outcome_that_comes_twice_is_refused_and_changes_nothing():
    machine = waiting()
    task = SealRound(JOB, 1, 1)
    assert refused(done(machine, task, Broadcast(manifest(b"m"), b"m"))) == ["illegal_transition"]
    assert machine.state is State.WAITING


def test_an_acknowledgement_of_something_else_is_ignored():
    machine = cloud()
    start(machine)
    seal(machine, SealJob(JOB))
    assert receive(machine, PROXY.note(Ack(b"x" * 32, "held"))) == []
    assert machine.state is State.ANNOUNCING


# --- the roster ---------------------------------------------------------------------------


def test_a_roster_is_kept_then_acknowledged():
    machine, keys = cloud(), b"".join(bytes([n]) * 32 for n in range(3))
    header = Roster(7, describe(keys, PART_BYTES))
    out = receive(machine, offer(header, keys, PROXY))
    assert [type(e) for e in out] == [fx.Store, fx.Send, fx.Report]
    assert stored(out) == [RosterKept(7, keys)] and reports(out)["roster"] == {"enrolled": 3}


@pytest.mark.parametrize("keys", [b"", bytes(32 * 100)])
def test_a_roster_of_any_size_is_kept(keys):
    machine = cloud()
    header = Roster(1, describe(keys, PART_BYTES))
    inline = len(keys) < 1000
    out = receive(machine, offer(header, keys if inline else b"", PROXY))
    pieces = [] if inline else parts_of(header, keys)
    for index, piece in enumerate(pieces):
        if index == 2:  # the proxy's offer comes again in between
            receive(machine, offer(header, b"", PROXY))
        out = receive(machine, piece)
    assert stored(out) == [RosterKept(1, keys)]


def test_an_older_roster_cannot_bring_a_revoked_device_back():
    machine, old, new = cloud(), bytes(96), bytes(64)
    receive(machine, offer(Roster(8, describe(new, PART_BYTES)), new, PROXY))
    out = receive(machine, offer(Roster(7, describe(old, PART_BYTES)), old, PROXY))
    assert refused(out) == ["replayed_roster"] and stored(out) == []
    again = receive(machine, offer(Roster(8, describe(new, PART_BYTES)), new, PROXY))
    assert stored(again) == [RosterKept(8, new)]


def test_a_roster_that_is_no_list_of_keys_is_refused():
    header = Roster(1, describe(b"k" * 33, PART_BYTES))
    out = receive(cloud(), offer(header, b"k" * 33, PROXY))
    assert refused(out) == ["malformed"] and stored(out) == []
