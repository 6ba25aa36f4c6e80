"""Rate limits, refusals and cool-downs per identity, judged by topic before decoding.

A device may send `device_messages_per_s`, in bursts of two seconds; excess is refused as `rate`.
Requested parts of uploads are not counted. Refusals that no correct device causes (`UNSOUND`)
count: too many in a window start a cool-down, which drops all its messages. Consecutive cool-downs
double, up to a cap. Since identities are topics, unverified, nothing here may do more than a broker
could by dropping messages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import PART_START
from edgeveil.protocol.proxy_uploads import OpenRequest

BURST_S = 2.0  # a silent device may send this time's messages at once
OTHERS = 1024  # records of identities that are not admitted
SHOWN = 100  # identities on a status page


@dataclass(frozen=True)
class ConductLimits:
    """More than `refusals` within `window_s` start a cool-down, doubled if consecutive."""

    messages_per_s: float = 200.0
    refusals: int = 1000
    window_s: float = 60.0
    cool_down_s: float = 30.0
    cool_down_cap_s: float = 600.0


# Reasons that a correct device never causes, unlike lateness or a full disk.
UNSOUND = frozenset(
    {
        "bad_digest",
        "bad_part",
        "forged",
        "large_parts",
        "malformed",
        "oversized",
        "oversized_blob",
        "rate",
        "tiny_parts",
        "unexpected_body",
        "unexpected_header",
        "unknown_signer",
        "unknown_version",
        "wrong_groups",
        "wrong_size",
    }
)


@dataclass(slots=True)
class _Record:
    seen_at: float = 0.0  # last message, in seconds since 1970; 0: none yet
    spoken_until_s: float = 0.0  # messages so far use the rate until then
    refused: Counter[str] = field(default_factory=Counter)
    window_from_s: float = 0.0
    unsound: int = 0  # counted refusals in the window
    cooling_until_s: float = 0.0
    repeats_until_s: float = 0.0  # cool-downs before then are doubled
    cool_downs: int = 0  # in a row
    request: int = 0  # last request for parts
    due: int = 0  # requested parts not received yet


class DeviceConduct:
    """A runtime's `Gate` for messages of devices; `asked(id)` returns the parts requested."""

    def __init__(
        self,
        limits: ConductLimits,
        enrolled: Callable[[str], bool],
        open_request: Callable[[str], OpenRequest | None],
        on_cool_down: Callable[[str], None] = lambda _device: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._wall_clock = wall_clock
        self._limits, self._each_s = limits, 1.0 / limits.messages_per_s
        self._burst_s = max(BURST_S, self._each_s)
        self._is_enrolled, self._open_request = enrolled, open_request
        self._on_cool_down, self._clock = on_cool_down, clock
        self._enrolled: dict[str, _Record] = {}
        self._others: dict[str, _Record] = {}

    def refusal(self, sender: fx.Address, frame: bytes) -> str | None:
        """Return `cooling_down`, `rate`, or None to accept the frame, as all of the cloud's."""
        if not isinstance(sender, fx.DeviceAddress):
            return None
        record, now_s = self._record(sender.id), self._clock()
        record.seen_at = self._wall_clock()
        if now_s < record.cooling_until_s:
            record.refused["cooling_down"] += 1
            return "cooling_down"
        if frame.startswith(PART_START) and self._is_due(record, sender.id):
            return None
        until_s = max(now_s, record.spoken_until_s) + self._each_s
        if until_s - now_s > self._burst_s:
            self.refused(sender, "rate")
            return "rate"
        record.spoken_until_s = until_s
        return None

    def refused(self, sender: fx.Address, reason: str) -> None:
        """Count a refusal; start a cool-down if there are too many."""
        if not isinstance(sender, fx.DeviceAddress):
            return
        record, now_s = self._record(sender.id), self._clock()
        record.refused[reason] += 1
        if reason not in UNSOUND or now_s < record.cooling_until_s:
            return
        if now_s - record.window_from_s >= self._limits.window_s:
            record.window_from_s, record.unsound = now_s, 0
        record.unsound += 1
        if record.unsound > self._limits.refusals:
            self._cool_down(record, now_s)
            if self._is_enrolled(sender.id):
                self._on_cool_down(sender.id)

    def keep_enrolled(self) -> None:
        kept = self._enrolled.items()
        self._enrolled = {device: record for device, record in kept if self._is_enrolled(device)}

    @property
    def cooling_down(self) -> int:
        now_s, records = self._clock(), (*self._enrolled.values(), *self._others.values())
        return sum(now_s < record.cooling_until_s for record in records)

    def refused_by_device(self) -> list[dict[str, Any]]:
        now_s, both = self._clock(), {**self._others, **self._enrolled}
        refused = {device: record for device, record in both.items() if record.refused}
        most = sorted(refused.items(), key=lambda one: -one[1].refused.total())[:SHOWN]
        return [
            {
                "device": device,
                "enrolled": device in self._enrolled,
                "refused": dict(record.refused),
                "cooling_down_s": round(max(0.0, record.cooling_until_s - now_s), 1),
                "cool_downs": record.cool_downs,
            }
            for device, record in most
        ]

    def last_seen(self, devices: Iterable[str]) -> list[dict[str, Any]]:
        """Return devices' last messages (since 1970; None: none yet), oldest first."""
        seen = {one: r.seen_at if (r := self._enrolled.get(one)) else 0.0 for one in devices}
        first = sorted(seen.items(), key=lambda one: (one[1], one[0]))[:SHOWN]
        return [{"device": device, "seen_at": at or None} for device, at in first]

    def _is_due(self, record: _Record, device: str) -> bool:
        """Return whether this part was requested; the machine counts too late, after queueing."""
        open_request = self._open_request(device)
        if open_request is None:
            return False
        if open_request.number != record.request:
            record.request, record.due = open_request
        if not record.due:
            return False
        record.due -= 1
        return True

    def _record(self, device: str) -> _Record:
        record = self._enrolled.get(device)
        if record is not None:
            return record
        if self._is_enrolled(device):
            self._others.pop(device, None)  # earlier conduct no longer counts
            return self._enrolled.setdefault(device, _Record())
        record = self._others.get(device)
        if record is None:
            if len(self._others) >= OTHERS:
                del self._others[next(iter(self._others))]
            record = self._others[device] = _Record()
        return record

    def _cool_down(self, record: _Record, now_s: float) -> None:
        if now_s >= record.repeats_until_s:
            record.cool_downs = 0
        longer = 2.0 ** min(record.cool_downs, 40)
        lasts_s = min(self._limits.cool_down_s * longer, self._limits.cool_down_cap_s)
        record.cool_downs += 1
        record.cooling_until_s = now_s + lasts_s
        record.repeats_until_s = record.cooling_until_s + lasts_s
        record.window_from_s, record.unsound = record.cooling_until_s, 0
