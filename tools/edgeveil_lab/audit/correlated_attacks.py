"""Attack on correlated noise: all rounds of a job together, against the printed ε.

Every round has real masks, sealed seeds and halves of the noise. The attacked device takes part as
often as the job allows. The attacker knows all other updates, and undoes the correlation; its own
uploads add nothing and are left out."""

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
from edgeveil.privacy.events import CorrelatedGaussian
from edgeveil.protocol import sealed
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.tensors import correlated_mask_sums, correlated_sums, opened_vector
from edgeveil_cloud.broadcasts import seal_round
from edgeveil_edge.sealing import Masks
from edgeveil_lab.audit import statistics
from edgeveil_lab.audit.mechanism_attacks import Attack, Claim, each, fresh_noise, past

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
_LARGE = 1e4  # every value of an update, before clipping
_RECORD = Records(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))

Float64 = NDArray[np.float64]


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
        self, uploads: Sequence[NDArray[np.int64]], coefficient: int, before: tuple[bytes, bytes]
    ) -> tuple[Float64, tuple[bytes, bytes]]:
        """Mask, sum and unmask these devices' numbers; return the sum, proxy's and cloud's half."""
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

    def __init__(self, honest: int = 0) -> None:
        """Create the job, with `honest` uploads in a sum (0: as many as it assumes)."""
        plan = parse_plan(JOB)
        stage = plan.context.stages[-1]
        if not isinstance(stage, GradientGaussian):
            raise TypeError("not a job with correlated noise")
        if not isinstance(event := stage.release, CorrelatedGaussian):
            raise TypeError("not a job with correlated noise")
        self.stage, self.event, self.correlation = stage, event, event.correlation
        self.honest = honest or plan.context.honest
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
            total, before = one.opened([own, *others], self.correlation.coefficient, before)
            sums.append(total)
        return np.asarray(self.matrix @ np.stack(sums))


def correlated_attack(runs: int, job: CorrelatedJob | None = None) -> Attack:
    job = job or CorrelatedJob()
    law, gap = job.event.together, job.gap
    scale = np.sqrt(law.sigma_squared) * np.linalg.norm(gap)
    edge, delta = statistics.gaussian_threshold(float(np.sum(gap**2.0) / scale), runs)
    found = epsilon([job.event] * job.correlation.participations, delta)
    claim = Claim("past the threshold", found.epsilon, delta)
    along = each(lambda present: float(np.sum(gap * job.observed(present)) / scale))
    return past(MECHANISM, "all rounds", runs, along, edge, claim)
