"""Only the largest changes are uploaded, the others as 0 (`upload_top_k`).

λ_u of anonymous federated learning (Zhao et al. 2021), whose order is noise first: then this is
post-processing and free. Before the noise, *which* values are chosen follows from the records.
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


class TopKParameters(StageParameters):
    """An `upload_top_k` entry of a job's `update` list."""

    name: Literal["upload_top_k"] = "upload_top_k"
    """Keep the values of largest magnitude, set the others to 0; free after a stage of noise."""
    share: float = Field(default=0.1, gt=0, le=1)
    """λ_u: the share of all values that is kept."""


class TopK(BaseStage):
    """Over all weights together; of equal magnitudes the earlier one is kept."""

    chooses = True

    def __init__(self, parameters: TopKParameters, setting: Setting) -> None:
        self.parameters = parameters

    def apply(self, task: Task, update: Update) -> Update:
        """The same with all but the largest values 0."""
        values = flat(update)
        return shaped(update, np.where(largest(values, self.parameters.share), values, 0.0))


PART = StagePart(
    parameters=TopKParameters,
    build=TopK,
    source="Zhao et al. 2021, anonymous federated learning, λ_u",
    needs="to follow the noise, or privacy.accept_unproven",
    reveals="which values are largest; free after the noise",
    example="update: [{name: upload_top_k, share: 0.1}]",
)
