"""Whether the generator itself held a test back."""

from __future__ import annotations

import msgspec
import pytest

from edgeveil.protocol.messages import ExchangeId
from edgeveil_lab.load.fleet import Fleet
from edgeveil_lab.load.leader import Leader, Where
from edgeveil_lab.load.options import LoadOptions
from edgeveil_lab.load.processes import Watch
from edgeveil_lab.load.samples import Samples
from edgeveil_lab.load.strain import Meter, Strain
from edgeveil_lab.load.tally import Tally
from edgeveil_lab.load.wire import Report

AT = ExchangeId(b"j" * 16, 1, 1)
WHERE = Where("mqtt://127.0.0.1:1", b"c" * 32, b"p" * 32, None)


def judged(strain: Strain) -> dict:
    """What is said of a generator whose uploads are acknowledged after 0.3 s."""
    tally = Tally()
    tally.offer(AT, b"b", (b"b",), 10.0)
    tally.ack(AT, b"b", "held", "", 10.3)
    leader = Leader(LoadOptions(devices=1), Fleet.make(1), 1, WHERE, "word")
    report = Report(1, "connected", tally.to_plain(), strain)
    leader.reports[1] = msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report)
    return Samples(leader, Watch()).generator()


@pytest.mark.parametrize(
    "strain",
    [
        Strain(wall_s=10, cpu_s=9.5),
        Strain(wall_s=10, cpu_s=4, waited_s=5.5),
        Strain(wall_s=10, cpu_s=2, late_s=4.0, looks=100),
    ],
    ids=["busy", "no core was free", "late"],
)
def test_a_generator_at_its_limits_is_said_aloud(strain):
    found = judged(strain)
    assert found["bottleneck"]
    assert "add --processes" in found["note"]


def test_a_generator_with_room_is_not():
    found = judged(Strain(wall_s=10, cpu_s=6, waited_s=1, late_s=1.0, looks=100, worst_s=0.9))
    assert (found["bottleneck"], found["note"], found["busy_percent"]) == (False, "", 70.0)


def test_a_process_that_stands_still_for_most_of_the_time_is_late():
    strain = Strain()
    for _ in range(10):  # 0.3 s it runs, 0.7 s it is stopped
        for _ in range(6):
            strain.late(0.001, 0.05)
        strain.late(0.7, 0.05)
    assert strain.mean_late_s == pytest.approx(0.245, abs=0.01)


def test_only_the_time_of_uploads_counts():
    meter = Meter()
    meter.look(5.0, 0.05, counts=False)
    assert meter.strain == Strain()
    sum(range(200_000))
    meter.look(0.01, 0.05, counts=True)
    assert meter.strain.cpu_s > 0
    assert meter.strain.wall_s > 0
    assert meter.strain.worst_s == 0.01


def test_uploads_are_under_way_from_the_first_offer_to_the_last_answer():
    tally = Tally()
    tally.round(AT)
    assert not (tally.offering or tally.pending)
    for blob in (b"a", b"b"):
        tally.offer(AT, blob, (blob,), 1.0)
    tally.ack(AT, b"a", "held", "", 2.0)
    assert tally.offering
    assert tally.pending
    tally.ack(AT, b"b", "closed", "", 2.0)
    assert tally.offering
    assert not tally.pending
    tally.commit(AT, b"a")
    assert not tally.offering
