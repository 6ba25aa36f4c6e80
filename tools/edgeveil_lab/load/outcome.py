"""A load test's result, as `load.json` holds it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgeveil_lab.load.drift import Drift, drifts
from edgeveil_lab.load.leader import Totals
from edgeveil_lab.load.options import LoadOptions
from edgeveil_lab.load.processes import Watch
from edgeveil_lab.load.rounds import Course
from edgeveil_lab.load.samples import Samples
from edgeveil_lab.load.verdict import losses, sum_matches

LEAST_S = 10.0
"""What a span must last for its costs to be told."""


@dataclass(frozen=True)
class Mark:
    """Processor seconds and counts when so many rounds were committed."""

    cpu_s: Mapping[str, float]
    counts: Mapping[str, int]
    rounds: int
    at_s: float


@dataclass
class Measured:
    """What the session notes on its way."""

    options: LoadOptions
    broker: str
    connects: int = 0
    connecting_s: float = 0.0
    idle: dict[str, Any] | None = None
    reason: str = ""
    interrupted: bool = False
    enrolled: int = 0
    spans: bool = False
    _marks: list[Mark] = field(default_factory=list)

    @property
    def others(self) -> int:
        """Enrolled devices that are not of this test."""
        return max(0, self.enrolled - self.options.devices)

    def mark(self, cpu_s: Mapping[str, float], counts: Mapping[str, int], rounds: int) -> None:
        """The rounds begin, or one more is committed."""
        self._marks.append(Mark(cpu_s, counts, rounds, time.monotonic()))

    def span(self) -> tuple[Mark, Mark] | None:
        """From the end of the first round to the end of the last: what is done once, such as
        planning the job, is no cost of an upload. With one round alone, from its beginning.
        """
        if len(self._marks) < 2:
            return None
        return self._marks[1 if len(self._marks) > 2 else 0], self._marks[-1]

    def seconds(self) -> float:
        """How long that span is."""
        span = self.span()
        return span[1].at_s - span[0].at_s if span else 0.0


def outcome(
    measured: Measured, totals: Totals, course: Course, samples: Samples, watch: Watch
) -> dict[str, Any]:
    """Everything, with plain numbers only."""
    options, rows = measured.options, course.rows(totals.rounds)
    uploads, seconds = sum(r["uploads"] for r in rows), sum(r["measured_s"] for r in rows)
    moved_up = sum(r["uploads"] * r["upload_bytes"] for r in rows)
    cost = _cost(measured, rows)
    peak = watch.peak_rss_bytes()
    connect = totals.histogram("connect_s").summary()
    del connect["jitter"]
    result = {
        "options": options.model_dump(mode="json"),
        "environment": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "broker": measured.broker,
        },
        "status": _status(measured),
        "reason": measured.reason,
        "connects": {
            "devices": measured.connects,
            "per_s": _rate(measured.connects, measured.connecting_s),
            "seconds": round(measured.connecting_s, 3),
            "failed": totals.counts["failed"],
            "reconnects": totals.counts["reconnects"],
            "latency_s": connect,
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
        **losses(totals, course, alone=measured.others == 0),
        "duplicated": totals.counts["duplicated"],
        "sum_matches": sum_matches(totals, course, options.values),
        "warnings": [*_warnings(measured, rows), *_unknown(measured, watch, cost)],
        "refused": {**course.refused, **totals.refused},
        "processes": {name: cost.of(name) | {"peak_rss_bytes": peak[name]} for name in peak},
        "peak_rss_bytes": peak,
        "cpu_ms_per_upload": {name: cost.ms_per_upload(name) for name in peak},
        "idle": measured.idle,
        "raw": None,
        "raw_ratio": None,
        "generator": samples.generator(),
        "series": samples.series,
        "sweep": None,
    }
    return {**result, "drift": {one.process: _drift(one) for one in drifts(result)}}


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
        """Processor time of one process; None for what is not known."""
        used_s = self.cpu_s.get(process)
        if used_s is None:
            return {"cpu_s": None, "cpu_percent": None}
        return {"cpu_s": round(used_s, 3), "cpu_percent": self.rate(100 * used_s, self.seconds)}

    def ms_per_upload(self, process: str) -> float | None:
        """The same for one upload."""
        used_s = self.cpu_s.get(process)
        return None if used_s is None else self.rate(1000 * used_s, self.uploads)


def _cost(measured: Measured, rows: list[dict[str, Any]]) -> _Cost:
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


def _status(measured: Measured) -> str:
    if measured.interrupted:
        return "interrupted"
    return "failed" if measured.reason else "completed"


def _warnings(measured: Measured, rows: list[dict[str, Any]]) -> Iterator[str]:
    """What makes the figures say less than they seem to."""
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


def _unknown(measured: Measured, watch: Watch, cost: _Cost) -> Iterator[str]:
    """Of which processes figures are missing, and why."""
    rounds, peak = measured.span() is not None, watch.peak_rss_bytes()
    for name, why in watch.troubles().items():
        if peak[name] is None or (rounds and name not in cost.cpu_s):
            yield f"processor time and memory of {name} are not known in full: {why}"


def _drift(one: Drift) -> dict[str, Any]:
    figures = {"mib_per_hour": round(one.mib_per_hour, 2), "error": round(one.error, 2)}
    return {**figures, "verdict": one.verdict}


def _rate(amount: float, seconds: float) -> float:
    return round(amount / seconds, 3) if seconds > 0 else 0.0
