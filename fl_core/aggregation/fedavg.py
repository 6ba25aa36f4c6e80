"""Equal-weight averaging (McMahan et al. 2017, with public, equal weights).

Weights by record count would reveal the counts, which are private under add/remove.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fl_core.errors import JobFailed

BLOCK_VALUES = 1 << 16  # of each device at one time: a hundred devices' copies stay small


def mean(stacked: Mapping[str, Sequence[NDArray[np.generic]]]) -> dict[str, NDArray[np.float64]]:
    """Per segment name, the mean of the devices' arrays (each of one shape), float64.

    Integer segments are summed exactly in int64; float segments element by element in sorted
    order, so the order of arrival changes no bit.
    Raises `JobFailed` for a name without uploads.
    """
    result: dict[str, NDArray[np.float64]] = {}
    for name, arrays in stacked.items():
        if len(arrays) == 0:
            raise JobFailed(f"no valid upload of segment '{name}'")
        flat = [np.asarray(array).ravel() for array in arrays]
        total = np.empty(flat[0].shape)
        for start in range(0, total.size, BLOCK_VALUES):
            part = slice(start, start + BLOCK_VALUES)
            total[part] = _sum(np.stack([array[part] for array in flat]))
        result[name] = total.reshape(np.shape(arrays[0])) / len(arrays)
    return result


def _sum(stack: NDArray[np.generic]) -> NDArray[np.float64]:
    if np.issubdtype(stack.dtype, np.integer):
        return np.asarray(stack.astype(np.int64).sum(axis=0).astype(np.float64))
    values = stack.astype(np.float64)
    values.sort(axis=0)
    return np.asarray(values.sum(axis=0))
