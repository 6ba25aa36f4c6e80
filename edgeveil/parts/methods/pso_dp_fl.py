"""A swarm trains on each device, and noise on its best protects the device (`pso_dp_fl`), proven.

Zhang, Wu and Dong's PSO-DP, algorithm 2. The swarm is local: losses choose among its particles
without noise, and one clip of the whole update to L2 norm C with discrete Gaussian noise after it
(`gradient_gaussian`) hides all of the device's records, whatever the swarm did with them: unit
device. One pass over the records is one move of the swarm; the fitness is the mean loss of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.exchange import Exchange
from edgeveil.parts.methods.local_steps import chosen_processor
from edgeveil.parts.methods.particle_swarm import Swarm, SwarmKeys
from edgeveil.parts.methods.sgd import LocalSgd, Sgd
from edgeveil.parts.methods.update_method import trainer_part
from edgeveil.parts.setting import Setting
from edgeveil.parts.stages.gradient_gaussian import GradientGaussian, GradientGaussianParameters
from edgeveil.parts.update import Task, Update, flat, shaped
from edgeveil.privacy.events import Event, GaussianEvent

BLOCK = 1024  # records of one forward pass, so that memory is bounded


class PsoDpFlParameters(LocalSgd, SwarmKeys):
    """The `train` block of a job with `method: pso_dp_fl`."""

    method: Literal["pso_dp_fl"] = "pso_dp_fl"
    """A swarm of networks on each device; its best is clipped and noised as a whole."""
    clip_norm: float = Field(default=1.0, ge=1e-6, le=1e6)
    """C: the largest L2 norm of an update."""


class PsoDpFl:
    """Sgd for every particle, and the noise of the update stage."""

    def __init__(self, parameters: PsoDpFlParameters, setting: Setting) -> None:
        self.parameters = parameters
        self._epoch = Sgd(parameters.model_copy(update={"local_epochs": 1}), setting)
        clip = GradientGaussianParameters(clip_norm=parameters.clip_norm)
        self._noise = GradientGaussian(clip, setting)

    @property
    def event(self) -> GaussianEvent:
        """One round's. Raises PrivacyError where (ε, δ) cannot be met."""
        return self._noise.event

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """One Gaussian release, for a whole device."""
        return self._noise.price(exchange)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """The noised change to the swarm's best; without records the noise alone. Needs torch."""
        origin = flat(task.weights)
        best = self.search(task, start) if len(task.records) else origin
        return self._noise.apply(task, shaped(task.weights, best - origin))

    def search(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float64]:
        """The best weights (d,) that the swarm finds from `start`, without noise."""
        origin = flat(task.weights)
        swarm = Swarm(flat(start), self.parameters, task.random_bytes)
        for _ in range(self.parameters.local_epochs):
            swarm.move()
            fitness = []
            for k, position in enumerate(swarm.positions):
                change = self._epoch.train(task, shaped(task.weights, position))
                swarm.positions[k] = origin + flat(change)
                fitness.append(mean_loss(task, swarm.positions[k]))
            swarm.judge(np.array(fitness))
        return swarm.best


def mean_loss(task: Task, position: NDArray[np.float64]) -> float:
    """Mean loss of all records under the weights `position` (d,); at least one record."""
    import torch

    processor, records = chosen_processor(task.processor), task.records
    weights = {
        name: torch.as_tensor(array).to(processor)
        for name, array in shaped(task.weights, position).items()
    }
    total = 0.0
    with torch.no_grad():
        for first in range(0, len(records), BLOCK):
            x = torch.as_tensor(records.x[first : first + BLOCK]).to(processor)
            y = torch.as_tensor(records.y[first : first + BLOCK]).to(processor)
            total += float(task.network.loss(weights, x, y)) * len(y)
    return total / len(records)


PART = trainer_part(
    parameters=PsoDpFlParameters,
    trainer=PsoDpFl,
    source="Zhang, Wu and Dong (PSO-DP), alg. 2",
    needs="model",
    reveals="each device's clipped and noised update",
    privacy="proven",
    note="per device; for one record among others at the price of twice the sensitivity",
    example="train: {method: pso_dp_fl, particles: 3}",
)
