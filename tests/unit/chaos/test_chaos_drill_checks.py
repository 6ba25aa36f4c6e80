"""The checks of the trust drill hold for a sound fleet and find the one thing that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.drill_checks import DrillAct, DrillEvidence, DrillNotes, check_drill
from tests.chaos.evidence import DeviceFacts
from tests.kits.sound_site import DEVICES, NAME, sound


def drilled() -> DrillEvidence:
    """Four boxes answered one job; a fifth was revoked before."""
    found = sound()
    boxes = {f"box-{device.number}": device for device in found.devices}
    out = replace(boxes["box-1"], number=5, receipts=(), links=(), ledger={}, release=None)
    return DrillEvidence(
        jobs=found.jobs,
        boxes={**boxes, "box-5": out},
        acts=[DrillAct("a clone", 0.0)],
        notes=DrillNotes(revoked={"box-5": ()}, last_job=NAME),
        logs={"cloud": "running"},
    )


def with_box(found: DrillEvidence, name: str, **changes: object) -> DrillEvidence:
    return replace(found, boxes={**found.boxes, name: replace(found.boxes[name], **changes)})


def uncounted(found: DrillEvidence) -> DrillEvidence:
    """The first round was never committed."""
    (job,) = found.jobs
    return replace(found, jobs=(replace(job, commits=job.commits[1:]),))


def answering(found: DrillEvidence) -> dict[str, object]:
    """What a device has that answered."""
    one: DeviceFacts = found.boxes["box-2"]
    return {"receipts": one.receipts, "links": one.links, "ledger": one.ledger}


FOUND: dict[str, list[Callable[[DrillEvidence], DrillEvidence]]] = {
    "acts played": [lambda f: replace(f, acts=[DrillAct("a clone", 0.0, failed="no word")])],
    "nothing for nothing": [uncounted, lambda f: with_box(f, "box-2", receipts=())],
    "revoked out": [lambda f: with_box(f, "box-5", **answering(f))],
    "everybody answers": [
        lambda f: with_box(f, "box-2", receipts=f.boxes["box-2"].receipts[1:]),
        lambda f: replace(f, notes=DrillNotes(revoked={"box-5": ()})),
        lambda f: replace(f, notes=DrillNotes(last_job=NAME)),  # the revoked one has to answer
    ],
    "models same": [lambda f: with_box(f, "box-2", release=None)],
    "ledgers exact": [lambda f: with_box(f, "box-2", faults=("the ledger was altered",))],
    "processes sound": [
        lambda f: replace(f, gone=["proxy"]),
        lambda f: replace(f, late=["proxy"]),
        lambda f: replace(f, logs={"cloud": "x\nTraceback (most recent call last):\n"}),
    ],
}


def wrong(found: DrillEvidence) -> dict[str, list[str]]:
    return {one.name: one.violations for one in check_drill(found) if not one.holds}


def test_a_sound_fleet_has_nothing_wrong() -> None:
    found = drilled()
    assert len(found.remaining) == DEVICES
    assert wrong(found) == {}


@pytest.mark.parametrize(
    ("check", "spoil"),
    [(name, spoil) for name, spoils in FOUND.items() for spoil in spoils],
)
def test_each_check_finds_its_violation(
    check: str, spoil: Callable[[DrillEvidence], DrillEvidence]
) -> None:
    assert check in wrong(spoil(drilled()))
