"""Gradient inversion: records from what a device uploaded.

DLG (Zhu, Liu and Han 2019), iDLG (Zhao, Mopuri and Bilen 2020) and cosine similarity with total
variation (Geiping et al. 2020), on the linear coefficients of `fm`, which at the broadcast weights
are the clipped gradient. The attacker knows the model, the job, and how many records there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.exchange import Tensors
from edgeveil.parts.features import IdentityParameters
from edgeveil.parts.methods.fm_budget import FmParameters
from edgeveil.privacy.grid import GRID_BITS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Float64 = NDArray[np.float64]

LBFGS_STEPS, ADAM_STEPS = 500, 600
LBFGS_STARTS, ADAM_STARTS = 6, 2
SMOOTHNESS = 1e-3  # weight of the total variation


@dataclass(frozen=True)
class Head:
    """The public facts that turn records into linear coefficients."""

    parameters: FmParameters
    features: IdentityParameters
    broadcast: Tensors
    classes: int
    side: int

    def linear(self, x: Tensor, chances: Tensor) -> Tensor:
        """Σ z(p − y)ᵀ, clipped per record, for scaled records (n, D) and label chances (n, c)."""
        import torch

        unit = x + self.features.shift
        phi = unit / unit.norm(dim=1, keepdim=True).clamp_min(1e-9)
        if "centre" in self.broadcast:
            phi = phi - torch.from_numpy(self.broadcast["centre"].astype(np.float64))
        radius = self.parameters.radius
        z = phi / phi.norm(dim=1, keepdim=True).clamp_min(radius)
        weight = torch.from_numpy(self.broadcast["iterate"].astype(np.float64) * 2.0**-GRID_BITS)
        residual = torch.softmax(z @ weight, dim=1) - chances
        size = z.norm(dim=1, keepdim=True) * residual.norm(dim=1, keepdim=True)
        factor = (self.parameters.clip / size.clamp_min(1e-9)).clamp_max(1.0)
        summed: Tensor = z.T @ (residual * factor)
        return summed


Method = Callable[[Head, Float64, int, int], Float64]


def dlg(head: Head, target: Float64, count: int, seed: int) -> Float64:
    """Records (count, D) >= 0, of no known scale: images and soft labels that give the same sum."""
    return _matched(head, target, count, seed, None)


def idlg(head: Head, target: Float64, count: int, seed: int) -> Float64:
    """The same with labels read off first: a class that is there has the larger column."""
    return _matched(head, target, count, seed, likely_labels(target, count))


def cosine(head: Head, target: Float64, count: int, seed: int) -> Float64:
    """The direction alone, signed Adam steps, smooth images preferred; labels as in iDLG."""
    import torch

    wanted = torch.from_numpy(target)
    chances = _one_hot(likely_labels(target, count), head.classes)
    best, least = np.zeros((count, head.side**2)), math.inf
    for restart in range(ADAM_STARTS):
        x = _start(count, head, seed + restart).requires_grad_()
        optimiser = torch.optim.Adam([x], lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, ADAM_STEPS)
        for _ in range(ADAM_STEPS):
            optimiser.zero_grad()
            found = head.linear(x, chances)
            loss = 1 - (found * wanted).sum() / (found.norm() * wanted.norm()).clamp_min(1e-12)
            total = loss + SMOOTHNESS * _variation(x, head.side)
            torch.autograd.backward(total)
            if x.grad is not None:
                x.grad.sign_()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                x.clamp_(0.0, 1.0)
        reached = float(total.detach())
        if reached < least:
            least, best = reached, x.detach().numpy().copy()
    return best


METHODS: dict[str, Method] = {"DLG": dlg, "iDLG": idlg, "cosine + TV": cosine}


def likely_labels(target: Float64, count: int) -> list[int]:
    """Classes (count,) by the norm of their column, the largest first, each at most once more
    often than the others."""
    order = np.argsort(-np.linalg.norm(target, axis=0)).tolist()
    return [order[k % len(order)] for k in range(count)]


def _matched(
    head: Head, target: Float64, count: int, seed: int, labels: list[int] | None
) -> Float64:
    """LBFGS on the squared distance of the coefficients, the best of a few starts."""
    import torch

    wanted = torch.from_numpy(target)
    scale = wanted.square().sum().clamp_min(1e-12)
    best, least = np.zeros((count, head.side**2)), math.inf
    for restart in range(LBFGS_STARTS):
        x = _start(count, head, seed + restart).requires_grad_()
        logits = torch.zeros((count, head.classes), dtype=torch.float64)
        logits += _start(count, head, seed + 77 + restart)[:, : head.classes]
        logits.requires_grad_()
        free = [x] if labels is not None else [x, logits]
        optimiser = torch.optim.LBFGS(
            free,
            max_iter=LBFGS_STEPS,
            tolerance_grad=1e-12,
            tolerance_change=1e-14,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def distance(x: Tensor = x, logits: Tensor = logits) -> Tensor:
            chances = (
                torch.softmax(logits, dim=1) if labels is None else _one_hot(labels, head.classes)
            )
            return (head.linear(x, chances) - wanted).square().sum() / scale

        def closure(optimiser: torch.optim.Optimizer = optimiser) -> Tensor:
            optimiser.zero_grad()
            loss = distance()
            torch.autograd.backward(loss)
            return loss

        optimiser.step(closure)  # type: ignore[no-untyped-call]
        reached = float(distance().detach())
        if reached < least:
            least, best = reached, x.detach().clamp_min(0.0).numpy().copy()
    return best


def _start(count: int, head: Head, seed: int) -> Tensor:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.rand((count, head.side**2), generator=generator, dtype=torch.float64)


def _one_hot(labels: list[int], classes: int) -> Tensor:
    import torch

    return torch.nn.functional.one_hot(torch.tensor(labels), classes).to(torch.float64)


def _variation(x: Tensor, side: int) -> Tensor:
    images = x.reshape(-1, side, side)
    return images.diff(dim=1).abs().mean() + images.diff(dim=2).abs().mean()
