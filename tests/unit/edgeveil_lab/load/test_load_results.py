"""A load test's result, of made-up figures, and its output."""

import io
import math
import os
import re

import pytest
from rich.console import Console

from edgeveil_lab.load.display import show_result, warnings
from edgeveil_lab.load.leader import FleetTotals, Leader
from edgeveil_lab.load.processes import ProcessFigures, ProcessWatch
from edgeveil_lab.load.raw_relay import ratio
from edgeveil_lab.load.report import write_load_report
from edgeveil_lab.load.run_log import (
    LEAST_S,
    LoadRunLog,
    RunMeasurements,
    SampleSeries,
    drifts,
    faults,
    outcome,
)
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.sites import LoadFleet

NAMES = ("cloud", "proxy", "broker-edge", "broker-cloud", "generator-1")
SIZES_MIB = {"cloud": 180, "proxy": 140, "broker-edge": 40, "broker-cloud": 20, "generator-1": 220}
COSTS_MS = {"cloud": 0.61, "proxy": 0.85, "broker-edge": 0.2, "broker-cloud": 0.1}


def row(number, devices):
    return {
        "round": number, "attempt": 1, "selected": devices, "uploads": devices, "seconds": 3.6,
        "broadcast_s": 0.4, "upload_s": 1.9, "handover_s": 0.5, "absorb_s": 0.8,
        "measured_s": 3.2, "uploads_per_s": devices / 3.2, "upload_bytes": 65854.0,
        "upload_messages": 3.0,
    }  # fmt: skip


def sample(second, devices, growth_mib_per_s=0.0):
    busy = 1 + math.sin(second / 3)
    return {
        "t_s": float(second),
        "connected": min(devices, 200 * second),
        "uploads": 100 * second,
        "uploads_per_s": 300 * busy,
        "bytes_up": 2e7 * busy,
        "bytes_down": 3e6 * busy,
        "rss_bytes": {
            name: int((size + growth_mib_per_s * second * (name == "cloud")) * (1 << 20))
            for name, size in SIZES_MIB.items()
        },
    }


def result(devices=2000, seconds=60, growth_mib_per_s=0.0, **options):
    chosen = LoadOptions(devices=devices, **options)
    rounds = [row(number, devices) for number in range(1, chosen.rounds + 1)]
    latency = {"p50": 1.4, "p95": 2.9, "p99": 3.1, "max": 3.3}
    found = {
        "options": chosen.model_dump(mode="json"),
        "environment": {"cores": 2, "python": "3.12.1", "broker": "mosquitto 2.0.11"},
        "status": "completed",
        "reason": "",
        "connects": {
            "devices": devices, "per_s": 840.0, "seconds": 2.4, "failed": 0, "reconnects": 0,
            "latency_s": latency,
        },
        "rounds": rounds,
        "uploads": devices * len(rounds),
        "uploads_per_s": 625.0,
        "mb_per_s": {"up": 41.2, "down": 3.4},
        "latency_s": latency,
        "acknowledged_s": {**latency, "p50": 0.6, "max": 2.2},
        "lost": 0,
        "unanswered": 0,
        "duplicated": 0,
        "refused": {"late": 3, "rate": 12},
        "processes": {
            name: {
                "cpu_s": 4.2,
                "cpu_percent": 38.0,
                "cpu_ms_per_upload": COSTS_MS.get(name),
                "peak_rss_bytes": SIZES_MIB[name] << 20,
            }
            for name in NAMES
        },
        "idle": None,
        "raw": None,
        "raw_ratio": None,
        "generator": {"processes": 1, "busy_percent": 40.0, "note": ""},
        "series": [sample(second, devices, growth_mib_per_s) for second in range(seconds + 1)],
        "cells": [],
        "drift": {},
    }  # fmt: skip
    if chosen.minutes:
        found["drift"] = drifts(found["series"])
    return found


RAW = {
    "uploads": 4000, "upload_bytes": 65854, "upload_messages": 3, "seconds": 3.4,
    "uploads_per_s": 1190.0, "mb_per_s": {"up": 78.4}, "rounds": [], "processes": {},
    "cpu_ms_per_upload": {},
}  # fmt: skip
IDLE = {
    "seconds": 30.0, "connected": 2000, "cpu_percent": dict.fromkeys(NAMES, 1.2),
    "rss_bytes": {name: size << 20 for name, size in SIZES_MIB.items()}, "bytes_per_s": 5120.0,
}  # fmt: skip


def outcome_of(totals=None, watch=None, marks=(), **measured):
    """Return the result of a test with these measurements; `marks` are (cpu_s, at_s) of rounds."""
    options, run_log, watch = LoadOptions(devices=5), LoadRunLog(), watch or ProcessWatch()
    samples = SampleSeries(Leader(options, LoadFleet([]), {"": None}), watch)
    noted = [(cpu_s, 0, n, at_s) for n, (cpu_s, at_s) in enumerate(marks)]
    for number in range(1, len(noted)):
        data = {"exchange": number, "attempt": 1, "uploads": 5}
        run_log.take({"type": "exchange_committed", "time": 10.0 * number, "data": data})
    found = RunMeasurements(options, "a broker", marks=noted, **measured)
    totals = totals or FleetTotals([], [])
    return outcome(found, totals, run_log, samples, watch, {"": totals})


def played(ahead_s=0.0):
    """Take one round's events of a cloud whose clock is ahead."""
    run_log = LoadRunLog(ahead_s=ahead_s)
    committed = {"exchange": 1, "attempt": 1, "uploads": 50, "refused": {"norm": 2}}
    for kind, time_s, data in (
        ("broadcast", 100.0, {"kind": "round", "round": "round 1", "selected": 60}),
        ("batch", 106.0, {}),
        ("exchange_committed", 108.0, committed),
        ("job_completed", 109.0, {"reason": ""}),
    ):
        run_log.take({"type": kind, "time": time_s + ahead_s, "data": data})
    return run_log


@pytest.mark.parametrize("ahead_s", [0.0, 50.0])
def test_a_round_is_cut_into_its_phases_none_of_them_negative(ahead_s):
    counts = {"first_offer_s": 103.0, "last_ack_s": 105.0, "offered": 60}
    counts |= {"upload_bytes": 6000, "upload_messages": 120}
    run_log = played(ahead_s)
    assert (run_log.refused, run_log.ended, run_log.reason) == ({"norm": 2}, "completed", "")
    [row] = run_log.rows({(1, 1): counts})
    assert row == {
        "round": 1, "attempt": 1, "selected": 60, "uploads": 50, "seconds": 8.0,
        "broadcast_s": 3.0, "upload_s": 2.0, "handover_s": 1.0, "absorb_s": 2.0,
        "measured_s": 5.0, "uploads_per_s": 10.0, "upload_bytes": 100.0, "upload_messages": 2.0,
    }  # fmt: skip
    [row] = run_log.rows({})  # no generator reported it
    assert (row["measured_s"], row["upload_bytes"]) == (2.0, 0)
    late = {"first_offer_s": 103.0, "last_ack_s": 107.5, "offered": 60}
    [row] = run_log.rows({(1, 1): late})
    assert (row["upload_s"], row["handover_s"], row["absorb_s"]) == (3.0, 0.0, 2.0)


GROWS, FLAT = ({"cloud": {"mib_per_hour": 40.0, "verdict": one}} for one in ("grows", "flat"))


def test_a_fault_is_reported_and_a_sound_result_has_none():
    for found in ({"lost": 1}, {"duplicated": 2}, {"sum_matches": False}, {"drift": GROWS}):
        assert len(list(faults(result() | found))) == 1
    for found in ({}, {"sum_matches": None}, {"drift": FLAT}):
        assert not list(faults(result() | found))
    busy = {"generator": {"note": "a generator used 97 % of a core"}}
    assert len(list(warnings(result() | busy))) == len(list(warnings(result()))) + 1


MIB = 1 << 20


def use(cpu_s, rss_mib=50, peak_mib=None, started_s=7.0):
    return ProcessFigures(cpu_s, rss_mib * MIB, peak_mib and peak_mib * MIB, started_s)


def watching(*answers):
    """Return a watch that has sampled `proxy` once per answer."""
    watch, left = ProcessWatch(), list(answers)

    def read():
        answer = left.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    watch.add_read("proxy", read)
    for _ in answers:
        watch.look()
    return watch


def test_a_process_of_this_machine_is_looked_at_itself():
    watch = ProcessWatch()
    watch.add({"me": os.getpid(), "gone": 2**22 + 1})
    watch.look()
    assert watch.cpu_s()["me"] > 0
    assert watch.peak_rss_bytes()["me"] >= watch.rss_bytes()["me"] > MIB
    assert watch.peak_rss_bytes()["gone"] is None
    assert list(watch.troubles()) == ["gone"] and str(2**22 + 1) in watch.troubles()["gone"]


@pytest.mark.parametrize(
    ("looks", "peak_mib", "cpu_s"),
    [
        ([use(1, 50, 300), use(2, 60, 300)], 60, 2),  # 300 was before the test
        ([use(1, 50, 300), use(2, 90, 300), use(3, 60, 300)], 90, 3),
        ([use(1, 50), use(2, 60)], 60, 2),  # without a kernel mark: the largest sample
        # A new process has a new mark, and its time is added to that of the one before.
        ([use(4, 50, 300), use(1, 40, 80, started_s=9.0), use(1.5, 40, 80, 9.0)], 80, 5.5),
        ([use(4, 50), OSError("timed out")], 50, None),
    ],
)
def test_peak_and_time_are_those_of_the_test(looks, peak_mib, cpu_s):
    watch = watching(*looks)
    assert watch.peak_rss_bytes() == {"proxy": peak_mib * MIB}
    assert watch.cpu_s() == ({} if cpu_s is None else {"proxy": cpu_s})
    assert watch.troubles() == ({"proxy": "timed out"} if cpu_s is None else {})


def marks(*proxy_s, every_s=20.0):
    """Return the proxy's processor seconds after each round; None: no answer."""
    return [({} if s is None else {"proxy": s}, every_s * n) for n, s in enumerate(proxy_s)]


SHORT_S = LEAST_S - 0.1


@pytest.mark.parametrize(
    ("spans", "cpu_s", "ms_per_upload"),
    [
        (marks(1.0, 3.0, 4.0, 6.0), 3.0, 300.0),  # from the first commit to the last
        (marks(1.0, 3.0, 4.0, every_s=SHORT_S), 1.0, None),
        (marks(None, None, None), None, None),
        (marks(0.0, 1.0, 2.0, None), None, None),
        (marks(0.0, 1.0, None, 3.0), 2.0, 200.0),  # one look between that failed is no matter
    ],
)
def test_costs_need_both_ends_and_what_is_missing_is_told(spans, cpu_s, ms_per_upload):
    found = outcome_of(watch=watching(use(3.0), OSError("timed out")), marks=spans)
    proxy = found["processes"]["proxy"]
    assert (proxy["cpu_s"], proxy["cpu_ms_per_upload"]) == (cpu_s, ms_per_upload)
    assert proxy["peak_rss_bytes"] == 50 * MIB
    assert any("timed out" in line for line in warnings(found)) == (cpu_s is None)


def test_the_ratio_is_of_uploads_a_second_over_all_rounds():
    rounds = [
        {"uploads": 100, "uploads_per_s": 50.0},  # 2 s
        {"uploads": 100, "uploads_per_s": 100.0},  # 1 s
        {"uploads": 0, "uploads_per_s": None},
    ]
    assert ratio({"rounds": rounds}, {"uploads_per_s": 200.0}) == pytest.approx(1 / 3)
    assert ratio({"rounds": []}, {"uploads_per_s": 200.0}) is None


def shown(found, folder):
    """Return the terminal's output and the page."""
    out = Console(file=io.StringIO(), width=100, color_system=None)
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
