"""Whether a generator held a test back, and in what order its devices work."""

from __future__ import annotations

import asyncio

import pytest

from edgeveil.protocol.device_round import ComputeAnswer
from edgeveil.protocol.messages import ExchangeId
from edgeveil_lab.load.counters import GeneratorLoad, LoadMeter, UploadCounters
from edgeveil_lab.load.generator import GeneratorReport, Turns
from edgeveil_lab.load.leader import Leader
from edgeveil_lab.load.processes import ProcessWatch
from edgeveil_lab.load.run_log import SampleSeries
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.sites import LoadFleet

AT = ExchangeId(b"j" * 16, 1, 1)


def judged(load: GeneratorLoad) -> dict:
    """What is said of a generator whose uploads are acknowledged after 0.3 s."""
    counters = UploadCounters()
    counters.offer(AT, b"b", (b"b",), 10.0)
    counters.ack(AT, b"b", "held", "", 10.3)
    leader = Leader(LoadOptions(devices=1), LoadFleet.make(1), {"": None})
    leader.take("generator-1", GeneratorReport("connected", counters.to_plain(), load))
    return SampleSeries(leader, ProcessWatch()).generator()


@pytest.mark.parametrize(
    "load",
    [
        GeneratorLoad(wall_s=10, cpu_s=9.5),
        GeneratorLoad(wall_s=10, cpu_s=4, waited_s=5.5),
        GeneratorLoad(wall_s=10, cpu_s=2, late_s=4.0, looks=100),
    ],
    ids=["busy", "no core was free", "late"],
)
def test_a_generator_at_its_limits_is_said_aloud(load):
    found = judged(load)
    assert found["bottleneck"]
    assert "add --processes" in found["note"]


def test_a_generator_with_room_is_not():
    found = judged(
        GeneratorLoad(wall_s=10, cpu_s=6, waited_s=1, late_s=1.0, looks=100, worst_s=0.9)
    )
    assert (found["bottleneck"], found["note"], found["busy_percent"]) == (False, "", 70.0)


def test_a_process_that_stands_still_for_most_of_the_time_is_late():
    load = GeneratorLoad()
    for _ in range(10):  # 0.3 s it runs, 0.7 s it is stopped
        for _ in range(6):
            load.late(0.001, 0.05)
        load.late(0.7, 0.05)
    assert load.mean_late_s == pytest.approx(0.245, abs=0.01)


def test_only_the_time_of_uploads_counts():
    meter = LoadMeter()
    meter.look(5.0, 0.05, counts=False)
    assert meter.load == GeneratorLoad()
    sum(range(200_000))
    meter.look(0.01, 0.05, counts=True)
    assert meter.load.cpu_s > 0
    assert meter.load.wall_s > 0
    assert meter.load.worst_s == 0.01


def test_uploads_are_under_way_from_the_first_offer_to_the_last_answer():
    counters = UploadCounters()
    counters.round(AT)
    assert not (counters.offering or counters.pending)
    for blob in (b"a", b"b"):
        counters.offer(AT, blob, (blob,), 1.0)
    counters.ack(AT, b"a", "held", "", 2.0)
    assert counters.offering
    assert counters.pending
    counters.ack(AT, b"b", "closed", "", 2.0)
    assert counters.offering
    assert not counters.pending
    counters.commit(AT, b"a")
    assert not counters.offering


class Device:
    def __init__(self, name, log, turns):
        self._name, self._log, self._turns = name, log, turns

    def perform(self, task):
        kind = "sealed" if isinstance(task, ComputeAnswer) else "opened"
        self._log.append((kind, self._name))

        def told():
            self._log.append((f"told {kind}", self._name))
            if kind == "opened":
                self._turns.add(self, ComputeAnswer(None, None))

        return told


def play(*groups, pause_s=0.0):
    log = []

    async def run():
        turns = Turns()
        for group in groups:
            for name in group:
                turns.add(Device(name, log, turns), "open")
            await asyncio.sleep(pause_s)
        async with asyncio.timeout(5):
            while turns.busy:
                await asyncio.sleep(0.01)

    asyncio.run(run())
    return log


def test_answers_leave_when_all_are_sealed():
    log = play("abc")
    kinds = [kind for kind, _ in log]
    assert kinds.index("told sealed") > max(i for i, kind in enumerate(kinds) if kind == "sealed")
    assert [name for kind, name in log if kind == "told sealed"] == list("abc")


def test_who_comes_late_holds_the_others_back_only_shortly():
    log = play("ab", "c", pause_s=0.02)
    assert log.index(("sealed", "c")) < log.index(("told sealed", "a"))
    log = play("ab", "c", pause_s=0.5)
    assert log.index(("told sealed", "b")) < log.index(("sealed", "c"))


def test_outcomes_of_other_tasks_are_told_at_once():
    log = play("ab")
    assert log.index(("told opened", "a")) < log.index(("opened", "b"))
