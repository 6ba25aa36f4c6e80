"""Each weight sent as one of two values (`ldp_fl`; Sun, Qian and Chen 2021, LDP-FL, alg. 2).

A weight in [c − r, c + r] becomes c ± r/T with chances that keep its mean, T = (e^ε − 1)/(e^ε + 1);
c is the broadcast weight, r one public radius (the text: a range per layer). One weight is ε-LDP;
all d of a device cost d·ε (`sequential`, proven, unit device). The text counts ε once, since the
proxy mixes weights (`parallel`, claimed).
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from edgeveil.parts.exchange import Exchange
from edgeveil.parts.method_context import size_of
from edgeveil.parts.update import BaseStage, StageParameters, StagePart, Task, Update, flat, shaped
from edgeveil.privacy.accountant import HAIR
from edgeveil.privacy.duchi_mechanism import duchi_event, duchi_mechanism
from edgeveil.privacy.events import ClaimedEvent, Event, TwoValueEvent


class LdpFlParameters(StageParameters):
    """An `ldp_fl` entry of a job's `update` list."""

    name: Literal["ldp_fl"] = "ldp_fl"
    """Send every weight as one of two values, at random."""
    radius: float = Field(default=0.1, ge=1e-6, le=1e6)
    """r: a weight moves by at most this much in one round."""
    composition: Literal["sequential", "parallel"] = "sequential"
    """`sequential`: all weights share the job's ε, proven. `parallel`: each has it, claimed."""


class LdpFl(BaseStage):
    """`privacy.epsilon` is shared among a device's rounds, and `sequential`: among its weights."""

    protects = True

    @cached_property
    def event(self) -> TwoValueEvent:
        """What one round's upload truly is. Raises PrivacyError where ε is too small."""
        size = size_of(self.setting)
        each = self._round_epsilon / (size if self.parameters.composition == "sequential" else 1)
        return duchi_event("weights as one of two values", each, size)

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
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
        times = self.setting.max_participations
        return Fraction(self.setting.epsilon) * Fraction(HAIR) / Fraction(times)


PART = StagePart(
    parameters=LdpFlParameters,
    build=LdpFl,
    source="Sun, Qian and Chen 2021 (LDP-FL), alg. 2",
    needs="a method without noise",
    reveals="every weight as one of two values",
    privacy="proven",
    note="per device, any two data sets; `composition: parallel` is claimed",
    example="update: [{name: ldp_fl, radius: 0.1}]",
)
