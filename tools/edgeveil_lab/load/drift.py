"""Whether memory stays flat: a line through each process's samples after the warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

WARM_UP_SHARE = 0.2
LEAST_SECONDS = 60.0
LEAST_SAMPLES = 30
MIB = 1 << 20
FLAT_MIB_PER_HOUR = 16.0
"""Growth below which memory counts as flat."""


@dataclass(frozen=True)
class Drift:
    """Growth of one process in MiB an hour by least squares, and its standard error.

    Samples of memory follow each other closely, so the error is that of means over blocks of a
    tenth of the time, taken as independent.
    """

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


def drifts(result: Mapping[str, Any]) -> list[Drift]:
    """One for each process of a test over time; none where it was too short to tell."""
    series = result["series"] if result["options"].get("minutes") else []
    names = dict.fromkeys(name for sample in series for name in sample.get("rss_bytes", {}))
    found = []
    for name in names:
        points = [(s["t_s"], s["rss_bytes"][name]) for s in series if name in s["rss_bytes"]]
        times, values = np.array(points, np.float64).T
        kept = times >= times[0] + WARM_UP_SHARE * (times[-1] - times[0])
        if kept.sum() >= LEAST_SAMPLES and np.ptp(times[kept]) >= LEAST_SECONDS:
            found.append(Drift(name, *_slope(times[kept] / 3600, values[kept] / MIB)))
    return found


def _slope(hours: np.ndarray[Any, Any], mib: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Slope of the line through means over ten blocks, and its standard error."""
    x = np.array([block.mean() for block in np.array_split(hours, 10)])
    y = np.array([block.mean() for block in np.array_split(mib, 10)])
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    rest = y - y.mean() - slope * (x - x.mean())
    return slope, float(np.sqrt((rest**2).sum() / (len(x) - 2) / spread))
