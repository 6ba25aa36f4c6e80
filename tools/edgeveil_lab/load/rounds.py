"""A test's rounds, put together from the cloud's events and the generators' counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgeveil.errors import JobFailed

Merged = Mapping[tuple[int, int], Mapping[str, Any]]


@dataclass
class Course:
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
        """The committed rounds, as a result lists them."""
        return [_row(one, merged.get((one["round"], one["attempt"]), {})) for one in self.committed]


def _row(one: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
    begin_s, batch_s, end_s = (one[f"{n}_at_s"] for n in ("broadcast", "batch", "committed"))
    first_s = counts.get("first_offer_s") or batch_s
    last_s = min(counts.get("last_ack_s") or batch_s, batch_s)
    seconds = max(end_s - first_s, 1e-6)
    offered = max(1, int(counts.get("offered", 0)))
    return {
        **{name: one[name] for name in ("round", "attempt", "selected", "uploads")},
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
