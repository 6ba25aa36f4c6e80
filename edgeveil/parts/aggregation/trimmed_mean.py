"""The mean without the extremes, and the median, value by value (Yin et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.aggregation.rule import (
    AggregationPart,
    AggregationRule,
    Combined,
    RuleParameters,
    Uploads,
    blocks,
)


class TrimmedMeanParameters(RuleParameters):
    """The `aggregation` block of a job with `name: trimmed_mean`."""

    name: Literal["trimmed_mean"] = "trimmed_mean"
    """Of each value the mean without its largest and smallest ones; against poisoning."""
    share: float = Field(default=0.1, ge=0, lt=0.5)
    """β: the share of the uploads that is left out at either end."""


class TrimmedMean(AggregationRule):
    sums = True

    def counted(self, uploads: int) -> int:
        return uploads - 2 * self._cut(uploads)

    def combine(self, uploads: Uploads) -> Combined:
        segments = uploads.segments.items()
        return {name: middle(arrays, self._cut(len(arrays))) for name, arrays in segments}

    def _cut(self, uploads: int) -> int:
        return int(self.parameters.share * uploads)


def middle(arrays: Sequence[NDArray[np.generic]], cut: int) -> NDArray[np.float64]:
    """Per value the mean of the sorted uploads without `cut` at either end, in any order."""
    first = np.asarray(arrays[0])
    result = np.empty(first.size)
    for part, block in blocks(arrays):
        block.sort(axis=0)
        kept = block[cut : len(arrays) - cut]
        result[part] = kept.sum(axis=0) / len(kept)
    return result.reshape(first.shape)


class MedianParameters(RuleParameters):
    """The `aggregation` block of a job with `name: median`."""

    name: Literal["median"] = "median"
    """Of each value the median; bears poison in just under half of the uploads."""


class Median(AggregationRule):
    """All but the middle one or two are left out. Where devices differ much it learns slowly."""

    sums = True

    def counted(self, uploads: int) -> int:
        """2/π of them: a median of Gaussian noise has π/2 times the variance of its mean."""
        return max(1, math.floor(uploads * 2 / math.pi))

    def combine(self, uploads: Uploads) -> Combined:
        segments = uploads.segments.items()
        return {name: middle(arrays, (len(arrays) - 1) // 2) for name, arrays in segments}


PARTS = (
    AggregationPart(
        parameters=TrimmedMeanParameters,
        rule=TrimmedMean,
        source="Yin et al. 2018",
        example="aggregation: {name: trimmed_mean, share: 0.3}",
        of_groups=True,
    ),
    AggregationPart(
        parameters=MedianParameters,
        rule=Median,
        source="Yin et al. 2018",
        example="aggregation: {name: median}",
        of_groups=True,
    ),
)
