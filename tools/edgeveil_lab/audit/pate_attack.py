"""An attack on `pate`: two data sets of one device whose votes are as far apart as they can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.parts.exchange import TRAIN, Exchange
from edgeveil.parts.methods.pate import (
    ROUND,
    VOTE_BITS,
    VOTES,
    PateDevice,
    PateParameters,
    vote_event,
)
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import Event, GaussianEvent
from edgeveil_lab.audit.fm_attacks import SETTING as FM_SETTING
from edgeveil_lab.audit.mechanism_attacks import Attack, Claim, Hits, fresh_noise
from edgeveil_lab.audit.statistics import gaussian_threshold

Float64 = NDArray[np.float64]

_ROUND = Exchange(1, TRAIN, 1)
_PACKAGE = {ROUND: np.ones(1, np.int32)}


class TurnedLabels:
    """One device before and after all of its labels turn; what it votes, without noise and with."""

    def __init__(self, *, summed: int = 0, honest: int = 0) -> None:
        """`honest` of the devices in a sum, of at most `summed`, share the noise; 0: none does."""
        setting = replace(FM_SETTING, max_participations=1, input_shape=(2,), classes=2)
        setting = replace(setting, summed=summed, honest=honest)
        parameters = PateParameters(rounds=1, steps=20)
        self._device = PateDevice(parameters, setting)
        self._unit = 2.0**-VOTE_BITS if summed else 1.0  # of what is uploaded, in votes
        x = np.array([[1, 0], [-1, 0]], np.float32)
        self._worlds = [Records(x, np.array(labels)) for labels in ([0, 1], [1, 0])]
        ballots = [self._device.votes(_ROUND, one).astype(np.float64) for one in self._worlds]
        self.base, self.gap = ballots[0], ballots[1] - ballots[0]
        self.event: Event = vote_event(parameters, setting)

    def heard(self, turned: bool) -> Float64:
        """The votes of one upload, with noise that was never drawn before."""
        world = self._worlds[turned]
        answer = self._device.answer(_ROUND, _PACKAGE, world, fresh_noise())
        return np.asarray(answer.segments[VOTES], np.float64) * self._unit

    def along(self, votes: Float64, law: GaussianEvent) -> float:
        """What is heard beside the votes before, along what turns, in σ of the noise."""
        sigma = law.sigma_steps * 2.0**-law.grid_bits
        return float((votes * self.gap).sum() / (sigma * np.linalg.norm(self.gap)))


def pate_attack(runs: int) -> Attack:
    """All labels turned: the noised votes along what that changes, a likelihood ratio."""
    scene = TurnedLabels()
    event = scene.event
    if not isinstance(event, GaussianEvent):
        raise TypeError("the attack is on noise that is not shared")
    edge, delta = gaussian_threshold(event.mu, runs)

    def play(turned: bool, count: int) -> Hits:
        seen = [scene.along(scene.heard(turned) - scene.base, event) for _ in range(count)]
        return np.array([seen]) >= edge

    claims = (Claim("a round's votes", epsilon([event], delta).epsilon, delta),)
    return Attack("pate", "all labels turned", claims, play, runs)
