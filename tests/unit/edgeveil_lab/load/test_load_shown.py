"""What a load test shows: live lines, the table, the page, and whether memory stays flat."""

from __future__ import annotations

import io
import re

import pytest
from load_kit import IDLE, NAMES, RAW, result, sample
from rich.console import Console

from edgeveil_lab.load.counters import DurationHistogram
from edgeveil_lab.load.display import LoadView, ms, rate, shortened, show_result, warnings
from edgeveil_lab.load.report import write_load_report
from edgeveil_lab.load.run_log import drifts
from edgeveil_lab.load.scenario import LoadOptions


def console(*, terminal=False):
    return Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system=None)


def printed(found):
    out = console()
    show_result(out, found)
    return out.file.getvalue()


def paged(found, tmp_path):
    path = tmp_path / "load.html"
    write_load_report(found, path)
    return path.read_text()


# --- the table ---


def test_the_table_says_what_was_reached_and_what_it_took():
    relays = {"raw": RAW, "raw_ratio": 0.525}
    shown = printed({**result(), **relays, "idle": IDLE})
    for text in (
        "2,000 connected at 840 a second",
        "625 a second, 6,000 counted in 3 rounds",
        "41.2 up, 3.40 down",
        "acknowledged after",
        "counted after",
        "rate 12, late 3",
        "EdgeVeil reaches 52%",
        "0.61 ms",
        "180 MiB",
        "1.20 %",
    ):
        assert text in shown


def test_latencies_without_a_sample_are_dashes(tmp_path):
    found = {**result(), "latency_s": DurationHistogram().summary()}
    shown = printed(found)
    assert "p50 –, p95 –, p99 –, max –" in shown
    assert "<td>–</td>" in paged(found, tmp_path)


def test_losses_and_a_busy_generator_are_said_aloud():
    found = {**result(), "lost": 2}
    found["generator"] = {"bottleneck": True, "note": "a generator used 97 % of a core"}
    said = list(warnings(found))
    assert any("generator used 97 %" in line for line in said)
    assert any("2 lost, 0 duplicated" in line for line in said)
    assert list(warnings(result())) == []


def test_connections_without_a_round_have_no_line_of_uploads():
    shown = printed({**result(rounds=0, hold_s=30), "idle": IDLE})
    assert "uploads  " not in shown and "held idle" in shown


@pytest.mark.parametrize(
    ("value", "text"), [(0.8412, "0.84"), (12.34, "12.3"), (1240.2, "1,240"), (None, "–")]
)
def test_figures_have_about_three_digits(value, text):
    assert rate(value) == text


def test_durations_choose_their_unit():
    assert (ms(0.64), ms(1.4), ms(None)) == ("640 ms", "1.4 s", "–")


def test_only_the_most_frequent_reasons_are_named():
    reasons = {"a": 9, "b": 8, "c": 7, "d": 6, "e": 5, "f": 4}
    assert shortened(reasons) == "a 9, b 8, c 7, d 6, others 9"
    assert shortened({}) == "none"


# --- live ---


def test_without_a_terminal_lines_come_with_each_phase_and_now_and_then():
    clock = iter((0.0, 1.0, 2.0, 3.0, 20.0))
    out = console()
    with LoadView(LoadOptions(devices=500), out, lambda: next(clock)) as view:
        view.update({**sample(1, 500), "phase": "connecting"})
        view.update({**sample(2, 500), "phase": "connecting"})
        view.update({**sample(3, 500), "phase": "round 1", "latency_s": {"p50": 0.5, "p99": 2.0}})
        view.update({**sample(4, 500), "phase": "round 2: broadcasting", "rounds_done": 1})
        view.update({**sample(30, 500), "phase": "round 2: absorbing", "rounds_done": 1})
    lines = out.file.getvalue().splitlines()
    assert len(lines) == 3
    assert "1.0 s  connecting: 200 of 500 connected" in lines[0]
    assert "latency p50 500 ms, p99 2 s" in lines[1]
    assert "1 round · 3,000 uploads" in lines[2]


def test_a_terminal_sees_processes_and_refusals():
    out = console(terminal=True)
    with LoadView(LoadOptions(devices=500), out) as view:
        out.print(view.picture())
        view.update({**sample(5, 500), "phase": "round 1", "refused": {"late": 7}})
        out.print(view.picture())
    shown = out.file.getvalue()
    assert "starting" in shown and "refused: late 7" in shown
    assert all(name in shown for name in NAMES)


# --- the page ---


def test_the_page_needs_nothing_else_and_has_each_picture(tmp_path):
    page = paged({**result(), "raw": RAW, "raw_ratio": 0.525, "idle": IDLE}, tmp_path)
    assert not re.search(r'(src|href)="(?!#)', page)
    assert page.count("<svg") == 3  # over time, phases, memory
    assert "52%" in page and "of a bare relay" in page


def test_a_page_of_held_connections_alone(tmp_path):
    found = {**result(rounds=0, hold_s=30), "idle": IDLE, "cpu_ms_per_upload": {}}
    found["latency_s"] = found["acknowledged_s"] = DurationHistogram().summary()
    page = paged(found, tmp_path)
    assert "uploads a second</div>" not in page and "held for 30 s" in page


def test_a_page_of_a_test_that_ended_at_once(tmp_path):
    found = {**result(), "series": [], "rounds": [], "status": "failed", "reason": "<broker> gone"}
    page = paged(found, tmp_path)
    assert "&lt;broker&gt; gone" in page


def test_a_soak_s_page_has_a_verdict_for_each_process(tmp_path):
    page = paged(result(seconds=1800, minutes=30, growth_mib_per_s=0.05), tmp_path)
    assert page.count(">flat</td>") == len(NAMES) - 1
    assert page.count(">grows</td>") == 1
    assert "minutes" in page


def test_what_makes_a_load_hard_is_said(tmp_path):
    page = paged(result(drop=0.1, reconnect_storm=True, interval_s=10.0), tmp_path)
    assert "10% of the devices go away" in page and "all connections cut" in page


# --- memory over time ---


def grown(mib_per_hour, seconds=1800, noise_mib=0.0, every=97):
    found = result(seconds=seconds, minutes=30, growth_mib_per_s=mib_per_hour / 3600)
    for number, one in enumerate(found["series"]):
        swing = noise_mib * (1 if number // every % 2 else -1)
        one["rss_bytes"]["proxy"] += int(swing * (1 << 20))
    return {one.process: one for one in drifts(found)}


def test_growth_is_found_with_its_slope():
    cloud = grown(100)["cloud"]
    assert cloud.mib_per_hour == pytest.approx(100, abs=0.5)
    assert cloud.verdict == "grows"


def test_memory_that_swings_without_growing_is_flat():
    proxy = grown(0, noise_mib=2)["proxy"]
    assert proxy.error > 0.1
    assert proxy.verdict == "flat"


def test_the_warm_up_does_not_count():
    found = result(seconds=1800, minutes=30)
    for one in found["series"]:
        one["rss_bytes"]["cloud"] += int(min(one["t_s"], 300) * (1 << 20))
    cloud = next(one for one in drifts(found) if one.process == "cloud")
    assert cloud.mib_per_hour == pytest.approx(0, abs=0.1)


def test_wide_swings_over_a_short_time_tell_nothing():
    assert grown(0, seconds=120, noise_mib=40, every=7)["proxy"].verdict == "too short to tell"


def test_a_test_by_rounds_has_no_verdict():
    assert drifts(result(seconds=1800)) == []
    assert drifts(result(seconds=20, minutes=1)) == []


def test_costs_of_a_short_test_are_left_open(tmp_path):
    found = result()
    found["cpu_ms_per_upload"] = dict.fromkeys(NAMES)
    found["mb_per_s"]["down"] = None
    for used in found["processes"].values():
        used["cpu_percent"] = None
    write_load_report(found, tmp_path / "load.html")
    assert "<td>–</td>" in (tmp_path / "load.html").read_text()
    show_result(Console(file=io.StringIO()), found)


def celled():
    latency = {"p50": 0.4, "p95": 0.5, "p99": 0.6, "max": 0.7}
    north = {
        "cell": "north", "connected": 1000, "connects": 1000, "reconnects": 0,
        "acknowledged": 3000, "counted": 3000, "rounds": 3, "rounds_without": 0,
        "left_out": 0, "lost": 0, "unanswered": 0, "acknowledged_s": latency, "latency_s": latency,
    }  # fmt: skip
    south = {**north, "cell": "south", "reconnects": 1000, "rounds": 2, "rounds_without": 1}
    return {**result(), "cells": [north, {**south, "left_out": 7}]}


def test_each_cell_has_a_line(tmp_path):
    lines = printed(celled()).splitlines()
    for line in (
        r"north +1,000 +0 +3,000 +0 +0 +3 of 3 +400 ms, 600 ms +400 ms, 600 ms",
        r"south +1,000 +1,000 +3,000 +0 +7 +2 of 3 +400 ms, 600 ms",
    ):
        assert any(re.match(line, one) for one in lines), line
    assert "<h2>Cells</h2>" in paged(celled(), tmp_path)
    assert "<h2>Cells</h2>" not in paged(result(), tmp_path)
