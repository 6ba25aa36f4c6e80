"""`noise_only`: packages and uploads of chosen sizes, to test links and load.

Devices upload fresh uniform noise; no record is read, ε = 0, nothing is learned."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.data.records import Records
from edgeveil.parts.method_context import MethodContext, MethodParameters, MethodPart
from edgeveil.parts.round import (
    Answer,
    Array,
    CloudMethod,
    PlannedRound,
    SegmentSpec,
    Tensors,
    planned_rounds,
    required,
    summed_spec,
)
from edgeveil.privacy.events import Event
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.subnormals import flushed

PACKAGE, NOISE = "package", "noise"
_LARGEST = 1 << 24  # values, 64 MiB


class NoiseOnlyParameters(MethodParameters):
    """The `train` block of a job with `method: noise_only`."""

    method: Literal["noise_only"] = "noise_only"
    """Pure noise in place of updates, to test links and load; reads no record, learns nothing."""
    rounds: int = Field(default=3, ge=1, le=10_000)
    """Rounds."""
    values: int = Field(default=16_384, ge=1, le=_LARGEST)
    """float32 values of one upload; 16384 are 64 KiB."""
    package_values: int = Field(default=1024, ge=1, le=_LARGEST)
    """float32 values of one broadcast."""


class NoiseOnlyDevice:
    def __init__(self, parameters: NoiseOnlyParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return ()

    @flushed()
    def answer(
        self,
        round: PlannedRound,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        required(tensors, PACKAGE, (self.parameters.package_values,), "float32")
        values = uniform(self.parameters.values, random_bytes)
        summed = self.context.summed
        return Answer({NOISE: as_summed_steps(values, summed) if summed else values}, ())


class NoiseOnlyCloud(CloudMethod):
    def __init__(self, parameters: NoiseOnlyParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context

    def plan(self) -> tuple[PlannedRound, ...]:
        return planned_rounds((), self.parameters.rounds)

    def segments(self, round: PlannedRound) -> tuple[SegmentSpec, ...]:
        shape, summed = (self.parameters.values,), self.context.summed
        if summed:
            return (summed_spec(NOISE, shape, steps_of_one(summed), summed),)
        return (SegmentSpec(NOISE, shape, "float32"),)

    def initial_state(self) -> dict[str, Array]:
        return {"uploads": np.zeros(1, np.int64), "mean": np.zeros(1)}

    def package(self, state: Tensors, round: PlannedRound) -> dict[str, Array]:
        return {PACKAGE: np.zeros(self.parameters.package_values, np.float32)}

    def absorb(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        total, old = int(state["uploads"][0]) + uploads, float(state["mean"][0])
        step = 1 / steps_of_one(self.context.summed) if self.context.summed else 1.0
        new = old + (float(mean[NOISE].mean()) * step - old) * uploads / total
        return {"uploads": np.array([total], np.int64), "mean": np.array([new])}

    def shown(self, state: Tensors) -> dict[str, float]:
        return {"mean_of_values": float(state["mean"][0])}

    def model(self, state: Tensors) -> dict[str, Array]:
        return zero_head(self.context)


def zero_head(s: MethodContext) -> dict[str, Array]:
    """Return the weights of a head that learned nothing."""
    head: dict[str, Array] = {
        "centre": np.zeros(s.dimension, np.float32),
        "radius": np.ones(1, np.float32),
        "weight": np.zeros((s.dimension, s.classes), np.float32),
    }
    if s.kept is not None:
        head["basis"] = np.zeros((s.feature_dimension, s.kept), np.float32)
    return head


def uniform(values: int, random_bytes: RandomBytes = os_random) -> NDArray[np.float32]:
    """Return `values` float32 in [-1, 1], one from each 4 bytes of `random_bytes`."""
    words = np.frombuffer(random_bytes(4 * values), "<i4")
    return words.astype(np.float32) * np.float32(2.0**-31)


_SUMMED_BITS = 32  # as many as a float32 has


def steps_of_one(summed: int) -> int:
    """Return the integer that encodes 1.0 in a sum of `summed` uploads."""
    return (1 << _SUMMED_BITS - 1) // summed - 1


def as_summed_steps(values: NDArray[np.float32], summed: int) -> NDArray[np.int64]:
    return np.rint(values.astype(np.float64) * steps_of_one(summed)).astype(np.int64)


PART = MethodPart(
    parameters=NoiseOnlyParameters,
    device=NoiseOnlyDevice,
    cloud=NoiseOnlyCloud,
    learns_on="nothing",
    source="a test of links and load",
    reveals="nothing",
    privacy="proven",
    example="train: {method: noise_only, values: 16384}",
    summed=True,
)
