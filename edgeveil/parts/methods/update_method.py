"""A method that trains the job's model whole and uploads what changed: both halves of it.

The device's half trains, passes the job's stages and prices both; the cloud's moves the global
weights by the aggregate. What such a method brings itself is its `Trainer` (`parts/update.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.errors import ProtocolError
from edgeveil.parts.adaptive_clip import CLIP_NORM, LARGEST, SMALLEST, WITHIN, AdaptiveClip
from edgeveil.parts.aggregation.mean import BLOCK_VALUES
from edgeveil.parts.exchange import (
    KEPT,
    TRAIN,
    Aim,
    Answer,
    Array,
    Exchange,
    SegmentSpec,
    Tensors,
    summed_spec,
)
from edgeveil.parts.setting import MethodParameters, MethodPart, Setting, network_of, size_of
from edgeveil.parts.update import (
    USUAL_GRID,
    FixedPoint,
    Int64,
    Memory,
    Stage,
    Task,
    Trainer,
    Update,
    flat,
    segments_of,
    specs_of,
    split,
    update_of,
)
from edgeveil.privacy.accountant import HAIR
from edgeveil.privacy.events import ClaimedEvent, Event, UnprotectedEvent
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.subnormals import flushed_training


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

    @property
    def _last(self) -> Stage | None:
        return self.setting.stages[-1] if self.setting.stages else None

    @property
    def wire(self) -> str:
        """The type in which values travel where they are not summed."""
        return self._last.wire if self._last else "float32"

    @property
    def grid(self) -> FixedPoint:
        """How the update travels where updates are summed."""
        return (self._last.grid if self._last else None) or USUAL_GRID

    @property
    def clip(self) -> AdaptiveClip | None:
        """How the clip norm moves; None where it does not."""
        return self._last.clip if self._last else None

    def summed(self, task: Task, update: Update) -> Int64:
        """The update after all stages in steps of the grid, (d,); noised integers as they are, and
        behind them the bit of a clip norm that moves."""
        last = self._last
        if last is None or last.grid is None:
            return self.grid.steps(flat(self.apply(task, update)))
        before = self.apply(task, update, len(self.setting.stages) - 1)
        return last.steps(task, before)

    def apply(self, task: Task, update: Update, until: int | None = None) -> Update:
        """The update after all stages, or after the first `until`."""
        for stage, chosen in self._stages[:until]:
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


class UpdateDevice:
    """Built from public facts alone."""

    def __init__(self, trainer: Trainer, setting: Setting) -> None:
        self._trainer, self._setting = trainer, setting
        self._network = network_of(setting)
        self._stages = Pipeline(setting)

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """The trainer's events and the stages'; of an un-noised update none where one protects."""
        return self._stages.price(exchange, self._trainer.price(exchange))

    @flushed_training()
    def answer(
        self,
        exchange: Exchange,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        """The update's segments: float32 or what it is cast to, or integers where they are summed.

        Tensors named `kept/…` are this device's own.

        Raises `ProtocolError` for a package of wrong form, before any record is read.
        """
        weights, clip_norm = self._checked(tensors), self._clip_norm(tensors)
        self._network.prepare()
        memory: Memory = {
            name.removeprefix(KEPT): np.asarray(array)
            for name, array in tensors.items()
            if name.startswith(KEPT)
        }
        network, setting = self._network, self._setting
        valid = setting.learned_from(records)
        own = Records(records.x[valid], records.y[valid])
        if setting.mapped:
            own = Records(np.asarray(setting.features(own.x), np.float32), own.y)
        task = Task(exchange, network, weights, own, memory, random_bytes, processor, clip_norm)
        update = finite(self._trainer.train(task, self._stages.start(task)))
        segments: dict[str, Array] = {}
        if setting.summed:
            steps = self._stages.summed(task, update)
            size = size_of(setting)
            segments |= split(network, steps[:size], whole=setting.whole)
            if self._stages.clip is not None:
                segments[WITHIN] = steps[size:]
        else:
            update = self._stages.apply(task, update)
            sent = segments_of(network, update, whole=setting.whole)
            wire = self._stages.wire
            segments |= {name: array.astype(wire, copy=False) for name, array in sent.items()}
        return Answer(segments, self.price(exchange), task.memory)

    def _clip_norm(self, tensors: Tensors) -> float:
        """The round's, 0 where it does not move."""
        if self._stages.clip is None:
            return 0.0
        found = tensors.get(CLIP_NORM)
        if found is None or (found.shape, str(found.dtype)) != ((1,), "float64"):
            raise ProtocolError("bad_package", f"tensor '{CLIP_NORM}' has a wrong form")
        if not SMALLEST <= (clip_norm := float(np.asarray(found, np.float64)[0])) <= LARGEST:
            raise ProtocolError("bad_package", f"'{CLIP_NORM}' is out of bounds")
        return clip_norm

    def _checked(self, tensors: Tensors) -> dict[str, NDArray[np.float32]]:
        weights = {}
        for weight in self._network.weights:
            found = tensors.get(weight.name)
            if found is None or (found.shape, str(found.dtype)) != (weight.shape, "float32"):
                raise ProtocolError("bad_package", f"tensor '{weight.name}' has a wrong form")
            if not np.isfinite(found).all():
                raise ProtocolError("bad_package", f"tensor '{weight.name}' is not finite")
            weights[weight.name] = np.asarray(found, np.float32)
        return weights


def finite(update: Update) -> Update:
    """The update with 0 for what is no number: whether training diverged is not told."""
    return {
        name: array if np.isfinite(array).all() else np.nan_to_num(array, posinf=0.0, neginf=0.0)
        for name, array in update.items()
    }


LARGEST_WEIGHT = 1e6  # no aggregate moves a weight further; so that no model stops being finite


class Rounds(Protocol):
    """What the cloud needs of a method's parameters."""

    @property
    def rounds(self) -> int: ...


class UpdateCloud:
    """State: the weights, by name, float32; `clip-norm` (1,) float64 where that moves."""

    def __init__(self, parameters: Rounds, setting: Setting) -> None:
        self._rounds, self.setting = parameters.rounds, setting
        self._network = network_of(setting)

    @cached_property
    def _grid(self) -> FixedPoint:
        return Pipeline(self.setting).grid

    @cached_property
    def _clip(self) -> AdaptiveClip | None:
        return Pipeline(self.setting).clip

    def plan(self) -> tuple[Exchange, ...]:
        """The training rounds."""
        every = self.setting.infer_every
        return tuple(
            Exchange(k, TRAIN, k, infer=every > 0 and k % every == 0)
            for k in range(1, self._rounds + 1)
        )

    def segments(self, exchange: Exchange) -> tuple[SegmentSpec, ...]:
        """In the form that the job's `proxy.shuffle` asks for: numbers, or summed integers."""
        wire = "float32" if self.setting.summed else Pipeline(self.setting).wire
        specs = specs_of(self._network, whole=self.setting.whole, wire=wire)
        summed, largest = self.setting.summed, self._grid.largest
        if not summed:
            return specs
        specs += (SegmentSpec(WITHIN, (1,), "int64"),) * (self._clip is not None)
        return tuple(summed_spec(s.name, s.shape, largest, summed) for s in specs)

    def initial_state(self) -> dict[str, Array]:
        """The network's first weights, which are public."""
        first = {} if self._clip is None else {CLIP_NORM: np.array([self._clip.first])}
        return {**self._network.initial(), **first}

    def package(self, state: Tensors, exchange: Exchange) -> dict[str, Array]:
        """All weights, and the clip norm where it moves."""
        names = (CLIP_NORM,) if self._clip is not None else ()
        return self.model(state) | {name: np.asarray(state[name]) for name in names}

    def aim(self, state: Tensors, exchange: Exchange) -> Aim | None:
        """All weights, in the segments' form; updates are added to them."""
        weights = segments_of(self._network, state, whole=self.setting.whole)
        return Aim(dict(weights), change=True)

    def absorb(
        self, state: Tensors, exchange: Exchange, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """Weights + aggregated update (McMahan et al. 2017, with updates in place of weights)."""
        update, new = update_of(self._network, mean), dict[str, Array]()
        step = 2.0**-self._grid.grid_bits if self.setting.summed else 1.0
        if self._clip is not None:
            norm = float(np.asarray(state[CLIP_NORM], np.float64)[0])
            step = self._clip.step(norm)
            bit = float(np.asarray(mean[WITHIN], np.float64)[0])
            new[CLIP_NORM] = np.array([self._clip.moved(norm, bit)])
        for weight in self._network.weights:
            new[weight.name] = _moved(np.asarray(state[weight.name]), update[weight.name], step)
        return new

    def model(self, state: Tensors) -> dict[str, Array]:
        """The weights, as the network's graph names them."""
        return {w.name: np.asarray(state[w.name]) for w in self._network.weights}


def _moved(before: Array, update: NDArray[np.float64], step: float) -> NDArray[np.float32]:
    """Weights after so many steps of an update, a few values at a time: what is computed with
    takes no memory of a model's size."""
    after = np.empty(before.shape, np.float32)
    old, change, new = before.reshape(-1), update.reshape(-1), after.reshape(-1)
    for start in range(0, new.size, BLOCK_VALUES):
        part = slice(start, start + BLOCK_VALUES)
        moved = old[part].astype(np.float64) + step * np.nan_to_num(change[part])
        new[part] = np.clip(moved, -LARGEST_WEIGHT, LARGEST_WEIGHT)
    return after


def trainer_part(
    *, parameters: type[MethodParameters], trainer: Callable[[Any, Setting], Trainer], **said: Any
) -> MethodPart:
    """The declaration of a method that trains the job's model: all it brings is its `Trainer`.

    `said` is what every `Part` says of itself.
    """
    return MethodPart(
        parameters=parameters,
        device=lambda block, setting: UpdateDevice(trainer(block, setting), setting),
        cloud=UpdateCloud,
        learns_on="model",
        summed=True,
        **said,
    )
