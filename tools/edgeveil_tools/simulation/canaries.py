"""Audit of a simulated run: the first devices hold a canary instead of records.

By a fair coin a canary is included, else its device answers as one without records in all rounds.
With a guarantee per device, the canary is an update: ± a large number in each coordinate, with
signs of its own in every round, which the job's stage clips. With one per record, it is a made-up
record that the method learns. Its score is the product of what it changes with what the observer of
the guarantee sees, its device's noised uploads or, with shared noise, their sums, over all rounds.
Records are much alike, so which of them a sum has is told by ridge regression.
Real records never meet a canary, and no job that is submitted can ask for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.jobs import Plan
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.jobs.rehearsal import synthetic_records
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.method_context import network_of, size_of, uploaded
from edgeveil.parts.methods import fm_sums
from edgeveil.parts.methods.dp_sgd import record_gradients
from edgeveil.parts.methods.fm import FmDevice
from edgeveil.parts.round import TRAIN, Array, PlannedRound, Tensors
from edgeveil.parts.stage import LARGEST_CLIP, NOISE, WITHIN, Task, Update
from edgeveil.parts.update import UpdateCloud, UpdateDevice, split
from edgeveil.privacy.events import Event, UnprotectedEvent
from edgeveil.privacy.one_run_audit import OneRunAudit
from edgeveil.testing import SimulationSeeds

BLOCK = 64  # canaries scored at once
Float64 = NDArray[np.float64]
_BESIDE = (SOFTMAX, WITHIN, NOISE)  # segments beside what a canary changes


def refusal(plan: Plan) -> str:
    """Return why the job cannot be audited in one run, or ""."""
    context, cloud, method = plan.context, plan.cloud, plan.job.train.method
    alike = isinstance(cloud, UpdateCloud) and not cloud.carries_more and not context.local
    if alike and any(stage.protects for stage in context.stages):
        return ""
    if method in RECORD_CHANGES and not context.stages and context.projection is None:
        return ""
    able = ", ".join(RECORD_CHANGES)
    what = f"what a canary changes is known for {able} without a PCA or stages, and for an update"
    return f"{what} stage with noise whose method sends only the update; use one of them"


class Canaries:
    def __init__(self, plan: Plan, seeds: SimulationSeeds, count: int) -> None:
        self.plan, self.seeds, self.count = plan, seeds, count
        self.of_devices = any(stage.protects for stage in plan.context.stages)
        made = synthetic_records(plan, count)
        extreme = np.where(made.x > 0.5 * made.x.max(initial=0), made.x.max(initial=0), 0)
        self._made = Records(extreme.astype(np.float32), made.y)  # unlike each other

    def included(self, device: int) -> bool:
        return bool(self.seeds.canary(device)(1)[0] & 1)

    def records(self, device: int) -> Records:
        """Return a made-up record if the device's canary is included, else none."""
        return self._made.at(np.arange(device - 1, device - 1 + self.included(device)))

    def plan_of(self, device: int) -> Plan:
        """Return the plan of a device with a canary."""
        if not self.of_devices:
            return self.plan
        found = copy(self.plan)
        found.device = UpdateDevice(_Direction(self, device), self.plan.context)
        return found

    def signs(self, device: int, round: PlannedRound) -> Float64:
        """Return unbiased signs (values,) of a device's update in a round."""
        size = size_of(self.plan.context)
        drawn = np.frombuffer(self.seeds.canary(device, round.index)(-(-size // 8)), np.uint8)
        return np.unpackbits(drawn)[:size].astype(np.float64) * 2 - 1

    def changes(self, round: PlannedRound, tensors: Tensors, devices: Sequence[int]) -> Float64:
        """Return what the canaries change (devices, values), each up to a factor.

        Rounds with different noise are weighted by its variance."""
        if self.of_devices:
            return np.stack([self.signs(device, round) for device in devices])
        made = self._made.at(np.asarray(devices) - 1)
        return RECORD_CHANGES[self.plan.job.train.method](self.plan, round, tensors, made)


class _Direction:
    """A trainer whose update has the canary's signs; zero without a record."""

    def __init__(self, canaries: Canaries, device: int) -> None:
        self._canaries, self._device = canaries, device

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return (UnprotectedEvent(what="canary", unit="record"),)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        signs = self._canaries.signs(self._device, task.round)
        values = (LARGEST_CLIP * len(task.records) * signs).astype(np.float32)
        return split(uploaded(self._canaries.plan.context), values, whole=False)


def _ascent(plan: Plan, round: PlannedRound, tensors: Tensors, made: Records) -> Float64:
    """Return the gradients of the records' losses at the broadcast weights, of norm 1."""
    import torch

    context, names = plan.context, [weight.name for weight in uploaded(plan.context)]
    x = np.asarray(context.features(made.x), np.float32) if context.mapped else made.x
    weights = {name: torch.as_tensor(np.asarray(tensors[name])) for name in names}
    network, parameters = network_of(context), plan.job.train
    gradients = record_gradients(network, parameters)  # type: ignore[arg-type]
    found = gradients(weights, torch.as_tensor(x), torch.as_tensor(made.y))
    rows = torch.cat([found[name].flatten(1) for name in names], 1).double().numpy()
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1), 1e-9)[:, None])


def _descent(plan: Plan, round: PlannedRound, tensors: Tensors, made: Records) -> Float64:
    return -_ascent(plan, round, tensors, made)


def _polynomial(plan: Plan, round: PlannedRound, tensors: Tensors, made: Records) -> Float64:
    """Return the records' coefficients; seen through a local minimum, times the curvature."""
    device = cast("FmDevice", plan.device)
    each = [device.sums(round, tensors, made.at(np.array([k]))) for k in range(len(made))]
    weight = 1 / device.budget.noise_variance(round.phase)
    if round.phase == TRAIN and not plan.context.summed:
        weight *= -(2.0 ** device.budget.grid_bits(TRAIN)) * plan.context.nominal_records
        if "curvature" in tensors:
            triangle = tensors["curvature"].tobytes()
            curvature = fm_sums.unpacked(triangle, each[0].shape[0])
            return weight * np.stack([(curvature @ one).ravel() for one in each])
    return weight * np.stack([one.ravel() for one in each]).astype(np.float64)


RECORD_CHANGES: dict[str, Callable[[Plan, PlannedRound, Tensors, Records], Float64]] = {
    "dp_sgd": _descent,
    "dp_sgd_sums": _ascent,
    "fm": _polynomial,
}
"""What records change in an upload, by method: (records, values), each up to one factor."""


class Auditor:
    """Observes the rounds of a run with canaries, then guesses."""

    def __init__(self, canaries: Canaries) -> None:
        self._canaries, self._plan = canaries, canaries.plan
        self._scores = np.zeros(canaries.count)
        self._mixed = bool(self._plan.context.honest) and not canaries.of_devices
        self._overlaps = np.zeros((canaries.count,) * 2) if self._mixed else None

    def observe(
        self,
        context: RoundContext,
        tensors: Tensors,
        answered: Sequence[int],
        sums: Mapping[str, Sequence[Array]],
        uploads: Callable[[int, Sequence[int]], Mapping[int, Array]],
    ) -> None:
        """Add the scores of a round in which the devices `answered` the broadcast `tensors`.

        `sums`: opened sums by segment; `uploads` returns the arrays of a segment by device."""
        if context.round.evaluates:
            return
        specs = [s for s in enumerate(context.segments) if s[1].name not in _BESIDE]
        present = [number for number in answered if number <= self._canaries.count]
        blocks = 1 if self._mixed else -(-len(present) // BLOCK) or 1
        for some in np.array_split(present, blocks):
            numbers = [int(number) for number in some]
            changes = self._canaries.changes(context.round, tensors, numbers)
            if self._plan.context.honest:
                seen = _flat([np.sum(sums[spec.name], axis=0) for _, spec in specs])[None]
                if self._overlaps is not None:
                    self._overlaps[np.ix_(some - 1, some - 1)] += changes @ changes.T
                else:
                    changes -= changes.mean(axis=0)  # as all canaries are in the sum
            else:
                parts = [uploads(group, numbers) for group, _ in specs]
                seen = np.stack([_flat([part[number] for part in parts]) for number in numbers])
            self._scores[some - 1] += (changes * seen).sum(axis=1)

    def guess(self) -> OneRunAudit:
        coins = [self._canaries.included(k + 1) for k in range(len(self._scores))]
        scores = self._scores
        if self._overlaps is not None:
            scores = _told_apart(scores, self._overlaps)
        return OneRunAudit.of(scores.tolist(), coins, self._plan.job.privacy.delta)


def _told_apart(scores: Float64, overlaps: Float64) -> Float64:
    """Return which canaries explain their sum, by ridge regression, less what all of them do."""
    ridge = overlaps + np.eye(len(scores)) * max(overlaps.trace() / len(scores), 1e-300)
    coins, alike = np.linalg.solve(ridge, np.stack([scores, overlaps.sum(axis=1)], axis=1)).T
    alike = alike - alike.mean()
    return np.asarray(coins - alike * (coins @ alike) / max(alike @ alike, 1e-300))


def _flat(arrays: Sequence[Array]) -> Float64:
    return np.concatenate([np.asarray(one, np.float64).ravel() for one in arrays])
