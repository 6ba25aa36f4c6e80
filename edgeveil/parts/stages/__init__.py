"""Update stages, each declared by the file that implements it; see `parts/update.py`."""

from __future__ import annotations

from edgeveil.parts.part import PartTable
from edgeveil.parts.update import BaseStage, StageParameters, StagePart

__all__ = ["STAGES", "BaseStage", "StageParameters", "StagePart"]

STAGES = TABLE = PartTable(__name__, StagePart)
