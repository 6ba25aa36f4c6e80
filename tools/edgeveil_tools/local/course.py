"""The course of one run's job: its events as they come, kept, shown, and made into a result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from edgeveil.errors import JobFailed
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.shuffle_amplification import shuffled
from edgeveil.protocol.cloud_tasks import RESUME
from edgeveil_tools.local.data import is_published
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.reference import Reference
from edgeveil_tools.progress import Progress, View
from edgeveil_tools.result import Facts, Record, build, finite, privacy_of


class Course:
    """Follows one job. `out` gets `events.jsonl`; `stream` shows the progress."""

    def __init__(self, job: Job, run: LocalRun, out: Path, stream: IO[str]) -> None:
        self.plan, self.record = compile_job(job), Record()
        self._run, self._out = run, out
        self._whole = self.plan.quote()
        view = View(len(self.plan.exchanges), self.plan.rounds, run.devices)
        self.progress = Progress(view, stream)

    def take(self, event: dict[str, Any], reference: Reference | None = None) -> None:
        """Take the job's next event."""
        event = finite(event)
        self.record.take(event)
        with (self._out / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event, allow_nan=False) + "\n")
        view, data = self.progress.view, event["data"]
        if event["type"] == "broadcast" and data.get("kind") == "round":
            view.selected, view.uploads, view.declined = data.get("selected"), 0, 0
            view.doing = str(data.get("round"))
        elif event["type"] == "exchange_committed":
            view.committed, view.round = self.record.committed, len(self.record.rounds)
            view.uploads, view.declined = data["uploads"], data.get("declined", 0)
            view.accuracy = self.record.accuracy
            view.reference = reference.at(view.round) if reference else None
            spent, quote = data.get("epsilon", {}), self._whole
            view.training_epsilon = spent.get("training") if quote.training.proven else None
            view.inference_epsilon = spent.get("inference") if quote.inference.proven else None
            self.progress.committed()
        elif event["type"] == "round_repeated":
            self.progress.doing(f"{view.doing} again: {data.get('why', '')}")

    def require_completed(self, job: str, declined: str = "") -> None:
        """Raise JobFailed, with the job's own reason, unless it completed.

        `declined`: what the first device that declined told its owner, where that is known.
        """
        if self.record.ended != "completed":
            why = self.record.reason or f"the job was {self.record.ended}"
            why = why.partition(RESUME)[0].rstrip(" ,;")  # nobody can: this run's cloud has ended
            why = f"the job paused: {why}" if self.record.ended == "paused" else why
            raise JobFailed(
                f"{why}; first of all, {declined}" if declined else why,
                where=job,
                fix=f"What each party said is in {self._out / 'logs'}",
            )

    def result(
        self,
        reason: str,
        *,
        broker: str,
        protocol: int | None,
        memory_peak_bytes: int | None,
        reference: Sequence[float],
        bytes: Mapping[str, int],
        seconds: float | None = None,
        simulated: bool = False,
    ) -> dict[str, Any]:
        """The content of `result.json`; `reason` is empty when the job completed."""
        plan, run = self.plan, self._run
        event = plan.softmax_event()
        once = getattr(event, "epsilon", None)
        quote = plan.spent(self.record.asked if reason else None)
        return build(
            self.record,
            Facts(
                job=plan.job.job,
                status="failed" if reason else "completed",
                reason=reason,
                broker=broker,
                protocol=protocol,
                devices=run.devices,
                infer_only=run.infer_only,
                seconds=self.progress.elapsed_s if seconds is None else seconds,
                memory_peak_bytes=memory_peak_bytes,
                reference=reference,
                bytes=bytes,
                privacy=privacy_of(quote, float(once) if once is not None else None, event.unit),
                simulated=simulated,
                published=is_published(plan.job, run),
                aggregation={"rule": plan.job.aggregation.name, "note": plan.aggregation_note},
                shuffle=[] if self.record.repeated else [asdict(c) for c in shuffled(plan)],
            ),
        )
