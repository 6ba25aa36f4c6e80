"""A load test's result, as `load.json` holds it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.load.leader import Totals
from tools.load.options import LoadOptions
from tools.load.processes import Watch
from tools.load.rounds import Course
from tools.load.samples import Samples


@dataclass
class Measured:
    """What the session notes on its way. `begin` and `end` frame the rounds."""

    options: LoadOptions
    broker: str
    connects: int = 0
    connecting_s: float = 0.0
    idle: dict[str, Any] | None = None
    reason: str = ""
    _cpu: tuple[Mapping[str, float], ...] = field(default=())
    _counts: tuple[Mapping[str, int], ...] = field(default=())

    def begin(self, cpu_s: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """The rounds begin."""
        self._cpu, self._counts = (cpu_s,), (counts,)

    def end(self, cpu_s: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """The rounds are over."""
        self._cpu, self._counts = (*self._cpu[:1], cpu_s), (*self._counts[:1], counts)

    def cpu_of_rounds(self, now: Mapping[str, float]) -> dict[str, float]:
        """Processor seconds of each process in the rounds; `now` where they did not end."""
        if not self._cpu:
            return {}
        first, last = self._cpu[0], self._cpu[-1] if len(self._cpu) > 1 else now
        return {name: last[name] - first.get(name, 0.0) for name in last}

    def moved_down(self, now: Mapping[str, int]) -> int:
        """Bytes that came to the devices in the rounds."""
        if not self._counts:
            return 0
        last = self._counts[-1] if len(self._counts) > 1 else now
        return last["bytes_down"] - self._counts[0]["bytes_down"]


def outcome(
    measured: Measured, totals: Totals, course: Course, samples: Samples, watch: Watch
) -> dict[str, Any]:
    """Everything, with plain numbers only."""
    options, rows = measured.options, course.rows(totals.rounds)
    uploads, seconds = sum(r["uploads"] for r in rows), sum(r["measured_s"] for r in rows)
    whole_s = sum(r["seconds"] for r in rows)
    moved_up = sum(r["uploads"] * r["upload_bytes"] for r in rows)
    cpu = measured.cpu_of_rounds(watch.cpu_s())
    peak = watch.peak_rss_bytes()
    connect = totals.histogram("connect_s").summary()
    del connect["jitter"]
    return {
        "options": options.model_dump(mode="json"),
        "environment": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "broker": measured.broker,
        },
        "status": "failed" if measured.reason else "completed",
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
            "down": _rate(measured.moved_down(totals.counts) / 1e6, whole_s),
        },
        "latency_s": totals.histogram("counted_s").summary(),
        "acknowledged_s": totals.histogram("ack_s").summary(),
        **_losses(totals, course),
        "duplicated": totals.counts["duplicated"],
        "refused": {**course.refused, **totals.refused},
        "processes": {
            name: {
                "cpu_s": round(cpu.get(name, 0.0), 3),
                "cpu_percent": _rate(100 * cpu.get(name, 0.0), whole_s),
                "peak_rss_bytes": peak[name],
            }
            for name in peak
        },
        "peak_rss_bytes": peak,
        "cpu_ms_per_upload": {n: _rate(1000 * s, uploads) for n, s in cpu.items()},
        "idle": measured.idle,
        "raw": None,
        "raw_ratio": None,
        "generator": samples.generator(),
        "series": samples.series,
        "sweep": None,
    }


def _losses(totals: Totals, course: Course) -> dict[str, int]:
    """`lost`: acknowledged and not in the round's commit record, or offered and never answered
    though the device stayed. Of an attempt that was given up nothing is lost: it is repeated.
    """
    kept = {(one["round"], one["attempt"]) for one in course.committed}
    rows = [row for key, row in totals.rounds.items() if key in kept]
    unanswered = sum(row["unanswered"] for row in rows)
    unconfirmed = sum(row["unconfirmed"] for row in rows)
    return {
        "lost": totals.counts["missing"] + unconfirmed + unanswered,
        "unanswered": unanswered,
    }


def _rate(amount: float, seconds: float) -> float:
    return round(amount / seconds, 3) if seconds > 0 else 0.0
