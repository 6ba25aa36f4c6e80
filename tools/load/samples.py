"""Figures of a running test, once a second: for the live view, for Prometheus, for the plots."""

from __future__ import annotations

import time
from typing import Any

from tools.load.leader import Leader, Totals
from tools.load.processes import Watch

_BUSY = 0.9
_LATE_S = 0.5


class Samples:
    """Keeps the series. `watch` knows the local processes."""

    def __init__(self, leader: Leader, watch: Watch) -> None:
        self._leader, self._watch = leader, watch
        self._began_s = self._last_s = time.monotonic()
        self._before: dict[str, int] = {}
        self.series: list[dict[str, Any]] = []
        self.busiest, self.latest_s = 0.0, 0.0
        self._busy: list[float] = []
        self._late = 0

    def take(self, phase: str, rounds_done: int, *, loaded: bool) -> dict[str, Any]:
        """One more sample; `loaded` while rounds are played, when saturation counts."""
        self._watch.add({n: p for n, p in self._leader.pids.items() if n not in self._names()})
        self._watch.look()
        totals, now_s = self._leader.totals(), time.monotonic()
        elapsed_s, self._last_s = max(now_s - self._last_s, 1e-3), now_s
        counts = totals.counts
        rates = {
            name: round((counts[name] - self._before.get(name, 0)) / elapsed_s, 1)
            for name in ("counted", "acknowledged", "bytes_up", "bytes_down")
        }
        self._before = counts
        if loaded:
            self._look_at_generators()
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
        return {**entry, "phase": phase, "rounds_done": rounds_done, **_live(totals)}

    def generator(self) -> dict[str, Any]:
        """How busy the generators were in the rounds, and whether they held the test back."""
        mean = sum(self._busy) / len(self._busy) if self._busy else 0.0
        late = self._late > max(1, len(self._busy) // 10)
        bottleneck = mean > _BUSY or late
        note = ""
        if mean > _BUSY:
            note = f"a generator used {100 * mean:.0f} % of a core: add --processes or hosts"
        elif late:
            note = (
                f"a generator's loop was up to {self.latest_s:.1f} s late: add --processes or hosts"
            )
        return {
            "processes": len(self._leader.reports),
            "busy_percent": round(100 * mean, 1),
            "busiest_percent": round(100 * self.busiest, 1),
            "lag_s": round(self.latest_s, 3),
            "bottleneck": bottleneck,
            "note": note,
        }

    def _look_at_generators(self) -> None:
        reports = self._leader.reports.values()
        busy = max((report.busy for report in reports), default=0.0)
        lag_s = max((report.lag_s for report in reports), default=0.0)
        self._busy.append(busy)
        self._late += lag_s > _LATE_S
        self.busiest, self.latest_s = max(self.busiest, busy), max(self.latest_s, lag_s)

    def _names(self) -> set[str]:
        return set(self._watch.cpu_s())


def _live(totals: Totals) -> dict[str, Any]:
    latency = totals.histogram("counted_s")
    return {
        "latency_s": {"p50": latency.percentile(0.5), "p99": latency.percentile(0.99)},
        "refused": dict(totals.refused),
    }
