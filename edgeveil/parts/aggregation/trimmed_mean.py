"""The mean without the extremes, value by value (`trimmed_mean`; Yin et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.aggregation.rule import (
    AggregationPart,
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


class TrimmedMean:
    """Bears up to a share β of uploads that say anything."""

    sums, whole, validation_records, least = True, False, 0, 1

    def __init__(self, parameters: TrimmedMeanParameters) -> None:
        self.parameters = parameters

    def counted(self, uploads: int) -> int:
        """Those that are not left out."""
        return uploads - 2 * self._cut(uploads)

    def combine(self, uploads: Uploads) -> Combined:
        """The mean of the middle, per value."""
        segments = uploads.segments.items()
        return {name: middle(arrays, self._cut(len(arrays))) for name, arrays in segments}

    def _cut(self, uploads: int) -> int:
        return math.floor(self.parameters.share * uploads)


def middle(arrays: Sequence[NDArray[np.generic]], cut: int) -> NDArray[np.float64]:
    """Per value the mean of the sorted uploads without `cut` at either end.

    Summed in sorted order, so the order of arrival changes no bit.
    """
    first = np.asarray(arrays[0])
    result = np.empty(first.size)
    for part, block in blocks(arrays):
        block.sort(axis=0)
        kept = block[cut : len(arrays) - cut]
        result[part] = kept.sum(axis=0) / len(kept)
    return result.reshape(first.shape)


PART = AggregationPart(
    parameters=TrimmedMeanParameters,
    rule=TrimmedMean,
    source="Yin et al. 2018",
    example="aggregation: {name: trimmed_mean, share: 0.3}",
    of_groups=True,
)
