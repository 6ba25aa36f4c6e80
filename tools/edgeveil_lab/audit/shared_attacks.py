"""Attacks on shared noise under secure sums, and on one device's own contribution.

Each run is a whole job with real device halves, masks, sealed seeds and sums. A sum has as many
honest uploads as the job assumes; the others are the attacker's, without data or noise. The
attacker knows all records of the honest devices but one record of the first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.keys import MaskSeed, OpeningKey, SigningKey
from edgeveil.crypto.masking import Vector, signed
from edgeveil.data.records import Records
from edgeveil.jobs import parse_plan
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.method_context import MethodContext, network_of
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.dp_sgd import NOISE_BITS, DpSgdParameters
from edgeveil.parts.methods.fm_sums import FmParameters
from edgeveil.parts.methods.pca_residual import PcaResidualParameters
from edgeveil.parts.round import TRAIN, Array, PlannedRound
from edgeveil.parts.stage import Task, flat, shaped
from edgeveil.parts.stages.noise import GradientGaussian, GradientGaussianParameters
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import (
    GaussianEvent,
    PoissonSampled,
    as_single,
    as_summed,
    for_one_record,
)
from edgeveil.privacy.gaussian_mechanism import clipped_steps
from edgeveil.privacy.guarantee import Guarantee, up
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil.protocol import effects as fx
from edgeveil.protocol import proxy_rounds, sealed
from edgeveil.protocol.messages import Batch, PeerKeys, RoundId, Signer, Unmask
from edgeveil.protocol.tensors import exact_sums, mask_sums, opened_vector
from edgeveil_cloud.broadcasts import seal_round
from edgeveil_edge.sealing import Masks
from edgeveil_lab.attack.membership import event_variances
from edgeveil_lab.audit import fm_attacks, statistics
from edgeveil_lab.audit.guards import AttackOutcome, Guard
from edgeveil_lab.audit.mechanism_attacks import (
    Attack,
    Claim,
    each,
    fresh_noise,
    gaussian_law,
    past,
)
from edgeveil_lab.audit.update_attacks import CONTEXT as UPDATE_SETTING
from edgeveil_lab.audit.update_attacks import DELTA as SAMPLED_DELTA
from edgeveil_lab.audit.update_attacks import (
    PERSON,
    PRESENT,
    WITHOUT,
    TurnedLabels,
    of_unit,
    threshold,
    whose,
)

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

MECHANISM = "shared_noise"
UPLOADS = 8  # in a sum: the fewest that the job allows
JOB = f"""
job: audit
data: {{source: audit, classes: 2, input_shape: [2], nominal_records: 4}}
features: [{{name: identity}}]
train: {{method: fm, rounds: 2, shares: {{centre: 0.3, quadratic: 0.3}}, local_steps: 1}}
privacy: {{epsilon: 8, delta: 1.0e-5, noise: shared, honest_share: 0.5}}
aggregation: {{name: fedavg, secure: true}}
selection: {{devices: {UPLOADS + 1}}}
round: {{min_batch: {UPLOADS}}}
unsupervised: {{eval_type: NOT_EVAL}}
"""
# Rounds are summed in two sets, so that the least that is summed is half of `min_batch`.
GROUPS_JOB = (
    JOB.replace("name: fedavg, secure: true", "name: median, secure: true, groups: 2")
    .replace(f"devices: {UPLOADS + 1}", f"devices: {2 * UPLOADS + 1}")
    .replace(f"min_batch: {UPLOADS}", f"min_batch: {2 * UPLOADS}")
)
NORMAL_JOB = JOB.replace(
    "method: fm, rounds: 2, shares: {centre: 0.3, quadratic: 0.3}, local_steps: 1",
    "method: pca_residual, rounds: 2",
)
DEVICE_JOB = JOB.replace("epsilon: 8", "unit: device, epsilon: 8")
ALL_HONEST = JOB.replace("honest_share: 0.5", "honest_share: 1")  # each adds the least noise
CENTRE, FIRST, SECOND = 0, 2, 3  # rounds: one to attack, and two of one size
VICTIM = "attacked"


@dataclass(frozen=True)
class _MaskedUpload:
    """A device's upload: masked numbers for the cloud, their sealed seed for the proxy."""

    device: str
    segment: bytes
    seed: bytes


class _MaskedRound:
    def __init__(self, plan: Plan, round: PlannedRound) -> None:
        keys = [OpeningKey.generate().public() for _ in range(plan.job.round.min_batch + 1)]
        context, at = (RoundContext.of(plan, round.index), RoundId(bytes(16), round.index, 1))
        state, recipients = plan.cloud.initial_state(), [key.to_bytes() for key in keys]
        manifest, _, secret = seal_round(context, state, recipients, at, 1, 1 << 16, checked=True)
        self.manifest, self.key, self.membership = manifest, secret.opening, secret.membership
        (self.vector,) = sealed.masked_vectors(manifest.at, manifest.groups, manifest.masked)
        self._public = self.key.public().to_bytes()

    def upload(self, device: str, segments: Mapping[str, Array]) -> _MaskedUpload:
        masks, vector = Masks.of(self.manifest, device, self._public), self.vector
        segment = masks.applied(vector.group, segments[vector.name], self.membership)
        return _MaskedUpload(device, segment, masks.seed_for([vector.group]))

    def nothing(self, device: str) -> _MaskedUpload:
        return self.upload(device, {self.vector.name: np.zeros(self.vector.ring.count, np.int64)})

    def seed(self, upload: _MaskedUpload) -> MaskSeed:
        return sealed.open_seed(self.key, self.manifest, upload.device, upload.seed)

    def opened(self, upload: _MaskedUpload) -> Vector:
        return opened_vector(self.vector, upload.segment)

    def sum_of(self, uploads: Sequence[_MaskedUpload], masks: bytes | None = None) -> Float64:
        """Return the exact sum, unmasked by `masks` (default: computed for these uploads)."""
        total = Vector.zeros(self.vector.ring)
        for upload in uploads:
            total.add(self.opened(upload))
        if masks is None:
            masks = mask_sums([self.vector], [self.seed(upload) for upload in uploads])
        check = sealed.RoundCheck.of_manifest(self.manifest, self.membership)
        found = exact_sums([self.vector], [total], masks, check)
        return found[self.vector.name].astype(np.float64)

    def apart(self, one: Vector, other: Vector) -> Float64:
        return signed(self.vector.ring, one.numbers - other.numbers).astype(np.float64)


class SharedNoiseJob:
    def __init__(self, honest: int = 0, text: str = JOB) -> None:
        """Create the job, with `honest` uploads a sum (0: `honest_share` of the smallest sum)."""
        plan = parse_plan(text)
        job, parameters = plan.job, plan.job.train
        if not isinstance(parameters, FmParameters | PcaResidualParameters):
            raise TypeError("not a job of this file")
        self.uploads = job.round.min_batch // job.aggregation.groups
        self.honest = honest or math.ceil(job.privacy.honest_share * self.uploads)
        self.scene = fm_attacks.NeighbouringJob.of(parameters, plan.context)
        self.hostile = fm_attacks.HostileCloud(self.scene)
        if parameters.method == "fm" and len(self.hostile.rounds) > SECOND:
            self._turn_second_round()
        self.device = fm_attacks.make_device(self.scene)
        self.rounds = [_MaskedRound(plan, round) for round in self.hostile.rounds]
        names = [f"liar {number}" for number in range(self.uploads - self.honest)]
        self.liars = [[one.nothing(name) for name in names] for one in self.rounds]
        self.events = self.hostile.events

    def _turn_second_round(self) -> None:
        """Broadcast weights that change the record's contribution, to distinguish the rounds."""
        hostile, device = self.hostile, fm_attacks.make_device(self.scene)
        tensors = dict(hostile.broadcasts[SECOND])
        tensors["iterate"] = -tensors["iterate"].astype(np.int32)
        hostile.broadcasts[SECOND] = tensors
        without, present = (
            device.sums(hostile.rounds[SECOND], tensors, records).ravel().astype(np.float64)
            for records in (self.scene.without, self.scene.present)
        )
        hostile.bases[SECOND], hostile.gaps[SECOND] = without, present - without

    def segments(self, k: int, records: Records) -> Mapping[str, Array]:
        round, tensors = self.hostile.rounds[k], self.hostile.broadcasts[k]
        return self.device.answer(round, tensors, records, fresh_noise(), "cpu").segments

    def attacked(self, k: int, records: Records) -> _MaskedUpload:
        return self.rounds[k].upload(VICTIM, self.segments(k, records))

    def others(self, k: int) -> list[_MaskedUpload]:
        known, one = self.scene.without, self.rounds[k]
        honest = (f"honest {number}" for number in range(1, self.honest))
        return [*(one.upload(name, self.segments(k, known)) for name in honest), *self.liars[k]]

    def observe_sum(self, k: int, records: Records) -> Float64:
        uploads = [self.attacked(k, records), *self.others(k)]
        return self.rounds[k].sum_of(uploads) - self.honest * self.hostile.bases[k]

    def observe_one(self, k: int, records: Records) -> Float64:
        """Return one device's own numbers, as seen by a colluding cloud and proxy."""
        upload = self.attacked(k, records)
        return self.rounds[k].sum_of([upload]) - self.hostile.bases[k]


def shared_attacks(runs: int) -> tuple[Attack, ...]:
    """Return the attacks on sums, against ε, and on one contribution, against the collusion ε."""
    scenes = (TurnedUpdate(None), TurnedUpdate(0.5), turned_votes())
    return (
        sum_attack(runs),
        part_attack(runs),
        sum_attack(runs, SharedNoiseJob(text=GROUPS_JOB), "sums of groups"),
        sum_attack(runs, SharedNoiseJob(text=NORMAL_JOB), "pca_residual, sums"),
        sum_attack(runs, SharedNoiseJob(text=DEVICE_JOB), "sums, a whole device"),
        *(sampled_attack(-(-runs // 8), alone=alone) for alone in (False, True)),
        sampled_attack(-(-runs // 16), PERSON),
        *(turned_attack(runs, one, alone=alone) for one in scenes for alone in (False, True)),
        mixed_totals_attack(4 * runs),
    )


def sum_attack(runs: int, job: SharedNoiseJob | None = None, title: str = "sums") -> Attack:
    job = job or SharedNoiseJob()
    return fm_attacks.ratio_attack(MECHANISM, title, runs, job.hostile, job.observe_sum, as_summed)


def part_attack(runs: int, job: SharedNoiseJob | None = None) -> Attack:
    """Build the attack of all other devices together; it must refute the ε of sums."""
    job = job or SharedNoiseJob()
    named = (MECHANISM, "all others collude", runs)
    return fm_attacks.ratio_attack(*named, job.hostile, job.observe_one, as_single, colluding=True)


# --- updates of whole models, whose noise `gradient_gaussian` shares, and votes of `pate` ---

_SUMMED = replace(UPDATE_SETTING, summed=UPLOADS + 1, honest=UPLOADS // 2)
_WEIGHTS = network_of(_SUMMED).initial()
_RECORD = Records(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
_LARGE_UPDATE = 1e4  # every value, before clipping


class TurnedUpdate:
    """An update that one record negates; with a `quantile` also the moving clip's bit."""

    def __init__(self, quantile: float | None, context: MethodContext = _SUMMED) -> None:
        parameters = GradientGaussianParameters(quantile=quantile)
        self.stage, size = GradientGaussian(parameters, context), flat(_WEIGHTS).size
        within = -_LARGE_UPDATE if quantile is None else -0.999 * parameters.clip_norm / size**0.5
        self._updates = [np.full(size, value) for value in (within, _LARGE_UPDATE)]
        self._base, full = (self._exact(update).astype(np.float64) for update in self._updates)
        self.gap, self.event = full - self._base, for_one_record(self.stage.release)
        self.title = "updates" if quantile is None else "updates with a moving clip"

    def _exact(self, update: Float64) -> Int64:
        stage = self.stage
        if stage.clip is not None:
            return stage.clip.steps(update, stage.parameters.clip_norm)
        return clipped_steps(update, stage.event.sensitivity_steps, stage.event.grid_bits)

    def observed(self, turned: bool) -> Float64:
        """Return the integers of one upload with fresh noise, minus those without the record."""
        round, norm = PlannedRound(1, TRAIN, 1), self.stage.parameters.clip_norm
        noise, network = fresh_noise(), network_of(_SUMMED)
        task = Task(round, network, _WEIGHTS, _RECORD, {}, noise, "cpu", norm)
        update = shaped(_WEIGHTS, self._updates[turned])
        return self.stage.steps(task, update).astype(np.float64) - self._base

    def along(self, numbers: Float64, law: GaussianEvent) -> float:
        scale = np.sqrt(law.sigma_squared) * np.linalg.norm(self.gap)
        return float(np.dot(self.gap, numbers) / scale)


def turned_votes() -> TurnedLabels:
    return TurnedLabels(summed=_SUMMED.summed, honest=_SUMMED.honest)


def turned_attack(
    runs: int, scene: TurnedUpdate | TurnedLabels, *, alone: bool, honest: int = 0
) -> Attack:
    """Attack the sum of `honest` uploads (0: the assumed number), or `alone` a single upload."""
    law = gaussian_law((as_single if alone else as_summed)(scene.event))
    edge, delta = statistics.gaussian_threshold(law.mu, runs)
    honest = 1 if alone else honest or _SUMMED.honest

    def observed(turned: bool) -> float:
        others = (scene.observed(False) for _ in range(honest - 1))
        return scene.along(sum(others, scene.observed(turned)), law)

    found, name = epsilon([scene.event], delta), "past the threshold"
    claims = [Claim(name, found.collusion_epsilon if alone else found.epsilon, delta)]
    if alone:
        unprotected = name + fm_attacks.WITHOUT_COLLUSION
        claims.append(Claim(unprotected, found.epsilon, delta, proven=False))
    title = f"{scene.title}, {'all others collude' if alone else 'sums'}"
    return past(MECHANISM, title, runs, each(observed), edge, *claims)


# --- sums of sampled gradients, `dp_sgd_sums` ---


def sampled_attack(runs: int, added: Records = PRESENT, *, alone: bool = False) -> Attack:
    """Attack a round's sum of the assumed honest uploads, or `alone` a single upload."""
    parameters = DpSgdParameters(method="dp_sgd_sums", rounds=1, sampling_rate=0.5)
    context = of_unit(replace(_SUMMED, nominal_records=len(added)), added)
    device, clip = METHODS[parameters.method].device(parameters, context), 2.0**NOISE_BITS
    (event,) = device.price(PlannedRound(1, TRAIN, 1))
    law = (as_single if alone else as_summed)(event)
    # With other weights a record may be classified for certain, and its gradient 0.
    zeros = {name: np.zeros_like(value) for name, value in _WEIGHTS.items()}

    def moved(records: Records) -> float:
        answer = device.answer(PlannedRound(1, TRAIN, 1), zeros, records, fresh_noise(), "cpu")
        first, second = answer.segments["output.weight"].astype(np.float64).ravel()
        return float(second - first) / (math.sqrt(2) * clip)

    def observed(present: bool) -> float:
        others = (moved(WITHOUT) for _ in range(0 if alone else _SUMMED.honest - 1))
        return sum(others, moved(added if present else WITHOUT))

    if not isinstance(law, PoissonSampled):
        raise TypeError("sums over samples are not priced as such")
    claim = Claim("past the threshold", epsilon([law], SAMPLED_DELTA).epsilon, SAMPLED_DELTA)
    title = f"{'all others collude' if alone else 'sums'}{whose(added)}"
    return past(parameters.method, title, runs, each(observed), threshold(law), claim)


# --- two jobs of different units, in one ledger ---

_ALONE = replace(_SUMMED, honest=2)
LIFE_DELTA = 0.1  # of both jobs; missing noise is detected best at this δ
ANY = Limits(math.inf, math.inf, 1.0, math.inf)
SMALL_JOB = JOB.replace("epsilon: 8", "epsilon: 0.5").replace(
    "rounds: 2, shares: {centre: 0.3, quadratic: 0.3}", "rounds: 1, centre: false, quadratic: never"
)


def mixed_totals_attack(runs: int) -> Attack:
    """Attack one device's part of a whole-model and an `fm` job, against its ledger's total."""
    scene, job = TurnedUpdate(None, _ALONE), SharedNoiseJob(text=SMALL_JOB)
    first, second = (gaussian_law(as_single(event)) for event in (scene.event, job.events[0]))
    gap = job.hostile.gaps[0]
    update_weight, weight = scene.gap / first.sigma_squared, gap / event_variances(second)
    deviation = math.sqrt(scene.gap @ update_weight + gap @ weight)
    mu = math.hypot(first.mu, second.mu)
    edge = statistics.epsilon_at(mu, LIFE_DELTA) / mu + mu / 2

    def observed(present: bool) -> float:
        (numbers,) = job.segments(0, job.scene.records(present)).values()
        moved = numbers.ravel().astype(np.float64) - job.hostile.bases[0]
        update = scene.observed(present)
        return float(np.dot(update_weight, update) + np.dot(weight, moved)) / deviation

    asked = [(scene.stage.release,), tuple(job.events)]
    life = _lifetime([JobRequest(str(k), LIFE_DELTA / 2, one) for k, one in enumerate(asked)])
    alone = life.colluding or life
    claim = Claim("a record, in two jobs", alone.record_epsilon, alone.delta)
    return past(MECHANISM, "two units, all others collude", runs, each(observed), edge, claim)


def _lifetime(jobs: Sequence[JobRequest]) -> Guarantee:
    with TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / LEDGER_FILE, VICTIM)
        for job in jobs:
            ledger.open_job(job, ANY)
            ledger.commit(job.job_id, 1, job.events, b"")
        found = ledger.spent()
        ledger.close()
    return found


# --- planted flaws: each breaks the ε of sums, and the same attack detects it ---


def _runs(needed: int, flawed: bool) -> int:
    # Other attacks of this module play the unflawed job too, so a quarter is enough there.
    return needed if flawed else needed // 4


def honest_parts(flawed: bool, quick: bool) -> AttackOutcome:
    text = JOB.replace("honest_share: 0.5", "honest_share: 0.25")
    honest = SharedNoiseJob(text=text).honest
    flaw = patch("edgeveil.jobs.plan.honest_devices", lambda job: job.round.min_batch)
    with flaw if flawed else nullcontext():
        job = SharedNoiseJob(honest, text)
    return _single(_runs(400 if quick else 10_000, flawed), job, job.observe_sum)


def two_sets(flawed: bool, quick: bool) -> AttackOutcome:
    """Ask a proxy for two sets of one round that differ by the attacked device."""
    job, refused = SharedNoiseJob(text=ALL_HONEST), 0
    one, extra = job.rounds[CENTRE], job.rounds[CENTRE].nothing("one liar more")

    def observe(k: int, records: Records) -> Float64:
        nonlocal refused
        uploads = [job.attacked(k, records), *job.others(k), extra]
        proxy = AskedProxy(one, uploads)
        every = range(len(uploads))
        whole = one.sum_of(uploads, proxy.masks_of(every))
        if flawed:
            proxy.memory.unmasked.clear()
        masks = proxy.masks_of(every[1:])
        if not masks:
            refused += 1
            return whole - job.honest * job.hostile.bases[k]
        return whole - one.sum_of(uploads[1:], masks) - job.hostile.bases[k]

    runs = _runs(300 if quick else 4000, flawed)
    found = _single(runs, job, observe, [CENTRE])
    figure = f"{refused} of {2 * runs} second sets refused, {found.figure}"
    return AttackOutcome(found.broke, figure)


def shared_seed(flawed: bool, quick: bool) -> AttackOutcome:
    """Subtract an own device's masked numbers from those of the attacked device."""
    job = SharedNoiseJob(text=ALL_HONEST)
    one = job.rounds[CENTRE]

    def observe(k: int, records: Records) -> Float64:
        with _one_seed() if flawed else nullcontext():
            theirs, ours = job.attacked(k, records), one.nothing("liar")
        return one.apart(one.opened(theirs), one.opened(ours)) - job.hostile.bases[k]

    return _single(_runs(500 if quick else 4000, flawed), job, observe, [CENTRE])


def seed_of_two_rounds(flawed: bool, quick: bool) -> AttackOutcome:
    """Subtract the masked numbers of two rounds that use the same seed."""
    job = SharedNoiseJob(text=ALL_HONEST)
    bases = job.hostile.bases[FIRST] - job.hostile.bases[SECOND]
    unbound = patch.object(sealed.MaskedVector, "use", property(lambda vector: b""))

    def observe(k: int, records: Records) -> Float64:
        with _one_seed(), unbound if flawed else nullcontext():
            uploads = [job.attacked(at, records) for at in (k, SECOND)]
        seen = (job.rounds[at].opened(up) for at, up in zip((k, SECOND), uploads, strict=True))
        return job.rounds[k].apart(*seen) - bases

    return _single(_runs(1000 if quick else 6000, flawed), job, observe, [FIRST])


def _one_seed() -> AbstractContextManager[object]:
    return patch.object(MaskSeed, "generate", return_value=MaskSeed(bytes(range(32))))


class AskedProxy:
    """The proxy's machine for sums of masks, just after it has handed a batch over."""

    def __init__(self, round: _MaskedRound, uploads: Iterable[_MaskedUpload]) -> None:
        manifest = round.manifest
        seeds = tuple(round.seed(upload) for upload in uploads)
        self._cloud = Signer("cloud", SigningKey.generate())
        own, self.memory = Signer("proxy", SigningKey.generate()), proxy_rounds.ProxyMemory()
        keys = PeerKeys.pinned(cloud=self._cloud.key.public())
        settings = proxy_rounds.ProxySettings()
        context = proxy_rounds.ProxyContext(own, keys, None, self.memory, settings)  # type: ignore[arg-type]
        rounds = proxy_rounds.ProxyRounds(context)
        collection = proxy_rounds.Collection(manifest, manifest.min_batch)
        collection.state = proxy_rounds.CollectionState.HANDING_OVER
        rounds.collections[manifest.at] = collection
        self._batch = Batch(manifest.at, len(seeds), 0, (len(seeds),), manifest.blob)
        kept = proxy_rounds.BatchKept(manifest.at, own.header(self._batch), self._batch, b"", seeds)
        self.memory.batches[manifest.at] = kept
        self._masks, self._given = proxy_rounds.ProxyMasks(context, rounds), b""
        self._uploads = len(seeds)

    def masks_of(self, chosen: Iterable[int]) -> bytes:
        """Return the sum of the masks of these uploads; empty if the proxy refuses."""
        choice = sealed.choice(list(chosen), self._uploads)
        asked = Unmask(self._batch.at, self._batch.blob.digest, choice)
        effects = self._masks.asked(asked, self._cloud.note(asked).body)
        for effect in effects:
            if isinstance(effect, fx.Refuse):
                return b""
            if isinstance(effect, fx.Work) and isinstance(effect.task, proxy_rounds.SumMasks):
                self._given = mask_sums(effect.task.vectors, effect.task.sets[0])
                self._masks.summed(effect.task, proxy_rounds.SummedMasks(self._given))
        return self._given


def _single(
    runs: int, job: SharedNoiseJob, see: fm_attacks.Observe, attacked: Sequence[int] | None = None
) -> AttackOutcome:
    """Attack the shared noise and return the claim that is exceeded most."""
    attack = fm_attacks.ratio_attack(
        MECHANISM, "flaws", runs, job.hostile, see, as_summed, attacked
    )
    without, present = (attack.play(side, runs).sum(axis=1) for side in (False, True))
    pairs, beta = [], statistics.BETA / len(without)
    for claim, a, b in zip(attack.claims, without, present, strict=True):
        counts = statistics.EventCounts(runs, int(a), int(b))
        pairs.append((statistics.lower_bound(counts, claim.delta, beta), claim))
    found, claim = max(pairs, key=lambda pair: (pair[0] > pair[1].epsilon, pair[0]))
    figure = f"measured ε ≥ {found:.2f} of {up(claim.epsilon)} at δ = {up(claim.delta)}"
    return AttackOutcome(found > claim.epsilon, figure)


SHARED_GUARDS = (
    Guard(
        MECHANISM,
        "the honest parts of a sum are the noise that is printed",
        "the noise divided by all uploads of a sum",
        honest_parts,
    ),
    Guard(
        MECHANISM,
        "a round is unmasked for one set",
        "a proxy that forgets what it has unmasked",
        two_sets,
    ),
    Guard(
        MECHANISM,
        "an upload has masks that nobody else knows",
        "one seed for the uploads of two devices",
        shared_seed,
    ),
    Guard(
        MECHANISM,
        "even one seed in two rounds makes other masks",
        "masks that follow from the seed alone",
        seed_of_two_rounds,
    ),
)
