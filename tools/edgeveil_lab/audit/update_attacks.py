"""Attacks on network training, swarms, votes, and update stages that add noise.

A run is an answer of a device with a dense layer of zero weights, without a record and with one far
past the clip. Results are in units of the clip."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from edgeveil.data.records import Records
from edgeveil.parts.method_context import MethodContext, network_of
from edgeveil.parts.methods.dp_sgd import DpSgd, DpSgdParameters
from edgeveil.parts.methods.noise_only import NOISE, PACKAGE, NoiseOnlyDevice, NoiseOnlyParameters
from edgeveil.parts.methods.pate import (
    ROUND,
    VOTE_BITS,
    VOTES,
    PateDevice,
    PateParameters,
    vote_event,
)
from edgeveil.parts.methods.pso import PsoDpFl, PsoDpSgd
from edgeveil.parts.methods.sgd import OutputPerturbation, SgdParameters
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.parts.stage import BaseStage, Task, flat, shaped
from edgeveil.parts.stages.noise import (
    GradientGaussian,
    GradientGaussianParameters,
    LdpFl,
    LdpFlParameters,
)
from edgeveil.parts.update import Trainer, UpdateDevice
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import Event, GaussianEvent, PoissonSampled, for_one_record
from edgeveil.privacy.gaussian_mechanism import noised_step, poisson_sample, sampled_gaussian_event
from edgeveil_lab.audit.fm_attacks import CONTEXT as FM_SETTING
from edgeveil_lab.audit.mechanism_attacks import (
    MANY,
    Attack,
    Claim,
    Hits,
    Statistic,
    each,
    fresh_noise,
    gaussian_law,
    past,
)
from edgeveil_lab.audit.statistics import gaussian_threshold

Float64 = NDArray[np.float64]

DELTA = 0.02  # of the events; ε follows
PAST = "past the threshold"
WIDE = 125  # records with weights of their own in one answer
LARGE = 1e4  # value of the added record, before its gradient is clipped
CONTEXT = replace(
    FM_SETTING,
    epsilon=3.0,
    max_participations=1,
    input_shape=(1,),
    network=build_network(NetworkParameters(hidden=()), (1,), 2),
)
DP_SGD = DpSgdParameters(rounds=1, local_steps=2, sampling_rate=0.5, learning_rate=1e-9)
# All records in every step: sampling is the same as in `dp_sgd` and is attacked there.
_ONE_STEP = {**DP_SGD.model_dump(exclude={"method"}), "sampling_rate": 1.0}
_ROUND = PlannedRound(1, TRAIN, 1)
WITHOUT = Records(np.zeros((0, 1), np.float32), np.zeros(0, np.int64))
PRESENT = Records(np.full((1, 1), LARGE, np.float32), np.zeros(1, np.int64))
PERSON = PRESENT.at(np.zeros(MANY, np.int64))  # records without a person cell are one person's

Sample = Callable[[int, float], NDArray[np.int64]]


def update_attacks(values: int, jobs: int) -> tuple[Attack, ...]:
    swarm = DpSgdParameters(method="pso_dp_sgd", **_ONE_STEP, search="adaptive")
    few = max(1, jobs // 20)
    return (
        noise_only_attack(values),
        pate_attack(jobs),
        single_step_attack(values),
        dp_sgd_attack(-(-jobs // 12)),
        dp_sgd_attack(-(-jobs // 24), PERSON),
        many_steps_attack(min(9 * jobs, 12_000)),
        output_attack(min(2 * jobs, 30_000)),
        steps_attack(PsoDpSgd(swarm, CONTEXT), swarm, few),
        swarm_update_attack(few),
        noised_attack(jobs),
        two_values_attack(jobs),
    )


def _claim(event: str, priced: Event, delta: float = DELTA) -> Claim:
    return Claim(event, epsilon([priced], delta).epsilon, delta)


def single_step_attack(runs: int, sample: Sample = poisson_sample) -> Attack:
    def event(count: int) -> PoissonSampled:
        return sampled_gaussian_event("audit", 0.25, 1, 1 << 30, count, grid_bits=30)

    def released(present: bool, count: int) -> Float64:
        total = np.zeros(count, np.int64)
        total[sample(count, 0.25)] = present << 30
        return noised_step(total, event(count), fresh_noise()) / 2.0**30

    title = "sample and noise of one step"
    return past("dp_sgd", title, runs, released, threshold(event(1)), _claim(PAST, event(1)))


def dp_sgd_attack(runs: int, added: Records = PRESENT) -> Attack:
    """Build the attack on one round, by a record or by a person's records."""
    trainer = DpSgd(DP_SGD, of_unit(CONTEXT, added))
    edge, claim = threshold(trainer.event), _claim(PAST, trainer.event)
    observed = apart(trainer, 1 / _step(DP_SGD), added)
    return past("dp_sgd", f"one round{whose(added)}", runs, observed, edge, claim)


def of_unit(context: MethodContext, added: Records) -> MethodContext:
    """Return the context of a job that hides the `added` records."""
    return context if len(added) == 1 else replace(context, unit="person")


def whose(added: Records) -> str:
    return "" if len(added) == 1 else f", a person of {len(added)} records"


def many_steps_attack(runs: int) -> Attack:
    """Build the attack on one round of many steps, most of which skip a rarely sampled record."""
    network = build_network(NetworkParameters(hidden=()), (WIDE,), 2)
    context = replace(CONTEXT, epsilon=2.0, input_shape=(WIDE,), network=network)
    parameters = DP_SGD.model_copy(update={"local_steps": 32, "sampling_rate": 0.05})
    trainer = DpSgd(parameters, context)
    every = Records(np.eye(WIDE, dtype=np.float32) * np.float32(LARGE), np.zeros(WIDE, np.int64))
    worlds = every.at(np.zeros(0, np.int64)), every

    def observed(present: bool, count: int) -> Float64:
        moved = _moved(trainer, context, worlds[present], -(-count // WIDE))
        return moved.ravel()[:count] / _step(parameters)

    title, edge = "one round of many steps", 0.6 * parameters.local_steps
    claim = _claim("in most of the steps", trainer.event, 0.01)
    return past("dp_sgd", title, runs, observed, edge, claim)


def output_attack(runs: int) -> Attack:
    """Build the attack with a record that moves the weights beyond the assumed `sensitivity`."""
    parameters = SgdParameters(method="output_perturbation", rounds=1, learning_rate=0.1)
    observed = apart(OutputPerturbation(parameters, CONTEXT))
    edge = parameters.learning_rate * LARGE / 4
    claim = Claim("weights apart", CONTEXT.epsilon, CONTEXT.delta, proven=False)
    return past("output_perturbation", "one round", runs, observed, edge, claim)


def steps_attack(trainer: PsoDpSgd, parameters: DpSgdParameters, runs: int) -> Attack:
    event, observed = trainer.event, apart(trainer, 1 / _step(parameters))
    edge, title = threshold(replace(event, steps=1)), "one round of one step"
    return past(parameters.method, title, runs, observed, edge, _claim(PAST, event))


def swarm_update_attack(runs: int) -> Attack:
    """Build the attack on a device with one record and a far best particle, against none."""
    trainer = PsoDpFl(SgdParameters(method="pso_dp_fl", rounds=1), CONTEXT)
    event = trainer.event
    edge, delta = gaussian_threshold(event.mu, runs)
    claim = _claim(PAST, event, delta)
    return past("pso_dp_fl", "one round", runs, apart(trainer, event.mu), edge, claim)


def apart(trainer: Trainer, scale: float = 1.0, added: Records = PRESENT) -> Statistic:
    """Return how far each answer moves the two weights apart, over √2, times `scale`."""
    worlds = (WITHOUT, added)
    return lambda present, count: _moved(trainer, CONTEXT, worlds[present], count)[:, 0] * scale


def _moved(trainer: Trainer, context: MethodContext, records: Records, count: int) -> Float64:
    device = UpdateDevice(trainer, context)
    weights = {w.name: np.zeros(w.shape, np.float32) for w in network_of(context).weights}
    answers = (
        device.answer(_ROUND, weights, records, fresh_noise(), "cpu").segments["output.weight"]
        for _ in range(count)
    )
    moved = np.stack([answer.astype(np.float64) for answer in answers])
    return np.asarray((moved[:, :, 0] - moved[:, :, 1]) / math.sqrt(2))


def _step(parameters: DpSgdParameters) -> float:
    return parameters.learning_rate * parameters.clip_norm / parameters.sampling_rate


def threshold(event: PoissonSampled) -> float:
    """Return the sum of an event's steps, in sensitivities, past which p₁ − e^ε·p₀ is largest."""
    factor = math.exp(epsilon([event], DELTA).epsilon)
    noise = math.sqrt(event.steps) * event.event.noise_multiplier
    edges = np.linspace(-4 * noise, event.steps + 8 * noise, 4001)
    present = np.zeros_like(edges)
    for k in range(event.steps + 1):
        chance = stats.binom.pmf(k, event.steps, event.sampling_probability)
        present += chance * stats.norm.sf(edges, k, noise)
    gain = present - factor * stats.norm.sf(edges, 0, noise)
    return float(edges[np.argmax(gain)])


# Update stages: the worst two updates that one device can make.
_LARGE_UPDATE = 1e4  # every value, before clipping
_WEIGHTS = network_of(CONTEXT).initial()


def noised_attack(runs: int) -> Attack:
    """Build the attack with one record that turns the clipped update from −C to C."""
    stage = GradientGaussian(GradientGaussianParameters(), CONTEXT)
    event = stage.event
    edge, delta = gaussian_threshold(2 * event.mu, runs)

    def observed(present: bool, count: int) -> Float64:
        along = staged(stage, present, count).sum(1) / math.sqrt(event.coordinates)
        return np.asarray((along / event.sensitivity + 1) * event.mu)

    claim = _claim(PAST, for_one_record(event), delta)
    return past("gradient_gaussian", "a record among others", runs, observed, edge, claim)


def two_values_attack(runs: int) -> Attack:
    """Build the attack with updates past either end of the range, in every value."""
    stage = LdpFl(LdpFlParameters(), CONTEXT)

    def observed(present: bool, count: int) -> Float64:
        return np.asarray((staged(stage, present, count) > 0).all(1), np.float64)

    claim = _claim("all values high", stage.event, 0.0)
    return past("ldp_fl", "any two updates", runs, observed, 1, claim)


def staged(stage: BaseStage, present: bool, count: int) -> Float64:
    """Return the output (count, values) of a stage for updates far to one side or to the other."""
    records = Records(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    task = Task(_ROUND, network_of(CONTEXT), _WEIGHTS, records, {}, fresh_noise(), "cpu")
    size = flat(_WEIGHTS).size
    update = shaped(_WEIGHTS, np.full(size, _LARGE_UPDATE if present else -_LARGE_UPDATE))
    return np.stack([flat(stage.apply(task, update)) for _ in range(count)])


# `pate`: two data sets of one device whose votes are as far apart as they can be.
class TurnedLabels:
    """Votes of a device, and with all its labels changed; `honest` of `summed` share the noise."""

    title = "votes"

    def __init__(self, *, summed: int = 0, honest: int = 0) -> None:
        context = replace(FM_SETTING, max_participations=1, input_shape=(2,), classes=2)
        context = replace(context, summed=summed, honest=honest)
        parameters = PateParameters(rounds=1)
        self._device = PateDevice(parameters, context)
        self._unit = 2.0**-VOTE_BITS if summed else 1.0  # of an uploaded number, in votes
        x = np.array([[1, 0], [-1, 0]], np.float32)
        self._worlds = [Records(x, np.array(labels)) for labels in ([0, 1], [1, 0])]
        ballots = [self._device.votes(_ROUND, one).astype(np.float64) for one in self._worlds]
        self.base, self.gap = ballots[0], ballots[1] - ballots[0]
        self.event: Event = vote_event(parameters, context)

    def observed(self, turned: bool) -> Float64:
        package = {ROUND: np.ones(1, np.int32)}
        answer = self._device.answer(_ROUND, package, self._worlds[turned], fresh_noise())
        return np.asarray(answer.segments[VOTES], np.float64) * self._unit - self.base

    def along(self, votes: Float64, law: GaussianEvent) -> float:
        sigma = law.sigma_steps * 2.0**-law.grid_bits
        return float((votes * self.gap).sum() / (sigma * np.linalg.norm(self.gap)))


def pate_attack(runs: int) -> Attack:
    scene = TurnedLabels()
    law = gaussian_law(scene.event)
    edge, delta = gaussian_threshold(law.mu, runs)
    ratio = each(lambda turned: scene.along(scene.observed(turned), law))
    claim = _claim("a round's votes", law, delta)
    return past("pate", "all labels turned", runs, ratio, edge, claim)


# `noise_only`: the same noise whatever the records are.
def noise_only_attack(runs: int) -> Attack:
    """Build the attack with no record against a huge one; every value is a run and ε is 0."""
    broadcast = {PACKAGE: np.zeros(1, np.float32)}
    largest = Records(np.full((1, 1), 1e30, np.float32), np.ones(1, np.int64))

    def play(present: bool, count: int) -> Hits:
        device = NoiseOnlyDevice(NoiseOnlyParameters(values=count, package_values=1), FM_SETTING)
        answer = device.answer(_ROUND, broadcast, largest if present else WITHOUT)
        out = np.asarray(answer.segments[NOISE], np.float32)
        return np.stack([out >= 0.5, np.abs(out) < 0.01])

    claims = (Claim("a large value", 0.0), Claim("a small value", 0.0))
    return Attack("noise_only", "an upload", claims, play, runs)
