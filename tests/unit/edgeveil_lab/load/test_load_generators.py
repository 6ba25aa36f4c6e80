"""A generator's load, and the order in which its devices work."""

import asyncio

import pytest

from edgeveil.protocol.device_round import ComputeAnswer
from edgeveil.protocol.messages import RoundId
from edgeveil_lab.load.counters import GeneratorLoad, UploadCounters
from edgeveil_lab.load.generator import GeneratorReport, Turns
from edgeveil_lab.load.leader import Leader
from edgeveil_lab.load.processes import ProcessWatch
from edgeveil_lab.load.run_log import SampleSeries
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.sites import LoadFleet

AT = RoundId(b"j" * 16, 1, 1)


@pytest.mark.parametrize(
    ("cpu_s", "waited_s", "bottleneck"),
    [(9.5, 0, True), (4, 5.5, True), (6, 1, False)],
    ids=["busy", "no core was free", "with room"],
)
def test_a_generator_at_its_limits_is_said_aloud(cpu_s, waited_s, bottleneck):
    leader = Leader(LoadOptions(devices=1), LoadFleet.make(1), {"": None})
    load = GeneratorLoad(10, cpu_s, waited_s)
    leader.take("generator-1", GeneratorReport("connected", UploadCounters().snapshot(), load))
    found = SampleSeries(leader, ProcessWatch()).generator()
    assert ("add --processes" in found["note"]) == bottleneck
    assert found["busy_percent"] == pytest.approx(10 * (cpu_s + waited_s))


def test_uploads_are_under_way_from_the_first_offer_to_the_last_answer():
    counters = UploadCounters()
    counters.round(AT)
    seen = [(counters.offering, counters.pending)]
    for blob in (b"a", b"b"):
        counters.offer(AT, blob, (blob,), 1.0)
    for blob, said in ((b"a", "held"), (b"b", "closed")):
        counters.ack(AT, blob, said, "", 2.0)
        seen.append((counters.offering, counters.pending))
    counters.commit(AT, b"a")
    assert seen == [(False, False), (True, True), (True, False)]
    assert not counters.offering


class Device:
    def __init__(self, name, log, turns):
        self._name, self._log, self._turns = name, log, turns

    def perform(self, task):
        kind = "sealed" if isinstance(task, ComputeAnswer) else "opened"
        self._log.append((kind, self._name))

        def deliver():
            self._log.append((f"delivered {kind}", self._name))
            if kind == "opened":
                self._turns.add(self, ComputeAnswer(None, None))

        return deliver


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


def test_answers_leave_when_all_are_sealed_and_other_outcomes_at_once():
    log = play("abc")
    kinds = [kind for kind, _ in log]
    assert kinds.index("delivered sealed") > max(
        i for i, kind in enumerate(kinds) if kind == "sealed"
    )
    assert [name for kind, name in log if kind == "delivered sealed"] == list("abc")
    assert log.index(("delivered opened", "a")) < log.index(("opened", "b"))


def test_who_comes_late_holds_the_others_back_only_shortly():
    log = play("ab", "c", pause_s=0.02)
    assert log.index(("sealed", "c")) < log.index(("delivered sealed", "a"))
    log = play("ab", "c", pause_s=0.5)
    assert log.index(("delivered sealed", "b")) < log.index(("sealed", "c"))
