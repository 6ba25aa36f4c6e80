"""Update stages: one file is one name. What a file needs to be one stands in `parts/update.py`."""

from __future__ import annotations

from edgeveil.parts.part import PartTable
from edgeveil.parts.update import BaseStage, StageParameters, StagePart

__all__ = ["STAGES", "BaseStage", "StageParameters", "StagePart"]

STAGES = TABLE = PartTable(__name__, StagePart)
