"""Equal-weight averaging (McMahan et al. 2017, with public, equal weights).

Weights by record count would reveal the counts, which are private under add/remove; and uploads
are anonymous, so no public weight of a device could be told to belong to a segment.
"""

from __future__ import annotations

from typing import Literal

from edgeveil.parts.aggregation.mean import mean
from edgeveil.parts.aggregation.rule import AggregationPart, Combined, RuleParameters, Uploads


class FedAvgParameters(RuleParameters):
    """The `aggregation` block of a job with `name: fedavg`."""

    name: Literal["fedavg"] = "fedavg"
    """The mean of the devices' segments, each of equal weight."""


class FedAvg:
    """The default."""

    sums, whole, validation_records, least = True, False, 0, 1

    def __init__(self, parameters: FedAvgParameters) -> None:
        self.parameters = parameters

    def counted(self, uploads: int) -> int:
        """All of them."""
        return uploads

    def combine(self, uploads: Uploads) -> Combined:
        """The mean."""
        return mean(uploads.segments)


PART = AggregationPart(
    parameters=FedAvgParameters,
    rule=FedAvg,
    source="McMahan et al. 2017, with equal weights",
    example="aggregation: {name: fedavg}",
    adds_up=True,
)
