"""Audit of a simulated run: devices that hold a canary instead of records.

The first devices of the fleet are canaries. By a fair coin, one answers as a device without records
in all rounds, or its update is ± a large number in each coordinate, with signs of its own in every
round, which the job's stage clips. Its score is the product of the signs with what the observer of
the guarantee sees, added up over the rounds: its own noised uploads, or with shared noise the sums.
Real records never meet a canary, and no job that is submitted can ask for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.jobs import Plan
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.method_context import size_of, uploaded
from edgeveil.parts.round import TRAIN, Array, PlannedRound
from edgeveil.parts.stage import LARGEST_CLIP, WITHIN, Task, Update
from edgeveil.parts.update import UpdateDevice, split
from edgeveil.privacy.events import Event, UnprotectedEvent
from edgeveil.privacy.one_run_audit import OneRunAudit
from edgeveil.testing import SimulationSeeds

BLOCK = 64  # uploads fetched at once
Float64 = NDArray[np.float64]


class Canary:
    """A trainer whose update is the device's direction of the round; zero without a record."""

    def __init__(self, plan: Plan, seeds: SimulationSeeds, device: int) -> None:
        self._context, self._seeds, self._device = plan.context, seeds, device

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return (UnprotectedEvent(what="canary", unit="record"),)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        signs = direction(self._seeds, self._device, task.round.index, size_of(self._context))
        values = (LARGEST_CLIP * len(task.records) * signs).astype(np.float32)
        return split(uploaded(self._context), values, whole=False)


def with_canary(plan: Plan, seeds: SimulationSeeds, device: int) -> Plan:
    """Return the plan of a device that is a canary."""
    found = copy(plan)
    found.device = UpdateDevice(Canary(plan, seeds, device), plan.context)
    return found


def canary_records(plan: Plan, seeds: SimulationSeeds, device: int) -> Records:
    """Return one made-up record if the canary is included, else none."""
    count = int(included(seeds, device))
    shape = (count, *plan.job.data.input_shape)
    return Records(np.zeros(shape, np.float32), np.zeros(count, np.int64))


def included(seeds: SimulationSeeds, device: int) -> bool:
    return bool(seeds.canary(device)(1)[0] & 1)


def direction(seeds: SimulationSeeds, device: int, round: int, size: int) -> Float64:
    """Return the unbiased signs (size,) of a canary in a round."""
    drawn = np.frombuffer(seeds.canary(device, round)(-(-size // 8)), np.uint8)
    return np.unpackbits(drawn)[:size] * 2.0 - 1.0


class CanaryScores:
    """The auditor of a run with `canaries`: observes each round, then guesses."""

    def __init__(self, plan: Plan, seeds: SimulationSeeds, canaries: int) -> None:
        self._plan, self._seeds = plan, seeds
        self._scores = np.zeros(canaries)

    def observe(
        self,
        context: RoundContext,
        uploaded_by: Sequence[int],
        opened: Mapping[str, Sequence[Array]],
        of_devices: Callable[[int, Sequence[int]], Mapping[int, Array]],
    ) -> None:
        """Add a round's scores.

        `opened`: sums by segment; `of_devices` returns the arrays of a segment by device."""
        if context.round.phase != TRAIN:
            return
        specs = [s for s in enumerate(context.segments) if s[1].name not in (SOFTMAX, WITHIN)]
        present = [number for number in uploaded_by if number <= len(self._scores)]
        if self._plan.context.honest:
            total = _flat([np.sum(opened[spec.name], axis=0) for _, spec in specs])
            self._add(context, dict.fromkeys(present, total))
            return
        for start in range(0, len(present), BLOCK):
            numbers = present[start : start + BLOCK]
            parts = [of_devices(group, numbers) for group, _ in specs]
            self._add(context, {n: _flat([part[n] for part in parts]) for n in numbers})

    def _add(self, context: RoundContext, seen: Mapping[int, Float64]) -> None:
        for number, values in seen.items():
            signs = direction(self._seeds, number, context.round.index, len(values))
            self._scores[number - 1] += float(signs @ values)

    def guess(self) -> OneRunAudit:
        coins = [included(self._seeds, number + 1) for number in range(len(self._scores))]
        return OneRunAudit.of(self._scores.tolist(), coins, self._plan.job.privacy.delta)


def _flat(arrays: Sequence[Array]) -> Float64:
    return np.concatenate([np.asarray(one, np.float64).ravel() for one in arrays])
