from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.faults import COMPUTE, Fault, FaultTargets, schedule

PROCESSES = ("cloud", "proxy", "worker-1", "worker-2")
ONE = FaultTargets(PROCESSES)
LINKS = ("devices-edge", "proxy-edge", "proxy-cloud", "cloud-cloud")
SIDES = ("edge", "cloud")
CELLS = FaultTargets(
    ("cloud", "proxy-north", "proxy-so-uth", "worker-1"), ("north", "so-uth"), compute=True
)
KINDS = {"broker", "cut", "delay", "corrupt", "duplicate", "disk"}


@given(seed=st.integers(0, 2**32), kills=st.integers(0, 80))
def test_it_holds_what_was_asked_for(seed, kills):
    faults = schedule(seed, kills, ONE)
    assert faults == schedule(seed, kills, ONE) != schedule(seed + 1, kills, ONE)
    assert sum(fault.kind == "kill" for fault in faults) == kills
    assert {fault.kind for fault in faults} - {"kill"} == KINDS
    assert all(a.at_s <= b.at_s for a, b in pairwise(faults))
    targets = {"broker": SIDES, "kill": PROCESSES, "disk": PROCESSES}
    assert all(fault.target in targets.get(fault.kind, LINKS) for fault in faults)


def test_faults_are_drawn_over_all_cells_and_the_workers_that_open_batches():
    faults = schedule(1, 200, CELLS)
    hit = {kind: {f.target for f in faults if f.kind == kind} for kind in (*KINDS, "kill")}
    assert hit["kill"] == {*CELLS.processes, COMPUTE}
    assert hit["broker"] == set(CELLS.brokers)
    assert hit["disk"] == set(CELLS.processes)
    on_links = (hit[kind] for kind in ("cut", "delay", "corrupt", "duplicate"))
    assert set().union(*on_links) == set(CELLS.links)


def test_a_fault_cuts_off_the_processes_of_its_own_cell():
    for kind, target, found in (
        ("cut", "devices-edge-so-uth", ("worker",)),
        ("cut", "proxy-edge-so-uth", ("proxy-so-uth",)),
        ("delay", "proxy-cloud", ("proxy",)),
        ("cut", "cloud-cloud", ("cloud",)),
        ("broker", "edge-so-uth", ("proxy-so-uth", "worker")),
        ("broker", "cloud", ("proxy", "cloud")),
    ):
        assert Fault(0.0, kind, target).cut_off == found
