"""Rules that choose uploads by a score: `min_divergence` and `secprobe`.

`min_divergence` (Cao et al. 2023, alg. 3, eq. 14 to 16): the divergence of a layer's upload is the
share of the layer's weights that would change sign, zero counted positive. Per layer, k of n
uploads are drawn without replacement with P(i) ∝ exp(-ε₃·divergence_i / 2n), or the k smallest
taken, and averaged. A layer is one segment.

`secprobe` (Zhao et al. 2019, as described by Cao et al.): the score is the number of the cloud's
validation records that the global model with this one upload classifies correctly; k uploads are
drawn at ε₃/k each, with sensitivity 1. These records do not count in the reported accuracy.

Deviation of both: the mean of the drawn uploads is released, not their indices, so the draw is not
ε₃-DP as the texts claim; on noised uploads it is post-processing."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import JobFailed
from edgeveil.parts.aggregation.mean import BLOCK_VALUES, mean
from edgeveil.parts.aggregation.rule import (
    AggregationPart,
    ChoosingParameters,
    ChoosingRule,
    Chosen,
    Combined,
    Int64,
    Uploads,
    mean_of,
)


class MinDivergence(ChoosingRule):
    def combine(self, uploads: Uploads) -> Combined:
        """Return the mean of each layer's k uploads. Raises JobFailed for sums of records."""
        if uploads.aim is None:
            raise JobFailed("min_divergence is undefined on sums of coefficients")
        p, aim, chosen = self.parameters, uploads.aim, {}
        for name, arrays in uploads.segments.items():
            turned = sign_changes(arrays, np.asarray(aim.weights[name]), change=aim.change)
            size = np.asarray(aim.weights[name]).size
            each = Fraction(p.epsilon_3) / len(turned)
            kept = self.chosen(-turned, size, each, uploads.random_bytes)
            chosen[name] = Chosen(arrays, kept)
        return mean(chosen)


def sign_changes(
    arrays: Sequence[NDArray[np.generic]], weights: NDArray[np.generic], *, change: bool
) -> Int64:
    """Return per upload the number of `weights` whose sign it changes (0 is positive; eq. 14)."""
    flat = weights.ravel()
    counts = np.zeros(len(arrays), np.int64)
    for index, array in enumerate(arrays):
        upload = np.asarray(array).ravel()
        for start in range(0, flat.size, BLOCK_VALUES):
            old = flat[start : start + BLOCK_VALUES].astype(np.float64)
            new = upload[start : start + BLOCK_VALUES].astype(np.float64)
            if change:
                new += old
            counts[index] += np.count_nonzero((old < 0) != (new < 0))
    return counts


class SecProbe(ChoosingRule):
    whole = True

    def __init__(self, parameters: ChoosingParameters) -> None:
        super().__init__(parameters)
        self.validation_records = parameters.validation_records

    def combine(self, uploads: Uploads) -> Combined:
        """Return the mean of the k chosen uploads. Raises JobFailed without a score."""
        if uploads.score is None:
            raise JobFailed("secprobe needs the cloud's own records")
        p, segments = self.parameters, uploads.segments
        columns = zip(*segments.values(), strict=True)
        found = (uploads.score(dict(zip(segments, one, strict=True))) for one in columns)
        scores = np.fromiter(found, np.int64)
        each = Fraction(p.epsilon_3) / p.k
        kept = self.chosen(scores, p.validation_records, each, uploads.random_bytes)
        return mean_of(segments, kept)


_part = partial(
    AggregationPart,
    parameters=ChoosingParameters,
    reveals="a mean of the chosen uploads",
    privacy="claimed",
    note="post-processing where uploads are noised; the ε₃ of its draws is claimed",
)
PARTS = (
    _part(
        name="min_divergence",
        summary="Per layer the mean of k uploads that turn few signs of the global weights (DELM).",
        rule=MinDivergence,
        source="Cao et al. 2023 (DELM), alg. 3, eq. 14 to 16",
        needs="weights or updates; k",
        example="aggregation: {name: min_divergence, k: 4, sampling: top_k}",
    ),
    _part(
        name="secprobe",
        summary="The mean of k whole updates that do well on the cloud's own records (Zhao et al."
        " 2019).",
        rule=SecProbe,
        source="Zhao et al. 2019 (SecProbe), as Cao et al. 2023 (DELM) has it",
        needs="a model; proxy.shuffle: whole; k; test records in the cloud",
        example="aggregation: {name: secprobe, k: 4, sampling: top_k}",
    ),
)
