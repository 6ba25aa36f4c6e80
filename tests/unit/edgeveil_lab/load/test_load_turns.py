"""A generator's devices work in turn; nobody's answer leaves while others seal."""

import asyncio

from edgeveil.protocol.device_round import ComputeAnswer
from edgeveil_lab.load.generator import Turns


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
