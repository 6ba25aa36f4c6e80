"""A record's share of each released sum: bounded, on the grid, and exact.

Each function maps rows of bounded integers to the integer sum over records, on the grid 2**-24.
One record changes it by at most the stated norm, whatever the record holds and whatever the
others are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import PrivacyError
from edgeveil.parts.methods.fm_features import FEATURE_BITS, Bounded, Features, blocks
from edgeveil.parts.methods.triangle import upper
from edgeveil.parts.setting import Setting
from edgeveil.privacy.grid import (
    GRID_BITS,
    LARGEST_DIMENSION,
    Float64,
    Int64,
    clip_rows,
    exact_gram,
    exact_matmul,
    quantise,
    squared_norms,
)

PRODUCT_BITS = 2 * GRID_BITS
LARGEST_L1 = 2 << GRID_BITS  # of p - y


def check_sizes(setting: Setting) -> None:
    """Raise `PrivacyError` for sizes at which the exact sums of some records would overflow.

    With at most 2**22 features and classes none can, so that no record decides whether there is
    an answer. In steps, φ·B is below 2**22·2**24·2**15 = 2**61 and a logit below
    2**22·2**12·2**28 = 2**62 (`max_weight` is at most 2**16); a released value is at most 2**29 a
    record, and no machine holds 2**34 of them.
    """
    for count, what, where in (
        (setting.feature_dimension, "features", "features"),
        (setting.classes, "classes", "data.classes"),
    ):
        if count > LARGEST_DIMENSION:
            raise PrivacyError(
                f"{count} {what} do not fit exact integers",
                where=where,
                fix=f"use at most {LARGEST_DIMENSION} {what}",
            )


def covariance_sum(phi: Features) -> Int64:
    """Upper triangle of Σφφᵀ (D(D+1)/2,); Frobenius norm per record at most 1."""
    total = np.zeros((phi.steps.shape[1],) * 2, np.int64)
    for rows in blocks(len(phi.steps)):
        fine = phi.steps[rows]
        total += exact_gram(np.sign(fine) * (np.abs(fine) >> (FEATURE_BITS - GRID_BITS)))
    return np.asarray(upper(total), dtype=np.int64)


def centre_sum(phi: Features) -> Int64:
    """Σφ (d,); L2 norm per record at most 1."""
    return np.asarray(phi.steps.sum(axis=0, dtype=np.int64))


def quadratic_sum(z: Bounded) -> Int64:
    """Upper triangle of Σzzᵀ (d(d+1)/2,); Frobenius norm per record at most 1."""
    return np.asarray(upper(exact_gram(z.steps)), dtype=np.int64)


def linear_sum(z: Bounded, weight_steps: Int64, clip: float) -> Int64:
    """Σ z(p - y)ᵀ (d, c), each record clipped to Frobenius norm `clip`.

    p = softmax(Wᵀz). W (d, c) stands on the grid 2**-12, so the logits are exact integers on
    2**-24 and do not depend on the batch.
    """
    total = np.zeros(weight_steps.shape, np.int64)
    limit = int(clip * 2.0**PRODUCT_BITS) ** 2
    for rows in blocks(len(z.steps)):
        steps, squared = z.steps[rows], z.squared[rows]
        residual = _residual(exact_matmul(steps, weight_steps), z.labels[rows])
        norm = np.sqrt(squared.astype(np.float64)) * 2.0**-GRID_BITS
        factors = quantise(clip_rows(residual, clip / np.maximum(norm, 1e-9)), 2.0)
        # The outer product's norm is the product of the norms: check it in integers.
        within = squared * squared_norms(factors) <= limit
        within &= _of_a_residual(factors, z.labels[rows])
        total += exact_matmul(steps.T, np.where(within[:, None], factors, 0))
    return total


def _residual(logit_steps: Int64, labels: Int64) -> Float64:
    """p - y (n, c) for logits in steps of 2**-24."""
    residual = _softmax(logit_steps.astype(np.float64) * 2.0**-PRODUCT_BITS)
    residual[np.arange(len(labels)), labels] -= 1.0
    return residual


def _of_a_residual(factors: Int64, labels: Int64) -> NDArray[np.bool_]:
    """Mask (n,): ‖r‖₁ <= 2, and the label's entry weighs what all others do, up to one step.

    Holds for p - y scaled down and rounded toward zero; the L1 sensitivity rests on it.
    """
    sizes = np.abs(factors)
    total, own = sizes.sum(axis=1), sizes[np.arange(len(labels)), labels]
    within: NDArray[np.bool_] = (total <= LARGEST_L1) & (total <= 2 * own + 1)
    return within


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
