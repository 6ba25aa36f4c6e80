"""Rules that resist poisoned uploads.

Krum (Blanchard et al. 2017): an upload's score is the sum of squared L2 distances to the n − f − 2
nearest others, f the uploads that may be malicious. The k smallest scores are averaged: k = 1 is
Krum, more Multi-Krum. `trimmed_mean`, `median`: value by value (Yin et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgeveil.parts.aggregation.rule import (
    AggregationPart,
    AggregationRule,
    AveragingParameters,
    Combined,
    Uploads,
    best,
    blocks,
    mean_of,
)


class Krum(AggregationRule):
    """Multi-Krum on whole updates: distances between layers mixed across devices mean nothing."""

    whole = True

    @property
    def least(self) -> int:
        f, k = self.parameters.malicious, self.parameters.k
        return int(max(2 * f + 3, k + f))

    def counted(self, uploads: int) -> int:
        return int(self.parameters.k)

    def combine(self, uploads: Uploads) -> Combined:
        segments = uploads.segments
        distances = sum(map(squared_distances, segments.values()))
        scores = krum_scores(np.asarray(distances), self.parameters.malicious)
        return mean_of(segments, best(-scores, self.parameters.k, uploads.random_bytes))


def squared_distances(arrays: Sequence[NDArray[np.generic]]) -> NDArray[np.float64]:
    products = np.zeros((len(arrays), len(arrays)))
    for _, block in blocks(arrays):
        block -= block.mean(axis=0)  # against cancellation in the differences below
        products += block @ block.T
    norms = np.diagonal(products)
    return np.maximum(norms[:, None] + norms - 2 * products, 0.0)


def krum_scores(distances: NDArray[np.float64], malicious: int) -> NDArray[np.float64]:
    others = np.sort(distances + np.diag(np.full(len(distances), np.inf)), axis=1)
    scores: NDArray[np.float64] = others[:, : len(distances) - malicious - 2].sum(axis=1)
    return scores


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
    first = np.asarray(arrays[0])
    result = np.empty(first.size)
    for part, block in blocks(arrays):
        block.sort(axis=0)
        kept = block[cut : len(arrays) - cut]
        result[part] = kept.sum(axis=0) / len(kept)
    return result.reshape(first.shape)


class Median(AggregationRule):
    """Median per value, without the noise reduction of a mean; slow if devices differ much."""

    sums = True

    def counted(self, uploads: int) -> int:
        """Return 2/π of `uploads`: a median of Gaussian noise has π/2 times the mean's variance."""
        return max(1, math.floor(uploads * 2 / math.pi))

    def combine(self, uploads: Uploads) -> Combined:
        segments = uploads.segments.items()
        return {name: middle(arrays, (len(arrays) - 1) // 2) for name, arrays in segments}


_part = partial(AggregationPart, parameters=AveragingParameters, of_groups=True)
PARTS = (
    _part(
        name="krum",
        summary="The mean of the k whole updates that stand nearest to the others; against"
        " poisoning.",
        rule=Krum,
        source="Blanchard et al. 2017",
        needs="a model; proxy.shuffle: whole",
        example="aggregation: {name: krum, k: 4, malicious: 3}",
    ),
    _part(
        name="trimmed_mean",
        summary="Of each value the mean without its largest and smallest ones; against poisoning.",
        rule=TrimmedMean,
        source="Yin et al. 2018",
        example="aggregation: {name: trimmed_mean, share: 0.3}",
    ),
    _part(
        name="median",
        summary="Of each value the median; bears poison in just under half of the uploads.",
        rule=Median,
        source="Yin et al. 2018",
        example="aggregation: {name: median}",
    ),
)
