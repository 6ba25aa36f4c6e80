"""`statistics`: counts, moments, tables and correlations of a fleet's records by noised sums.

Nothing is learned. Each exchange asks for one vector of weighted integer sums over a device's
records (`edgeveil/statistics/blocks.py`), in sums with the noise of one Gaussian event. All
exchanges have the same σ, and together they are one Gaussian release of a longer vector, whose
squared sensitivity is the sum of theirs. Proof: `docs/privacy.md`, "Statistics"."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.data.records import Records
from edgeveil.parts.method_context import MethodContext, MethodParameters, MethodPart
from edgeveil.parts.methods.noise_only import zero_head
from edgeveil.parts.round import (
    Answer,
    Array,
    CloudMethod,
    PlannedRound,
    SegmentSpec,
    Tensors,
    planned_rounds,
    summed_spec,
)
from edgeveil.privacy.events import UNITS, Event, GaussianEvent, SharedGaussian, noise_of
from edgeveil.privacy.gaussian_mechanism import counts_event, gaussian
from edgeveil.privacy.policy import ASK
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.statistics.answers import Sums, answered
from edgeveil.statistics.blocks import MOST, BlockVector, vectors
from edgeveil.statistics.heavy_hitters import LEVELS, HeavyHitters
from edgeveil.statistics.questions import Questions
from edgeveil.subnormals import flushed

MOST_CELLS = 1 << 18  # of an exchange: 2 MiB
SUMS, UPLOADS = "sums", "uploads"
_ROOM_SIGMAS = 12  # bound on the noise, as Q(12) < 2^-108


class StatisticsParameters(Questions, MethodParameters):
    """The `statistics` block of a job, or its `train` block with `method: statistics`."""

    method: Literal["statistics"] = "statistics"
    """Statistics of the fleet's records; learns nothing."""
    rounds: int = Field(default=1, ge=1, le=16)
    """Exchanges, among which the questions are dealt; `values` take four, which is then the default
    of a block `statistics`."""


class Asking:
    """The vectors of a job's exchanges and their events."""

    def __init__(self, parameters: StatisticsParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context
        self.vectors = vectors(parameters, parameters.rounds)

    @cached_property
    def events(self) -> tuple[GaussianEvent | SharedGaussian, ...]:
        """The event of each exchange. Raises PrivacyError if no noise meets (ε, δ)."""
        s = self.context
        bounds = [math.isqrt(one.sensitivity_squared - 1) + 1 for one in self.vectors]
        # Rounding a unit's mean moves it by √cells; the exchanges' roots are bounded by their sum.
        cells = sum(math.isqrt(one.cells) + 1 for one in self.vectors) ** 2
        squared = sum(bound**2 for bound in bounds)
        whole = counts_event(
            "statistics",
            squared,
            cells,
            s.epsilon,
            s.delta,
            1,
            s.honest,
            math.isqrt(squared).bit_length() - 1,
            s.unit,
        )
        return tuple(map(self._of_exchange, [whole] * len(bounds), bounds, self.vectors))

    def _of_exchange(
        self, whole: GaussianEvent | SharedGaussian, bound: int, vector: BlockVector
    ) -> GaussianEvent | SharedGaussian:
        one = noise_of(whole)
        steps = bound << one.grid_bits
        if one.unit != "record":
            steps += math.isqrt(vector.cells) + 1
        same = steps if one.unit == "device" else 0
        own = replace(
            one,
            purpose=ASK,
            sensitivity_steps=steps,
            record_sensitivity_steps=same,
            coordinates=vector.cells,
        )
        return replace(whole, own=own) if isinstance(whole, SharedGaussian) else own

    def event(self, round: PlannedRound) -> GaussianEvent | SharedGaussian:
        return self.events[round.index - 1]

    def vector(self, round: PlannedRound) -> BlockVector:
        return self.vectors[round.index - 1]

    def room(self, round: PlannedRound) -> int:
        """Return the bound on a cell of one device, in steps."""
        own = noise_of(self.event(round))
        return self.vector(round).room(own, self.context.nominal_records)


class StatisticsDevice:
    def __init__(self, parameters: StatisticsParameters, context: MethodContext) -> None:
        self.asking, self.context = Asking(parameters, context), context

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return (self.asking.event(round),)

    @flushed()
    def answer(
        self,
        round: PlannedRound,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        vector, event = self.asking.vector(round).about(tensors), self.asking.event(round)
        steps = self.steps(vector, records, noise_of(event), self.asking.room(round))
        noised, _ = gaussian(steps, noise_of(event), random_bytes)
        return Answer({SUMS: noised}, (event,))

    def steps(
        self, vector: BlockVector, records: Records, event: GaussianEvent, room: int = MOST
    ) -> NDArray[np.int64]:
        return vector.steps(records, event, room)


class StatisticsCloud(CloudMethod):
    def __init__(self, parameters: StatisticsParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context
        self.asking = Asking(parameters, context)

    def plan(self) -> tuple[PlannedRound, ...]:
        return planned_rounds((), self.parameters.rounds)

    def segments(self, round: PlannedRound) -> tuple[SegmentSpec, ...]:
        own = noise_of(self.asking.event(round))
        largest = self.asking.room(round) + math.ceil(_ROOM_SIGMAS * math.sqrt(own.sigma_squared))
        shape = (self.asking.vector(round).cells,)
        if self.context.summed:
            return (summed_spec(SUMS, shape, largest, self.context.summed),)
        return (SegmentSpec(SUMS, shape, "int64", largest=largest),)

    def initial_state(self) -> dict[str, Array]:
        sums = {f"{SUMS}/{at}": np.zeros(one.cells) for at, one in self._numbered}
        uploads = {f"{UPLOADS}/{at}": np.zeros(1, np.int64) for at, _ in self._numbered}
        kept = [one.initial() for one in self.asking.vectors[0].values]
        return {**sums, **uploads, **{name: of for one in kept for name, of in one.items()}}

    @property
    def _numbered(self) -> list[tuple[int, BlockVector]]:
        return list(enumerate(self.asking.vectors, start=1))

    def package(self, state: Tensors, round: PlannedRound) -> dict[str, Array]:
        names = (one.tensor(one.level) for one in self.asking.vector(round).values)
        return {name: np.asarray(state[name]) for name in names if name in state}

    def absorb(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        new = {name: np.asarray(one) for name, one in state.items()}
        new[f"{SUMS}/{round.index}"] = np.rint(mean[SUMS].astype(np.float64) * uploads)
        new[f"{UPLOADS}/{round.index}"] = np.array([uploads], np.int64)
        found = self._sums(round.index, new, uploads)
        for block, _, cells in found.vector.split(found.sums):
            new |= block.next_kept(cells) if isinstance(block, HeavyHitters) else {}
        return new

    def shown(self, state: Tensors) -> Mapping[str, Any]:
        """Return the `statistics` once all exchanges are in the state."""
        uploads = [int(state[f"{UPLOADS}/{at}"][0]) for at, _ in self._numbered]
        if not all(uploads):
            return {}
        s, found = (
            self.context,
            [self._sums(at, state, uploads[at - 1]) for at, _ in self._numbered],
        )
        facts = {"epsilon": s.epsilon, "delta": s.delta, "unit": s.unit}
        return {"statistics": answered(self.parameters, found, facts)}

    def _sums(self, exchange: int, state: Tensors, uploads: int) -> Sums:
        own = noise_of(self.asking.events[exchange - 1])
        unit = 2.0**-own.grid_bits
        vector = self.asking.vectors[exchange - 1].about(state)
        sums = state[f"{SUMS}/{exchange}"].astype(np.float64) * unit
        return Sums(vector, sums, math.sqrt(uploads * own.sigma_squared) * unit, uploads)

    def model(self, state: Tensors) -> dict[str, Array]:
        return zero_head(self.context)


def _refuses(
    parameters: StatisticsParameters, context: MethodContext
) -> Iterable[tuple[tuple[str, ...], str]]:
    values = any(one.values is not None for one in parameters.columns)
    if values and parameters.rounds < len(LEVELS):
        text = f"values that nobody listed take {len(LEVELS)} exchanges, one a level; set rounds:"
        yield ("train.rounds", "statistics.rounds"), f"{text} {len(LEVELS)}"
    cells = max(one.cells for one in vectors(parameters, parameters.rounds))
    if cells > MOST_CELLS:
        text = (
            f"makes {cells} cells of one exchange, more than {MOST_CELLS}; ask less, or set rounds"
        )
        yield ("train.tables", "train.columns"), text
    parts = [one for one in vectors(parameters, parameters.rounds) if one.blocks]
    if len(parts) < parameters.rounds:
        text = f"the question has {len(parts)} parts to deal to {parameters.rounds} exchanges"
        yield ("train.rounds", "statistics.rounds"), f"{text}; set at most {len(parts)}"


PART = MethodPart(
    parameters=StatisticsParameters,
    device=StatisticsDevice,
    cloud=StatisticsCloud,
    learns_on="nothing",
    source="Gaussian mechanism on weighted sums, Dong, Roth and Su 2022, thm 2.7",
    reveals="noised sums over a device's records",
    privacy="proven",
    example="train: {method: statistics, columns: [{name: age, number: [0, 100]}]}",
    summed=True,
    shares=True,
    units=UNITS,
    refuses=_refuses,
)
