"""DP-SGD of sums (`dp_sgd_sums`): one step of central DP-SGD a round (Abadi et al. 2016, alg. 1).

w ← w − η·(Σ clip(∇ℓ_i, C) + C·N(0, σ²I)) / L over the samples of all devices of a round, L the
public expected batch, sampling_rate · nominal_records · uploads. Each device draws a Poisson sample
of its own records, secret and new in every round, and uploads the exact sum of their clipped
gradients plus its part of the noise, under masks. Whether a record is in the sum is a coin of its
own device alone, so the sum has the price of a central sample. Selecting devices has no part in it
(`docs/privacy.md`, "`dp_sgd_sums`").

The cloud takes the step: `learning_rate`, `schedule` and `aggregation.server_optimizer`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.method_context import MethodContext, MethodPart, size_of
from edgeveil.parts.methods.dp_sgd import (
    NOISE_BITS,
    DpSgdParameters,
    NoisedSums,
    gradient_rows,
    noised_steps,
)
from edgeveil.parts.methods.optimizers import OptimizerParameters, local_refusals
from edgeveil.parts.round import Aim, Array, PlannedRound, Tensors
from edgeveil.parts.stage import BaseStage, FixedPoint, Int64, Task, Update, shaped
from edgeveil.parts.update import UpdateCloud, UpdateDevice
from edgeveil.privacy.events import Event, PoissonSampled, SharedGaussian, noise_of
from edgeveil.privacy.gaussian_mechanism import noised_step, shared_gaussian


class SummedGradients(BaseStage):
    """The noised sum over a device's sample, uploaded in place of an update of its own."""

    protects = True
    shares = True

    @cached_property
    def event(self) -> PoissonSampled:
        """One step with all of the noise. Raises PrivacyError if (ε, δ) cannot be met."""
        return noised_steps(self.parameters, self.context, 1, size_of(self.context))

    @property
    def release(self) -> PoissonSampled | SharedGaussian:
        return shared_gaussian(self.event, self.context.honest)

    @property
    def room(self) -> int:
        """The public bound in steps to which each value is clipped before the noise."""
        steps: int = self.context.nominal_records << NOISE_BITS
        return steps

    @property
    def grid(self) -> FixedPoint:
        """Grid in steps of C·2⁻³⁰, with room for the sum and 12 σ, as of `gradient_gaussian`."""
        noise = math.ceil(12 * math.sqrt(noise_of(self.release).sigma_squared))
        return FixedPoint(NOISE_BITS, self.room + noise)

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return (self.release,)

    def apply(self, task: Task, update: Update) -> Update:
        return shaped(update, np.ldexp(self.steps(task, update), -NOISE_BITS))

    def steps(self, task: Task, update: Update) -> Int64:
        import torch

        own = replace(self.event, event=noise_of(self.release))
        sums = NoisedSums(task, own)
        weights = {n: torch.tensor(a, device=sums.processor) for n, a in task.weights.items()}
        rows = gradient_rows(task.network, self.parameters, weights)
        total = sums.sampled(rows, self.parameters.clip_norm)
        return noised_step(np.clip(total, -self.room, self.room), own, task.random_bytes)


class NoLocalSteps:
    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return ()

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        return {name: np.zeros_like(array) for name, array in task.weights.items()}


class DpSgdSumsCloud(UpdateCloud):
    def __init__(self, parameters: DpSgdParameters, context: MethodContext) -> None:
        super().__init__(parameters, context)
        self.parameters = parameters

    def aim(self, state: Tensors, round: PlannedRound) -> Aim | None:
        return None

    def absorb(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """Return the state after a step along the mean of the sums, which are in units of C."""
        p = self.parameters
        batch = p.sampling_rate * self.context.nominal_records  # of one upload
        scale = -p.rate(round) * p.clip_norm / batch
        update = {name: scale * np.asarray(array, np.float64) for name, array in mean.items()}
        return super().absorb(state, round, update, uploads)


def _with_sums(parameters: Any, context: MethodContext) -> MethodContext:
    return replace(context, stages=(SummedGradients(parameters, context),))


def _refuses(
    parameters: DpSgdParameters, context: MethodContext
) -> Iterable[tuple[tuple[str, ...], str]]:
    yield from local_refusals(parameters, context)
    if not context.summed:
        text = (
            "'dp_sgd_sums' hides records in sums over devices; set aggregation.secure to true, or"
        )
        yield ("aggregation.secure", "aggregation", "train.method"), f"{text} use dp_sgd"
    if context.stages:
        text = "'dp_sgd_sums' uploads noised sums of gradients, which no stage may change; leave"
        yield ("update", "train.method"), f"{text} update out"
    if parameters.optimizer != OptimizerParameters():
        text = "the cloud takes the step of 'dp_sgd_sums'; use aggregation.server_optimizer"
        yield ("train.optimizer", "train.method"), text


PART = MethodPart(
    name="dp_sgd_sums",
    summary="Central DP-SGD without a trusted party, a step a round, in sums over the devices.",
    parameters=DpSgdParameters,
    device=lambda parameters, context: UpdateDevice(
        NoLocalSteps(), _with_sums(parameters, context)
    ),
    cloud=lambda parameters, context: DpSgdSumsCloud(parameters, _with_sums(parameters, context)),
    learns_on="model",
    summed=True,
    shares=True,
    units=("record", "person"),
    refuses=_refuses,
    source="Abadi et al. 2016, alg. 1, summed under masks",
    needs="model, secure sums",
    reveals="sums of gradients over the devices' samples, noised",
    privacy="proven",
    example="train: {method: dp_sgd_sums, sampling_rate: 0.05}",
)
