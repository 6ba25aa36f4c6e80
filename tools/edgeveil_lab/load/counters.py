"""Counts of one generator process: uploads and their fate, durations, its own load."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.transfer import place_of

# Durations in logarithmic buckets, 2 % wide: merged without loss, a few KiB.
_SMALLEST_S = 1e-5
_STEP = math.log(1.02)
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


class DurationHistogram(Counter[int]):
    def add(self, duration_s: float) -> None:
        self[round(math.log(max(duration_s, _SMALLEST_S)) / _STEP)] += 1

    def percentile(self, share: float) -> float | None:
        """Return the duration that this share does not exceed, 2 % exact; None if empty."""
        buckets, rank = sorted(self), math.ceil(share * self.total())
        seen = accumulate(self[bucket] for bucket in buckets)
        found = (bucket for bucket, count in zip(buckets, seen, strict=True) if count >= rank)
        return next((math.exp(bucket * _STEP) for bucket in found), None)

    def summary(self) -> dict[str, float | None]:
        """Return `p50`, `p95`, `p99` and `max` in seconds; None if empty."""
        found = {name: self.percentile(share) for name, share in _SHARES.items()}
        return {name: s if s is None else round(s, 6) for name, s in found.items()}

    @classmethod
    def merged(cls, parts: Iterable[DurationHistogram]) -> DurationHistogram:
        result = cls()
        for part in parts:
            result.update(part)
        return result


RoundKey = tuple[int, int]  # round and attempt of the one job
_REMEMBERED = 8  # newest rounds, kept and reported


@dataclass
class _RoundCounters:
    """Counts of one attempt at one round in this process; times are seconds since 1970."""

    first_offer_s: float | None = None
    last_ack_s: float | None = None
    offered: int = 0
    acknowledged: int = 0
    answered: int = 0
    counted: int = 0
    missing: int = 0
    counted_sum: float = 0.0  # of all values of the counted uploads
    upload_bytes: int = 0
    upload_messages: int = 0


@dataclass
class _OfferedUpload:
    """One upload: its segments' hashes, the time of its first offer, the proxy's answer."""

    hashes: tuple[bytes, ...]
    offered_s: float
    total: float = 0.0  # of its values
    status: str = ""  # of the proxy's answer; empty: none yet
    away: bool = False  # the device lost its connection before the answer


@dataclass
class UploadCounters:
    """All counts of a process; uploads are kept until their round's commit record."""

    connected: int = 0
    connects: int = 0
    failed: int = 0
    reconnects: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    offered: int = 0
    acknowledged: int = 0
    counted: int = 0
    missing: int = 0
    contradicted: int = 0  # held, then refused
    repeated: int = 0  # in commit records: every generator reads the same
    refused: Counter[str] = field(default_factory=Counter)
    connect_s: DurationHistogram = field(default_factory=DurationHistogram)
    ack_s: DurationHistogram = field(default_factory=DurationHistogram)
    counted_s: DurationHistogram = field(default_factory=DurationHistogram)
    first_dial_s: float | None = None
    last_up_s: float | None = None
    rounds: dict[RoundKey, _RoundCounters] = field(default_factory=dict)
    _sent: dict[RoundKey, dict[bytes, _OfferedUpload]] = field(default_factory=dict)
    _committed: dict[RoundKey, set[int]] = field(default_factory=dict)  # pieces that were read
    _accepted: dict[RoundKey, set[bytes]] = field(default_factory=dict)  # of the newest rounds

    def round(self, at: RoundId) -> _RoundCounters:
        return self.rounds.setdefault((at.round, at.attempt), _RoundCounters())

    def offer(
        self, at: RoundId, blob: bytes, hashes: tuple[bytes, ...], now_s: float, total: float = 0
    ) -> None:
        row = self.round(at)
        row.offered += 1
        row.first_offer_s = row.first_offer_s or now_s
        self.offered += 1
        sent = self._sent.setdefault((at.round, at.attempt), {})
        sent[blob] = _OfferedUpload(hashes, now_s, total)

    def ack(self, at: RoundId, blob: bytes, status: str, reason: str, now_s: float) -> None:
        """Count the proxy's answer; refusing a held upload later is a contradiction."""
        sent = self._sent.get((at.round, at.attempt), {}).get(blob)
        if sent is None:
            return
        if sent.status:
            self.contradicted += sent.status == "held" and status in ("refused", "duplicate")
            return
        sent.status, row = status, self.round(at)
        row.answered += 1
        if status != "held":
            self.refused[f"upload: {reason or status}"] += 1
            return
        row.acknowledged += 1
        row.last_ack_s = now_s
        self.acknowledged += 1
        self.ack_s.add(now_s - sent.offered_s)

    def away(self, at: RoundId, blob: bytes, *, away: bool = True) -> None:
        """Mark whether an unanswered upload's device is disconnected."""
        sent = self._sent.get((at.round, at.attempt), {}).get(blob)
        if sent is not None and not sent.status:
            sent.away = away

    def commit(self, at: RoundId, hashes: bytes, place: int = 0, places: int = 1) -> None:
        """Match a commit record, or piece `place` of `places`, with the uploads sent."""
        key = (at.round, at.attempt)
        read = self._committed.setdefault(key, set())
        if place in read:
            return
        read.add(place)
        listed = [hashes[i : i + 32] for i in range(0, len(hashes), 32)]
        accepted = set(listed)
        again = sum(len(accepted & earlier) for earlier in self._accepted.values())
        self.repeated += len(listed) - len(accepted) + again
        self._accepted.setdefault(key, set()).update(accepted)
        if len(self._accepted) > _REMEMBERED:
            del self._accepted[next(iter(self._accepted))]
        row, uploads = self.round(at), self._sent.pop(key, {})
        for blob, sent in uploads.items():
            if places > 1 and place_of(sent.hashes[0], places) != place:
                self._sent.setdefault(key, {})[blob] = sent
            elif accepted.issuperset(sent.hashes):
                self.counted += 1
                row.counted += 1
                row.counted_sum += sent.total
            elif sent.status == "held":
                self.missing += 1
                row.missing += 1
            elif not sent.status:  # its answer may still arrive
                self._sent.setdefault(key, {})[blob] = sent

    @property
    def offering(self) -> bool:
        """Whether the newest attempt has an upload, and no commit record yet."""
        key = next(reversed(self.rounds), None)
        return key is not None and key not in self._committed and self.rounds[key].offered > 0

    @property
    def pending(self) -> bool:
        """Whether an upload of the newest attempt has no answer yet."""
        key = next(reversed(self.rounds), None)
        return key is not None and self.rounds[key].offered > self.rounds[key].answered

    @property
    def waiting(self) -> int:
        return sum(s.status in ("", "held") for row in self._sent.values() for s in row.values())

    def snapshot(self) -> dict[str, Any]:
        """Return all counts and the newest rounds; older rounds are dropped."""
        found = {name: value for name, value in vars(self).items() if name[0] != "_"}
        found |= {"waiting": self.waiting, "rounds": {k: self._round(k) for k in self.rounds}}
        for key in sorted(self.rounds)[:-_REMEMBERED]:
            del self.rounds[key]
            self._sent.pop(key, None)
            self._committed.pop(key, None)
        return found

    def _round(self, key: RoundKey) -> dict[str, Any]:
        remaining = self._sent.get(key, {}).values()
        return {
            **asdict(self.rounds[key]),
            "unconfirmed": sum(s.status == "held" for s in remaining),
            "unanswered": sum(not s.status and not s.away for s in remaining),
        }


_SCHEDSTAT = Path("/proc/self/schedstat")


@dataclass
class GeneratorLoad:
    """Seconds while uploads are in progress; `waited_s`: ready to run without a free core."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    waited_s: float = 0.0
    _before: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def busy(self) -> float:
        """Share of the time in which the process ran or waited for a core."""
        return (self.cpu_s + self.waited_s) / self.wall_s if self.wall_s > 0 else 0.0

    def look(self, *, counts: bool) -> None:
        """Read the clocks; add the time since the last look if it `counts`."""
        waited_s = 0.0
        with suppress(OSError, ValueError, IndexError):  # a kernel without schedstat
            waited_s = int(_SCHEDSTAT.read_text("ascii").split()[1]) / 1e9
        before, now = self._before, (time.monotonic(), time.process_time(), waited_s)
        self._before = now
        if counts:
            self.wall_s += now[0] - before[0]
            self.cpu_s += now[1] - before[1]
            self.waited_s += now[2] - before[2]
