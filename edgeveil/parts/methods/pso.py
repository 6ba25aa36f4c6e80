"""Swarms of trained weight vectors, drawn to the best found (Zhang, Wu and Dong, PSO-DP).

An iteration moves the swarm, trains every particle and compares their losses.

`random`: v ← w·v + c₁·r₁·(own best − p) + c₂·r₂·(overall best − p), p ← p + v, r₁ and r₂ uniform in
[0, 1). `adaptive`: a particle continues from its own best. Deviation: all particles start at the
broadcast weights, only first velocities are drawn.

`pso_dp_fl` (alg. 2), proven, unit device: losses choose without noise, and one clip of the whole
update with Gaussian noise (`gradient_gaussian`) hides all records. A move is one pass over the
records.

`pso_dp_sgd` (alg. 1): particles take noised steps (`dp_sgd`). `priced`, proven: a record's N
losses, cut to [0, B] and centred, are a vector of norm at most ½B·√N, whose noised sum counts as
one more step (report-noisy-max); M moves cost M·(N·local_steps + 1) steps. `unpriced`, claimed: as
in the text, the choice and the other particles' steps are free."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.method_context import MethodContext, size_of
from edgeveil.parts.methods.dp_sgd import (
    DpSgd,
    DpSgdParameters,
    NoisedSgd,
    NoisedSums,
    noised_steps,
    record_losses,
)
from edgeveil.parts.methods.local_steps import chosen_processor
from edgeveil.parts.methods.optimizers import LocalTraining, local_refusals
from edgeveil.parts.methods.sgd import Sgd, SgdParameters
from edgeveil.parts.round import PlannedRound
from edgeveil.parts.stage import Task, Update, flat, shaped
from edgeveil.parts.stages.noise import GradientGaussian, GradientGaussianParameters
from edgeveil.parts.update import trainer_part
from edgeveil.privacy.accountant import HAIR
from edgeveil.privacy.events import ClaimedEvent, Event, GaussianEvent, PoissonSampled
from edgeveil.privacy.sampler import RandomBytes

if TYPE_CHECKING:
    import torch


Float64 = NDArray[np.float64]
INERTIA = 0.1  # w of the text, whose c₁ and c₂ are 1
SPREAD = 0.01  # first velocities are uniform between −SPREAD and SPREAD
MOVES = 2  # of a swarm in a round of noised steps
LOSS_CLIP = 4.0  # B: bound of one record's loss
PARTICLES = 3  # N: weight vectors trained separately
SETTLED = {
    "c1": 1.0,
    "c2": 1.0,
    "inertia": INERTIA,
    "spread": SPREAD,
    "particles": PARTICLES,
}


class Swarm:
    """Particle swarm; training changes `positions` (N, d) between `move` and `judge`."""

    def __init__(
        self, start: Float64, random_bytes: RandomBytes, *, adaptive: bool = False
    ) -> None:
        self._adaptive, self._random_bytes = adaptive, random_bytes
        self.positions: Float64 = np.tile(start, (PARTICLES, 1))
        self._velocities = np.zeros_like(self.positions)
        if not adaptive:
            drawn = self._uniform(self.positions.size).reshape(self.positions.shape)
            self._velocities = SPREAD * (2 * drawn - 1)
        self._own, self._own_fitness = self.positions.copy(), np.full(PARTICLES, np.inf)
        self.best, self._fitness = start.copy(), np.inf

    def move(self) -> None:
        if self._adaptive:
            self.positions = self._own.copy()
            return
        own, all_ = self._uniform(2 * PARTICLES).reshape(2, -1, 1)
        self._velocities = (
            INERTIA * self._velocities
            + own * (self._own - self.positions)
            + all_ * (self.best - self.positions)
        )
        self.positions = self.positions + self._velocities

    def judge(self, fitness: Float64) -> None:
        """Update the bests by smaller `fitness` (N,); the first on a tie, never NaN."""
        better = fitness < self._own_fitness
        self._own[better], self._own_fitness[better] = self.positions[better], fitness[better]
        first = int(np.argmin(self._own_fitness))
        if self._own_fitness[first] < self._fitness:
            self.best, self._fitness = self._own[first].copy(), self._own_fitness[first]

    def search(
        self, moves: int, train: Callable[[Float64], Float64], fitness: Callable[[Float64], Float64]
    ) -> Float64:
        """Return the best position (d,) after `moves`, given training and `fitness` (N,)."""
        for _ in range(moves):
            self.move()
            self.positions = np.array([train(one) for one in self.positions])
            self.judge(fitness(self.positions))
        return self.best

    def _uniform(self, count: int) -> Float64:
        words = np.frombuffer(self._random_bytes(8 * count), "<u8")
        return np.asarray((words >> np.uint64(11)) * 2.0**-53, np.float64)


BLOCK = 1024  # records of one forward pass, so that memory is bounded


class PsoDpFl:
    def __init__(self, parameters: SgdParameters, context: MethodContext) -> None:
        self.parameters = parameters
        self._epoch = Sgd(parameters.model_copy(update={"local_epochs": 1}), context)
        clip = GradientGaussianParameters(clip_norm=parameters.clip_norm)
        self._noise = GradientGaussian(clip, context)

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return self._noise.price(round)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Return the noised change to the swarm's best; only noise without records."""
        origin = flat(task.weights)
        best = self.search(task, start) if len(task.records) else origin
        return self._noise.apply(task, shaped(task.weights, best - origin))

    @property
    def event(self) -> GaussianEvent:
        """Event of one round. Raises PrivacyError if (ε, δ) cannot be met."""
        return self._noise.event

    def search(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float64]:
        origin, p = flat(task.weights), self.parameters
        return Swarm(flat(start), task.random_bytes).search(
            p.local_epochs,
            lambda one: origin + flat(self._epoch.train(task, shaped(task.weights, one))),
            lambda positions: np.array([mean_loss(task, one, p) for one in positions]),
        )


def mean_loss(task: Task, position: Float64, parameters: LocalTraining) -> float:
    """Return the mean loss of all records (at least one) under weights `position` (d,)."""
    import torch

    processor, records = chosen_processor(task.processor), task.records
    weights, total, loss = on(processor, task, position), 0.0, parameters.loss_of(task.network)
    with torch.no_grad():
        for first in range(0, len(records), BLOCK):
            x = torch.as_tensor(records.x[first : first + BLOCK]).to(processor)
            y = torch.as_tensor(records.y[first : first + BLOCK]).to(processor)
            total += float(loss(weights, x, y)) * len(y)
    return total / len(records)


class PsoDpSgd(DpSgd):
    @cached_property
    def event(self) -> PoissonSampled:
        p = self.parameters
        steps = p.local_steps
        if p.selection == "priced":
            steps = PARTICLES * p.local_steps + 1
        coordinates = max(size_of(self.context), PARTICLES)
        return noised_steps(p, self.context, MOVES * steps, coordinates)

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        """Return one event of all steps and noised losses; `unpriced`: the text's claim."""
        event = self.event  # raises in either case if its noise cannot be drawn
        if self.parameters.selection == "priced":
            return (event,)
        times = min(self.context.max_participations, self.parameters.rounds)
        claimed = ClaimedEvent(
            what="noised steps, the best chosen by exact losses",
            unit="record",
            claimed_epsilon=self.context.epsilon * HAIR / times,
            source="Zhang, Wu and Dong, PSO-DP",
        )
        return (claimed,)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Return the change to the best weights of the swarm. Needs torch."""
        best = self.search(task, start, NoisedSums(task, self.event))
        return shaped(task.weights, best - flat(task.weights))

    def search(
        self, task: Task, start: Mapping[str, NDArray[np.float32]], sums: NoisedSums
    ) -> NDArray[np.float64]:
        p = self.parameters
        sgd, origin = NoisedSgd(task, sums, p, self.context), flat(task.weights)
        swarm = Swarm(flat(start), task.random_bytes, adaptive=p.search == "adaptive")
        return swarm.search(
            MOVES,
            lambda one: origin + flat(sgd.trained(shaped(task.weights, one), p.local_steps)),
            lambda positions: self._fitness(task, positions, sums),
        )

    def _fitness(
        self, task: Task, positions: NDArray[np.float64], sums: NoisedSums
    ) -> NDArray[np.float64]:
        p = self.parameters
        if p.selection == "unpriced":
            some = len(task.records) > 0
            return np.array([mean_loss(task, at, p) if some else 0.0 for at in positions])
        norm = LOSS_CLIP / 2 * math.sqrt(PARTICLES)
        total = sums.draw(losses_under(task, positions, sums.processor, p), norm)
        mean = total / (p.sampling_rate * self.context.nominal_records)
        return np.asarray(mean + LOSS_CLIP / 2, np.float64)


def on(processor: str, task: Task, position: Float64) -> dict[str, torch.Tensor]:
    import torch

    weights = shaped(task.weights, position)
    return {name: torch.as_tensor(array).to(processor) for name, array in weights.items()}


def losses_under(
    task: Task, positions: Float64, processor: str, parameters: LocalTraining
) -> Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]:
    """Return a function to losses (n, N) of N weight vectors in [0, B], less B/2; NaN is B."""
    import torch

    losses = record_losses(task.network, parameters)
    weights = [on(processor, task, position) for position in positions]

    def rows(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            found = torch.stack([losses(w, x, y) for w in weights], 1)
        found = torch.nan_to_num(found, nan=LOSS_CLIP, posinf=LOSS_CLIP)
        return [found.clamp(0, LOSS_CLIP) - LOSS_CLIP / 2]

    return rows


PARTS = (
    trainer_part(
        name="pso_dp_fl",
        summary="A swarm of networks on each device; its best is clipped and noised as a whole.",
        settled={**SETTLED, "search": "random"},
        parameters=SgdParameters,
        trainer=PsoDpFl,
        refuses=local_refusals,
        source="Zhang, Wu and Dong (PSO-DP), alg. 2",
        needs="model",
        reveals="each device's clipped and noised update",
        privacy="proven",
        note="per device; for one record among others at the price of twice the sensitivity",
        example="train: {method: pso_dp_fl, clip_norm: 1}",
    ),
    trainer_part(
        name="pso_dp_sgd",
        summary="A swarm of networks on each device, every one trained by noised steps.",
        settled={**SETTLED, "moves": MOVES, "loss_clip": LOSS_CLIP},
        parameters=DpSgdParameters,
        trainer=PsoDpSgd,
        refuses=local_refusals,
        source="Zhang, Wu and Dong (PSO-DP), alg. 1",
        needs="model",
        reveals="the best of a swarm that took noised steps",
        privacy="proven",
        note="selection: unpriced is the text's own, claimed",
        example="train: {method: pso_dp_sgd, search: adaptive}",
    ),
)
