"""A load test's result as the command writes it, with made-up figures."""

import math

from edgeveil_lab.load.leader import FleetTotals, Leader
from edgeveil_lab.load.processes import ProcessWatch
from edgeveil_lab.load.run_log import LoadRunLog, RunMeasurements, SampleSeries, drifts, outcome
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
