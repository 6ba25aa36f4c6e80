"""The attack on `noise_only`: its uploads must be the same noise whatever the records are."""

from __future__ import annotations

import numpy as np

from edgeveil.data.records import Records
from edgeveil.parts.exchange import TRAIN, Exchange
from edgeveil.parts.methods.noise_only import NOISE, PACKAGE, NoiseOnlyDevice, NoiseOnlyParameters
from edgeveil_lab.audit.attacks import Attack, Claim, Hits
from edgeveil_lab.audit.fm import SETTING

_ROUND = Exchange(1, TRAIN, 1)
_WITHOUT = Records(np.zeros((0, 1), np.float32), np.zeros(0, np.int64))
_PRESENT = Records(np.full((1, 1), 1e30, np.float32), np.ones(1, np.int64))


def noise_only_attack(runs: int) -> Attack:
    """No record beside one as large as can be; every value of an upload is a run. ε is 0."""
    broadcast = {PACKAGE: np.zeros(1, np.float32)}

    def play(present: bool, count: int) -> Hits:
        device = NoiseOnlyDevice(NoiseOnlyParameters(values=count, package_values=1), SETTING)
        answer = device.answer(_ROUND, broadcast, _PRESENT if present else _WITHOUT)
        out = np.asarray(answer.segments[NOISE], np.float32)
        return np.stack([out >= 0.5, np.abs(out) < 0.01])

    claims = (Claim("a large value", 0.0), Claim("a small value", 0.0))
    return Attack("noise_only", "an upload", claims, play, runs)
