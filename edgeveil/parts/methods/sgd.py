"""Local SGD without guarantee, and output perturbation.

`sgd`: mini-batch SGD, the local half of FedAvg (McMahan et al. 2017, alg. 1); `fedprox`: Li et al.
2020. An epoch visits the records in random order.

`output_perturbation` ("DP-params"): local training, then noise on the weights; claimed. This is the
comparison of the PSO-DP text, which assumes that one record moves the trained weights by at most
`sensitivity`. For convex losses that can be proven (Chaudhuri, Monteleoni and Sarwate 2011); here
nothing enforces it. The stage `gradient_gaussian` is the sound alternative."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.errors import PrivacyError
from edgeveil.parts.method_context import MethodContext, network_of
from edgeveil.parts.methods.local_steps import chosen_processor
from edgeveil.parts.methods.optimizers import LocalTraining, Steps, local_refusals
from edgeveil.parts.models.layers import Dense, Flatten, Relu, value_count
from edgeveil.parts.models.network import Network
from edgeveil.parts.part import omittable, only_for, some_names
from edgeveil.parts.round import PlannedRound
from edgeveil.parts.stage import Task, Update
from edgeveil.parts.update import trainer_part
from edgeveil.privacy.accountant import HAIR, mu_for
from edgeveil.privacy.derived import bound
from edgeveil.privacy.events import ClaimedEvent, Event, UnprotectedEvent
from edgeveil.privacy.sampler import LARGEST_SCALE, RandomBytes, discrete_gaussian

if TYPE_CHECKING:
    import torch

LARGEST_STACKED = 1 << 17  # weights of a model whose steps are faster in a stack


class SgdParameters(LocalTraining):
    """The `train` block of the methods with local SGD; all of it is public."""

    method: Literal[
        "sgd",
        "fedprox",
        "scaffold",
        "fednova",
        "fedbn",
        "fedrep",
        "ditto",
        "output_perturbation",
        "pso_dp_fl",
    ] = "sgd"
    """Which method; `edgeveil methods` describes each."""
    rounds: int = Field(default=10, ge=1, le=10_000)
    """Training rounds."""
    local_epochs: int = Field(default=1, ge=1, le=1000)
    """Passes over a device's records in one round."""
    batch_size: int = Field(default=32, ge=1, le=1 << 20)
    """Records of one step; the last batch of a pass may be smaller."""
    learning_rate: float = Field(default=0.05, gt=0, le=100)
    """Step size, for a loss that is a batch's mean."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Share of the last step that is added to the next one, for `optimizer: {name: sgd}`."""
    gradient_clip: float | None = omittable(None, gt=0, le=1e6, examples=[1])
    """Largest L2 norm of one step's gradient over all weights; null: any. Protects nothing."""
    mu: Annotated[float, Field(gt=0, le=1000), only_for(fedprox=0.01, ditto=0.1)] = some_names()
    """μ: how strongly `fedprox` holds local weights near the global ones, 0.01 by default, and
    `ditto` (its λ) the device's own, 0.1."""
    local: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128)], ...],
        Field(max_length=64),
        only_for(fedrep=("output.*",), fedbn=("*norm*",)),
    ] = some_names()
    """Names of the weights that stay on the device, as patterns with `*`: of `fedrep` the head,
    `output.*` by default; of `fedbn` `*norm*`, and any weights of batch normalisations."""
    head_epochs: Annotated[int, Field(ge=1, le=1000), only_for(fedrep=5)] = some_names()
    """Of `fedrep`: passes that train the head, before `local_epochs` of the body; 5 by default."""
    sensitivity: Annotated[float, Field(gt=0, le=1e6), only_for(output_perturbation=1.0)] = (
        some_names()
    )
    """Of `output_perturbation`: assumed L2 distance by which one record moves the trained weights;
    nothing enforces it. 1 by default."""
    clip_norm: Annotated[float, Field(ge=1e-6, le=1e6), only_for(pso_dp_fl=1.0)] = some_names()
    """C of `pso_dp_fl`: the largest L2 norm of an update; 1 by default."""


class LocalEpochs:
    """A device's records of one round, and passes over them.

    Of several `tasks`, with equally many records each (`count`) and the same broadcast weights,
    `leaves` and results have a leading axis."""

    def __init__(self, parameters: SgdParameters, *tasks: Task) -> None:
        import torch

        self._parameters, self._tasks, task = parameters, tasks, tasks[0]
        self.processor = chosen_processor(task.processor)
        self._x = [torch.as_tensor(one.records.x).to(self.processor) for one in tasks]
        self._y = [torch.as_tensor(one.records.y).to(self.processor) for one in tasks]
        self._loss, self.count = parameters.loss_of(task.network), len(task.records)
        self.anchor = self.fixed(task.weights)

    def fixed(self, values: Mapping[str, NDArray[np.generic]]) -> dict[str, torch.Tensor]:
        import torch

        return {name: torch.as_tensor(one).to(self.processor) for name, one in values.items()}

    def leaves(self, values: Mapping[str, NDArray[np.float32]]) -> dict[str, torch.Tensor]:
        import torch

        still = self._tasks[0].network.statistics
        return {
            name: torch.tensor(array, device=self.processor, requires_grad=name not in still)
            for name, array in values.items()
        }

    def run(
        self,
        weights: Mapping[str, torch.Tensor],
        epochs: int,
        *,
        trained: Sequence[str] | None = None,
        pull: float = 0.0,
        shift: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> Steps:
        """Train the weights named in `trained` (None: all), in place.

        `pull`: μ of a term ½μ‖w − w_t‖². `shift` is added to the gradients, by name."""
        import torch

        p = self._parameters
        named = weights if trained is None else trained
        moved = {name: weights[name] for name in named if weights[name].requires_grad}
        shifts = [shift[name] for name in moved] if shift else ()
        rate, random_bytes = p.rate(self._tasks[0].round), self._tasks[0].random_bytes
        steps = Steps(list(moved.values()), rate, p.momentum, p.optimizer, p.gradient_clip)
        for _ in range(epochs if moved else 0):
            drawn = (batches(self.count, p.batch_size, one.random_bytes) for one in self._tasks)
            for batch in zip(*drawn, strict=True):
                chosen = [torch.as_tensor(one).to(self.processor) for one in batch]
                x, y = _rows(self._x, chosen), _rows(self._y, chosen)
                loss = self._loss(weights, x, y, random_bytes)
                if len(batch) > 1:  # the sum of the devices' mean losses
                    loss = loss * len(batch)
                if pull:
                    away = (((w - self.anchor[name]) ** 2).sum() for name, w in moved.items())
                    loss = loss + pull / 2 * sum(away)
                steps.take(loss, shifts)
        return steps

    def change(self, weights: Mapping[str, torch.Tensor]) -> Update:
        """Return weights minus the broadcast ones. Consumes them, to save memory."""
        return {
            name: value.detach().sub_(self.anchor[name]).cpu().numpy()
            for name, value in weights.items()
        }


def _rows(of: Sequence[torch.Tensor], chosen: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    found = of[0].new_empty((len(of) * len(chosen[0]), *of[0].shape[1:]))
    for part, given, rows in zip(found.chunk(len(of)), of, chosen, strict=True):
        torch.index_select(given, 0, rows, out=part)
    return found


class Sgd:
    def __init__(self, parameters: SgdParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context
        self._alike: dict[tuple[int, int], bool] = {}  # by numbers of tasks and records

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return (UnprotectedEvent(what="update without noise", unit="record"),)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Return weights after the local epochs, minus the global ones. Needs torch."""
        return self._trained(start, task)

    def _trained(self, start: Mapping[str, NDArray[np.float32]], *tasks: Task) -> Update:
        p = self.parameters
        local = LocalEpochs(p, *tasks)
        weights = local.leaves(start)
        local.run(weights, p.local_epochs, pull=p.mu if p.method == "fedprox" else 0.0)
        return local.change(weights)

    @property
    def stacks(self) -> bool:
        """Whether `together` may be called: steps are alike whatever a device's records."""
        p, network = self.parameters, network_of(self.context)
        known = all(isinstance(layer, Flatten | Dense | Relu) for _, layer in network.layers)
        plain = type(self) is Sgd and type(network) is Network and not self.context.local
        small = value_count(network.weights) <= LARGEST_STACKED
        return known and plain and small and p.loss is None and p.gradient_clip is None

    def together(self, tasks: Sequence[Task], start: Callable[[Task], Update]) -> list[Update]:
        """Return what `train` returns for each task, by one stack; [] if its bits would differ.

        The order in which a library adds up follows from shapes: the first stack of each shape is
        compared with training one by one."""
        shape = len(tasks), len(tasks[0].records)
        if len(tasks) < 2 or self._alike.get(shape) is False:
            return []
        starts, known = list(map(start, tasks)), shape in self._alike
        again = [] if known else deepcopy([one.random_bytes for one in tasks])
        stack = {name: np.stack([one[name] for one in starts]) for name in starts[0]}
        stack = self._trained(stack, *tasks)
        found = [{name: of[at] for name, of in stack.items()} for at in range(len(tasks))]
        if known:
            return found
        afresh = (replace(one, random_bytes=own) for one, own in zip(tasks, again, strict=True))
        alone = [self.train(*pair) for pair in zip(afresh, starts, strict=True)]
        both = zip(found, alone, strict=True)
        same = (one[name].tobytes() == other[name].tobytes() for one, other in both for name in one)
        self._alike[shape] = all(same)
        return alone


def batches(count: int, size: int, random_bytes: RandomBytes) -> Iterator[NDArray[np.int64]]:
    keys = np.frombuffer(random_bytes(8 * count), "<u8") if count else np.zeros(0, "<u8")
    order = np.argsort(keys, kind="stable").astype(np.int64)
    return (order[k : k + size] for k in range(0, count, size))


BITS = 24  # weights and noise are in steps of 2^-24
LARGEST = 2.0**20  # bound of a trained change, so that it stays on the grid


class OutputPerturbation(Sgd):
    def __init__(self, parameters: SgdParameters, context: MethodContext) -> None:
        super().__init__(parameters, context)
        self._sensitivity = parameters.sensitivity
        self._times = min(context.max_participations, parameters.rounds)

    @cached_property
    def sigma_steps(self) -> int:
        """σ of the noise in steps, by Gaussian DP. Raises PrivacyError if it is too large."""
        mu = mu_for(self.context.epsilon, self.context.delta) / math.sqrt(self._times)
        steps = math.ceil(self._sensitivity / mu * 2.0**BITS)
        if steps > LARGEST_SCALE:
            what = "the noise on the trained weights would be larger than any that is drawn"
            fix = "raise epsilon or delta, or lower train.sensitivity"
            raise PrivacyError(what, where="privacy.epsilon", fix=fix)
        return steps

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        del round
        _ = self.sigma_steps
        share = self.context.epsilon * HAIR / self._times
        return (ClaimedEvent(what="noised weights", unit="record", claimed_epsilon=share),)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        noised = {}
        for name, change in super().train(task, start).items():
            bounded = np.clip(np.nan_to_num(change), -LARGEST, LARGEST).astype(np.float64)
            steps = np.trunc(bounded * 2.0**BITS).astype(np.int64)
            source = bound(task.random_bytes, f"{name}, σ = {self.sigma_steps} steps", steps)
            steps += discrete_gaussian(self.sigma_steps**2, steps.shape, source)
            noised[name] = (steps * 2.0**-BITS).astype(np.float32)
        return noised


_plain = partial(
    trainer_part,
    parameters=SgdParameters,
    trainer=Sgd,
    refuses=local_refusals,
    needs="model; an update stage that protects, or privacy.accept_unproven",
    reveals="each device's update, layers shuffled among the devices",
    privacy="none",
    note="an update stage may protect it",
)
PARTS = (
    _plain(
        name="sgd",
        summary="FedAvg's local half: mini-batch SGD on a whole model, without noise; no"
        " guarantee.",
        source="McMahan et al. 2017, alg. 1",
        example="train: {method: sgd, rounds: 10, learning_rate: 0.05}",
    ),
    _plain(
        name="fedprox",
        summary="SGD with the proximal term ½μ‖w − w_t‖², without noise; no guarantee.",
        source="Li et al. 2020",
        example="train: {method: fedprox, mu: 0.01}",
    ),
    trainer_part(
        name="output_perturbation",
        summary="SGD, then Gaussian noise on the trained weights; its price is claimed, not"
        " proven.",
        parameters=SgdParameters,
        trainer=OutputPerturbation,
        refuses=local_refusals,
        source="Zhang, Wu and Dong (PSO-DP), DP-params; Chaudhuri, Monteleoni, Sarwate 2011",
        needs="model; privacy.accept_unproven",
        reveals="each device's noised update",
        privacy="claimed",
        example="train: {method: output_perturbation, sensitivity: 1}",
    ),
)
