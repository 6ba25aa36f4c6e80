"""What became of each upload: counted, lost, refused, counted twice."""

from __future__ import annotations

import hashlib

import pytest

from edgeveil.protocol.messages import ExchangeId
from edgeveil_lab.load import verdict
from edgeveil_lab.load.leader import Totals
from edgeveil_lab.load.rounds import Course
from edgeveil_lab.load.tally import Tally

AT, AGAIN = ExchangeId(b"j" * 16, 1, 1), ExchangeId(b"j" * 16, 2, 1)


def name(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@pytest.fixture
def tally():
    tally = Tally()
    for number, device in enumerate("abcd"):
        tally.offer(AT, name(device), (name(device),), 10.0 + number)
    return tally


def totals(*tallies: Tally) -> Totals:
    plains = [tally.to_plain() for tally in tallies]
    return Totals(plains, [{(r["round"], r["attempt"]): r for r in p["rounds"]} for p in plains])


def course(*uploads: int, mean: float | None = None) -> Course:
    rounds = [{"round": n, "attempt": 1, "uploads": u} for n, u in enumerate(uploads, 1)]
    return Course(committed=rounds, mean_of_values=mean)


def losses(tally: Tally, *uploads: int, alone: bool = True) -> dict[str, int]:
    return verdict.losses(totals(tally), course(*uploads), alone=alone)


def test_counted_once_is_what_should_be(tally):
    for device in "abcd":
        tally.ack(AT, name(device), "held", "", 14.0)
    tally.commit(AT, b"".join(sorted(map(name, "abcd"))))
    tally.commit(AT, b"")  # the record comes to many devices; the first one counts
    assert (tally.counted, tally.missing, tally.repeated, tally.waiting) == (4, 0, 0, 0)
    assert losses(tally, 4) == {"lost": 0, "unanswered": 0}


def test_acknowledged_and_not_in_the_record_is_lost(tally):
    for device in "abcd":
        tally.ack(AT, name(device), "held", "", 14.0)
    tally.commit(AT, b"".join(map(name, "abc")))
    assert (tally.counted, tally.missing) == (3, 1)
    assert losses(tally, 3)["lost"] == 1


def test_without_a_record_here_it_is_lost_only_if_the_round_was_committed(tally):
    for device in "abcd":
        tally.ack(AT, name(device), "held", "", 14.0)
    assert losses(tally, 4)["lost"] == 4
    assert losses(tally)["lost"] == 0


def test_an_answer_that_never_came_is_lost_unless_the_device_went_away(tally):
    for device in "abc":
        tally.ack(AT, name(device), "held", "", 14.0)
    tally.commit(AT, b"".join(map(name, "abc")))
    assert losses(tally, 3) == {"lost": 1, "unanswered": 1}
    tally.away(AT, name("d"))
    assert losses(tally, 3) == {"lost": 0, "unanswered": 0}


def test_a_device_that_is_back_must_be_answered(tally):
    for device in "abc":
        tally.ack(AT, name(device), "held", "", 14.0)
    tally.away(AT, name("d"))
    tally.back(AT, name("d"))
    tally.commit(AT, b"".join(map(name, "abc")))
    assert losses(tally, 3) == {"lost": 1, "unanswered": 1}


@pytest.mark.parametrize(
    ("uploads", "alone", "lost"), [(3, True, 1), (3, False, 1), (5, True, 1), (5, False, 0)]
)
def test_the_clouds_count_of_a_round_is_that_of_its_record(tally, uploads, alone, lost):
    tally.commit(AT, b"".join(map(name, "abcd")))
    assert losses(tally, uploads, alone=alone)["lost"] == lost


@pytest.mark.parametrize(
    ("uploads", "mean", "matches"),
    [(2, 0.5, True), (2, 0.4, False), (2, 0.5 + 1e-9, True), (3, 0.5, None), (2, None, None)],
)
def test_the_clouds_mean_is_that_of_what_was_sent(uploads, mean, matches):
    tally = Tally()
    for device, total in (("a", 1.5), ("b", 2.5), ("c", 70.0)):
        tally.offer(AT, name(device), (name(device),), 10.0, total)
    tally.commit(AT, name("a") + name("b"))
    assert verdict.sum_matches(totals(tally), course(uploads, mean=mean), values=4) is matches


def test_without_a_round_there_is_no_sum():
    assert verdict.sum_matches(totals(Tally()), course(), values=4) is None


def test_a_late_upload_is_refused_and_not_lost(tally):
    for device in "abc":
        tally.ack(AT, name(device), "held", "", 14.0)
    tally.commit(AT, b"".join(map(name, "abc")))
    tally.ack(AT, name("d"), "closed", "", 21.0)
    assert tally.refused == {"upload: closed": 1}
    assert losses(tally, 3)["lost"] == 0


def test_twice_in_a_record_or_in_two_of_them_is_counted_twice(tally):
    tally.commit(AT, name("a") * 2 + name("b"))
    assert tally.repeated == 1
    tally.commit(AGAIN, name("b") + name("c"))
    assert tally.repeated == 2


def test_held_and_then_refused_is_a_contradiction(tally):
    tally.ack(AT, name("a"), "held", "", 14.0)
    tally.ack(AT, name("a"), "held", "", 15.0)  # said again: the offer was repeated
    assert tally.contradicted == 0
    tally.ack(AT, name("a"), "refused", "wrong_size", 16.0)
    assert tally.contradicted == 1
    assert totals(tally, Tally()).counts["duplicated"] == 1


def test_a_repetition_that_all_generators_read_is_one():
    tallies = Tally(), Tally()
    for tally in tallies:
        tally.commit(AT, name("a") * 2)
    assert totals(*tallies).counts["duplicated"] == 1


def test_several_generators_add_up(tally):
    other = Tally()
    other.offer(AT, name("z"), (name("z"),), 9.0)
    other.round(AT).upload_bytes = 70
    tally.round(AT).upload_bytes = 30
    both = totals(tally, other)
    assert both.counts["offered"] == 5
    row = both.rounds[1, 1]
    assert (row["offered"], row["upload_bytes"], row["first_offer_s"]) == (5, 100, 9.0)


def test_rounds_long_over_are_told_once_more_and_forgotten(tally):
    for number in range(2, 40):
        tally.round(ExchangeId(b"j" * 16, number, 1))
    assert len(tally.to_plain()["rounds"]) == 39
    assert [row["round"] for row in tally.to_plain()["rounds"]] == list(range(32, 40))
    assert tally.waiting == 0
