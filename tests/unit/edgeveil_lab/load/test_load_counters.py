"""What became of each upload: counted, lost, refused, counted twice."""

from __future__ import annotations

import hashlib

import pytest

from edgeveil.protocol.messages import ExchangeId
from edgeveil_lab.load.counters import UploadCounters
from edgeveil_lab.load.leader import FleetTotals
from edgeveil_lab.load.run_log import LoadRunLog, losses, sum_matches

AT, AGAIN = ExchangeId(b"j" * 16, 1, 1), ExchangeId(b"j" * 16, 2, 1)


def name(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@pytest.fixture
def counters():
    counters = UploadCounters()
    for number, device in enumerate("abcd"):
        counters.offer(AT, name(device), (name(device),), 10.0 + number)
    return counters


def totals(*counted: UploadCounters) -> FleetTotals:
    plains = [counters.to_plain() for counters in counted]
    return FleetTotals(
        plains, [{(r["round"], r["attempt"]): r for r in p["rounds"]} for p in plains]
    )


def run_log(*uploads: int, mean: float | None = None) -> LoadRunLog:
    rounds = [{"round": n, "attempt": 1, "uploads": u} for n, u in enumerate(uploads, 1)]
    return LoadRunLog(committed=rounds, mean_of_values=mean)


def losses_of(counters: UploadCounters, *uploads: int, alone: bool = True) -> dict[str, int]:
    found = losses(totals(counters), run_log(*uploads), alone=alone)
    assert found.pop("left_out") == 0
    return found


def test_counted_once_is_what_should_be(counters):
    for device in "abcd":
        counters.ack(AT, name(device), "held", "", 14.0)
    counters.commit(AT, b"".join(sorted(map(name, "abcd"))))
    counters.commit(AT, b"")  # the record comes to many devices; the first one counts
    assert (counters.counted, counters.missing, counters.repeated, counters.waiting) == (4, 0, 0, 0)
    assert losses_of(counters, 4) == {"lost": 0, "unanswered": 0}


def test_acknowledged_and_not_in_the_record_is_lost(counters):
    for device in "abcd":
        counters.ack(AT, name(device), "held", "", 14.0)
    counters.commit(AT, b"".join(map(name, "abc")))
    assert (counters.counted, counters.missing) == (3, 1)
    assert losses_of(counters, 3)["lost"] == 1


def test_without_a_record_here_it_is_lost_only_if_the_round_was_committed(counters):
    for device in "abcd":
        counters.ack(AT, name(device), "held", "", 14.0)
    assert losses_of(counters, 4)["lost"] == 4
    assert losses_of(counters)["lost"] == 0


def test_an_answer_that_never_came_is_lost_unless_the_device_went_away(counters):
    for device in "abc":
        counters.ack(AT, name(device), "held", "", 14.0)
    counters.commit(AT, b"".join(map(name, "abc")))
    assert losses_of(counters, 3) == {"lost": 1, "unanswered": 1}
    counters.away(AT, name("d"))
    assert losses_of(counters, 3) == {"lost": 0, "unanswered": 0}


def test_a_device_that_is_back_must_be_answered(counters):
    for device in "abc":
        counters.ack(AT, name(device), "held", "", 14.0)
    counters.away(AT, name("d"))
    counters.away(AT, name("d"), away=False)
    counters.commit(AT, b"".join(map(name, "abc")))
    assert losses_of(counters, 3) == {"lost": 1, "unanswered": 1}


@pytest.mark.parametrize(
    ("uploads", "alone", "lost"), [(3, True, 1), (3, False, 1), (5, True, 1), (5, False, 0)]
)
def test_the_clouds_count_of_a_round_is_that_of_its_record(counters, uploads, alone, lost):
    counters.commit(AT, b"".join(map(name, "abcd")))
    assert losses_of(counters, uploads, alone=alone)["lost"] == lost


@pytest.mark.parametrize(
    ("uploads", "mean", "matches"),
    [(2, 0.5, True), (2, 0.4, False), (2, 0.5 + 1e-9, True), (3, 0.5, None), (2, None, None)],
)
def test_the_clouds_mean_is_that_of_what_was_sent(uploads, mean, matches):
    counters = UploadCounters()
    for device, total in (("a", 1.5), ("b", 2.5), ("c", 70.0)):
        counters.offer(AT, name(device), (name(device),), 10.0, total)
    counters.commit(AT, name("a") + name("b"))
    assert sum_matches(totals(counters), run_log(uploads, mean=mean), values=4) is matches


def test_without_a_round_there_is_no_sum():
    assert sum_matches(totals(UploadCounters()), run_log(), values=4) is None


def test_a_late_upload_is_refused_and_not_lost(counters):
    for device in "abc":
        counters.ack(AT, name(device), "held", "", 14.0)
    counters.commit(AT, b"".join(map(name, "abc")))
    counters.ack(AT, name("d"), "closed", "", 21.0)
    assert counters.refused == {"upload: closed": 1}
    assert losses_of(counters, 3)["lost"] == 0


def test_twice_in_a_record_or_in_two_of_them_is_counted_twice(counters):
    counters.commit(AT, name("a") * 2 + name("b"))
    assert counters.repeated == 1
    counters.commit(AGAIN, name("b") + name("c"))
    assert counters.repeated == 2


def test_held_and_then_refused_is_a_contradiction(counters):
    counters.ack(AT, name("a"), "held", "", 14.0)
    counters.ack(AT, name("a"), "held", "", 15.0)  # said again: the offer was repeated
    assert counters.contradicted == 0
    counters.ack(AT, name("a"), "refused", "wrong_size", 16.0)
    assert counters.contradicted == 1
    assert totals(counters, UploadCounters()).counts["duplicated"] == 1


def test_a_repetition_that_all_generators_read_is_one():
    counted = UploadCounters(), UploadCounters()
    for counters in counted:
        counters.commit(AT, name("a") * 2)
    assert totals(*counted).counts["duplicated"] == 1


def test_several_generators_add_up(counters):
    other = UploadCounters()
    other.offer(AT, name("z"), (name("z"),), 9.0)
    other.round(AT).upload_bytes = 70
    counters.round(AT).upload_bytes = 30
    both = totals(counters, other)
    assert both.counts["offered"] == 5
    row = both.rounds[1, 1]
    assert (row["offered"], row["upload_bytes"], row["first_offer_s"]) == (5, 100, 9.0)


def test_rounds_long_over_are_told_once_more_and_forgotten(counters):
    for number in range(2, 40):
        counters.round(ExchangeId(b"j" * 16, number, 1))
    assert len(counters.to_plain()["rounds"]) == 39
    assert [row["round"] for row in counters.to_plain()["rounds"]] == list(range(32, 40))
    assert counters.waiting == 0


# --- cells ---


def made_of(**cells: int) -> LoadRunLog:
    """One round of these cells' uploads, by the cloud's own word."""
    row = {"round": 1, "attempt": 1, "uploads": sum(cells.values()), "cells": cells}
    return LoadRunLog(committed=[row])


def test_what_is_acknowledged_in_a_cell_that_was_left_out_is_told_and_not_lost(counters):
    for device in "abc":
        counters.ack(AT, name(device), "held", "", 14.0)
    counters.commit(AT, name("z"))
    found = losses(totals(counters), made_of(north=1), alone=True, cell="south")
    assert found == {"lost": 0, "unanswered": 0, "left_out": 3}


def test_a_cell_that_has_a_part_loses_what_is_not_in_the_record(counters):
    for device in "abcd":
        counters.ack(AT, name(device), "held", "", 14.0)
    counters.commit(AT, b"".join(map(name, "abc")))
    told = totals(counters)
    for south, lost in ((3, 1), (4, 2)):  # the other one, and the one that the cloud counts
        found = losses(told, made_of(north=7, south=south), alone=True, cell="south")
        assert (found["lost"], found["left_out"]) == (lost, 0)


def test_a_cell_that_was_left_out_and_of_which_some_counts_is_found(counters):
    for device in "abcd":
        counters.ack(AT, name(device), "held", "", 14.0)
    counters.commit(AT, b"".join(map(name, "ab")))
    found = losses(totals(counters), made_of(north=7), alone=True, cell="south")
    assert (found["lost"], found["left_out"]) == (2, 2)
