"""Equal-weight averaging (McMahan et al. 2017, with public, equal weights).

Weights by record count would reveal the counts, which are private under add/remove.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fl_core.errors import JobFailed


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
        stack = np.stack([np.asarray(a) for a in arrays])
        if np.issubdtype(stack.dtype, np.integer):
            total = stack.astype(np.int64).sum(axis=0).astype(np.float64)
        else:
            total = np.sort(stack.astype(np.float64), axis=0).sum(axis=0)
        result[name] = total / len(arrays)
    return result
