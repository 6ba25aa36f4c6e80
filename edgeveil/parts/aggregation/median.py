"""The median, value by value (`median`; Yin et al. 2018)."""

from __future__ import annotations

import math
from typing import Literal

from edgeveil.parts.aggregation.rule import AggregationPart, Combined, RuleParameters, Uploads
from edgeveil.parts.aggregation.trimmed_mean import middle


class MedianParameters(RuleParameters):
    """The `aggregation` block of a job with `name: median`."""

    name: Literal["median"] = "median"
    """Of each value the median; bears poison in just under half of the uploads."""


class Median:
    """All but the middle one or two are left out. Where devices differ much it learns slowly."""

    sums, whole, validation_records, least = True, False, 0, 1

    def __init__(self, parameters: MedianParameters) -> None:
        self.parameters = parameters

    def counted(self, uploads: int) -> int:
        """2/π of them: a median of Gaussian noise has π/2 times the variance of its mean."""
        return max(1, math.floor(uploads * 2 / math.pi))

    def combine(self, uploads: Uploads) -> Combined:
        """The median, per value."""
        segments = uploads.segments.items()
        return {name: middle(arrays, (len(arrays) - 1) // 2) for name, arrays in segments}


PART = AggregationPart(
    parameters=MedianParameters,
    rule=Median,
    source="Yin et al. 2018",
    example="aggregation: {name: median}",
    of_groups=True,
)
