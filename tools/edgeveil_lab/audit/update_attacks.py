"""Attacks on methods that train a network, on swarms, and on the update stages that protect.

A run end to end is one answer of a device: a network of one dense layer with all weights 0, no
record at all beside one whose gradient is far past the clip, which moves two weights apart. The
attacker looks at that difference, in units of the clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from edgeveil.data.records import Records
from edgeveil.parts.exchange import TRAIN, Exchange
from edgeveil.parts.methods.dp_sgd import DpSgd, DpSgdParameters
from edgeveil.parts.methods.gep import Gep, GepParameters
from edgeveil.parts.methods.noise_only import NOISE, PACKAGE, NoiseOnlyDevice, NoiseOnlyParameters
from edgeveil.parts.methods.noised_sgd import LocalDpSgd
from edgeveil.parts.methods.output_perturbation import (
    OutputPerturbation,
    OutputPerturbationParameters,
)
from edgeveil.parts.methods.pso_dp_fl import PsoDpFl, PsoDpFlParameters
from edgeveil.parts.methods.pso_dp_sgd import PsoDpSgd, PsoDpSgdParameters
from edgeveil.parts.methods.rgp import Rgp, RgpParameters
from edgeveil.parts.methods.update_method import UpdateDevice
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import MlpParameters
from edgeveil.parts.setting import network_of
from edgeveil.parts.stages.gradient_gaussian import GradientGaussian, GradientGaussianParameters
from edgeveil.parts.stages.ldp_fl import LdpFl, LdpFlParameters
from edgeveil.parts.update import Stage, Task, Trainer, flat, shaped
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import PoissonSampled, for_one_record
from edgeveil.privacy.gaussian_mechanism import noised_step, poisson_sample, sampled_gaussian_event
from edgeveil_lab.audit.fm_attacks import SETTING as FM_SETTING
from edgeveil_lab.audit.mechanism_attacks import Attack, Claim, Hits, fresh_noise
from edgeveil_lab.audit.statistics import gaussian_threshold

DELTA = 0.02  # of the events; ε follows
WIDE = 125  # records beside each other in one answer
LARGE = 1e4  # of the added record, before its gradient is clipped
SETTING = replace(
    FM_SETTING,
    epsilon=3.0,
    max_participations=1,
    input_shape=(1,),
    network=build_network(MlpParameters(hidden=()), (1,), 2),
)
DP_SGD = DpSgdParameters(rounds=1, local_steps=2, sampling_rate=0.5, learning_rate=1e-9)
_ROUND = Exchange(1, TRAIN, 1)
_WITHOUT = Records(np.zeros((0, 1), np.float32), np.zeros(0, np.int64))
_PRESENT = Records(np.full((1, 1), LARGE, np.float32), np.zeros(1, np.int64))

Sample = Callable[[int, float], NDArray[np.int64]]


def update_attacks(values: int, jobs: int) -> tuple[Attack, ...]:
    """All of this file."""
    return (
        single_step_attack(values),
        dp_sgd_attack(-(-jobs // 12)),
        many_steps_attack(min(9 * jobs, 12_000)),
        output_attack(min(2 * jobs, 30_000)),
    )


def single_step_attack(runs: int, sample: Sample = poisson_sample) -> Attack:
    """The sample and the noise of one step by themselves, many runs by one call."""

    def event(count: int) -> PoissonSampled:
        return sampled_gaussian_event("audit", 0.25, 1, 1 << 30, count, grid_bits=30)

    edge = threshold(event(1))

    def play(present: bool, count: int) -> Hits:
        total = np.zeros(count, np.int64)
        total[sample(count, 0.25)] = present << 30
        out = noised_step(total, event(count), fresh_noise())
        return np.array([out >= edge * 2.0**30])

    claimed = epsilon([event(1)], DELTA).epsilon
    claims = (Claim("past the threshold", claimed, DELTA),)
    return Attack("dp_sgd", "sample and noise of one step", claims, play, runs)


def dp_sgd_attack(runs: int, make: type[DpSgd] = DpSgd) -> Attack:
    """One round of two steps, which the attacker hears as their sum."""
    parameters, trainer = DP_SGD, make(DP_SGD, SETTING)
    event = DpSgd(parameters, SETTING).event
    edge = threshold(event)
    step = parameters.learning_rate * parameters.clip_norm / parameters.sampling_rate

    def play(present: bool, count: int) -> Hits:
        return np.array([heard(trainer, present, count) / step >= edge])

    claims = (Claim("past the threshold", epsilon([event], DELTA).epsilon, DELTA),)
    return Attack("dp_sgd", "one round", claims, play, runs)


def many_steps_attack(runs: int, make: type[DpSgd] = DpSgd) -> Attack:
    """One round of many steps: a record that is seldom in a sample is never in most of them.

    Were one sample taken for all steps, it would be in every one as often as in one. Each record
    moves weights of its own, so that one answer plays `WIDE` runs.
    """
    network = build_network(MlpParameters(hidden=()), (WIDE,), 2)
    setting = replace(SETTING, epsilon=2.0, input_shape=(WIDE,), network=network)
    parameters = DpSgdParameters(rounds=1, local_steps=32, sampling_rate=0.05, learning_rate=1e-9)
    trainer, event = make(parameters, setting), DpSgd(parameters, setting).event
    step = parameters.learning_rate * parameters.clip_norm / parameters.sampling_rate
    edge = 0.6 * parameters.local_steps
    weights = {w.name: np.zeros(w.shape, np.float32) for w in network.weights}
    every = Records(np.eye(WIDE, dtype=np.float32) * np.float32(LARGE), np.zeros(WIDE, np.int64))
    nobody = every.at(np.zeros(0, np.int64))

    def play(present: bool, count: int) -> Hits:
        device, records = UpdateDevice(trainer, setting), every if present else nobody
        apart = []
        for _ in range(-(-count // WIDE)):
            answer = device.answer(_ROUND, weights, records, fresh_noise(), "cpu")
            moved = answer.segments["output.weight"].astype(np.float64)
            apart.append((moved[:, 0] - moved[:, 1]) / math.sqrt(2))
        return np.array([np.concatenate(apart)[:count] / step >= edge])

    claims = (Claim("in most of the steps", epsilon([event], 0.01).epsilon, 0.01),)
    return Attack("dp_sgd", "one round of many steps", claims, play, runs)


def output_attack(runs: int) -> Attack:
    """A record that moves the weights much further than `sensitivity` takes it to."""
    parameters = OutputPerturbationParameters(rounds=1, learning_rate=0.1)
    trainer = OutputPerturbation(parameters, SETTING)

    def play(present: bool, count: int) -> Hits:
        return np.array([heard(trainer, present, count) >= parameters.learning_rate * LARGE / 4])

    claims = (Claim("weights apart", SETTING.epsilon, SETTING.delta, proven=False),)
    return Attack("output_perturbation", "one round", claims, play, runs)


def heard(trainer: Trainer, present: bool, count: int) -> NDArray[np.float64]:
    """How far apart each of so many answers moves the two weights, over √2."""
    device = UpdateDevice(trainer, SETTING)
    records = _PRESENT if present else _WITHOUT
    network = SETTING.network
    assert network is not None  # noqa: S101 - see SETTING
    weights = {w.name: np.zeros(w.shape, np.float32) for w in network.weights}
    apart = np.empty(count)
    for k in range(count):
        answer = device.answer(_ROUND, weights, records, fresh_noise(), "cpu")
        one, other = answer.segments["output.weight"][0].astype(np.float64)
        apart[k] = (one - other) / math.sqrt(2)
    return apart


def threshold(event: PoissonSampled) -> float:
    """The sum of an event's steps, in sensitivities, past which p₁ − e^ε·p₀ is largest."""
    factor = math.exp(epsilon([event], DELTA).epsilon)
    noise = math.sqrt(event.steps) * event.event.noise_multiplier
    edges = np.linspace(-4 * noise, event.steps + 8 * noise, 4001)
    present = np.zeros_like(edges)
    for k in range(event.steps + 1):
        chance = stats.binom.pmf(k, event.steps, event.sampling_probability)
        present += chance * stats.norm.sf(edges, k, noise)
    gain = present - factor * stats.norm.sf(edges, 0, noise)
    return float(edges[np.argmax(gain)])


# --- swarms, `gep` and `rgp`: built upon noised steps or noised updates ---

# Of all records: the sample, which these draw as `dp_sgd` does, is attacked there.
_ONE_STEP = {**DP_SGD.model_dump(exclude={"method"}), "sampling_rate": 1.0}


def swarm_attacks(jobs: int) -> tuple[Attack, ...]:
    """All of this file."""
    swarm = PsoDpSgdParameters(**_ONE_STEP, particles=2, moves=1, search="adaptive")
    by_pso = PsoDpSgd(swarm, SETTING)
    gep = GepParameters(**_ONE_STEP, subspace=2, auxiliary=8)
    by_gep = Gep(gep, SETTING)
    rgp = RgpParameters(**_ONE_STEP, rank=1)
    by_rgp = Rgp(rgp, SETTING)
    return (
        steps_attack("pso_dp_sgd", by_pso, swarm, by_pso.event, jobs),
        steps_attack("gep", by_gep, gep, by_gep.event, jobs),
        steps_attack("rgp", by_rgp, rgp, by_rgp.event, jobs),
        swarm_update_attack(jobs),
    )


def steps_attack(
    name: str, trainer: Trainer, parameters: LocalDpSgd, event: PoissonSampled, runs: int
) -> Attack:
    """One noised step, of the best particle where there are several."""
    edge = threshold(replace(event, steps=1))
    step = parameters.learning_rate * parameters.clip_norm / parameters.sampling_rate

    def play(present: bool, count: int) -> Hits:
        return np.array([heard(trainer, present, count) / step >= edge])

    claims = (Claim("past the threshold", epsilon([event], DELTA).epsilon, DELTA),)
    return Attack(name, "one round of one step", claims, play, runs)


def swarm_update_attack(runs: int) -> Attack:
    """A device with one record, whose best particle is far away, and a device with none."""
    trainer = PsoDpFl(PsoDpFlParameters(rounds=1, particles=2), SETTING)
    event = trainer.event
    mu = event.mu
    edge, delta = gaussian_threshold(mu, runs)

    def play(present: bool, count: int) -> Hits:
        return np.array([heard(trainer, present, count) * mu >= edge])

    claims = (Claim("past the threshold", epsilon([event], delta).epsilon, delta),)
    return Attack("pso_dp_fl", "one round", claims, play, runs)


# --- update stages: the worst two updates that one device can make ---

_LARGE_UPDATE = 1e4  # of every value, before the clip
_NETWORK = network_of(SETTING)
_WEIGHTS = _NETWORK.initial()


def stage_attacks(runs: int) -> tuple[Attack, ...]:
    """All of this file."""
    return (noised_attack(runs), two_values_attack(runs))


def noised_attack(runs: int, make: type[GradientGaussian] = GradientGaussian) -> Attack:
    """One record among others, which turns the update round: C to one side, C to the other."""
    stage = make(GradientGaussianParameters(), SETTING)
    event = GradientGaussian(GradientGaussianParameters(), SETTING).event
    apart = for_one_record(event)
    mu = 2 * event.mu
    edge, delta = gaussian_threshold(mu, runs)

    def play(present: bool, count: int) -> Hits:
        along = staged(stage, present, count).sum(1) / math.sqrt(event.coordinates)
        return np.array([(along / event.sensitivity + 1) * event.mu >= edge])

    claims = (Claim("past the threshold", epsilon([apart], delta).epsilon, delta),)
    return Attack("gradient_gaussian", "a record among others", claims, play, runs)


def two_values_attack(runs: int) -> Attack:
    """Updates past either end of the range, so that all values are told apart as far as may be."""
    stage = LdpFl(LdpFlParameters(), SETTING)

    def play(present: bool, count: int) -> Hits:
        return np.array([(staged(stage, present, count) > 0).all(1)])

    claims = (Claim("all values high", epsilon([stage.event], 0.0).epsilon),)
    return Attack("ldp_fl", "any two updates", claims, play, runs)


def staged(stage: Stage, present: bool, count: int) -> NDArray[np.float64]:
    """What leaves the stage (count, values), of updates far to one side or to the other."""
    records = Records(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    exchange = Exchange(1, TRAIN, 1)
    task = Task(exchange, _NETWORK, _WEIGHTS, records, {}, fresh_noise(), "cpu")
    size = flat(_WEIGHTS).size
    update = shaped(_WEIGHTS, np.full(size, _LARGE_UPDATE if present else -_LARGE_UPDATE))
    return np.stack([flat(stage.apply(task, update)) for _ in range(count)])


# --- `noise_only`: the same noise whatever the records are ---

_NO_RECORD = Records(np.zeros((0, 1), np.float32), np.zeros(0, np.int64))
_LARGEST_RECORD = Records(np.full((1, 1), 1e30, np.float32), np.ones(1, np.int64))


def noise_only_attack(runs: int) -> Attack:
    """No record beside one as large as can be; every value of an upload is a run. ε is 0."""
    broadcast = {PACKAGE: np.zeros(1, np.float32)}

    def play(present: bool, count: int) -> Hits:
        device = NoiseOnlyDevice(NoiseOnlyParameters(values=count, package_values=1), FM_SETTING)
        answer = device.answer(_ROUND, broadcast, _LARGEST_RECORD if present else _NO_RECORD)
        out = np.asarray(answer.segments[NOISE], np.float32)
        return np.stack([out >= 0.5, np.abs(out) < 0.01])

    claims = (Claim("a large value", 0.0), Claim("a small value", 0.0))
    return Attack("noise_only", "an upload", claims, play, runs)
