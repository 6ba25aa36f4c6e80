"""The cloud's one question for the masks of its sums, and the answer on its way."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from cloud_bench import (
    START,
    ack,
    batch,
    broadcast,
    cloud,
    done,
    fire,
    receive,
    sealed,
    start,
    state,
    waiting,
)
from cloud_bench import hand_over as offer_batch
from protocol_kit import (
    CLOUD,
    JOB,
    PACKET_BYTES,
    PART_BYTES,
    PROXY,
    PROXY_KEY,
    at,
    bodies,
    commit_of,
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
)

from edgeveil.crypto.labels import BODY
from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CancelJob, CloudMachine, OwnKeys
from edgeveil.protocol.cloud_reasons import pause_advice
from edgeveil.protocol.messages import (
    Ack,
    MaskSums,
    Need,
    Note,
    PeerKeys,
    Signer,
    TrustMetadata,
    Unmask,
    check_signature,
    encode_inner,
)
from edgeveil.protocol.transfer import describe

CHOSEN = Unmask(at(), batch()[0].blob.digest, b"\x07")
QUESTION = hashlib.sha256(encode_inner(CHOSEN)).digest()
MASKS = b"sums of masks " * 300
COMMIT = cj.RoundCommit(*commit_of(at(), [b"x"]))


def unmasking(machine: CloudMachine | None = None) -> CloudMachine:
    """The host has kept its sums; the proxy is asked."""
    machine = waiting(machine)
    offer_batch(machine)
    done(machine, cj.Absorb({"": batch()[0]}), cj.AskUnmask({"": CHOSEN}))
    assert state(machine) is cj.CloudState.UNMASKING
    return machine


def sums(data: bytes = MASKS, **changes: object) -> MaskSums:
    plain = {"at": at(), "question": QUESTION, "blob": describe(data, PART_BYTES)}
    return MaskSums(**(plain | changes))  # type: ignore[arg-type]


def answer(machine: CloudMachine, data: bytes = MASKS) -> list[fx.Effect]:
    """The whole answer, part by part."""
    header = sums(data)
    out = receive(machine, offer(header, b"", PROXY))
    for part in parts_of(header, data):
        out += receive(machine, part)
    return out


def asked(effects: list[fx.Effect]) -> list[Unmask]:
    return bodies(effects, Unmask)


# --- the question ---


def test_it_asks_once_the_sums_are_kept_and_acknowledges_no_batch() -> None:
    machine = waiting()
    offer_batch(machine)
    out = done(machine, cj.Absorb({"": batch()[0]}), cj.AskUnmask({"": CHOSEN}))
    assert state(machine) is cj.CloudState.UNMASKING
    assert asked(out) == [CHOSEN]
    assert bodies(out, Ack) == []
    assert stored(out) == []
    assert {"unmask", "watchdog"} <= timers(out).keys()
    assert "unmasking" in reports(out)


# --- the answer ---


def test_the_masks_are_taken_when_the_last_part_is_there() -> None:
    machine, header = unmasking(), sums()
    assert tasks(receive(machine, offer(header, b"", PROXY))) == []
    parts = parts_of(header, MASKS)
    assert len(parts) > 2
    for part in reversed(parts[1:]):
        assert tasks(receive(machine, part)) == []
    out = receive(machine, parts[0])
    assert tasks(out) == [cj.TakeMasks(at(), {"": MASKS})]
    cancelled = {effect.name.partition("/")[0] for effect in of(out, fx.CancelTimer)}
    assert {"unmask", "watchdog"} <= cancelled
    assert receive(machine, parts[0]) == []
    assert receive(machine, offer(header, b"", PROXY)) == []  # it is being used


def test_missing_parts_are_asked_for_and_then_the_question_anew() -> None:
    machine, header = unmasking(), sums()
    receive(machine, offer(header, b"", PROXY))
    receive(machine, parts_of(header, MASKS)[1])
    assert messages(fire(machine, "unmask"), Need) == []  # something came since the last look
    (need,) = messages(fire(machine, "unmask"), Need)
    assert need.blob == header.blob.digest
    assert 1 not in need.indices
    assert 0 in need.indices
    silent = [fire(machine, "unmask") for _ in range(3)]
    assert any(asked(out) == [CHOSEN] for out in silent)  # a proxy that began anew knows no answer
    assert all("unmask" in timers(out) for out in silent)
    assert tasks(answer(machine)) == [cj.TakeMasks(at(), {"": MASKS})]


@pytest.mark.parametrize(
    "changes",
    [{"question": bytes(32)}, {"at": at(2)}, {"at": at(1, 2)}],
    ids=lambda c: next(iter(c)),
)
def test_an_answer_to_another_question_is_acknowledged_and_left(changes: dict) -> None:
    machine, header = unmasking(), sums(**changes)
    out = receive(machine, offer(header, b"", PROXY))
    assert bodies(out, Ack) == [Ack(header.blob.digest, "held")]
    for part in parts_of(header, MASKS):
        assert tasks(receive(machine, part)) == []
    assert tasks(answer(machine)) == [cj.TakeMasks(at(), {"": MASKS})]


def test_bytes_that_are_not_those_of_the_digest_are_dropped_and_asked_for_again() -> None:
    machine, header = unmasking(), sums()
    receive(machine, offer(header, b"", PROXY))
    good, bad = parts_of(header, MASKS), parts_of(sums(MASKS[::-1]), MASKS[::-1])
    changed = [type(p)(header.blob.digest, p.index, p.crc, p.data) for p in bad]
    outs = [receive(machine, part) for part in (changed[0], *good[1:])]
    assert refused(outs[-1]) == ["bad_digest"]
    assert asked(fire(machine, "unmask")) == [CHOSEN]
    assert tasks(answer(machine)) == [cj.TakeMasks(at(), {"": MASKS})]


def test_an_answer_of_another_signer_is_refused() -> None:
    machine = unmasking()
    assert refused(receive(machine, offer(sums(b"small"), b"small", CLOUD))) == ["unknown_signer"]


# --- what follows ---


def test_wrong_sums_end_the_job() -> None:
    machine = unmasking()
    answer(machine)
    out = done(
        machine, cj.TakeMasks(at(), {"": MASKS}), fx.WorkFailed("the proxy's sums do not fit")
    )
    assert stored(out)[-1] == cj.JobStatus(JOB, "failed", "the proxy's sums do not fit")
    assert state(machine) is cj.CloudState.IDLE


def test_an_obstacle_pauses_and_the_question_can_be_asked_again() -> None:
    machine = unmasking()
    answer(machine)
    out = done(machine, cj.TakeMasks(at(), {"": MASKS}), cj.Obstacle("the disk is full"))
    assert stored(out)[-1].status == "paused"  # type: ignore[attr-defined]
    resumed = resume(machine)
    assert asked(resumed) == [CHOSEN]
    assert tasks(answer(machine)) == [cj.TakeMasks(at(), {"": MASKS})]


def resume(machine: CloudMachine) -> list[fx.Effect]:
    """The job goes on; the host finds its sums in place of a round to seal."""
    start(machine, START)
    broadcast(machine, cj.SealJob(JOB))
    return done(machine, cj.SealRound(JOB, 1, 1), cj.AskUnmask({"": CHOSEN}))


def test_a_refusal_pauses_the_job_with_the_reason_and_advice() -> None:
    machine = unmasking()
    out = receive(machine, PROXY.note(Ack(QUESTION, "refused", "unmasked_already")))
    (status,) = [item for item in stored(out) if isinstance(item, cj.JobStatus)]
    assert status.status == "paused"
    assert "unmasked_already" in status.reason
    assert "submit it anew" in pause_advice(status.reason)
    assert state(machine) is cj.CloudState.IDLE
    assert "unmask" in {effect.name.partition("/")[0] for effect in of(out, fx.CancelTimer)}


def test_a_cancelled_job_asks_no_more() -> None:
    machine = unmasking()
    out = machine.handle(fx.Command(CancelJob(JOB)), 0.0)
    assert stored(out)[-1].status == "cancelled"  # type: ignore[attr-defined]
    assert state(machine) is cj.CloudState.IDLE
    assert fire(machine, "unmask") == []
    assert tasks(answer(machine)) == []


# --- never a second choice ---


def test_nothing_repeats_a_round_whose_masks_were_asked_for() -> None:
    machine = unmasking()
    for out in (fire(machine, "watchdog"), offer_batch(machine), offer_batch(machine, at(1, 2))):
        assert not [task for task in tasks(out) if isinstance(task, cj.SealRound | cj.Absorb)]
    assert machine.at == at()


def test_a_restart_asks_for_the_kept_sums_under_their_own_attempt() -> None:
    machine = cloud()
    start(machine, cj.StartJob(JOB, 1, 3, exchanges=2, retries=1))
    broadcast(machine, cj.SealJob(JOB))
    out = done(machine, cj.SealRound(JOB, 1, 3), cj.AskUnmask({"": CHOSEN}))
    assert asked(out) == [CHOSEN]
    assert machine.at == at()
    assert tasks(answer(machine)) == [cj.TakeMasks(at(), {"": MASKS})]
    assert tasks(done(machine, cj.TakeMasks(at(), {"": MASKS}), COMMIT)) == [
        cj.SealRound(JOB, 2, 1)
    ]


@pytest.mark.parametrize("steps", [0, 1, 2], ids=["sealing_job", "announcing", "sealing"])
def test_a_batch_is_not_closed_while_the_host_may_hold_its_sums(steps: int) -> None:
    """A cloud that started again has not looked into its store yet."""
    machine = cloud()
    start(machine, cj.StartJob(JOB, 1, 2, exchanges=2, retries=1))
    if steps:
        header, data = sealed(cj.SealJob(JOB))
        done(machine, cj.SealJob(JOB), cj.CellBroadcasts({"": cj.Broadcast(header, data)}))
        if steps == 2:
            receive(machine, ack(header))
    assert state(machine).value == ["sealing_job", "announcing", "sealing"][steps]
    assert bodies(offer_batch(machine, at(1, 1)), Ack) == []
    (other,) = bodies(offer_batch(machine, at(2, 1)), Ack)
    assert other.status == "closed"


def test_with_a_new_key_the_same_question_is_signed_anew_and_then_the_job_told() -> None:
    fresh, releases = (Signer("cloud", signing_key(number)) for number in (75, 76))
    peers = PeerKeys.pinned(proxy=PROXY_KEY)
    bounds = cj.CloudSettings(packet_bytes=PACKET_BYTES)
    machine = unmasking(CloudMachine(fresh, {"": peers}, bounds, releases=releases))
    jobs = signing_key(77)
    own = OwnKeys(jobs, signing_key(78), {"": replace(peers, epoch=1)}, TrustMetadata((), b""))
    out = machine.handle(fx.Command(own), 0.0)
    assert asked(out) == [CHOSEN]
    for note in messages(out, Note):
        check_signature(note.body, "cloud", jobs.public(), BODY)
    assert state(machine) is cj.CloudState.UNMASKING
    answer(machine)
    out = done(machine, cj.TakeMasks(at(), {"": MASKS}), COMMIT)
    assert tasks(out) == [cj.SealJob(JOB)]
    assert state(machine) is cj.CloudState.SEALING_JOB
