"""What must hold after the trust drill: each check is a pure function of the evidence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgeveil_cloud.stored_jobs import wire_id
from tests.chaos.checks import (
    ChaosFacts,
    CheckOutcome,
    acknowledged_counted,
    counted_once,
    jobs_complete,
    ledgers_exact,
    models_same,
    outcome,
    sums_right,
)
from tests.chaos.evidence import DeviceFacts, Evidence, JobFacts

_TRACE = re.compile(r"^Traceback \(most recent call last\):$", re.MULTILINE)


@dataclass
class DrillAct:
    """`steps`: time and text; `failed`: what it waited for in vain."""

    name: str
    at_s: float
    seconds: float = 0.0
    steps: list[tuple[float, str]] = field(default_factory=list)
    failed: str = ""


@dataclass
class DrillNotes:
    """`revoked`: box -> jobs before; `lost_stores`: of the cloud."""

    revoked: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lost_stores: list[Path] = field(default_factory=list)
    last_job: str = ""


@dataclass(frozen=True)
class DrillEvidence:
    """`gone`: processes that had ended by themselves; `late`: those that did not stop."""

    jobs: tuple[JobFacts, ...]
    boxes: Mapping[str, DeviceFacts]
    acts: Sequence[DrillAct]
    notes: DrillNotes
    logs: Mapping[str, str]
    gone: Sequence[str] = ()
    late: Sequence[str] = ()

    @property
    def remaining(self) -> dict[str, DeviceFacts]:
        """Devices that were not revoked."""
        return {n: device for n, device in self.boxes.items() if n not in self.notes.revoked}


def acts_played(found: DrillEvidence) -> Iterator[str | int]:
    """every act was played to its end, and nobody had to go to a device for it"""
    for act in found.acts:
        yield 1
        if act.failed:
            yield f"{act.name}: {act.failed}"


def nothing_for_nothing(found: DrillEvidence) -> Iterator[str | int]:
    """what a device paid for is counted in a committed round"""
    counted = {
        (job.wire.hex(), commit.index): set(commit.accepted)
        for job in found.jobs
        for commit in job.commits
    }
    for name, device in found.boxes.items():
        sent: dict[tuple[str, int], set[bytes]] = {}
        for receipt in device.receipts:
            at = (receipt.job_id.hex(), receipt.round)
            sent.setdefault(at, set()).update(receipt.segment_hashes)
        for at in device.links:
            yield 1
            if not sent.get(at, set()) & counted.get(at, set()):
                yield f"{name} paid for job {at[0][:8]} round {at[1]} and was not counted"


def revoked_out(found: DrillEvidence) -> Iterator[str | int]:
    """a revoked device answered nothing afterwards"""
    for name, before in found.notes.revoked.items():
        known = {wire_id(job).hex() for job in before}
        device = found.boxes[name]
        theirs = {mark for receipt in device.receipts for mark in receipt.segment_hashes}
        for job in found.jobs:
            if job.wire.hex() in known:
                continue
            yield 1
            taken = {mark for commit in job.commits for mark in commit.accepted} & theirs
            if taken or job.wire.hex() in device.ledger:
                yield f"{name} took part in {job.id}, after it was revoked"


def everybody_answers(found: DrillEvidence) -> Iterator[str | int]:
    """every device that was not revoked answered every round of the last job"""
    last = next((job for job in found.jobs if job.id == found.notes.last_job), None)
    if last is None:
        yield "there was no last job"
        return
    for name, device in found.remaining.items():
        theirs = {mark for receipt in device.receipts for mark in receipt.segment_hashes}
        for commit in last.commits:
            yield 1
            if theirs.isdisjoint(commit.accepted):
                yield f"{name} is not in round {commit.index} of {last.id}"


def processes_sound(found: DrillEvidence) -> Iterator[str | int]:
    """no process ended by itself, none wrote a traceback, all stopped when asked to"""
    for name, text in sorted(found.logs.items()):
        yield 1
        if _TRACE.search(text):
            yield f"{name} wrote a traceback"
    for name in found.gone:
        yield f"{name} had ended by itself"
    for name in found.late:
        yield f"{name} did not stop when asked to"


CHECKS: tuple[Callable[[DrillEvidence], Iterator[str | int]], ...] = (
    acts_played,
    nothing_for_nothing,
    revoked_out,
    everybody_answers,
    processes_sound,
)
OF_ANY_RUN = (
    jobs_complete,
    counted_once,
    sums_right,
    acknowledged_counted,
    ledgers_exact,
    models_same,
)


def check_drill(found: DrillEvidence) -> list[CheckOutcome]:
    """The drill's own checks, and those of any chaos run that apply; the revoked device is not
    asked for the last release."""
    checked = [outcome(check, check(found)) for check in CHECKS]
    for check in OF_ANY_RUN:
        devices = (found.remaining if check is models_same else found.boxes).values()
        evidence = Evidence(found.jobs, tuple(devices), dict(found.logs))
        checked.append(outcome(check, check(evidence, ChaosFacts())))
    return checked
