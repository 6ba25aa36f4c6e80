"""Torch steps on a quadratic, with coefficients fixed by its public curvature."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import UsageError


def minimise_quadratic(
    linear: NDArray[np.float64],
    curvature: NDArray[np.floating],
    spectrum: tuple[float, float],
    steps: int,
    processor: str = "auto",
) -> NDArray[np.float32]:
    """Approximate minimiser ΔW (d, c) of ⟨linear, ΔW⟩ + ½⟨ΔW, curvature·ΔW⟩ from ΔW = 0.

    Chebyshev semi-iteration (Saad 2003, alg. 12.1) for eigenvalues in `spectrum` = (low, high),
    0 < low <= high. Its coefficients depend on the spectrum alone, so ΔW is linear in `linear`
    and the mean over devices is the step on the mean polynomial. Runs on `processor` (`cuda`,
    `mps`, `cpu`; `auto`: the first of them that is there), in float32: 1e-5 of the result, far
    below its noise. Needs torch; raises UsageError for a processor that is not there.
    """
    import torch

    device = chosen_processor(processor)
    a = torch.as_tensor(curvature.astype(np.float32, copy=False)).to(device)
    # Rows of d values: a narrow (c, d) product with a symmetric matrix is the faster way round.
    residual = -torch.as_tensor(linear.T.astype(np.float32, order="C")).to(device)
    middle = (spectrum[1] + spectrum[0]) / 2
    half = max((spectrum[1] - spectrum[0]) / 2, 1e-9 * middle)
    rate = half / middle
    step, total = residual / middle, torch.zeros_like(residual)
    for _ in range(steps):
        total = total + step
        residual = residual - step @ a
        previous, rate = rate, 1 / (2 * middle / half - rate)
        step = rate * previous * step + (2 * rate / half) * residual
    return np.ascontiguousarray(total.cpu().numpy().T)


def chosen_processor(processor: str) -> str:
    """`cuda`, `mps` or `cpu` for `auto` or one of them; UsageError where it is not there."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if processor == "auto":
        return next((name for name, found in there.items() if found), "cpu")
    if not there.get(processor, True):
        raise UsageError(
            f"torch finds no {processor} here", where="edge.device", fix="set device: auto"
        )
    return processor
