"""Membership inference from the global model and from single devices' uploads.

By the loss (Yeom et al. 2018), by the likelihood ratio of shadow models (LiRA, Carlini et al.
2022), and by the inner product with the record's own contribution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil.parts.method_context import MethodContext
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_sums import FmParameters, noised
from edgeveil.parts.models.heads import head_probabilities
from edgeveil.parts.round import TRAIN, PlannedRound, Tensors
from edgeveil.privacy.accountant import total_mu
from edgeveil.privacy.events import Event, GaussianEvent
from edgeveil.privacy.gaussian_mechanism import diagonal_of_triangle
from edgeveil.privacy.sampler import os_random
from edgeveil_lab.attack.recording import Recording
from edgeveil_tools.local.reference import RIDGE_SHARE

Float64 = NDArray[np.float64]

SHADOWS = 32
SHADOW_SHARE = 0.8
MOST_SHADOWED = 6000  # records; with more, shadow models take too long
CANDIDATES = 200  # members and others that single uploads are tested on
MOST_VALUES = 1 << 24  # of all candidates' contributions to one sum; bounds memory
DRAWS = 50


@dataclass(frozen=True)
class RocCurve:
    name: str
    noise: bool
    fpr: Float64
    tpr: Float64

    @property
    def auc(self) -> float:
        return float(np.diff(self.fpr) @ (self.tpr[1:] + self.tpr[:-1]) / 2)

    @property
    def tpr_at_1_percent(self) -> float:
        return float(np.interp(0.01, self.fpr, self.tpr))


@dataclass(frozen=True)
class Membership:
    """Curves of the final `model` and of one `upload`; `rounds`: AUC with noise and without."""

    model: tuple[RocCurve, ...]
    rounds: tuple[tuple[float, float], ...]
    upload: tuple[RocCurve, ...]
    mu_round: float
    mu_job: float


def roc(name: str, noise: bool, members: Float64, others: Float64) -> RocCurve:
    scores = np.concatenate([members, others])
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)
    isin = np.arange(len(scores))[order] < len(members)
    tpr = np.append(0.0, (np.cumsum(isin) / len(members))[last])
    fpr = np.append(0.0, (np.cumsum(~isin) / len(others))[last])
    return RocCurve(name, noise, fpr, tpr)


def infer(recording: Recording) -> Membership:
    members = _joined(recording.devices)
    both = _joined([members, recording.test])
    phi, count = recording.plan.features(both.x), len(members)
    free = list(_rehearsed(recording, members, None))
    seen = [recording.model(round) for round in recording.rounds]
    rounds: list[tuple[float, float]] = []
    final: dict[bool, Float64] = {}
    for models in zip(seen, free, strict=True):
        final = {noise: confidence(phi, both.y, models[not noise]) for noise in (True, False)}
        with_noise, without = (roc("", True, s[:count], s[count:]).auc for s in final.values())
        rounds.append((with_noise, without))
    curves = [roc("loss", noise, s[:count], s[count:]) for noise, s in final.items()]
    if len(both) <= MOST_SHADOWED:
        for noise, scores in final.items():
            ratio = _likelihood_ratio(recording, both, phi, scores, noise)
            curves.append(roc("likelihood ratio", noise, ratio[:count], ratio[count:]))
    upload = single_uploads(recording, members)
    events = [e for e in recording.device.budget.job_events() if isinstance(e, GaussianEvent)]
    return Membership(tuple(curves), tuple(rounds), upload, events[-1].mu, total_mu(events))


def single_uploads(recording: Recording, members: Records) -> tuple[RocCurve, ...]:
    """Score ⟨seen − known, g⟩/σ² for a record's contribution g, with fresh device noise.

    Blind: a device's first upload, with nothing else known. Informed: all other records are known,
    for one upload or for the whole job."""
    device, rounds = recording.device, recording.plan.of_method
    first = len(rounds) - len(recording.rounds)
    rng = np.random.default_rng(0)
    largest = max(event_variances(event).size for event in device.budget.events.values())
    most = max(1, min(CANDIDATES, MOST_VALUES // largest))
    inside = members.at(rng.permutation(len(members))[:most])
    outside = recording.test.at(rng.permutation(len(recording.test))[:most])
    scores = [_candidate_scores(device, e, recording.broadcast(e), inside, outside) for e in rounds]
    return (
        *(_blind(recording, noise) for noise in (False, True)),
        informed("knows all other records, one upload", scores[first : first + 1]),
        informed("knows all other records, whole job", scores),
    )


CandidateScores = tuple[Float64, Float64, Float64, Float64]
"""One round's ‖g‖²/σ² for members and for others, and ⟨seen, g⟩/σ² over draws for both."""


def _candidate_scores(
    device: FmDevice, round: PlannedRound, sent: Tensors, inside: Records, outside: Records
) -> CandidateScores:
    event = device.budget.events[round.phase]
    variance = event_variances(event)
    zero = np.zeros(variance.shape, np.int64)
    noise = np.stack([noised(zero, event, os_random) for _ in range(DRAWS)]) / variance
    g_in, g_out = (_parts(device, round, sent, records) for records in (inside, outside))
    size_in, size_out = ((np.square(g) / variance).sum(axis=1) for g in (g_in, g_out))
    return size_in, size_out, g_in @ noise.T + size_in[:, None], g_out @ noise.T


def informed(name: str, scores: list[CandidateScores]) -> RocCurve:
    """Return the curve of the normalised likelihood ratio, N(μ, 1) for members, else N(0, 1)."""
    sizes_in, sizes_out, scores_in, scores_out = (sum(part) for part in zip(*scores, strict=True))
    members = scores_in / np.sqrt(sizes_in)[:, None]
    others = scores_out / np.sqrt(sizes_out)[:, None]
    return roc(name, True, members.ravel(), others.ravel())


def _parts(device: FmDevice, round: PlannedRound, sent: Tensors, records: Records) -> Float64:
    rows = [device.sums(round, sent, records.at(np.array([i]))) for i in range(len(records))]
    return np.stack([row.ravel().astype(np.float64) for row in rows])


def _blind(recording: Recording, noise: bool) -> RocCurve:
    """Score the first upload of each device against its records and as many unused ones."""
    device, round = recording.device, recording.rounds[0]
    event, sent = device.budget.events[round.phase], recording.broadcast(round)
    test = recording.test
    rng = np.random.default_rng(1)
    scores: tuple[list[Float64], list[Float64]] = ([], [])
    for own in recording.devices[:CANDIDATES]:
        total = device.sums(round, sent, own)
        seen = (noised(total, event, os_random) if noise else total).ravel().astype(np.float64)
        strange = test.at(rng.choice(len(test), min(len(own), len(test)), replace=False))
        for records, found in zip((own, strange), scores, strict=True):
            parts = _parts(device, round, sent, records)
            found.append(parts @ seen / np.maximum(np.linalg.norm(parts, axis=1), 1.0))
    members, others = (np.concatenate(found) for found in scores)
    return roc("knows nothing else, one upload", noise, members, others)


def _likelihood_ratio(
    recording: Recording, both: Records, phi: Float64, scores: Float64, noise: bool
) -> Float64:
    """Return log N(s; in) − log N(s; out) (n,), with one common variance for each side."""
    rng = np.random.default_rng(2)
    size = round(SHADOW_SHARE * len(both))
    inside = np.zeros((SHADOWS, len(both)), np.bool_)
    shadow = np.empty((SHADOWS, len(both)))
    for k in range(SHADOWS):
        inside[k, rng.permutation(len(both))[:size]] = True
        chosen = both.at(np.flatnonzero(inside[k]))
        *_, last = _rehearsed(recording, chosen, rng if noise else None)
        shadow[k] = confidence(phi, both.y, last)
    result = np.zeros(len(both))
    for side, sign in ((inside, 1.0), (~inside, -1.0)):
        number = np.maximum(side.sum(axis=0), 1)
        mean = (shadow * side).sum(axis=0) / number
        variance = float((np.square(shadow - mean) * side).sum() / side.sum()) + 1e-12
        result += sign * (-np.square(scores - mean) / (2 * variance) - math.log(variance) / 2)
    return result


def _rehearsed(
    recording: Recording, records: Records, rng: np.random.Generator | None
) -> Iterator[Tensors]:
    context = replace(recording.plan.context, devices=len(recording.devices))
    parameters = recording.parameters
    if rng is None:
        parameters = parameters.model_copy(update={"ridge": parameters.ridge * RIDGE_SHARE})
    return trained(parameters, context, records, rng)


def _joined(parts: Sequence[Records]) -> Records:
    return Records(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))


def trained(
    parameters: FmParameters,
    context: MethodContext,
    records: Records,
    rng: np.random.Generator | None = None,
) -> Iterator[Tensors]:
    """Yield the global model after each round; `records` pools those of `context.devices`.

    With `rng` the mean carries the noise of so many devices, drawn as one normal variable."""
    device, cloud = FmDevice(parameters, context), FmCloud(parameters, context)
    state = cloud.initial_state()
    for round in cloud.plan():
        tensors = cloud.package(state, round)
        mean = device.sums(round, tensors, records) / context.devices
        if rng is not None:
            event = device.budget.events[round.phase]
            spread = np.sqrt(event_variances(event) / context.devices)
            mean = mean + (rng.normal(size=spread.shape) * spread).reshape(mean.shape)
        segments = device.finish(round, tensors, mean)
        state = cloud.absorb(state, round, segments, context.devices)
        if round.phase == TRAIN:
            yield cloud.model(state)


def event_variances(event: Event) -> Float64:
    """Return each value's variance in steps²; larger on a symmetric matrix's diagonal."""
    if not isinstance(event, GaussianEvent):
        raise PrivacyError(f"'{event.what}' is not Gaussian")
    result = np.full(event.coordinates, float(event.finest_sigma_squared))
    if event.finest_sigma_squared < event.sigma_squared:
        result[diagonal_of_triangle(event.coordinates)] = float(event.sigma_squared)
    return result


def confidence(phi: Float64, labels: NDArray[np.int64], model: Tensors) -> Float64:
    """Return log p − log(1 − p) (n,) of the true classes' probabilities p (Carlini et al. 2022)."""
    chances = head_probabilities(phi, model)[np.arange(len(labels)), labels]
    bounded = np.clip(chances, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(bounded) - np.log1p(-bounded))


def normal_curve(fpr: Float64, mu: float) -> Float64:
    """Return the highest ROC curve that μ-GDP allows, Φ(Φ⁻¹(FPR) + μ) (Dong, Roth and Su 2022)."""
    from scipy.stats import norm

    return np.asarray(norm.cdf(norm.ppf(fpr) + mu))


def dp_curve(fpr: Float64, epsilon: float, delta: float) -> Float64:
    """Return the highest ROC curve that (ε, δ)-DP allows (Kairouz et al. 2015)."""
    first = math.exp(min(epsilon, 700.0)) * fpr + delta
    second = 1 - math.exp(-epsilon) * (1 - delta - fpr)
    return np.asarray(np.clip(np.minimum(first, second), 0.0, 1.0))
