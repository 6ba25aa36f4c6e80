"""A real device under a stopwatch; what it measures is for the audit, not for a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil_lab.audit.device_timing import TimedDevice, audit_job
from edgeveil_lab.audit.timing import SHAPE, SUBNORMAL, crafted, records

pytestmark = pytest.mark.slow


def test_a_graph_that_asks_for_more_than_the_budget_is_declined_once_and_unread(
    tmp_path: Path,
) -> None:
    given = records(4)
    own = Records(given, np.zeros(len(given), np.int64))
    job = audit_job(SHAPE, len(own), 3, budget_s=0.001, rounds=3)
    graph = crafted(SUBNORMAL, given[0])
    device = TimedDevice(tmp_path / "box", graph, own, job, max_records=len(given))
    (tmp_path / "box" / "own.npz").unlink()  # reading it would be told instead
    try:
        for _ in range(2):
            with pytest.raises(PrivacyError, match=r"round\.budget_s"):
                device.seconds()
    finally:
        device.close()
    assert len([line for line in device._said if "a job is declined" in line]) == 1
