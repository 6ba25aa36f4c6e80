"""The guard over single records of a file: it holds, and finds an index where a hash belongs."""

import pytest

from edgeveil_lab.audit.command import judged
from edgeveil_lab.audit.record_guard import records_guard

pytestmark = pytest.mark.slow


def test_the_guard_holds_and_finds_its_flaw():
    guard = records_guard()
    found = judged(guard.mechanism, guard.promise, quick=True)
    assert found.verdict == "holds"
    assert "at most 1 of 60 records moved" in found.stands.figure
    assert "ε inf of 8 in training" in found.flawed.figure
    assert "inf of 8 in sums by cluster" in found.flawed.figure
