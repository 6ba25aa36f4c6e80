"""An attack on `pate`: two data sets of one device whose votes are as far apart as they can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeveil.data.records import Records
from edgeveil.parts.exchange import TRAIN, Exchange
from edgeveil.parts.methods.pate import ROUND, VOTES, PateDevice, PateParameters, vote_event
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import GaussianEvent
from edgeveil_lab.audit.fm_attacks import SETTING as FM_SETTING
from edgeveil_lab.audit.mechanism_attacks import Attack, Claim, Hits
from edgeveil_lab.audit.statistics import gaussian_threshold

_ROUND = Exchange(1, TRAIN, 1)


def pate_attack(runs: int) -> Attack:
    """All labels turned: the noised votes along what that changes, a likelihood ratio."""
    setting = replace(FM_SETTING, max_participations=1, input_shape=(2,), classes=2)
    parameters = PateParameters(rounds=1, steps=20)
    device = PateDevice(parameters, setting)
    x = np.array([[1, 0], [-1, 0]], np.float32)
    worlds = [Records(x, np.array(labels)) for labels in ([0, 1], [1, 0])]
    without, present = (device.votes(_ROUND, one).astype(np.float64) for one in worlds)
    gap = present - without
    event = vote_event(parameters, setting)
    if not isinstance(event, GaussianEvent):
        raise TypeError("the attack is on noise that is not shared")
    edge, delta = gaussian_threshold(event.mu, runs)
    sigma = event.sigma_steps * 2.0**-event.grid_bits
    package = {ROUND: np.ones(1, np.int32)}

    def play(turned: bool, count: int) -> Hits:
        seen = np.empty(count)
        for run in range(count):
            answer = device.answer(_ROUND, package, worlds[turned])
            votes = np.asarray(answer.segments[VOTES], np.float64)
            seen[run] = ((votes - without) * gap).sum()
        return (seen / (sigma * float(np.linalg.norm(gap))) >= edge)[None]

    claims = (Claim("a round's votes", epsilon([event], delta).epsilon, delta),)
    return Attack("pate", "all labels turned", claims, play, runs)
