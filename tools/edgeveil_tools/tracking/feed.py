"""Feed of a job's events to trackers: each in a thread of its own, with a bounded queue.

A slow or absent server is reported once; the job neither waits nor fails. A thread imports the
module `SCHEME_run` with the class `SchemeTracker(where, name, parameters)`, whose methods are
`log(metrics, step)` for each round (0: before round 1) and the final `end(status, facts,
files)`."""

from __future__ import annotations

import json
import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgeveil.errors import MissingExtraError, UsageError

EXAMPLES = ("mlflow:http://HOST:5000", "tensorboard:DIR")
WAITING = 1000  # rounds that may wait for one tracker
CLOSE_S = 30.0  # for all of them to have everything, once the run has ended


def check_target(text: str) -> None:
    """Raise UsageError unless SCHEME:PLACE, MissingExtraError without its library."""
    scheme, _, place = text.partition(":")
    where = f"--track {hidden(text)}"
    if scheme not in ("mlflow", "tensorboard") or not place:
        fix = f"write one of {', '.join(EXAMPLES)}"
        raise UsageError("is no tracker, or names no place", where=where, fix=fix)
    if find_spec(scheme) is None:
        what, fix = f"needs {scheme}, which is not installed", "pip install 'edgeveil[track]'"
        raise MissingExtraError(what, where=where, fix=fix)


def hidden(text: str) -> str:
    return re.sub(r"://\S*@", "://…@", text)  # one with @ or / in it, too


class _Feed(threading.Thread):
    def __init__(self, target: str, *run: Any) -> None:
        super().__init__(daemon=True, name=f"track-{target.partition(':')[0]}")
        self._target, self._run = target, run
        self._items: queue.Queue[tuple[Any, ...]] = queue.Queue(WAITING)
        self.complaints: list[str] = []
        self.start()

    def put(self, *call: Any, wait_s: float = 0.0) -> None:
        try:
            if not self.complaints:
                self._items.put(call, block=wait_s > 0, timeout=wait_s or None)
        except queue.Full:
            self.give_up("is too slow", "look at the server, or track to a folder of this machine")

    def give_up(self, why: str, fix: str) -> None:
        if not self.complaints:
            where = hidden(self._target)
            self.complaints.append(f"Tracking to {where} stops: {why}. The job continues; {fix}")

    def run(self) -> None:
        scheme, _, where = self._target.partition(":")
        try:
            module = import_module(f"edgeveil_tools.tracking.{scheme}_run")
            tracker = getattr(module, f"{scheme.title()}Tracker")(where, *self._run)
            method = ""
            while method != "end":
                method, *arguments = self._items.get()
                getattr(tracker, method)(*arguments)
        except BaseException as error:  # whatever libraries of others raise, SystemExit too
            text = str(error).strip().partition("\n")[0] or type(error).__name__
            self.give_up(hidden(text)[:200], "see that it answers, and may be written to")


class Tracking:
    """The trackers `targets` of a run; only `close` waits."""

    def __init__(
        self, targets: Iterable[str], name: str, job: Mapping[str, Any], planned: Mapping[str, Any]
    ) -> None:
        parameters = {**dict(flat(job)), **dict(flat(planned, "planned."))}
        self._feeds = [_Feed(target, name, parameters) for target in targets]
        self._reported, self._figures = 0, dict[str, float]()  # of the newest tested model

    def take(self, event: Mapping[str, Any]) -> None:
        if event["type"] == "exchange_committed":
            data = event["data"]
            self._figures = figures_of(data) or self._figures
            for feed in self._feeds:
                feed.put("log", metrics_of(data), int(data["number"]))

    def complaints(self) -> list[str]:
        """Return new lines to show; one per tracker, once."""
        found = [line for feed in self._feeds for line in feed.complaints]
        new, self._reported = found[self._reported :], len(found)
        return new

    def close(
        self,
        status: str,
        privacy: Mapping[str, Any],
        metrics: Mapping[str, float | None],
        files: Sequence[Path] = (),
        wait_s: float = CLOSE_S,
    ) -> list[str]:
        """Send the outcome, waiting at most `wait_s`; returns lines to show."""
        facts = {key: str(value) for key, value in flat(privacy, "privacy.")}
        final = {f"final.{name}": value for name, value in self._figures.items()}
        end_s, there = time.monotonic() + wait_s, [path for path in files if path.is_file()]
        for feed in self._feeds:
            feed.put("log", final | _numbers(metrics), 0, wait_s=wait_s)
            feed.put("end", status, facts, there, wait_s=wait_s)
        for feed in self._feeds:
            feed.join(max(0.0, end_s - time.monotonic()))
            if feed.is_alive():
                feed.give_up(f"has not taken all within {wait_s:g} s", "look at the server")
        return self.complaints()


def metrics_of(data: Mapping[str, Any]) -> dict[str, float]:
    """Return known figures of a committed round; those of an evaluation have own names."""
    federated, clusters = data.get("federated") or {}, data.get("clusters") or {}
    if data["phase"] == "evaluate":
        names = federated.keys() - {"round", "leading"}
        return _numbers({f"federated/{key}": federated[key] for key in names})
    if data["phase"] == "ask":
        columns = (data.get("drift") or {}).get("columns", ())
        return _numbers({f"drift/{one['column']}": one["distance"] for one in columns})
    score = {"cluster_score": clusters.get("score")}
    if data["phase"] == "cluster":
        return _numbers({f"clusters/{key}": value for key, value in clusters.items()} | score)
    found = {key: data.get(key) for key in ("accuracy", "loss", "uploads", "declined", "seconds")}
    blocks = {key: data.get(key, {}) for key in ("epsilon", "bytes")}
    return {**_numbers(found | dict(flat(blocks)) | score), **figures_of(data)}


def figures_of(data: Mapping[str, Any]) -> dict[str, float]:
    """Return single-number figures of a tested model, except accuracy and loss."""
    figures = data.get("figures") or {}
    error = (figures.get("calibration") or {}).get("error")
    return _numbers({**figures, "calibration_error": error})


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}


def flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested mappings as `block.key`, lists as JSON, lists of mappings numbered."""
    for key, value in plain.items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            value = {str(number): one for number, one in enumerate(value)}
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", json.dumps(value)
        else:
            yield f"{prefix}{key}", value if isinstance(value, int | float) else str(value or "")
