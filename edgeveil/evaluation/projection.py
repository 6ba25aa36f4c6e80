"""Two coordinates for a plot of the uploaded vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError


def project_2d(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """The first two principal components (n, 2) of `vectors` (n, k), by SVD.

    Deterministic: each axis points where its largest loading is positive. Rows that are not
    finite come out as NaN and take no part; missing directions are 0. Raises DataError unless
    `vectors` has two axes.
    """
    if vectors.ndim != 2:
        raise DataError(
            f"has shape {vectors.shape}", where="vectors", fix="pass shape (uploads, classes)"
        )
    values = vectors.astype(np.float64)
    finite = np.isfinite(values).all(axis=1)
    result = np.full((len(values), 2), np.nan)
    result[finite] = 0.0
    if finite.any() and values.shape[1]:
        # The scale is taken out before squaring, so that huge values do not overflow.
        scale = float(np.abs(values[finite]).max()) or 1.0
        centred = values[finite] / scale
        centred = centred - centred.mean(axis=0)
        axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
        largest = axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)]
        axes = axes * np.where(largest < 0, -1.0, 1.0)[:, None]
        result[np.flatnonzero(finite)[:, None], np.arange(len(axes))] = centred @ axes.T * scale
    return result
