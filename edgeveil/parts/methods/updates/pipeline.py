"""The stages of a job in a row: where training starts, what is sent, and what it all costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.exchange import Exchange
from edgeveil.parts.setting import Setting
from edgeveil.parts.update import Stage, Task, Update
from edgeveil.privacy.accountant import HAIR
from edgeveil.privacy.events import ClaimedEvent, Event, UnprotectedEvent


@dataclass(frozen=True)
class Pipeline:
    """The job's stages, in their order."""

    setting: Setting

    @property
    def _stages(self) -> tuple[tuple[Stage, bool], ...]:
        """Each stage, and whether it protects only what was chosen by un-noised values."""
        result, chosen = [], False
        for stage in self.setting.stages:
            result.append((stage, stage.protects and chosen))
            chosen = stage.chooses or (chosen and not stage.protects)
        return tuple(result)

    def price(self, exchange: Exchange, trained: tuple[Event, ...]) -> tuple[Event, ...]:
        """The trainer's events and the stages'; an un-noised update has none where one protects.

        Noise on chosen values alone is claimed: which were chosen is told without noise.
        """
        events = list(trained)
        for stage, chosen in self._stages:
            own = stage.price(exchange)
            if stage.protects:
                events = [event for event in events if not isinstance(event, UnprotectedEvent)]
            events += [self._claimed(event) for event in own] if chosen else own
        return tuple(events)

    def start(self, task: Task) -> Mapping[str, NDArray[np.float32]]:
        """The weights that training starts from."""
        start: Mapping[str, NDArray[np.float32]] = task.weights
        for stage in self.setting.stages:
            start = stage.start(task) or start
        return start

    def apply(self, task: Task, update: Update) -> Update:
        """The update after all stages."""
        for stage, chosen in self._stages:
            before, update = update, stage.apply(task, update)
            if chosen:  # what was not chosen is not sent, as 0
                update = {
                    name: np.where(before[name] != 0, array, np.float32(0))
                    for name, array in update.items()
                }
        return update

    def _claimed(self, event: Event) -> Event:
        if isinstance(event, ClaimedEvent):
            return event
        return ClaimedEvent(
            what=f"{event.what}, on values that were chosen before the noise",
            unit=event.unit,
            claimed_epsilon=self.setting.epsilon * HAIR / self.setting.max_participations,
            source=event.source,
        )
