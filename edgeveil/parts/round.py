"""A training method: a plan of rounds, a device half and a cloud half.

A *round* is one broadcast and its answers. Preparatory phases (of `fm`: centring, the
quadratic) precede the training rounds. Devices send named segments; the cloud sees their mean only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.ring import LEAST_BITS, Ring
from edgeveil.errors import ProtocolError

if TYPE_CHECKING:
    from edgeveil.data.records import Records
    from edgeveil.privacy.events import Event
    from edgeveil.privacy.sampler import RandomBytes

Array = NDArray[np.generic]
Tensors = Mapping[str, NDArray[np.generic]]

TRAIN = "train"
EVALUATE = "evaluate"  # a model on the devices' evaluation records; no method knows of it
CLUSTER = "cluster"  # the same, by sums about public centroids
EVALUATIONS = (CLUSTER, EVALUATE)  # in their order after a round
KEPT = "kept/"  # before the name of what a device keeps to itself, among an answer's tensors


@dataclass(frozen=True)
class PlannedRound:
    """One broadcast and its answers; `index` counts from 1 over the job.

    `phase` is `train`, one of EVALUATIONS, or a preparatory phase's name; `number` is the training
    round's, 0 in a preparatory phase. `infer` asks for softmax uploads.
    """

    index: int
    phase: str
    number: int
    infer: bool = False

    @property
    def label(self) -> str:
        return round_label(self.phase, self.number)

    @property
    def carries_model(self) -> bool:
        """Whether devices get the model itself, to run it on their evaluation records."""
        return self.infer or self.evaluates

    @property
    def evaluates(self) -> bool:
        """Whether devices sum over evaluation records and train nothing."""
        return self.phase in EVALUATIONS


def round_label(phase: str, number: int) -> str:
    """For a person: `centre`, `round 3`, `evaluation of round 3`, `clusters of round 3`."""
    of = {
        TRAIN: f"round {number}",
        EVALUATE: f"evaluation of round {number}",
        CLUSTER: f"clusters of round {number}",
    }
    return of.get(phase, phase)


def short_label(phase: str, number: int) -> str:
    """The same for a table: `centre`, `3`, `3, evaluated`."""
    of = {EVALUATE: f"{number}, evaluated", CLUSTER: f"{number}, clustered"}
    return of.get(phase, str(number or phase))


def planned_rounds(preparation: Sequence[str], rounds: int) -> tuple[PlannedRound, ...]:
    first = len(preparation)
    return (
        *(PlannedRound(index, phase, 0) for index, phase in enumerate(preparation, start=1)),
        *(PlannedRound(first + k, TRAIN, k) for k in range(1, rounds + 1)),
    )


@dataclass(frozen=True)
class SegmentSpec:
    """Public form of one uploaded tensor.

    `bits`: integers summed mod 2^bits under masks, only the sum is seen. `largest`: an upload with
    a value beyond ±that does not count, nor a sum of n beyond n times that.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str  # "float16" | "float32" | "float64" | "int64"
    bits: int = 0
    largest: int | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def byte_count(self) -> int:
        """Bytes of the raw tensor, little-endian, C order; packed where summed."""
        if self.bits:
            return Ring(self.count, self.bits).byte_count
        return self.count * np.dtype(self.dtype).itemsize


def summed_spec(name: str, shape: tuple[int, ...], largest: int, uploads: int) -> SegmentSpec:
    """Of integers up to ±`largest`, of which at most `uploads` are summed: no sum wraps around."""
    bits = max(LEAST_BITS, (largest * uploads).bit_length() + 1)
    return SegmentSpec(name, shape, "int64", bits, largest)


@dataclass(frozen=True)
class Answer:
    """A device's noised segments and the events that price them, in one hand."""

    segments: Mapping[str, NDArray[np.generic]]
    events: tuple[Event, ...]
    kept: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """What the device keeps to itself for its next round of this job; it never leaves."""


@dataclass(frozen=True)
class Aim:
    """The global `weights` that segments are added to (`change`) or replace."""

    weights: Tensors
    change: bool


def required(tensors: Tensors, name: str, shape: tuple[int, ...], dtype: str) -> Array:
    """Return a package's tensor; ProtocolError unless it has this form and is finite."""
    found = tensors.get(name)
    if found is None or (found.shape, str(found.dtype)) != (shape, dtype):
        raise ProtocolError("bad_package", f"tensor '{name}' is not {dtype} of shape {list(shape)}")
    if not np.isfinite(found).all():
        raise ProtocolError("bad_package", f"tensor '{name}' is not finite")
    return found


class DeviceMethod(Protocol):
    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        """The events an answer to this round costs. Never reads a record."""
        ...

    def answer(
        self,
        round: PlannedRound,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes,
        processor: str = "auto",
    ) -> Answer:
        """Noised segments, whose events equal `price(round)`. `processor`: `cuda`, `mps`, `cpu`
        or `auto`. Raises ProtocolError for a malformed package before any record is read."""
        ...


class CloudMethod(Protocol):
    """The half that runs in the cloud; its state is a plain mapping of arrays, so it is stored."""

    def plan(self) -> tuple[PlannedRound, ...]: ...

    def segments(self, round: PlannedRound) -> tuple[SegmentSpec, ...]:
        """What a device uploads in this round (the softmax upload aside)."""
        ...

    def initial_state(self) -> dict[str, Array]: ...

    def package(self, state: Tensors, round: PlannedRound) -> dict[str, Array]: ...

    def aim(self, state: Tensors, round: PlannedRound) -> Aim | None:
        """The weights that this round's segments change; None where they are noised sums."""
        return None

    def absorb(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """State after the mean of `uploads` devices' segments, or what a rule made of them."""
        ...

    def model(self, state: Tensors) -> dict[str, Array]:
        """Weights of the current global model, as the ONNX graph's weight inputs name them."""
        ...
