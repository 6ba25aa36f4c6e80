"""Incremental summary, of bounded size, of a job's events from HTTP or `events.jsonl`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgeveil.evaluation.figures import GUESSING, baselines, leading
from edgeveil.pages.parts import thinned
from edgeveil.parts.round import ASK, EVALUATIONS

KEPT_EVENTS = 200  # shown on a page
KEPT_ATTEMPTS = 100
MOST_POINTS = 400  # per evaluation
EVALUATIONS_KEPT = 6  # the first and the newest
_ENDS = ("job_completed", "job_failed", "job_cancelled", "job_paused")
_RELEASED = ("release_promoted", "release_withdrawn")
_LONG = ("vectors", "labels")
_ROW = ("phase", "number", "attempt", "uploads", "accuracy", "loss", "seconds")


@dataclass(frozen=True)
class EvaluationPoints:
    """Uploads of one round's evaluation, at most MOST_POINTS: `points` of `rows`."""

    round: int
    scores: Mapping[str, Any]  # as in `exchange_committed`, without rows and labels
    points: list[list[float]]
    labels: list[int]
    rows: int


@dataclass
class JobHistory:
    """Takes events in order; a repeated event changes nothing."""

    rows: list[dict[str, Any]] = field(default_factory=list)  # committed rounds
    scores: list[dict[str, Any]] = field(default_factory=list)
    means: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[EvaluationPoints] = field(default_factory=list)
    attempts: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=KEPT_ATTEMPTS))
    void: Counter[str] = field(default_factory=Counter)  # refused segments by reason
    causes: Counter[str] = field(default_factory=Counter)  # of declines
    last: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    release: list[str] = field(default_factory=list)
    figures: Mapping[str, Any] = field(default_factory=dict)  # of the newest tested model
    figures_round: int = 0
    baselines: Mapping[str, float] = field(default_factory=dict)
    federated: list[Mapping[str, Any]] = field(default_factory=list)  # by round
    statistics: Mapping[str, Any] = field(default_factory=dict)  # the newest answers
    drift: Mapping[str, Any] = field(default_factory=dict)  # of those
    events: int = 0
    seq: int = 0
    doing: str = ""
    privacy: Mapping[str, Any] | None = None  # from the job's last end or pause
    _selected: int | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        seq = int(event.get("seq") or 0)
        if seq and seq <= self.seq:
            return
        self.seq, self.events = seq or self.seq, self.events + 1
        kind, data = str(event["type"]), event["data"]
        time_s = float(event.get("time") or 0.0)
        shown: Mapping[str, Any] = data
        if kind == "exchange_committed":
            shown = self._committed(data)
        elif kind == "broadcast" and data.get("kind") == "round":
            self._selected, self.doing = data.get("selected"), str(data.get("round", ""))
        elif kind == "round_repeated" or (kind == "job_paused" and data.get("answers")):
            why = str(data.get("why") or data.get("reason") or "")
            self.attempts.append({"round": self.doing, "why": why, **data.get("answers", {})})
        elif kind in _RELEASED:
            self.release.append(str(data.get("reason", "")))
        if kind in _ENDS:
            self.doing, self.privacy = "", data.get("privacy") or self.privacy
        self.last.append({"seq": seq, "time": time_s, "type": kind, "data": shown})

    def take_all(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            self.take(event)

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """Committed training rounds only."""
        return [row for row in self.rows if row["number"] and row["phase"] not in EVALUATIONS]

    @property
    def only_asks(self) -> bool:
        """Whether the job asks and learns nothing: its answers come in no round of their own."""
        return bool(self.statistics) and not any(row["phase"] == ASK for row in self.rows)

    @property
    def phases(self) -> list[str]:
        """Names of the rounds before round 1."""
        return [str(row["phase"]) for row in self.rows if not row["number"]]

    def _committed(self, data: Mapping[str, Any]) -> dict[str, Any]:
        uploads, selected = int(data["uploads"]), self._selected
        found, own = data.get("clusters"), data.get("federated") or None
        if own:  # only its leading figure, with its error
            led = str(own.get("leading", ""))
            names = ("leading", led, f"{led}_deviation") if led else ()
            own = {name: own[name] for name in names}
        row = {
            **{name: data.get(name) for name in _ROW},
            "led": leading(data),
            GUESSING: baselines(data.get("figures")),
            "uploads": uploads,
            "seconds": float(data.get("seconds") or 0.0),
            "attempt": data.get("attempt", 1),
            "declined": data.get("declined", 0),
            "selected": selected if selected is None or selected >= uploads else None,
            **{
                name: dict(data.get(name) or {})
                for name in ("causes", "bytes", "epsilon", "timeline", "cells")
            },
            "federated": own,
            # Only scores from sums; others are in `evaluations`.
            "clusters": found if found and found.get("upload") == "sums" else None,
        }
        if found := data.get("statistics"):
            self.statistics, self.drift = found, data.get("drift") or {}
        self.rows.append(row)
        self.void.update({str(why): int(n) for why, n in (data.get("refused") or {}).items()})
        self.causes.update(data.get("causes") or {})
        self._evaluate(data)
        if found := data.get("figures"):
            self.figures, self.baselines = found, baselines(found)
            self.figures_round = int(data["number"])
        return row

    def _evaluate(self, data: Mapping[str, Any]) -> None:
        number, found = {"round": int(data["number"])}, data.get("clusters") or {}
        if averaged := data.get("mean_softmax"):
            self.means.append({**averaged, **number})
        if own := data.get("federated"):
            self.federated.append({**own, **number})
        if found:
            kept = {name: value for name, value in found.items() if name not in _LONG}
            self.scores.append({**kept, **number})
        if not (vectors := found.get("vectors")):
            return
        picks = thinned(len(vectors), MOST_POINTS)
        labels = found.get("labels") or [-1] * len(vectors)
        points, of_them = [vectors[k] for k in picks], [labels[k] for k in picks]
        whole = EvaluationPoints(number["round"], self.scores[-1], points, of_them, len(vectors))
        self.evaluations.append(whole)
        if len(self.evaluations) > EVALUATIONS_KEPT:
            del self.evaluations[1]
