"""Attacks on `fm` and `pca_residual` end to end, and on mechanisms with a claimed guarantee only.

Each run is one job as seen from one device, with fresh noise and worst-case broadcasts. The added
record has a huge norm and the wrong class (unlabelled for anomaly detection). The data set also
holds a NaN record and one of an unknown class. A refuted `claimed` ε is no failure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.anomaly import UNLABELLED
from edgeveil.data.records import Records
from edgeveil.data.target import LABELS
from edgeveil.parts.features import Identity, IdentityParameters
from edgeveil.parts.features.feature_map import PcaParameters
from edgeveil.parts.method_context import MethodContext
from edgeveil.parts.methods import METHODS, pca_residual
from edgeveil.parts.methods.fm import HEAD, FmDevice
from edgeveil.parts.methods.fm_paper import (
    HIDDEN,
    LEARNING_RATE,
    OUTPUT,
    WIDTH,
    FmPaperCloud,
    FmPaperDevice,
    FmPaperParameters,
)
from edgeveil.parts.methods.fm_sums import GAUSSIAN_BITS, FmParameters, Shares, upper
from edgeveil.parts.round import PlannedRound, Tensors
from edgeveil.privacy.accountant import epsilon, pure_epsilon
from edgeveil.privacy.events import ClaimedEvent, Event, LaplaceEvent
from edgeveil_lab.attack.membership import event_variances
from edgeveil_lab.audit.mechanism_attacks import (
    MANY,
    Attack,
    Claim,
    Effort,
    Hits,
    each,
    fresh_noise,
    gaussian_law,
    past,
)
from edgeveil_lab.audit.statistics import gaussian_threshold

Float64 = NDArray[np.float64]
Parameters = FmParameters | pca_residual.PcaResidualParameters
SummingDevice = FmDevice | pca_residual.PcaResidualDevice

HUGE = 1e30
PURE = {"noise": "laplace", "rounds": 1}
PARAMETERS = FmParameters(rounds=2, local_steps=1, shares=Shares(centre=0.3, quadratic=0.3))
NORMAL = pca_residual.PcaResidualParameters(rounds=2)
CONTEXT = MethodContext(
    epsilon=8.0,
    delta=1e-5,
    max_participations=2,
    classes=2,
    input_shape=(2,),
    features=Identity(IdentityParameters()),
    nominal_records=1,
    devices=1,
)


@dataclass(frozen=True)
class NeighbouringJob:
    parameters: Parameters
    context: MethodContext
    without: Records
    present: Records

    def records(self, present: bool) -> Records:
        return self.present if present else self.without

    @classmethod
    def of(cls, parameters: Parameters, context: MethodContext) -> NeighbouringJob:
        """Build the pair of data sets that the module docstring describes.

        Of other units, MANY records of one person are added, or all records of the device."""
        added = 1 if context.unit == "record" else MANY
        values = math.prod(context.input_shape)
        others = np.zeros((3, values), np.float32)
        others[0], others[1, 0], others[2, -1] = 0.5, np.nan, 1.0
        more = np.zeros((added, values), np.float32)
        more[:, 0] = HUGE
        labels = np.array([0, 1, 7] + [UNLABELLED if context.anomaly else 1] * added)
        persons = np.array([0, 1, 2] + [3] * added, np.float32)[:, None]
        present = Records(np.concatenate([others, more]), labels, persons)
        left = 0 if context.unit == "device" else len(others)
        return cls(parameters, context, present.at(np.arange(left)), present)


def make_device(scene: NeighbouringJob) -> SummingDevice:
    make: Any = METHODS[scene.parameters.method].device
    device: SummingDevice = make(scene.parameters, scene.context)
    return device


class HostileCloud:
    """A cloud with worst-case broadcasts; each sum is `bases`, plus `gaps` with the record."""

    def __init__(self, scene: NeighbouringJob) -> None:
        self.scene = scene
        device = make_device(scene)
        cloud = METHODS[scene.parameters.method].cloud(scene.parameters, scene.context)
        state = cloud.initial_state()
        self.rounds = cloud.plan()
        self.broadcasts = [_worst_broadcast(e, cloud.package(state, e)) for e in self.rounds]
        self.events: list[Event] = [device.price(round)[0] for round in self.rounds]
        self.steps = [2.0 ** -device.budget.grid_bits(e.phase) for e in self.rounds]
        self.bases, self.gaps = [], []
        for round, tensors in zip(self.rounds, self.broadcasts, strict=True):
            base = device.sums(round, tensors, scene.without).ravel().astype(np.float64)
            full = device.sums(round, tensors, scene.present).ravel().astype(np.float64)
            self.bases.append(base)
            self.gaps.append(full - base)

    def observe_one(self, k: int, device: SummingDevice, records: Records) -> Float64:
        """Return the noised sum of round `k` (from 0) minus the known part, in grid steps."""
        round = self.rounds[k]
        answer = device.answer(round, self.broadcasts[k], records, fresh_noise(), "cpu")
        values = next(iter(answer.segments.values())).astype(np.float64).ravel()
        if HEAD in answer.segments:  # with unit curvature a step is minus the noised sum
            values = values / -self.steps[k]
        return np.asarray(values - self.bases[k])


def fm_attacks(runs: int) -> tuple[Attack, ...]:
    """Return the attacks on jobs with Gaussian and Laplace noise, a PCA, a number, anomalies."""
    one_round = PARAMETERS.model_copy(update={"rounds": 1})
    projected = replace(CONTEXT, projection=PcaParameters(name="ldp_fpca", share=0.4))
    number = replace(CONTEXT, classes=LABELS, regression=True)
    usual = replace(CONTEXT, anomaly=True)
    person = replace(CONTEXT, unit="person")
    pure = replace(CONTEXT, epsilon=2.0, max_participations=1, input_shape=(1,))
    return (
        gaussian_job(runs, "end to end", NeighbouringJob.of(PARAMETERS, CONTEXT)),
        gaussian_job(runs, "after a PCA", NeighbouringJob.of(one_round, projected)),
        gaussian_job(runs, "a person of 50 records", NeighbouringJob.of(one_round, person)),
        gaussian_job(runs, "on a number", NeighbouringJob.of(one_round, number)),
        laplace_job(runs, NeighbouringJob.of(PARAMETERS.model_copy(update=PURE), pure)),
        gaussian_job(runs, "what is normal", NeighbouringJob.of(NORMAL, usual)),
    )


def gaussian_job(
    runs: int, title: str, scene: NeighbouringJob, device: SummingDevice | None = None
) -> Attack:
    listener, device = HostileCloud(scene), device or make_device(scene)

    def observe(k: int, records: Records) -> Float64:
        return listener.observe_one(k, device, records)

    return ratio_attack(scene.parameters.method, title, runs, listener, observe)


Observe = Callable[[int, Records], Float64]
WITHOUT_COLLUSION = ", at the ε without collusion"


def ratio_attack(
    mechanism: str,
    title: str,
    runs: int,
    hostile: HostileCloud,
    observe: Observe,
    seen: Callable[[Event], Event] = lambda event: event,
    attacked: Sequence[int] | None = None,
    *,
    colluding: bool = False,
) -> Attack:
    """Build likelihood-ratio tests of each of the `attacked` rounds (default: all), and of all.

    `seen` maps a round's event to the noise that the attacker faces. The claim is the printed ε. If
    all other devices are `colluding`, the claim is the ε under collusion, and the printed ε is
    added as an unproven claim."""
    attacked = range(len(hostile.events)) if attacked is None else attacked
    events = [hostile.events[k] for k in attacked]
    laws = [gaussian_law(seen(event)) for event in events]
    gaps = [hostile.gaps[k] for k in attacked]
    weights = [gap / event_variances(law) for gap, law in zip(gaps, laws, strict=True)]
    norms = np.array([np.sqrt(gap @ w) for gap, w in zip(gaps, weights, strict=True)])
    # Rounds that the record hardly changes are left out.
    tested = [k for k, norm in enumerate(norms.tolist()) if norm > norms.max() / 10]
    groups = [[k] for k in tested] + ([tested] if len(tested) > 1 else [])
    edges, claims = [], []
    for group in groups:
        edge, delta = gaussian_threshold(math.sqrt(sum(laws[k].mu ** 2 for k in group)), runs)
        edges.append(edge)
        label = hostile.rounds[attacked[group[0]]].label
        name = label if len(group) == 1 else "the whole job"
        found = epsilon([events[k] for k in group], delta)
        claimed = found.collusion_epsilon if colluding else found.epsilon
        claims.append(Claim(name, claimed, delta))
        if colluding:
            claims.append(Claim(name + WITHOUT_COLLUSION, found.epsilon, delta, proven=False))

    def play(present: bool, count: int) -> Hits:
        records = hostile.scene.records(present)
        hits = np.empty((len(groups), count), np.bool_)
        for run in range(count):
            along = np.zeros(len(laws))
            for k in tested:
                along[k] = np.dot(weights[k], observe(attacked[k], records))
            hits[:, run] = [
                along[group].sum() / np.sqrt(norms[group] @ norms[group]) >= edge
                for group, edge in zip(groups, edges, strict=True)
            ]
        return np.repeat(hits, 2 if colluding else 1, axis=0)

    return Attack(mechanism, title, tuple(claims), play, runs)


def laplace_job(runs: int, scene: NeighbouringJob) -> Attack:
    """Test if all values exceed their sums with the record; the ratio is at its bound there."""
    listener = HostileCloud(scene)
    events = [event for event in listener.events if isinstance(event, LaplaceEvent)]

    def play(present: bool, count: int) -> Hits:
        device = make_device(scene)
        records = scene.records(present)
        hits = np.empty((len(events) + 1, count), np.bool_)
        for run in range(count):
            observed = (listener.observe_one(k, device, records) for k in range(len(events)))
            gaps = zip(observed, listener.gaps, strict=True)
            past = [((values - gap) * np.sign(gap) >= 0).all() for values, gap in gaps]
            hits[:, run] = [*past, all(past)]
        return hits

    claims = [
        Claim(round.label, float(event.epsilon))
        for round, event in zip(listener.rounds, events, strict=True)
    ]
    claims.append(Claim("the whole job", float(pure_epsilon(events))))
    return Attack("fm", "with Laplace noise", tuple(claims), play, runs)


def _worst_broadcast(round: PlannedRound, tensors: Tensors) -> dict[str, NDArray[np.generic]]:
    """Return the broadcast whose centre and weights maximise the added record's effect."""
    chosen: dict[str, NDArray[np.generic]] = dict(tensors)
    if "centre" in chosen:
        chosen["centre"] = np.zeros_like(chosen["centre"])
        chosen["centre"][0] = -3.0
    if "iterate" in chosen:
        weights = np.zeros_like(chosen["iterate"])
        weights[0, :2] = (1 << 17, -(1 << 17))[: weights.shape[1]]
        unit = upper(np.eye(len(weights), dtype=np.float32))
        chosen |= {"iterate": weights, "spectrum": np.ones(2), "curvature": unit}
    return chosen


TILT = math.radians(20)


def claimed_attacks(effort: Effort) -> tuple[Attack, ...]:
    return (
        wishart_attack(effort.jobs),
        local_pca_attack(min(effort.jobs, 25_000)),
        fm_paper_attack(max(1, effort.jobs // 2)),
    )


def wishart_attack(runs: int) -> Attack:
    """Attack Wishart noise, whose true ε is infinite.

    A covariance is never below the record's part with it, else with probability 1 − e^(−ε)."""
    pca = PcaParameters(name="ldp_fpca", noise="wishart", share=0.1)
    scene = NeighbouringJob.of(PARAMETERS, replace(CONTEXT, input_shape=(1,), projection=pca))
    listener, device = HostileCloud(scene), make_device(scene)
    edge = listener.gaps[0][0] - 1
    below = each(lambda present: listener.observe_one(0, device, scene.records(present))[0] < edge)
    claim = Claim("below the record's own share", _claimed(listener.events[0]), proven=False)
    return past("wishart", "covariance of one feature", runs, below, 1, claim)


def _claimed(event: Event) -> float:
    return event.claimed_epsilon if isinstance(event, ClaimedEvent) else math.nan


def local_pca_attack(runs: int) -> Attack:
    """Attack a device's own, noise-free basis: one record decides which axis is kept."""
    sine, cosine = math.sin(TILT), math.cos(TILT)
    across = [[1, 0], [-1, 0]] * 4 + [[cosine, sine], [-cosine, sine]]
    x = np.array([[0, 1]] * 10 + across + [[1, 0]], np.float32)
    y = np.zeros(len(x), np.int64)
    scene = NeighbouringJob(
        PARAMETERS,
        replace(CONTEXT, projection=PcaParameters(name="local_pca")),
        without=Records(x[:-1], y[:-1]),
        present=Records(x, y),
    )
    listener, device = HostileCloud(scene), make_device(scene)
    law, signs = gaussian_law(listener.events[0]), np.sign(listener.gaps[0])
    edge, delta = gaussian_threshold(law.mu, runs)
    scale = law.mu / law.sensitivity * 2.0**-GAUSSIAN_BITS
    statistic = each(
        lambda there: float(listener.observe_one(0, device, scene.records(there)) @ signs * scale)
    )
    claim = Claim("sum of features", epsilon([law], delta).epsilon, delta, proven=False)
    return past("local_pca", "basis of the device's own", runs, statistic, edge, claim)


def fm_paper_attack(runs: int) -> Attack:
    """Attack one round of many tiny steps; each draws its noise anew, so the noise averages out.

    With W₁ = 0 and a small W₂, a column of W₁ ends as the sum of the steps' noised slopes."""
    steps, small = 36, 2.0**-10
    parameters = FmPaperParameters(rounds=1, local_steps=steps)
    context = replace(CONTEXT, epsilon=1.0, max_participations=1, input_shape=(1,))
    scene = NeighbouringJob.of(PARAMETERS, context)
    output = np.zeros((WIDTH, 2), np.float32)
    output[0] = small, -small
    broadcast = {HIDDEN: np.zeros((1, WIDTH), np.float32), OUTPUT: output}
    round = FmPaperCloud(parameters, context).plan()[0]
    # A record moves the slope by ½ in either class; W₂ adds both.
    others = sum(0.5 if label else -0.5 for label in scene.without.y[:1].tolist())

    device = FmPaperDevice(parameters, context)

    def observed(present: bool) -> float:
        answer = device.answer(round, broadcast, scene.records(present))
        return float(answer.segments[HIDDEN][0, 0]) / (-LEARNING_RATE * small * steps) - 2 * others

    claim = Claim("the mean of the steps", _claimed(device.price(round)[0]), proven=False)
    return past("fm_paper", f"one round of {steps} steps", runs, each(observed), 0.5, claim)
