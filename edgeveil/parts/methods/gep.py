"""Gradients split in a public subspace and a rest (`gep`; Yu, Zhang, Chen and Liu 2021), proven.

B (k, d), orthonormal, spans the main directions of gradients of public auxiliary records. A
record's gradient g is seen as its embedding B·g, clipped to C₁, and its residual g − Bᵀ·B·g,
clipped to C₂. Each over its clip and √2 they make one vector of norm 1, priced as in `dp_sgd`.

Deviations: discrete noise; one subspace of all weights, by a singular value decomposition once a
round (the text: one per group of layers, by power iteration); random auxiliary records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.method_context import size_of
from edgeveil.parts.methods.dp_sgd import DpSgd, LocalDpSgd, View, record_gradients
from edgeveil.parts.models.network import Network
from edgeveil.parts.part import WithSettled
from edgeveil.parts.update import Task, trainer_part

if TYPE_CHECKING:
    import torch

START_SEED = 0  # of the auxiliary records, public
AUXILIARY = 64  # random records, whose gradients span the subspace


class GepParameters(WithSettled, LocalDpSgd):
    """The `train` block of a job with `method: gep`; `clip_norm` is that of the embedding."""

    method: Literal["gep"] = "gep"
    """Noised SGD on gradients split in a public subspace and a rest, each with a clip."""
    residual_clip: float = Field(default=0.2, gt=0, le=1e6)
    """C₂: the L2 norm that the rest of one record's gradient is clipped to."""
    subspace: int = Field(default=16, ge=1, le=AUXILIARY)
    """k: directions of the subspace, at most the number of weights."""
    settled: ClassVar = {"auxiliary": AUXILIARY}


class Gep(DpSgd):
    @property
    def coordinates(self) -> int:
        return size_of(self.setting) + int(self.parameters.subspace)

    def views(self, task: Task, weights: Mapping[str, torch.Tensor]) -> Iterator[View]:
        p = self.parameters
        found = anchors(task.network, weights, AUXILIARY)
        return repeat(Embedding(found, p.subspace, p.clip_norm, p.residual_clip))


class Embedding(View):
    """The view of gradients in the span of `anchors` (m, d) and outside it."""

    def __init__(
        self, anchors: torch.Tensor, subspace: int, clip_norm: float, residual_clip: float
    ) -> None:
        import torch

        super().__init__(1.0)
        _, _, rows = torch.linalg.svd(anchors.cpu(), full_matrices=False)
        self.basis: torch.Tensor = rows[:subspace].to(anchors.device)
        self._clips = clip_norm * math.sqrt(2), residual_clip * math.sqrt(2)

    def seen(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        import torch

        whole = torch.cat(gradients, 1)
        inside = whole @ self.basis.T
        parts = inside, whole - inside @ self.basis
        return [
            part / (part.norm(dim=1, keepdim=True) * math.sqrt(2)).clamp(min=clip)
            for part, clip in zip(parts, self._clips, strict=True)
        ]

    def back(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        inside = total[: len(self.basis)] * self._clips[0]
        basis = self.basis.cpu().numpy().astype(np.float64)
        return inside @ basis + total[len(self.basis) :] * self._clips[1]


def anchors(network: Network, weights: Mapping[str, torch.Tensor], count: int) -> torch.Tensor:
    """Gradients (count, d) of public random records: uniform values, labels in turn; 0 where not
    finite, which has no singular values."""
    import torch

    chance = np.random.default_rng(START_SEED)
    records = chance.uniform(0, network.input_scale, (count, *network.input_shape))
    device = next(iter(weights.values())).device
    x = torch.as_tensor(records.astype(np.float32)).to(device)
    y = torch.as_tensor(np.arange(count) % network.classes).to(device)
    found = record_gradients(network)(weights, x, y)
    whole = torch.cat([found[name].flatten(1) for name in weights], 1)
    return whole.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


PART = trainer_part(
    parameters=GepParameters,
    trainer=Gep,
    source="Yu, Zhang, Chen, Liu 2021; a comparison of Zhang, Wu and Dong (PSO-DP)",
    needs="model",
    reveals="weights after noised steps",
    privacy="proven",
    example="train: {method: gep, subspace: 16}",
)
