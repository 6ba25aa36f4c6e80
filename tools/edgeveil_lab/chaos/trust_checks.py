"""What must hold after the trust drill: each check is a pure function of what was found.

Where a check of any chaos run asks the same question, it is that check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_lab.chaos.checks import (
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
from edgeveil_lab.chaos.evidence import DeviceFacts, Evidence, JobFacts
from edgeveil_lab.chaos.trust_acts import DrillAct, DrillNotes

_TRACE = re.compile(r"^Traceback \(most recent call last\):$", re.MULTILINE)


@dataclass(frozen=True)
class DrillEvidence:
    """What lies on the disks of a drill whose processes have ended, and what its acts wrote down.

    `others`: by box, the stores of its identity that are not its own one any more. `gone`:
    processes that had ended by themselves; `late`: those that did not stop when asked to.
    """

    jobs: tuple[JobFacts, ...]
    boxes: Mapping[str, DeviceFacts]
    others: Mapping[str, tuple[DeviceFacts, ...]]
    acts: Sequence[DrillAct]
    notes: DrillNotes
    logs: Mapping[str, str]
    gone: Sequence[str] = ()
    late: Sequence[str] = ()

    @property
    def stores(self) -> dict[str, tuple[DeviceFacts, ...]]:
        """All that an identity ever answered from, its present store first."""
        return {name: (own, *self.others.get(name, ())) for name, own in self.boxes.items()}

    @property
    def remaining(self) -> dict[str, DeviceFacts]:
        """Devices that were not revoked."""
        return {n: device for n, device in self.boxes.items() if n not in self.notes.revoked}

    def beside(self, name: str) -> set[str]:
        """Jobs (on the wire, hex) of which a device and a copy of it answered the same rounds: of
        the two one is refused, and of that it hears only afterwards."""
        return {wire_id(job).hex() for job in self.notes.twins.get(name, ())}

    def seen(self, devices: Sequence[DeviceFacts]) -> Evidence:
        """The same for a check of any chaos run, of these devices alone."""
        return Evidence(self.jobs, tuple(devices), dict(self.logs))


def acts_played(found: DrillEvidence) -> Iterator[str | int]:
    """every act was played to its end, and nobody had to go to a device for it"""
    for act in found.acts:
        yield 1
        if act.failed:
            yield f"{act.name}: {act.failed}"


def answers_in_ledger(found: DrillEvidence) -> Iterator[str | int]:
    """a device's ledger counts all that its identity answered, from copies and lost stores too"""
    for name, (own, *others) in found.stores.items():
        for job, exchange in sorted({link for store in others for link in store.links}):
            yield 1
            entry = own.ledger.get(job)
            if entry is None or not (entry.elsewhere or exchange in entry.releases):
                yield f"{name} answered {_job(found, job)} round {exchange} and does not count it"


def nothing_for_nothing(found: DrillEvidence) -> Iterator[str | int]:
    """what a device paid for is counted in a committed round"""
    counted = {
        (job.wire.hex(), commit.index): set(commit.accepted)
        for job in found.jobs
        for commit in job.commits
    }
    for name, stores in found.stores.items():
        beside = found.beside(name)
        for store in stores:
            sent: dict[tuple[str, int], set[bytes]] = {}
            for receipt in store.receipts:
                at = (receipt.job_id.hex(), receipt.round)
                sent.setdefault(at, set()).update(receipt.segment_hashes)
            for at in store.links:
                if at[0] in beside:
                    continue
                yield 1
                if not sent.get(at, set()) & counted.get(at, set()):
                    yield f"{name} paid for {_job(found, at[0])} round {at[1]} and was not counted"


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


def _job(found: DrillEvidence, wire: str) -> str:
    return next((job.id for job in found.jobs if job.wire.hex() == wire), f"job {wire[:8]}")


def _of_any_run(
    check: Callable[[Evidence, ChaosFacts], Iterator[str | int]],
    devices: Callable[[DrillEvidence], Sequence[DeviceFacts]],
) -> Callable[[DrillEvidence], Iterator[str | int]]:
    def same(found: DrillEvidence) -> Iterator[str | int]:
        return check(found.seen(devices(found)), ChaosFacts())

    same.__name__, same.__doc__ = check.__name__, check.__doc__
    return same


def _own(found: DrillEvidence) -> Sequence[DeviceFacts]:
    return tuple(found.boxes.values())


def _all(found: DrillEvidence) -> Sequence[DeviceFacts]:
    return [store for stores in found.stores.values() for store in stores]


def _alone(found: DrillEvidence) -> Sequence[DeviceFacts]:
    return [
        replace(store, receipts=tuple(r for r in store.receipts if r.job_id.hex() not in beside))
        for name, stores in found.stores.items()
        for beside in [found.beside(name)]
        for store in stores
    ]


def _left(found: DrillEvidence) -> Sequence[DeviceFacts]:
    return tuple(found.remaining.values())


CHECKS: tuple[Callable[[DrillEvidence], Iterator[str | int]], ...] = (
    acts_played,
    _of_any_run(jobs_complete, _own),
    _of_any_run(counted_once, _all),
    _of_any_run(sums_right, _all),
    _of_any_run(acknowledged_counted, _alone),
    _of_any_run(ledgers_exact, _own),
    answers_in_ledger,
    nothing_for_nothing,
    revoked_out,
    everybody_answers,
    _of_any_run(models_same, _left),
    processes_sound,
)


def check_drill(found: DrillEvidence) -> list[CheckOutcome]:
    """All checks, in their order."""
    return [outcome(check, check(found)) for check in CHECKS]
