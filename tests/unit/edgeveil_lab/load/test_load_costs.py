"""Costs are told of a span that is long enough, by the clock that marks it."""

from __future__ import annotations

import pytest

from edgeveil_lab.load.run_log import LEAST_S, RunMeasurements, _cost
from edgeveil_lab.load.scenario import LoadOptions


def marked(monkeypatch, *times_s: float) -> RunMeasurements:
    measured = RunMeasurements(LoadOptions(devices=10), "a broker")
    for rounds, at_s in enumerate(times_s):
        monkeypatch.setattr("edgeveil_lab.load.run_log.time.monotonic", lambda at_s=at_s: at_s)
        measured.mark({"proxy": 2.0 * rounds}, {"bytes_down": 1000 * rounds}, rounds)
    return measured


def test_the_span_is_from_the_first_commit_to_the_last(monkeypatch):
    measured = marked(monkeypatch, 100.0, 105.0, 110.0, 105.0 + LEAST_S)
    cost = _cost(measured, [{"uploads": 10}] * 3)
    assert (cost.seconds, cost.uploads, cost.cpu_s) == (LEAST_S, 20, {"proxy": 4.0})
    assert cost.rate(1000 * cost.cpu_s["proxy"], cost.uploads) == pytest.approx(200)


def test_of_a_short_one_nothing_is_said(monkeypatch):
    measured = marked(monkeypatch, 100.0, 105.0, 104.9 + LEAST_S)
    cost = _cost(measured, [{"uploads": 10}] * 2)
    assert cost.rate(1.0, 1.0) is None
