"""Gaussian noise on the whole update (`gradient_gaussian`; Zhao et al. 2021), proven, unit device.

The update is clipped to L2 norm C over all its values together and put on a grid toward zero, then
discrete Gaussian noise is added (`edgeveil/privacy/gaussian_mechanism.py`). The text adds noise
without a bound on the update; here the clip gives it one.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from edgeveil.parts.exchange import Exchange
from edgeveil.parts.setting import Setting, size_of
from edgeveil.parts.update import BaseStage, StageParameters, StagePart, Task, Update, flat, shaped
from edgeveil.privacy.events import Event, GaussianEvent
from edgeveil.privacy.gaussian_mechanism import noised_update, update_event


class GradientGaussianParameters(StageParameters):
    """A `gradient_gaussian` entry of a job's `update` list."""

    name: Literal["gradient_gaussian"] = "gradient_gaussian"
    """Clip the whole update and add Gaussian noise for the job's (ε, δ), per device."""
    clip_norm: float = Field(default=1.0, ge=1e-6, le=1e6)
    """C: the largest L2 norm of an update."""


class GradientGaussian(BaseStage):
    """The noise is made for all rounds in which a device may take part."""

    protects = True

    def __init__(self, parameters: GradientGaussianParameters, setting: Setting) -> None:
        self.parameters, self._setting = parameters, setting

    @cached_property
    def event(self) -> GaussianEvent:
        """One round's. Raises PrivacyError where (ε, δ) cannot be met."""
        setting = self._setting
        return update_event(
            "update with Gaussian noise",
            self.parameters.clip_norm,
            size_of(setting),
            setting.epsilon,
            setting.delta,
            setting.max_participations,
        )

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """One Gaussian release."""
        return (self.event,)

    def apply(self, task: Task, update: Update) -> Update:
        """The noised update; without records the noise alone."""
        values = flat(update) if len(task.records) else np.zeros(self.event.coordinates)
        return shaped(update, noised_update(values, self.event, task.random_bytes))


PART = StagePart(
    parameters=GradientGaussianParameters,
    build=GradientGaussian,
    source="Zhao et al. 2021, anonymous federated learning",
    needs="a method without noise",
    reveals="each device's noised update",
    privacy="proven",
    note="per device; for one record among others at the price of twice the sensitivity",
    example="update: [{name: gradient_gaussian, clip_norm: 1}]",
)
