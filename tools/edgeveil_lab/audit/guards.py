"""Promises that no single mechanism keeps: each is played as it stands, and with a flaw planted.

A guard holds where the attack finds nothing as the code stands *and* finds the flaw that is put in
its place: an attack that could not succeed would show nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class AttackOutcome:
    """What an attack came to: whether it `broke` the promise, and its `figure` in words."""

    broke: bool
    figure: str


@dataclass(frozen=True)
class Guard:
    """A promise under attack.

    `play(flawed, quick)` attacks the code as it stands, or with the flaw `flaw` planted. One that
    measures times is played `at_rest`: alone.
    """

    mechanism: str
    promise: str
    flaw: str
    play: Callable[[bool, bool], AttackOutcome]
    at_rest: bool = False


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
