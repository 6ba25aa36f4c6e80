"""Gradients seen through low-rank carriers (`rgp`; Yu, Zhang, Chen, Yin and Liu 2021), proven.

W is written as L·R + (W − L·R), L (p, r) and R (r, q) orthonormal, with ∂L = ∂W·Rᵀ and ∂R = Lᵀ·∂W.
A record's ∂L and ∂R of all matrices and its other gradients are clipped together and noised as in
`dp_sgd`; the step is ∂L·R + L·∂R − L·Lᵀ·∂L·R. Noise then has r·(p + q) values, not p·q. Carriers
are the main directions of W's change since the public first weights, by one power iteration, which
is free.

Deviations: discrete noise; a matrix of which nothing would be saved keeps its gradient; ∂L and ∂R
are computed from ∂W, which costs the memory that the text saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.method_context import network_of
from edgeveil.parts.methods.dp_sgd import DpSgd, LocalDpSgd, View
from edgeveil.parts.update import Task, trainer_part

if TYPE_CHECKING:
    import torch

Float64 = NDArray[np.float64]
Shape = tuple[int, ...]
START_SEED = 0  # of the power iteration, public


class RgpParameters(LocalDpSgd):
    """The `train` block of a job with `method: rgp`."""

    method: Literal["rgp"] = "rgp"
    """Noised SGD on low-rank carriers of the weights: less noise in all, fewer directions."""
    rank: int = Field(default=4, ge=1, le=256)
    """r: columns of L and rows of R."""


class Rgp(DpSgd):
    @property
    def coordinates(self) -> int:
        shapes = [weight.shape for weight in network_of(self.setting).weights]
        return seen_size(shapes, self.parameters.rank)

    def views(self, task: Task, weights: Mapping[str, torch.Tensor]) -> Iterator[View]:
        p, first = self.parameters, task.network.initial()
        while True:
            changes = [value.cpu().numpy() - first[name] for name, value in weights.items()]
            yield Carriers(changes, p.rank, p.clip_norm)


class Carriers(View):
    """The view of gradients through the carriers of `changes`, one for each weight in order."""

    def __init__(self, changes: Sequence[NDArray[np.floating]], rank: int, norm: float) -> None:
        super().__init__(norm)
        self._pairs = [carriers(change, rank) for change in changes]
        self._sizes = [seen_size([change.shape], rank) for change in changes]

    def seen(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        import torch

        parts = []
        for gradient, pair in zip(gradients, self._pairs, strict=True):
            if pair is None:
                parts.append(gradient)
                continue
            left, right = (torch.as_tensor(half).to(gradient) for half in pair)
            whole = gradient.reshape(-1, left.shape[0], right.shape[1])
            parts += [(whole @ right.T).flatten(1), (left.T @ whole).flatten(1)]
        return parts

    def back(self, total: Float64) -> Float64:
        parts = []
        pieces = np.split(total, np.cumsum(self._sizes)[:-1])
        for piece, pair in zip(pieces, self._pairs, strict=True):
            if pair is None:
                parts.append(piece)
                continue
            left, right = pair
            of_left = piece[: left.size].reshape(left.shape)
            of_right = piece[left.size :].reshape(right.shape)
            across = of_left @ right
            parts.append((across + left @ (of_right - left.T @ across)).ravel())
        return np.concatenate(parts)


def seen_size(shapes: Sequence[Shape], rank: int) -> int:
    """How many values a noised sum has, for weights of these shapes."""
    total = 0
    for shape in shapes:
        rows, columns = as_matrix(shape)
        total += rank * (rows + columns) if worth(shape, rank) else rows * columns
    return total


def as_matrix(shape: Shape) -> tuple[int, int]:
    """The matrix that a weight of this shape is taken for: (first, all others)."""
    first = shape[0] if shape else 1
    return first, int(np.prod(shape[1:]))


def worth(shape: Shape, rank: int) -> bool:
    """Whether carriers of this rank have fewer values than the weight."""
    rows, columns = as_matrix(shape)
    return rank * (rows + columns) < rows * columns


def carriers(change: NDArray[np.floating], rank: int) -> tuple[Float64, Float64] | None:
    """L and R of a weight's `change`, of random directions while it is 0; None: not worth it."""
    if not worth(change.shape, rank):
        return None
    delta = np.asarray(change, np.float64).reshape(as_matrix(change.shape))
    chance = np.random.default_rng(START_SEED)
    right = chance.standard_normal((rank, delta.shape[1]))
    left = delta @ right.T if delta.any() else chance.standard_normal((len(delta), rank))
    left = np.linalg.qr(left)[0]
    right = left.T @ delta if delta.any() else right
    return left, np.linalg.qr(right.T)[0].T


PART = trainer_part(
    parameters=RgpParameters,
    trainer=Rgp,
    source="Yu, Zhang, Chen, Yin, Liu 2021; a comparison of Zhang, Wu and Dong (PSO-DP)",
    needs="model",
    reveals="weights after noised steps",
    privacy="proven",
    example="train: {method: rgp, rank: 4}",
)
