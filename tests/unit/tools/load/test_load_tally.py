"""What became of each upload: counted, lost, refused, counted twice."""

from __future__ import annotations

import hashlib

import pytest

from fl_core.protocol.messages import Exchanged
from tools.load.leader import Totals
from tools.load.outcome import _losses
from tools.load.rounds import Course
from tools.load.tally import Tally

AT, AGAIN = Exchanged(b"j" * 16, 1, 1), Exchanged(b"j" * 16, 2, 1)


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


def losses(tally: Tally, *, committed: bool = True) -> dict[str, int]:
    course = Course()
    if committed:
        course.committed.append({"round": 1, "attempt": 1})
    return _losses(totals(tally), course)


def test_counted_once_is_what_should_be(tally):
    for device in "abcd":
        tally.ack(AT, name(device), "held", "", 14.0)
    tally.commit(AT, b"".join(sorted(map(name, "abcd"))), 20.0)
    tally.commit(AT, b"", 21.0)  # the record comes to many devices; the first one counts
    assert (tally.counted, tally.missing, tally.duplicated, tally.waiting) == (4, 0, 0, 0)
    assert tally.counted_s.max_s == 10.0
    assert losses(tally) == {"lost": 0, "unanswered": 0}


def test_acknowledged_and_not_in_the_record_is_lost(tally):
    for device in "abcd":
        tally.ack(AT, name(device), "held", "", 14.0)
    tally.commit(AT, b"".join(map(name, "abc")), 20.0)
    assert (tally.counted, tally.missing) == (3, 1)
    assert losses(tally)["lost"] == 1


def test_without_a_record_here_it_is_lost_only_if_the_round_was_committed(tally):
    for device in "abcd":
        tally.ack(AT, name(device), "held", "", 14.0)
    assert losses(tally)["lost"] == 4
    assert losses(tally, committed=False)["lost"] == 0


def test_an_answer_that_never_came_is_lost_unless_the_device_went_away(tally):
    for device in "abc":
        tally.ack(AT, name(device), "held", "", 14.0)
    tally.commit(AT, b"".join(map(name, "abc")), 20.0)
    assert losses(tally) == {"lost": 1, "unanswered": 1}
    tally.away(AT, name("d"))
    assert losses(tally) == {"lost": 0, "unanswered": 0}


def test_a_late_upload_is_refused_and_not_lost(tally):
    for device in "abc":
        tally.ack(AT, name(device), "held", "", 14.0)
    tally.commit(AT, b"".join(map(name, "abc")), 20.0)
    tally.ack(AT, name("d"), "closed", "", 21.0)
    assert tally.refused == {"upload: closed": 1}
    assert losses(tally)["lost"] == 0


def test_twice_in_a_record_or_in_two_of_them_is_counted_twice(tally):
    tally.commit(AT, name("a") * 2 + name("b"), 20.0)
    assert tally.duplicated == 1
    tally.commit(AGAIN, name("b") + name("c"), 30.0)
    assert tally.duplicated == 2


def test_held_and_then_refused_is_a_contradiction(tally):
    tally.ack(AT, name("a"), "held", "", 14.0)
    tally.ack(AT, name("a"), "held", "", 15.0)  # said again: the offer was repeated
    assert tally.duplicated == 0
    tally.ack(AT, name("a"), "refused", "wrong_size", 16.0)
    assert tally.duplicated == 1


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
        tally.round(Exchanged(b"j" * 16, number, 1))
    assert len(tally.to_plain()["rounds"]) == 39
    assert [row["round"] for row in tally.to_plain()["rounds"]] == list(range(32, 40))
    assert tally.waiting == 0
