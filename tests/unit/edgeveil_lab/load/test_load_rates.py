"""Connections a second and jitter, from series worked out by hand, told by several generators."""

from __future__ import annotations

import pytest
from load_kit import outcome_of

from edgeveil.protocol.messages import ExchangeId
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
    assert "jitter" not in connects["latency_s"]


def test_connections_that_never_were_are_no_rate():
    assert outcome_of(FleetTotals([], []))["connects"]["per_s"] == 0


def acknowledged(device: bytes, *answers: tuple[str, float]) -> UploadCounters:
    """One device's rounds: what the proxy said, and after how long; what a device remembers."""
    counters, before_s = UploadCounters(), None
    for number, (status, took_s) in enumerate(answers, 1):
        at = ExchangeId(b"j" * 16, number, 1)
        counters.offer(at, device, (device,), 100.0 * number)
        held_s = counters.ack(at, device, status, "", 100.0 * number + took_s, before_s)
        before_s = before_s if held_s is None else held_s
    return counters


@pytest.mark.parametrize(
    ("devices", "jitter_s"),
    [
        ([[1.0, 1.5, 1.25, 2.25]], (0.5 + 0.25 + 1.0) / 3),
        ([[1.0, 1.5], [4.0, 3.0]], (0.5 + 1.0) / 2),  # each against itself alone
        ([[1.0, 1.5, 1.5], [4.0]], (0.5 + 0.0) / 2),
        ([[1.0], [4.0]], None),  # nothing to compare with
    ],
)
def test_jitter_is_the_mean_change_from_one_upload_of_a_device_to_its_next(devices, jitter_s):
    counted = [
        acknowledged(b"%d" % number, *(("held", took_s) for took_s in series))
        for number, series in enumerate(devices)
    ]
    found = totals(*counted)
    assert found.histogram("ack_s").summary()["jitter"] == pytest.approx(jitter_s, abs=1e-6)
    assert outcome_of(found)["acknowledged_s"]["jitter"] == pytest.approx(jitter_s, abs=1e-6)


def test_an_upload_that_was_refused_has_no_part_in_jitter():
    counters = acknowledged(b"a", ("held", 1.0), ("closed", 9.0), ("held", 1.5))
    assert totals(counters).histogram("ack_s").summary()["jitter"] == pytest.approx(0.5)
