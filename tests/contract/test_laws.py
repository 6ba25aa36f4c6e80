"""Every part of every table keeps the laws that `edgeveil methods check` plays."""

import pytest

from edgeveil.parts.laws import LAWS
from edgeveil_tools.methods import TABLES

FOREIGN = {"python", "onnx"}  # their example names code or a file that is not here
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


def test_every_family_has_laws():
    assert set(LAWS) == {table.kind.family for table in TABLES}
