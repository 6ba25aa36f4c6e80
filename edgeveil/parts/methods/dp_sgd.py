"""DP-SGD (Abadi et al. 2016, alg. 1; `dp_sgd`), per record, add/remove, proven.

Local step: w ← w − η·(Σ clip(∇ℓ_i, C) + C·N(0, σ²I)) / L, L the public expected batch, over a fresh
secret Poisson sample. σ is the least for which all steps of all rounds of a device cost (ε, δ).
Noise and sums are discrete. The upload is computed from noised sums only.

Noise hides a record only if the rest of the sum stays identical to the last bit. So gradients are
computed in blocks of one fixed shape, each record at a place drawn by its own random bits, the
other places zero; and each gradient is scaled to norm C and rounded toward zero to steps of C·2⁻¹⁶,
so that sums are exact. Of a dense layer's, an outer product (Goodfellow 2015), both factors are
rounded, so that a sum is a product of integers (`docs/privacy.md`, "Gradients of records")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.data.records import grouped
from edgeveil.errors import PrivacyError
from edgeveil.parts.method_context import MethodContext, size_of
from edgeveil.parts.methods.local_steps import chosen_processor
from edgeveil.parts.methods.optimizers import (
    LocalTraining,
    OptimizerParameters,
    Steps,
    local_refusals,
)
from edgeveil.parts.models import layers
from edgeveil.parts.models.layers import Conv, Dense
from edgeveil.parts.models.network import Network
from edgeveil.parts.part import only_for, some_names
from edgeveil.parts.round import PlannedRound
from edgeveil.parts.stage import Task, Update
from edgeveil.parts.update import trainer_part
from edgeveil.privacy.events import Event, PoissonSampled
from edgeveil.privacy.gaussian_mechanism import (
    calibrated,
    noised_step,
    poisson_sample,
    sampled_gaussian_event,
)
from edgeveil.privacy.grid import clip_sum, clipped_slack
from edgeveil.privacy.sampler import RandomBytes

if TYPE_CHECKING:
    import torch

    from edgeveil.parts.models.layers import Layer, Tensors

    Part = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
    Parts = Sequence[Part]
    Rows = Callable[[torch.Tensor, torch.Tensor], Parts]
    Losses = Callable[[Tensors, torch.Tensor, torch.Tensor], torch.Tensor]
    Gradients = Callable[[Tensors, torch.Tensor, torch.Tensor], Tensors]


Int64 = NDArray[np.int64]

NOISE_BITS = 30  # noise and sums in steps of 2^-30 of the clip norm, far finer than the noise
RECORD_BITS = 16  # gradients in steps of 2^-16 of the clip norm; block sums stay below 2^24
LEFT_BITS = NOISE_BITS - RECORD_BITS  # left factors in steps of 2^-14 of their norm
PLACES = {"cpu": 16}  # records per block, a power of two; elsewhere 128
CHUNK = 1024  # a float32 sum of this many squares has a relative error below 2^-13
AIM, LIMIT = 1 - 2.0**-12, 1 - 2.0**-13  # target of the norm; limit of its square


def record_gradients(network: Network, parameters: LocalTraining | None = None) -> Gradients:
    """Return a function to the gradients (n, …) of n records' losses, the network's by default."""
    from torch.func import grad, vmap

    return vmap(grad(_alone(network, parameters)), in_dims=(None, 0, 0))


def record_losses(network: Network, parameters: LocalTraining | None = None) -> Losses:
    """Return a function to the losses (n,) of n records, each alone for any model."""
    from torch.func import vmap

    return vmap(_alone(network, parameters), in_dims=(None, 0, 0))


def _alone(network: Network, parameters: LocalTraining | None) -> Losses:
    mean_loss = network.loss if parameters is None else parameters.loss_of(network)

    def loss(weights: Tensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mean_loss(weights, x[None], y[None])

    return loss


# Layers without weights, after which no record's value depends on another's.
PLAIN = (layers.Flatten, layers.HardSwish, layers.MaxPool, layers.Picture, layers.Relu, layers.Tanh)


def gradient_rows(network: Network, parameters: LocalTraining | None, weights: Tensors) -> Rows:
    """Return a function to n records' gradients under `weights`, in their order.

    Parts are (n, values), or factors (n, in + 1), (n, out) of a dense layer's weight and bias. By
    `vmap` where layers or the loss might mix records, or have weights in another way."""
    import torch
    from torch.nn.functional import pad, unfold

    passed: list[tuple[Conv | Dense, torch.Tensor, torch.Tensor]] = []

    def logits(_: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
        for name, layer in network.layers:
            given, x = x.detach(), layer.apply(weights, name, x)
            if isinstance(layer, Conv | Dense):
                passed.append((layer, given, x.requires_grad_()))
        return x

    def by_layer(x: torch.Tensor, y: torch.Tensor) -> Parts:
        passed.clear()
        loss = mean_loss(weights, x, y) * len(x)
        outer = torch.autograd.grad(loss, [output for *_, output in passed])
        found: list[Part] = []
        for (layer, given, _), own in zip(passed, outer, strict=True):
            if isinstance(layer, Dense):
                found.append((pad(given, (0, 1), value=1.0), own))
                continue
            w = layer.window
            patches = unfold(given, w.kernel, w.dilation, w.padding, w.stride)
            found.append((own.flatten(2) @ patches.transpose(1, 2)).flatten(1))
            found += [own.sum((2, 3))] if layer.bias else []
        return found

    def whole(x: torch.Tensor, y: torch.Tensor) -> Parts:
        found = gradients(weights, x, y)
        return [found[name].flatten(1) for name in weights]

    noted = replace(network, layers=(("", cast("Layer", SimpleNamespace(apply=logits))),))
    mean_loss = noted.loss if parameters is None else parameters.loss_of(noted)
    gradients = record_gradients(network, parameters)
    known = type(network) is Network and (parameters is None or parameters.loss is None)
    known &= all(one.device.type != "mps" for one in weights.values())  # without float64
    for _, layer in network.layers:
        known &= type(layer) in (Conv, Dense, *PLAIN) and not getattr(layer, "depthwise", False)
    return by_layer if known else whole


def to_steps(rows: Parts, there: torch.Tensor, clip_norm: float) -> Parts:
    """Return clipped float32 parts (n, …) in whole steps; 0 if absent or not finite.

    Steps are 2⁻¹⁶ of `clip_norm`; of an outer product 2⁻³⁰."""
    norms = _squared_norms(rows).sqrt().clamp(min=clip_norm)
    scale = AIM * 2.0**RECORD_BITS / norms * there.to(norms.device)
    whole: list[Part] = []
    for part in rows:
        if isinstance(part, tuple):
            length = part[0].double().square().sum(1).sqrt()
            left = _scaled(part[0], 2.0**LEFT_BITS / length)
            whole.append((left, _scaled(part[1], scale * length)))
        else:
            whole.append(_scaled(part, scale))
    kept = _squared_norms(whole, 2.0**LEFT_BITS) <= LIMIT * 4.0**RECORD_BITS  # False for NaN
    if not bool(kept.all()):
        for one in (one for part in whole for one in (part if isinstance(part, tuple) else [part])):
            one.masked_fill_(~kept.to(one.device)[:, None], 0.0)
    return whole


def _scaled(part: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (part * scale.float()[:, None].to(part.device)).trunc_()


def _exact_sum(parts: Parts, own: slice | torch.Tensor) -> Int64:
    """Return the sum (values,) of the `own` of whole parts in steps of 2⁻³⁰."""
    import torch

    found = []
    for part in parts:
        if isinstance(part, tuple):
            left, right = (one[own].double() for one in part)
            found.append((left.T @ right).long().flatten().cpu())
        else:
            found.append(part[own].sum(0).cpu().long() << LEFT_BITS)
    return np.asarray(torch.cat(found).numpy())


def in_places(chosen: Int64, places: int, empty: int, random_bytes: RandomBytes) -> Int64:
    """Return blocks (k >= 1, places) of chosen records at uniform places, the others `empty`."""
    drawn = np.frombuffer(random_bytes(len(chosen)), np.uint8).astype(np.int64) % places
    order = np.argsort(drawn, kind="stable")
    ordered = drawn[order]
    turn = np.arange(len(order)) - np.searchsorted(ordered, ordered)  # rank within its place
    blocks = np.full((int(turn.max(initial=0)) + 1, places), empty, np.int64)
    blocks[turn, ordered] = chosen[order]
    return blocks


def _squared_norms(rows: Parts, left_unit: float = 1.0) -> torch.Tensor:
    """Return squared L2 norms (n,), float64, with a relative error below 2⁻¹³: sums of chunks.

    Left factors are in steps of 1/`left_unit`."""
    import torch

    parts = []
    for part in rows:
        if isinstance(part, tuple):
            left, right = (one.double().square().sum(1) for one in part)
            parts.append(left * right / left_unit**2)
            continue
        even = part.shape[1] // CHUNK * CHUNK
        for piece in (part[:, :even].reshape(len(part), -1, CHUNK), part[:, None, even:]):
            norms = torch.linalg.vector_norm(piece, dim=2)
            # MPS has no float64.
            norms = norms.cpu() if norms.device.type == "mps" else norms
            parts.append(norms.double().square().sum(1))
    return torch.stack(parts).sum(0)


# Noised local steps, shared with other methods: each draws one noised sum of vectors of bounded
# norm over a fresh Poisson sample of the device's records.

MARGIN_STEPS = 1 << 14  # a record's norm stays below 2^30 steps by more, as LIMIT makes it
UNIT_VALUES = 1 << 23  # of the sums of several units in memory


class DpSgdParameters(LocalTraining):
    """The `train` block of the methods with noised steps; all of it is public."""

    method: Literal["dp_sgd", "pso_dp_sgd", "dp_sgd_sums"] = "dp_sgd"
    """Which method; `edgeveil methods` describes each."""
    rounds: int = Field(default=10, ge=1, le=10_000)
    """Training rounds; of `dp_sgd_sums`: steps."""
    local_steps: Annotated[int, Field(ge=1, le=10_000), only_for(dp_sgd=10, pso_dp_sgd=10)] = (
        some_names()
    )
    """Noised steps of one device in one round, 10 by default; each adds to the price."""
    sampling_rate: float = Field(default=0.1, gt=0, le=1)
    """Probability of a record to be in a step's sample; 1: every step uses all records."""
    clip_norm: float = Field(default=1.0, gt=0, le=1e6)
    """C: the L2 norm that one record's gradient is clipped to."""
    learning_rate: float = Field(default=0.5, gt=0, le=100)
    """Step size, for a gradient that is the sample's mean."""
    search: Annotated[Literal["random", "adaptive"], only_for(pso_dp_sgd="random")] = some_names()
    """Of `pso_dp_sgd`; `random`, the default: particles move by inertia and pulls. `adaptive`: each
    continues from its own best."""
    selection: Annotated[Literal["priced", "unpriced"], only_for(pso_dp_sgd="priced")] = (
        some_names()
    )
    """Of `pso_dp_sgd`; `priced`, the default: the best chosen by noised losses, proven. `unpriced`:
    by exact ones, claimed."""


def noised_steps(
    parameters: DpSgdParameters, context: MethodContext, steps: int, coordinates: int
) -> PoissonSampled:
    """Return a round's event, of the least noise for (ε, δ). Raises PrivacyError if none."""
    rate, sensitivity = parameters.sampling_rate, 1 << NOISE_BITS
    if context.unit != "record" and clipped_slack(coordinates, sensitivity) > MARGIN_STEPS:
        what = f"clips gradients of {coordinates} values too coarsely for persons"
        raise PrivacyError(what, where="privacy.unit", fix="use a smaller model, or unit: record")
    one = sampled_gaussian_event(
        "gradient steps", rate, steps, sensitivity, coordinates, grid_bits=NOISE_BITS
    )
    one = replace(one, event=replace(one.event, unit=context.unit))
    times = min(context.max_participations, parameters.rounds)
    return calibrated(one, times, context.epsilon, context.delta)


class NoisedSums:
    def __init__(self, task: Task, event: PoissonSampled) -> None:
        import torch

        self.processor = chosen_processor(task.processor)
        self._event, self._random_bytes, self._records = event, task.random_bytes, task.records
        # An extra record of zeros fills empty places.
        x, y = task.records.x, task.records.y
        x = np.concatenate([x, np.zeros((1, *x.shape[1:]), x.dtype)])
        self._x = torch.as_tensor(x).to(self.processor)
        self._y = torch.as_tensor(np.append(y, 0)).to(self.processor)
        self.count = len(y)

    @cached_property
    def _units(self) -> list[Int64] | None:
        """Records of each unit; None: each is one."""
        owners = self._records.owners(self._event.unit)
        return None if owners is None else grouped(owners)

    def draw(self, rows: Rows, norm: float) -> NDArray[np.float64]:
        """Return one priced step: the noised sum of `rows(x, y)`, of each unit clipped to `norm`.

        Raises PrivacyError for more values than the event prices."""
        total = self.sampled(rows, norm)
        one = self._event.event
        if total.size > one.coordinates:
            raise PrivacyError(f"{self._event.what}: {total.size} values are more than was priced")
        event = replace(self._event, event=replace(one, coordinates=total.size))
        steps = noised_step(total, event, self._random_bytes)
        return np.asarray(steps * (norm * 2.0**-NOISE_BITS), np.float64)

    def sampled(self, rows: Rows, norm: float) -> Int64:
        """Return the exact sum of `rows` over a fresh sample of units, in steps of `norm`·2⁻³⁰."""
        count = self.count if self._units is None else len(self._units)
        chosen = poisson_sample(count, self._event.sampling_probability, self._random_bytes)
        if self._units is None:
            return self.total(rows, chosen, norm)
        return self._by_unit(rows, [self._units[at] for at in chosen], norm)

    def total(self, rows: Rows, chosen: Int64, clip_norm: float) -> Int64:
        """Return the sum (values,) of `chosen` records' rows in steps of `clip_norm`·2⁻³⁰.

        One record's L2 norm is at most 2³⁰ steps."""
        return self._sums(rows, [chosen], clip_norm)[0]

    def _by_unit(self, rows: Rows, units: list[Int64], clip_norm: float) -> Int64:
        """Return the sum (values,) of units, each clipped to 2³⁰ steps of `clip_norm`·2⁻³⁰."""
        total: Int64 = np.zeros(1, np.int64)
        size = max(1, UNIT_VALUES // self._event.event.coordinates)
        units = units or [np.empty(0, np.int64)]
        for start in range(0, len(units), size):
            for own in self._sums(rows, units[start : start + size], clip_norm):
                total = total + clip_sum(own, 1 << NOISE_BITS)
        return total

    def _sums(self, rows: Rows, units: list[Int64], clip_norm: float) -> list[Int64]:
        """Return the sum (values,) of each unit's records' rows in steps of `clip_norm`·2⁻³⁰."""
        import torch

        sums: list[Int64] = [np.zeros(1, np.int64)] * len(units)
        unit = np.zeros(self.count + 1, np.int64)
        unit[np.concatenate(units)] = np.repeat(np.arange(len(units)), [len(u) for u in units])
        places = PLACES.get(self.processor, 128)
        for block in in_places(np.concatenate(units), places, self.count, self._random_bytes):
            at = torch.as_tensor(block).to(self._x.device)
            whole = to_steps(rows(self._x[at], self._y[at]), at != self.count, clip_norm)
            numbers = np.unique(unit[block[block != self.count]]) if len(units) > 1 else (0,)
            for number in numbers:
                own = slice(None) if len(units) == 1 else torch.as_tensor(unit[block] == number)
                found = _exact_sum(whole, own)
                found += sums[number]
                sums[number] = found
        return sums


class NoisedSgd:
    def __init__(
        self, task: Task, sums: NoisedSums, parameters: DpSgdParameters, context: MethodContext
    ) -> None:
        self._sums, self._learned = sums, (task.network, parameters)
        self._global, self._optimizer = task.weights, parameters.optimizer
        batch = parameters.sampling_rate * context.nominal_records  # public, unlike the sample's
        self._rate, self._clip_norm = parameters.rate(task.round), parameters.clip_norm
        # Plain steps fold the learning rate into the sum's one rounding.
        self._plain = self._optimizer == OptimizerParameters()
        self._scale = (self._rate if self._plain else 1.0) / batch

    def trained(self, start: Mapping[str, NDArray[np.float32]], steps: int) -> Update:
        weights = self.weights(start)
        optimizer = None
        if not self._plain:
            optimizer = Steps(list(weights.values()), self._rate, 0.0, self._optimizer)
        for _ in range(steps):
            self.take(weights, optimizer)
        return {name: one.cpu().numpy() - self._global[name] for name, one in weights.items()}

    def weights(self, values: Mapping[str, NDArray[np.float32]]) -> dict[str, torch.Tensor]:
        import torch

        processor = self._sums.processor
        return {name: torch.tensor(array, device=processor) for name, array in values.items()}

    def take(self, weights: Tensors, optimizer: Steps | None = None) -> None:
        import torch

        rows = gradient_rows(*self._learned, weights)
        drawn = self._scale * self._sums.draw(rows, self._clip_norm)
        step = torch.as_tensor(drawn.astype(np.float32)).to(self._sums.processor)
        parts = torch.split(step, [value.numel() for value in weights.values()])
        shaped = [part.view_as(v) for v, part in zip(weights.values(), parts, strict=True)]
        if optimizer is not None:
            optimizer.step(shaped)
            return
        for value, part in zip(weights.values(), shaped, strict=True):
            value.sub_(part)


class DpSgd:
    def __init__(self, parameters: Any, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context

    @cached_property
    def event(self) -> PoissonSampled:
        p = self.parameters
        return noised_steps(p, self.context, p.local_steps, size_of(self.context))

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return (self.event,)

    def train(self, task: Task, start: Mapping[str, NDArray[np.float32]]) -> Update:
        """Return weights after the noised steps, minus the global ones. Needs torch."""
        sgd = NoisedSgd(task, NoisedSums(task, self.event), self.parameters, self.context)
        return sgd.trained(start, self.parameters.local_steps)


PART = trainer_part(
    name="dp_sgd",
    summary="SGD with a clip per record, Poisson sampling and Gaussian noise in every local step.",
    parameters=DpSgdParameters,
    trainer=DpSgd,
    refuses=local_refusals,
    source="Abadi et al. 2016, alg. 1",
    needs="model",
    reveals="weights after noised steps",
    privacy="proven",
    units=("record", "person"),
    example="train: {method: dp_sgd, clip_norm: 1}",
)
