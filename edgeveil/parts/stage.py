"""An update stage: what an update passes on the device before it is sealed, and its wire form.

A clip norm may follow a quantile of the updates' norms (Andrew et al. 2021, alg. 1): each device
says beside its update whether that was within C, and C ← C·exp(−η·(share within − γ)). Both stand
in one vector under one noise: the update clipped to √(1 − s) of the sensitivity, the bit ±√s of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from edgeveil.data.records import Records
from edgeveil.parts.models.network import Network
from edgeveil.parts.part import BlockPart, PartBlock
from edgeveil.parts.round import PlannedRound
from edgeveil.privacy.events import Event
from edgeveil.privacy.gaussian_mechanism import clipped_steps
from edgeveil.privacy.sampler import RandomBytes

CLIP_NORM, WITHIN = "clip-norm", "clip-within"  # no weight has a name like that
SMALLEST_CLIP, LARGEST_CLIP = 1e-6, 1e6  # what a norm can become
CLIP_RATE = 0.2  # η: it moves by a factor of e^η at most
BIT_SHARE = 0.05  # s: of the squared sensitivity; the update has the rest


@dataclass(frozen=True)
class AdaptiveClip:
    """`quantile` γ, and the `first` round's C."""

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
        """The update (d,) clipped to `clip_norm` and its bit (d + 1,), before noise, of L2 norm
        `sensitivity_steps` at most."""
        relative = values / clip_norm
        steps = clipped_steps(relative * self.update_steps, self.update_steps, 0)
        within = float(np.sqrt(np.square(relative).sum())) <= 1
        return np.append(steps, self.bit_steps if within else -self.bit_steps)

    def step(self, clip_norm: float) -> float:
        return clip_norm / self.update_steps

    def moved(self, clip_norm: float, mean_bit: float) -> float:
        within = (mean_bit / self.bit_steps + 1) / 2
        factor = math.exp(-CLIP_RATE * (min(max(within, 0.0), 1.0) - self.quantile))
        return min(max(clip_norm * factor, SMALLEST_CLIP), LARGEST_CLIP)


Int64 = NDArray[np.int64]
Update = dict[str, NDArray[np.float32]]
Memory = dict[str, NDArray[np.generic]]
"""What this device keeps from round to round of one job, by names of its own; never uploaded."""


@dataclass(frozen=True)
class Task:
    """One training round on a device: the global `weights`, `memory` that may be changed, and the
    `clip_norm` where it moves."""

    round: PlannedRound
    network: Network
    weights: Mapping[str, NDArray[np.float32]]
    records: Records
    memory: Memory
    random_bytes: RandomBytes
    processor: str
    clip_norm: float = 0.0


@dataclass(frozen=True)
class FixedPoint:
    """How values travel where summed: integers in steps of 2**-`grid_bits`, ±`largest` steps of
    each."""

    grid_bits: int
    largest: int

    def steps(self, values: NDArray[np.floating[Any]]) -> Int64:
        """Values of any shape on the grid; what is too large is cut off."""
        steps = np.rint(np.asarray(values, np.float64) * 2.0**self.grid_bits)
        cut: Int64 = np.clip(steps, -self.largest, self.largest).astype(np.int64)
        return cut


USUAL_GRID = FixedPoint(20, 64 << 20)  # changes of up to 64: 32 bits a value for 20 devices


class BaseStage:
    """One entry of a job's `update` list; here without price, grid or memory.

    `protects`: its events price the whole update. `chooses`: it sets values to 0 by what it is
    given. `leads`: it must stand first. `remembers`: what the device keeps follows from its upload.
    `shares`: devices of a sum can share its noise. `wire`: type of values after it; any but float32
    stands last.
    """

    protects = False
    chooses = False
    leads = False
    remembers = False
    shares = False
    wire: str = "float32"

    def __init__(self, parameters: Any = None, context: Any = None) -> None:
        self.parameters, self.context = parameters, context

    @property
    def grid(self) -> FixedPoint | None:
        """Grid of its noise, so that noised integers (`steps`) are summed; None: the usual grid."""
        return None

    @property
    def clip(self) -> AdaptiveClip | None:
        """How its clip norm moves from round to round; None for none, or one that stays."""
        return None

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        """What it adds to the price; () for post-processing."""
        return ()

    def start(self, task: Task) -> dict[str, NDArray[np.float32]] | None:
        """The weights that training starts from, None for those that were broadcast."""
        return None

    def apply(self, task: Task, update: Update) -> Update:
        raise NotImplementedError

    def steps(self, task: Task, update: Update) -> Int64:
        """As `apply`, as noised integers (d,) in the weights' order, a `clip`'s bit behind them."""
        raise NotImplementedError


class StageParameters(PartBlock):
    """One entry of a job's `update` list."""

    name: str


@dataclass(frozen=True, kw_only=True)
class StagePart(BlockPart):
    """Declaration of a stage, made by `build(parameters, context)`."""

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
    """Mask (d,) of the `share` of values largest in magnitude, rounded up; of equal ones the
    earlier."""
    kept = np.zeros(values.size, bool)
    count = int(np.ceil(share * values.size))
    kept[np.argsort(-np.abs(values), kind="stable")[:count]] = True
    return kept
