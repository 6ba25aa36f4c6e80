"""A swarm of weight vectors, each trained by itself and drawn to the best ones found.

Particle swarm optimisation as Zhang, Wu and Dong's PSO-DP has it (algorithms 1 and 2): one move of
the swarm, then training of every particle, then their losses are compared.

- `random`: v ← w·v + c₁·r₁·(own best − p) + c₂·r₂·(overall best − p), p ← p + v, with r₁ and r₂
  uniform in [0, 1), drawn for each particle and move.
- `adaptive`: training itself is the move; a particle goes on from its own best.

Deviations: all particles begin at the broadcast weights and only their first velocities are drawn
(the text draws positions too, which would throw the global model away). It names no c₁ and c₂.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from edgeveil.privacy.sampler import RandomBytes

Float64 = NDArray[np.float64]


class SwarmKeys(BaseModel):
    """What all methods with a swarm say; all of it is public."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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
