"""Attacks on what is only claimed: mechanisms of the literature whose guarantee does not hold.

A measured ε above the claim is what one expects here, and no failure: these mechanisms are
labelled `claimed` wherever they are used, and their ε is printed as no proven guarantee.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from edgeveil.data.records import Records
from edgeveil.parts.features.pca import PcaParameters
from edgeveil.parts.methods.fm import FmDevice
from edgeveil.parts.methods.fm_budget import GAUSSIAN_BITS
from edgeveil.parts.methods.fm_paper import (
    HIDDEN,
    OUTPUT,
    FmPaperCloud,
    FmPaperDevice,
    FmPaperParameters,
)
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import ClaimedEvent, GaussianEvent
from edgeveil_lab.audit.attacks import Attack, Claim, Effort, Hits
from edgeveil_lab.audit.fm import PARAMETERS, SETTING, Listener, Scene
from edgeveil_lab.audit.statistics import gaussian_threshold

TILT = math.radians(20)


def claimed_attacks(effort: Effort) -> tuple[Attack, ...]:
    """All attacks of this file."""
    return (
        wishart_attack(effort.jobs),
        local_pca_attack(max(1, effort.jobs // 4)),
        fm_paper_attack(max(1, effort.jobs // 8)),
    )


def wishart_attack(runs: int) -> Attack:
    """Covariance with Wishart noise: never below the record's own share, if the record is there.

    Without it the noise alone is below that with probability 1 − e^(−ε), so the true ε is
    infinite.
    """
    pca = PcaParameters(name="ldp_fpca", noise="wishart", share=0.1)
    scene = Scene.of(PARAMETERS, replace(SETTING, input_shape=(1,), projection=pca))
    listener = Listener(scene)
    event = listener.events[0]
    claimed = event.claimed_epsilon if isinstance(event, ClaimedEvent) else math.nan

    def play(present: bool, count: int) -> Hits:
        device = FmDevice(scene.parameters, scene.setting)
        records = scene.present if present else scene.without
        gap = listener.gaps[0][0]
        heard = [listener.hear_one(0, device, records)[0] for _ in range(count)]
        return np.array([[value < gap - 1 for value in heard]])

    claims = (Claim("below the record's own share", claimed, proven=False),)
    return Attack("wishart", "covariance of one feature", claims, play, runs)


def local_pca_attack(runs: int) -> Attack:
    """A device's own basis, without noise: one record turns it, and with it all the others'.

    Ten records lie along one axis, ten along the other with a sum of zero; the added one decides
    which axis is kept, and moves the sum by ten times the sensitivity that is claimed.
    """
    sine, cosine = math.sin(TILT), math.cos(TILT)
    across = [[1, 0], [-1, 0]] * 4 + [[cosine, sine], [-cosine, sine]]
    x = np.array([[0, 1]] * 10 + across + [[1, 0]], np.float32)
    y = np.zeros(len(x), np.int64)
    scene = Scene(
        PARAMETERS,
        replace(SETTING, projection=PcaParameters(name="local_pca")),
        without=Records(x[:-1], y[:-1]),
        present=Records(x, y),
    )
    listener = Listener(scene)
    event, gap = listener.events[0], listener.gaps[0]
    if not isinstance(event, GaussianEvent):
        raise TypeError(f"a projection without Gaussian noise: {event.what}")
    edge, delta = gaussian_threshold(event.mu, runs)
    scale = event.mu / event.sensitivity * 2.0**-GAUSSIAN_BITS

    def play(present: bool, count: int) -> Hits:
        device = FmDevice(scene.parameters, scene.setting)
        records = scene.present if present else scene.without
        heard = [listener.hear_one(0, device, records) for _ in range(count)]
        return np.array([[values @ np.sign(gap) * scale >= edge for values in heard]])

    claims = (Claim("sum of features", epsilon([event], delta).epsilon, delta, proven=False),)
    return Attack("local_pca", "basis of the device's own", claims, play, runs)


def fm_paper_attack(runs: int) -> Attack:
    """One round of many tiny steps: the noise, drawn anew for each and charged once, averages out.

    With W₁ = 0 and a small learning rate W₁ ends as the sum of the steps' noised slopes.
    """
    steps, rate = 36, 1e-4
    parameters = FmPaperParameters(rounds=1, hidden=1, local_steps=steps, learning_rate=rate)
    setting = replace(SETTING, epsilon=1.0, max_participations=1, input_shape=(1,))
    scene = Scene.of(PARAMETERS, setting)
    broadcast = {HIDDEN: np.zeros((1, 1), np.float32), OUTPUT: np.array([[1, -1]], np.float32)}
    exchange = FmPaperCloud(parameters, setting).plan()[0]
    # A record moves the slope by ½ in either class; W₂ adds the two up.
    others = sum(0.5 if label else -0.5 for label in scene.without.y[:1].tolist())

    def play(present: bool, count: int) -> Hits:
        device = FmPaperDevice(parameters, setting)
        records = scene.present if present else scene.without
        answers = [device.answer(exchange, broadcast, records) for _ in range(count)]
        moved = np.array([float(answer.segments[HIDDEN][0, 0]) for answer in answers])
        return np.array([moved / (-rate * steps) - 2 * others >= 0.5])

    (event, *_) = FmPaperDevice(parameters, setting).price(exchange)
    claimed = event.claimed_epsilon if isinstance(event, ClaimedEvent) else math.nan
    claims = (Claim("the mean of the steps", claimed, proven=False),)
    return Attack("fm_paper", f"one round of {steps} steps", claims, play, runs)
