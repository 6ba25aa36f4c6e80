"""Gradient inversion of one device of a recorded job, with the recorded noise and without.

DLG (Zhu, Liu and Han 2019), iDLG (Zhao, Mopuri and Bilen 2020) and cosine similarity with total
variation (Geiping et al. 2020) on the linear coefficients of `fm`, the clipped gradient at the
broadcast weights. The attacker is favoured: a device with many labels, its likeliest upload, and
known record counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from scipy.optimize import linear_sum_assignment

from edgeveil.parts.features import IdentityParameters
from edgeveil.parts.methods.fm import UNIT
from edgeveil.parts.methods.fm_sums import FmParameters, shrunk
from edgeveil.parts.round import Tensors
from edgeveil.privacy.grid import GRID_BITS
from edgeveil_lab.attack.recording import Recording, exact_linear, noised_linear

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Float64 = NDArray[np.float64]

LBFGS_STEPS, ADAM_STEPS = 500, 600
LBFGS_STARTS, ADAM_STARTS = 6, 2
SMOOTHNESS = 1e-3  # weight of the total variation


@dataclass(frozen=True)
class _AttackedHead:
    parameters: FmParameters
    features: IdentityParameters
    broadcast: Tensors
    classes: int
    side: int
    intercept: int = 0

    def linear(self, x: Tensor, chances: Tensor) -> Tensor:
        """Return Σ z(p − y)ᵀ, clipped per record, for records (n, D) and label chances (n, c)."""
        import torch

        unit = x + self.features.shift
        phi = unit / unit.norm(dim=1, keepdim=True).clamp_min(1e-9)
        if "centre" in self.broadcast:
            phi = phi - torch.from_numpy(self.broadcast["centre"].astype(np.float64))
        radius = self.parameters.radius
        z = phi / phi.norm(dim=1, keepdim=True).clamp_min(radius)
        if self.intercept:
            column = torch.full((len(z), 1), self.intercept / UNIT, dtype=z.dtype)
            z = torch.cat([z * (shrunk(self.intercept) / UNIT), column], dim=1)
        weight = torch.from_numpy(self.broadcast["iterate"].astype(np.float64) * 2.0**-GRID_BITS)
        residual = torch.softmax(z @ weight, dim=1) - chances
        size = z.norm(dim=1, keepdim=True) * residual.norm(dim=1, keepdim=True)
        factor = (self.parameters.clip / size.clamp_min(1e-9)).clamp_max(1.0)
        summed: Tensor = z.T @ (residual * factor)
        return summed


Method = Callable[[_AttackedHead, Float64, int, int], Float64]


def cosine(head: _AttackedHead, target: Float64, count: int, seed: int) -> Float64:
    """Match the direction by signed Adam steps, preferring smooth images; labels as in iDLG."""
    import torch

    wanted = torch.from_numpy(target)
    chances = _one_hot(likely_labels(target, count), head.classes)
    found: list[tuple[float, Float64]] = []
    for restart in range(ADAM_STARTS):
        x = _start(count, head, seed + restart).requires_grad_()
        optimiser = torch.optim.Adam([x], lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, ADAM_STEPS)
        for _ in range(ADAM_STEPS):
            optimiser.zero_grad()
            own, images = head.linear(x, chances), x.reshape(-1, head.side, head.side)
            loss = 1 - (own * wanted).sum() / (own.norm() * wanted.norm()).clamp_min(1e-12)
            variation = images.diff(dim=1).abs().mean() + images.diff(dim=2).abs().mean()
            total = loss + SMOOTHNESS * variation
            torch.autograd.backward(total)
            if x.grad is not None:
                x.grad.sign_()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                x.clamp_(0.0, 1.0)
        found.append((float(total.detach()), x.detach().numpy().copy()))
    return min(found, key=lambda one: one[0])[1]


def likely_labels(target: Float64, count: int) -> list[int]:
    """Return classes (count,) by descending norm of their column, repeated in this order."""
    order = np.argsort(-np.linalg.norm(target, axis=0)).tolist()
    return [order[k % len(order)] for k in range(count)]


def matched(
    head: _AttackedHead, target: Float64, count: int, seed: int, *, labelled: bool
) -> Float64:
    """Match the sum by L-BFGS on images and soft labels, or `labelled`: on images alone."""
    import torch

    labels = likely_labels(target, count) if labelled else None
    wanted = torch.from_numpy(target)
    scale = wanted.square().sum().clamp_min(1e-12)
    found: list[tuple[float, Float64]] = []
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
        found.append((float(distance().detach()), x.detach().clamp_min(0.0).numpy().copy()))
    return min(found, key=lambda one: one[0])[1]


METHODS: dict[str, Method] = {
    "DLG": partial(matched, labelled=False),
    "iDLG": partial(matched, labelled=True),
    "cosine + TV": cosine,
}
"""Called with (head, target, count, seed); returns records (count, D) >= 0 of unknown scale."""


def _start(count: int, head: _AttackedHead, seed: int) -> Tensor:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.rand((count, head.side**2), generator=generator, dtype=torch.float64)


def _one_hot(labels: list[int], classes: int) -> Tensor:
    import torch

    return torch.nn.functional.one_hot(torch.tensor(labels), classes).to(torch.float64)


LADDER = (1, 2, 4, 8)  # records that the attack is tried on
WINDOW = 7  # of the structural similarity


@dataclass(frozen=True)
class _InversionResult:
    """One attack: `images` (n, side, side) in the order of the originals, and their error."""

    records: int
    method: str
    noise: bool
    images: Float64
    mse: float
    psnr_db: float
    ssim: float


@dataclass(frozen=True)
class Inversion:
    """All attacks on one device: `originals` (n, side, side), and `guess` from the mean image.

    `sigma` (noise of one value) and `signal` (norm of the exact sum) are in units of one record."""

    originals: Float64
    results: tuple[_InversionResult, ...]
    sigma: float
    signal: float
    guess: _InversionResult


def why_no_pictures(recording: Recording) -> str:
    features, shape = recording.job.features, recording.job.data.input_shape
    if len(features) != 1 or features[0].name != "identity":
        return "pictures need a job whose only feature map is identity"
    if math.isqrt(math.prod(shape)) ** 2 != math.prod(shape):
        return "records are no square images"
    return ""


def invert(recording: Recording) -> Inversion:
    round, device = recording.rounds[0], recording.device
    broadcast = recording.broadcast(round)
    target = max(recording.devices, key=lambda own: len(np.unique(own.y[: LADDER[-1]])))
    own = target.at(np.arange(min(LADDER[-1], len(target))))
    exact = exact_linear(device, round, broadcast, target)
    sigma = math.sqrt(device.budget.noise_variance(round.phase))
    uploads = noised_linear(device, broadcast, recording.uploads(round))
    noise = min((one - exact for one in uploads), key=np.linalg.norm)  # of the likeliest upload
    head = head_of(recording)
    results = []
    for count in sorted({min(count, len(own)) for count in LADDER}):
        some = own.at(np.arange(count))
        clean = exact_linear(device, round, broadcast, some)
        originals = shown(some.x.reshape(count, -1).astype(np.float64))
        for seen, noisy in ((clean, False), (clean + noise, True)):
            for name, method in METHODS.items():
                found = shown(method(head, seen, count, 0))
                results.append(_compared(originals, found, count, name, noisy))
    originals = shown(own.x.reshape(len(own), -1).astype(np.float64))
    mean = shown(recording.test.x.reshape(len(recording.test), -1).astype(np.float64)).mean(axis=0)
    guesses = shown(np.tile(mean, (len(own), 1)))
    return Inversion(
        originals.reshape(-1, head.side, head.side),
        tuple(results),
        sigma,
        float(np.linalg.norm(exact)),
        _compared(originals, guesses, len(own), "mean image", True),
    )


def shown(images: Float64) -> Float64:
    """Scale images (n, D) to a maximum of 1, since features do not depend on brightness."""
    positive = np.maximum(images, 0.0)
    return np.asarray(positive / np.maximum(positive.max(axis=1, keepdims=True), 1e-12))


def ssim(a: Float64, b: Float64) -> float:
    """Return the mean structural similarity of images in [0, 1] (Wang et al. 2004, uniform)."""
    low, high = 0.01**2, 0.03**2
    size = min(WINDOW, *a.shape)

    def mean(values: Float64) -> Float64:
        return np.asarray(uniform_filter(values, size), dtype=np.float64)

    mean_a, mean_b = mean(a), mean(b)
    spread_a, spread_b = mean(a * a) - mean_a**2, mean(b * b) - mean_b**2
    common = mean(a * b) - mean_a * mean_b
    score = (2 * mean_a * mean_b + low) * (2 * common + high)
    return float((score / ((mean_a**2 + mean_b**2 + low) * (spread_a + spread_b + high))).mean())


def head_of(recording: Recording) -> _AttackedHead:
    """Return the public parameters of the first training round of a job with images."""
    features = cast(IdentityParameters, recording.job.features[0])
    side = math.isqrt(math.prod(recording.job.data.input_shape))
    broadcast = recording.broadcast(recording.rounds[0])
    classes, intercept = recording.job.data.classes, recording.device.intercept
    return _AttackedHead(recording.parameters, features, broadcast, classes, side, intercept)


def _compared(
    originals: Float64, found: Float64, count: int, method: str, noise: bool
) -> _InversionResult:
    cost = np.square(originals[:, None] - found[None]).mean(axis=2)
    _, order = linear_sum_assignment(cost)
    side = math.isqrt(originals.shape[1])
    ordered = found[order].reshape(-1, side, side)
    whole = originals.reshape(-1, side, side)
    mse = float(cost[np.arange(count), order].mean())
    scores = [ssim(a, b) for a, b in zip(whole, ordered, strict=True)]
    psnr = -10 * math.log10(max(mse, 1e-10))
    return _InversionResult(count, method, noise, ordered, mse, psnr, float(np.mean(scores)))
