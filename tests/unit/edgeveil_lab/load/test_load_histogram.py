"""Latencies: percentiles to 2 %, whatever the order, and merged as if counted in one place."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeveil_lab.load.counters import DurationHistogram

DURATIONS = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=200)


def of(values) -> DurationHistogram:
    histogram = DurationHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(DURATIONS, st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_within_its_bucket(values, share):
    exact = sorted(values)[int(np.ceil(share * len(values))) - 1]
    assert of(values).percentile(share) == pytest.approx(exact, rel=0.021)


@given(DURATIONS, DURATIONS)
def test_merged_it_says_what_one_alone_would(left, right):
    plains = json.loads(json.dumps([of(left).to_plain(), of(right).to_plain()]))
    merged, alone = DurationHistogram.merged(plains).summary(), of(left + right).summary()
    assert {k: merged[k] for k in ("p50", "p95", "p99", "max")} == {
        k: alone[k] for k in ("p50", "p95", "p99", "max")
    }


def test_jitter_is_the_mean_change_of_a_device_from_its_last():
    histogram = of([0.1, 9.0])  # two devices' first: nothing changed yet
    assert histogram.summary()["jitter"] is None
    histogram.add(0.3, 0.1)
    histogram.add(8.9, 9.0)
    assert histogram.summary()["jitter"] == pytest.approx(0.15)


def test_without_a_sample_nothing_is_known():
    names = ("p50", "p95", "p99", "max", "jitter")
    assert DurationHistogram().summary() == dict.fromkeys(names)
    assert DurationHistogram().percentile(0.5) is None
