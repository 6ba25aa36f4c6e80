"""Output of a load test: live lines, tables, the page, and memory growth."""

import io
import re

import pytest
from load_kit import IDLE, NAMES, RAW, result, sample
from rich.console import Console

from edgeveil_lab.load.display import LoadView, show_result, warnings
from edgeveil_lab.load.report import write_load_report
from edgeveil_lab.load.run_log import drifts
from edgeveil_lab.load.scenario import LoadOptions


def console(*, terminal=False):
    return Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system=None)


def shown(found, folder):
    """Return the terminal's output and the page."""
    out = console()
    show_result(out, found)
    write_load_report(found, folder / "load.html")
    return out.file.getvalue(), (folder / "load.html").read_text()


def test_what_was_reached_and_what_it_took(tmp_path):
    relays = {"raw": RAW, "raw_ratio": 0.525}
    for said in shown({**result(), **relays, "idle": IDLE}, tmp_path):
        for text in (
            "2,000 connected at 840 a second",
            "625 a second, 6,000 counted in 3 rounds",
            "41.2 up, 3.40 down",
            "rate 12, late 3",
            "52%",
            "0.61 ms",
            "180 MiB",
            "1.20 %",
        ):
            assert text in said


def test_losses_and_a_busy_generator_are_said_aloud():
    found = {**result(), "lost": 2}
    found["generator"] = {"note": "a generator used 97 % of a core"}
    said = list(warnings(found))
    assert any("generator used 97 %" in line for line in said)
    assert any("2 lost, 0 duplicated" in line for line in said)
    assert list(warnings(result())) == []


def test_of_a_test_that_ended_at_once_what_is_not_known_is_a_dash_and_nothing_is_markup(tmp_path):
    found = {**result(), "series": [], "rounds": [], "status": "failed", "reason": "<broker> [b]"}
    printed, page = shown(found, tmp_path)
    assert " – " in printed and "&lt;broker&gt; [b]" in page


def test_the_page_needs_nothing_else(tmp_path):
    _, page = shown(result(drop=0.1, reconnect_storm=True), tmp_path)
    assert not re.search(r'(src|href)="(?!#)', page)
    assert page.count("<svg") == 1 and "hand over" in page
    assert "drop 0.1" in page and "reconnect_storm True" in page


def test_each_cell_has_a_line(tmp_path):
    latency = {"p50": 0.4, "p99": 0.6}
    counts = {"connected": 1000, "reconnects": 0, "acknowledged": 3000, "lost": 0, "left_out": 7}
    counts |= {"rounds": 2, "rounds_without": 1, "acknowledged_s": latency, "latency_s": latency}
    printed, _ = shown({**result(), "cells": [{"cell": "south", **counts}]}, tmp_path)
    line = r"south +1,000 +0 +3,000 +0 +7 +2 of 3 +400 ms, 600 ms +400 ms, 600 ms"
    assert any(re.match(line, one) for one in printed.splitlines())


# --- live ---


def live(second, phase, rounds_done=0, p50=None, **more):
    latency = {"p50": p50, "p99": p50 and 4 * p50}
    found = {"phase": phase, "rounds_done": rounds_done, "latency_s": latency, "refused": {}}
    return {**sample(second, 500), **found, **more}


def test_without_a_terminal_lines_come_with_each_phase_and_now_and_then():
    clock = iter((0.0, 1.0, 2.0, 3.0, 20.0))
    out = console()
    with LoadView(LoadOptions(devices=500), out, lambda: next(clock)) as view:
        view.update(live(1, "connecting"))
        view.update(live(2, "connecting"))
        view.update(live(3, "round 1", p50=0.5, refused={"late": 7}))
        view.update(live(4, "round 2: broadcasting", 1))
        view.update(live(30, "round 2: absorbing", 1))
    lines = out.file.getvalue().splitlines()
    assert len(lines) == 3
    assert "1.0 s  connecting: 200 of 500 connected" in lines[0]
    assert "latency p50 500 ms, p99 2 s · refused: late 7" in lines[1]
    assert "1 round · 3,000 uploads" in lines[2]


# --- memory over time ---


def grown(mib_per_hour, seconds=1800, noise_mib=0.0, every=97, warm_up_mib=0):
    found = result(seconds=seconds, growth_mib_per_s=mib_per_hour / 3600)
    for number, one in enumerate(found["series"]):
        swing = noise_mib * (1 if number // every % 2 else -1)
        one["rss_bytes"]["proxy"] += int(swing * (1 << 20))
        one["rss_bytes"]["cloud"] += int(min(one["t_s"], 300) * warm_up_mib / 300 * (1 << 20))
    return drifts(found["series"])


@pytest.mark.parametrize("warm_up_mib", [0, 300])
def test_growth_is_found_with_its_slope_and_the_warm_up_does_not_count(warm_up_mib):
    cloud = grown(100, warm_up_mib=warm_up_mib)["cloud"]
    assert cloud["mib_per_hour"] == pytest.approx(100, abs=0.5)
    assert cloud["verdict"] == "grows"
    assert grown(0, warm_up_mib=warm_up_mib)["cloud"]["verdict"] == "flat"


def test_memory_that_swings_without_growing_is_flat():
    proxy = grown(0, noise_mib=2)["proxy"]
    assert proxy["error"] > 0.1
    assert proxy["verdict"] == "flat"


def test_a_short_time_tells_nothing():
    assert grown(0, seconds=120, noise_mib=40, every=7)["proxy"]["verdict"] == "too short to tell"
    assert grown(100, seconds=20) == {}


def test_a_soak_has_a_verdict_for_each_process(tmp_path):
    _, page = shown(result(seconds=1800, minutes=30, growth_mib_per_s=0.05), tmp_path)
    assert (page.count(", flat"), page.count(", grows")) == (len(NAMES) - 1, 1)
