"""`report.html`: one run on one page that needs nothing else; the job's page, frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeveil.jobs.shuffle_amplification import ShuffleCredit
from edgeveil.pages.frozen import frozen
from edgeveil.pages.parts import Json
from edgeveil_cloud.job_view import JobDetails, RunPart, job_view
from edgeveil_tools.report.holdings import Holdings, held_section
from edgeveil_tools.result import MEASURED_ON, summary, write_whole


def write_report(
    result: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    path: Path,
    held: Holdings | Json | None = None,
) -> None:
    """Write the page from the content of `result.json` and `events.jsonl`, and what was dealt: as
    counted now, or as an earlier page of the same run has it."""
    view = report_view(result, events, held)
    write_whole(path, frozen(view, summary(result)).encode())


def report_view(
    result: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    held: Holdings | Json | None = None,
) -> Json:
    """What the page shows."""
    published = result["final"]["measured_on"] == MEASURED_ON[True]
    engine = result.get("engine") or {}
    run = RunPart(
        devices=result["devices"],
        infer_only=result["infer_only"],
        seconds=result["seconds"],
        broker=result["broker"] or "no broker",
        simulated=result["simulated"],
        engine=str(engine.get("name", "")),
        reference=result["reference"]["rounds"],
        reference_note=result["reference"]["note"],
        measured_on="" if published else result["final"]["measured_on"],
        memory_bytes=result["memory_peak_bytes"],
        hops=result["bytes"],
        versions=result["versions"],
        held=held_section(held, published) if isinstance(held, Holdings) else held,
    )
    facts = JobDetails(
        result["job"],
        result["status"],
        result["reason"],
        privacy=result["privacy"],
        planned=False,
        seen=result.get("seen", ()),
        shuffle=[str(ShuffleCredit(**credit)) for credit in result.get("shuffle", ())],
        aggregation_note=(result.get("aggregation") or {}).get("note", ""),
        run=run,
    )
    return job_view(facts, events)
