"""Each guard holds in the real code, and its attack finds the planted flaw."""

import math
import re

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil_lab.audit import timing
from edgeveil_lab.audit.command import guards, judged
from edgeveil_lab.audit.device_timing import TimedDevice, audit_job

pytestmark = pytest.mark.slow

# A guard's figures without and with the flaw. Guards that time real devices are left to the audit
# itself; those of shared noise have tests of their own.
FIGURES = {
    "records": (r"at most 1 of 60 records moved", r"ε inf of 8 in training.*inf of 8 in sums"),
    "schema jobs": (r" 0 revealed it", r" [1-9]\d* revealed it"),
    "derived_noise": (r"", r""),
    "sampler": (r"0 of 32 draws do not end", r""),
    "inference": (r"", r""),
}
PLAYED = [guard for guard in guards() if guard.mechanism in FIGURES]


@pytest.mark.parametrize("guard", PLAYED, ids=lambda guard: guard.promise)
def test_a_guard_holds_and_sees(guard):
    found = judged(guard.mechanism, guard.promise, quick=True)
    assert (found.verdict, found.stands.broke, found.flawed.broke) == ("holds", False, True), found
    stands, flawed = FIGURES[guard.mechanism]
    assert re.search(stands, found.stands.figure) and re.search(flawed, found.flawed.figure), found


def test_every_guard_is_played():
    others = {"device answer", "device count", "shared_noise"}
    assert {guard.mechanism for guard in guards()} == FIGURES.keys() | others


def test_the_auc_is_the_share_of_pairs_in_order_and_chance_is_wider_for_fewer_runs():
    pairs = [([2, 3], [0, 1]), ([0, 1], [2, 3]), ([0, 2], [1]), ([math.inf, 1], [math.inf, 1])]
    assert [timing.auc(*pair) for pair in pairs] == [1, 0, 0.5, 0.5]
    seen = [
        timing.exceeds_chance(*one) for one in ((0.61, 200), (0.39, 200), (0.59, 200), (0.65, 40))
    ]
    assert seen == [True, True, False, False]


@pytest.mark.parametrize("without", [1.0, math.inf])
def test_a_device_whose_time_depends_on_a_record_is_found(without):
    assert timing.attacked(lambda: 2.0, lambda: without, 12).broke
    assert not timing.attacked(lambda: without, lambda: without, 12).broke


def test_a_graph_that_asks_for_more_than_the_budget_is_declined_once_and_unread(tmp_path):
    given = timing.records(4)
    own = Records(given, np.zeros(len(given), np.int64))
    job = audit_job(len(own), budget_s=0.001, rounds=3)
    graph = timing.crafted(given[0])
    device = TimedDevice(tmp_path / "box", graph, own, job, max_records=len(given))
    (tmp_path / "box" / "own.npz").unlink()  # reading it would give another reason
    try:
        for _ in range(2):
            with pytest.raises(PrivacyError, match=r"round\.budget_s"):
                device.seconds()
    finally:
        device.close()
    assert len([line for line in device._reports if "a job is declined" in line]) == 1
