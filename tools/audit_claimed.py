"""Attacks on what is only claimed: mechanisms of the literature whose guarantee does not hold.

A measured ε above the claim is what one expects here, and no failure: these mechanisms are
labelled `claimed` wherever they are used, and their ε is printed as no proven guarantee.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fl_core.algorithms.base import Records
from fl_core.algorithms.fm import FmDevice
from fl_core.algorithms.fm_budget import GAUSSIAN_BITS
from fl_core.features.pca import PcaParameters
from fl_core.privacy.accountant import epsilon
from fl_core.privacy.events import ClaimedEvent, GaussianEvent
from tools.audit_attacks import Attack, Claim, Effort, Hits
from tools.audit_fm import PARAMETERS, SETTING, Listener, Scene
from tools.audit_statistics import gaussian_threshold

TILT = math.radians(20)


def claimed_attacks(effort: Effort) -> tuple[Attack, ...]:
    """All attacks of this file."""
    return wishart_attack(effort.jobs), local_pca_attack(effort.jobs // 4)


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
    mu = event.mu if isinstance(event, GaussianEvent) else math.nan
    edge, delta = gaussian_threshold(mu, runs)
    scale = mu / event.sensitivity * 2.0**-GAUSSIAN_BITS

    def play(present: bool, count: int) -> Hits:
        device = FmDevice(scene.parameters, scene.setting)
        records = scene.present if present else scene.without
        heard = [listener.hear_one(0, device, records) for _ in range(count)]
        return np.array([[values @ np.sign(gap) * scale >= edge for values in heard]])

    claims = (Claim("sum of features", epsilon([event], delta).epsilon, delta, proven=False),)
    return Attack("local_pca", "basis of the device's own", claims, play, runs)
