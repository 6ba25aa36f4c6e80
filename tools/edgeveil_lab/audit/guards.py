"""Promises that no single mechanism keeps: each is played as it stands, and with a flaw planted.

A guard holds where the attack finds nothing as the code stands *and* finds the flaw that is put in
its place: an attack that could not succeed would show nothing. A guard's attack is a file of its
own, `tools/edgeveil_tools/audit_<what>.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class AttackOutcome:
    """What an attack came to: whether it `broke` the promise, and its `figure` in words."""

    broke: bool
    figure: str


@dataclass(frozen=True)
class Guard:
    """A promise under attack.

    `play(flawed, quick)` attacks the code as it stands, or with the flaw `flaw` planted.
    """

    mechanism: str
    promise: str
    flaw: str
    play: Callable[[bool, bool], AttackOutcome]


@dataclass(frozen=True)
class GuardFinding:
    """What both plays of one guard came to."""

    mechanism: str
    promise: str
    flaw: str
    stands: AttackOutcome
    flawed: AttackOutcome

    @property
    def verdict(self) -> str:
        """`holds`; `FAILS` where the code breaks the promise, `BLIND` where the flaw is missed."""
        if self.stands.broke:
            return "FAILS"
        return "holds" if self.flawed.broke else "BLIND"


@cache
def guards() -> tuple[Guard, ...]:
    """Every guard there is."""
    from edgeveil_lab.audit import derived as audit_derived
    from edgeveil_lab.audit import device as audit_device
    from edgeveil_lab.audit import disclosure as audit_disclosure
    from edgeveil_lab.audit import records as audit_records
    from edgeveil_lab.audit import rehearsal as audit_rehearsal
    from edgeveil_lab.audit import timing as audit_timing

    return (
        audit_timing.SUBNORMALS,
        *audit_device.device_guards(),
        audit_records.records_guard(),
        audit_disclosure.guard(),
        *audit_derived.derived_guards(),
        Guard(
            "rehearsal",
            "a job that fails late spends nothing",
            "jobs are not played on made-up records",
            audit_rehearsal.late_failures,
        ),
    )


def judged(mechanism: str, promise: str, quick: bool) -> GuardFinding:
    """Play the guard of that name, both ways."""
    found = (g for g in guards() if (g.mechanism, g.promise) == (mechanism, promise))
    guard = next(found)
    return GuardFinding(
        guard.mechanism,
        guard.promise,
        guard.flaw,
        guard.play(False, quick),
        guard.play(True, quick),
    )
