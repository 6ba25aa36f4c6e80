"""Attack on correlated noise: all rounds of a job together, against the printed ε.

Every round has real masks, sealed seeds and halves of the noise. The attacked device is asked in
every round and answers where its checks and ledger let it. The attacker knows all other updates,
and undoes the correlation; its own uploads add nothing and are left out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.keys import OpeningKey
from edgeveil.crypto.ring import NOISE_BITS
from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil.jobs import parse_plan
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.method_context import network_of
from edgeveil.parts.round import PlannedRound
from edgeveil.parts.stage import Task, shaped
from edgeveil.parts.stages.noise import GradientGaussian
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import CorrelatedGaussian
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger
from edgeveil.privacy.policy import JobRequest
from edgeveil.protocol import sealed
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.tensors import correlated_mask_sums, correlated_sums, opened_vector
from edgeveil_cloud.broadcasts import seal_round
from edgeveil_edge.round_work import check_separation
from edgeveil_edge.sealing import Masks
from edgeveil_lab.audit import statistics
from edgeveil_lab.audit.mechanism_attacks import Attack, Claim, Hits, fresh_noise
from edgeveil_lab.audit.shared_attacks import ANY, VICTIM

MECHANISM = "correlated_noise"
JOB = """
job: audit
data: {source: audit, classes: 2, input_shape: [1], nominal_records: 4}
model: {name: mlp, hidden: []}
train: {method: sgd, rounds: 3}
update: [{name: gradient_gaussian}]
privacy: {epsilon: 8, delta: 1.0e-5, noise: correlated, honest_share: 0.6,
  min_separation: 2, max_participations: 2}
aggregation: {name: fedavg, secure: true}
selection: {devices: 4}
round: {min_batch: 3}
unsupervised: {eval_type: NOT_EVAL}
"""
_DELTA = 1e-5  # of the request
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

    def __init__(self, honest: int = 0, text: str = JOB) -> None:
        """Create the job, with `honest` uploads in a sum (0: as many as it assumes)."""
        plan = parse_plan(text)
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
        self.turns = _answered(plan, event)
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

    def opened(self, present: bool) -> Float64:
        """Return the sums that the cloud opens in all rounds."""
        sums, before = [], (b"", b"")
        for turn, one in zip(self.turns, self.rounds, strict=True):
            own = self.numbers(one.round, present=bool(present and turn))
            others = [self.numbers(one.round, present=False) for _ in range(self.honest - 1)]
            total, before = one.opened([own, *others], self.correlation.coefficient, before)
            sums.append(total)
        return np.stack(sums)

    def observed(self, present: bool) -> Float64:
        """Return C times what the cloud opens in all rounds: C·X and independent noise."""
        return np.asarray(self.matrix @ self.opened(present))

    def first_update(self, sums: Float64) -> tuple[bool, bool]:
        """Return whether the second sum shows the first update, as it would if not rounded.

        By low bits if a share is opened in fractions of a step, by size if in whole steps."""
        of, bits = self.correlation.coefficient, self.rounds[1].vectors[0].ring.bits
        (first, second), own = sums[:2, 0], of * float(self.update[0])
        whole = second + of * first - own - self.turns[1] * self.update[0]
        whole = (whole + 2.0 ** (bits - 1)) % 2.0**bits - 2.0 ** (bits - 1)
        near = 4 * self.event.together.sigma_squared**0.5
        low = (second * (1 << NOISE_BITS) + of * first - own) % (1 << NOISE_BITS)
        return bool(low == 0), bool(abs(whole) < near)


def _answered(plan: Plan, event: CorrelatedGaussian) -> NDArray[np.bool_]:
    """Return in which rounds a device answers that is asked in all."""
    job = JobRequest(VICTIM, _DELTA, (event,) * event.correlation.participations)
    found = []
    with TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / LEDGER_FILE, VICTIM)
        ledger.open_job(job, ANY)
        for round in plan.all_rounds:
            with suppress(PrivacyError):
                check_separation(RoundContext.of(plan, round.index), VICTIM, ledger)
                ledger.commit(VICTIM, round.index, (event,), b"")
            found.append(ledger.released(VICTIM, [round.index]))
        ledger.close()
    return np.array(found)


def correlated_attack(runs: int, job: CorrelatedJob | None = None) -> Attack:
    job = job or CorrelatedJob()
    law, gap = job.event.together, job.gap
    scale = np.sqrt(law.sigma_squared) * np.linalg.norm(gap)
    edge, delta = statistics.gaussian_threshold(float(np.sum(gap**2.0) / scale), runs)
    found = epsilon([job.event] * job.correlation.participations, delta)
    names = ("past the threshold", "low bits of the second sum", "size of the second sum")
    claims = tuple(Claim(name, found.epsilon, delta) for name in names)

    def play(present: bool, count: int) -> Hits:
        hits = []
        for _ in range(count):
            sums = job.opened(present)
            along = float(np.sum(gap * (job.matrix @ sums)) / scale)
            hits.append([along >= edge, *job.first_update(sums)])
        return np.array(hits).T

    return Attack(MECHANISM, "all rounds", claims, play, runs)
