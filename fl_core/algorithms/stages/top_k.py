"""Only the largest changes are uploaded, the others as 0 (`upload_top_k`; text 004's λ_u).

Post-processing of what it is given: free after the noise, no guarantee of its own before it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fl_core.algorithms.base import Exchange
from fl_core.algorithms.updates.base import Task, Update
from fl_core.privacy.events import Event


class TopKParameters(BaseModel):
    """An `upload_top_k` entry of a job's `update` list."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["upload_top_k"] = "upload_top_k"
    """Keep the values of largest magnitude, set the others to 0."""
    share: float = Field(default=0.1, gt=0, le=1)
    """λ_u: the share of all values that is kept."""


class TopK:
    """Over all weights together; of equal magnitudes the earlier one is kept."""

    protects = False

    def __init__(self, parameters: TopKParameters) -> None:
        self.parameters = parameters

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """Nothing."""
        return ()

    def start(self, task: Task) -> dict[str, NDArray[np.float32]] | None:
        """Training starts where it would."""
        return None

    def apply(self, task: Task, update: Update) -> Update:
        """The same with all but the largest values 0."""
        flat = np.concatenate([np.abs(array).ravel() for array in update.values()])
        kept = np.zeros(flat.size, bool)
        count = int(np.ceil(self.parameters.share * flat.size))
        kept[np.argsort(-flat, kind="stable")[:count]] = True
        result, start = {}, 0
        for name, array in update.items():
            mask = kept[start : start + array.size].reshape(array.shape)
            result[name] = np.where(mask, array, np.float32(0))
            start += array.size
        return result
