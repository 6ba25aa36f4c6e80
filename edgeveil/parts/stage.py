"""Update stages: transformations of an update on the device before sealing, and its wire form.

A clip norm may follow a quantile of the updates' norms (Andrew et al. 2021, alg. 1): each device
adds to its update one bit, whether the norm is within C, and C ← C·exp(−η·(share within − γ)).
Update and bit are one vector under one noise: the update is clipped to √(1 − s) of the sensitivity,
the bit is ±√s of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from edgeveil.data.records import Records
from edgeveil.parts.models.network import Network
from edgeveil.parts.part import BlockPart, Keys
from edgeveil.parts.round import PlannedRound
from edgeveil.privacy.events import Event
from edgeveil.privacy.gaussian_mechanism import clipped_steps
from edgeveil.privacy.sampler import RandomBytes

# Names that cannot collide with those of weights.
CLIP_NORM, WITHIN, NOISE = "clip-norm", "clip-within", "correlated-noise"
SMALLEST_CLIP, LARGEST_CLIP = 1e-6, 1e6  # range of an adaptive clip norm
CLIP_RATE = 0.2  # η: C changes by a factor of at most e^η per round
BIT_SHARE = 0.05  # s: share of the squared sensitivity that the bit gets


@dataclass(frozen=True)
class AdaptiveClip:
    """Clip norm that follows the `quantile` γ of update norms, from the `first` round's C."""

    first: float
    quantile: float
    sensitivity_steps: int

    @property
    def bit_steps(self) -> int:
        return math.isqrt(int(BIT_SHARE * self.sensitivity_steps**2))

    @property
    def update_steps(self) -> int:
        return math.isqrt(self.sensitivity_steps**2 - self.bit_steps**2)

    def steps(self, values: NDArray[np.float64], clip_norm: float) -> Int64:
        """Return the clipped update and its bit, (d + 1,), of L2 norm ≤ `sensitivity_steps`."""
        relative = values / clip_norm
        steps = clipped_steps(relative * self.update_steps, self.update_steps, 0)
        within = float(np.sqrt(np.square(relative).sum())) <= 1
        return np.append(steps, self.bit_steps if within else -self.bit_steps)

    def step(self, clip_norm: float) -> float:
        return clip_norm / self.update_steps

    def next_norm(self, clip_norm: float, mean_bit: float) -> float:
        within = (mean_bit / self.bit_steps + 1) / 2
        factor = math.exp(-CLIP_RATE * (min(max(within, 0.0), 1.0) - self.quantile))
        return min(max(clip_norm * factor, SMALLEST_CLIP), LARGEST_CLIP)


Int64 = NDArray[np.int64]
Update = dict[str, NDArray[np.float32]]
Memory = dict[str, NDArray[np.generic]]
"""State that a device keeps between the rounds of one job, by name; never uploaded."""


@dataclass(frozen=True)
class Task:
    """One training round on a device; `memory` may be changed, `clip_norm` is 0 unless adaptive.

    `extra`: what the method broadcasts beside the weights."""

    round: PlannedRound
    network: Network
    weights: Mapping[str, NDArray[np.float32]]
    records: Records
    memory: Memory
    random_bytes: RandomBytes
    processor: str
    clip_norm: float = 0.0
    extra: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)


@dataclass(frozen=True)
class FixedPoint:
    """Encoding of summed values: integer steps of 2**-`grid_bits`, each within ±`largest` steps."""

    grid_bits: int
    largest: int

    def steps(self, values: NDArray[np.floating[Any]]) -> Int64:
        """Return values of any shape in steps of the grid, clipped to ±`largest`."""
        steps = np.rint(np.asarray(values, np.float64) * 2.0**self.grid_bits)
        cut: Int64 = np.clip(steps, -self.largest, self.largest).astype(np.int64)
        return cut


USUAL_GRID = FixedPoint(20, 64 << 20)  # changes up to ±64: 32 bits per value for 20 devices


class BaseStage:
    """One entry of a job's `update` list; by default without price, grid or memory.

    `protects`: the stage's events price the whole update. `chooses`: zeroes values depending on the
    input. `leads`: must be first. `remembers`: its memory follows from the upload. `shares`:
    devices of a sum can share its noise; `correlates`: later rounds can take it back. `wire`: dtype
    of the output; other than float32 only last.
    """

    protects = False
    chooses = False
    leads = False
    remembers = False
    shares = False
    correlates = False
    wire: str = "float32"

    def __init__(self, parameters: Any = None, context: Any = None) -> None:
        self.parameters, self.context = parameters, context

    @property
    def grid(self) -> FixedPoint | None:
        """Grid on which noised integers (`steps`) are summed; None for the default grid."""
        return None

    @property
    def clip(self) -> AdaptiveClip | None:
        """Adaptive clip norm; None (the default) for a fixed norm or none."""
        return None

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return ()

    def start(self, task: Task) -> dict[str, NDArray[np.float32]] | None:
        """Return the weights to start training from; None by default, for the broadcast ones."""
        return None

    def apply(self, task: Task, update: Update) -> Update:
        raise NotImplementedError

    def steps(self, task: Task, update: Update) -> Int64:
        """Return noised integers (d,) in the weights' order, followed by any bit of `clip`.

        With correlated noise they are followed by the noise that is taken back, as many integers.
        """
        raise NotImplementedError


class StageParameters(Keys):
    name: str


@dataclass(frozen=True, kw_only=True)
class StagePart(BlockPart):
    family: ClassVar[str] = "stages"
    key: ClassVar[str] = "update"
    what: ClassVar[str] = "update stage"
    block: ClassVar[type[BaseModel]] = StageParameters

    build: Callable[[Any, Any], BaseStage]


def flat(update: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(array, np.float64).ravel() for array in update.values()])


def shaped(update: Mapping[str, NDArray[np.float32]], values: NDArray[np.float64]) -> Update:
    result, start = {}, 0
    for name, array in update.items():
        part = values[start : start + array.size].reshape(array.shape)
        result[name] = part.astype(np.float32)
        start += array.size
    return result


def largest(values: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    """Return a mask (d,) of the `share` of values largest in magnitude, the first on a tie."""
    kept = np.zeros(values.size, bool)
    count = int(np.ceil(share * values.size))
    kept[np.argsort(-np.abs(values), kind="stable")[:count]] = True
    return kept
