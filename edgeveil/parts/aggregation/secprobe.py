"""SecProbe: uploads are scored on the cloud's own records, and good ones drawn (`secprobe`).

Zhao et al. 2019 ("Privacy-preserving collaborative deep learning with unreliable participants"),
as Cao et al. 2023 describe it: the server keeps validation records, scores every local model by its
accuracy on them, and the exponential mechanism chooses whose models are averaged. A score is the
number of validation records that the global model with this one upload gets right; k are drawn
without replacement at ε₃/k each, with sensitivity 1 of the accuracy.

Deviations. As in `min_divergence` the released mean is no index, so the choice has no proven
guarantee of its own; on noised uploads it is post-processing. The validation records are left
out of the accuracy that the cloud reports.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
from pydantic import Field

from edgeveil.errors import JobFailed
from edgeveil.parts.aggregation.rule import (
    AggregationPart,
    ChoosingParameters,
    Combined,
    Uploads,
    best,
    drawn,
    mean_of,
)


class SecProbeParameters(ChoosingParameters):
    """The `aggregation` block of a job with `name: secprobe`."""

    name: Literal["secprobe"] = "secprobe"
    """The mean of k whole updates that do well on the cloud's own records (Zhao et al. 2019)."""
    validation_records: int = Field(default=200, ge=1, le=10**6)
    """How many of the cloud's test records score uploads: the first ones; others test the model."""


class SecProbe:
    """Needs whole updates: half a device's layers are no model to score."""

    sums, whole = False, True

    def __init__(self, parameters: SecProbeParameters) -> None:
        self.parameters = parameters
        self.validation_records = parameters.validation_records

    @property
    def least(self) -> int:
        """k."""
        return self.parameters.k

    def counted(self, uploads: int) -> int:
        """k."""
        return self.parameters.k

    def combine(self, uploads: Uploads) -> Combined:
        """The mean of k of them. Raises JobFailed where nothing can score."""
        if uploads.score is None:
            raise JobFailed("secprobe needs the cloud's own records")
        p, segments = self.parameters, uploads.segments
        columns = zip(*segments.values(), strict=True)
        found = (uploads.score(dict(zip(segments, one, strict=True))) for one in columns)
        scores = np.fromiter(found, np.int64)
        if p.sampling == "top_k":
            return mean_of(segments, best(scores, p.k, uploads.random_bytes))
        each = Fraction(p.epsilon_3) / p.k
        kept = drawn(scores, p.k, p.validation_records, each, uploads.random_bytes)
        return mean_of(segments, kept)


PART = AggregationPart(
    parameters=SecProbeParameters,
    rule=SecProbe,
    source="Zhao et al. 2019 (SecProbe), as Cao et al. 2023 (DELM) has it",
    needs="a model; proxy.shuffle: whole; k; test records in the cloud",
    reveals="a mean of the chosen uploads",
    privacy="claimed",
    note="post-processing where uploads are noised; the ε₃ of its draws is claimed",
    example="aggregation: {name: secprobe, k: 4, sampling: top_k}",
)
