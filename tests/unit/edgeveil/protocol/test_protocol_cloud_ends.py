"""The cloud: how a job ends, what must not disturb it, and the roster."""

from __future__ import annotations

import hashlib

import pytest
from cloud_bench import (
    START,
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
    JOB,
    PART_BYTES,
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
    stored,
    tasks,
    timers,
)

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CancelJob, RepeatEnd, RosterKept, RosterRefused
from edgeveil.protocol.cloud_reasons import RoundAnswers, all_declined, pause_advice
from edgeveil.protocol.messages import Ack, CheckMasks, Close, Note, Roster, Shortfall, Unmask
from edgeveil.protocol.transfer import describe

CHECKED = cj.AskChecks({"": CheckMasks(at(), batch()[0].blob.digest, bytes(32))})
ASKED = cj.AskUnmask({"": Unmask(at(), batch()[0].blob.digest, b"\x07")})


def shortfall(machine, where=None):
    return receive(machine, PROXY.note(Shortfall(where or at(), 1, 2)))


# --- the end ------------------------------------------------------------------------------


def test_a_refused_broadcast_pauses_the_job_with_the_reason():
    machine = cloud()
    start(machine)
    header, _ = seal(machine, cj.SealJob(JOB))
    out = receive(machine, ack(header, "refused", "selected_below_floor"))
    (status,) = stored(out)
    assert status.status == "paused" and "selected_below_floor" in status.reason


@pytest.mark.parametrize("task", [cj.SealJob(JOB), cj.SealRound(JOB, 1, 1)])
def test_work_that_fails_fails_the_job(task):
    machine = cloud()
    start(machine)
    if task != cj.SealJob(JOB):
        broadcast(machine, cj.SealJob(JOB))
    out = done(machine, task, fx.WorkFailed("no device is enrolled"))
    assert stored(out) == [cj.JobStatus(JOB, "failed", "no device is enrolled")]


def _at_state(wanted):
    machine = cloud()
    steps = [
        (cj.CloudState.SEALING_JOB, lambda: start(machine)),
        (cj.CloudState.ANNOUNCING, lambda: seal(machine, cj.SealJob(JOB))),
        (cj.CloudState.SEALING, lambda: fire(machine, "resend") and broadcast_job(machine)),
        (cj.CloudState.BROADCASTING, lambda: seal(machine, cj.SealRound(JOB, 1, 1))),
        (cj.CloudState.WAITING, lambda: receive(machine, ack(round_header()))),
        (cj.CloudState.ABSORBING, lambda: hand_over(machine)),
        (cj.CloudState.CHECKING, lambda: done(machine, cj.Absorb({"": batch()[0]}), CHECKED)),
        (cj.CloudState.UNMASKING, lambda: done(machine, cj.TakeChecks(at(), {}), ASKED)),
        (cj.CloudState.SEALING_RELEASE, lambda: finish_round(machine)),
        (cj.CloudState.RELEASING, lambda: seal(machine, cj.SealRelease(JOB))),
    ]
    for reached, step in steps:
        step()
        assert state(machine) is reached
        if reached is wanted:
            return machine
    raise AssertionError(wanted)


def broadcast_job(machine):
    return receive(machine, ack(_sealed(cj.SealJob(JOB))))


def round_header():
    return _sealed(cj.SealRound(JOB, 1, 1))


def _sealed(task):
    from cloud_bench import sealed

    return sealed(task)[0]


def finish_round(machine):
    machine.courses[JOB].start = cj.StartJob(JOB, 1, 1, exchanges=1, retries=1)
    record, data = commit_of(at(), [b"x"])
    return done(machine, cj.TakeMasks(at(), {"": b"masks"}), cj.RoundCommit(record, data))


@pytest.mark.parametrize(
    "before", [s for s in cj.CloudState if s is not cj.CloudState.IDLE], ids=lambda s: s.value
)
def test_a_job_can_be_cancelled_in_every_state(before):
    machine = _at_state(before)
    assert machine.handle(fx.Command(CancelJob(b"K" * 16)), 0.0) == []
    out = machine.handle(fx.Command(CancelJob(JOB)), 0.0)
    assert stored(out)[-1].status == "cancelled" and state(machine) is cj.CloudState.IDLE
    cancelled = {effect.name.partition("/")[0] for effect in of(out, fx.CancelTimer)}
    assert {"watchdog", "resend"} <= cancelled
    late = [
        cj.SealJob(JOB),
        cj.SealRound(JOB, 1, 1),
        cj.SealRelease(JOB),
        cj.Absorb({"": batch()[0]}),
    ]
    for task in late:
        assert done(machine, task, fx.WorkFailed("late")) == []
    assert tasks(start(machine, cj.StartJob(b"K" * 16, 1, 1, 1, 0))) == [cj.SealJob(b"K" * 16)]


def test_the_close_is_repeated_until_acknowledged():
    machine = waiting()
    out = machine.handle(fx.Command(CancelJob(JOB)), 0.0)
    (note,) = [e.message for e in of(out, fx.Send)]
    for _ in range(2):
        out = fire(machine, "close")
        assert bodies(out, Close) == [Close(JOB, "cancelled")] and "close" in timers(out)
    digest = hashlib.sha256(note.body.payload).digest()
    receive(machine, PROXY.note(Ack(digest, "held")))
    assert fire(machine, "close") == []


def test_an_end_can_be_told_again_after_a_restart():
    machine = cloud()
    out = machine.handle(fx.Command(RepeatEnd(JOB, "failed")), 0.0)
    assert bodies(out, Close) == [Close(JOB, "failed")] and stored(out) == []
    assert bodies(fire(machine, "close"), Close) == [Close(JOB, "failed")]
    assert state(machine) is cj.CloudState.IDLE


def test_ends_are_told_ever_more_slowly_until_each_is_confirmed():
    machine = waiting(cloud(close_cap_s=10.0))
    machine.handle(fx.Command(CancelJob(JOB)), 0.0)
    out = machine.handle(fx.Command(RepeatEnd(b"o" * 16, "completed")), 0.0)
    assert {body.job_id for body in bodies(out, Close)} == {JOB, b"o" * 16}
    waits = [timers(fire(machine, "close"))["close"] for _ in range(3)]
    assert waits == [6.0, 10.0, 10.0]
    back = machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    assert len(bodies(back, Close)) == 2
    for note in [m for m in messages(back, Note) if b"close" in m.body.payload]:
        receive(machine, PROXY.note(Ack(hashlib.sha256(note.body.payload).digest(), "held")))
    assert fire(machine, "close") == []


def test_when_all_declined_the_job_fails_at_once():
    machine = waiting()
    out = receive(machine, PROXY.note(Shortfall(at(), 0, 5)))
    assert stored(out)[0].status == "failed" and "declined" in stored(out)[0].reason
    assert reports(out)["all_declined"] == {"round": 1, "declined": 5, "causes": {}}
    # Known before the job's end is written, so that nothing is priced that was not released.
    kinds = [type(one) for one in out]
    assert kinds.index(fx.Report) < kinds.index(fx.Persist)


@pytest.mark.parametrize(
    ("exchange", "causes", "ends"),
    [
        (1, (0, 0, 0, 5), True),  # nothing is lost
        (1, (0, 0, 5, 0), False),  # they have time later
        (1, (0, 4, 1, 0), False),
        (1, (0, 0, 0, 4, 1), False),  # a full disk may be mended
        (1, (0, 0, 0, 5, 0), True),
        (2, (3, 2, 0, 0), True),
        (2, (0, 0, 5, 0), False),
        (2, (0, 4, 0, 1), False),
        (2, (4, 0, 0, 0), False),  # one of an earlier version names no cause
    ],
)
def test_a_fault_that_passes_ends_no_job_that_has_rounds_or_asks_again(exchange, causes, ends):
    machine = waiting(what=cj.StartJob(JOB, exchange, 1, 3, 1))
    out = receive(machine, PROXY.note(Shortfall(at(exchange), 0, 5, causes)))
    if ends:
        assert stored(out)[0].status == "failed"
        return
    assert tasks(out) == [cj.SealRound(JOB, exchange, 2)] and "all_declined" not in reports(out)
    broadcast(machine, cj.SealRound(JOB, exchange, 2))
    (left,) = stored(receive(machine, PROXY.note(Shortfall(at(exchange, 2), 0, 5, causes))))
    assert left.status == "paused" and "5 declined" in left.reason


# What a proxy told of a round of ten, and what its pause or end advises: this and nothing else.
STEPS = {
    "policy": "policy does not allow",
    "budget": "budgets do not hold",
    "conditions": "had no time",
    "fit": "cannot play",
    "fault": "something failed",
    "offline": "devices are offline",
    "late": "more time",
    "away": "look at the devices",
}


@pytest.mark.parametrize(
    ("told", "steps"),
    [
        (Shortfall(at(), 0, 10, (10, 0, 0, 0), 0), {"policy"}),
        (Shortfall(at(), 0, 10, (0, 10, 0, 0), 0), {"budget"}),
        (Shortfall(at(), 0, 10, (0, 0, 10, 0), 0), {"conditions"}),
        (Shortfall(at(), 0, 10, (0, 0, 0, 10), 0), {"fit"}),
        (Shortfall(at(), 0, 10, (0, 0, 0, 0, 10), 0), {"fault"}),
        (Shortfall(at(), 0, 10, (0, 7, 3, 0), 0), {"budget", "conditions"}),
        (Shortfall(at(), 0, 0, (), 10), {"offline"}),
        (Shortfall(at(), 0, 8, (0, 8, 0, 0), 2), {"budget", "offline"}),
        (Shortfall(at(), 2, 0, (), 0), {"late"}),
        (Shortfall(at(), 2, 0, (), 3), {"late", "offline"}),
        (Shortfall(at(), 2, 1, (0, 0, 0, 1), 0), {"fit", "late"}),
        (Shortfall(at(), 2, 0), {"away", "late"}),  # a proxy of an earlier version
    ],
)
def test_each_cause_of_a_short_round_has_the_advice_that_fits_it(told, steps):
    answers = RoundAnswers.of(10, [told])
    everybody = answers.declined == 10
    reason = all_declined(answers) if everybody else f"{answers}: below the minimum"
    advice = reason if everybody else pause_advice(reason)
    assert {step for step, words in STEPS.items() if words in advice} == steps
    assert all(str(n) in reason for n in told.causes if n)


def test_causes_of_all_cells_add_up():
    cells = [Shortfall(at(), 1, 2, (1, 1, 0, 0), 4), Shortfall(at(), 0, 3, (0, 2, 0, 0), 1)]
    answers = RoundAnswers.of(9, cells)
    assert (answers.declined, answers.causes, answers.offline, answers.absent) == (
        5,
        {"policy": 1, "budget": 3},
        5,
        3,
    )
    assert RoundAnswers.of(9, [*cells, Shortfall(at(), 0, 0)]).offline is None


@pytest.mark.parametrize(("uploads", "declined"), [(0, 1), (1, 4), (0, 0)])
def test_otherwise_a_shortfall_is_asked_again(uploads, declined):
    machine = waiting()
    assert tasks(receive(machine, PROXY.note(Shortfall(at(), uploads, declined)))) == [
        cj.SealRound(JOB, 1, 2)
    ]


def test_a_batch_that_could_not_be_absorbed_costs_a_retry_and_not_the_job():
    machine = waiting()
    task = tasks(hand_over(machine))[0]
    out = done(machine, task, fx.WorkFailed("the store is locked"))
    assert tasks(out) == [cj.SealRound(JOB, 1, 2)]


@pytest.mark.parametrize(
    "before", [cj.CloudState.ANNOUNCING, cj.CloudState.RELEASING], ids=lambda s: s.value
)
def test_a_silent_proxy_is_waited_for_as_often_as_there_are_retries(before):
    machine = _at_state(before)
    out = fire(machine, "watchdog")
    assert len(headers(out)) == 1 and "watchdog" in timers(out) and state(machine) is before
    assert stored(fire(machine, "watchdog"))[0].status == "paused"


def test_waiting_for_the_announcement_costs_the_first_round_no_retry():
    machine = _at_state(cj.CloudState.ANNOUNCING)
    fire(machine, "watchdog")
    broadcast_job(machine)
    broadcast(machine, cj.SealRound(JOB, 1, 1))
    assert tasks(shortfall(machine)) == [cj.SealRound(JOB, 1, 2)]


# --- what must not disturb ------------------------------------------------------------------


def test_a_job_that_runs_is_not_started_again():
    machine = waiting()
    assert refused(start(machine, cj.StartJob(JOB, 2, 1, 1, 0))) == ["illegal_transition"]
    assert machine.courses[JOB].start == START and state(machine) is cj.CloudState.WAITING


def test_outcomes_of_other_attempts_are_ignored():
    machine = waiting()
    shortfall(machine)
    stale = manifest(b"m")
    assert (
        done(machine, cj.SealRound(JOB, 1, 1), cj.CellBroadcasts({"": cj.Broadcast(stale, b"m")}))
        == []
    )
    record, data = commit_of(at(), [b"x"])
    assert done(machine, cj.Absorb({"": batch()[0]}), cj.RoundCommit(record, data)) == []
    assert state(machine) is cj.CloudState.SEALING


def test_an_outcome_that_comes_twice_is_refused_and_changes_nothing():
    machine = waiting()
    task = cj.SealRound(JOB, 1, 1)
    assert refused(
        done(machine, task, cj.CellBroadcasts({"": cj.Broadcast(manifest(b"m"), b"m")}))
    ) == ["illegal_transition"]
    assert state(machine) is cj.CloudState.WAITING


def test_an_acknowledgement_of_something_else_is_ignored():
    machine = cloud()
    start(machine)
    seal(machine, cj.SealJob(JOB))
    assert receive(machine, PROXY.note(Ack(b"x" * 32, "held"))) == []
    assert state(machine) is cj.CloudState.ANNOUNCING


# --- the roster ---------------------------------------------------------------------------


def test_a_roster_is_kept_then_acknowledged():
    machine, keys = cloud(), b"".join(bytes([n]) * 32 for n in range(3))
    header = Roster(7, describe(keys, PART_BYTES))
    out = receive(machine, offer(header, keys, PROXY))
    assert [type(e) for e in out] == [fx.Persist, fx.Send, fx.Report]
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
    assert refused(out) == ["replayed_roster"]
    assert stored(out) == [RosterRefused("replayed_roster", "")], "its time tells what it is"
    again = receive(machine, offer(Roster(8, describe(new, PART_BYTES)), new, PROXY))
    assert stored(again) == [RosterKept(8, new)]


def test_a_roster_that_is_no_list_of_keys_is_refused():
    header = Roster(1, describe(b"k" * 33, PART_BYTES))
    out = receive(cloud(), offer(header, b"k" * 33, PROXY))
    assert refused(out) == ["malformed"] and stored(out) == []
