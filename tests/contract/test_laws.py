"""Every part of every table keeps the laws that `edgeveil methods check` plays."""

from dataclasses import replace

import numpy as np
import pytest

from edgeveil.parts.aggregation import AGGREGATIONS
from edgeveil.parts.laws import LAWS, check
from edgeveil_tools.methods import TABLES

FOREIGN = {"python", "onnx", "custom"}  # their example names code or a file that is not here
CASES = [
    pytest.param(table[name], law, id=f"{table.kind.family}-{name}-{law.__name__}")
    for table in TABLES
    for name in table
    for law in LAWS[table.kind.family]
    if name not in FOREIGN or table.kind.family == "sources"
]


@pytest.mark.parametrize(("part", "law"), CASES)
def test_it_keeps_the_law(part, law):
    assert law(part) == ""


class First:
    sums, whole, validation_records, least = True, False, 0, 1

    def __init__(self, parameters):
        self.parameters = parameters

    def counted(self, uploads):
        return uploads + 1

    def combine(self, uploads):
        return {name: np.asarray(one[0], np.float64) for name, one in uploads.segments.items()}


def test_a_part_that_breaks_laws_is_told_which():
    part = replace(AGGREGATIONS["fedavg"], rule=First)
    broken = {one.law for one in check(part) if one.wrong}
    assert broken == {
        "the order of arrival changes nothing",
        "it counts no more uploads than there are",
    }


@pytest.mark.parametrize("example", ["aggregation: {name: krum, k: 0}", "aggregation: {name: krum"])
def test_a_part_whose_example_is_wrong_is_told_that_alone(example):
    (found,) = check(replace(AGGREGATIONS["krum"], example=example))
    assert found.law == "its example is one of its blocks"
    assert example in found.wrong
