"""The leader deals each device once, merges reports, and names a generator that ends."""

import os
import signal
import time
from dataclasses import replace

import pytest

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import JobFailed
from edgeveil_lab.load.counters import GeneratorLoad, UploadCounters
from edgeveil_lab.load.generator import GeneratorReport
from edgeveil_lab.load.leader import Leader
from edgeveil_lab.load.processes import ProcessWatch
from edgeveil_lab.load.run_log import SampleSeries
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.sites import LoadFleet, TargetCell

KEY = SigningKey.generate().public().to_bytes()
WHERE = {"": TargetCell("mqtt://127.0.0.1:1", KEY, KEY, password="a word")}


def report(connected):
    counters = UploadCounters()
    counters.connected = counters.connects = connected
    return GeneratorReport("connected", counters.snapshot(), GeneratorLoad())


@pytest.mark.parametrize("cells", [("",), ("north", "south")])
def test_every_device_is_dealt_once_and_each_cell_adds_up_its_own(cells):
    where = {cell: replace(WHERE[""], broker=f"mqtt://{cell or 'one'}:1") for cell in cells}
    fleet, count = LoadFleet.make(7), len(cells)
    leader = Leader(LoadOptions(devices=7, cells=count, processes=2), fleet, where)
    shares = leader.shares()
    assert [share.cell for share in shares.values()] == list(cells) * 2
    assert all(share.where is where[share.cell] for share in shares.values())
    assert "a word" not in repr(shares)
    for at, cell in enumerate(cells):
        dealt = [m for share in shares.values() if share.cell == cell for m in share.members]
        own = fleet.members[at::count]
        assert sorted(m.signing for m in dealt) == sorted(m.signing for m in own)
    for number, name in enumerate(shares, start=1):
        leader.take(name, report(number))
    assert leader.totals().counts["connected"] == sum(range(1, 2 * count + 1))
    assert leader.totals(cells[0]).counts["connected"] == {1: 3, 2: 1 + 3}[count]


def until(done):
    end_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_generator_that_ends_by_itself_is_named():
    leader = Leader(LoadOptions(devices=1), LoadFleet.make(1), WHERE)
    leader.begin()
    try:
        until(lambda: leader.all_in("ready"))
        os.kill(leader.pids["generator-1"], signal.SIGKILL)

        with pytest.raises(JobFailed, match="generator-1 ended by itself"):
            until(lambda: leader.check() is not None)
    finally:
        leader.end()


@pytest.mark.parametrize(
    ("cpu_s", "waited_s", "bottleneck"),
    [(9.5, 0, True), (4, 5.5, True), (6, 1, False)],
    ids=["busy", "no core was free", "with room"],
)
def test_a_generator_at_its_limits_is_said_aloud(cpu_s, waited_s, bottleneck):
    leader = Leader(LoadOptions(devices=1), LoadFleet.make(1), WHERE)
    load = GeneratorLoad(10, cpu_s, waited_s)
    leader.take("generator-1", GeneratorReport("connected", UploadCounters().snapshot(), load))
    found = SampleSeries(leader, ProcessWatch()).generator()
    assert ("add --processes" in found["note"]) == bottleneck
    assert found["busy_percent"] == pytest.approx(10 * (cpu_s + waited_s))
