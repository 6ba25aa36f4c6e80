"""Progress, events and result of a run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from edgeveil.errors import EdgeVeilError, JobFailed
from edgeveil.evaluation.figures import (
    ACCURACY,
    AUC,
    RMSE,
    evaluation_text,
    leading_of,
    leading_text,
)
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.shuffle_amplification import shuffled
from edgeveil.jobs.who_sees import who_sees
from edgeveil.parts.round import EVALUATIONS
from edgeveil.privacy.guarantee import up
from edgeveil.protocol.cloud_reasons import BY_ITSELF, RESUME
from edgeveil_tools.local.data import is_published
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.result import RunEvents, build, finite, privacy_of_plan
from edgeveil_tools.tracking.feed import Tracking

# Keys of ε in a round's event.
_TRAINING, _INFERENCE = ("training", "collusion"), ("inference", "inference_record")


@dataclass
class RunProgress:
    """The current state of a run; it changes in place, so copy values to keep.

    ε are planned values so far, None if unproven; `inference_record_epsilon` is per record where
    the unit is a device, `collusion_epsilon` is training's if all others collude. `kind` is the
    reason of the call: `doing` for the next step, `committed` for a round, `note` for a line to
    keep, `look` several times a second in between. `line` is the text to show."""

    all_rounds: int
    rounds: int
    devices: int
    doing: str = "starting"
    committed: int = 0
    round: int = 0
    online: int = 0
    uploads: int = 0
    declined: int = 0
    selected: int | None = None
    accuracy: float | None = None
    rmse: float | None = None  # of a numeric label
    auc: float | None = None  # of an anomaly job
    figures: Mapping[str, Any] | None = None  # of the last committed round's test
    federated: str = ""  # newest evaluation on the devices' own records
    training_epsilon: float | None = None
    inference_epsilon: float | None = None
    training_unit: str = "record"
    inference_unit: str = "record"
    inference_record_epsilon: float | None = None
    collusion_epsilon: float | None = None
    evaluating: bool = False  # whether the newest round was an evaluation
    memory_bytes: int = 0
    elapsed_s: float = 0.0
    kind: Literal["doing", "committed", "note", "look"] = "doing"
    line: str = ""

    @property
    def leading(self) -> tuple[str, float | None]:
        """Name and value of the figure that measures the model."""
        if self.auc is not None:
            return AUC, self.auc
        return (ACCURACY, self.accuracy) if self.rmse is None else (RMSE, self.rmse)


Listener = Callable[[RunProgress], None]


def ignore_progress(_progress: RunProgress) -> None:
    """Ignore progress: the default listener."""


class RunStopped(EdgeVeilError):  # noqa: N818 - the state's name
    """The run was stopped before its job ended."""


def planned_epsilon(view: RunProgress) -> str:
    """Return both planned ε so far as text, per training's unit, inference's if it differs."""
    spent, unit = view.inference_epsilon, view.inference_unit
    if view.inference_record_epsilon is not None:
        spent, unit = view.inference_record_epsilon, "record"
    training, inference = ("–" if e is None else up(e, 3) for e in (view.training_epsilon, spent))
    if view.training_epsilon is None and not spent:
        return "no proven ε"
    other = f" per {unit}" if spent and unit != view.training_unit else ""
    return f"planned ε per {view.training_unit}: training {training}, inference {inference}{other}"


class RunLog:
    """Log of one job: writes `events.jsonl` to `out`, calls `listener`; `stop` ends the run."""

    def __init__(
        self,
        job: Job,
        run: LocalRun,
        out: Path,
        listener: Listener = ignore_progress,
        stop: threading.Event | None = None,
    ) -> None:
        self.plan, self.record = compile_job(job), RunEvents()
        self._run, self._out = run, out
        self._whole = self.plan.quote()
        self.view = RunProgress(len(self.plan.all_rounds), self.plan.rounds, run.devices)
        self._listener, self._started_s = listener, time.monotonic()
        self._stop = stop or threading.Event()
        self.tracking: Tracking | None = None

    def look(self) -> None:
        """Report progress; raises RunStopped if the run is to end."""
        if self._stop.is_set():
            raise RunStopped("the run was stopped")
        for line in self.tracking.complaints() if self.tracking else ():
            self.note(line)
        self._notify("look", self.view.line)

    def note(self, line: str) -> None:
        self._notify("note", line)

    def doing(self, what: str) -> None:
        self.view.doing = what
        self._notify("doing", what)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _notify(self, kind: Literal["doing", "committed", "note", "look"], line: str) -> None:
        self.view.kind, self.view.line, self.view.elapsed_s = kind, line, self.elapsed_s
        self._listener(self.view)

    def take(self, event: dict[str, Any]) -> None:
        event = finite(event)
        with (self._out / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event, allow_nan=False) + "\n")
        self.record.take(event)
        if self.tracking:
            self.tracking.take(event)
        view, data = self.view, event["data"]
        if event["type"] == "broadcast" and data.get("kind") == "round":
            view.selected, view.uploads, view.declined = data.get("selected"), 0, 0
            view.doing = str(data.get("round"))
        elif event["type"] == "exchange_committed":
            self._committed(data)
        elif event["type"] == "round_repeated":
            self.doing(f"{view.doing} repeated: {data.get('why', '')}")

    def _committed(self, data: Mapping[str, Any]) -> None:
        view, record, quote = self.view, self.record, self._whole
        view.committed, view.round = record.committed, len(record.rounds)
        view.uploads, view.declined = data["uploads"], data.get("declined", 0)
        last = record.rounds[-1] if record.rounds else {}
        view.accuracy, view.figures = last.get("accuracy"), last.get("figures")
        view.rmse, view.auc = leading_of(RMSE, last), leading_of(AUC, last)
        view.evaluating = data["phase"] in EVALUATIONS
        spent = data.get("epsilon", {})
        if quote.training.proven:
            view.training_epsilon, view.collusion_epsilon = map(spent.get, _TRAINING)
        if quote.inference.proven:
            view.inference_epsilon, view.inference_record_epsilon = map(spent.get, _INFERENCE)
        view.training_unit, view.inference_unit = quote.training.unit, quote.inference.unit
        if lost := data.get("discarded"):
            self.note(
                f"round {view.committed}: {lost['uploads']} uploads refused, {lost['why']}; "
                f"each device has still spent {lost['price']['training']}"
            )
        parts = [f"{view.uploads} answered"]
        if view.declined:
            parts.append(f"{view.declined} declined")
        if view.evaluating:
            view.federated = evaluation_text(data)
            parts += [view.federated] * bool(view.federated)
        name, value = view.leading
        if value is not None:
            of = " on the cloud's test records" if view.evaluating else ""
            parts.append(f"{name} {leading_text(name, value, view.figures)}{of}")
        parts.append(planned_epsilon(view))
        self._notify("committed", f"{view.doing}: {', '.join(parts)}")

    def require_completed(self, job: str, declined: str = "") -> None:
        """Raise JobFailed unless the job completed, quoting `declined`, the first refusal."""
        if self.record.ended == "completed":
            return
        why = self.record.reason or f"the job was {self.record.ended}"
        why = why.partition(RESUME)[0]  # impossible: this run's cloud has ended
        why = why.partition(BY_ITSELF)[0].rstrip(" ,;")
        why = f"the job paused: {why}" if self.record.ended == "paused" else why
        what = f"{why}; the first refusal: {declined}" if declined else why
        raise JobFailed(what, where=job, fix=f"See the logs in {self._out / 'logs'}")

    @property
    def planned(self) -> dict[str, Any]:
        return privacy_of_plan(self.plan, self._whole)

    def result(self, reason: str, *, seconds: float | None = None, **facts: Any) -> dict[str, Any]:
        """Return the content of `result.json`; an empty `reason` means that the job completed."""
        plan, run = self.plan, self._run
        return build(
            self.record,
            job=plan.job.job,
            status="failed" if reason else "completed",
            reason=reason,
            devices=run.devices,
            infer_only=run.infer_only,
            seconds=self.elapsed_s if seconds is None else seconds,
            privacy=privacy_of_plan(plan, plan.spent(self.record.asked if reason else None)),
            published=is_published(plan.job, run),
            aggregation={"rule": plan.job.aggregation.name, "note": plan.aggregation_note},
            seen=[asdict(row) for row in who_sees(plan)],
            shuffle=[] if self.record.repeated else [asdict(c) for c in shuffled(plan)],
            **facts,
        )
