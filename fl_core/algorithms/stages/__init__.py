"""Update stages: what an update passes through on the device; one per file, one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_core.algorithms.setting import Setting
from fl_core.algorithms.stages.top_k import TopK, TopKParameters
from fl_core.algorithms.updates.base import Stage
from fl_core.registry import Table

__all__ = ["STAGES", "StageEntry", "StageParameters"]


@dataclass(frozen=True)
class StageEntry:
    """One entry of the table: its parameters, and the stage they make."""

    parameters: type[Any]
    build: Callable[[Any, Setting], Stage]


STAGES: Table[StageEntry] = Table(
    "update stage", {"upload_top_k": StageEntry(TopKParameters, lambda p, _: TopK(p))}
)

StageParameters = TopKParameters
