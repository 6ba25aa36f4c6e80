"""The cloud: how a job ends, what must not disturb it, and the roster."""

import hashlib
from dataclasses import replace

import cloud_bench as cb
import protocol_kit as kit
import pytest
from proxy_bench import proxy

from edgeveil.crypto.labels import BODY
from edgeveil.protocol import cloud as cl
from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import cloud_reasons as why
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.transfer import describe

CHECK = m.CheckMasks(kit.at(), cb.batch()[0].blob.digest, bytes(32))
CHOSEN = m.Unmask(kit.at(), cb.batch()[0].blob.digest, b"\x07")
ASKED = cj.AskUnmask({"": CHOSEN})
JOB, ROUND = cj.SealJob(kit.JOB), cj.SealRound(kit.JOB, 1, 1)


def _at_state(wanted):
    machine = cb.cloud()
    steps = [
        (cj.CloudState.SEALING_JOB, lambda: cb.start(machine)),
        (cj.CloudState.ANNOUNCING, lambda: cb.seal(machine, JOB)),
        (cj.CloudState.SEALING, lambda: cb.receive(machine, cb.ack(cb.sealed(JOB)[0]))),
        (cj.CloudState.BROADCASTING, lambda: cb.seal(machine, ROUND)),
        (cj.CloudState.WAITING, lambda: cb.receive(machine, cb.ack(cb.sealed(ROUND)[0]))),
        (cj.CloudState.ABSORBING, lambda: cb.hand_over(machine)),
        (
            cj.CloudState.CHECKING,
            lambda: cb.done(machine, cb.absorbing(), cj.AskChecks({"": CHECK})),
        ),
        (cj.CloudState.UNMASKING, lambda: cb.done(machine, cj.TakeChecks(kit.at(), {}), ASKED)),
        (cj.CloudState.SEALING_RELEASE, lambda: finish_round(machine)),
        (cj.CloudState.RELEASING, lambda: cb.seal(machine, cj.SealRelease(kit.JOB))),
    ]
    for reached, step in steps:
        step()
        assert cb.state(machine) is reached
        if reached is wanted:
            break
    return machine


def cancelled(effects):
    return {effect.name.partition("/")[0] for effect in kit.of(effects, fx.CancelTimer)}


def finish_round(machine):
    machine.runs[kit.JOB].start = cj.StartJob(kit.JOB, 1, 1, rounds=1, retries=1)
    record, data = kit.commit_of(kit.at(), [b"x"])
    return cb.done(machine, cj.TakeMasks(kit.at(), {"": b"masks"}), cj.RoundCommit(record, data))


@pytest.mark.parametrize(
    "before", [s for s in cj.CloudState if s is not cj.CloudState.IDLE], ids=lambda s: s.value
)
def test_a_job_can_be_cancelled_in_every_state(before):
    machine = _at_state(before)
    assert machine.handle(fx.Command(cl.CancelJob(b"K" * 16)), 0.0) == []
    out = machine.handle(fx.Command(cl.CancelJob(kit.JOB)), 0.0)
    assert kit.stored(out)[-1].status == "cancelled" and cb.state(machine) is cj.CloudState.IDLE
    assert {"watchdog", "resend"} <= cancelled(out)
    for task in (JOB, ROUND, cj.SealRelease(kit.JOB), cb.absorbing()):
        assert cb.done(machine, task, fx.WorkFailed("late")) == []


def test_a_job_that_learns_no_model_completes_without_a_release():
    machine = _at_state(cj.CloudState.SEALING_RELEASE)
    out = cb.done(machine, cj.SealRelease(kit.JOB), cj.CellBroadcasts({}))
    assert kit.stored(out)[-1].status == "completed" and cb.state(machine) is cj.CloudState.IDLE
    assert kit.bodies(out, m.Close)[0].status == "completed" and not kit.headers(out)


FAULTS = [  # causes of five who declined, and in which of its rounds they end the job
    ((0, 0, 0, 5), 1, True),  # nothing is lost
    ((0, 4, 1, 0), 1, False),  # they have time later
    ((0, 0, 0, 4, 1), 1, False),  # a full disk may be mended
    ((3, 2, 0, 0), 2, True),
    ((0, 4, 0, 1), 2, False),
    ((4, 0, 0, 0), 2, False),  # one of an earlier version names no cause
]


@pytest.mark.parametrize(("causes", "round", "ends"), FAULTS)
def test_a_fault_that_passes_ends_no_job_that_has_rounds_or_asks_again(causes, round, ends):
    machine = cb.waiting(what=cj.StartJob(kit.JOB, round, 1, 3, 1))

    def declined(attempt):
        short = m.Shortfall(kit.at(round, attempt), 0, 5, causes)
        return cb.receive(machine, kit.PROXY.note(short))

    out = declined(1)
    if ends:
        assert kit.stored(out)[0].status == "failed"
        return
    again = cj.SealRound(kit.JOB, round, 2)
    assert kit.tasks(out) == [again] and "all_declined" not in kit.reports(out)
    cb.broadcast(machine, again)
    assert [one.status for one in kit.stored(declined(2))] == ["paused"]


@pytest.mark.parametrize(
    "before", [cj.CloudState.ANNOUNCING, cj.CloudState.RELEASING], ids=lambda s: s.value
)
def test_a_silent_proxy_is_waited_for_as_often_as_there_are_retries(before):
    machine = _at_state(before)
    out = cb.fire(machine, "watchdog")
    assert (
        len(kit.headers(out)) == 1 and "watchdog" in kit.timers(out) and cb.state(machine) is before
    )
    assert kit.stored(cb.fire(machine, "watchdog"))[0].status == "paused"


def roster(machine, number, keys):
    header = m.Roster(number, describe(keys, kit.PART_BYTES))
    return cb.receive(machine, kit.offer(header, keys, kit.PROXY))


def test_an_older_roster_or_one_that_is_no_list_of_keys_is_refused():
    machine = cb.cloud()
    malformed = roster(machine, 9, b"k" * 33)
    assert kit.refused(malformed) == ["malformed"] and kit.stored(malformed) == []
    for _ in range(2):
        kept = roster(machine, 8, bytes(64))
        assert kit.stored(kept) == [cl.RosterKept(8, bytes(64))]
        assert kit.acks(kept) == [("held", "")]
        out = roster(machine, 7, bytes(96))
        assert kit.refused(out) == ["replayed_roster"]
        assert kit.stored(out) == [cl.RosterRefused("replayed_roster", "")]


UP, LOST = fx.PeerConnected(fx.ProxyAddress()), fx.PeerLost(fx.ProxyAddress())


def by_shortfall(machine, attempt=1):
    return cb.receive(machine, kit.PROXY.note(m.Shortfall(kit.at(1, attempt), 0, 0)))


def by_silence(machine, attempt=1):
    return cb.fire(machine, "watchdog")


def by_a_poor_batch(machine, attempt=1):
    (task,) = kit.tasks(cb.hand_over(machine, kit.at(1, attempt)))
    return cb.done(machine, task, cj.TooFewUploads("1 valid upload"))


def proxy_says(body):
    return fx.MessageReceived(fx.ProxyAddress(), kit.PROXY.note(body))


OUTAGES = [
    (LOST, UP, why.OWN_LINK),
    (proxy_says(m.LinkState(False)), proxy_says(m.LinkState(True)), why.EDGE_LINK),
    (
        fx.PeerSigned(fx.ProxyAddress(), False),
        fx.PeerSigned(fx.ProxyAddress(), True),
        why.OTHER_KEY,
    ),
]


@pytest.mark.parametrize(("lose", "back", "link"), OUTAGES, ids=["own", "edge", "key"])
@pytest.mark.parametrize("ends", [by_shortfall, by_silence, by_a_poor_batch])
def test_an_attempt_that_ends_while_a_link_is_down_pauses_the_job_and_later_takes_no_retry(
    lose, back, link, ends
):
    machine = cb.waiting()
    machine.handle(lose, 0.0)
    answers = why.RoundAnswers(4, 0, 0) if ends is by_shortfall else None
    assert kit.stored(ends(machine))[-1] == cj.JobStatus(kit.JOB, "paused", link, answers)
    assert why.resumes_by_itself(link) and not why.resume_follows(why.pause_advice(link))
    if ends is by_silence:
        return
    machine = cb.waiting()
    for event in (lose, back):
        machine.handle(event, 0.0)
    for attempt, left in ((2, 1), (3, 0)):  # then nothing was down: it takes one
        again = cj.SealRound(kit.JOB, 1, attempt)
        assert kit.tasks(ends(machine, attempt - 1)) == [again]
        assert machine.runs[kit.JOB].retries_left == left
        cb.broadcast(machine, again)


def test_a_proxy_reports_each_change_of_its_link_to_the_devices():
    machine, cloud_up = proxy(), fx.PeerConnected(fx.CloudAddress())
    up, lost = fx.PeerConnected(fx.AllDevices()), fx.PeerLost(fx.AllDevices())
    events = [cloud_up, lost, lost, cloud_up, up, up]
    reported = [kit.bodies(machine.handle(event, 0.0), m.LinkState) for event in events]
    assert [[one.up for one in found] for found in reported] == [[1], [0], [], [0], [1], []]


def digest(body):
    return hashlib.sha256(m.encode_inner(body)).digest()


MASKS = b"sums of masks " * 300


def unmasking(machine=None):
    """The host has kept its sums; the proxy is asked."""
    machine = cb.waiting(machine)
    cb.hand_over(machine)
    cb.done(machine, cb.absorbing(), ASKED)
    assert cb.state(machine) is cj.CloudState.UNMASKING
    return machine


def sums(**changes):
    plain = {"at": kit.at(), "question": digest(CHOSEN), "blob": describe(MASKS, kit.PART_BYTES)}
    return m.MaskSums(**(plain | changes))


def answer(machine):
    out = cb.receive(machine, kit.offer(sums(), b"", kit.PROXY))
    return out + [e for part in kit.parts_of(sums(), MASKS) for e in cb.receive(machine, part)]


def asked(effects):
    return kit.bodies(effects, m.Unmask)


def test_missing_parts_are_asked_for_and_then_the_question_anew():
    machine = unmasking()
    cb.receive(machine, kit.offer(sums(), b"", kit.PROXY))
    cb.receive(machine, kit.parts_of(sums(), MASKS)[1])
    looks = [kit.messages(cb.fire(machine, "unmask"), m.Need) for _ in range(2)]
    assert looks[0] == []  # something came since the last look
    assert [need.indices[:2] for need in looks[1]] == [(0, 2)]
    silent = [cb.fire(machine, "unmask") for _ in range(3)]
    assert any(asked(out) == [CHOSEN] for out in silent)  # a proxy that began anew knows no answer
    assert kit.tasks(answer(machine)) == [cj.TakeMasks(kit.at(), {"": MASKS})]


def test_a_check_that_is_refused_has_spent_nothing():
    """No choice was made, so the round is asked for again, as after any failure before it."""
    machine = _at_state(cj.CloudState.CHECKING)
    out = cb.receive(machine, kit.PROXY.note(m.Ack(digest(CHECK), "refused", "unknown_round")))
    assert (kit.tasks(out), asked(out)) == ([cj.SealRound(kit.JOB, 1, 2)], [])


def test_an_answer_to_another_question_is_acknowledged_and_left():
    machine = unmasking()
    for changes in ({"question": bytes(32)}, {"at": kit.at(2)}, {"at": kit.at(1, 2)}):
        header = sums(**changes)
        out = cb.receive(machine, kit.offer(header, b"", kit.PROXY))
        assert kit.bodies(out, m.Ack) == [m.Ack(header.blob.digest, "held")]
        for part in kit.parts_of(header, MASKS):
            assert kit.tasks(cb.receive(machine, part)) == []
    assert kit.tasks(answer(machine)) == [cj.TakeMasks(kit.at(), {"": MASKS})]


def test_a_refusal_pauses_the_job_with_the_reason_and_advice():
    machine = unmasking()
    refusal = m.Ack(digest(CHOSEN), "refused", "unmasked_already")
    status = kit.stored(cb.receive(machine, kit.PROXY.note(refusal)))[-1]
    assert status.status == "paused" and "unmasked_already" in status.reason
    assert "submit it anew" in why.pause_advice(status.reason)


def test_with_a_new_key_the_same_question_is_signed_anew_and_then_the_job_told():
    fresh, releases = (m.Signer("cloud", kit.signing_key(number)) for number in (75, 76))
    peers = m.PeerKeys.pinned(proxy=kit.PROXY_KEY)
    bounds = cj.CloudSettings(packet_bytes=kit.PACKET_BYTES)
    machine = unmasking(cl.CloudMachine(fresh, {"": peers}, bounds, releases=releases))
    jobs = kit.signing_key(77)
    own = cl.OwnKeys(
        jobs, kit.signing_key(78), {"": replace(peers, epoch=1)}, m.TrustMetadata((), b"")
    )
    out = machine.handle(fx.Command(own), 0.0)
    assert asked(out) == [CHOSEN]
    for note in kit.messages(out, m.Note):
        m.check_signature(note.body, "cloud", jobs.public(), BODY)
    assert cb.state(machine) is cj.CloudState.UNMASKING
    answer(machine)
    commit = cj.RoundCommit(*kit.commit_of(kit.at(), [b"x"]))
    out = cb.done(machine, cj.TakeMasks(kit.at(), {"": MASKS}), commit)
    assert kit.tasks(out) == [cj.SealJob(kit.JOB)]
