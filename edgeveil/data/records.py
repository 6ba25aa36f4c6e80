"""What is learned from: records and their labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Records:
    """One device's training (or evaluation) records: `x` (n, ...) float32, `y` (n,) int64.

    Compared and hashed by identity, so that what is computed of them can be kept beside them; the
    arrays are never changed in place.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)
