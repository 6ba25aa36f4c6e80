"""A record's share of each released sum: bounded, on the grid, and exact.

Each function maps records to the integer sum over them, on the grid 2**-28. One record changes
it by at most the stated L2 norm, whatever the record holds and whatever the others are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_core.algorithms.base import Records
from fl_core.algorithms.fm_parameters import SUM_BITS
from fl_core.features import FeatureMap, valid_records
from fl_core.privacy.grid import (
    GRID_BITS,
    Float64,
    Int64,
    clip_rows,
    exact_matmul,
    quantise,
    squared_norms,
)

PRODUCT_BITS = 2 * GRID_BITS
SHIFT = SUM_BITS - PRODUCT_BITS  # from the grid of products to that of the noise


def kept(records: Records, features: FeatureMap, classes: int) -> tuple[Float64, Int64]:
    """Features (n, d) and labels (n,) of the valid records; the others are dropped."""
    mask = valid_records(records.x, records.y, classes)
    return features(records.x[mask]), records.y[mask]


def bounded(phi: Float64, centre: NDArray[np.generic], radius: float) -> Int64:
    """z = clip(φ - centre, radius)/radius as integers (n, d) on 2**-12, ‖z‖ <= 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        centred = phi - centre.astype(np.float64)
    return quantise(clip_rows(centred, radius) / radius, 1.0)


def centre_sum(phi: Float64) -> Int64:
    """Σφ (d,); norm per record at most 1."""
    return np.asarray(quantise(phi, 1.0, bits=SUM_BITS).sum(axis=0), dtype=np.int64)


def quadratic_sum(z: Int64) -> Int64:
    """Upper triangle, row by row, of Σzzᵀ (d(d+1)/2,); Frobenius norm per record at most 1."""
    return exact_matmul(z.T, z)[np.triu_indices(z.shape[1])] << SHIFT


def linear_sum(z: Int64, labels: Int64, weight_steps: Int64, clip: float) -> Int64:
    """Σ z(p - y)ᵀ (d, c), each record clipped to Frobenius norm `clip`.

    p = softmax(Wᵀz). W (d, c) stands on the grid 2**-12, so the logits are exact integers on
    2**-24 and do not depend on the batch.
    """
    logits = exact_matmul(z, weight_steps).astype(np.float64) * 2.0**-PRODUCT_BITS
    residual = _softmax(logits)
    residual[np.arange(len(labels)), labels] -= 1.0
    z_squared = squared_norms(z)
    norm = np.sqrt(z_squared.astype(np.float64)) * 2.0**-GRID_BITS
    steps = quantise(clip_rows(residual, clip / np.maximum(norm, 1e-9)), 2.0)
    # The outer product's norm is the product of the norms: check it in integers.
    limit = int(clip * 2.0**PRODUCT_BITS) ** 2
    within = z_squared * squared_norms(steps) <= limit
    return exact_matmul(z.T, np.where(within[:, None], steps, 0)) << SHIFT


def _softmax(logits: Float64) -> Float64:
    """Softmax over rows (n, c), each row a function of itself alone, bit for bit.

    `math.exp` per value and one addition per class: vectorised exponentials may differ between
    the body and the tail of an array.
    """
    shifted = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
    flat = np.fromiter(map(math.exp, shifted.ravel().tolist()), np.float64, shifted.size)
    powers: Float64 = flat.reshape(shifted.shape)
    total = np.zeros(len(powers))
    for column in powers.T:
        total = total + column
    return powers / np.maximum(total, 1.0)[:, None]
