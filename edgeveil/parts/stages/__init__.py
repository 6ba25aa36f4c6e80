"""Update stages, each declared by the file that implements it; see `parts/update.py`."""

from __future__ import annotations

from edgeveil.parts.part import PartTable
from edgeveil.parts.update import BaseStage as BaseStage
from edgeveil.parts.update import StageParameters as StageParameters
from edgeveil.parts.update import StagePart as StagePart

STAGES = TABLE = PartTable(__name__, StagePart)
