"""Stages that add noise to an update: `gradient_gaussian` and `ldp_fl`.

`gradient_gaussian` (Zhao et al. 2021), proven, unit device: the update is clipped to L2 norm C (the
text has no bound), which may follow a quantile of norms (`parts/stage.py`), rounded toward zero to
a grid, and gets discrete Gaussian noise.

`ldp_fl` (Sun, Qian and Chen 2021, LDP-FL, alg. 2): each weight in [c − r, c + r] becomes c ± r/T
with probabilities that keep its mean, T = (e^ε − 1)/(e^ε + 1); c is the broadcast weight, r one
public radius (the text: a range per layer). One weight is ε-LDP; all d of a device cost d·ε
(`sequential`, proven, unit device). The text counts ε once, since the proxy mixes weights
(`parallel`, claimed)."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from edgeveil.parts.method_context import size_of
from edgeveil.parts.part import omittable
from edgeveil.parts.round import PlannedRound
from edgeveil.parts.stage import (
    AdaptiveClip,
    BaseStage,
    FixedPoint,
    Int64,
    StageParameters,
    StagePart,
    Task,
    Update,
    flat,
    shaped,
)
from edgeveil.privacy.accountant import HAIR
from edgeveil.privacy.duchi_mechanism import duchi_event, duchi_mechanism
from edgeveil.privacy.events import (
    ClaimedEvent,
    CorrelatedGaussian,
    Event,
    GaussianEvent,
    SharedGaussian,
    TwoValueEvent,
    noise_of,
)
from edgeveil.privacy.gaussian_mechanism import (
    SIGMA_BITS,
    SUMMED_SIGMA_BITS,
    clipped_steps,
    correlated_event,
    gaussian,
    shared_gaussian,
    update_event,
)


class GradientGaussianParameters(StageParameters):
    """A `gradient_gaussian` entry of a job's `update` list."""

    name: Literal["gradient_gaussian"] = "gradient_gaussian"
    """Clip the whole update and add Gaussian noise for the job's (ε, δ), per device."""
    clip_norm: float = Field(default=1.0, ge=1e-6, le=1e6)
    """C: the largest L2 norm of an update; with a quantile, that of the first round."""
    quantile: float | None = omittable(None, gt=0, lt=1)
    """γ: C follows this quantile of update norms from round to round; null: C is fixed. Needs
    secure sums, which carry one bit per device."""


class GradientGaussian(BaseStage):
    """Gaussian noise calibrated to all rounds of a device; can be shared in masked sums."""

    protects = True
    shares = True
    correlates = True

    @cached_property
    def release(self) -> GaussianEvent | SharedGaussian:
        """One round's event. Raises PrivacyError if (ε, δ) cannot be met."""
        context, adapts = self.context, self.parameters.quantile is not None
        facts = (
            "update with Gaussian noise",
            1.0 if adapts else self.parameters.clip_norm,
            size_of(context) + adapts,
            context.epsilon,
            context.delta,
        )
        if context.correlation is not None:
            shares = context.correlation, context.honest, context.local_share
            return correlated_event(*facts, *shares)
        fine = SUMMED_SIGMA_BITS if context.summed else SIGMA_BITS
        event = update_event(*facts, context.max_participations, fine)
        return shared_gaussian(event, context.honest)

    @property
    def event(self) -> GaussianEvent:
        return noise_of(self.release)

    @property
    def clip(self) -> AdaptiveClip | None:
        p = self.parameters
        if p.quantile is None:
            return None
        return AdaptiveClip(p.clip_norm, p.quantile, self.event.sensitivity_steps)

    @property
    def grid(self) -> FixedPoint:
        """Grid of the noise, with room for the whole update in one value plus 12 σ.

        2^60 normal values exceed it with probability below 2^-40 (Mills' ratio: 2·Q(12) < 2^-107).
        """
        noise = math.ceil(12 * math.sqrt(self.event.sigma_squared))
        if isinstance(self.release, CorrelatedGaussian):
            noise += math.ceil(12 * math.sqrt(self.release.local_sigma_squared))
        return FixedPoint(self.event.grid_bits, self.event.sensitivity_steps + noise)

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return (self.release,)

    def apply(self, task: Task, update: Update) -> Update:
        return shaped(update, np.ldexp(self.steps(task, update), -self.event.grid_bits))

    def steps(self, task: Task, update: Update) -> Int64:
        event, clip = self.event, self.clip
        if not len(task.records):
            total = np.zeros(event.coordinates, np.int64)
        elif clip is None:
            total = clipped_steps(flat(update), event.sensitivity_steps, event.grid_bits)
        else:
            total = clip.steps(flat(update), task.clip_norm)
        noised, _ = gaussian(total, event, task.random_bytes)
        if not isinstance(release := self.release, CorrelatedGaussian):
            return noised
        noise = noised - total
        if release.local is not None:
            noised, _ = gaussian(noised, release.local, task.random_bytes)
        return np.concatenate([noised, noise])


class LdpFlParameters(StageParameters):
    """An `ldp_fl` entry of a job's `update` list."""

    name: Literal["ldp_fl"] = "ldp_fl"
    """Send every weight as one of two values, at random."""
    radius: float = Field(default=0.1, ge=1e-6, le=1e6)
    """r: a weight moves by at most this much in one round."""
    composition: Literal["sequential", "parallel"] = "sequential"
    """`sequential`: all weights share the job's ε, proven. `parallel`: each gets all of it,
    claimed."""


class LdpFl(BaseStage):
    """Two-value randomisation; ε is shared among the rounds and, if `sequential`, the weights."""

    protects = True

    @cached_property
    def event(self) -> TwoValueEvent:
        """Exact event of one round's upload. Raises PrivacyError if ε is too small."""
        size = size_of(self.context)
        each = self._round_epsilon / (size if self.parameters.composition == "sequential" else 1)
        return duchi_event("weights as one of two values", each, size)

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        if self.parameters.composition == "sequential":
            return (self.event,)
        claimed = ClaimedEvent(
            what="weights as one of two values, ε counted once for all of them",
            unit="device",
            claimed_epsilon=float(self._round_epsilon),
            source="Sun et al. 2021",
        )
        return (claimed,)

    def apply(self, task: Task, update: Update) -> Update:
        radius = self.parameters.radius
        sent, _ = duchi_mechanism(flat(update) / radius, self.event, task.random_bytes)
        return shaped(update, np.asarray(sent * radius, np.float64))

    @property
    def _round_epsilon(self) -> Fraction:
        return (
            Fraction(self.context.epsilon) * Fraction(HAIR) / int(self.context.max_participations)
        )


PARTS = (
    StagePart(
        parameters=GradientGaussianParameters,
        build=GradientGaussian,
        source="Zhao et al. 2021, anonymous federated learning",
        needs="a method without noise",
        reveals="each device's noised update",
        privacy="proven",
        note="per device; for one record among others at the price of twice the sensitivity",
        example="update: [{name: gradient_gaussian, clip_norm: 1}]",
    ),
    StagePart(
        parameters=LdpFlParameters,
        build=LdpFl,
        source="Sun, Qian and Chen 2021 (LDP-FL), alg. 2",
        needs="a method without noise",
        reveals="every weight as one of two values",
        privacy="proven",
        note="per device, any two data sets; `composition: parallel` is claimed",
        example="update: [{name: ldp_fl, radius: 0.1}]",
    ),
)
