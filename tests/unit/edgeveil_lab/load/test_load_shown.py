"""Output of a load test: live lines, tables, the page, and memory growth."""

import io
import re

import pytest
from load_kit import IDLE, NAMES, RAW, result, sample
from rich.console import Console

from edgeveil_lab.load.display import LoadView, show_result
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


def test_figures_are_on_the_terminal_and_on_a_page_that_needs_nothing_else(tmp_path):
    relays = {"raw": RAW, "raw_ratio": 0.525}
    latency = {"p50": 0.4, "p99": 0.6}
    cell = {"cell": "south", "connected": 1000, "reconnects": 0, "acknowledged": 3000, "lost": 0}
    cell |= {"left_out": 7, "rounds": 2, "rounds_without": 1}
    cells = [{**cell, "acknowledged_s": latency, "latency_s": latency}]
    found = result(drop=0.1, seconds=1800, minutes=30, growth_mib_per_s=0.05)
    printed, page = shown({**found, **relays, "idle": IDLE, "cells": cells}, tmp_path)
    for said in (printed, page):
        for figure in ("2,000", "840", "625", "6,000", "41.2", "3.40", "52%", "0.61 ms", "1.20 %"):
            assert figure in said
    assert re.search(r"^south.*1,000.*3,000.*7.*2 of 3.*400 ms, 600 ms", printed, re.MULTILINE)
    assert not re.search(r'(src|href)="(?!#)', page) and page.count("<svg") > 0
    assert (page.count(", flat"), page.count(", grows")) == (len(NAMES) - 1, 1)


def test_of_a_test_that_ended_at_once_what_is_not_known_is_a_dash_and_nothing_is_markup(tmp_path):
    found = {**result(), "series": [], "rounds": [], "status": "failed", "reason": "<broker> [b]"}
    printed, page = shown(found, tmp_path)
    assert " – " in printed and "&lt;broker&gt; [b]" in page


# --- live ---


def live(second, phase, rounds_done=0):
    latency = dict.fromkeys(("p50", "p99"))
    found = {"phase": phase, "rounds_done": rounds_done, "latency_s": latency, "refused": {}}
    return {**sample(second, 500), **found}


def test_without_a_terminal_lines_come_with_each_phase_and_now_and_then():
    clock = iter((0.0, 1.0, 2.0, 3.0, 20.0))
    out = console()
    with LoadView(LoadOptions(devices=500), out, lambda: next(clock)) as view:
        view.update(live(1, "connecting"))
        view.update(live(2, "connecting"))
        view.update(live(3, "round 1"))
        view.update(live(4, "round 2: broadcasting", 1))
        view.update(live(30, "round 2: absorbing", 1))
    assert re.findall(r"^ *([0-9.]+) s", out.file.getvalue(), re.MULTILINE) == [
        "1.0",
        "3.0",
        "30.0",
    ]


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


def test_memory_that_swings_is_flat_and_a_short_time_tells_nothing():
    proxy = grown(0, noise_mib=2)["proxy"]
    assert proxy["error"] > 0.1
    assert proxy["verdict"] == "flat"
    short = grown(0, seconds=120, noise_mib=40, every=7)["proxy"]["verdict"]
    assert short not in ("flat", "grows")
    assert grown(100, seconds=20) == {}
