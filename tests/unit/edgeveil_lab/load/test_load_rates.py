"""Connections a second, from series worked out by hand, told by several generators."""

from __future__ import annotations

import pytest
from load_kit import outcome_of

from edgeveil_lab.load.counters import UploadCounters
from edgeveil_lab.load.leader import FleetTotals


def totals(*counted: UploadCounters) -> FleetTotals:
    return FleetTotals([counters.to_plain() for counters in counted], [])


def dialled(first_dial_s: float | None, last_up_s: float | None) -> UploadCounters:
    counters = UploadCounters()
    counters.first_dial_s, counters.last_up_s = first_dial_s, last_up_s
    return counters


@pytest.mark.parametrize(
    ("times_s", "seconds"),
    [
        ([(10.0, 12.0)], 2.0),
        ([(10.5, 12.0), (10.0, 11.0)], 2.0),  # from whoever began first to whoever was last
        ([(10.0, 11.0), (10.5, 14.0)], 4.0),
        ([(10.0, 12.0), (None, None)], 2.0),  # one that had no device to dial
        ([(10.0, 12.0), (9.0, None)], 3.0),
        ([(10.0, None)], 0.0),
        ([], 0.0),
    ],
)
def test_connecting_lasts_from_the_first_dial_to_the_last_connection(times_s, seconds):
    assert totals(*(dialled(*one) for one in times_s)).connecting_s() == seconds


def test_connections_a_second_are_all_over_that_time():
    connects = outcome_of(FleetTotals([], []), connects=600, connecting_s=2.5)["connects"]
    assert (connects["devices"], connects["seconds"], connects["per_s"]) == (600, 2.5, 240.0)


def test_connections_that_never_were_are_no_rate():
    assert outcome_of(FleetTotals([], []))["connects"]["per_s"] == 0
