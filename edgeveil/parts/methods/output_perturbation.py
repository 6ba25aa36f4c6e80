"""Output perturbation ("DP-params"): plain local training, then noise on the weights; claimed.

The comparison of the PSO-DP text, as if one record moved the trained weights by `sensitivity` at
most. For convex losses that can be proven (Chaudhuri, Monteleoni and Sarwate 2011); here nothing
enforces it. The stage `gradient_gaussian` is the sound relative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.errors import PrivacyError
from edgeveil.parts.exchange import Exchange
from edgeveil.parts.method_context import MethodContext
from edgeveil.parts.methods.sgd import LocalSgd, Sgd
from edgeveil.parts.update import Task, Update, trainer_part
from edgeveil.privacy.accountant import HAIR, mu_for
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import ClaimedEvent, Event
from edgeveil.privacy.sampler import LARGEST_SCALE, discrete_gaussian

BITS = 24  # weights and noise stand on 2^-24
LARGEST = 2.0**20  # a trained change beyond it is cut, so that it stays on the grid


class OutputPerturbationParameters(LocalSgd):
    """The `train` block of a job with `method: output_perturbation`."""

    method: Literal["output_perturbation"] = "output_perturbation"
    """SGD, then Gaussian noise on the trained weights; its price is claimed, not proven."""
    sensitivity: float = Field(default=1.0, gt=0, le=1e6)
    """L2 distance by which one record is taken to move the trained weights; nothing enforces it."""


class OutputPerturbation(Sgd):
    def __init__(self, parameters: OutputPerturbationParameters, setting: MethodContext) -> None:
        super().__init__(parameters, setting)
        self._sensitivity = parameters.sensitivity
        self._times = min(setting.max_participations, parameters.rounds)

    @cached_property
    def sigma_steps(self) -> int:
        """σ of the noise, in steps, by Gaussian DP; PrivacyError past what the sampler draws."""
        mu = mu_for(self.setting.epsilon, self.setting.delta) / math.sqrt(self._times)
        steps = math.ceil(self._sensitivity / mu * 2.0**BITS)
        if steps > LARGEST_SCALE:
            raise PrivacyError(
                "the noise on the trained weights would be larger than any that is drawn",
                where="privacy.epsilon",
                fix="raise epsilon or delta, or lower train.sensitivity",
            )
        return steps

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """The claim's share of one round, told together with whether its noise can be drawn."""
        del exchange
        _ = self.sigma_steps
        share = self.setting.epsilon * HAIR / self._times
        return (ClaimedEvent(what="noised weights", unit="record", claimed_epsilon=share),)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        noised = {}
        for name, change in super().train(task, start).items():
            bounded = np.clip(np.nan_to_num(change), -LARGEST, LARGEST).astype(np.float64)
            steps = np.trunc(bounded * 2.0**BITS).astype(np.int64)
            source = bound(task.random_bytes, f"{name}, σ = {self.sigma_steps} steps", steps)
            steps += discrete_gaussian(self.sigma_steps**2, steps.shape, source)
            noised[name] = (steps * 2.0**-BITS).astype(np.float32)
        return noised


PART = trainer_part(
    parameters=OutputPerturbationParameters,
    trainer=OutputPerturbation,
    source="Zhang, Wu and Dong (PSO-DP), comparison DP-params; Chaudhuri, Monteleoni, Sarwate 2011",
    needs="model; privacy.accept_unproven",
    reveals="each device's noised update",
    privacy="claimed",
    example="train: {method: output_perturbation, sensitivity: 1}",
)
