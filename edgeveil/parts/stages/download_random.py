"""`download_random` (λ_d of Zhao et al. 2021, anonymous federated learning): training starts from a
random share of the global weights and the device's own last ones elsewhere; the first time from
all."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.update import BaseStage, StageParameters, StagePart, Task, Update

OWN = "own/"  # before a weight's name in the device's memory


class DownloadRandomParameters(StageParameters):
    """A `download_random` entry of a job's `update` list."""

    name: Literal["download_random"] = "download_random"
    """Train from a random share of the global weights; the first of the stages."""
    share: float = Field(default=0.5, gt=0, le=1)
    """λ_d: the share of all weights that is taken from the global model."""


class DownloadRandom(BaseStage):
    """Places are drawn anew in each round, over all weights together."""

    leads = True

    def start(self, task: Task) -> dict[str, NDArray[np.float32]] | None:
        weights = task.weights
        if any(OWN + name not in task.memory for name in weights):
            return None
        size = sum(array.size for array in weights.values())
        keys = np.frombuffer(task.random_bytes(8 * size), "<u8")
        count = int(np.ceil(self.parameters.share * size))
        drawn = np.zeros(size, bool)
        drawn[np.argsort(keys, kind="stable")[:count]] = True
        result, start = {}, 0
        for name, array in weights.items():
            mask = drawn[start : start + array.size].reshape(array.shape)
            own = np.asarray(task.memory[OWN + name], np.float32)
            result[name] = np.where(mask, array, own)
            start += array.size
        return result

    def apply(self, task: Task, update: Update) -> Update:
        for name, change in update.items():
            task.memory[OWN + name] = (task.weights[name] + change).astype(np.float32)
        return update


PART = StagePart(
    parameters=DownloadRandomParameters,
    build=DownloadRandom,
    source="Zhao et al. 2021, anonymous federated learning, λ_d",
    needs="to be the first stage; a device's memory",
    example="update: [{name: download_random, share: 0.5}]",
)
