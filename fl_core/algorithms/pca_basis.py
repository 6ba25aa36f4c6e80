"""The basis of a PCA, from a covariance that has been noised or that never leaves its device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_core.algorithms.triangle import symmetric

BASIS_BITS = 14  # entries of an orthonormal basis are at most 1, so they fit int16
Basis = NDArray[np.int16]


def first_axes(features: int, kept: int) -> Basis:
    """The basis (D, d) that keeps the first d of D features; stands where there is none yet."""
    axes: Basis = np.eye(features, kept, dtype=np.int16) << BASIS_BITS
    return axes


def top_basis(triangle: NDArray[np.generic], features: int, kept: int) -> Basis:
    """The `kept` leading eigenvectors (D, d) of a covariance's upper triangle, on 2**-14.

    The largest entry of each is positive, so that two parties' bases differ no more than their
    covariances. Values that are not finite count as 0.
    """
    finite = np.nan_to_num(triangle.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    _, vectors = np.linalg.eigh(symmetric(finite, features))
    leading = vectors[:, ::-1][:, :kept]
    largest = leading[np.abs(leading).argmax(axis=0), np.arange(kept)]
    steps: Basis = np.rint(leading * np.where(largest < 0, -1, 1) * 2**BASIS_BITS).astype(np.int16)
    return steps


def as_weights(basis: Basis) -> NDArray[np.float32]:
    """The same basis as the ONNX graph takes it, exactly."""
    return basis.astype(np.float32) * np.float32(2.0**-BASIS_BITS)
