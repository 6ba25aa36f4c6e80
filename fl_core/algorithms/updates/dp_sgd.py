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
from pydantic import BaseModel, ConfigDict, Field

from fl_core.algorithms.base import Exchange
from fl_core.algorithms.local_steps import chosen_processor
from fl_core.algorithms.setting import Setting
from fl_core.algorithms.updates.base import Task, Update
from fl_core.algorithms.updates.form import network_of
from fl_core.algorithms.updates.record_gradients import RECORD_BITS, RecordGradients
from fl_core.privacy.events import Event, SampledGaussianEvent
from fl_core.privacy.sampled import Steps, calibrated, noised_step, poisson_sample

NOISE_BITS = 30  # noise and sums stand on 2^-30 of the clip norm: far finer than the noise


class DpSgdParameters(BaseModel):
    """The `train` block of a job with `method: dp_sgd`; all of it is public."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    method: Literal["dp_sgd"] = "dp_sgd"
    """SGD with a clip per record, Poisson sampling and Gaussian noise in every local step."""
    rounds: int = Field(default=10, ge=1, le=10_000)
    """Training rounds."""
    local_steps: int = Field(default=10, ge=1, le=10_000)
    """Noised steps of one device in one round; each of them is paid for."""
    sampling_rate: float = Field(default=0.1, gt=0, le=1)
    """Chance with which a record is in a step's sample; 1: every step takes all records."""
    clip_norm: float = Field(default=1.0, gt=0, le=1e6)
    """C: the L2 norm that one record's gradient is clipped to."""
    learning_rate: float = Field(default=0.5, gt=0, le=100)
    """Step size, for a gradient that is the sample's mean."""


class DpSgd:
    """Trains by noised sums alone."""

    def __init__(self, parameters: DpSgdParameters, setting: Setting) -> None:
        self.parameters, self.setting = parameters, setting

    @cached_property
    def event(self) -> SampledGaussianEvent:
        """What one round costs. Raises PrivacyError where no noise meets the job's budget."""
        p, setting = self.parameters, self.setting
        steps = Steps(
            what="gradient steps",
            sampling_probability=p.sampling_rate,
            steps=p.local_steps,
            sensitivity_steps=1 << NOISE_BITS,
            coordinates=sum(int(np.prod(w.shape)) for w in network_of(setting).weights),
            grid_bits=NOISE_BITS,
        )
        times = min(setting.max_participations, p.rounds)
        return calibrated(steps, times, setting.epsilon, setting.delta)

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """The round's steps, together."""
        return (self.event,)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Weights after the noised steps, minus the global ones. Needs torch."""
        import torch

        p, processor = self.parameters, chosen_processor(task.processor)
        gradients = RecordGradients(task.network, task.records, processor, task.random_bytes)
        weights = {name: torch.tensor(array, device=processor) for name, array in start.items()}
        batch = p.sampling_rate * self.setting.nominal_records
        rate = p.learning_rate * p.clip_norm * 2.0**-NOISE_BITS / batch
        for _ in range(p.local_steps):
            chosen = poisson_sample(len(task.records), p.sampling_rate, task.random_bytes)
            total = gradients.clipped_sum(weights, chosen, p.clip_norm)
            noised = noised_step(total << (NOISE_BITS - RECORD_BITS), self.event, task.random_bytes)
            step = torch.as_tensor((rate * noised).astype(np.float32)).to(processor)
            parts = torch.split(step, [value.numel() for value in weights.values()])
            for value, part in zip(weights.values(), parts, strict=True):
                value.sub_(part.view_as(value))
        return {name: value.cpu().numpy() - task.weights[name] for name, value in weights.items()}
