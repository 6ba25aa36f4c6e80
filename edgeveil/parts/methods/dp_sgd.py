"""DP-SGD: noised steps on Poisson samples of a device's records (Abadi et al. 2016, `dp_sgd`).

Per record, add/remove, proven. Local step: w ← w − η·(Σ clip(∇ℓ_i, C) + C·N(0, σ²I)) / L with L the
public expected batch, over a fresh secret sample of the records. The text's algorithm 1, with exact
integer sums and discrete noise in place of float ones, on each device by itself; what it uploads is
computed from the noised sums alone. σ is the least for which all steps of all rounds that a device
may take part in cost (ε, δ).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.exchange import Exchange
from edgeveil.parts.methods.noised_sgd import (
    FullGradients,
    LocalDpSgd,
    NoisedSgd,
    NoisedSums,
    noised_steps,
    update_to,
)
from edgeveil.parts.methods.update_method import trainer_part
from edgeveil.parts.setting import Setting, size_of
from edgeveil.parts.update import Task, Update
from edgeveil.privacy.events import Event, PoissonSampled


class DpSgdParameters(LocalDpSgd):
    """The `train` block of a job with `method: dp_sgd`; all of it is public."""

    method: Literal["dp_sgd"] = "dp_sgd"
    """SGD with a clip per record, Poisson sampling and Gaussian noise in every local step."""


class DpSgd:
    """Trains by noised sums alone."""

    def __init__(self, parameters: DpSgdParameters, setting: Setting) -> None:
        self.parameters, self.setting = parameters, setting

    @cached_property
    def event(self) -> PoissonSampled:
        """What one round costs. Raises PrivacyError where no noise meets the job's budget."""
        p = self.parameters
        return noised_steps(p, self.setting, p.local_steps, size_of(self.setting))

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """The round's steps, together."""
        return (self.event,)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Weights after the noised steps, minus the global ones. Needs torch."""
        p = self.parameters
        sgd = NoisedSgd(task, NoisedSums(task, self.event), p, self.setting)
        weights = sgd.weights(start)
        for _ in range(p.local_steps):
            sgd.take(weights, FullGradients(p.clip_norm))
        return update_to(weights, task)


PART = trainer_part(
    parameters=DpSgdParameters,
    trainer=DpSgd,
    source="Abadi et al. 2016, alg. 1",
    needs="model",
    reveals="weights after noised steps",
    privacy="proven",
    example="train: {method: dp_sgd, clip_norm: 1}",
)
