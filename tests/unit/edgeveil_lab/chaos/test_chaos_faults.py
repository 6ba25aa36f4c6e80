"""The schedule: the same for the same seed, every kind of fault in it, none over itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeveil_lab.chaos.faults import LINKS, SIDES, schedule

PROCESSES = ("cloud", "proxy", "worker-1", "worker-2")
KINDS = {"broker", "cut", "delay", "corrupt", "duplicate", "disk"}


def test_a_seed_gives_one_schedule_and_another_seed_another() -> None:
    assert schedule(5, 30, PROCESSES) == schedule(5, 30, PROCESSES)
    assert schedule(5, 30, PROCESSES) != schedule(6, 30, PROCESSES)


@given(seed=st.integers(0, 2**32), kills=st.integers(0, 80))
def test_it_holds_what_was_asked_for(seed: int, kills: int) -> None:
    faults = schedule(seed, kills, PROCESSES)
    assert sum(fault.kind == "kill" for fault in faults) == kills
    assert {fault.kind for fault in faults} - {"kill"} == KINDS
    assert all(a.at_s <= b.at_s for a, b in pairwise(faults))
    targets = {"broker": SIDES, "kill": PROCESSES, "disk": PROCESSES}
    assert all(fault.target in targets.get(fault.kind, LINKS) for fault in faults)


@given(seed=st.integers(0, 2**32))
def test_a_fault_never_begins_before_its_like_has_ended(seed: int) -> None:
    until_s: dict[tuple[str, str], float] = {}
    for fault in schedule(seed, 60, PROCESSES):
        if fault.kind != "kill":
            key = (fault.kind, fault.target)
            assert fault.at_s >= until_s.get(key, 0.0)
            until_s[key] = fault.until_s


@pytest.mark.parametrize("seed", range(5))
def test_every_process_is_killed_about_as_often(seed: int) -> None:
    faults = schedule(seed, 80, PROCESSES)
    counts = [sum(f.kind == "kill" and f.target == name for f in faults) for name in PROCESSES]
    assert min(counts) >= 10


@pytest.mark.parametrize("seed", range(5))
def test_kills_of_a_starting_process_fall_all_over_its_start(seed: int) -> None:
    kills = [fault for fault in schedule(seed, 200, PROCESSES) if fault.kind == "kill"]
    shares = [fault.amount for fault in kills if fault.amount]
    assert len(shares) > 20
    assert min(shares) < 0.2
    assert max(shares) > 1.0
    for before, fault in pairwise(kills):
        assert not fault.amount or fault.target == before.target
