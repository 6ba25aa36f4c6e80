"""Aggregation rules: one idea per file, one table of names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fl_core.aggregation.base import Rule, RuleParameters, Uploads
from fl_core.aggregation.choosing import ChoosingParameters
from fl_core.aggregation.fedavg import FedAvg, FedAvgParameters
from fl_core.aggregation.krum import Krum, KrumParameters
from fl_core.aggregation.median import Median, MedianParameters
from fl_core.aggregation.min_divergence import MinDivergence, MinDivergenceParameters
from fl_core.aggregation.secprobe import SecProbe, SecProbeParameters
from fl_core.aggregation.trimmed_mean import TrimmedMean, TrimmedMeanParameters
from fl_core.registry import Table

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
