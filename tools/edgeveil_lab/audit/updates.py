"""Attacks on methods that train a network: `dp_sgd` step by step and end to end, and a claim.

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
from edgeveil.parts.methods.output_perturbation import (
    OutputPerturbation,
    OutputPerturbationParameters,
)
from edgeveil.parts.methods.update_method import UpdateDevice
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import MlpParameters
from edgeveil.parts.update import Trainer
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import PoissonSampled
from edgeveil.privacy.gaussian_mechanism import noised_step, poisson_sample, sampled_gaussian_event
from edgeveil_lab.audit.attacks import Attack, Claim, Hits, fresh_noise
from edgeveil_lab.audit.fm import SETTING as FM_SETTING

DELTA = 0.02  # of the events; ε follows
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
    return (steps_attack(values), dp_sgd_attack(-(-jobs // 12)), output_attack(-(-jobs // 4)))


def steps_attack(runs: int, sample: Sample = poisson_sample) -> Attack:
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
