"""The (ε, δ) that is printed, and of whom it is true."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgeveil.privacy.events import Status, Unit
from edgeveil.privacy.figures import PROTECTS_NOTHING, protects_nothing, up, worth


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) for one unit. Where `status` is not `proven`, ε and δ are not a guarantee.

    `among_others` is the ε of one record of a device that keeps its others, at the same δ, where
    that is not ε itself: see `for_one_record`.
    """

    epsilon: float
    delta: float
    unit: Unit
    status: Status
    among_others: float | None = None

    @property
    def of_records(self) -> dict[str, float | None]:
        """`record_epsilon`, null where infinite, for readers of JSON; {} where ε says it all."""
        if self.among_others is None:
            return {}
        return {"record_epsilon": self.among_others if self.among_others < math.inf else None}

    @property
    def notes(self) -> dict[str, str]:
        """A `note` in words for readers of JSON where a proven ε protects nothing, else {}."""
        said = self.proven and protects_nothing(self.epsilon)
        return {"note": f"ε is {PROTECTS_NOTHING}"} if said else {}

    @property
    def record_epsilon(self) -> float:
        """ε of one record, whatever the unit."""
        return self.epsilon if self.among_others is None else self.among_others

    @property
    def proven(self) -> bool:
        """Whether the numbers may be printed as a guarantee."""
        return self.status == "proven"

    def __str__(self) -> str:
        if not self.proven:
            return "no proven guarantee"
        whole = f"ε = {up(self.epsilon)}, δ = {up(self.delta)} per {self.unit}"
        if self.among_others is not None:
            whole += f" (ε = {up(self.among_others)} per record)"
        return whole + worth(self.epsilon)
