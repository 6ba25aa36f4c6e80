"""Durations in logarithmic buckets: merges without loss, 2 % wide, a few KiB however many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

_SMALLEST_S = 1e-5
_STEP = math.log(1.02)
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Histogram:
    """Counts durations. `jitter` is the mean change of a device from its last one to the next."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.max_s = 0.0
        self._changes_s, self._changes = 0.0, 0

    def add(self, duration_s: float, before_s: float | None = None) -> None:
        """One more; `before_s` is what the same device took the last time."""
        self.buckets[_bucket(duration_s)] += 1
        self.max_s = max(self.max_s, duration_s)
        if before_s is not None:
            self._changes_s += abs(duration_s - before_s)
            self._changes += 1

    @property
    def count(self) -> int:
        """How many there are."""
        return self.buckets.total()

    def percentile(self, share: float) -> float:
        """The duration that this share does not exceed, 2 % exact; 0 without any."""
        rank, seen = math.ceil(share * self.count), 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min(_middle_s(bucket), self.max_s)
        return 0.0

    def summary(self) -> dict[str, float]:
        """`p50`, `p95`, `p99`, `max` and `jitter`, seconds."""
        found = {name: round(self.percentile(share), 6) for name, share in _PERCENTILES.items()}
        jitter_s = self._changes_s / self._changes if self._changes else 0.0
        return {**found, "max": round(self.max_s, 6), "jitter": round(jitter_s, 6)}

    def to_plain(self) -> dict[str, Any]:
        """For a report to the leader."""
        return {
            "buckets": list(self.buckets.items()),
            "max_s": self.max_s,
            "changes_s": self._changes_s,
            "changes": self._changes,
        }

    @classmethod
    def merged(cls, plains: Iterable[dict[str, Any]]) -> Histogram:
        """All of them in one."""
        result = cls()
        for plain in plains:
            for bucket, count in plain["buckets"]:
                result.buckets[int(bucket)] += int(count)
            result.max_s = max(result.max_s, float(plain["max_s"]))
            result._changes_s += float(plain["changes_s"])
            result._changes += int(plain["changes"])
        return result


def _bucket(duration_s: float) -> int:
    return 0 if duration_s <= _SMALLEST_S else 1 + int(math.log(duration_s / _SMALLEST_S) / _STEP)


def _middle_s(bucket: int) -> float:
    return 0.0 if bucket == 0 else _SMALLEST_S * math.exp((bucket - 0.5) * _STEP)
