"""Figures of a running test, once a second: for the live view, for Prometheus, for the plots."""

from __future__ import annotations

import time
from typing import Any

from edgeveil_lab.load.leader import Leader, Totals
from edgeveil_lab.load.processes import Watch
from edgeveil_lab.load.strain import Strain

_BUSY = 0.9
_LATE_S = 0.02  # two slices of its own work
_LATE_SHARE = 0.1  # of the time until an upload is acknowledged


class Samples:
    """Keeps the series. `watch` knows the local processes."""

    def __init__(self, leader: Leader, watch: Watch) -> None:
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
        return {**entry, "phase": phase, "rounds_done": rounds_done, **_live(totals)}

    def generator(self) -> dict[str, Any]:
        """How hard the generators worked while uploads were under way, and whether that held the
        test back.
        """
        strains = [report.strain for report in self._leader.reports.values()] or [Strain()]
        busy, late_s = max(s.busy for s in strains), max(s.mean_late_s for s in strains)
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
            "waited_percent": round(100 * max(_waited(s) for s in strains), 1),
            "late_s": round(late_s, 4),
            "latest_s": round(max(s.worst_s for s in strains), 3),
            "bottleneck": bool(note),
            "note": note,
        }


def _waited(strain: Strain) -> float:
    return strain.waited_s / strain.wall_s if strain.wall_s > 0 else 0.0


def _live(totals: Totals) -> dict[str, Any]:
    latency = totals.histogram("counted_s")
    return {
        "latency_s": {"p50": latency.percentile(0.5), "p99": latency.percentile(0.99)},
        "refused": dict(totals.refused),
    }
