"""`report.html`: one run on a self-contained page, the job's page frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import UsageError
from edgeveil.jobs import Job
from edgeveil.jobs.shuffle_amplification import ShuffleCredit
from edgeveil.pages.frozen import frozen, thawed
from edgeveil.pages.parts import Json, heat, paragraph, section
from edgeveil.parts.partitions.dealing import low_quality_devices
from edgeveil_cloud.job_view import JobDetails, RunPart, job_view
from edgeveil_tools.local.data import dealt
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.result import (
    MEASURED_ON,
    UNPROTECTED,
    Result,
    audit_text,
    summary,
    write_whole,
    writing,
)

HELD = "held"  # section of records by device
MOST_COLUMNS = 120  # of its picture; more devices share columns
MOST_CLASSES = 60


def draw_report(
    result: Result, events: Sequence[Mapping[str, Any]], dealing: tuple[Job, LocalRun] | None
) -> None:
    """Write the page of a run that has just ended, with its partition if `dealing` is given."""
    held = None
    if dealing is not None and dealing[0].data.target is None:
        published = result.content["final"]["measured_on"] == MEASURED_ON[True]
        held = held_section(holdings(*dealing), published)
    fix = "free some disk space, then run edgeveil report on this folder"
    with writing(result.report, fix):
        write_report(result.content, events, result.report, held)


def draw_again(result: Result, path: Path) -> None:
    """Write the page from its run's files; the partition comes from its earlier page."""
    try:
        events = result.events
    except (OSError, ValueError) as error:
        where = str(result.folder / "events.jsonl")
        raise UsageError("its events cannot be read", where=where) from error
    there = result.report.is_file()
    drawn = thawed(result.report.read_text("utf-8", "replace")) if there else None
    held = [one for one in (drawn or {}).get("sections", ()) if one.get("id") == HELD]
    write_report(result.content, events, path, *held[:1])


def write_report(
    result: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    path: Path,
    held: Json | None = None,
) -> None:
    write_whole(path, frozen(report_view(result, events, held), summary(result)).encode())


def report_view(
    result: Mapping[str, Any], events: Sequence[Mapping[str, Any]], held: Json | None = None
) -> Json:
    published = result["final"]["measured_on"] == MEASURED_ON[True]
    run = RunPart(
        devices=result["devices"],
        infer_only=result["infer_only"],
        seconds=result["seconds"],
        broker=result["broker"] or "no broker",
        simulated=result["simulated"],
        engine=str((result.get("engine") or {}).get("name", "")),
        reference=result["reference"]["rounds"],
        reference_note=result["reference"]["note"],
        measured_on="" if published else result["final"]["measured_on"],
        memory_bytes=result["memory_peak_bytes"],
        hops=result["bytes"],
        versions=result["versions"],
        held=held,
        audit=audit_text(result["audit"]) if result.get("audit") else "",
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


class Holdings(NamedTuple):
    """Dealt records (devices, classes) by the labels that devices see, and low-quality devices."""

    counts: NDArray[np.int64]
    low_quality: NDArray[np.int64]
    kind: str


def holdings(job: Job, run: LocalRun) -> Holdings:
    records, shares = dealt(job, run)
    classes = job.data.classes
    counts = np.zeros((len(shares), classes), np.int64)
    for row, share in zip(counts, shares, strict=True):
        y = records.y[share]
        row[:] = np.bincount(y[(y >= 0) & (y < classes)], minlength=classes)
    poor = low_quality_devices(run.devices, run.partition, run.seed)
    return Holdings(counts, poor, run.partition.kind)


def held_section(held: Holdings, published: bool) -> Json:
    what, were = ("public data set", "was") if published else ("records", "were")
    count, poor = len(held.low_quality), ""
    if count:
        poor = f" The {count} devices in red have low-quality records, with wrong classes."
    text = (
        f"How the {what} of this run {were} assigned to devices: {held.kind}.{poor} A real fleet"
        " cannot show this, because records never leave their device."
    )
    warning = f"Exact counts, {UNPROTECTED}."
    before = [paragraph(text), None if published else paragraph(warning, "bad")]
    return section(HELD, "Records by device", [holdings_picture(held)], before=before)


def holdings_picture(held: Holdings) -> Json:
    """Draw devices left to right, low quality last in shared columns; class 0 lowest."""
    devices, classes = held.counts.shape
    each, high = -(-devices // MOST_COLUMNS), -(-classes // MOST_CLASSES)
    poor = np.isin(np.arange(devices), held.low_quality)
    kinds = [np.arange(devices)]
    if each > 1:
        kinds = [np.flatnonzero(~poor), np.flatnonzero(poor)]
    groups = [of[k : k + each] for of in kinds for k in range(0, len(of), each)]
    counts = np.stack([held.counts[group].sum(axis=0) for group in groups])
    rows = [(low, min(low + high, classes)) for low in range(0, classes, high)][::-1]
    return heat(
        "Records by device and class",
        [counts[:, low:end].sum(axis=1).tolist() for low, end in rows],
        [str(low) if end == low + 1 else f"{low}–{end - 1}" for low, end in rows],
        [f"{of[0] + 1}…{of[-1] + 1}" if len(of) > 1 else str(of[0] + 1) for of in groups],
        ("class", "device" if each == 1 else f"devices, {each} to a column"),
        red=[k for k, group in enumerate(groups) if poor[group].all()],
        top=[int(total) for total in counts.sum(axis=1)],
    )
