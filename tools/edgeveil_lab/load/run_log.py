"""The measurements of `load.json`, and the checks on them."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgeveil_lab.load.counters import GeneratorLoad
from edgeveil_lab.load.leader import FleetTotals, Leader
from edgeveil_lab.load.processes import ProcessWatch
from edgeveil_lab.load.scenario import LoadOptions

# --- the job's rounds, from the cloud's events and the generators' counts ---


@dataclass
class LoadRunLog:
    """The job's events; times are seconds since 1970 on the leader's clock."""

    committed: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    ended: str = ""
    reason: str = ""
    phase: str = ""
    ahead_s: float = 0.0
    """Lead of the cloud's clock over ours."""
    mean_of_values: float | None = None
    _broadcast_s: float = 0.0
    _selected: int = 0
    _batch_s: float = 0.0

    def take(self, event: Mapping[str, Any]) -> None:
        kind, data, time_s = event["type"], event["data"], float(event["time"]) - self.ahead_s
        if kind == "broadcast":
            self.phase = str(data.get("round", ""))
            if data.get("kind") == "round":
                self._broadcast_s, self._selected = time_s, int(data.get("selected") or 0)
        elif kind == "batch":
            self._batch_s = time_s
            self.phase += ": absorbing"
        elif kind == "exchange_committed":
            for reason, count in dict(data.get("refused", {})).items():
                self.refused[reason] = self.refused.get(reason, 0) + int(count)
            if "mean_of_values" in data:
                self.mean_of_values = float(data["mean_of_values"])
            self.committed.append(
                {
                    "round": int(data["exchange"]),
                    "attempt": int(data["attempt"]),
                    "selected": self._selected,
                    "uploads": int(data["uploads"]),
                    "cells": dict(data.get("cells", {})),
                    "broadcast_at_s": self._broadcast_s,
                    "batch_at_s": self._batch_s,
                    "committed_at_s": time_s,
                }
            )
        elif kind in ("job_completed", "job_failed", "job_cancelled", "job_paused"):
            self.ended, self.reason = kind.removeprefix("job_"), str(data.get("reason") or "")

    def rows(self, merged: Mapping[tuple[int, int], Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [_row(one, merged.get((one["round"], one["attempt"]), {})) for one in self.committed]


def _row(one: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
    begin_s, batch_s, end_s = (one[f"{n}_at_s"] for n in ("broadcast", "batch", "committed"))
    first_s = counts.get("first_offer_s") or batch_s
    last_s = min(counts.get("last_ack_s") or batch_s, batch_s)
    seconds = max(end_s - first_s, 1e-6)
    offered = max(1, int(counts.get("offered", 0)))
    cells = {"cells": one["cells"]} if one.get("cells") else {}
    return {
        **{name: one[name] for name in ("round", "attempt", "selected", "uploads")},
        **cells,
        "seconds": round(end_s - begin_s, 4),
        "broadcast_s": round(max(0.0, first_s - begin_s), 4),
        "upload_s": round(max(0.0, last_s - first_s), 4),
        "handover_s": round(max(0.0, batch_s - last_s), 4),
        "absorb_s": round(max(0.0, end_s - batch_s), 4),
        "measured_s": round(seconds, 4),
        "uploads_per_s": round(one["uploads"] / seconds, 2),
        "upload_bytes": round(counts.get("upload_bytes", 0) / offered, 1),
        "upload_messages": round(counts.get("upload_messages", 0) / offered, 3),
    }


# --- memory growth: a line through each process's samples after the warm-up ---

_WARM_UP_SHARE = 0.2
_LEAST_SECONDS, _LEAST_SAMPLES = 60.0, 30
MIB = 1 << 20
FLAT_MIB_PER_HOUR = 16.0
"""Growth below which memory counts as flat."""


def drifts(series: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each process's memory growth in MiB an hour, by least squares, and a verdict.

    The standard error is over means of ten blocks, since memory samples are correlated; the verdict
    at two of these is `flat`, `grows` or `too short to measure`."""
    found = {}
    for name in dict.fromkeys(name for sample in series for name in sample["rss_bytes"]):
        points = [(s["t_s"], s["rss_bytes"][name]) for s in series if name in s["rss_bytes"]]
        times, values = np.array(points, np.float64).T
        kept = times >= times[0] + _WARM_UP_SHARE * (times[-1] - times[0])
        if kept.sum() < _LEAST_SAMPLES or np.ptp(times[kept]) < _LEAST_SECONDS:
            continue
        x, y = (
            np.array([block.mean() for block in np.array_split(one[kept], 10)])
            for one in (times / 3600, values / MIB)
        )
        (slope, _), [[variance, _], _] = np.polyfit(x, y, 1, cov=True)
        error = math.sqrt(variance)
        verdict = "grows" if slope > 2 * error else "too short to measure"
        if slope + 2 * error <= FLAT_MIB_PER_HOUR:
            verdict = "flat"
        growth = {"mib_per_hour": round(slope, 2), "error": round(error, 2)}
        found[name] = {**growth, "verdict": verdict}
    return found


# --- figures once a second: for the live view, for Prometheus, for the plots ---

_BUSY = 0.9


class SampleSeries:
    def __init__(self, leader: Leader, watch: ProcessWatch) -> None:
        self._leader, self._watch = leader, watch
        self._began_s = self._last_s = time.monotonic()
        self._before: dict[str, int] = {}
        self.series: list[dict[str, Any]] = []

    def take(self, phase: str, rounds_done: int) -> dict[str, Any]:
        totals, now_s = self._leader.totals(), time.monotonic()
        elapsed_s, self._last_s = max(now_s - self._last_s, 1e-3), now_s
        counts, before = totals.counts, self._before
        up, down, uploads = (
            round((counts[name] - before.get(name, 0)) / elapsed_s, 1)
            for name in ("bytes_up", "bytes_down", "acknowledged")
        )
        self._before = counts
        entry = {
            "t_s": round(now_s - self._began_s, 2),
            "connected": counts["connected"],
            "uploads": counts["acknowledged"],
            "uploads_per_s": uploads,
            "bytes_up": up,
            "bytes_down": down,
            "rss_bytes": self._watch.rss_bytes(),
        }
        self.series.append(entry)
        latency, live = totals.histogram("counted_s"), {"phase": phase, "rounds_done": rounds_done}
        live["latency_s"] = {"p50": latency.percentile(0.5), "p99": latency.percentile(0.99)}
        return {**entry, **live, "refused": dict(totals.refused)}

    def generator(self) -> dict[str, Any]:
        """Return the generators' load during uploads, with a note if it limited the test."""
        loads = [report.load for report in self._leader.reports.values()] or [GeneratorLoad()]
        busy, note = max(load.busy for load in loads), ""
        if busy > _BUSY:
            note = f"a generator used or waited for {busy:.0%} of a core: add --processes or hosts"
        return {
            "processes": len(self._leader.reports),
            "busy_percent": round(100 * busy, 1),
            "note": note,
        }


# --- checks: every upload is in its round, the sum is right, memory is flat ---

_SUM_SHARE = 0.01  # tolerance, as a share of one upload's typical effect on the mean


def losses(
    totals: FleetTotals, run_log: LoadRunLog, *, alone: bool, cell: str = ""
) -> dict[str, int]:
    """Return the losses of a cell from its generators' `totals`.

    `lost`: acknowledged but not in the round's commit record, never answered though the device
    stayed, or missing from the cloud's count. `left_out`: acknowledged for a round without the
    cell. `alone`: no other devices took part."""
    lost, unanswered, left_out = totals.counts["missing"], 0, 0
    for one in run_log.committed:
        row = totals.rounds.get((one["round"], one["attempt"]))
        if row is None:
            continue
        uploads = int(one["cells"].get(cell, 0) if one.get("cells") else one["uploads"])
        if cell and cell not in one["cells"]:
            left_out += row["missing"] + row["unconfirmed"]
            lost += row["counted"] - row["missing"]
            continue
        difference = row["counted"] + row["unconfirmed"] - uploads
        # Uploads without a commit record are counted below; other devices may upload too.
        lost += abs(difference) if alone else max(0, difference - row["unconfirmed"])
        lost += row["unconfirmed"] + row["unanswered"]
        unanswered += row["unanswered"]
    return {"lost": lost, "unanswered": unanswered, "left_out": left_out}


def sum_matches(totals: FleetTotals, run_log: LoadRunLog, values: int) -> bool | None:
    """Return whether the cloud's mean matches the values sent; None if unknown."""
    uploads, total = 0, 0.0
    for one in run_log.committed:
        row = totals.rounds.get((one["round"], one["attempt"]))
        if row is None or row["counted"] != one["uploads"]:
            return None
        uploads, total = uploads + row["counted"], total + row["counted_sum"]
    if not uploads or run_log.mean_of_values is None:
        return None
    one_adds = 1 / (uploads * math.sqrt(values))
    return abs(total / (uploads * values) - run_log.mean_of_values) <= _SUM_SHARE * one_adds


def faults(result: Mapping[str, Any]) -> Iterator[str]:
    devices = result["connects"]["devices"]
    if result["lost"] or result["duplicated"]:
        yield f"{devices:,} devices: {result['lost']} lost, {result['duplicated']} duplicated"
    if result.get("sum_matches") is False:
        yield f"{devices:,} devices: the cloud's sum is not that of the counted uploads"
    for name, one in result.get("drift", {}).items():
        if one["verdict"] == "grows":
            yield f"the memory of {name} grows by {one['mib_per_hour']:.1f} MiB an hour"


# --- the result ---

LEAST_S = 10.0
"""Minimum span in seconds for costs to be reported."""


@dataclass
class RunMeasurements:
    options: LoadOptions
    broker: str
    connects: int = 0
    connecting_s: float = 0.0
    idle: dict[str, Any] | None = None
    reason: str = ""
    interrupted: bool = False
    enrolled: int = 0
    connected: dict[str, int] = field(default_factory=dict)  # in each cell, before they leave
    marks: list[tuple[Mapping[str, float], int, int, float]] = field(default_factory=list)
    """Processor seconds, bytes down, rounds committed and time: before the first round, and after
    each one."""


def outcome(
    measured: RunMeasurements,
    totals: FleetTotals,
    run_log: LoadRunLog,
    samples: SampleSeries,
    watch: ProcessWatch,
    by_cell: Mapping[str, FleetTotals],
) -> dict[str, Any]:
    """Return the result with plain numbers only; `by_cell` has the totals of each cell."""
    options, rows = measured.options, run_log.rows(totals.rounds)
    alone = measured.enrolled <= options.devices
    lost = {cell: losses(of_it, run_log, alone=alone, cell=cell) for cell, of_it in by_cell.items()}
    uploads, seconds = sum(r["uploads"] for r in rows), sum(r["measured_s"] for r in rows)
    moved_up = sum(r["uploads"] * r["upload_bytes"] for r in rows)
    costs = _costs(measured, rows, watch)
    ended = "interrupted" if measured.interrupted else "failed"
    return {
        "options": options.model_dump(mode="json"),
        "environment": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "broker": measured.broker,
        },
        "status": ended if measured.reason or measured.interrupted else "completed",
        "reason": measured.reason,
        "connects": {
            "devices": measured.connects,
            "per_s": _rate(measured.connects, measured.connecting_s),
            "seconds": round(measured.connecting_s, 3),
            "failed": totals.counts["failed"],
            "reconnects": totals.counts["reconnects"],
            "latency_s": totals.histogram("connect_s").summary(),
        },
        "rounds": rows,
        "uploads": uploads,
        "uploads_per_s": _rate(uploads, seconds),
        "mb_per_s": {"up": _rate(moved_up / 1e6, seconds), "down": costs.pop("mb_per_s_down")},
        "latency_s": totals.histogram("counted_s").summary(),
        "acknowledged_s": totals.histogram("ack_s").summary(),
        **{name: sum(one[name] for one in lost.values()) for name in ("lost", "unanswered")},
        "duplicated": totals.counts["duplicated"],
        "sum_matches": sum_matches(totals, run_log, options.values),
        "warnings": [*_warnings(options, rows), *costs.pop("unknown")],
        "refused": {**run_log.refused, **totals.refused},
        **costs,
        "idle": measured.idle,
        "raw": None,
        "raw_ratio": None,
        "generator": samples.generator(),
        "series": samples.series,
        "cells": [
            _of_cell(measured, cell, of_it, run_log) | lost[cell]
            for cell, of_it in by_cell.items()
            if cell
        ],
        "drift": drifts(samples.series) if options.minutes else {},
    }


def _of_cell(
    measured: RunMeasurements, cell: str, totals: FleetTotals, run_log: LoadRunLog
) -> dict[str, Any]:
    rounds = sum(cell in one["cells"] for one in run_log.committed)
    counts = ("connects", "reconnects", "acknowledged", "counted")
    return {
        "cell": cell,
        "connected": measured.connected.get(cell, 0),
        **{name: totals.counts[name] for name in counts},
        "rounds": rounds,
        "rounds_without": len(run_log.committed) - rounds,
        "acknowledged_s": totals.histogram("ack_s").summary(),
        "latency_s": totals.histogram("counted_s").summary(),
    }


def _costs(
    measured: RunMeasurements, rows: list[dict[str, Any]], watch: ProcessWatch
) -> dict[str, Any]:
    """Return processor costs from the end of the first round, whose start-up work is excluded."""
    marks, peak = measured.marks, watch.peak_rss_bytes()
    spent: dict[str, float] = {}
    uploads, seconds, down_bytes = 0, 0.0, 0
    if len(marks) > 1:
        first, last = marks[1 if len(marks) > 2 else 0], marks[-1]
        spent = {name: s - first[0][name] for name, s in last[0].items() if name in first[0]}
        uploads = sum(row["uploads"] for row in rows[first[2] : last[2]])
        seconds, down_bytes = last[3] - first[3], last[1] - first[1]

    def rate(amount: float | None, by: float) -> float | None:
        # The ends of the span are known only to a fraction of a second.
        return None if amount is None or seconds < LEAST_S else _rate(amount, by)

    return {
        "processes": {
            name: {
                "cpu_s": None if used is None else round(used, 3),
                "cpu_percent": rate(None if used is None else 100 * used, seconds),
                "cpu_ms_per_upload": rate(None if used is None else 1000 * used, uploads),
                "peak_rss_bytes": peak[name],
            }
            for name, used in ((name, spent.get(name)) for name in peak)
        },
        "mb_per_s_down": rate(down_bytes / 1e6, seconds),
        "unknown": [
            f"processor time and memory of {name} are incomplete: {why}"
            for name, why in watch.troubles().items()
            if peak[name] is None or (len(marks) > 1 and name not in spent)
        ],
    }


def _warnings(options: LoadOptions, rows: list[dict[str, Any]]) -> Iterator[str]:
    devices, deadline_s = options.devices, float(options.deadline_s)
    selected = max((row["selected"] for row in rows), default=0)
    if selected > devices:
        yield (
            f"{selected - devices} enrolled devices that are not of this test were selected with"
            f" its {devices}: rounds do not wait for them"
        )
    late = sum(row["seconds"] - row["absorb_s"] >= deadline_s for row in rows)
    if late:
        yield f"{late} of {len(rows)} rounds closed at their deadline of {deadline_s:g} s"


def _rate(amount: float, seconds: float) -> float:
    return round(amount / seconds, 3) if seconds > 0 else 0.0
