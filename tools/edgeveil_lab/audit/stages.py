"""Attacks on the update stages that protect: the worst two updates that one device can make."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.parts.exchange import TRAIN, Exchange
from edgeveil.parts.setting import network_of
from edgeveil.parts.stages.gradient_gaussian import GradientGaussian, GradientGaussianParameters
from edgeveil.parts.stages.ldp_fl import LdpFl, LdpFlParameters
from edgeveil.parts.update import Stage, Task, flat, shaped
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import for_one_record
from edgeveil_lab.audit.attacks import Attack, Claim, Hits, fresh_noise
from edgeveil_lab.audit.statistics import gaussian_threshold
from edgeveil_lab.audit.updates import SETTING

_LARGE = 1e4  # of every value, before the clip
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
        along = sent(stage, present, count).sum(1) / math.sqrt(event.coordinates)
        return np.array([(along / event.sensitivity + 1) * event.mu >= edge])

    claims = (Claim("past the threshold", epsilon([apart], delta).epsilon, delta),)
    return Attack("gradient_gaussian", "a record among others", claims, play, runs)


def two_values_attack(runs: int) -> Attack:
    """Updates past either end of the range, so that all values are told apart as far as may be."""
    stage = LdpFl(LdpFlParameters(), SETTING)

    def play(present: bool, count: int) -> Hits:
        return np.array([(sent(stage, present, count) > 0).all(1)])

    claims = (Claim("all values high", epsilon([stage.event], 0.0).epsilon),)
    return Attack("ldp_fl", "any two updates", claims, play, runs)


def sent(stage: Stage, present: bool, count: int) -> NDArray[np.float64]:
    """What leaves the stage (count, values), of updates far to one side or to the other."""
    records = Records(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    exchange = Exchange(1, TRAIN, 1)
    task = Task(exchange, _NETWORK, _WEIGHTS, records, {}, fresh_noise(), "cpu")
    size = flat(_WEIGHTS).size
    update = shaped(_WEIGHTS, np.full(size, _LARGE if present else -_LARGE))
    return np.stack([flat(stage.apply(task, update)) for _ in range(count)])
