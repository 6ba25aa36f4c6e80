"""Interface of training methods: a plan of rounds, a device half and a cloud half.

A *round* is one broadcast and its answers. Preparatory phases (for `fm`: centring, the quadratic)
precede the training rounds. Devices send named segments; the cloud sees only their mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

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
EVALUATE = "evaluate"  # the model on the devices' evaluation records, outside any method
CLUSTER = "cluster"  # the same, by sums around public centroids
ASK = "ask"  # statistics of all of the devices' records, without a model
EVALUATIONS = (CLUSTER, ASK, EVALUATE)  # in their order after a round
KEPT = "kept/"  # prefix of tensors that a device keeps to itself
PERSONAL = "personal/"  # prefix, in that state, of weights of the device's own model


@dataclass(frozen=True)
class PlannedRound:
    """One broadcast and its answers; `index` counts from 1 over the job.

    `phase`: `train`, one of EVALUATIONS, or a preparatory phase. `number`: of the training round,
    else 0. `infer` requests softmax uploads."""

    index: int
    phase: str
    number: int
    infer: bool = False

    @property
    def label(self) -> str:
        return round_label(self.phase, self.number)

    @property
    def carries_model(self) -> bool:
        return self.infer or self.phase in (CLUSTER, EVALUATE)

    @property
    def evaluates(self) -> bool:
        """Whether devices only sum over records, without training."""
        return self.phase in EVALUATIONS


def round_label(phase: str, number: int) -> str:
    """Return a label: `centre`, `round 3`, `evaluation of round 3`, `question of round 3`."""
    of = {
        TRAIN: f"round {number}",
        EVALUATE: f"evaluation of round {number}",
        CLUSTER: f"clusters of round {number}",
        ASK: f"question of round {number}",
    }
    return of.get(phase, phase)


def short_label(phase: str, number: int) -> str:
    """Return a label for tables: `centre`, `3`, `3, evaluated`."""
    of = {EVALUATE: f"{number}, evaluated", CLUSTER: f"{number}, clustered"}
    of[ASK] = f"{number}, asked"
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

    `bits`: integers are summed mod 2^bits under masks, 0 without masks. `largest`: an upload beyond
    ±`largest` is discarded, and a sum of n beyond n·`largest`."""

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
        """Bytes of the raw tensor, little-endian, C order; bit-packed if summed."""
        if self.bits:
            return Ring(self.count, self.bits).byte_count
        return self.count * np.dtype(self.dtype).itemsize


def summed_spec(name: str, shape: tuple[int, ...], largest: int, uploads: int) -> SegmentSpec:
    """Return the form of integers up to ±`largest`, wide enough to sum `uploads` of them."""
    bits = max(LEAST_BITS, (largest * uploads).bit_length() + 1)
    return SegmentSpec(name, shape, "int64", bits, largest)


@dataclass(frozen=True)
class Answer:
    segments: Mapping[str, NDArray[np.generic]]
    events: tuple[Event, ...]
    kept: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """State for the device's next round of this job; never uploaded."""
    without: str = ""
    """Why the records count as none, for the device's owner alone; "" if they were learned."""


@dataclass(frozen=True)
class Aim:
    """Global `weights` that the segments are added to (`change`) or replace."""

    weights: Tensors
    change: bool


def required(tensors: Tensors, name: str, shape: tuple[int, ...], dtype: str) -> Array:
    """Return a tensor of a package. Raises ProtocolError for another form or non-finite values."""
    found = tensors.get(name)
    if found is None or (found.shape, str(found.dtype)) != (shape, dtype):
        raise ProtocolError("bad_package", f"tensor '{name}' is not {dtype} of shape {list(shape)}")
    if not np.isfinite(found).all():
        raise ProtocolError("bad_package", f"tensor '{name}' is not finite")
    return found


def personal_weights(kept: Tensors) -> dict[str, Array]:
    """Return the weights of a device's own model in its kept state, by name."""
    own = ((name.partition(PERSONAL), array) for name, array in kept.items())
    return {name: np.asarray(array) for (before, found, name), array in own if found and not before}


class DeviceMethod(Protocol):
    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        """Return the events of an answer to this round, without reading a record."""
        ...

    def answer(
        self,
        round: PlannedRound,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes,
        processor: str = "auto",
    ) -> Answer:
        """Return noised segments, whose events equal `price(round)`.

        `processor`: `cuda`, `mps`, `cpu` or, by default, `auto`. Raises ProtocolError for a
        malformed package before any record is read."""
        ...


class CloudMethod(Protocol):
    """Cloud half of a method; the state is a mapping of arrays, so that it can be stored."""

    def plan(self) -> tuple[PlannedRound, ...]: ...

    def segments(self, round: PlannedRound) -> tuple[SegmentSpec, ...]: ...

    def initial_state(self) -> dict[str, Array]: ...

    def package(self, state: Tensors, round: PlannedRound) -> dict[str, Array]: ...

    def aim(self, state: Tensors, round: PlannedRound) -> Aim | None:
        """Return the weights that this round's segments change; None for noised sums."""
        return None

    def shown(self, state: Tensors) -> Mapping[str, Any]:
        """Return JSON facts of the state for a round's event."""
        return {}

    def absorb(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """Return the state after a round; `mean` aggregates `uploads` devices' segments."""
        ...

    def model(self, state: Tensors) -> dict[str, Array]:
        """Return the current global model, named as the weight inputs of the ONNX graph."""
        ...
