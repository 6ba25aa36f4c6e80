"""Updates: the trainer protocol, the pipeline of stages, and the wire form.

An *update* is the change of every weight by local training, sent as one segment per weight or one
segment for all. A method that trains the job's model provides a `Trainer`; `UpdateDevice` and
`UpdateCloud` are its two halves. Where uploads carry more than the update (a `Server`'s values,
the weight of a device with `aggregation.weights: records`), that is one further segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.ring import NOISE_BITS
from edgeveil.data.records import Records
from edgeveil.errors import ProtocolError
from edgeveil.parts.aggregation.mean import BLOCK_VALUES
from edgeveil.parts.method_context import (
    MethodContext,
    MethodParameters,
    MethodPart,
    network_of,
    uploaded,
)
from edgeveil.parts.models.layers import Weight, value_count
from edgeveil.parts.round import (
    KEPT,
    PERSONAL,
    Aim,
    Answer,
    Array,
    CloudMethod,
    PlannedRound,
    SegmentSpec,
    Tensors,
    planned_rounds,
    required,
    summed_spec,
)
from edgeveil.parts.stage import (
    CLIP_NORM,
    LARGEST_CLIP,
    NOISE,
    SMALLEST_CLIP,
    USUAL_GRID,
    WITHIN,
    AdaptiveClip,
    BaseStage,
    FixedPoint,
    Int64,
    Memory,
    Task,
    Update,
    flat,
)
from edgeveil.privacy.accountant import HAIR
from edgeveil.privacy.events import ClaimedEvent, Event, UnprotectedEvent
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.subnormals import flushed_training

WHOLE = "update"
EXTRA = "method-values"  # cannot collide with names of weights
MEAN = "mean-moment/"  # prefix of weights' moving means in the state
MOST_SHARE = 64.0  # a device's largest weight, in nominal record counts
S = TypeVar("S", bound=np.generic)
Float64 = NDArray[np.float64]


class Trainer(Protocol):
    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        """Return the events of this round's update before any stage, without reading a record."""
        ...

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update: ...


class Server:
    """A method's values beside the update, and the cloud's work with them: by default neither.

    `extra`: number of values that an upload carries beyond the update."""

    extra = 0

    def __init__(self, parameters: Any, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context

    def initial(self) -> dict[str, NDArray[np.float32]]:
        """Return the first values that are broadcast with the weights, by name."""
        return {}

    def absorb(
        self, state: Tensors, update: dict[str, Float64], extra: Float64, uploads: int
    ) -> dict[str, Array]:
        """Change the mean `update` in place, by mean `extra` values; return next `initial` ones."""
        return {}


Form = tuple[Weight, ...]


def form_of(context: MethodContext, server: Server) -> Form:
    """Return names and shapes of an upload's values: the weights, then any further ones."""
    extra = server.extra + context.weighted
    return uploaded(context) + ((Weight(EXTRA, (extra,)),) if extra else ())


def specs_of(form: Form, *, whole: bool, wire: str = "float32") -> tuple[SegmentSpec, ...]:
    if not whole:
        return tuple(SegmentSpec(w.name, w.shape, wire) for w in form)
    return (SegmentSpec(WHOLE, (value_count(form),), wire),)


def segments_of(
    form: Form, update: Mapping[str, NDArray[np.generic]], *, whole: bool
) -> dict[str, NDArray[np.float32]]:
    values = np.concatenate([np.asarray(update[w.name], np.float32).ravel() for w in form])
    return split(form, values, whole=whole)


def split(form: Form, values: NDArray[S], *, whole: bool) -> dict[str, NDArray[S]]:
    if whole:
        return {WHOLE: values}
    result, start = {}, 0
    for weight in form:
        size = int(np.prod(weight.shape))
        result[weight.name] = values[start : start + size].reshape(weight.shape)
        start += size
    return result


def update_of(form: Form, segments: Tensors) -> dict[str, Float64]:
    if WHOLE not in segments:
        return {w.name: np.asarray(segments[w.name], np.float64) for w in form}
    return split(form, np.asarray(segments[WHOLE], np.float64), whole=False)


class Pipeline:
    def __init__(self, context: MethodContext) -> None:
        self.context = context
        self.last = context.stages[-1] if context.stages else BaseStage()
        # Each stage, and whether it adds noise only to values chosen by an earlier un-noised stage.
        self._stages, chosen = list[tuple[BaseStage, bool]](), False
        for stage in context.stages:
            self._stages.append((stage, stage.protects and chosen))
            chosen = stage.chooses or (chosen and not stage.protects)

    def price(self, round: PlannedRound, trained: tuple[Event, ...]) -> tuple[Event, ...]:
        """Return the events of trainer and stages; noise after an un-noised choice is claimed."""
        events = list(trained)
        for stage, chosen in self._stages:
            own = stage.price(round)
            if stage.protects:
                events = [event for event in events if not isinstance(event, UnprotectedEvent)]
            events += [self._claimed(event) for event in own] if chosen else own
        return tuple(events)

    def start(self, task: Task) -> Mapping[str, NDArray[np.float32]]:
        start: Mapping[str, NDArray[np.float32]] = task.weights
        for stage in self.context.stages:
            start = stage.start(task) or start
        return start

    @property
    def grid(self) -> FixedPoint:
        return self.last.grid or USUAL_GRID

    def summed(self, task: Task, update: Update) -> Int64:
        """Return the update after all stages in grid steps (d,), then an adaptive clip's bit."""
        if self.last.grid is None:
            return self.grid.steps(flat(self.apply(task, update)))
        before = self.apply(task, update, len(self.context.stages) - 1)
        return self.last.steps(task, before)

    def apply(self, task: Task, update: Update, until: int | None = None) -> Update:
        for stage, chosen in self._stages[:until]:
            before, update = update, stage.apply(task, update)
            if chosen:  # values that were not chosen stay 0
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
            claimed_epsilon=self.context.epsilon * HAIR / self.context.max_participations,
            source=event.source,
        )


Given = tuple[Tensors, Records, RandomBytes]


class UpdateDevice:
    def __init__(
        self, trainer: Trainer, context: MethodContext, server: Server | None = None
    ) -> None:
        self._trainer, self._context = trainer, context
        server = server or Server(None, context)
        self._form, self._broadcast = form_of(context, server), server.initial()
        self._network = network_of(context)
        self._stages = Pipeline(context)
        self._ahead: dict[int, tuple[Task, Update]] = {}  # by the identity of `random_bytes`

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return self._stages.price(round, self._trainer.price(round))

    @flushed_training()
    def answer(
        self,
        round: PlannedRound,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        """Train, apply the stages and return the segments: the wire's dtype, or integers if summed.

        `kept/…` tensors are this device's own. Raises ProtocolError before any record is read."""
        context, ahead = self._context, self._ahead.pop(id(random_bytes), None)
        if ahead is None:
            task = self._task(round, (tensors, records, random_bytes), processor)
            ahead = task, self._trainer.train(task, self._stages.start(task))
        task, update = ahead
        if without := diverged(update):
            update = {name: np.zeros_like(array) for name, array in update.items()}
            task.memory.clear()
            task.memory.update(_kept(tensors))
        for name in context.local:
            task.memory[PERSONAL + name] = task.weights[name] + update.pop(name)
        if context.weighted:
            update = weighted(update, len(task.records) / context.nominal_records)
        values: NDArray[Any]
        if context.summed:
            values = self._stages.summed(task, update)
            if context.correlation is not None:
                values, noise = np.split(values, 2)
        else:
            values = segments_of(self._form, self._stages.apply(task, update), whole=True)[WHOLE]
            values = values.astype(self._stages.last.wire, copy=False)
        size = value_count(self._form)
        segments: dict[str, Array] = dict(split(self._form, values[:size], whole=context.whole))
        if self._stages.last.clip is not None:
            segments[WITHIN] = values[size:]
        if context.correlation is not None:
            segments[NOISE] = noise
        return Answer(segments, self.price(round), task.memory, without)

    @flushed_training()
    def train_ahead(self, round: PlannedRound, given: Iterable[Given], processor: str) -> None:
        """Train simulated devices together; `answer` with the same random bytes takes the update.

        Only updates with the bits of training one by one are kept; raises as `answer` does."""
        self._ahead, alike = {}, dict[int, list[Task]]()
        for one in given if getattr(self._trainer, "stacks", False) else ():
            task = self._task(round, one, processor)
            alike.setdefault(len(task.records), []).append(task)
        for tasks in alike.values():
            found = self._trainer.together(tasks, self._stages.start)  # type: ignore[attr-defined]
            both = zip(tasks, found, strict=False)
            self._ahead |= {id(task.random_bytes): (task, update) for task, update in both}

    def _task(self, round: PlannedRound, given: Given, processor: str) -> Task:
        (tensors, records, random_bytes), context, network = given, self._context, self._network
        weights = {
            one.name: np.asarray(required(tensors, one.name, one.shape, "float32"), np.float32)
            for one in network.weights
        }
        clip_norm = self._clip_norm(tensors)
        extra = {n: required(tensors, n, a.shape, "float32") for n, a in self._broadcast.items()}
        network.prepare()
        valid, memory = context.learned_from(records), _kept(tensors)
        own = records if valid.all() else records.at(valid)
        if context.mapped:
            own = replace(own, x=np.asarray(context.features(own.x), np.float32))
        for name in context.local:
            weights[name] = np.asarray(memory.get(PERSONAL + name, weights[name]), np.float32)
        return Task(round, network, weights, own, memory, random_bytes, processor, clip_norm, extra)

    def _clip_norm(self, tensors: Tensors) -> float:
        if self._stages.last.clip is None:
            return 0.0
        norm = float(required(tensors, CLIP_NORM, (1,), "float64")[0])
        if not SMALLEST_CLIP <= norm <= LARGEST_CLIP:
            raise ProtocolError("bad_package", f"'{CLIP_NORM}' is out of bounds")
        return norm


def _kept(tensors: Tensors) -> Memory:
    return {n.removeprefix(KEPT): np.asarray(a) for n, a in tensors.items() if n.startswith(KEPT)}


def diverged(update: Update) -> str:
    """Return why an update counts as one without records, or "" if it is finite.

    Which of its values are finite would depend on the records."""
    for name, array in update.items():
        if not np.isfinite(array).all():
            text = f"training gave values of '{name}' that are not finite; lower"
            return f"{text} train.learning_rate, or set train.gradient_clip"
    return ""


def weighted(update: Update, share: float) -> Update:
    """Return all values times a device's weight `share`, and the weight itself as a last one."""
    share = min(share, MOST_SHARE)
    extra = np.append(update.pop(EXTRA, np.zeros(0, np.float32)), np.float32(1))
    return {name: array * np.float32(share) for name, array in (update | {EXTRA: extra}).items()}


SMALLEST_SHARE = 1e-9  # mean weight of the uploads; less is that of devices without records
LARGEST_WEIGHT = 1e6  # weights are clipped here, so that no aggregate makes a model infinite


class UpdateCloud(CloudMethod):
    """Cloud half; state: float32 weights, values of `server`, moments, and a clip norm.

    The adaptive `clip-norm` is (1,) float64; all others are float32, by name."""

    def __init__(
        self, parameters: MethodParameters, context: MethodContext, server: Server | None = None
    ) -> None:
        self._rounds, self.context = parameters.rounds, context
        self._server = server or Server(parameters, context)
        self._form = form_of(context, self._server)
        self._network, self._stages = network_of(context), Pipeline(context)

    @property
    def carries_more(self) -> bool:
        """Whether uploads carry values beside the update."""
        return self._form != uploaded(self.context)

    @property
    def _clip(self) -> AdaptiveClip | None:
        return self._stages.last.clip

    def plan(self) -> tuple[PlannedRound, ...]:
        return planned_rounds((), self._rounds)

    def segments(self, round: PlannedRound) -> tuple[SegmentSpec, ...]:
        summed, whole = self.context.summed, self.context.whole
        if not summed:
            return specs_of(self._form, whole=whole, wire=self._stages.last.wire)
        specs, largest = specs_of(self._form, whole=whole), self._stages.grid.largest
        specs += (SegmentSpec(WITHIN, (1,), "int64"),) * (self._clip is not None)
        found = tuple(summed_spec(s.name, s.shape, largest, summed) for s in specs)
        if self.context.correlation is None:
            return found
        values = (sum(spec.count for spec in found),)
        bits = found[0].bits + NOISE_BITS
        return (*found, SegmentSpec(NOISE, values, "int64", bits, largest))

    def initial_state(self) -> dict[str, Array]:
        first = {} if self._clip is None else {CLIP_NORM: np.array([self._clip.first])}
        server = self.context.server
        moments: dict[str, Array] = {
            f"{moment}-moment/{weight.name}": np.full(weight.shape, start, np.float32)
            for moment, start in ({} if server is None else server.moments).items()
            for weight in uploaded(self.context)
        }
        return {**self._network.initial(), **self._server.initial(), **moments, **first}

    def _mean_of(self, state: Tensors, name: str) -> Array:
        """Return the moving mean of a weight, or the weight itself if there is none."""
        return np.asarray(state.get(MEAN + name, state[name]))

    def package(self, state: Tensors, round: PlannedRound) -> dict[str, Array]:
        names = (CLIP_NORM,) * (self._clip is not None) + tuple(self._server.initial())
        weights = {w.name: np.asarray(state[w.name]) for w in self._network.weights}
        return weights | {name: np.asarray(state[name]) for name in names}

    def aim(self, state: Tensors, round: PlannedRound) -> Aim | None:
        weights = segments_of(uploaded(self.context), state, whole=self.context.whole)
        return Aim(dict(weights), change=True)

    def absorb(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """Add the aggregated update to the weights (McMahan et al. 2017, on updates)."""
        update, new = update_of(self._form, mean), dict(state)
        step = 2.0**-self._stages.grid.grid_bits if self.context.summed else 1.0
        if (clip := self._clip) is not None:
            norm = float(np.asarray(state[CLIP_NORM], np.float64)[0])
            step = clip.step(norm)
            bit = float(np.asarray(mean[WITHIN], np.float64)[0])
            new[CLIP_NORM] = np.array([clip.next_norm(norm, bit)])
        if EXTRA in update:
            scaled = {name: step * np.nan_to_num(array) for name, array in update.items()}
            update, step = self._method(scaled, state, new, uploads), 1.0
        for weight in uploaded(self.context):
            name, change = weight.name, update[weight.name]
            if (server := self.context.server) is None or weight.statistic:
                new[name] = _moved(np.asarray(state[name]), change, step)
                continue
            moments = {m: np.asarray(new[f"{m}-moment/{name}"], np.float64) for m in server.moments}
            share = server.share(round.number, self._rounds)
            change = server.step(step * np.nan_to_num(change), moments, share)
            new[name] = _moved(np.asarray(state[name]), change, 1.0)
            new |= {f"{m}-moment/{name}": one.astype(np.float32) for m, one in moments.items()}
            if kept := server.average:
                last = np.asarray(new[name], np.float64)
                before = last if round.number == 1 else self._mean_of(state, name)
                averaged = kept * np.asarray(before, np.float64) + (1 - kept) * last
                new[MEAN + name] = averaged.astype(np.float32)
        return new

    def _method(
        self, update: dict[str, Float64], state: Tensors, new: dict[str, Array], uploads: int
    ) -> dict[str, Float64]:
        extra = update.pop(EXTRA)
        if self.context.weighted:
            share, extra = float(extra[-1]), extra[:-1] / max(extra[-1], SMALLEST_SHARE)
            update = {n: array / max(share, SMALLEST_SHARE) for n, array in update.items()}
        new.update(self._server.absorb(state, update, extra, uploads))
        return update

    def model(self, state: Tensors) -> dict[str, Array]:
        return {w.name: self._mean_of(state, w.name) for w in self._network.weights}


def _moved(before: Array, update: NDArray[np.float64], step: float) -> NDArray[np.float32]:
    """Return the weights after an update, block by block: no second copy of a large model."""
    after = np.empty(before.shape, np.float32)
    old, change, new = before.reshape(-1), update.reshape(-1), after.reshape(-1)
    for start in range(0, new.size, BLOCK_VALUES):
        part = slice(start, start + BLOCK_VALUES)
        moved = old[part].astype(np.float64) + step * np.nan_to_num(change[part])
        new[part] = np.clip(moved, -LARGEST_WEIGHT, LARGEST_WEIGHT)
    return after


def trainer_part(
    *,
    parameters: type[MethodParameters],
    trainer: Callable[[Any, MethodContext], Trainer],
    server: Callable[[Any, MethodContext], Server] = Server,
    **declaration: Any,
) -> MethodPart:
    """Declare a method that trains the job's model; `declaration` holds fields of `Part`."""
    return MethodPart(
        parameters=parameters,
        device=lambda block, context: UpdateDevice(
            trainer(block, context), context, server(block, context)
        ),
        cloud=lambda block, context: UpdateCloud(block, context, server(block, context)),
        learns_on="model",
        summed=True,
        **declaration,
    )
