"""Local optimisers, and the keys of local training that methods share.

`Steps` does as `torch.optim` does, whose import takes a second and 70 MiB on a device: SGD with
momentum, Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019). Its state starts anew
in every round, as the weights do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from edgeveil.config.policy import FUNCTION
from edgeveil.parts.method_context import MethodContext, MethodParameters, network_of
from edgeveil.parts.models.network import Classes, Network
from edgeveil.parts.part import Keys, import_function, omittable, only_for, some_names
from edgeveil.parts.round import PlannedRound
from edgeveil.parts.server_optimizers import ScheduleParameters

if TYPE_CHECKING:
    import torch

    Loss = Callable[..., torch.Tensor]  # as `Network.loss`

ADAM_EPSILON = 1e-8  # added to the root of the second moment


class OptimizerParameters(Keys):
    """The `optimizer` of local training; its state starts anew in every round."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    """`sgd`: with `train.momentum`. `adam`; `adamw`: with weight decay apart from the gradient."""
    weight_decay: float = Field(default=0.0, ge=0, le=100)
    """λ: pull of every weight to 0. `sgd`, `adam`: λ·w is added to the gradient."""
    beta_1: Annotated[float, Field(ge=0, lt=1), only_for(adam=0.9, adamw=0.9)] = some_names()
    """Share of the mean gradient that a step keeps, for `adam` and `adamw`; 0.9 by default."""
    beta_2: Annotated[float, Field(ge=0, lt=1), only_for(adam=0.999, adamw=0.999)] = some_names()
    """The same for the mean squared gradient; 0.999 by default."""


class LocalTraining(MethodParameters):
    """Keys of local training that methods share; each was added later than the methods."""

    learning_rate: float
    optimizer: OptimizerParameters = omittable(
        OptimizerParameters(), examples=[{"name": "adamw", "weight_decay": 0.01}]
    )
    """The local optimiser."""
    schedule: ScheduleParameters | None = omittable(None, examples=[{"name": "cosine"}])
    """Learning rate by round; null: the same in all."""
    class_weights: tuple[Annotated[float, Field(ge=0, le=1e6)], ...] | None = omittable(
        None, examples=[[1, 5]]
    )
    """Factor of a record's loss by its class, one per class, chosen from public knowledge."""
    label_smoothing: float = omittable(0.0, ge=0, lt=1)
    """Share of the target probability that is spread over all classes."""
    loss: str | None = omittable(
        None, pattern=FUNCTION, max_length=256, examples=["mypackage.losses:focal"]
    )
    """`module:function` of (outputs, labels) to a batch's mean loss; null: cross-entropy. Installed
    on the devices and allowed by their owners (`policy.allowed_python_models`)."""

    @property
    def functions(self) -> tuple[str, ...]:
        return () if self.loss is None else (self.loss,)

    def rate(self, round: PlannedRound) -> float:
        share = 1.0 if self.schedule is None else self.schedule.share(round.number, self.rounds)
        return self.learning_rate * share

    def loss_of(self, network: Network) -> Loss:
        """Return the mean loss of records (n, …) with labels (n,): the network's by default."""
        smoothing, factors = self.label_smoothing, self.class_weights
        if self.loss is None and factors is None and not smoothing:
            return network.loss

        def weighed(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            from torch.nn.functional import cross_entropy

            each = cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)
            return (each if factors is None else each * each.new_tensor(factors)[y]).mean()

        loss = weighed if self.loss is None else import_function(self.loss, "train.loss")
        return lambda weights, x, y, training=None: loss(network.logits(weights, x, training), y)


def local_refusals(
    block: LocalTraining, context: MethodContext
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield keys of local training that do not fit the model, or each other."""
    factors, plain = block.class_weights, block.optimizer.name == "sgd"
    goal = network_of(context).goal
    if factors is not None and len(factors) != context.classes:
        text = f"has {len(factors)} factors for {context.classes} classes; write one for each"
        yield ("train.class_weights", "data.classes"), text
    if (factors is not None or block.label_smoothing) and not isinstance(goal, Classes):
        text = "the model learns no classes; leave class_weights and label_smoothing out"
        yield ("train.class_weights", "train.label_smoothing", "model"), text
    if block.loss is not None and (factors is not None or block.label_smoothing):
        text = "a loss of your own has neither class_weights nor label_smoothing; leave them out"
        yield ("train.loss", "train.class_weights", "train.label_smoothing"), text
    if getattr(block, "momentum", 0.0) and not plain:
        text = f"'{block.optimizer.name}' has beta_1 in its place; leave momentum out"
        yield ("train.momentum", "train.optimizer"), text


def plain_steps_only(
    block: LocalTraining, context: MethodContext
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield `local_refusals`, and an optimiser whose steps are no sum of gradients."""
    yield from local_refusals(block, context)
    if block.optimizer.name != "sgd":
        text = f"'{block.method}' counts plain steps, and not those of"
        text += f" '{block.optimizer.name}'; use sgd"
        yield ("train.optimizer", "train.method"), text
    if block.method == "scaffold" and 0 < context.fleet < context.devices:
        text = "with a part of the fleet in a round its size is needed; set selection.min_devices"
        yield ("selection.min_devices", "selection.devices"), text


class Steps:
    """Optimiser of `weights`, in place, at a learning `rate`.

    `clip`: largest L2 norm of one step's gradient over all weights, None for any."""

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        rate: float,
        momentum: float = 0.0,
        optimizer: OptimizerParameters | None = None,
        clip: float | None = None,
    ) -> None:
        self._weights, self._rate, self._momentum = weights, rate, momentum
        self._optimizer, self._clip = optimizer or OptimizerParameters(), clip
        self._first: Sequence[torch.Tensor] = ()  # velocities, or Adam's first moments
        self._second: Sequence[torch.Tensor] = ()
        self.count = 0

    def take(self, loss: torch.Tensor, shift: Sequence[torch.Tensor] = ()) -> None:
        """Take one step along the gradient of `loss` plus `shift`, one tensor a weight."""
        import torch

        gradients: Sequence[torch.Tensor] = torch.autograd.grad(loss, self._weights)
        with torch.no_grad():
            if shift:
                gradients = [one.add(more) for one, more in zip(gradients, shift, strict=True)]
            self.step(gradients)

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        import torch

        self.count += 1
        decay, name = self._optimizer.weight_decay, self._optimizer.name
        if self._clip is not None:
            norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
            factor = (self._clip / (norm + 1e-6)).clamp(max=1.0)
            gradients = [gradient * factor for gradient in gradients]
        if decay and name == "adamw":
            for weight in self._weights:
                weight.mul_(1 - self._rate * decay)
        elif decay:
            pairs = zip(gradients, self._weights, strict=True)
            gradients = [gradient.add(weight, alpha=decay) for gradient, weight in pairs]
        if name != "sgd":
            self._adam(gradients)
            return
        if self._momentum and self._first:
            pairs = zip(self._first, gradients, strict=True)
            gradients = [old.mul_(self._momentum).add_(new) for old, new in pairs]
        self._first = gradients
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.sub_(gradient, alpha=self._rate)

    def _adam(self, gradients: Sequence[torch.Tensor]) -> None:
        import torch

        beta_1, beta_2 = self._optimizer.beta_1, self._optimizer.beta_2
        if not self._first:
            self._first = [torch.zeros_like(weight) for weight in self._weights]
            self._second = [torch.zeros_like(weight) for weight in self._weights]
        rate = self._rate / (1 - beta_1**self.count)
        root = math.sqrt(1 - beta_2**self.count)
        moments = zip(self._weights, gradients, self._first, self._second, strict=True)
        for weight, gradient, first, second in moments:
            first.lerp_(gradient, 1 - beta_1)
            second.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
            weight.addcdiv_(first, second.sqrt().div_(root).add_(ADAM_EPSILON), value=-rate)


def gradient_share(count: int, momentum: float) -> float:
    """Return how many plain steps `count` steps with `momentum` come to (Wang et al. 2020, ‖a‖₁).

    The sum of the weights with which all gradients enter the change, in learning rates."""
    kept = momentum * (1 - momentum**count) / (1 - momentum)
    return (count - kept) / (1 - momentum)
