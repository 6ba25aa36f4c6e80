"""The proxy gives the masks of one choice of uploads away, once for each round.

The machine stands on its real host and spool: what outlives a restart is what is on disk.
"""

import hashlib

import protocol_kit as kit
import pytest
from msgspec import structs
from proxy_bench import FLEET, MODEL, from_cloud, send_note, send_offer
from real_proxy import RealProxy

from edgeveil.crypto.keys import MaskSeed
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.proxy_rounds import MISFIT
from edgeveil.protocol.sealed import RoundCheck, choice, committed, masked_vectors, seal_seed
from edgeveil.protocol.tensors import mask_checks, mask_sums
from edgeveil.protocol.transfer import describe

MASKED = (m.MaskedGroup(0, 10, 40), m.MaskedGroup(1, 4, 33))
UPLOADS = 5


def seed(number):
    return MaskSeed(hashlib.sha256(b"seed of device %d" % number).digest())


@pytest.fixture
def machine(tmp_path):
    return RealProxy(tmp_path)


def masked_round(where=None, **changes):
    plain = {"selected": UPLOADS, "quorum": UPLOADS, "masked": MASKED}
    return kit.manifest(MODEL + repr(where or kit.at()).encode(), where, **(plain | changes))


def begin(machine, header=None):
    header = header or masked_round()
    return from_cloud(machine, kit.offer(header, MODEL + repr(header.at).encode()))


def key_of(machine, where):
    key = machine.masks._context.memory.round_key(where)
    return key.public().to_bytes() if key else b""


def masked_upload(machine, number, header=None, **changes):
    header = header or masked_round()
    upload, data = kit.upload_of(header.at, number + 1, changes.pop("groups", (0, 1, 2)))
    sealed = seal_seed(seed(number), header, FLEET[number].id, key_of(machine, header.at))
    return structs.replace(upload, **({"seed": sealed} | changes)), data


def upload(machine, number, header=None, **changes):
    made, data = masked_upload(machine, number, header, **changes)
    return send_offer(machine, FLEET[number], made, data)


def handed_over(machine, header=None):
    """All of five devices have uploaded."""
    header = header or masked_round()
    begin(machine, header)
    for number in range(UPLOADS):
        out = upload(machine, number, header)
    (batch,) = [h for h in kit.headers(out) if isinstance(h, m.Batch)]
    return batch


def question(of_, places=range(UPLOADS), **changes):
    plain = m.Unmask(of_.at, of_.blob.digest, choice(list(places), UPLOADS))
    return structs.replace(plain, **changes)


def ask(machine, asked):
    return from_cloud(machine, kit.CLOUD.note(asked))


def answer_of(effects):
    found = [(m.decode_header(one.header), one.data) for one in kit.messages(effects, m.Offer)]
    return next((one for one in reversed(found) if isinstance(one[0], m.MaskSums)), None)


def given(effects):
    return answer_of(effects)[1]


def why_not(effects):
    """The cloud's question is refused, to its face, and nothing was made durable."""
    assert answer_of(effects) is None
    assert kit.stored(effects) == []
    ((status, reason),) = kit.acks(effects)
    assert (status, kit.refused(effects)) == ("refused", [reason])
    return reason


def expected(chosen, where=None):
    """The sums for these places of a batch, whose shuffle turned the devices round."""
    vectors = masked_vectors(where or kit.at(), kit.GROUPS, MASKED)
    return mask_sums(vectors, [seed(UPLOADS - 1 - place) for place in chosen])


def test_an_upload_that_could_not_be_summed_is_refused(machine):
    begin(machine, checked_round())
    for changes, reason in (
        ({"seed": b""}, "wrong_seed"),
        ({"seed": bytes(80)}, "bad_seed"),
        ({"groups": (0, 2)}, "wrong_groups"),
        ({"groups": (2,)}, "wrong_seed"),
        ({"blob": describe(bytes(300), 512)}, "wrong_size"),
    ):
        out = upload(machine, 0, checked_round(), **changes)
        assert kit.refused(out) == [reason], changes
        assert (kit.stored(out), kit.acks(out)) == ([], [("refused", reason)])
    stolen = masked_upload(machine, 0, checked_round())[0].seed
    forked = committed(masked_round(), bytes(32))
    for number, header, seeds in (
        (1, checked_round(), {"seed": stolen}),
        (0, forked, {}),  # sealed for other factors, or for none
        (0, masked_round(), {}),
    ):
        assert kit.refused(upload(machine, number, header, **seeds)) == ["bad_seed"]
    assert not machine.rounds.collections[kit.at()].uploads
    assert kit.refused(upload(machine, 0, checked_round(), seed=stolen)) == []


@pytest.mark.parametrize("restart", [False, True], ids=["same process", "after a restart"])
@pytest.mark.parametrize("heard", [True, False], ids=["heard", "answer under way"])
def test_a_second_choice_is_refused(machine, restart, heard):
    batch = handed_over(machine)
    machine.hold = not heard
    ask(machine, question(batch, (0, 1, 2)))
    machine = machine.restarted() if restart else machine
    for other in ((0, 1, 2, 3), (0, 1, 3), (2, 3, 4)):
        assert why_not(ask(machine, question(batch, other))) == "unmasked_already"
    machine.hold = False
    given_now = machine.restarted() if not heard and not restart else machine
    assert given(ask(given_now, question(batch, (0, 1, 2)))) == expected((0, 1, 2))


def test_what_cannot_be_answered_is_refused_by_name(machine):
    batch = handed_over(machine)
    for places, changes, reason in (
        ((0, 1), {}, "choice_below_floor"),
        ((), {"chosen": b"\0"}, "choice_below_floor"),
        ((), {"chosen": b"\x3f"}, "malformed_choice"),
        ((), {"chosen": b"\x1f\0"}, "malformed_choice"),
        (range(5), {"batch": bytes(32)}, "unknown_batch"),
        (range(5), {"at": kit.at(2)}, "unknown_round"),
    ):
        assert why_not(ask(machine, question(batch, places, **changes))) == reason
    device = FLEET[0]
    assert answer_of(send_note(machine, device, question(batch))) is None
    forged = structs.replace(kit.CLOUD.note(question(batch)).body, signature=bytes(64))
    assert kit.refused(from_cloud(machine, m.Note(forged))) == ["forged"]
    assert not machine.masks._context.memory.unmasked


def test_another_attempt_is_opened_until_a_round_is_unmasked(machine):
    first = handed_over(machine)
    second = handed_over(machine, masked_round(kit.at(1, 2)))
    assert why_not(ask(machine, question(first))) == "unknown_round"
    assert given(ask(machine, question(second))) == expected(range(UPLOADS), kit.at(1, 2))
    assert why_not(ask(machine, question(first))) == "unmasked_already"
    for one in (machine, machine.restarted()):
        assert kit.refused(begin(one, masked_round(kit.at(1, 3)))) == ["unmasked_already"]
        assert kit.refused(begin(one, masked_round(kit.at(2)))) == []


def left(machine):
    """Seeds and keys on the disk, and the disk."""
    memory = machine.restarted().masks._context.memory
    seeds = [one.to_bytes() for b in memory.batches.values() for one in b.seeds]
    seeds += [u.held.seed.to_bytes() for u in memory.uploads if u.held.seed]
    keys = [kept.key for kept in memory.kept.values()]
    return seeds, keys, (machine.folder / "spool.sqlite").read_bytes()


def commit(machine, batch):
    record, data = kit.commit_of(batch.at, [b"x"])
    from_cloud(machine, kit.CLOUD.note(m.Ack(batch.blob.digest, "held")))
    return from_cloud(machine, kit.offer(record, data))


def test_with_the_commit_seeds_and_key_are_gone(machine):
    batch = handed_over(machine)
    seeds, keys, disk = left(machine)
    assert len(seeds) == UPLOADS
    assert any(keys)
    ask(machine, question(batch))
    commit(machine, batch)
    machine.spool.close()
    found, keys, disk = left(machine)
    assert found == []
    assert not any(keys)
    assert not any(one in disk for one in seeds)
    assert not any(seed(number).to_bytes() in disk for number in range(UPLOADS))
    again = machine.restarted()
    assert why_not(ask(again, question(batch))) == "unknown_round"


def test_no_job_begins_once_more_after_something_of_it_was_unmasked(tmp_path):
    """The proxy forgets ends of jobs; the same job would bring the same numbers once more."""
    machine = RealProxy(tmp_path, ended_kept=1)
    ask(machine, question(handed_over(machine)))
    for job in (kit.JOB, b"K" * 16):
        from_cloud(machine, kit.CLOUD.note(m.Close(job, "completed")))
    assert left(machine)[:2] == ([], [])
    for one in (machine.restarted(), machine):
        memory = one.masks._context.memory
        assert (memory.unmasked, memory.summed) == ({}, {kit.JOB})
        memory.ended.clear()
        for where in (kit.at(1, 2), kit.at(1, 1), kit.at(2)):
            assert kit.refused(begin(one, masked_round(where))) == ["unmasked_already"]
    assert kit.refused(begin(machine, masked_round(kit.at(job=b"L" * 16)))) == []


@pytest.mark.parametrize("reach", [begin, handed_over])
def test_a_memory_from_a_backup_has_no_seed_and_sums_no_job_that_it_knows(machine, reach):
    """It cannot know what the proxy unmasked after the backup was made."""
    reach(machine)
    machine.spool.put_back()
    machine.spool.close()
    back = machine.restarted()
    memory = back.masks._context.memory
    assert left(back)[:2] == ([], [])
    assert (memory.uploads, memory.delivered, memory.summed) == ([], set(), {kit.JOB})
    for where in (kit.at(), kit.at(1, 2), kit.at(2)):
        assert kit.refused(begin(back, masked_round(where))) == ["unmasked_already"]
    for allowed in (masked_round(kit.at(3), masked=()), masked_round(kit.at(job=b"L" * 16))):
        assert kit.refused(begin(back, allowed)) == []


def test_each_set_has_masks_of_its_own_and_keeps_its_part_of_the_floor(tmp_path):
    machine, header = RealProxy(tmp_path, min_batch_floor=2), masked_round(sets=2, min_batch=4)
    batch = handed_over(machine, header)
    assert why_not(ask(machine, question(batch, [0, 2, 4, 1]))) == "choice_below_floor"
    assert given(ask(machine, question(batch))) == expected([0, 2, 4]) + expected([1, 3])


def test_sets_below_the_proxys_own_floor_are_refused_with_the_round(machine):
    out = begin(machine, masked_round(sets=5, min_batch=5))
    assert (kit.refused(out), key_of(machine, kit.at())) == (["sets_below_floor"], b"")


MEMBERSHIP = b"m" * 32
CHECK = RoundCheck.of(kit.at(), MEMBERSHIP, disclosed=True)


def checked_round():
    return committed(masked_round(), MEMBERSHIP)


@pytest.fixture
def batch(machine):
    return handed_over(machine, checked_round())


def check(of_, by=CHECK, **changes):
    return structs.replace(m.CheckMasks(of_.at, of_.blob.digest, by.key.to_bytes()), **changes)


def checks_of(places=range(UPLOADS)):
    vectors = masked_vectors(kit.at(), kit.GROUPS, MASKED)
    return mask_checks(vectors, [seed(UPLOADS - 1 - place) for place in places], CHECK)


def test_factors_that_the_round_did_not_commit_to_are_refused_for_good(machine, batch):
    for other in (
        RoundCheck.of(kit.at(), bytes(32), disclosed=True),
        RoundCheck.of(kit.at(1, 2), MEMBERSHIP, disclosed=True),
    ):
        assert why_not(ask(machine, check(batch, other))) == "wrong_factors"
        assert given(ask(machine, check(batch))) == checks_of()
        assert why_not(ask(machine.restarted(), check(batch, other))) == "wrong_factors"


def test_the_choice_follows_the_checks_and_its_floor_holds(machine, batch):
    ask(machine, check(batch))
    assert why_not(ask(machine, question(batch, (0, 1)))) == "choice_below_floor"
    assert given(ask(machine, question(batch, (0, 2, 3)))) == expected((0, 2, 3))
    assert given(ask(machine, check(batch))) == checks_of()  # nothing new
    assert why_not(ask(machine, question(batch, (0, 1, 3)))) == "unmasked_already"


def misfits(of_, places, **changes):
    plain = m.Misfits(of_.at, of_.blob.digest, choice(places, UPLOADS))
    return structs.replace(plain, **changes)


def blamed(effects):
    found = kit.of(effects, fx.Refuse)
    return {
        (one.sender.id, one.reason) for one in found if isinstance(one.sender, fx.DeviceAddress)
    }


def test_misfits_have_their_sender_s_name_once_and_lose_nothing(machine, batch):
    assert ask(machine, misfits(batch, [0], batch=bytes(32))) == []
    out = ask(machine, misfits(batch, [0, 3]))
    assert blamed(out) == {(FLEET[4].id, MISFIT), (FLEET[1].id, MISFIT)}
    assert ask(machine, misfits(batch, [1])) == []
    assert given(ask(machine, question(batch))) == expected(range(UPLOADS))


def test_a_place_that_is_not_there_blames_nobody(machine, batch):
    assert blamed(ask(machine, structs.replace(misfits(batch, [0]), places=b"\x21"))) == set()
    assert blamed(ask(machine, misfits(batch, [0]))) == {(FLEET[4].id, MISFIT)}


def test_whose_uploads_they_were_is_forgotten_once_they_are_summed(machine, batch):
    (header, _) = answer_of(ask(machine, question(batch)))
    from_cloud(machine, kit.CLOUD.note(m.Ack(header.blob.digest, "held")))
    for one in (machine, machine.restarted()):
        assert blamed(ask(one, misfits(batch, [2]))) == set()
