"""Aggregation rules, each declared by the file that implements it; see `rule.py`."""

from __future__ import annotations

from edgeveil.parts.aggregation.rule import AggregationPart as AggregationPart
from edgeveil.parts.aggregation.rule import AggregationRule as AggregationRule
from edgeveil.parts.aggregation.rule import ChoosingParameters as ChoosingParameters
from edgeveil.parts.aggregation.rule import Combined as Combined
from edgeveil.parts.aggregation.rule import RuleParameters as RuleParameters
from edgeveil.parts.aggregation.rule import Uploads as Uploads
from edgeveil.parts.part import PartTable

AGGREGATIONS = TABLE = PartTable(__name__, AggregationPart)


def build_rule(parameters: RuleParameters) -> AggregationRule:
    rule: AggregationRule = AGGREGATIONS[parameters.name].rule(parameters)
    return rule
