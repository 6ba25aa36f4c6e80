"""Promises that no single mechanism keeps, each attacked as it stands and with a flaw planted: an
attack that misses the flaw shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class AttackOutcome:
    broke: bool
    figure: str


@dataclass(frozen=True)
class Guard:
    """A promise under attack: `play(flawed, quick)`; one that measures times is played `at_rest`,
    alone."""

    mechanism: str
    promise: str
    flaw: str
    play: Callable[[bool, bool], AttackOutcome]
    at_rest: bool = False


@dataclass(frozen=True)
class GuardFinding:
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
