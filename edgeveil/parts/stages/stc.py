"""Sparse ternary compression with error feedback (`stc`; Sattler et al. 2020, alg. 1 and 2).

Of the update plus what earlier rounds left unsent, the share p of largest magnitude is sent, each
value as its sign times their mean magnitude μ; the rest is kept on the device for the next round.
No guarantee of its own. The text compresses the cloud's answer too, which is not done here.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from edgeveil.parts.setting import Setting
from edgeveil.parts.update import (
    BaseStage,
    StageParameters,
    StagePart,
    Task,
    Update,
    flat,
    largest,
    shaped,
)

UNSENT = "stc"  # the residual's name in the device's memory


class StcParameters(StageParameters):
    """An `stc` entry of a job's `update` list."""

    name: Literal["stc"] = "stc"
    """Send the largest values as −μ or μ, the others as 0; the rest waits on the device."""
    share: float = Field(default=0.01, gt=0, le=1)
    """p: the share of all values that is sent."""


class Stc(BaseStage):
    """Over all weights together."""

    chooses = True
    remembers = True

    def __init__(self, parameters: StcParameters, setting: Setting) -> None:
        self.parameters = parameters

    def apply(self, task: Task, update: Update) -> Update:
        """Three values; the residual goes to the device's memory."""
        values = flat(update)
        unsent = task.memory.get(UNSENT)
        if unsent is not None:
            values = values + np.asarray(unsent, np.float64)
        kept = largest(values, self.parameters.share)
        mean = float(np.abs(values[kept]).mean())
        sent = shaped(update, np.where(kept, np.sign(values) * mean, 0.0))
        task.memory[UNSENT] = (values - flat(sent)).astype(np.float32)
        return sent


PART = StagePart(
    parameters=StcParameters,
    build=Stc,
    source="Sattler et al. 2020, alg. 1 and 2",
    needs="to follow the noise, or privacy.accept_unproven; a device's memory",
    reveals="which values are largest, with their signs",
    example="update: [{name: stc, share: 0.01}]",
)
