"""The basis of a PCA, from a covariance that has been noised or that never leaves its device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.methods.symmetric_packing import symmetric

BASIS_BITS = 14  # entries of an orthonormal basis are at most 1, so they fit int16
AXES_SEED = 0  # of public axes, by no means a secret
Basis = NDArray[np.int16]


def first_axes(features: int, kept: int) -> Basis:
    """The basis (D, d) that keeps the first d of D features; stands where there is none yet."""
    axes: Basis = np.eye(features, kept, dtype=np.int16) << BASIS_BITS
    return axes


def top_basis(triangle: NDArray[np.generic], features: int, kept: int) -> Basis:
    """An orthonormal basis (D, d = kept) of the d leading eigenvectors' span, on 2**-14.

    `triangle` is the covariance's upper triangle; values that are not finite count as 0. Within
    the span the basis is the one nearest to public axes (orthogonal Procrustes, Schönemann 1966).
    Eigenvectors themselves have arbitrary signs and order, so that parties with nearly one
    covariance would not understand each other's coordinates.
    """
    finite = np.nan_to_num(triangle.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    _, vectors = np.linalg.eigh(symmetric(finite, features))
    leading = vectors[:, features - kept :]
    left, _, right = np.linalg.svd(leading.T @ _public_axes(features, kept))
    steps: Basis = np.rint(leading @ (left @ right) * 2**BASIS_BITS).astype(np.int16)
    return steps


def as_weights(basis: Basis) -> NDArray[np.float32]:
    """The same basis as the ONNX graph takes it, exactly."""
    return basis.astype(np.float32) * np.float32(2.0**-BASIS_BITS)


@lru_cache(maxsize=2)
def _public_axes(features: int, kept: int) -> NDArray[np.float64]:
    """Orthonormal columns (D, d) in random directions, the same for all."""
    return np.linalg.qr(np.random.default_rng(AXES_SEED).normal(size=(features, kept)))[0]
