"""A swarm of networks trained by noised steps, the best by noised losses (`pso_dp_sgd`).

Zhang, Wu and Dong's PSO-DP, algorithm 1, on each device: the swarm moves, every particle takes
noised steps (`dp_sgd`), and the particles' losses decide which places are kept as best.

- `priced`, proven: losses of records are private too. A record's N losses, cut to [0, B] and
  centred, make a vector of norm ½B·√N at most; its sum over a fresh sample is noised as a
  gradient's is, and counts as one more step (report-noisy-max with Gaussian noise, whose noised
  losses are the fitness that the algorithm keeps). M moves cost M·(N·local_steps + 1) steps.
- `unpriced`, claimed: the text's version, which takes the choice to be free and counts the steps of
  the particle that is chosen. The other particles' steps and the losses are then not paid for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.exchange import Exchange
from edgeveil.parts.methods.noised_sgd import (
    FullGradients,
    LocalDpSgd,
    NoisedSgd,
    NoisedSums,
    noised_steps,
    record_losses,
    update_to,
)
from edgeveil.parts.methods.particle_swarm import Swarm, SwarmKeys
from edgeveil.parts.methods.pso_dp_fl import mean_loss
from edgeveil.parts.methods.update_method import trainer_part
from edgeveil.parts.setting import Setting, size_of
from edgeveil.parts.update import Task, Update, flat, shaped
from edgeveil.privacy.accountant import HAIR
from edgeveil.privacy.events import ClaimedEvent, Event, PoissonSampled

if TYPE_CHECKING:
    import torch


class PsoDpSgdParameters(LocalDpSgd, SwarmKeys):
    """The `train` block of a job with `method: pso_dp_sgd`."""

    method: Literal["pso_dp_sgd"] = "pso_dp_sgd"
    """A swarm of networks on each device, every one trained by noised steps."""
    moves: int = Field(default=2, ge=1, le=1000)
    """Moves of the swarm in one round; after each, every particle takes `local_steps` steps."""
    selection: Literal["priced", "unpriced"] = "priced"
    """`priced`: the best chosen by noised losses, proven; `unpriced`: by exact ones, claimed."""
    loss_clip: float = Field(default=4.0, gt=0, le=1e6)
    """B: the largest loss of one record that is told apart; `priced` alone."""


class PsoDpSgd:
    """DpSgd for every particle, and a choice among them."""

    def __init__(self, parameters: PsoDpSgdParameters, setting: Setting) -> None:
        self.parameters, self.setting = parameters, setting

    @cached_property
    def event(self) -> PoissonSampled:
        """The noise of one round's steps. Raises PrivacyError where none meets the budget."""
        p = self.parameters
        steps = p.local_steps
        if p.selection == "priced":
            steps = p.particles * p.local_steps + 1
        coordinates = max(size_of(self.setting), p.particles)
        return noised_steps(p, self.setting, p.moves * steps, coordinates)

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """All steps and noised losses together; `unpriced`: the text's share of one round."""
        event = self.event  # told in either case, with whether its noise can be drawn
        if self.parameters.selection == "priced":
            return (event,)
        times = min(self.setting.max_participations, self.parameters.rounds)
        claimed = ClaimedEvent(
            what="noised steps, the best chosen by exact losses",
            unit="record",
            claimed_epsilon=self.setting.epsilon * HAIR / times,
            source="Zhang, Wu and Dong, PSO-DP",
        )
        return (claimed,)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """The change to the best weights that the swarm came to. Needs torch."""
        best = self.search(task, start, NoisedSums(task, self.event))
        return shaped(task.weights, best - flat(task.weights))

    def search(
        self, task: Task, start: Mapping[str, NDArray[np.float32]], sums: NoisedSums
    ) -> NDArray[np.float64]:
        """The best weights (d,) that the swarm finds from `start` by `sums`."""
        p = self.parameters
        sgd, view = NoisedSgd(task, sums, p, self.setting), FullGradients(p.clip_norm)
        swarm = Swarm(flat(start), p, task.random_bytes)
        for _ in range(p.moves):
            swarm.move()
            for k, position in enumerate(swarm.positions):
                weights = sgd.weights(shaped(task.weights, position))
                for _ in range(p.local_steps):
                    sgd.take(weights, view)
                swarm.positions[k] = flat(task.weights) + flat(update_to(weights, task))
            swarm.judge(self._fitness(task, swarm.positions, sums))
        return swarm.best

    def _fitness(
        self, task: Task, positions: NDArray[np.float64], sums: NoisedSums
    ) -> NDArray[np.float64]:
        if self.parameters.selection == "unpriced":
            some = len(task.records) > 0
            return np.array([mean_loss(task, place) if some else 0.0 for place in positions])
        p = self.parameters
        total = sums.draw(Losses(task, positions, p.loss_clip, sums.processor).rows, self._norm)
        return total / (p.sampling_rate * self.setting.nominal_records) + p.loss_clip / 2

    @property
    def _norm(self) -> float:
        p = self.parameters
        return p.loss_clip / 2 * math.sqrt(p.particles)


class Losses:
    """Each record's losses under several weight vectors, at most `clip`, less half of that."""

    def __init__(
        self, task: Task, positions: NDArray[np.float64], clip: float, processor: str
    ) -> None:
        import torch

        self._losses, self._clip = record_losses(task.network), clip
        self._weights = [
            {
                name: torch.as_tensor(array).to(processor)
                for name, array in shaped(task.weights, position).items()
            }
            for position in positions
        ]

    def rows(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """(n, N); a loss that is no number is the largest."""
        import torch

        with torch.no_grad():
            losses = torch.stack([self._losses(w, x, y) for w in self._weights], 1)
        losses = torch.nan_to_num(losses, nan=self._clip, posinf=self._clip)
        return [losses.clamp(0, self._clip) - self._clip / 2]


PART = trainer_part(
    parameters=PsoDpSgdParameters,
    trainer=PsoDpSgd,
    source="Zhang, Wu and Dong (PSO-DP), alg. 1",
    needs="model",
    reveals="the best of a swarm that took noised steps",
    privacy="proven",
    note="selection: unpriced is the text's own, claimed",
    example="train: {method: pso_dp_sgd, particles: 3}",
)
