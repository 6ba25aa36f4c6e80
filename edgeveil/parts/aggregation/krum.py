"""Krum (Blanchard et al. 2017): the uploads nearest to most others.

A score is the sum of squared L2 distances to the n − f − 2 nearest others, f the uploads that may
be malicious. The k smallest scores are averaged: k = 1 is Krum, more Multi-Krum.
"""

from __future__ import annotations

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
    best,
    blocks,
    mean_of,
)


class KrumParameters(RuleParameters):
    """The `aggregation` block of a job with `name: krum`."""

    name: Literal["krum"] = "krum"
    """The mean of the k whole updates that stand nearest to the others; against poisoning."""
    k: int = Field(default=1, ge=1, le=10**6)
    """Updates that count: 1 is Krum, more are Multi-Krum."""
    malicious: int = Field(default=1, ge=0, le=10**6)
    """f: how many uploads of a round may be poisoned; 2f + 3 must come in."""


class Krum(AggregationRule):
    """Needs whole updates: distances between layers of mixed devices tell of nobody."""

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
        block -= block.mean(axis=0)  # far from 0 the differences below would lose their digits
        products += block @ block.T
    norms = np.diagonal(products)
    return np.maximum(norms[:, None] + norms - 2 * products, 0.0)


def krum_scores(distances: NDArray[np.float64], malicious: int) -> NDArray[np.float64]:
    others = np.sort(distances + np.diag(np.full(len(distances), np.inf)), axis=1)
    scores: NDArray[np.float64] = others[:, : len(distances) - malicious - 2].sum(axis=1)
    return scores


PART = AggregationPart(
    parameters=KrumParameters,
    rule=Krum,
    source="Blanchard et al. 2017",
    needs="a model; proxy.shuffle: whole",
    example="aggregation: {name: krum, k: 4, malicious: 3}",
    of_groups=True,
)
