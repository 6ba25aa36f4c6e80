"""Who is asked: rules that choose public keys from the enrolled ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from edgeveil.registry import Table
from edgeveil.selection.uniform import how_many, uniform

Selection = Callable[[Sequence[bytes], int, Random | None], list[bytes]]

SELECTIONS: Table[Selection] = Table("selection", {"uniform": uniform})

__all__ = ["SELECTIONS", "Selection", "how_many", "uniform"]
