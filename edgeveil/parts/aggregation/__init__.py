"""Aggregation rules: one idea per file, one table of names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgeveil.parts.aggregation.base import Rule, RuleParameters, Uploads
from edgeveil.parts.aggregation.choosing import ChoosingParameters
from edgeveil.parts.aggregation.fedavg import FedAvg, FedAvgParameters
from edgeveil.parts.aggregation.krum import Krum, KrumParameters
from edgeveil.parts.aggregation.median import Median, MedianParameters
from edgeveil.parts.aggregation.min_divergence import MinDivergence, MinDivergenceParameters
from edgeveil.parts.aggregation.secprobe import SecProbe, SecProbeParameters
from edgeveil.parts.aggregation.trimmed_mean import TrimmedMean, TrimmedMeanParameters
from edgeveil.registry import Table

__all__ = [
    "AGGREGATIONS",
    "Aggregation",
    "AggregationParameters",
    "ChoosingParameters",
    "FedAvgParameters",
    "Rule",
    "Uploads",
    "build_rule",
]


@dataclass(frozen=True)
class Aggregation:
    """One entry of the table: its parameters, and the rule, which is made of them alone."""

    parameters: type[RuleParameters]
    rule: type[Any]


AGGREGATIONS: Table[Aggregation] = Table(
    "aggregation",
    {
        "fedavg": Aggregation(FedAvgParameters, FedAvg),
        "min_divergence": Aggregation(MinDivergenceParameters, MinDivergence),
        "secprobe": Aggregation(SecProbeParameters, SecProbe),
        "median": Aggregation(MedianParameters, Median),
        "trimmed_mean": Aggregation(TrimmedMeanParameters, TrimmedMean),
        "krum": Aggregation(KrumParameters, Krum),
    },
)

AggregationParameters = (
    FedAvgParameters
    | MinDivergenceParameters
    | SecProbeParameters
    | MedianParameters
    | TrimmedMeanParameters
    | KrumParameters
)


def build_rule(parameters: AggregationParameters) -> Rule:
    """The rule of a job's `aggregation` block."""
    rule: Rule = AGGREGATIONS[parameters.name].rule(parameters)
    return rule
