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
    assert DurationHistogram.merged(plains).summary() == of(left + right).summary()


def test_without_a_sample_nothing_is_known():
    assert DurationHistogram().summary() == dict.fromkeys(("p50", "p95", "p99", "max"))
    assert DurationHistogram().percentile(0.5) is None
