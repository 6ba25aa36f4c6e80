"""Attacks on methods built upon noised steps or noised updates: swarms, `gep` and `rgp`.

The scene is that of `updates.py`: a record whose gradient is far past the clip.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeveil.parts.methods.gep import Gep, GepParameters
from edgeveil.parts.methods.noised_sgd import LocalDpSgd
from edgeveil.parts.methods.pso_dp_fl import PsoDpFl, PsoDpFlParameters
from edgeveil.parts.methods.pso_dp_sgd import PsoDpSgd, PsoDpSgdParameters
from edgeveil.parts.methods.rgp import Rgp, RgpParameters
from edgeveil.parts.update import Trainer
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import PoissonSampled
from edgeveil_lab.audit.attacks import Attack, Claim, Hits
from edgeveil_lab.audit.statistics import gaussian_threshold
from edgeveil_lab.audit.updates import DELTA, DP_SGD, SETTING, heard, threshold

_ONE_STEP = DP_SGD.model_dump(exclude={"method"})


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
