"""Fate of each upload: counted, lost, refused, counted twice."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeveil.protocol.messages import RoundId
from edgeveil_lab.load.counters import DurationHistogram, UploadCounters
from edgeveil_lab.load.leader import FleetTotals
from edgeveil_lab.load.run_log import LoadRunLog, losses, sum_matches

AT, AGAIN = RoundId(b"j" * 16, 1, 1), RoundId(b"j" * 16, 2, 1)


def name(text):
    return hashlib.sha256(text.encode()).digest()


@pytest.fixture
def counters():
    counters = UploadCounters()
    for number, device in enumerate("abcd"):
        counters.offer(AT, name(device), (name(device),), 10.0 + number)
    return counters


def held(counters, devices, recorded):
    """Acknowledge these uploads, then commit the recorded ones."""
    for device in devices:
        counters.ack(AT, name(device), "held", "", 14.0)
    counters.commit(AT, b"".join(map(name, recorded)))


def totals(*counted):
    found = [counters.snapshot() for counters in counted]
    return FleetTotals(found, [one["rounds"] for one in found])


def run_log(*uploads, mean=None, **cells):
    """Return a log of rounds with so many uploads each, or one round of these cells."""
    uploads = uploads or ((sum(cells.values()),) if cells else ())
    rounds = [
        {"round": n, "attempt": 1, "uploads": u, "cells": cells} for n, u in enumerate(uploads, 1)
    ]
    return LoadRunLog(committed=rounds, mean_of_values=mean)


def losses_of(counters, *uploads, alone=True):
    found = losses(totals(counters), run_log(*uploads), alone=alone)
    assert found["left_out"] == 0
    return found["lost"], found["unanswered"]


def test_what_was_acknowledged_is_lost_only_if_its_round_was_committed_without_it(counters):
    for device in "abc":
        counters.ack(AT, name(device), "held", "", 14.0)
    counters.ack(AT, name("d"), "closed", "", 21.0)  # late: refused, and not lost
    assert counters.refused == {"upload: closed": 1}
    assert (losses_of(counters, 3)[0], losses_of(counters)[0]) == (3, 0)
    counters.commit(AT, name("a") + name("b"))
    assert (counters.counted, counters.missing) == (2, 1)
    assert losses_of(counters, 2)[0] == 1


def test_what_is_counted_twice_or_first_held_and_then_refused_is_reported(counters):
    for said, contradictions in (("held", 0), ("held", 0), ("refused", 1)):
        counters.ack(AT, name("a"), said, "", 14.0)
        assert counters.contradicted == contradictions
    assert totals(counters, UploadCounters()).counts["duplicated"] == 1
    counters.commit(AT, name("a") * 2 + name("b"))
    counters.commit(AGAIN, name("b") + name("c"))
    assert counters.repeated == 2


def test_an_answer_that_never_came_is_lost_while_the_device_was_there(counters):
    held(counters, "abc", "abc")
    assert losses_of(counters, 3) == (1, 1)
    counters.away(AT, name("d"))
    assert losses_of(counters, 3) == (0, 0)
    counters.away(AT, name("d"), away=False)
    assert losses_of(counters, 3) == (1, 1)


@pytest.mark.parametrize(
    ("uploads", "alone", "lost"), [(3, True, 1), (3, False, 1), (5, True, 1), (5, False, 0)]
)
def test_the_clouds_count_of_a_round_is_that_of_its_record(counters, uploads, alone, lost):
    counters.commit(AT, b"".join(map(name, "abcd")))
    assert losses_of(counters, uploads, alone=alone)[0] == lost


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


def test_several_generators_add_up_and_a_repetition_that_all_of_them_read_is_one(counters):
    other = UploadCounters()
    other.offer(AT, name("z"), (name("z"),), 9.0)
    other.round(AT).upload_bytes = 70
    counters.round(AT).upload_bytes = 30
    for one in (counters, other):
        one.commit(AT, name("y") * 2)
    both = totals(counters, other)
    assert (both.counts["offered"], both.counts["duplicated"]) == (5, 1)
    row = both.rounds[1, 1]
    assert (row["offered"], row["upload_bytes"], row["first_offer_s"]) == (5, 100, 9.0)


@pytest.mark.parametrize(
    ("recorded", "cells", "lost", "left_out"),
    [
        ("z", {"north": 1}, 0, 4),  # acknowledged for a round that was made without it
        ("abc", {"north": 7, "south": 3}, 1, 0),
        ("abc", {"north": 7, "south": 4}, 2, 0),  # also the one that the cloud counts
        ("ab", {"north": 7}, 2, 2),  # left out, and some of it counts
    ],
)
def test_what_a_cell_loses(counters, recorded, cells, lost, left_out):
    held(counters, "abcd", recorded)
    found = losses(totals(counters), run_log(**cells), alone=True, cell="south")
    assert (found["lost"], found["left_out"]) == (lost, left_out)


# --- durations ---

DURATIONS = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=200)


def of(values):
    histogram = DurationHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(DURATIONS, st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_within_its_bucket(values, share):
    exact = sorted(values)[int(np.ceil(share * len(values))) - 1]
    assert of(values).percentile(share) == pytest.approx(exact, rel=0.021)


@given(DURATIONS, DURATIONS)
def test_merged_it_says_what_one_alone_would(left, right):
    merged = DurationHistogram.merged([of(left), of(right)])
    assert merged.summary() == of(left + right).summary()
