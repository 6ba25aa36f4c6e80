"""What was measured, as `load.json` holds it; and what must hold of it."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgeveil.errors import JobFailed
from edgeveil_lab.load.counters import GeneratorLoad
from edgeveil_lab.load.leader import FleetTotals, Leader
from edgeveil_lab.load.processes import ProcessWatch
from edgeveil_lab.load.scenario import LoadOptions

# --- the job's rounds, from the cloud's events and the generators' counts ---

Merged = Mapping[tuple[int, int], Mapping[str, Any]]


@dataclass
class LoadRunLog:
    """The job's events as they come. Times are seconds since 1970 on the leader's clock."""

    committed: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    ended: str = ""
    reason: str = ""
    phase: str = ""
    ahead_s: float = 0.0
    """What the cloud's clock is ahead of ours."""
    mean_of_values: float | None = None
    _broadcast_s: float = 0.0
    _selected: int = 0
    _batch_s: float = 0.0

    def take(self, event: Mapping[str, Any]) -> None:
        """The next event; unknown ones change nothing."""
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

    def require_completed(self, job: str) -> None:
        """Raise JobFailed if the job ended in another way."""
        if self.ended not in ("", "completed"):
            reason = self.reason or f"the job {self.ended}"
            raise JobFailed(reason, where=job, fix="see the logs of cloud and proxy")

    def rows(self, merged: Merged) -> list[dict[str, Any]]:
        return [
            _round_row(one, merged.get((one["round"], one["attempt"]), {}))
            for one in self.committed
        ]


def _round_row(one: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
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


# --- whether memory stays flat: a line through each process's samples after the warm-up ---

WARM_UP_SHARE = 0.2
LEAST_SECONDS = 60.0
LEAST_SAMPLES = 30
MIB = 1 << 20
FLAT_MIB_PER_HOUR = 16.0
"""Growth below which memory counts as flat."""


@dataclass(frozen=True)
class MemoryDrift:
    """Growth of one process in MiB an hour by least squares, and its standard error, over means of
    ten blocks: samples of memory follow each other closely."""

    process: str
    mib_per_hour: float
    error: float

    @property
    def verdict(self) -> str:
        """`flat`, `grows`, or `too short to tell`, at two standard errors."""
        if self.mib_per_hour + 2 * self.error <= FLAT_MIB_PER_HOUR:
            return "flat"
        return "grows" if self.mib_per_hour > 2 * self.error else "too short to tell"

    def __str__(self) -> str:
        return f"{self.mib_per_hour:+.1f} ± {self.error:.1f}, {self.verdict}"


def drifts(result: Mapping[str, Any]) -> list[MemoryDrift]:
    """One for each process of a test over time; none where it was too short to tell."""
    series = result["series"] if result["options"].get("minutes") else []
    names = dict.fromkeys(name for sample in series for name in sample.get("rss_bytes", {}))
    found = []
    for name in names:
        points = [(s["t_s"], s["rss_bytes"][name]) for s in series if name in s["rss_bytes"]]
        times, values = np.array(points, np.float64).T
        kept = times >= times[0] + WARM_UP_SHARE * (times[-1] - times[0])
        if kept.sum() >= LEAST_SAMPLES and np.ptp(times[kept]) >= LEAST_SECONDS:
            found.append(MemoryDrift(name, *_slope(times[kept] / 3600, values[kept] / MIB)))
    return found


def _slope(hours: np.ndarray[Any, Any], mib: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Slope of the line through means over ten blocks, and its standard error."""
    x = np.array([block.mean() for block in np.array_split(hours, 10)])
    y = np.array([block.mean() for block in np.array_split(mib, 10)])
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    rest = y - y.mean() - slope * (x - x.mean())
    return slope, float(np.sqrt((rest**2).sum() / (len(x) - 2) / spread))


# --- figures once a second: for the live view, for Prometheus, for the plots ---

_BUSY = 0.9
_LATE_S = 0.02  # two slices of its own work
_LATE_SHARE = 0.1  # of the time until an upload is acknowledged


class SampleSeries:
    """Keeps the series. `watch` knows the local processes."""

    def __init__(self, leader: Leader, watch: ProcessWatch) -> None:
        self._leader, self._watch = leader, watch
        self._began_s = self._last_s = time.monotonic()
        self._before: dict[str, int] = {}
        self.series: list[dict[str, Any]] = []

    def take(self, phase: str, rounds_done: int) -> dict[str, Any]:
        """One more sample, of what `watch` saw last."""
        totals, now_s = self._leader.totals(), time.monotonic()
        elapsed_s, self._last_s = max(now_s - self._last_s, 1e-3), now_s
        counts = totals.counts
        rates = {
            name: round((counts[name] - self._before.get(name, 0)) / elapsed_s, 1)
            for name in ("counted", "acknowledged", "bytes_up", "bytes_down")
        }
        self._before = counts
        entry = {
            "t_s": round(now_s - self._began_s, 2),
            "connected": counts["connected"],
            "uploads": counts["acknowledged"],
            "uploads_per_s": rates["acknowledged"],
            "bytes_up": rates["bytes_up"],
            "bytes_down": rates["bytes_down"],
            "rss_bytes": self._watch.rss_bytes(),
            "cpu_percent": self._watch.percent(),
        }
        self.series.append(entry)
        latency, live = totals.histogram("counted_s"), {"phase": phase, "rounds_done": rounds_done}
        live["latency_s"] = {"p50": latency.percentile(0.5), "p99": latency.percentile(0.99)}
        return {**entry, **live, "refused": dict(totals.refused)}

    def generator(self) -> dict[str, Any]:
        """How hard the generators worked while uploads were under way, and whether that held the
        test back.
        """
        loads = [report.load for report in self._leader.reports.values()] or [GeneratorLoad()]
        busy, late_s = max(s.busy for s in loads), max(s.mean_late_s for s in loads)
        usual_s = self._leader.totals().histogram("ack_s").percentile(0.5)
        note = ""
        if busy > _BUSY:
            note = f"a generator used or waited for {busy:.0%} of a core: add --processes or hosts"
        elif usual_s and late_s > max(_LATE_S, _LATE_SHARE * usual_s):
            note = (
                f"a generator's loop was {1000 * late_s:.0f} ms late on average, an upload is"
                f" acknowledged after {1000 * usual_s:.0f} ms: add --processes or hosts"
            )
        return {
            "processes": len(self._leader.reports),
            "busy_percent": round(100 * busy, 1),
            "waited_percent": round(100 * max(s.waited_s / (s.wall_s or 1) for s in loads), 1),
            "late_s": round(late_s, 4),
            "latest_s": round(max(s.worst_s for s in loads), 3),
            "bottleneck": bool(note),
            "note": note,
        }


# --- what must hold: every upload in its round, the sum right, memory flat ---

_SUM_SHARE = 0.01  # of what one upload typically adds to the mean


def losses(
    totals: FleetTotals, run_log: LoadRunLog, *, alone: bool, cell: str = ""
) -> dict[str, int]:
    """What is lost of a cell, whose generators' `totals` are given.

    `lost`: acknowledged and not in the round's commit record, never answered though the device
    stayed, or what the cloud's count is off by. `left_out`: acknowledged for a round made without
    the cell. `alone`: nobody else's devices took part.
    """
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
        # Records of which no generator heard are lost already; others may upload beside us.
        lost += abs(difference) if alone else max(0, difference - row["unconfirmed"])
        lost += row["unconfirmed"] + row["unanswered"]
        unanswered += row["unanswered"]
    return {"lost": lost, "unanswered": unanswered, "left_out": left_out}


def sum_matches(totals: FleetTotals, run_log: LoadRunLog, values: int) -> bool | None:
    """Whether the cloud's mean of all counted values is that of what the generators sent.

    None where that cannot be told: no round, or uploads of others among them.
    """
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
"""What a span must last for its costs to be told."""


@dataclass(frozen=True)
class SpentMark:
    """Processor seconds and counts when so many rounds were committed."""

    cpu_s: Mapping[str, float]
    counts: Mapping[str, int]
    rounds: int
    at_s: float


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
    _marks: list[SpentMark] = field(default_factory=list)

    @property
    def others(self) -> int:
        return max(0, self.enrolled - self.options.devices)

    def mark(self, cpu_s: Mapping[str, float], counts: Mapping[str, int], rounds: int) -> None:
        """The rounds begin, or one more is committed."""
        self._marks.append(SpentMark(cpu_s, counts, rounds, time.monotonic()))

    def span(self) -> tuple[SpentMark, SpentMark] | None:
        """From the end of the first round to the end of the last: what is done once, such as
        planning the job, is no cost of an upload. With one round alone, from its beginning.
        """
        if len(self._marks) < 2:
            return None
        return self._marks[1 if len(self._marks) > 2 else 0], self._marks[-1]

    def seconds(self) -> float:
        span = self.span()
        return span[1].at_s - span[0].at_s if span else 0.0


def outcome(
    measured: RunMeasurements,
    totals: FleetTotals,
    run_log: LoadRunLog,
    samples: SampleSeries,
    watch: ProcessWatch,
    by_cell: Mapping[str, FleetTotals] | None = None,
) -> dict[str, Any]:
    """Everything, with plain numbers only; `by_cell`: the totals of each, where there are more."""
    options, rows = measured.options, run_log.rows(totals.rounds)
    alone = measured.others == 0
    lost = {
        cell: losses(of_it, run_log, alone=alone, cell=cell)
        for cell, of_it in (by_cell or {"": totals}).items()
    }
    uploads, seconds = sum(r["uploads"] for r in rows), sum(r["measured_s"] for r in rows)
    moved_up = sum(r["uploads"] * r["upload_bytes"] for r in rows)
    cost = _cost(measured, rows)
    peak = watch.peak_rss_bytes()
    ended = "interrupted" if measured.interrupted else "failed"
    result = {
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
        "mb_per_s": {
            "up": _rate(moved_up / 1e6, seconds),
            "down": cost.rate(cost.down_bytes / 1e6, cost.seconds),
        },
        "latency_s": totals.histogram("counted_s").summary(),
        "acknowledged_s": totals.histogram("ack_s").summary(),
        **{name: sum(one[name] for one in lost.values()) for name in ("lost", "unanswered")},
        "duplicated": totals.counts["duplicated"],
        "sum_matches": sum_matches(totals, run_log, options.values),
        "warnings": [*_warnings(measured, rows), *_unknown(measured, watch, cost)],
        "refused": {**run_log.refused, **totals.refused},
        "processes": {name: cost.of(name) | {"peak_rss_bytes": peak[name]} for name in peak},
        "peak_rss_bytes": peak,
        "cpu_ms_per_upload": {name: cost.ms_per_upload(name) for name in peak},
        "idle": measured.idle,
        "raw": None,
        "raw_ratio": None,
        "generator": samples.generator(),
        "series": samples.series,
        "cells": [
            _of_cell(measured, cell, of_it, run_log) | lost[cell]
            for cell, of_it in (by_cell or {}).items()
        ],
    }
    drift = {
        one.process: {
            "mib_per_hour": round(one.mib_per_hour, 2),
            "error": round(one.error, 2),
            "verdict": one.verdict,
        }
        for one in drifts(result)
    }
    return {**result, "drift": drift}


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


@dataclass(frozen=True)
class _Cost:
    """What the measured rounds took; `cpu_s` of the processes that told it at both ends."""

    cpu_s: Mapping[str, float] = field(default_factory=dict)
    down_bytes: int = 0
    uploads: int = 0
    seconds: float = 0.0

    def rate(self, amount: float, by: float) -> float | None:
        """None where the span is too short: its ends are known to a fraction of a second."""
        return _rate(amount, by) if self.seconds >= LEAST_S else None

    def of(self, process: str) -> dict[str, float | None]:
        used_s = self.cpu_s.get(process)
        if used_s is None:
            return {"cpu_s": None, "cpu_percent": None}
        return {"cpu_s": round(used_s, 3), "cpu_percent": self.rate(100 * used_s, self.seconds)}

    def ms_per_upload(self, process: str) -> float | None:
        used_s = self.cpu_s.get(process)
        return None if used_s is None else self.rate(1000 * used_s, self.uploads)


def _cost(measured: RunMeasurements, rows: list[dict[str, Any]]) -> _Cost:
    span = measured.span()
    if span is None:
        return _Cost()
    first, last = span
    within = rows[first.rounds : last.rounds]
    return _Cost(
        {n: cpu_s - first.cpu_s[n] for n, cpu_s in last.cpu_s.items() if n in first.cpu_s},
        last.counts["bytes_down"] - first.counts["bytes_down"],
        sum(row["uploads"] for row in within),
        measured.seconds(),
    )


def _warnings(measured: RunMeasurements, rows: list[dict[str, Any]]) -> Iterator[str]:
    devices, deadline_s = measured.options.devices, float(measured.options.deadline_s)
    selected = max((row["selected"] for row in rows), default=0)
    if selected > devices:
        yield (
            f"{selected - devices} enrolled devices that are not of this test were selected with"
            f" its {devices}: rounds do not wait for them"
        )
    late = sum(row["seconds"] - row["absorb_s"] >= deadline_s for row in rows)
    if late:
        yield f"{late} of {len(rows)} rounds closed at their deadline of {deadline_s:g} s"


def _unknown(measured: RunMeasurements, watch: ProcessWatch, cost: _Cost) -> Iterator[str]:
    rounds, peak = measured.span() is not None, watch.peak_rss_bytes()
    for name, why in watch.troubles().items():
        if peak[name] is None or (rounds and name not in cost.cpu_s):
            yield f"processor time and memory of {name} are not known in full: {why}"


def _rate(amount: float, seconds: float) -> float:
    return round(amount / seconds, 3) if seconds > 0 else 0.0
