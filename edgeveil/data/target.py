"""A numeric label: its public range is mapped to t in [-1, 1], and t to an integer step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BITS = 12  # t is in steps of 2**-12
STEPS = 2 << BITS  # from one end of the range to the other
LABELS = STEPS + 1


@dataclass(frozen=True)
class TargetRange:
    """A public range of numbers, low < high."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return self.low / 2 + self.high / 2

    @property
    def half(self) -> float:
        """Half of the width: the change of the label for a change of t by 1."""
        return self.high / 2 - self.low / 2

    @property
    def distinct_in_float32(self) -> bool:
        return self.half / STEPS > max(abs(self.low), abs(self.high)) * 2.0**-24

    def label(self, value: float) -> int | None:
        """Return the step nearest to a value, clipped to the range; None for NaN."""
        if math.isnan(value):
            return None
        within = min(max(value, self.low), self.high)
        return round(((within - self.middle) / self.half + 1.0) * (STEPS // 2))

    def values(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.middle + self.half * scaled(labels)


def scaled(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return t in [-1, 1] of labels, exactly."""
    return labels / (STEPS // 2) - 1.0
