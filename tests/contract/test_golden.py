"""Every name that a job may use is played by name in a unit test."""

import re
from pathlib import Path

import pytest

from edgeveil.evaluation.clustering import EVALUATIONS
from edgeveil.jobs.presets import PRESETS
from edgeveil_tools.methods import TABLES

UNIT = Path(__file__).parents[1] / "unit" / "edgeveil"
OTHERS = (EVALUATIONS, PRESETS)
NAMES = sorted({name for table in (*TABLES, *OTHERS) for name in table})
WORDS = set(re.findall(r"\w+", " ".join(p.read_text("utf-8") for p in UNIT.rglob("test_*.py"))))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_a_table_has_its_test(name):
    assert name in WORDS
