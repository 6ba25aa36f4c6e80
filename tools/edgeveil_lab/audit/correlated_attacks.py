"""Attacks on correlated noise: all rounds of a job together, and one device's own contributions.

Every round has real masks, sealed seeds and halves of the noise. The attacked device takes part as
often as the job allows; the attacker knows all other updates, and undoes the correlation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.keys import OpeningKey
from edgeveil.crypto.ring import NOISE_BITS
from edgeveil.data.records import Records
from edgeveil.jobs import parse_plan
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.method_context import network_of
from edgeveil.parts.round import PlannedRound
from edgeveil.parts.stage import Task, shaped
from edgeveil.parts.stages.noise import GradientGaussian
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import CorrelatedGaussian, as_single
from edgeveil.protocol import sealed
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.tensors import correlated_mask_sums, correlated_sums, opened_vector
from edgeveil_cloud.broadcasts import seal_round
from edgeveil_edge.sealing import Masks
from edgeveil_lab.audit import statistics
from edgeveil_lab.audit.mechanism_attacks import (
    Attack,
    Claim,
    each,
    fresh_noise,
    gaussian_law,
    past,
)

MECHANISM = "correlated_noise"
JOB = """
job: audit
data: {source: audit, classes: 2, input_shape: [1], nominal_records: 4}
model: {name: mlp, hidden: [1]}
train: {method: sgd, rounds: 3}
update: [{name: gradient_gaussian}]
privacy: {epsilon: 8, delta: 1.0e-5, noise: correlated, honest_share: 0.6,
  min_separation: 2, max_participations: 2}
aggregation: {name: fedavg, secure: true}
selection: {devices: 4}
round: {min_batch: 3}
unsupervised: {eval_type: NOT_EVAL}
"""
LOCAL_JOB = JOB.replace("noise: correlated", "noise: correlated, local_share: 0.5")
_LARGE = 1e4  # every value of an update, before clipping
_RECORD = Records(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))

Float64 = NDArray[np.float64]
Halves = tuple[bytes, bytes]  # the proxy's and the cloud's


class _CorrelatedRound:
    def __init__(self, plan: Plan, round: PlannedRound) -> None:
        keys = [OpeningKey.generate().public().to_bytes() for _ in range(plan.job.round.min_batch)]
        context, at = RoundContext.of(plan, round.index), RoundId(bytes(16), round.index, 1)
        state = plan.cloud.initial_state()
        manifest, _, secret = seal_round(context, state, keys, at, 1, 1 << 16, checked=True)
        self.round, self.manifest, self.key = round, manifest, secret.opening
        self.membership, self._public = secret.membership, secret.opening.public().to_bytes()
        self.vectors = sealed.masked_vectors(manifest.at, manifest.groups, manifest.masked)
        self._ends = np.cumsum([one.ring.count for one in self.vectors])[:-1]
        self._check = sealed.RoundCheck.of_manifest(manifest, self.membership)

    def opened(
        self, uploads: Sequence[NDArray[np.int64]], coefficient: int, before: Halves
    ) -> tuple[Float64, Halves]:
        """Mask, sum and unmask the numbers of these devices; return the sum and the halves."""
        seeds, segments = [], []
        for number, numbers in enumerate(uploads):
            name = f"device {number}"
            masks = Masks.of(self.manifest, name, self._public)
            parts = zip(self.vectors, np.split(numbers, self._ends), strict=True)
            segments.append([masks.applied(v.group, part, self.membership) for v, part in parts])
            sealed_seed = masks.seed_for([one.group for one in self.vectors])
            seeds.append(sealed.open_seed(self.key, self.manifest, name, sealed_seed))
        totals = []
        for vector, of_all in zip(self.vectors, zip(*segments, strict=True), strict=True):
            first, *others = (opened_vector(vector, segment) for segment in of_all)
            for other in others:
                first.add(other)
            totals.append(first)
        halves = totals[-1].to_bytes()
        ours, theirs = before
        answer, half = correlated_mask_sums(self.vectors, seeds, coefficient, ours, self._check)
        found = correlated_sums(self.vectors, totals, answer, coefficient, theirs, self._check)
        return np.concatenate(list(found.values())).astype(np.float64), (half, halves)


class CorrelatedJob:
    """`gap`: what the attacked device adds to C·X (rounds, values), in steps."""

    def __init__(self, honest: int = 0, text: str = JOB) -> None:
        """Create the job, with `honest` uploads in a sum (0: as many as it assumes)."""
        plan = parse_plan(text)
        stage = plan.context.stages[-1]
        if not isinstance(stage, GradientGaussian) or plan.context.correlation is None:
            raise TypeError("not a job with correlated noise")
        self.stage, self.correlation = stage, plan.context.correlation
        self.honest, self.liars = honest or plan.context.honest, plan.job.round.min_batch
        self.liars -= self.honest
        self._network = network_of(plan.context)
        self._weights = self._network.initial()
        self.rounds = [_CorrelatedRound(plan, round) for round in plan.all_rounds]
        of, count = self.correlation, len(self.rounds)
        apart = np.arange(count)[:, None] - np.arange(count)
        share = of.coefficient / (1 << NOISE_BITS)
        self.matrix = np.where(apart < 0, 0, share ** np.maximum(apart, 0))
        number, off = np.divmod(np.arange(count), of.min_separation)
        self.turns = (off == 0) & (number < of.participations)
        size = sum(value.size for value in self._weights.values())
        # The same direction in all turns moves C·X most.
        self.update = np.full(size, stage.event.sensitivity_steps / size**0.5).astype(np.int64)
        self.gap = np.outer(self.matrix @ self.turns, self.update)

    @property
    def event(self) -> CorrelatedGaussian:
        found = self.stage.release
        if not isinstance(found, CorrelatedGaussian):
            raise TypeError("not correlated noise")
        return found

    def numbers(self, round: PlannedRound, *, present: bool) -> NDArray[np.int64]:
        """Return a device's noised integers and noise, with a clipped update or none."""
        size, norm = self.update.size, self.stage.parameters.clip_norm
        noise = fresh_noise()
        task = Task(round, self._network, self._weights, _RECORD, {}, noise, "cpu", norm)
        return self.stage.steps(task, shaped(self._weights, np.full(size, _LARGE * present)))

    def observed(self, present: bool) -> Float64:
        """Return C times what the cloud opens in all rounds: C·X and independent noise."""
        sums, before = [], (b"", b"")
        for turn, one in zip(self.turns, self.rounds, strict=True):
            own = self.numbers(one.round, present=bool(present and turn))
            others = [self.numbers(one.round, present=False) for _ in range(self.honest - 1)]
            uploads = [own, *others, *([0 * own] * self.liars)]
            total, before = one.opened(uploads, self.correlation.coefficient, before)
            sums.append(total)
        return np.asarray(self.matrix @ np.stack(sums))

    def alone(self, present: bool) -> Float64:
        """Return the device's updates as a colluding cloud and proxy see them."""
        found = [
            np.subtract(*np.split(self.numbers(one.round, present=present), 2))
            for turn, one in zip(self.turns, self.rounds, strict=True)
            if turn
        ]
        return np.stack(found).astype(np.float64)


def correlated_attacks(runs: int) -> tuple[Attack, ...]:
    """Return the attacks on all rounds, against ε, and on one device, against the collusion ε."""
    colluding = CorrelatedJob(text=LOCAL_JOB)
    return (
        correlated_attack(runs, CorrelatedJob(), alone=False),
        correlated_attack(runs, colluding, alone=True),
    )


def correlated_attack(runs: int, job: CorrelatedJob, *, alone: bool) -> Attack:
    law = gaussian_law(as_single(job.event)) if alone else job.event.together
    gap = np.tile(job.update, (int(job.turns.sum()), 1)) if alone else job.gap
    scale = np.sqrt(law.sigma_squared) * np.linalg.norm(gap)
    mu = float(np.linalg.norm(gap) / np.sqrt(law.sigma_squared))
    edge, delta = statistics.gaussian_threshold(mu, runs)

    def along(present: bool) -> float:
        seen = job.alone(present) if alone else job.observed(present)
        return float(np.sum(gap * seen) / scale)

    found = epsilon([job.event] * job.correlation.participations, delta)
    claimed = found.collusion_epsilon if alone else found.epsilon
    title = "all others collude" if alone else "all rounds"
    claim = Claim("past the threshold", claimed, delta)
    return past(MECHANISM, title, runs, each(along), edge, claim)
