"""Aggregation rules, each declared by the file that implements it; see `rule.py`."""

from __future__ import annotations

from edgeveil.parts.aggregation.rule import (
    AggregationPart,
    AggregationRule,
    ChoosingParameters,
    Combined,
    RuleParameters,
    Uploads,
)
from edgeveil.parts.part import PartTable

__all__ = [
    "AGGREGATIONS",
    "AggregationPart",
    "AggregationRule",
    "ChoosingParameters",
    "Combined",
    "RuleParameters",
    "Uploads",
    "build_rule",
]

AGGREGATIONS = TABLE = PartTable(__name__, AggregationPart)


def build_rule(parameters: RuleParameters) -> AggregationRule:
    """The rule of a job's `aggregation` block."""
    rule: AggregationRule = AGGREGATIONS[parameters.name].rule(parameters)
    return rule
