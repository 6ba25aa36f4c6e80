"""Noised local steps, as `dp_sgd` takes them and other methods build on them.

Every step draws one noised sum over a fresh Poisson sample of the device's records. What a record
adds to it is a vector of bounded norm: its gradient, or what a `View` sees of its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from edgeveil.errors import PrivacyError
from edgeveil.parts.methods.local_steps import chosen_processor
from edgeveil.parts.methods.updates.record_gradients import (
    RECORD_BITS,
    RecordSums,
    record_gradients,
)
from edgeveil.parts.setting import Setting
from edgeveil.parts.update import Task, Update
from edgeveil.privacy.events import SampledGaussianEvent
from edgeveil.privacy.gaussian_mechanism import Steps, calibrated, noised_step, poisson_sample

if TYPE_CHECKING:
    import torch

    from edgeveil.parts.methods.updates.record_gradients import Parts, Rows

NOISE_BITS = 30  # noise and sums stand on 2^-30 of the clip norm: far finer than the noise


class LocalDpSgd(BaseModel):
    """What all methods with noised local steps say; all of it is public."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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


def noised_steps(
    parameters: LocalDpSgd, setting: Setting, steps: int, coordinates: int
) -> SampledGaussianEvent:
    """What one round of so many sums of at most so many `coordinates` costs.

    The noise is the least for which all rounds that a device may take part in cost the job's
    (ε, δ). Raises `PrivacyError` where none meets it.
    """
    one = Steps(
        what="gradient steps",
        sampling_probability=parameters.sampling_rate,
        steps=steps,
        sensitivity_steps=1 << NOISE_BITS,
        coordinates=coordinates,
        grid_bits=NOISE_BITS,
    )
    times = min(setting.max_participations, parameters.rounds)
    return calibrated(one, times, setting.epsilon, setting.delta)


class NoisedSums:
    """Noised sums over fresh samples of one device's records."""

    def __init__(self, task: Task, event: SampledGaussianEvent) -> None:
        self.processor = chosen_processor(task.processor)
        self._sums = RecordSums(task.records, self.processor, task.random_bytes)
        self._count, self._event, self._random_bytes = len(task.records), event, task.random_bytes

    def draw(self, rows: Rows, norm: float) -> NDArray[np.float64]:
        """The sum of `rows(x, y)`, a row a record, each clipped to L2 `norm`, and noise.

        One of the event's steps. Raises `PrivacyError` for more values than it prices.
        """
        chosen = poisson_sample(self._count, self._event.sampling_probability, self._random_bytes)
        total = self._sums.total(rows, chosen, norm)
        if total.size > self._event.coordinates:
            raise PrivacyError(f"{self._event.what}: {total.size} values are more than was priced")
        event = replace(self._event, coordinates=total.size)
        steps = noised_step(total << (NOISE_BITS - RECORD_BITS), event, self._random_bytes)
        return np.asarray(steps * (norm * 2.0**-NOISE_BITS), np.float64)


class View(Protocol):
    """What is seen of gradients: what each record adds to a sum, and the way back from it."""

    @property
    def norm(self) -> float:
        """The L2 norm that a record's row is clipped to."""
        ...

    def seen(self, gradients: Parts) -> Parts:
        """Rows (n, …) of gradients of n records, each a function of its own gradient alone."""
        ...

    def back(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """The gradient (d,) that a noised sum of rows stands for."""
        ...


class Plain:
    """Gradients as they are, clipped to `norm`."""

    def __init__(self, norm: float) -> None:
        self.norm = norm

    def seen(self, gradients: Parts) -> Parts:
        """All of them."""
        return gradients

    def back(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """Nothing was lost."""
        return total


class NoisedSgd:
    """SGD by noised sums; `weights` are torch tensors and change in place."""

    def __init__(
        self, task: Task, sums: NoisedSums, parameters: LocalDpSgd, setting: Setting
    ) -> None:
        self._sums, self._gradients = sums, record_gradients(task.network)
        batch = parameters.sampling_rate * setting.nominal_records  # public, unlike the sample's
        self._rate = parameters.learning_rate / batch

    def weights(self, values: Mapping[str, NDArray[np.float32]]) -> dict[str, torch.Tensor]:
        """A copy of `values`, on the processor."""
        import torch

        processor = self._sums.processor
        return {name: torch.tensor(array, device=processor) for name, array in values.items()}

    def take(self, weights: Mapping[str, torch.Tensor], view: View) -> None:
        """One step down the mean gradient, as `view` sees it."""
        import torch

        def rows(x: torch.Tensor, y: torch.Tensor) -> Parts:
            found = self._gradients(weights, x, y)
            return view.seen([found[name].flatten(1) for name in weights])

        change = self._rate * view.back(self._sums.draw(rows, view.norm))
        step = torch.as_tensor(change.astype(np.float32)).to(self._sums.processor)
        parts = torch.split(step, [value.numel() for value in weights.values()])
        for value, part in zip(weights.values(), parts, strict=True):
            value.sub_(part.view_as(value))


def update_to(weights: Mapping[str, torch.Tensor], task: Task) -> Update:
    """What `weights` change of the global ones."""
    return {name: value.cpu().numpy() - task.weights[name] for name, value in weights.items()}
