"""A job's events on their way to trackers: each in a thread of its own, behind a bounded queue.

A tracking server may be slow or away: that is told once, and the job neither waits nor fails.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeveil.units import seconds_text
from edgeveil_tools.tracking.tracker import (
    Metrics,
    RunOutcome,
    TrackedRun,
    TrackTarget,
    flat,
    hidden,
)

WAITING = 1000  # rounds that may wait for one tracker
CLOSE_S = 30.0  # for all of them to have everything, once the run has ended
_ENDS = ("job_completed", "job_failed", "job_cancelled")


def tracked(
    name: str, job: Mapping[str, Any], privacy: Mapping[str, Any], key: str = ""
) -> TrackedRun:
    """A run by its job and the price of its whole plan, both as plain values."""
    return TrackedRun(name, {**dict(flat(job)), **dict(flat(privacy, "planned."))}, key)


@dataclass
class _Feed:
    """One tracker, its thread and what waits for it."""

    target: TrackTarget
    run: TrackedRun
    complaints: deque[str]
    items: queue.Queue[tuple[Metrics, int] | RunOutcome] = field(
        default_factory=lambda: queue.Queue(WAITING)
    )
    given_up: bool = False

    def start(self) -> threading.Thread:
        name = f"track-{self.target.scheme}"
        thread = threading.Thread(target=self._work, daemon=True, name=name)
        thread.start()
        return thread

    def put(self, item: tuple[Metrics, int] | RunOutcome, wait_s: float = 0.0) -> None:
        if self.given_up:
            return
        try:
            self.items.put(item, timeout=wait_s) if wait_s else self.items.put_nowait(item)
        except queue.Full:
            self.give_up("is too slow", "look at the server, or track to a folder of this machine")

    def give_up(self, why: str, fix: str) -> None:
        if not self.given_up:
            self.given_up = True
            text = f"Tracking to {self.target} stops: {why}. The job goes on; {fix}"
            self.complaints.append(text)

    def _work(self) -> None:
        try:
            tracker = self.target.tracker()
            tracker.begin(self.run)
            while True:
                item = self.items.get()
                if isinstance(item, RunOutcome):
                    tracker.end(item)
                    return
                tracker.log(*item)
        except BaseException as error:  # whatever libraries of others raise, SystemExit too
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            fix = "see that it answers, and may be written to"
            self.give_up(hidden(said)[:200], fix)


class Tracking:
    """Feeds all trackers of one run. No method waits, but `close`."""

    def __init__(self, targets: Sequence[TrackTarget], run: TrackedRun) -> None:
        self._complaints: deque[str] = deque()
        self._feeds = [_Feed(target, run, self._complaints) for target in targets]
        self._threads = [feed.start() for feed in self._feeds]
        self.ended = ""
        """How the job ended, by its events."""
        self.privacy: Mapping[str, Any] = {}
        """Both guarantees of what was spent, by the event of its end."""
        self.final: Mapping[str, Any] = {}
        """What came of it, by the same."""
        self._figures: Metrics = {}  # of the newest tested model

    def take(self, event: Mapping[str, Any]) -> None:
        """The job's next event."""
        kind, data = event["type"], event["data"]
        if kind == "exchange_committed":
            step = int(data["number"])
            self._figures = figures_of(data) or self._figures
            for feed in self._feeds:
                feed.put((metrics_of(data), step))
        elif kind in _ENDS:
            self.ended = kind.removeprefix("job_")
            self.privacy, self.final = data.get("privacy") or {}, data.get("final") or {}

    def complaints(self) -> list[str]:
        """What is to be told since it was asked last."""
        found = []
        while self._complaints:
            found.append(self._complaints.popleft())
        return found

    def leave(self) -> None:
        """Hand over nothing more: somebody else goes on with the run."""
        for feed in self._feeds:
            feed.given_up = True

    def close(
        self,
        status: str,
        privacy: Mapping[str, Any],
        metrics: Metrics | None = None,
        files: Sequence[Path] = (),
        wait_s: float = CLOSE_S,
    ) -> list[str]:
        """Hand over the outcome, with the newest figures as final, and wait for the trackers, but
        not for long; what is to be told."""
        facts = {key: str(value) for key, value in flat(privacy, "privacy.")}
        there = [path for path in files if path.is_file()]
        final = {f"final.{name}": value for name, value in self._figures.items()}
        outcome = RunOutcome(status, facts, {**final, **(metrics or {})}, there)
        end_s = time.monotonic() + wait_s
        for feed in self._feeds:
            feed.put(outcome, max(0.01, end_s - time.monotonic()))
        for feed, thread in zip(self._feeds, self._threads, strict=True):
            thread.join(max(0.0, end_s - time.monotonic()))
            if thread.is_alive():
                feed.give_up(
                    f"has not taken all within {seconds_text(wait_s)}", "look at the server"
                )
        return self.complaints()


def metrics_of(data: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a committed exchange; what is not known is left out."""
    federated = data.get("federated") or {}
    clusters = data.get("clusters") or {}
    if data["phase"] == "cluster":
        told = {f"clusters/{key}": value for key, value in clusters.items()}
        return _numbers({**told, "cluster_score": clusters.get("score")})
    if data["phase"] == "evaluate":  # beside those of the round itself, not in their place
        shown = {key: value for key, value in federated.items() if key not in ("round", "leading")}
        told = {f"federated/{key}": value for key, value in shown.items()}
        return {key: float(value) for key, value in told.items() if isinstance(value, int | float)}
    found: dict[str, Any] = {
        **{key: data.get(key) for key in ("accuracy", "loss", "uploads", "declined", "seconds")},
        **{f"epsilon.{key}": value for key, value in data.get("epsilon", {}).items()},
        **{f"bytes.{key}": value for key, value in data.get("bytes", {}).items()},
        "cluster_score": clusters.get("score"),
    }
    return {**_numbers(found), **figures_of(data)}


def figures_of(data: Mapping[str, Any]) -> dict[str, float]:
    """Those of a tested model that are one number each, beside accuracy and loss."""
    figures = data.get("figures") or {}
    error = (figures.get("calibration") or {}).get("error")
    return _numbers({**figures, "calibration_error": error})


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}
