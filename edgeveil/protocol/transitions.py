"""State tables: transitions are data, and an illegal one changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from edgeveil.errors import ProtocolError

S = TypeVar("S", bound=Enum)


class StateTable(Generic[S]):
    """`(state, what happened) -> next state`, and the diagram drawn from it."""

    def __init__(self, start: S, table: Mapping[tuple[S, str], S]) -> None:
        self.start, self.table = start, dict(table)

    def step(self, state: S, happened: str) -> S:
        """The next state; raises ProtocolError `illegal_transition`."""
        try:
            return self.table[state, happened]
        except KeyError:
            raise ProtocolError(
                "illegal_transition", f"'{happened}' cannot happen in state '{state.value}'"
            ) from None

    def allows(self, state: S, happened: str) -> bool:
        """Whether `step` would not raise."""
        return (state, happened) in self.table

    def diagram(self) -> str:
        """The table as a Mermaid state diagram."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.start.value}"]
        lines += [f"    {a.value} --> {b.value}: {how}" for (a, how), b in self.table.items()]
        return "\n".join(lines)
