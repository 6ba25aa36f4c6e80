"""Update stages, each declared by the file that implements it; see `parts/stage.py`."""

from __future__ import annotations

from edgeveil.parts.part import PartTable
from edgeveil.parts.stage import BaseStage as BaseStage
from edgeveil.parts.stage import StageParameters as StageParameters
from edgeveil.parts.stage import StagePart as StagePart

STAGES = TABLE = PartTable(__name__, StagePart)
