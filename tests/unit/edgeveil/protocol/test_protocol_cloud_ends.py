"""The cloud: how a job ends, what must not disturb it, and the roster."""

import hashlib
from dataclasses import replace

import cloud_bench as cb
import protocol_kit as kit
import pytest
from cloud_bench import hand_over as offer_batch
from proxy_bench import proxy

from edgeveil.crypto.labels import BODY
from edgeveil.protocol import cloud as cl
from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import cloud_reasons as why
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.transfer import describe

CHECKED = cj.AskChecks({"": m.CheckMasks(kit.at(), cb.batch()[0].blob.digest, bytes(32))})
ASKED = cj.AskUnmask({"": m.Unmask(kit.at(), cb.batch()[0].blob.digest, b"\x07")})


def _at_state(wanted):
    machine = cb.cloud()
    steps = [
        (cj.CloudState.SEALING_JOB, lambda: cb.start(machine)),
        (cj.CloudState.ANNOUNCING, lambda: cb.seal(machine, cj.SealJob(kit.JOB))),
        (cj.CloudState.SEALING, lambda: cb.fire(machine, "resend") and broadcast_job(machine)),
        (cj.CloudState.BROADCASTING, lambda: cb.seal(machine, cj.SealRound(kit.JOB, 1, 1))),
        (cj.CloudState.WAITING, lambda: cb.receive(machine, cb.ack(round_header()))),
        (cj.CloudState.ABSORBING, lambda: cb.hand_over(machine)),
        (cj.CloudState.CHECKING, lambda: cb.done(machine, cj.Absorb({"": cb.batch()[0]}), CHECKED)),
        (cj.CloudState.UNMASKING, lambda: cb.done(machine, cj.TakeChecks(kit.at(), {}), ASKED)),
        (cj.CloudState.SEALING_RELEASE, lambda: finish_round(machine)),
        (cj.CloudState.RELEASING, lambda: cb.seal(machine, cj.SealRelease(kit.JOB))),
    ]
    for reached, step in steps:
        step()
        assert cb.state(machine) is reached
        if reached is wanted:
            return machine
    raise AssertionError(wanted)


def broadcast_job(machine):
    return cb.receive(machine, cb.ack(_sealed(cj.SealJob(kit.JOB))))


def round_header():
    return _sealed(cj.SealRound(kit.JOB, 1, 1))


def _sealed(task):

    return cb.sealed(task)[0]


def finish_round(machine):
    machine.courses[kit.JOB].start = cj.StartJob(kit.JOB, 1, 1, rounds=1, retries=1)
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
    cancelled = {effect.name.partition("/")[0] for effect in kit.of(out, fx.CancelTimer)}
    assert {"watchdog", "resend"} <= cancelled
    late = [
        cj.SealJob(kit.JOB),
        cj.SealRound(kit.JOB, 1, 1),
        cj.SealRelease(kit.JOB),
        cj.Absorb({"": cb.batch()[0]}),
    ]
    for task in late:
        assert cb.done(machine, task, fx.WorkFailed("late")) == []
    assert kit.tasks(cb.start(machine, cj.StartJob(b"K" * 16, 1, 1, 1, 0))) == [
        cj.SealJob(b"K" * 16)
    ]


def test_ends_are_told_ever_more_slowly_until_each_is_confirmed():
    machine = cb.waiting(cb.cloud(close_cap_s=10.0))
    machine.handle(fx.Command(cl.CancelJob(kit.JOB)), 0.0)
    out = machine.handle(fx.Command(cl.RepeatEnd(b"o" * 16, "completed")), 0.0)
    assert {body.job_id for body in kit.bodies(out, m.Close)} == {kit.JOB, b"o" * 16}
    waits = [kit.timers(cb.fire(machine, "close"))["close"] for _ in range(3)]
    assert waits == [6.0, 10.0, 10.0]
    back = machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    assert len(kit.bodies(back, m.Close)) == 2
    for note in [one for one in kit.messages(back, m.Note) if b"close" in one.body.payload]:
        cb.receive(
            machine, kit.PROXY.note(m.Ack(hashlib.sha256(note.body.payload).digest(), "held"))
        )
    assert cb.fire(machine, "close") == []


@pytest.mark.parametrize(
    ("round", "causes", "ends"),
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
def test_a_fault_that_passes_ends_no_job_that_has_rounds_or_asks_again(round, causes, ends):
    machine = cb.waiting(what=cj.StartJob(kit.JOB, round, 1, 3, 1))
    out = cb.receive(machine, kit.PROXY.note(m.Shortfall(kit.at(round), 0, 5, causes)))
    if ends:
        assert kit.stored(out)[0].status == "failed"
        return
    assert kit.tasks(out) == [
        cj.SealRound(kit.JOB, round, 2)
    ] and "all_declined" not in kit.reports(out)
    cb.broadcast(machine, cj.SealRound(kit.JOB, round, 2))
    (left,) = kit.stored(
        cb.receive(machine, kit.PROXY.note(m.Shortfall(kit.at(round, 2), 0, 5, causes)))
    )
    assert left.status == "paused" and "5 declined" in left.reason


# What a proxy told of a round of ten, and what its pause or end advises: this and nothing else.


def test_causes_of_all_cells_add_up():
    cells = [
        m.Shortfall(kit.at(), 1, 2, (1, 1, 0, 0), 4),
        m.Shortfall(kit.at(), 0, 3, (0, 2, 0, 0), 1),
    ]
    answers = why.RoundAnswers.of(9, cells)
    assert (answers.declined, answers.causes, answers.offline, answers.absent) == (
        5,
        {"policy": 1, "budget": 3},
        5,
        3,
    )
    assert why.RoundAnswers.of(9, [*cells, m.Shortfall(kit.at(), 0, 0)]).offline is None


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


def test_an_older_roster_cannot_bring_a_revoked_device_back():
    machine, old, new = cb.cloud(), bytes(96), bytes(64)
    cb.receive(machine, kit.offer(m.Roster(8, describe(new, kit.PART_BYTES)), new, kit.PROXY))
    out = cb.receive(machine, kit.offer(m.Roster(7, describe(old, kit.PART_BYTES)), old, kit.PROXY))
    assert kit.refused(out) == ["replayed_roster"]
    assert kit.stored(out) == [cl.RosterRefused("replayed_roster", "")], "its time tells what it is"
    again = cb.receive(
        machine, kit.offer(m.Roster(8, describe(new, kit.PART_BYTES)), new, kit.PROXY)
    )
    assert kit.stored(again) == [cl.RosterKept(8, new)]
    assert [type(one) for one in again[:2]] == [fx.Persist, fx.Send], "kept before its word"
    assert kit.acks(again) == [("held", "")]


def test_a_roster_that_is_no_list_of_keys_is_refused():
    header = m.Roster(1, describe(b"k" * 33, kit.PART_BYTES))
    out = cb.receive(cb.cloud(), kit.offer(header, b"k" * 33, kit.PROXY))
    assert kit.refused(out) == ["malformed"] and kit.stored(out) == []


UP, LOST = fx.PeerConnected(fx.ProxyAddress()), fx.PeerLost(fx.ProxyAddress())
TWICE = cj.StartJob(kit.JOB, 1, 1, rounds=2, retries=1)


def lose_own(machine):
    return machine.handle(LOST, 0.0)


def lose_edge(machine):
    return cb.receive(machine, kit.PROXY.note(m.LinkState(False)))


def own_is_back(machine):
    return machine.handle(UP, 0.0)


def edge_is_back(machine):
    return cb.receive(machine, kit.PROXY.note(m.LinkState(True)))


def by_shortfall(machine, attempt=1):
    return cb.receive(machine, kit.PROXY.note(m.Shortfall(kit.at(1, attempt), 0, 0)))


def by_silence(machine, attempt=1):
    return cb.fire(machine, "watchdog")


def by_a_poor_batch(machine, attempt=1):
    (task,) = kit.tasks(cb.hand_over(machine, kit.at(1, attempt)))
    return cb.done(machine, task, cj.TooFewUploads("1 valid upload"))


def sign_otherwise(machine):
    return machine.handle(fx.PeerSigned(fx.ProxyAddress(), False), 0.0)


def sign_as_pinned(machine):
    return machine.handle(fx.PeerSigned(fx.ProxyAddress(), True), 0.0)


OUTAGES = [
    (lose_own, own_is_back, why.OWN_LINK),
    (lose_edge, edge_is_back, why.EDGE_LINK),
    (sign_otherwise, sign_as_pinned, why.OTHER_KEY),
]
ENDS = [by_shortfall, by_silence, by_a_poor_batch]


@pytest.mark.parametrize(("lose", "back", "link"), OUTAGES)
@pytest.mark.parametrize("ends", ENDS)
def test_an_attempt_that_ends_while_a_link_is_down_pauses_the_job_and_names_the_link(
    lose, back, link, ends
):
    machine = cb.waiting(what=TWICE)
    lose(machine)
    assert kit.stored(ends(machine))[-1] == cj.JobStatus(
        kit.JOB, "paused", link, stored_answers(ends)
    )
    assert why.goes_on(link) and not why.resume_follows(why.pause_advice(link))


def stored_answers(ends):
    return why.RoundAnswers(4, 0, 0) if ends is by_shortfall else None


@pytest.mark.parametrize(("lose", "back", "link"), OUTAGES)
@pytest.mark.parametrize("ends", [by_shortfall, by_a_poor_batch])
def test_an_attempt_with_an_outage_that_is_over_takes_no_retry(lose, back, link, ends):
    machine = cb.waiting(what=TWICE)
    lose(machine)
    back(machine)
    assert kit.tasks(ends(machine)) == [cj.SealRound(kit.JOB, 1, 2)]
    assert machine.courses[kit.JOB].retries_left == 1
    cb.broadcast(machine, cj.SealRound(kit.JOB, 1, 2))
    assert kit.tasks(ends(machine, 2)) == [
        cj.SealRound(kit.JOB, 1, 3)
    ]  # nothing was down: it takes one
    assert machine.courses[kit.JOB].retries_left == 0


def test_a_proxy_that_was_silent_is_to_say_something_first():
    machine = cb.waiting(what=cj.StartJob(kit.JOB, 1, 1, rounds=2, retries=0))
    assert kit.stored(by_silence(machine))[-1].reason == why.SILENT
    assert machine.unreached == [""]
    edge_is_back(machine)
    assert machine.unreached == []


def test_a_proxy_tells_how_its_link_to_the_devices_stands():
    machine = proxy()
    cloud_up, up = fx.PeerConnected(fx.CloudAddress()), fx.PeerConnected(fx.AllDevices())
    lost = fx.PeerLost(fx.AllDevices())
    assert kit.bodies(machine.handle(cloud_up, 0.0), m.LinkState) == [m.LinkState(True)]
    assert kit.bodies(machine.handle(lost, 0.0), m.LinkState) == [m.LinkState(False)]
    assert kit.bodies(machine.handle(lost, 0.0), m.LinkState) == []  # known
    assert kit.bodies(machine.handle(cloud_up, 0.0), m.LinkState) == [m.LinkState(False)]
    assert kit.bodies(machine.handle(up, 0.0), m.LinkState) == [m.LinkState(True)]
    assert kit.bodies(machine.handle(up, 0.0), m.LinkState) == []


CHOSEN = m.Unmask(kit.at(), cb.batch()[0].blob.digest, b"\x07")
QUESTION = hashlib.sha256(m.encode_inner(CHOSEN)).digest()
MASKS = b"sums of masks " * 300
COMMIT = cj.RoundCommit(*kit.commit_of(kit.at(), [b"x"]))


def unmasking(machine=None):
    """The host has kept its sums; the proxy is asked."""
    machine = cb.waiting(machine)
    offer_batch(machine)
    cb.done(machine, cj.Absorb({"": cb.batch()[0]}), cj.AskUnmask({"": CHOSEN}))
    assert cb.state(machine) is cj.CloudState.UNMASKING
    return machine


def sums(data=MASKS, **changes):
    plain = {"at": kit.at(), "question": QUESTION, "blob": describe(data, kit.PART_BYTES)}
    return m.MaskSums(**(plain | changes))


def answer(machine, data=MASKS):
    """The whole answer, part by part."""
    header = sums(data)
    out = cb.receive(machine, kit.offer(header, b"", kit.PROXY))
    for part in kit.parts_of(header, data):
        out += cb.receive(machine, part)
    return out


def asked(effects):
    return kit.bodies(effects, m.Unmask)


def test_the_masks_are_taken_when_the_last_part_is_there():
    machine, header = unmasking(), sums()
    assert kit.tasks(cb.receive(machine, kit.offer(header, b"", kit.PROXY))) == []
    parts = kit.parts_of(header, MASKS)
    assert len(parts) > 2
    for part in reversed(parts[1:]):
        assert kit.tasks(cb.receive(machine, part)) == []
    out = cb.receive(machine, parts[0])
    assert kit.tasks(out) == [cj.TakeMasks(kit.at(), {"": MASKS})]
    cancelled = {effect.name.partition("/")[0] for effect in kit.of(out, fx.CancelTimer)}
    assert {"unmask", "watchdog"} <= cancelled
    assert cb.receive(machine, parts[0]) == []
    assert cb.receive(machine, kit.offer(header, b"", kit.PROXY)) == []  # it is being used


def test_missing_parts_are_asked_for_and_then_the_question_anew():
    machine, header = unmasking(), sums()
    cb.receive(machine, kit.offer(header, b"", kit.PROXY))
    cb.receive(machine, kit.parts_of(header, MASKS)[1])
    assert (
        kit.messages(cb.fire(machine, "unmask"), m.Need) == []
    )  # something came since the last look
    (need,) = kit.messages(cb.fire(machine, "unmask"), m.Need)
    assert need.blob == header.blob.digest
    assert 1 not in need.indices
    assert 0 in need.indices
    silent = [cb.fire(machine, "unmask") for _ in range(3)]
    assert any(asked(out) == [CHOSEN] for out in silent)  # a proxy that began anew knows no answer
    assert all("unmask" in kit.timers(out) for out in silent)
    assert kit.tasks(answer(machine)) == [cj.TakeMasks(kit.at(), {"": MASKS})]


@pytest.mark.parametrize(
    "changes",
    [{"question": bytes(32)}, {"at": kit.at(2)}, {"at": kit.at(1, 2)}],
    ids=lambda c: next(iter(c)),
)
def test_an_answer_to_another_question_is_acknowledged_and_left(changes):
    machine, header = unmasking(), sums(**changes)
    out = cb.receive(machine, kit.offer(header, b"", kit.PROXY))
    assert kit.bodies(out, m.Ack) == [m.Ack(header.blob.digest, "held")]
    for part in kit.parts_of(header, MASKS):
        assert kit.tasks(cb.receive(machine, part)) == []
    assert kit.tasks(answer(machine)) == [cj.TakeMasks(kit.at(), {"": MASKS})]


def test_nothing_repeats_a_round_whose_masks_were_asked_for():
    machine = unmasking()
    for out in (
        cb.fire(machine, "watchdog"),
        offer_batch(machine),
        offer_batch(machine, kit.at(1, 2)),
    ):
        assert not [task for task in kit.tasks(out) if isinstance(task, cj.SealRound | cj.Absorb)]
    assert machine.at == kit.at()


def took(machine, result):
    """What comes of the masks, once all are there."""
    answer(machine)
    return cb.done(machine, cj.TakeMasks(kit.at(), {"": MASKS}), result)


def test_wrong_sums_end_the_job():
    machine = unmasking()
    out = took(machine, fx.WorkFailed("the proxy's sums do not fit"))
    assert kit.stored(out)[-1] == cj.JobStatus(kit.JOB, "failed", "the proxy's sums do not fit")
    assert cb.state(machine) is cj.CloudState.IDLE


def test_an_obstacle_pauses_and_the_question_can_be_asked_again():
    machine = unmasking()
    assert kit.stored(took(machine, cj.Obstacle("the disk is full")))[-1].status == "paused"
    cb.start(machine)
    cb.broadcast(machine, cj.SealJob(kit.JOB))
    found = cb.done(machine, cj.SealRound(kit.JOB, 1, 1), cj.AskUnmask({"": CHOSEN}))
    assert asked(found) == [CHOSEN]
    assert kit.tasks(answer(machine)) == [cj.TakeMasks(kit.at(), {"": MASKS})]


def test_a_refusal_pauses_the_job_with_the_reason_and_advice():
    machine = unmasking()
    out = cb.receive(machine, kit.PROXY.note(m.Ack(QUESTION, "refused", "unmasked_already")))
    status = kit.stored(out)[-1]
    assert status.status == "paused" and "unmasked_already" in status.reason
    assert "submit it anew" in why.pause_advice(status.reason)
    assert cb.state(machine) is cj.CloudState.IDLE
    assert "unmask" in {effect.name.partition("/")[0] for effect in kit.of(out, fx.CancelTimer)}


def test_a_restart_asks_for_the_kept_sums_under_their_own_attempt():
    machine = cb.cloud()
    cb.start(machine, cj.StartJob(kit.JOB, 1, 3, rounds=2, retries=1))
    cb.broadcast(machine, cj.SealJob(kit.JOB))
    out = cb.done(machine, cj.SealRound(kit.JOB, 1, 3), cj.AskUnmask({"": CHOSEN}))
    assert asked(out) == [CHOSEN] and machine.at == kit.at()
    assert kit.tasks(took(machine, COMMIT)) == [cj.SealRound(kit.JOB, 2, 1)]


@pytest.mark.parametrize("steps", [0, 1, 2], ids=["sealing_job", "announcing", "sealing"])
def test_a_batch_is_not_closed_while_the_host_may_hold_its_sums(steps):
    """A cloud that started again has not looked into its store yet."""
    machine = cb.cloud()
    cb.start(machine, cj.StartJob(kit.JOB, 1, 2, rounds=2, retries=1))
    if steps:
        header, data = cb.sealed(cj.SealJob(kit.JOB))
        cb.done(machine, cj.SealJob(kit.JOB), cj.CellBroadcasts({"": cj.Broadcast(header, data)}))
        if steps == 2:
            cb.receive(machine, cb.ack(header))
    assert cb.state(machine).value == ["sealing_job", "announcing", "sealing"][steps]
    assert kit.bodies(offer_batch(machine, kit.at(1, 1)), m.Ack) == []
    (other,) = kit.bodies(offer_batch(machine, kit.at(2, 1)), m.Ack)
    assert other.status == "closed"


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
    out = cb.done(machine, cj.TakeMasks(kit.at(), {"": MASKS}), COMMIT)
    assert kit.tasks(out) == [cj.SealJob(kit.JOB)]
    assert cb.state(machine) is cj.CloudState.SEALING_JOB
