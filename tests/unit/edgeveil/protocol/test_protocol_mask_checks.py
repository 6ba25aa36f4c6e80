"""Masks are checked upload by upload before a choice is spent: by the proxy, and by the cloud."""

from __future__ import annotations

import hashlib
from pathlib import Path

import protocol_kit as kit
import pytest
from cloud_bench import batch, done, fire, receive, state, waiting
from cloud_bench import hand_over as offer_batch
from msgspec import structs
from proxy_bench import FLEET, cloud_says
from real_proxy import RealProxy
from test_protocol_proxy_masks import (
    MASKED,
    UPLOADS,
    answer_of,
    ask,
    begin,
    expected,
    given,
    handed_over,
    masked_round,
    question,
    seed,
    upload,
    why_not,
)

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.cloud import CloudMachine
from edgeveil.protocol.proxy_rounds import MISFIT
from edgeveil.protocol.sealed import RoundCheck, choice, committed, masked_vectors
from edgeveil.protocol.tensors import mask_checks
from edgeveil.protocol.transfer import describe

MEMBERSHIP = b"m" * 32
CHECK = RoundCheck.of(kit.at(), MEMBERSHIP, disclosed=True)
OTHER = RoundCheck.of(kit.at(), bytes(32), disclosed=True)


# --- the proxy ---


@pytest.fixture
def machine(tmp_path: Path) -> RealProxy:
    return RealProxy(tmp_path)


def checked_round() -> m.Manifest:
    return committed(masked_round(), MEMBERSHIP)


def checked_batch(machine: RealProxy) -> m.Batch:
    return handed_over(machine, checked_round())


def check(of_: m.Batch, by: RoundCheck = CHECK, **changes: object) -> m.CheckMasks:
    return structs.replace(m.CheckMasks(of_.at, of_.blob.digest, by.key.to_bytes()), **changes)


def ask_checks(machine: RealProxy, asked: m.CheckMasks) -> list[fx.Effect]:
    return cloud_says(machine, kit.CLOUD.note(asked))


def checks_of(places: range = range(UPLOADS)) -> bytes:
    vectors = masked_vectors(kit.at(), kit.GROUPS, MASKED)
    return mask_checks(vectors, [seed(UPLOADS - 1 - place) for place in places], CHECK)


def test_factors_that_the_round_did_not_commit_to_are_refused_for_good(machine: RealProxy) -> None:
    batch_ = checked_batch(machine)
    for _ in range(2):
        assert why_not(ask_checks(machine, check(batch_, OTHER))) == "wrong_factors"
        assert given(ask_checks(machine, check(batch_))) == checks_of()
    assert why_not(ask_checks(machine.restarted(), check(batch_, OTHER))) == "wrong_factors"


def test_a_round_that_commits_to_no_factors_is_not_checked(machine: RealProxy) -> None:
    batch_ = handed_over(machine)
    assert why_not(ask_checks(machine, check(batch_))) == "wrong_factors"
    assert given(ask(machine, question(batch_))) == expected(range(UPLOADS))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batch": bytes(32)}, "unknown_batch"),
        ({"at": kit.at(2)}, "unknown_round"),
        ({"at": kit.at(1, 2)}, "unknown_round"),
    ],
)
def test_checks_of_what_is_not_there_are_refused_by_name(
    machine: RealProxy, changes: dict[str, object], reason: str
) -> None:
    batch_ = checked_batch(machine)
    assert why_not(ask_checks(machine, check(batch_, **changes))) == reason


def test_the_choice_follows_the_checks_and_its_floor_holds(machine: RealProxy) -> None:
    batch_ = checked_batch(machine)
    ask_checks(machine, check(batch_))
    assert why_not(ask(machine, question(batch_, (0, 1)))) == "choice_below_floor"
    assert given(ask(machine, question(batch_, (0, 2, 3)))) == expected((0, 2, 3))
    assert given(ask_checks(machine, check(batch_))) == checks_of()  # nothing new
    assert why_not(ask(machine, question(batch_, (0, 1, 3)))) == "unmasked_already"


def test_a_seed_that_was_sealed_for_other_factors_is_told_at_once(machine: RealProxy) -> None:
    begin(machine, checked_round())
    forked = committed(masked_round(), bytes(32))
    assert kit.refused(upload(machine, 0, forked)) == ["bad_seed"]
    assert kit.refused(upload(machine, 1, masked_round())) == ["bad_seed"]
    assert kit.refused(upload(machine, 2, checked_round())) == []


def misfits(of_: m.Batch, places: list[int]) -> m.Misfits:
    return m.Misfits(of_.at, of_.blob.digest, choice(places, UPLOADS))


def blamed(effects: list[fx.Effect]) -> set[tuple[str, str]]:
    found = kit.of(effects, fx.Refuse)
    return {
        (one.sender.id, one.reason) for one in found if isinstance(one.sender, fx.DeviceAddress)
    }


def test_misfits_have_their_sender_s_name_once_and_lose_nothing(machine: RealProxy) -> None:
    batch_ = checked_batch(machine)
    out = cloud_says(machine, kit.CLOUD.note(misfits(batch_, [0, 3])))
    assert blamed(out) == {(FLEET[4].id, MISFIT), (FLEET[1].id, MISFIT)}
    assert len(out) == 2
    assert cloud_says(machine, kit.CLOUD.note(misfits(batch_, [1]))) == []
    assert given(ask(machine, question(batch_))) == expected(range(UPLOADS))


def test_a_place_that_is_not_there_blames_nobody(machine: RealProxy) -> None:
    batch_ = checked_batch(machine)
    wrong = structs.replace(misfits(batch_, [0]), places=b"\x21")
    assert blamed(cloud_says(machine, kit.CLOUD.note(wrong))) == set()
    elsewhere = structs.replace(misfits(batch_, [0]), batch=bytes(32))
    assert cloud_says(machine, kit.CLOUD.note(elsewhere)) == []


@pytest.mark.parametrize("how", ["restart", "sums acknowledged"])
def test_whose_uploads_they_were_is_forgotten(machine: RealProxy, how: str) -> None:
    batch_ = checked_batch(machine)
    if how == "restart":
        machine = machine.restarted()
    else:
        found = answer_of(ask(machine, question(batch_)))
        assert found is not None
        cloud_says(machine, kit.CLOUD.note(m.Ack(found[0].blob.digest, "held")))
    assert cloud_says(machine, kit.CLOUD.note(misfits(batch_, [0]))) == []
    assert machine.rounds.collections[kit.at()].senders == ()


def test_the_sums_of_checks_alone_do_not_make_it_forget(machine: RealProxy) -> None:
    batch_ = checked_batch(machine)
    found = answer_of(ask_checks(machine, check(batch_)))
    assert found is not None
    cloud_says(machine, kit.CLOUD.note(m.Ack(found[0].blob.digest, "held")))
    assert blamed(cloud_says(machine, kit.CLOUD.note(misfits(batch_, [2])))) == {
        (FLEET[2].id, MISFIT)
    }


# --- the cloud ---

ASKED = check(batch()[0])
DIGEST = hashlib.sha256(m.encode_inner(ASKED)).digest()
ANSWER = b"checks of masks"
CHOSEN = m.Unmask(kit.at(), batch()[0].blob.digest, b"\x07")
WRONG = m.Misfits(kit.at(), batch()[0].blob.digest, b"\x08")


def checking() -> CloudMachine:
    """The host has opened the batch; the proxy is asked for the checks."""
    machine = waiting()
    offer_batch(machine)
    done(machine, cj.Absorb({"": batch()[0]}), cj.AskChecks({"": ASKED}))
    assert state(machine) is cj.CloudState.CHECKING
    return machine


def answered(machine: CloudMachine) -> list[fx.Effect]:
    header = m.MaskSums(kit.at(), DIGEST, describe(ANSWER, kit.PART_BYTES))
    return receive(machine, kit.offer(header, ANSWER, kit.PROXY))


def test_the_choice_is_asked_for_after_the_checks_and_misfits_are_told_before_it() -> None:
    machine = checking()
    assert kit.tasks(answered(machine)) == [cj.TakeChecks(kit.at(), {"": ANSWER})]
    task = cj.TakeChecks(kit.at(), {"": ANSWER})
    out = done(machine, task, cj.AskUnmask({"": CHOSEN}, {"": WRONG}))
    assert state(machine) is cj.CloudState.UNMASKING
    assert kit.bodies(out, m.Misfits | m.Unmask) == [WRONG, CHOSEN]
    assert kit.bodies(fire(machine, "unmask"), m.Misfits | m.CheckMasks) == []


@pytest.mark.parametrize("why", ["refused", "failed"])
def test_a_check_that_comes_to_nothing_has_spent_nothing(why: str) -> None:
    """No choice was said, so the round is asked for again, as after any failure before it."""
    machine = checking()
    if why == "refused":
        out = receive(machine, kit.PROXY.note(m.Ack(DIGEST, "refused", "unknown_round")))
    else:
        answered(machine)
        out = done(
            machine, cj.TakeChecks(kit.at(), {"": ANSWER}), fx.WorkFailed("wrong_mask_checks")
        )
    assert kit.tasks(out) == [cj.SealRound(kit.JOB, 1, 2)]
    assert kit.bodies(out, m.Unmask) == []
