"""Minimisation of a quadratic, with step coefficients fixed by its public spectrum."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import UsageError

DEVICE_FILES = Path("/dev")
_GPU_FILES = ("nvidia*", "nvhost*", "nvgpu*", "kfd", "dxg")  # NVIDIA, its boards, AMD, WSL


def minimise_quadratic(
    linear: NDArray[np.float64],
    curvature: NDArray[np.floating],
    spectrum: tuple[float, float],
    steps: int,
    processor: str = "auto",
) -> NDArray[np.float32]:
    """Return approximate argmin ΔW (d, c) of ⟨linear, ΔW⟩ + ½⟨ΔW, curvature·ΔW⟩, from ΔW = 0.

    Chebyshev semi-iteration (Saad 2003, alg. 12.1) in float32 for `spectrum` = (low, high), 0 < low
    <= high; linear in `linear`. Raises UsageError for an absent `processor`."""
    a = curvature.astype(np.float32, copy=False)
    # Rows of d values: (c, d) times a symmetric matrix is faster than its transpose.
    residual = -linear.T.astype(np.float32, order="C")
    device = _processor(processor)
    if device == "cpu":
        with np.errstate(over="ignore", invalid="ignore"):  # a cloud may have sent any curvature
            total = _chebyshev(residual, a, spectrum, steps)
    else:
        import torch

        residual_there, a_there = (torch.as_tensor(side).to(device) for side in (residual, a))
        total = _chebyshev(residual_there, a_there, spectrum, steps).cpu().numpy()
    return np.ascontiguousarray(total.T)


def _chebyshev(residual: Any, a: Any, spectrum: tuple[float, float], steps: int) -> Any:
    low, high = map(float, spectrum)
    middle = (high + low) / 2
    half = max((high - low) / 2, 1e-9 * middle)
    rate = half / middle
    total = step = residual / middle
    for _ in range(steps - 1):
        residual = residual - step @ a
        previous, rate = rate, 1 / (2 * middle / half - rate)
        step = rate * previous * step + (2 * rate / half) * residual
        total = total + step
    return total


def _processor(processor: str) -> str:
    """Return `chosen_processor`, loading torch (seconds, 200 MB) only if there may be a GPU."""
    if processor == "auto" and not gpu_in_sight():
        return "cpu"
    return processor if processor == "cpu" else chosen_processor(processor)


def gpu_in_sight() -> bool:
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    return any(any(DEVICE_FILES.glob(pattern)) for pattern in _GPU_FILES)


def chosen_processor(processor: str) -> str:
    """Return `cuda`, `mps` or `cpu` for that or `auto`. Raises UsageError if absent."""
    try:
        import torch
    except ImportError:
        there, why = {"cuda": False, "mps": False}, "torch, which is not installed, finds"
    else:
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        why = "torch finds"
    if processor == "auto":
        return next((name for name, found in there.items() if found), "cpu")
    if not there.get(processor, True):
        raise UsageError(f"{why} no {processor} here", where="edge.device", fix="set device: auto")
    return processor
