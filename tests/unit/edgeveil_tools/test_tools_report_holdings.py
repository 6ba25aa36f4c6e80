"""The picture of who holds what: counted from what was dealt, marked, small for many devices."""

import json
from pathlib import Path

import numpy as np

from edgeveil.parts.partitions.dealing import low_quality_devices
from edgeveil_tools.local.data import dealt
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.report.page import (
    MOST_CLASSES,
    MOST_COLUMNS,
    Holdings,
    holdings,
    holdings_picture,
)

JOB = Path("configs/jobs/digits_skewed.yaml")


def test_every_record_that_was_dealt_is_counted_at_its_device():
    job, run = local_job(JOB, Overrides())
    held, (records, shares) = holdings(job, run), dealt(job, run)
    assert held.counts.shape == (20, 10)
    assert held.counts.sum(axis=1).tolist() == [len(share) for share in shares]
    assert held.counts.sum(axis=0).tolist() == np.bincount(records.y).tolist()
    assert held.low_quality.tolist() == low_quality_devices(20, run.partition, run.seed).tolist()
    assert len(held.low_quality) == 6


def picture(counts, low_quality=()):
    return holdings_picture(Holdings(np.array(counts), np.array(low_quality, np.int64), "iid"))


def test_devices_stand_side_by_side_and_those_of_low_quality_are_marked():
    found = picture([[100, 25, 0], [0, 100, 1]], [1])
    assert found["values"] == [[0, 1], [25, 100], [100, 0]]  # class 0 lowest
    assert (found["rows"], found["columns"]) == (["2", "1", "0"], ["1", "2"])
    assert (found["red"], found["top"]) == ([1], [125, 101])


def test_a_thousand_devices_share_columns_and_no_record_is_lost():
    counts = np.random.default_rng(3).poisson(0.5, (1000, 100))
    poor = np.arange(0, 1000, 3)
    found = picture(counts, poor)
    assert len(found["columns"]) <= MOST_COLUMNS + 1
    assert len(found["rows"]) <= MOST_CLASSES
    assert np.sum(found["values"]) == sum(found["top"]) == counts.sum()
    marked = sum(found["top"][k] for k in found["red"])
    assert marked == counts[poor].sum()
    assert len(json.dumps(found)) < 40_000
