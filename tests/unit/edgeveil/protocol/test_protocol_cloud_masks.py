"""The cloud's one question for the masks of its sums, and the answer on its way."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import protocol_kit as kit
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

from edgeveil.crypto.labels import BODY
from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.cloud import CancelJob, CloudMachine, OwnKeys
from edgeveil.protocol.cloud_reasons import pause_advice
from edgeveil.protocol.transfer import describe

CHOSEN = m.Unmask(kit.at(), batch()[0].blob.digest, b"\x07")
QUESTION = hashlib.sha256(m.encode_inner(CHOSEN)).digest()
MASKS = b"sums of masks " * 300
COMMIT = cj.RoundCommit(*kit.commit_of(kit.at(), [b"x"]))


def unmasking(machine: CloudMachine | None = None) -> CloudMachine:
    """The host has kept its sums; the proxy is asked."""
    machine = waiting(machine)
    offer_batch(machine)
    done(machine, cj.Absorb({"": batch()[0]}), cj.AskUnmask({"": CHOSEN}))
    assert state(machine) is cj.CloudState.UNMASKING
    return machine


def sums(data: bytes = MASKS, **changes: object) -> m.MaskSums:
    plain = {"at": kit.at(), "question": QUESTION, "blob": describe(data, kit.PART_BYTES)}
    return m.MaskSums(**(plain | changes))  # type: ignore[arg-type]


def answer(machine: CloudMachine, data: bytes = MASKS) -> list[fx.Effect]:
    """The whole answer, part by part."""
    header = sums(data)
    out = receive(machine, kit.offer(header, b"", kit.PROXY))
    for part in kit.parts_of(header, data):
        out += receive(machine, part)
    return out


def asked(effects: list[fx.Effect]) -> list[m.Unmask]:
    return kit.bodies(effects, m.Unmask)


# --- the question ---


def test_it_asks_once_the_sums_are_kept_and_acknowledges_no_batch() -> None:
    machine = waiting()
    offer_batch(machine)
    out = done(machine, cj.Absorb({"": batch()[0]}), cj.AskUnmask({"": CHOSEN}))
    assert state(machine) is cj.CloudState.UNMASKING
    assert asked(out) == [CHOSEN]
    assert kit.bodies(out, m.Ack) == []
    assert kit.stored(out) == []
    assert {"unmask", "watchdog"} <= kit.timers(out).keys()
    assert "unmasking" in kit.reports(out)


# --- the answer ---


def test_the_masks_are_taken_when_the_last_part_is_there() -> None:
    machine, header = unmasking(), sums()
    assert kit.tasks(receive(machine, kit.offer(header, b"", kit.PROXY))) == []
    parts = kit.parts_of(header, MASKS)
    assert len(parts) > 2
    for part in reversed(parts[1:]):
        assert kit.tasks(receive(machine, part)) == []
    out = receive(machine, parts[0])
    assert kit.tasks(out) == [cj.TakeMasks(kit.at(), {"": MASKS})]
    cancelled = {effect.name.partition("/")[0] for effect in kit.of(out, fx.CancelTimer)}
    assert {"unmask", "watchdog"} <= cancelled
    assert receive(machine, parts[0]) == []
    assert receive(machine, kit.offer(header, b"", kit.PROXY)) == []  # it is being used


def test_missing_parts_are_asked_for_and_then_the_question_anew() -> None:
    machine, header = unmasking(), sums()
    receive(machine, kit.offer(header, b"", kit.PROXY))
    receive(machine, kit.parts_of(header, MASKS)[1])
    assert kit.messages(fire(machine, "unmask"), m.Need) == []  # something came since the last look
    (need,) = kit.messages(fire(machine, "unmask"), m.Need)
    assert need.blob == header.blob.digest
    assert 1 not in need.indices
    assert 0 in need.indices
    silent = [fire(machine, "unmask") for _ in range(3)]
    assert any(asked(out) == [CHOSEN] for out in silent)  # a proxy that began anew knows no answer
    assert all("unmask" in kit.timers(out) for out in silent)
    assert kit.tasks(answer(machine)) == [cj.TakeMasks(kit.at(), {"": MASKS})]


@pytest.mark.parametrize(
    "changes",
    [{"question": bytes(32)}, {"at": kit.at(2)}, {"at": kit.at(1, 2)}],
    ids=lambda c: next(iter(c)),
)
def test_an_answer_to_another_question_is_acknowledged_and_left(changes: dict) -> None:
    machine, header = unmasking(), sums(**changes)
    out = receive(machine, kit.offer(header, b"", kit.PROXY))
    assert kit.bodies(out, m.Ack) == [m.Ack(header.blob.digest, "held")]
    for part in kit.parts_of(header, MASKS):
        assert kit.tasks(receive(machine, part)) == []
    assert kit.tasks(answer(machine)) == [cj.TakeMasks(kit.at(), {"": MASKS})]


def test_bytes_that_are_not_those_of_the_digest_are_dropped_and_asked_for_again() -> None:
    machine, header = unmasking(), sums()
    receive(machine, kit.offer(header, b"", kit.PROXY))
    good, bad = kit.parts_of(header, MASKS), kit.parts_of(sums(MASKS[::-1]), MASKS[::-1])
    changed = [type(p)(header.blob.digest, p.index, p.crc, p.data) for p in bad]
    outs = [receive(machine, part) for part in (changed[0], *good[1:])]
    assert kit.refused(outs[-1]) == ["bad_digest"]
    assert asked(fire(machine, "unmask")) == [CHOSEN]
    assert kit.tasks(answer(machine)) == [cj.TakeMasks(kit.at(), {"": MASKS})]


def test_an_answer_of_another_signer_is_refused() -> None:
    machine = unmasking()
    assert kit.refused(receive(machine, kit.offer(sums(b"small"), b"small", kit.CLOUD))) == [
        "unknown_signer"
    ]


# --- what follows ---


def test_wrong_sums_end_the_job() -> None:
    machine = unmasking()
    answer(machine)
    out = done(
        machine, cj.TakeMasks(kit.at(), {"": MASKS}), fx.WorkFailed("the proxy's sums do not fit")
    )
    assert kit.stored(out)[-1] == cj.JobStatus(kit.JOB, "failed", "the proxy's sums do not fit")
    assert state(machine) is cj.CloudState.IDLE


def test_an_obstacle_pauses_and_the_question_can_be_asked_again() -> None:
    machine = unmasking()
    answer(machine)
    out = done(machine, cj.TakeMasks(kit.at(), {"": MASKS}), cj.Obstacle("the disk is full"))
    assert kit.stored(out)[-1].status == "paused"  # type: ignore[attr-defined]
    resumed = resume(machine)
    assert asked(resumed) == [CHOSEN]
    assert kit.tasks(answer(machine)) == [cj.TakeMasks(kit.at(), {"": MASKS})]


def resume(machine: CloudMachine) -> list[fx.Effect]:
    """The job goes on; the host finds its sums in place of a round to seal."""
    start(machine, START)
    broadcast(machine, cj.SealJob(kit.JOB))
    return done(machine, cj.SealRound(kit.JOB, 1, 1), cj.AskUnmask({"": CHOSEN}))


def test_a_refusal_pauses_the_job_with_the_reason_and_advice() -> None:
    machine = unmasking()
    out = receive(machine, kit.PROXY.note(m.Ack(QUESTION, "refused", "unmasked_already")))
    (status,) = [item for item in kit.stored(out) if isinstance(item, cj.JobStatus)]
    assert status.status == "paused"
    assert "unmasked_already" in status.reason
    assert "submit it anew" in pause_advice(status.reason)
    assert state(machine) is cj.CloudState.IDLE
    assert "unmask" in {effect.name.partition("/")[0] for effect in kit.of(out, fx.CancelTimer)}


def test_a_cancelled_job_asks_no_more() -> None:
    machine = unmasking()
    out = machine.handle(fx.Command(CancelJob(kit.JOB)), 0.0)
    assert kit.stored(out)[-1].status == "cancelled"  # type: ignore[attr-defined]
    assert state(machine) is cj.CloudState.IDLE
    assert fire(machine, "unmask") == []
    assert kit.tasks(answer(machine)) == []


# --- never a second choice ---


def test_nothing_repeats_a_round_whose_masks_were_asked_for() -> None:
    machine = unmasking()
    for out in (
        fire(machine, "watchdog"),
        offer_batch(machine),
        offer_batch(machine, kit.at(1, 2)),
    ):
        assert not [task for task in kit.tasks(out) if isinstance(task, cj.SealRound | cj.Absorb)]
    assert machine.at == kit.at()


def test_a_restart_asks_for_the_kept_sums_under_their_own_attempt() -> None:
    machine = cloud()
    start(machine, cj.StartJob(kit.JOB, 1, 3, exchanges=2, retries=1))
    broadcast(machine, cj.SealJob(kit.JOB))
    out = done(machine, cj.SealRound(kit.JOB, 1, 3), cj.AskUnmask({"": CHOSEN}))
    assert asked(out) == [CHOSEN]
    assert machine.at == kit.at()
    assert kit.tasks(answer(machine)) == [cj.TakeMasks(kit.at(), {"": MASKS})]
    assert kit.tasks(done(machine, cj.TakeMasks(kit.at(), {"": MASKS}), COMMIT)) == [
        cj.SealRound(kit.JOB, 2, 1)
    ]


@pytest.mark.parametrize("steps", [0, 1, 2], ids=["sealing_job", "announcing", "sealing"])
def test_a_batch_is_not_closed_while_the_host_may_hold_its_sums(steps: int) -> None:
    """A cloud that started again has not looked into its store yet."""
    machine = cloud()
    start(machine, cj.StartJob(kit.JOB, 1, 2, exchanges=2, retries=1))
    if steps:
        header, data = sealed(cj.SealJob(kit.JOB))
        done(machine, cj.SealJob(kit.JOB), cj.CellBroadcasts({"": cj.Broadcast(header, data)}))
        if steps == 2:
            receive(machine, ack(header))
    assert state(machine).value == ["sealing_job", "announcing", "sealing"][steps]
    assert kit.bodies(offer_batch(machine, kit.at(1, 1)), m.Ack) == []
    (other,) = kit.bodies(offer_batch(machine, kit.at(2, 1)), m.Ack)
    assert other.status == "closed"


def test_with_a_new_key_the_same_question_is_signed_anew_and_then_the_job_told() -> None:
    fresh, releases = (m.Signer("cloud", kit.signing_key(number)) for number in (75, 76))
    peers = m.PeerKeys.pinned(proxy=kit.PROXY_KEY)
    bounds = cj.CloudSettings(packet_bytes=kit.PACKET_BYTES)
    machine = unmasking(CloudMachine(fresh, {"": peers}, bounds, releases=releases))
    jobs = kit.signing_key(77)
    own = OwnKeys(
        jobs, kit.signing_key(78), {"": replace(peers, epoch=1)}, m.TrustMetadata((), b"")
    )
    out = machine.handle(fx.Command(own), 0.0)
    assert asked(out) == [CHOSEN]
    for note in kit.messages(out, m.Note):
        m.check_signature(note.body, "cloud", jobs.public(), BODY)
    assert state(machine) is cj.CloudState.UNMASKING
    answer(machine)
    out = done(machine, cj.TakeMasks(kit.at(), {"": MASKS}), COMMIT)
    assert kit.tasks(out) == [cj.SealJob(kit.JOB)]
    assert state(machine) is cj.CloudState.SEALING_JOB
