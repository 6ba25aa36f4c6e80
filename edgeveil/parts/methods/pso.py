"""A swarm of weight vectors, each trained by itself and drawn to the best ones found.

Particle swarm optimisation as Zhang, Wu and Dong's PSO-DP has it (algorithms 1 and 2): one move of
the swarm, then training of every particle, then their losses are compared.

- `random`: v ← w·v + c₁·r₁·(own best − p) + c₂·r₂·(overall best − p), p ← p + v, with r₁ and r₂
  uniform in [0, 1), drawn for each particle and move.
- `adaptive`: training itself is the move; a particle goes on from its own best.

Deviations: all particles begin at the broadcast weights and only their first velocities are drawn
(the text draws positions too, which would throw the global model away). It names no c₁ and c₂.

A swarm trains on each device, and noise on its best protects the device (`pso_dp_fl`), proven.

Zhang, Wu and Dong's PSO-DP, algorithm 2. The swarm is local: losses choose among its particles
without noise, and one clip of the whole update to L2 norm C with discrete Gaussian noise after it
(`gradient_gaussian`) hides all of the device's records, whatever the swarm did with them: unit
device. One pass over the records is one move of the swarm; the fitness is the mean loss of all.

A swarm of networks trained by noised steps, the best by noised losses (`pso_dp_sgd`).

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
from edgeveil.parts.method_context import MethodContext, size_of
from edgeveil.parts.methods.dp_sgd import (
    DpSgd,
    LocalDpSgd,
    NoisedSgd,
    NoisedSums,
    View,
    noised_steps,
    record_losses,
    update_to,
)
from edgeveil.parts.methods.local_steps import chosen_processor
from edgeveil.parts.methods.sgd import LocalSgd, Sgd
from edgeveil.parts.methods.update_method import trainer_part
from edgeveil.parts.part import PartBlock
from edgeveil.parts.stages.gradient_gaussian import GradientGaussian, GradientGaussianParameters
from edgeveil.parts.update import Task, Update, flat, shaped
from edgeveil.privacy.accountant import HAIR
from edgeveil.privacy.events import ClaimedEvent, Event, GaussianEvent, PoissonSampled
from edgeveil.privacy.sampler import RandomBytes

if TYPE_CHECKING:
    import torch


Float64 = NDArray[np.float64]


class SwarmKeys(PartBlock):
    """What all methods with a swarm say; all of it is public."""

    particles: int = Field(default=3, ge=1, le=20)
    """N: weight vectors that are trained side by side."""
    search: Literal["random", "adaptive"] = "random"
    """`random`: particles move by inertia and pulls. `adaptive`: each goes on from its own best."""
    inertia: float = Field(default=0.1, ge=0, lt=1)
    """w: share of a particle's last velocity that it keeps; `random` alone."""
    c1: float = Field(default=1.0, ge=0, le=4)
    """c₁: pull to the particle's own best; `random` alone."""
    c2: float = Field(default=1.0, ge=0, le=4)
    """c₂: pull to the best of all particles; `random` alone."""
    spread: float = Field(default=0.01, ge=0, le=1)
    """First velocities are uniform between −spread and spread; `random` alone."""


class Swarm:
    """`positions` (N, d) may be changed between `move` and `judge`: that is the training."""

    def __init__(self, start: Float64, keys: SwarmKeys, random_bytes: RandomBytes) -> None:
        self._keys, self._random_bytes = keys, random_bytes
        self.positions: Float64 = np.tile(start, (keys.particles, 1))
        self._velocities = np.zeros_like(self.positions)
        if keys.search == "random":
            drawn = self._uniform(self.positions.size).reshape(self.positions.shape)
            self._velocities = keys.spread * (2 * drawn - 1)
        self._own, self._own_fitness = self.positions.copy(), np.full(keys.particles, np.inf)
        self.best, self._fitness = start.copy(), np.inf

    def move(self) -> None:
        """Every particle takes the place from which it is trained next."""
        keys = self._keys
        if keys.search == "adaptive":
            self.positions = self._own.copy()
            return
        own, all_ = self._uniform(2 * keys.particles).reshape(2, -1, 1)
        self._velocities = (
            keys.inertia * self._velocities
            + keys.c1 * own * (self._own - self.positions)
            + keys.c2 * all_ * (self.best - self.positions)
        )
        self.positions = self.positions + self._velocities

    def judge(self, fitness: Float64) -> None:
        """Keeps what is better than ever: smaller `fitness` (N,), the first of equal ones.

        All begin at +∞, and a fitness that is no number is never better.
        """
        better = fitness < self._own_fitness
        self._own[better], self._own_fitness[better] = self.positions[better], fitness[better]
        first = int(np.argmin(self._own_fitness))
        if self._own_fitness[first] < self._fitness:
            self.best, self._fitness = self._own[first].copy(), self._own_fitness[first]

    def _uniform(self, count: int) -> Float64:
        words = np.frombuffer(self._random_bytes(8 * count), "<u8")
        return np.asarray((words >> np.uint64(11)) * 2.0**-53, np.float64)


BLOCK = 1024  # records of one forward pass, so that memory is bounded


class PsoDpFlParameters(LocalSgd, SwarmKeys):
    """The `train` block of a job with `method: pso_dp_fl`."""

    method: Literal["pso_dp_fl"] = "pso_dp_fl"
    """A swarm of networks on each device; its best is clipped and noised as a whole."""
    clip_norm: float = Field(default=1.0, ge=1e-6, le=1e6)
    """C: the largest L2 norm of an update."""


class PsoDpFl:
    """Sgd for every particle, and the noise of the update stage."""

    def __init__(self, parameters: PsoDpFlParameters, setting: MethodContext) -> None:
        self.parameters = parameters
        self._epoch = Sgd(parameters.model_copy(update={"local_epochs": 1}), setting)
        clip = GradientGaussianParameters(clip_norm=parameters.clip_norm)
        self._noise = GradientGaussian(clip, setting)

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        return self._noise.price(exchange)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """The noised change to the swarm's best; without records the noise alone. Needs torch."""
        origin = flat(task.weights)
        best = self.search(task, start) if len(task.records) else origin
        return self._noise.apply(task, shaped(task.weights, best - origin))

    @property
    def event(self) -> GaussianEvent:
        """One round's. Raises PrivacyError where (ε, δ) cannot be met."""
        return self._noise.event

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


class PsoDpSgd(DpSgd):
    """DpSgd for every particle, and a choice among them."""

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
        sgd, view = NoisedSgd(task, sums, p, self.setting), View(p.clip_norm)
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
        norm = p.loss_clip / 2 * math.sqrt(p.particles)
        total = sums.draw(Losses(task, positions, p.loss_clip, sums.processor).rows, norm)
        mean = total / (p.sampling_rate * self.setting.nominal_records)
        return np.asarray(mean + p.loss_clip / 2, np.float64)


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


PARTS = (
    trainer_part(
        parameters=PsoDpFlParameters,
        trainer=PsoDpFl,
        source="Zhang, Wu and Dong (PSO-DP), alg. 2",
        needs="model",
        reveals="each device's clipped and noised update",
        privacy="proven",
        note="per device; for one record among others at the price of twice the sensitivity",
        example="train: {method: pso_dp_fl, particles: 3}",
    ),
    trainer_part(
        parameters=PsoDpSgdParameters,
        trainer=PsoDpSgd,
        source="Zhang, Wu and Dong (PSO-DP), alg. 1",
        needs="model",
        reveals="the best of a swarm that took noised steps",
        privacy="proven",
        note="selection: unpriced is the text's own, claimed",
        example="train: {method: pso_dp_sgd, particles: 3}",
    ),
)
