"""A process ends at every boundary between two effects, one run each, and is started again.

It loses its memory, its timers and what was on the way to it; what it stored stays. Whatever the
boundary: the job comes to its end, nothing counts twice, no acknowledged upload is missing, and
the stores are clean.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from edgeveil.protocol import effects as fx
from tests.sim.crash_net import CrashNet, Died
from tests.sim.lossy_fleet import LossyFleet
from tests.sim.test_lossy_fleet import check_liveness, check_safety

pytestmark = pytest.mark.slow

PAIRS = 60
Death = tuple[str, int]  # who, and after which of its effects


class CrashFleet(LossyFleet):
    """Three devices, two rounds, and processes that end where they are told to."""

    transport = CrashNet
    net: CrashNet

    def __init__(self, *deaths: Death) -> None:
        super().__init__(devices=3, selected=3, rounds=2)
        self.names: dict[str, fx.Address] = {
            "cloud": fx.CloudAddress(),
            "proxy": fx.ProxyAddress(),
            "device": fx.DeviceAddress(self.devices[0].id),
            "other device": fx.DeviceAddress(self.devices[1].id),
        }
        self.net.deaths = frozenset((self.names[who], number) for who, number in deaths)
        self.died = 0

    def effects(self, who: str) -> int:
        """How many effects this process made so far."""
        return self.net.passed[self.names[who]]

    def _until(self, reached: Callable[[], bool], limit_s: float) -> None:
        while True:
            try:
                super()._until(reached, limit_s)
            except Died as death:
                self.died += 1
                self.net.forget(death.node)
                self._restart(death.host)  # type: ignore[arg-type]
            else:
                return


def played(*deaths: Death, clean_sessions: bool = True) -> CrashFleet:
    """A run to its end with everything on its way arrived; AssertionError names the deaths."""
    fleet = CrashFleet(*deaths)
    fleet.net.clean_sessions = clean_sessions
    try:
        fleet.run()
        check_safety(fleet)
        check_liveness(fleet)
    except Exception as error:
        raise AssertionError(f"with {deaths}: {type(error).__name__}: {error}") from error
    return fleet


@pytest.fixture(scope="module")
def boundaries() -> dict[str, int]:
    """How many effects each process makes in a run without any death."""
    fleet = played()
    assert fleet.died == 0
    assert [attempt for attempt, _ in fleet.cloud.committed.values()] == [1, 1]
    return {who: fleet.effects(who) for who in fleet.names}


@pytest.mark.parametrize("who", ["cloud", "proxy", "device"])
def test_one_death_at_every_boundary(boundaries: dict[str, int], who: str) -> None:
    assert boundaries[who] > 40
    for number in range(1, boundaries[who] + 1):
        assert played((who, number)).died == 1


def test_two_deaths_anywhere(boundaries: dict[str, int]) -> None:
    """Of two processes, or of one that dies again; frames to them are lost, or wait for them."""
    chance = Random(20)
    for _ in range(PAIRS):
        first, second = chance.choices(sorted(boundaries), k=2)
        deaths = {(who, chance.randint(1, boundaries[who])) for who in (first, second)}
        assert played(*deaths, clean_sessions=chance.random() < 0.5).died >= 1
