"""Correlated noise at the proxy: halves of the noise stay there, each round is opened once."""

import hashlib
import sqlite3
from contextlib import closing
from functools import partial

import protocol_kit as kit
import pytest
from msgspec import structs
from proxy_bench import FLEET, from_cloud, send_offer
from real_proxy import RealProxy
from test_protocol_proxy_masks import (
    MEMBERSHIP,
    UPLOADS,
    ask,
    begin,
    commit,
    given,
    handed_over,
    masked_round,
    masked_upload,
    question,
    seed,
    why_not,
)

from edgeveil.crypto.masking import sum_of_masks
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.proxy_rounds import NoiseHalf
from edgeveil.protocol.sealed import RoundCheck, committed, masked_vectors
from edgeveil.protocol.tensors import correlated_mask_sums
from edgeveil_proxy.spool import Spool

MASKED = (m.MaskedGroup(0, 1, 32), m.MaskedGroup(1, 1, 32), m.MaskedGroup(2, 2, 40))
NOISE = m.CorrelatedNoise(8, 2, 4, 230, 1)


@pytest.fixture
def machine(tmp_path):
    return RealProxy(tmp_path)


def noised(number=1, attempt=1, noise=NOISE, **changes):
    noise = structs.replace(noise, number=number) if noise else None
    plain = {"masked": MASKED, "correlated": noise}
    header = masked_round(kit.at(number, attempt), **(plain | changes))
    return committed(header, MEMBERSHIP)


def key_of(where):
    return RoundCheck.of(where, MEMBERSHIP, disclosed=True).key.to_bytes()


def asked(batch, before=b"", places=range(UPLOADS), **changes):
    return question(batch, places, **({"key": key_of(batch.at), "before": before} | changes))


def digest(request):
    return hashlib.sha256(m.encode_inner(request)).digest()


def told(where, before=b"", places=range(UPLOADS)):
    """The proxy's answer and its half; the shuffle turned the devices round."""
    vectors = masked_vectors(where, kit.GROUPS, MASKED)
    seeds = [seed(UPLOADS - 1 - place) for place in places]
    check = RoundCheck.of(where, MEMBERSHIP, disclosed=True)
    return correlated_mask_sums(vectors, seeds, NOISE.coefficient, before, check)


def halves(machine):
    """By round, equal in memory and on the disk."""
    kept = [one.masks._context.memory.halves for one in (machine, machine.restarted())]
    assert kept[0] == kept[1]
    return {round: one.half for (_, round), one in kept[0].items()}


def first_round(machine):
    """Open round 1; return its request and half."""
    batch = handed_over(machine, noised())
    request = asked(batch)
    assert given(ask(machine, request)) == told(kit.at())[0]
    return batch, digest(request), told(kit.at())[1]


def test_no_sum_of_the_noise_is_sent_and_its_half_is_durable_before_the_answer(machine):
    batch = handed_over(machine, noised())
    effects = ask(machine, asked(batch))
    answer, half = told(kit.at())
    assert given(effects) == answer
    assert answer[:1] == b"\0"
    *updates, noise = masked_vectors(kit.at(), kit.GROUPS, MASKED)
    assert len(answer) == 1 + sum(one.ring.byte_count for one in updates)
    own = sum_of_masks([seed(number) for number in range(UPLOADS)], noise.use, noise.ring)
    assert own.numbers.tobytes() == half
    sends = [place for place, effect in enumerate(effects) if isinstance(effect, fx.Send)]
    (kept,) = (
        place
        for place, effect in enumerate(effects)
        if isinstance(effect, fx.Persist) and isinstance(effect.item, NoiseHalf)
    )
    assert kept < sends[0]
    assert halves(machine) == {1: half}
    wire = b"".join(m.encode(effects[place].message) for place in sends)
    packed = half[: noise.ring.packed_bytes]
    assert packed not in wire
    assert packed.hex() not in repr(effects)


@pytest.mark.parametrize("restart", [False, True], ids=["same process", "after a restart"])
@pytest.mark.parametrize("heard", [True, False], ids=["heard", "answer under way"])
def test_a_round_has_one_answer_with_its_share_of_the_round_before(machine, restart, heard):
    """Two answers, of which one leaves that share out, would reveal it."""
    first, name, half = first_round(machine)
    commit(machine, first)
    batch, where = handed_over(machine, noised(2)), kit.at(2)
    machine.hold = not heard
    ask(machine, asked(batch, name, (0, 1, 2)))
    assert halves(machine).keys() == ({1, 2} if heard else {1})
    machine = machine.restarted() if restart else machine
    for other in (asked(batch, b"", (0, 1, 2)), asked(batch, name, (0, 1, 3))):
        assert why_not(ask(machine, other)) == "unmasked_already"
    machine.hold = False
    machine = machine.restarted() if not heard and not restart else machine
    answer = given(ask(machine, asked(batch, name, (0, 1, 2))))
    assert answer == told(where, half, (0, 1, 2))[0]
    assert answer[:1] == b"\1"
    assert answer[1:] != told(where, b"", (0, 1, 2))[0][1:]


@pytest.mark.parametrize(
    ("number", "before", "lost"),
    [
        (3, None, False),  # a round between was never opened
        (2, b"", False),
        (2, bytes(32), False),
        (2, None, True),
    ],
    ids=["skipped", "not named", "another named", "half lost"],
)
def test_without_the_half_of_the_round_before_its_share_is_left_out(machine, number, before, lost):
    first, name, _ = first_round(machine)
    commit(machine, first)
    if lost:
        machine.spool.close()
        with closing(sqlite3.connect(machine.folder / "spool.sqlite")) as db, db:
            db.execute("DELETE FROM halves")
        machine = machine.restarted()
    batch = handed_over(machine, noised(number))
    answer = given(ask(machine, asked(batch, name if before is None else before)))
    assert answer == told(kit.at(number))[0]
    assert answer[:1] == b"\0"


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 9},
        {"participations": 1},
        {"min_separation": 3},
        {"coefficient": 231},
        {"number": 1},
        {"number": 9},
    ],
)
def test_later_rounds_have_the_noise_of_the_first_and_growing_numbers(machine, changes):
    first_round(machine)
    header = committed(
        masked_round(kit.at(2), masked=MASKED, correlated=structs.replace(NOISE, number=2)),
        MEMBERSHIP,
    )
    other = structs.replace(header, correlated=structs.replace(header.correlated, **changes))
    for one in (machine, machine.restarted()):
        assert kit.refused(begin(one, other)) == ["other_noise"]
    assert kit.refused(begin(machine, header)) == []


def test_a_half_lives_until_the_next_round_is_over(machine):
    first, name, half = first_round(machine)
    assert halves(machine) == {1: half}
    commit(machine, first)
    assert halves(machine) == {1: half}
    abandoned = handed_over(machine, noised(2))
    second = handed_over(machine, noised(2, attempt=2))
    assert halves(machine) == {1: half}
    assert why_not(ask(machine, asked(abandoned, name))) == "unknown_round"
    request = asked(second, name)
    assert given(ask(machine, request)) == told(second.at, half)[0]
    assert halves(machine) == {1: half, 2: told(second.at)[1]}
    assert given(ask(machine.restarted(), request)) == told(second.at, half)[0]
    commit(machine, second)
    assert halves(machine) == {2: told(second.at)[1]}
    assert why_not(ask(machine, request)) == "unknown_round"
    machine.spool.close()
    assert half[:10] not in (machine.folder / "spool.sqlite").read_bytes()


def test_an_evaluation_between_two_rounds_uses_up_nothing(machine):
    first, name, half = first_round(machine)
    commit(machine, first)
    evaluation = handed_over(machine, masked_round(kit.at(2)))
    ask(machine, question(evaluation))
    commit(machine, evaluation)
    assert halves(machine) == {1: half}
    number = structs.replace(NOISE, number=2)
    header = masked_round(kit.at(3), masked=MASKED, correlated=number)
    batch = handed_over(machine, committed(header, MEMBERSHIP))
    assert given(ask(machine, asked(batch, name))) == told(kit.at(3), half)[0]


@pytest.mark.parametrize("late", [False, True], ids=["answered", "answer under way"])
def test_the_end_of_a_job_leaves_no_half(machine, late):
    batch = handed_over(machine, noised())
    machine.hold = late
    effects = ask(machine, asked(batch))
    from_cloud(machine, kit.CLOUD.note(m.Close(kit.JOB, "completed")))
    if late:
        (task,) = kit.tasks(effects)
        assert machine.work(task) == []
    assert halves(machine) == {}
    machine.spool.close()
    assert told(kit.at())[1][:10] not in (machine.folder / "spool.sqlite").read_bytes()


def test_a_memory_from_a_backup_has_no_half_and_opens_nothing(machine):
    first_round(machine)
    machine.spool.put_back()
    machine.spool.close()
    back = machine.restarted()
    assert halves(back) == {}
    assert kit.refused(begin(back, noised(2))) == ["unmasked_already"]


@pytest.mark.parametrize(
    "changes",
    [
        {"masked": (m.MaskedGroup(2, 2, 40),)},  # of no update
        {"masked": ()},
        {"masked": (*MASKED[:2], m.MaskedGroup(2, 1, 40))},
        {"masked": (*MASKED[:2], m.MaskedGroup(2, 3, 32))},
        {"masked": (*MASKED[:2], m.MaskedGroup(2, 2, 41))},
        {"masked": (MASKED[0], m.MaskedGroup(1, 1, 33), MASKED[2])},
        {"sets": 2, "min_batch": 6, "selected": 6},
        {"check": b""},
    ],
)
def test_noise_of_another_form_is_refused_with_its_round(machine, changes):
    header = structs.replace(noised(), **changes)
    assert kit.refused(begin(machine, header)) == ["malformed_noise"]
    assert machine.masks._context.memory.round_key(kit.at()) is None


def test_a_wide_ring_needs_a_check_of_each_mask(machine):
    """The check of a sum alone would miss a wrong one with probability 2^(bits - 65)."""
    wide = structs.replace(noised(), correlated=None, masked=(m.MaskedGroup(0, 1, 57),), check=b"")
    assert kit.refused(begin(machine, wide)) == ["malformed_masks"]


def test_the_factors_are_those_of_the_manifest(machine):
    batch = handed_over(machine, noised())
    other = RoundCheck.of(batch.at, bytes(32), disclosed=True).key.to_bytes()
    for key in (b"", other[:31], other, key_of(kit.at(1, 2))):
        assert why_not(ask(machine, asked(batch, key=key))) == "wrong_factors"
    assert given(ask(machine, asked(batch))) == told(kit.at())[0]


def refused_seed(machine, header, of_device):
    begin(machine, header)
    upload, data = masked_upload(machine, 0, of_device)
    return kit.refused(send_offer(machine, FLEET[0], upload, data))


def groups_renamed():
    one, other, softmax = kit.GROUPS
    return structs.replace(one, name=other.name), structs.replace(other, name=one.name), softmax


@pytest.mark.parametrize(
    "changes",
    [
        {"noise": None},
        {"noise": structs.replace(NOISE, coefficient=231)},
        {"groups": groups_renamed()},
        {"masked": (m.MaskedGroup(0, 1, 33), m.MaskedGroup(1, 1, 33), m.MaskedGroup(2, 2, 41))},
        {"min_batch": 4},
    ],
    ids=["not correlated", "coefficient", "names", "rings", "floor"],
)
def test_seeds_open_only_under_the_manifest_that_the_device_has_checked(tmp_path, changes):
    """A cloud could show devices one manifest, and the proxy one by which it opens the noise."""
    refused = partial(refused_seed, RealProxy(tmp_path))
    assert refused(noised(**changes), noised()) == ["bad_seed"]
    assert refused(noised(2), noised(2)) == []


def test_a_spool_of_an_earlier_version_gets_room_for_halves(machine):
    batch = handed_over(machine, masked_round())
    ask(machine, question(batch))
    machine.spool.close()
    path = machine.folder / "spool.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE halves; PRAGMA user_version = 7;")
    spool = Spool(path)
    half = NoiseHalf(kit.at(), NOISE, b"q" * 32, b"half")
    spool.store(half)
    spool.close()
    memory = Spool(path).load()
    assert memory.halves == {(kit.JOB, 1): half}
    assert memory.unmasked.keys() == {(kit.JOB, 1)}
