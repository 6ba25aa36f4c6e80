"""Symmetric matrices as flat upper triangles, row by row, the diagonal included."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def triangle_size(d: int) -> int:
    """Values in the upper triangle of a (d, d) matrix."""
    return d * (d + 1) // 2


def upper(matrix: NDArray[np.generic]) -> NDArray[np.generic]:
    """The upper triangle (d(d+1)/2,) of a (d, d) matrix."""
    return matrix[np.triu_indices(len(matrix))]


def symmetric(triangle: NDArray[np.generic], d: int) -> NDArray[np.float64]:
    """The symmetric (d, d) matrix of a flat upper triangle."""
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = triangle
    return matrix + np.triu(matrix, 1).T


def unpacked(triangle: NDArray[np.float32], d: int) -> NDArray[np.float32]:
    """As `symmetric`, kept for the next call: a job broadcasts the same curvature every round.

    Not to be written to.
    """
    return _unpacked(triangle.tobytes(), d)


@lru_cache(maxsize=2)
def _unpacked(raw: bytes, d: int) -> NDArray[np.float32]:
    return symmetric(np.frombuffer(raw, np.float32), d).astype(np.float32)
