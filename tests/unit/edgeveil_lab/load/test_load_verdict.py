"""What makes a load test fail though it came to its end."""

from __future__ import annotations

import pytest
from load_kit import result

from edgeveil_lab.load.run_log import faults

GROWS = {"cloud": {"mib_per_hour": 40.0, "error": 1.0, "verdict": "grows"}}
FLAT = {"cloud": {"mib_per_hour": 4.0, "error": 1.0, "verdict": "flat"}}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"lost": 1}, "1 lost, 0 duplicated"),
        ({"duplicated": 2}, "0 lost, 2 duplicated"),
        ({"sum_matches": False}, "sum is not that"),
        ({"drift": GROWS}, "memory of cloud grows by 40.0 MiB"),
    ],
)
def test_a_fault_is_named(found, said):
    [line] = faults(result() | found)
    assert said in line


@pytest.mark.parametrize(
    "found",
    [{}, {"sum_matches": None}, {"sum_matches": True}, {"drift": FLAT}],
)
def test_a_sound_result_has_none(found):
    assert not list(faults(result() | found))
